/* Memory in one rank's heap that several ranks of its machine use.
 *
 * Invariant: only the owner frees a block, and only when `users` is 0: each user decrements it once and does not touch
 * the block afterwards. The owner keeps a list of blocks that it has released before its peers. */
#ifndef TSHI_BLOCK_H
#define TSHI_BLOCK_H

#include "dist/world.h"

typedef struct tshi_heap_block {
    alignas(TSHI_LINE_BYTES) _Atomic uint32_t users; /* ranks that have not released it */
    /* Only the owner, the rank whose heap holds the block, uses these two. */
    void *allocation;
    struct tshi_heap_block *next; /* in world->machine.blocks */
} tshi_heap_block;

/* Bytes of heap that a block with `bytes` behind its header takes, header included. */
static inline size_t tshi_heap_block_room(size_t bytes) {
    return bytes + TSHI_LINE_BYTES;
}

/* A block in this rank's heap; the bytes behind its header are not set. NULL with the message set. */
tshi_heap_block *tshi_heap_block_new(tsh_world *world, size_t bytes, int users);
/* `rank` owns the block. Not collective. */
void tshi_heap_block_release(tsh_world *world, tshi_heap_block *block, int rank);
/* Frees the blocks that this rank has released and all users have too; `all`: whether or not they have. */
void tshi_heap_blocks_sweep(tsh_world *world, bool all);

#endif
