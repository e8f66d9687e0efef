/* Worlds of one machine: taking, joining and closing them. */
#include "dist/registry.h"
#include "dist/rendezvous/rendezvous.h"
#include "dist/transport/shm/shm.h"

#define LONGEST_JOIN 120.0

/* Polls before the first yield. Spinning helps only a rank whose peer runs on another core; SPINS_SHARED is for
 * oversubscribed machines. */
#define SPINS        4000
#define YIELDS       64
#define SPINS_SHARED 8

/* Takes worlds of threads, and of processes that the rendezvous has found on one machine. */
tsh_status tshi_shm_probe(const tshi_start *start, bool *takes) {
    const tshi_roster *roster = start->roster;
    char hosts[TSHI_LINE];
    *takes = start->config->threads ? start->settings->size > 1 : roster && roster->nodes == 1;
    if (!roster || *takes || !tshi_backend_is("local")) return TSH_OK;
    return tshi_fail(TSH_ERR_ARGUMENT, "world_init: the ranks are on %d machines (%s), but TSHARD_BACKEND is local",
                     roster->nodes, tshi_roster_hosts(roster, hosts, sizeof hosts));
}

tsh_status tshi_shm_world_open(tsh_world *world, const tshi_start *start, void **heap) {
    tshi_shm *local = tshi_calloc(&world->allocator, 1, sizeof *local);
    (void)start;
    (void)heap;
    if (!local) return TSH_ERR_MEMORY;
    world->state = local;
    local->spins = SPINS_SHARED; /* until tshi_shm_world_join has counted the cores */
    local->yields = YIELDS;
    return TSH_OK;
}

static void count_cores(tsh_world *world, tshi_shm *local) {
    local->oversubscribed = tshi_machine_oversubscribed(world);
    local->spins = local->oversubscribed ? SPINS_SHARED : SPINS;
    world->spins = local->spins;
    tshi_shm_tune(world->group->state, local);
}

static tsh_status join(tsh_world *world) {
    tshi_shm *local = tshi_shm_of(world);
    tshi_shm_group *lg = tshi_shm_group_new(world, world->size);
    if (!lg) return TSH_ERR_MEMORY;
    lg->block = (tshi_heap_block *)(void *)world->machine.area;
    world->group->state = lg;
    double timeout = world->timeout;
    if (world->timeout > LONGEST_JOIN) world->timeout = LONGEST_JOIN;
    tsh_status status = tshi_shm_agree(world->group, "world_init", TSH_OK, 0);
    world->timeout = timeout;
    if (status == TSH_OK) count_cores(world, local);
    return status;
}

tsh_status tshi_shm_world_join(tsh_world *world, tsh_status mine) {
    tsh_status status = mine == TSH_OK ? join(world) : mine;
    if (status != TSH_OK && world->machine.page) tshi_shm_fail(world, tsh_error_message(), (tshi_tape_step){0});
    return status;
}

void tshi_shm_world_close(tsh_world *world) {
    tshi_free(&world->allocator, world->state);
    world->state = NULL;
}
