/* An allocator over slabs of a device's memory, which it describes in memory of the host and does not touch.
 *
 * The memory is used in the order of the calls: a block may be used again as soon as it is released. Free neighbours in
 * a slab are merged at once: where a block lands depends on the live blocks alone, not on the order in which others
 * were released, so that a step that releases all that it allocates repeats its addresses. Not thread-safe. */
#ifndef TSHI_SLABS_H
#define TSHI_SLABS_H

#include "base/base.h"
#include "tshard/device.h"

#define TSHI_BLOCK_UNIT   ((size_t)64) /* sizes are multiples of it */
#define TSHI_FREE_LEVELS  58           /* powers of two of a size in units */
#define TSHI_FREE_CLASSES 16

typedef struct tshi_slabs tshi_slabs;
typedef struct tshi_slab tshi_slab;

typedef struct tshi_slab_block {
    char *data;
    size_t size;
    size_t wanted;              /* the caller's: bytes that were asked for, */
    tsh_memory_purpose purpose; /* and what for */
    tshi_slab *slab;
    struct tshi_slab_block *before, *after; /* in the slab */
    /* In the list of its class while it is free; in its bucket while in use; then in the caller's list, if any. */
    struct tshi_slab_block *next, *previous;
    bool is_free;
} tshi_slab_block;

/* Free blocks in lists by size class (16 a power of two), each in order of address: which one is found depends on the
 * blocks in the lists alone, not on the order in which they were added. All zero: empty. */
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
    void *shared; /* how other ranks know it (sharing.c), from the index's allocator; the slab is never idle then */
};

struct tshi_slabs {
    tshi_slab *first;
    tshi_free_list free;
};

/* The blocks in use by address, and memory for the structs. */
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
/* The block in use at `data`, which is no longer in use then and not yet free, or NULL. */
tshi_slab_block *tshi_slab_index_take(tshi_slab_index *index, const void *data);
/* The block in use at `data`, which stays so, or NULL. */
tshi_slab_block *tshi_slab_index_find(const tshi_slab_index *index, const void *data);
/* The block becomes free, and one with free neighbours. */
void tshi_slabs_release(tshi_slab_index *index, tshi_slab_block *block);
/* The size of the largest free block, or 0. */
size_t tshi_slabs_largest(const tshi_slabs *slabs);

/* Adds memory, as a slab of one free block. */
tsh_status tshi_slabs_add(tshi_slabs *slabs, tshi_slab_index *index, char *base, size_t size);
/* The slab that `pointer` lies in, or NULL. */
tshi_slab *tshi_slabs_find(const tshi_slabs *slabs, const void *pointer);
/* Removes a slab without a block in use and returns it, NULL where there is none. The caller frees its struct. */
tshi_slab *tshi_slabs_take_idle(tshi_slabs *slabs, tshi_slab_index *index);
/* All slabs of `from` with their blocks become slabs of `to`. */
void tshi_slabs_merge(tshi_slabs *from, tshi_slabs *to);
/* Frees all structs, and `shared`; the slabs' memory is the caller's. */
void tshi_slabs_clear(tshi_slabs *slabs, tshi_slab_index *index);
/* Frees the index, after its slabs have been cleared. */
void tshi_slab_index_clear(tshi_slab_index *index);

/* The multiple of unit that holds `size` bytes; for 0 bytes one unit. */
static inline size_t tshi_units(size_t size, size_t unit) {
    return ((size ? size : 1) + unit - 1) / unit * unit;
}

#endif
