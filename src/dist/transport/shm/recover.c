/* Recovering from a failure, and leaving the world. */
#include "dist/transport/shm/shm.h"

#define LONGEST_PARTING 2.0

static uint32_t last_sync(const tsh_group *group) {
    const tshi_shm_group *lg = group->state;
    uint32_t last = lg->sync;
    for (int i = 0; i < group->size; i++) {
        for (uint32_t k = 0; k < lg->slots; k++) {
            uint32_t sync = atomic_load(&tshi_slot_at(lg, i, k)->sync);
            if ((int32_t)(sync - last) > 0) last = sync;
        }
    }
    return last;
}

/* All ranks read the slots when they stop, and write their own only when all have stopped. */
void tshi_shm_stop(tsh_group *group) {
    ((tshi_shm_group *)group->state)->agreed = last_sync(group);
}

void tshi_shm_restart(tsh_group *group) {
    tshi_shm_group *lg = group->state;
    lg->sync = lg->agreed;
    lg->compared = lg->agreed;
    for (uint32_t k = 0; k < lg->slots; k++) atomic_store(&tshi_slot_at(lg, group->rank, k)->sync, lg->agreed);
    tshi_messages_reset(group);
}

static tshi_rank_record *record_of(const tsh_world *world, int rank) {
    return &world->machine.page->record[rank];
}

/* Waits until all peers have unmapped this rank's GPU memory, which must not be freed before; threads map none. After
 * LONGEST_PARTING the memory is kept until this process ends. */
static void unmap_peers(tsh_world *world) {
    if (!tshi_shm_of(world)->maps) return;
    world->device->ops->sharing->unmap(world->device);
    atomic_store(&record_of(world, world->rank)->unmapped_peers, 1);
    double end = tshi_clock() + LONGEST_PARTING;
    for (int i = 0; i < world->size; i++) {
        while (!atomic_load(&record_of(world, i)->unmapped_peers) &&
               tshi_page_state(world->machine.page, i) != TSHI_DEAD) {
            if (tshi_clock() > end) {
                world->device->ops->sharing->keep(world->device);
                return;
            }
            tshi_sleep(100e-6);
            tshi_machine_poll(world);
        }
    }
}

void tshi_shm_leave(tsh_world *world) {
    tshi_messages_sweep(world, true);
    tshi_control_leave(world);
    if (world->machine.page) unmap_peers(world);
}
