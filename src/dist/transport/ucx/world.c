/* Worlds and groups over UCX. */
#include "dist/control/liveness.h"
#include "dist/registry.h"
#include "dist/rendezvous/rendezvous.h"
#include "dist/transport/ucx/ucx.h"

/* The most bytes in one message. */
#define LONGEST ((int64_t)1 << 30)

/* Takes worlds of several machines whose ranks the rendezvous has found, and any such world if the user asks for it. */
static tsh_status probe(const tshi_start *start, bool *takes) {
    const tshi_ucx_library *library;
    bool asked = tshi_backend_is("ucx"), other = !asked && tshi_setting_value(TSHI_SETTING_BACKEND);
    if (start->config->threads || start->communicator || !start->roster || other) return TSH_OK;
    *takes = start->settings->size > 1 && (asked || start->roster->nodes > 1);
    if (!*takes) return TSH_OK;
    if (start->settings->size > TSHI_UCX_RANKS)
        return tshi_fail(TSH_ERR_UNSUPPORTED, "world_init: %d ranks, but tags over UCX tell %d apart",
                         start->settings->size, TSHI_UCX_RANKS);
    return tshi_ucx_library_open(&library);
}

static tsh_status world_open(tsh_world *world, const tshi_start *start, void **heap) {
    const tshi_settings *s = start->settings;
    tshi_ucx *ucx = tshi_calloc(&world->allocator, 1, sizeof *ucx);
    (void)heap;
    if (!ucx) return TSH_ERR_MEMORY;
    world->state[TSHI_UCX_PLACE] = ucx;
    tshi_ucx_devices(s->address_known ? s->address : "", start->roster->nodes == 1, ucx->devices, sizeof ucx->devices);
    ucx->peer = tshi_calloc(&world->allocator, (size_t)s->size, sizeof *ucx->peer);
    tsh_status status = ucx->peer ? tshi_ucx_library_open(&ucx->call) : TSH_ERR_MEMORY;
    return status == TSH_OK ? tshi_tagged_open(world, &ucx->tagged, &tshi_ucx_messages, LONGEST) : status;
}

/* Without the control page there is no way to tell the peers of a failure; they notice at their deadline. */
static tsh_status world_join(tsh_world *world, tsh_status mine) {
    if (!world->group || !world->machine.page) return mine;
    if (mine == TSH_OK) mine = tshi_ucx_worker_open(world);
    if (mine == TSH_OK) mine = tshi_tagged_group_prepare(world->group, sizeof(tshi_ucx_group));
    tsh_status status = tshi_ucx_addresses(world, mine);
    if (status == TSH_OK && world->machine.nodes > 1) status = tshi_liveness_open(world);
    if (status == TSH_OK && world->machine.nodes > 1) status = tshi_liveness_reach(world);
    if (status == TSH_OK) status = tshi_ucx_connect(world);
    if (status == TSH_OK) tshi_tagged_joined(world);
    return status;
}

static bool rdma(const tsh_world *world) {
    return world->machine.nodes > 1 && tshi_has_adapter();
}

static void leave(tsh_world *world) {
    const tshi_ucx *ucx = tshi_ucx_of(world);
    if (!ucx->address) return;
    tshi_tagged_messages_ended(world);
    if (!tshi_control_has_failed(world)) tshi_ucx_flush(world);
    tshi_control_leave(world);
    tshi_ucx_lose(world);
    tshi_tagged_messages_ended(world);
}

static void world_close(tsh_world *world) {
    tshi_ucx *ucx = tshi_ucx_of(world);
    const tsh_allocator *allocator = &world->allocator;
    if (ucx->call) tshi_ucx_worker_close(world);
    tshi_tagged_close(world, &ucx->tagged);
    tshi_free(allocator, ucx->discarded);
    tshi_free(allocator, ucx->address);
    tshi_free(allocator, ucx->peer);
    tshi_free(allocator, ucx);
    world->state[TSHI_UCX_PLACE] = NULL;
}

/* --- groups ------------------------------------------------------------------------------------------------------- */

static tsh_status group_prepare(tsh_group *group, uint64_t *address) {
    if (group->rank == 0) *address = tshi_ucx_number(group->world);
    return tshi_tagged_group_prepare(group, sizeof(tshi_ucx_group));
}

static tsh_status group_open(tsh_group *group, uint64_t address) {
    tshi_ucx_group *ug = group->state;
    ug->number = (uint32_t)address;
    return TSH_OK;
}

static void group_close(tsh_group *group) {
    if (group->state) tshi_tagged_group_close(group, true);
}

const tshi_group_ops tshi_ucx_ops = {
    .name = "ucx",
    .renews = true,
    .place = TSHI_UCX_PLACE,
    .overlaps = tshi_tagged_overlaps,
    .stages = tshi_tagged_stages,
    .probe = probe,
    .world_open = world_open,
    .world_join = world_join,
    .rdma = rdma,
    .recover = tshi_tagged_recover,
    .leave = leave,
    .world_close = world_close,
    .prepare = group_prepare,
    .open = group_open,
    .close = group_close,
    .check_peers = tshi_tagged_check_peers,
    .restart = tshi_tagged_restart,
    .fails_later = tshi_control_fails_later,
    .run = tshi_tagged_run,
    .start = tshi_tagged_start,
    .progress = tshi_tagged_progress,
    .drop = tshi_tagged_message_drop,
    .nap = tshi_tagged_nap,
    .awake = tshi_tagged_awake,
};
