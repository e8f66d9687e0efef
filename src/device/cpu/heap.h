/* An allocator over one given region, for tensor buffers.
 *
 * Free neighbours are merged at once: where a block lands depends on the live blocks alone, not on the order in which
 * others were released. So a step that releases all that it allocates repeats its addresses. The region is not touched
 * behind the last block, and may be far larger than memory. Each block is preceded by a 64-byte header. Not
 * thread-safe. */
#ifndef TSHI_CPU_HEAP_H
#define TSHI_CPU_HEAP_H

#include "device/free_list.h"

typedef struct tshi_heap_block tshi_heap_block;

typedef struct tshi_heap {
    char *base;
    size_t size;       /* of the region, rounded down to 64 */
    size_t top;        /* offset where the last block ends */
    size_t high_water; /* the highest top so far */
    tshi_heap_block *last;
    tshi_free_list free;
} tshi_heap;

/* base aligned to 64; the region is not written to before the first allocation. */
void tshi_heap_init(tshi_heap *heap, void *base, size_t size);

/* At least `size` bytes aligned to 64 (64 of them for 0), or NULL, without a message, when no free block is large
 * enough. */
void *tshi_heap_alloc(tshi_heap *heap, size_t size);

/* Takes back a pointer of alloc. */
void tshi_heap_release(tshi_heap *heap, void *pointer);

/* The size that alloc was asked for, rounded up to 64. */
size_t tshi_heap_size_of(const void *pointer);

/* The largest size for which alloc would succeed now. */
size_t tshi_heap_largest(const tshi_heap *heap);

#endif
