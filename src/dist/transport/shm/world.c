/* Worlds of one machine: taking, joining and closing them. */
#include "dist/control/agree.h"
#include "dist/registry.h"
#include "dist/rendezvous/rendezvous.h"
#include "dist/transport/shm/shm.h"

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
    world->state[TSHI_SHM_PLACE] = local;
    local->spins = TSHI_FEW_SPINS; /* until the cores are counted */
    return TSH_OK;
}

static tsh_status join(tsh_world *world) {
    tshi_shm_group *lg = tshi_shm_group_new(world, world->size);
    if (!lg) return TSH_ERR_MEMORY;
    lg->block = (tshi_heap_block *)(void *)world->machine.area;
    lg->open = true;
    world->group->state = lg;
    tsh_status status = tshi_control_agree(world->group, "world_init", TSH_OK);
    if (status != TSH_OK) return status;
    tshi_shm_count_cores(world);
    world->spins = tshi_shm_of(world)->spins;
    return TSH_OK;
}

tsh_status tshi_shm_world_join(tsh_world *world, tsh_status mine) {
    tsh_status status = mine == TSH_OK ? join(world) : mine;
    if (status != TSH_OK) tshi_world_fail_in(world, tsh_error_message(), (tshi_tape_step){0});
    return status;
}

void tshi_shm_world_close(tsh_world *world) {
    tshi_free(&world->allocator, world->state[TSHI_SHM_PLACE]);
    world->state[TSHI_SHM_PLACE] = NULL;
}
