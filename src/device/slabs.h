/* An allocator over slabs of a device's memory. Its own data is in host memory; it never touches the slabs.
 *
 * An address is reused in call order: a block may be handed out again as soon as it is released. Free neighbours in
 * a slab are merged at once, so where a block lands depends only on the live blocks and not on the order of earlier
 * releases: a step that releases all that it allocates repeats its addresses. Not thread-safe. */
#ifndef TSHI_SLABS_H
#define TSHI_SLABS_H

#include "base/base.h"
#include "tshard/device.h"

#define TSHI_BLOCK_UNIT   ((size_t)64) /* sizes are multiples of it */
#define TSHI_FREE_LEVELS  58           /* size classes: powers of two of a size in units */
#define TSHI_FREE_CLASSES 16

typedef struct tshi_slabs tshi_slabs;
typedef struct tshi_slab tshi_slab;

typedef struct tshi_slab_block {
    char *data;
    size_t size;
    size_t wanted;              /* the caller's: the bytes asked for */
    tsh_memory_purpose purpose; /* the caller's: what for */
    tshi_slab *slab;
    struct tshi_slab_block *before, *after; /* neighbours in the slab, by address */
    /* Links in the free list of its class while free; in its hash bucket while in use; then in the caller's list, if
     * any. */
    struct tshi_slab_block *next, *previous;
    bool is_free;
} tshi_slab_block;

/* Free blocks in lists by size class, 16 classes to a power of two. Each list is ordered by address, so that the
 * block found depends on the lists' blocks and not on the order in which they were added. All zero is empty. */
typedef struct tshi_free_list {
    uint64_t levels; /* bit l: some class of level l has a block */
    uint16_t classes[TSHI_FREE_LEVELS];
    tshi_slab_block *first[TSHI_FREE_LEVELS][TSHI_FREE_CLASSES];
} tshi_free_list;

struct tshi_slab {
    tshi_slabs *owner;
    tshi_slab *next;
    char *base;
    size_t size;
    tshi_slab_block *first;
    void
        *shared; /* its handle for other ranks (sharing.c), from the index's allocator; a slab with one is never idle */
};

struct tshi_slabs {
    tshi_slab *first;
    tshi_free_list free;
};

/* The blocks in use, hashed by address, and a pool for their structs. */
typedef struct tshi_slab_index {
    const tsh_allocator *allocator;
    tshi_pool structs;
    tshi_slab_block **buckets;
    size_t buckets_count; /* a power of two, or 0 */
    size_t in_use;
} tshi_slab_index;

/* A block of `size` bytes (a multiple of TSHI_BLOCK_UNIT, not 0). NULL where no slab has room, or, with *failed and the
 * message set, where the host has no memory for the structs. */
tshi_slab_block *tshi_slabs_alloc(tshi_slabs *slabs, tshi_slab_index *index, size_t size, bool *failed);
/* Removes the block in use at `data` from the index and returns it, not yet free; NULL where there is none. */
tshi_slab_block *tshi_slab_index_take(tshi_slab_index *index, const void *data);
/* The block in use at `data`, or NULL. */
tshi_slab_block *tshi_slab_index_find(const tshi_slab_index *index, const void *data);
/* Frees the block and merges it with free neighbours. */
void tshi_slabs_release(tshi_slab_index *index, tshi_slab_block *block);
/* The size of the largest free block, or 0. */
size_t tshi_slabs_largest(const tshi_slabs *slabs);

/* Adds memory as a slab of one free block. */
tsh_status tshi_slabs_add(tshi_slabs *slabs, tshi_slab_index *index, char *base, size_t size);
/* The slab that `pointer` lies in, or NULL. */
tshi_slab *tshi_slabs_find(const tshi_slabs *slabs, const void *pointer);
/* Removes a slab that has no block in use and returns it, or NULL. The caller frees its struct. */
tshi_slab *tshi_slabs_take_idle(tshi_slabs *slabs, tshi_slab_index *index);
/* Moves all slabs of `from`, with their blocks, to `to`. */
void tshi_slabs_merge(tshi_slabs *from, tshi_slabs *to);
/* Frees all structs and the slabs' `shared`; the slabs' memory stays the caller's. */
void tshi_slabs_clear(tshi_slabs *slabs, tshi_slab_index *index);
/* Frees the index, after its slabs have been cleared. */
void tshi_slab_index_clear(tshi_slab_index *index);

/* `size` rounded up to a multiple of unit; at least one unit. */
static inline size_t tshi_units(size_t size, size_t unit) {
    return ((size ? size : 1) + unit - 1) / unit * unit;
}

#endif
