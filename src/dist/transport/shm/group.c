/* A group's block of shared memory, in the heap of its first rank. */
#include "dist/control/agree.h"
#include "dist/transport/shm/shm.h"

#include <string.h>

/* A payload must also hold two counts for each member (all_to_all), or 12 characters for each (group_create). */
static size_t slot_bytes(int size) {
    size_t counts = 16 * (size_t)size + 64;
    return tshi_round_up(sizeof(tshi_slot) + (counts > TSHI_SLOT_PAYLOAD ? counts : TSHI_SLOT_PAYLOAD),
                         TSHI_LINE_BYTES);
}

static uint32_t slots(int size) {
    return size < TSHI_LARGE_GROUP ? TSHI_SLOTS : TSHI_FEW_SLOTS;
}

static size_t inbox_at(int size) {
    return sizeof(tshi_member) + slots(size) * slot_bytes(size);
}

static size_t member_bytes(int size) {
    return inbox_at(size) + sizeof(tshi_inbox);
}

size_t tshi_shm_block_bytes(int size) {
    return sizeof(tshi_heap_block) + (size_t)size * member_bytes(size);
}

size_t tshi_shm_open_bytes(int size) {
    return tshi_heap_block_room(tshi_shm_block_bytes(size));
}

void tshi_shm_count_cores(tsh_world *world) {
    tshi_shm *local = tshi_shm_of(world);
    local->oversubscribed = tshi_machine_oversubscribed(world);
    local->spins = local->oversubscribed ? TSHI_FEW_SPINS : TSHI_SPINS;
}

tshi_shm_group *tshi_shm_group_new(tsh_world *world, int size) {
    const tsh_allocator *allocator = &world->allocator;
    tshi_shm_group *lg = tshi_calloc(allocator, 1, sizeof *lg);
    if (!lg) return NULL;
    lg->in = tshi_calloc(allocator, (size_t)size, sizeof *lg->in);
    lg->out = tshi_calloc(allocator, (size_t)size, sizeof *lg->out);
    lg->there = tshi_calloc(allocator, (size_t)size, sizeof *lg->there);
    if (!lg->in || !lg->out || !lg->there) {
        tshi_shm_group_free(world, lg);
        return NULL;
    }
    lg->slots = slots(size);
    lg->slot_bytes = slot_bytes(size);
    lg->inbox_at = inbox_at(size);
    lg->member_bytes = member_bytes(size);
    lg->name = "";
    return lg;
}

void tshi_shm_group_free(tsh_world *world, tshi_shm_group *lg) {
    if (!lg) return;
    tshi_free(&world->allocator, lg->in);
    tshi_free(&world->allocator, lg->out);
    tshi_free(&world->allocator, lg->there);
    tshi_free(&world->allocator, lg);
}

static tsh_status block_create(tsh_world *world, int size, tshi_shm_group *lg) {
    lg->block = tshi_heap_block_new(world, tshi_shm_block_bytes(size), size);
    for (int i = 0; lg->block && i < size; i++) {
        memset(tshi_member_at(lg, i), 0, sizeof(tshi_member));
        for (uint32_t k = 0; k < lg->slots; k++) memset(tshi_slot_at(lg, i, k), 0, sizeof(tshi_slot));
        memset((char *)tshi_member_at(lg, i) + lg->inbox_at, 0, sizeof(tshi_inbox));
    }
    return lg->block ? TSH_OK : TSH_ERR_MEMORY;
}

tsh_status tshi_shm_prepare(tsh_group *group, uint64_t *address) {
    tsh_world *world = group->world;
    tshi_messages_sweep(world, false);
    tshi_heap_blocks_sweep(world, false);
    if (world->local != world->control) tshi_shm_count_cores(world);
    tshi_shm_group *lg = group->state = tshi_shm_group_new(world, group->size);
    if (!lg) return TSH_ERR_MEMORY;
    if (group->rank != 0) return TSH_OK;
    tsh_status status = block_create(world, group->size, lg);
    if (status == TSH_OK) *address = tshi_shm_heap_offset(world, lg->block);
    return status;
}

tsh_status tshi_shm_open(tsh_group *group, uint64_t address) {
    tshi_shm_group *lg = group->state;
    lg->block = tshi_shm_heap_at(group, 0, address);
    lg->open = true;
    return TSH_OK;
}

/* No other member knows of a block that has only been prepared. */
static void close_prepared(tsh_group *group) {
    tsh_world *world = group->world;
    tshi_shm_group *lg = group->state;
    group->state = NULL;
    if (lg->block) world->host->ops->memory.release(world->host, lg->block->allocation);
    tshi_shm_group_free(world, lg);
}

void tshi_shm_close(tsh_group *group) {
    tsh_world *world = group->world;
    tshi_shm_group *lg = group->state;
    if (!lg) return;
    if (!lg->open) {
        close_prepared(group);
        return;
    }
    /* No later call can report a mismatch of the calls not compared yet, so it is logged here. */
    uint32_t known = lg->compared;
    while (known != lg->sync && tshi_shm_is_published(group, known + 1)) known++;
    if (known != lg->compared) tshi_shm_compare_late(group, known, TSH_ERR_STATE, "the group is closed");
    tshi_messages_close(group);
    group->state = NULL;
    if (group != world->group) tshi_heap_block_release(world, lg->block, group->ranks[0]);
    tshi_shm_group_free(world, lg);
}
