#include "dist/control/heap_block.h"

static void block_free(tsh_world *world, tshi_heap_block *block) {
    world->host->ops->memory.release(world->host, block->allocation);
}

tshi_heap_block *tshi_heap_block_new(tsh_world *world, size_t bytes, int users) {
    /* The device aligns to 64 bytes, a block to TSHI_LINE_BYTES. */
    void *allocation = world->host->ops->memory.alloc(world->host, tshi_heap_block_room(bytes));
    if (!allocation) return NULL;
    size_t skip = (TSHI_LINE_BYTES - (uintptr_t)allocation % TSHI_LINE_BYTES) % TSHI_LINE_BYTES;
    tshi_heap_block *block = (tshi_heap_block *)(void *)((char *)allocation + skip);
    block->allocation = allocation;
    block->next = NULL;
    atomic_store(&block->users, (uint32_t)users);
    return block;
}

void tshi_heap_block_release(tsh_world *world, tshi_heap_block *block, int rank) {
    bool last = atomic_fetch_sub(&block->users, 1) == 1;
    if (rank != world->rank) return;
    if (last) {
        block_free(world, block);
        return;
    }
    block->next = world->machine.blocks;
    world->machine.blocks = block;
}

void tshi_heap_blocks_sweep(tsh_world *world, bool all) {
    tshi_heap_block **link = &world->machine.blocks;
    while (*link) {
        tshi_heap_block *block = *link;
        if (!all && atomic_load(&block->users) != 0) {
            link = &block->next;
            continue;
        }
        *link = block->next;
        block_free(world, block);
    }
}
