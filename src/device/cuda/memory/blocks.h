/* An allocator over slabs of GPU memory, with all its books on the host.
 *
 * One stream uses the memory, in the order of the calls: a block may be given out again as soon as it is released. As
 * in the CPU's heap, free blocks are holes (holes.h) and neighbours in a slab are merged at once, so that a step that
 * leaves what it found repeats its addresses. Not thread-safe. */
#ifndef TSHI_CUDA_BLOCKS_H
#define TSHI_CUDA_BLOCKS_H

#include "device/free_list.h"

#define TSHI_BLOCK_UNIT ((size_t)256) /* what cudaMalloc aligns to; a multiple of TSHI_HOLE_UNIT */

typedef struct tshi_blocks tshi_blocks;
typedef struct tshi_slab tshi_slab;

typedef struct tshi_piece {
    tshi_hole hole;
    size_t wanted; /* of it asked for */
    tshi_slab *slab;
    struct tshi_piece *before, *after; /* in the slab */
    struct tshi_piece *chain;          /* in its bucket, while in use; in a list of kept blocks after that */
} tshi_piece;

struct tshi_slab {
    tshi_blocks *owner;
    tshi_slab *next;
    char *base;
    size_t size;
    tshi_piece *first;
    void *shared; /* what others have been told of it (share.c), from the books' allocator; it is never idle then */
};

struct tshi_blocks {
    tshi_slab *slabs;
    tshi_holes holes;
};

/* The structs' memory, and the blocks in use by address. */
typedef struct tshi_block_books {
    const tsh_allocator *allocator;
    tshi_pool structs;
    tshi_piece **buckets;
    size_t buckets_count; /* a power of two, or 0 */
    size_t in_use;
} tshi_block_books;

/* A block of at least `size` bytes (a multiple of the unit, not 0) from the slabs that are there: NULL where none has
 * room, or, with the message set, where the host has no memory for the books; *failed tells which. */
tshi_piece *tshi_blocks_take(tshi_blocks *blocks, tshi_block_books *books, size_t size, bool *failed);
/* The block in use at `data`, or NULL. */
tshi_piece *tshi_blocks_find(const tshi_block_books *books, const void *data);
/* No longer in use; still not free. */
void tshi_blocks_forget(tshi_block_books *books, tshi_piece *block);
/* Free, and merged with free neighbours. */
void tshi_blocks_give(tshi_block_books *books, tshi_piece *block);

/* Adds memory, as one free block. The caller's `slab` struct is taken from the allocator. */
tsh_status tshi_blocks_add(tshi_blocks *blocks, tshi_block_books *books, char *base, size_t size);
/* The slab that `pointer` lies in, or NULL. */
tshi_slab *tshi_blocks_slab(const tshi_blocks *blocks, const void *pointer);
/* Takes a slab without a block in use out of the lists and returns it (NULL: there is none); then drop its struct. */
tshi_slab *tshi_blocks_idle(tshi_blocks *blocks, tshi_block_books *books);
/* Hands all slabs of `from` with their blocks to `to`. */
void tshi_blocks_join(tshi_blocks *from, tshi_blocks *to);
/* Drops all structs, and `shared`; returns nothing to the GPU. */
void tshi_blocks_clear(tshi_blocks *blocks, tshi_block_books *books);

#endif
