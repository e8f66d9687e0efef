/* Memory in the heap of one rank of a machine that several of its ranks use. It is freed when all of them have released
 * it; their views of it go with their worlds. */
#ifndef TSHI_BLOCK_H
#define TSHI_BLOCK_H

#include "dist/world.h"

typedef struct tshi_heap_block {
    alignas(TSHI_LINE_BYTES) _Atomic uint32_t users; /* that have not released it */
    /* These two are used by the rank in whose heap the block is. */
    void *allocation;
    struct tshi_heap_block *next; /* of those that it has released, see world->machine.blocks */
} tshi_heap_block;

/* What tensor memory a block of so many bytes takes. The tshi_heap_block is counted. */
static inline size_t tshi_heap_block_room(size_t bytes) {
    return bytes + TSHI_LINE_BYTES;
}

/* A block of this rank's. Only the tshi_heap_block is set. NULL with the message set. */
tshi_heap_block *tshi_heap_block_new(tsh_world *world, size_t bytes, int users);
/* Where it is in the heap, for the other ranks, and what they make of that. */
uint64_t tshi_heap_block_offset(const tsh_world *world, const tshi_heap_block *block);
tshi_heap_block *tshi_heap_block_at(const tsh_world *world, int rank, uint64_t offset);
/* `rank` is the one in whose heap it is. Not collective. */
void tshi_heap_block_release(tsh_world *world, tshi_heap_block *block, int rank);
/* Frees what all have released; `all`: whatever this rank has released. */
void tshi_heap_blocks_sweep(tsh_world *world, bool all);

#endif
