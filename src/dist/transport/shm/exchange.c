/* Box exchanges without packing: each rank publishes the address of its part, copies the boxes that it receives from
 * its peers' parts, and waits until its peers have copied from its own.
 *
 * Invariant: a part is not changed or freed while a peer reads it. The second sync guarantees it; after a failure
 * tshi_shm_depart does. */
#include "dist/collectives/redistribute.h"
#include "dist/transport/shm/shm.h"

static void fill(const tsh_group *group, const tshi_comm_call *call, const tshi_exchange_plan *plan) {
    const tshi_shm_group *lg = group->state;
    for (int i = 0; i < plan->receives; i++) {
        int from = tshi_group_member(group, plan->receive[i].from);
        bool own = from == group->rank;
        void *data =
            own ? (void *)(uintptr_t)call->in : tshi_shm_heap_at(group, from, tshi_slot_at(lg, from, lg->sync)->at);
        plan->piece[i] = (tshi_piece){data, &plan->source[i]};
    }
    tshi_exchange_fill(plan, group->world->host, call->dtype, call->out);
}

tsh_status tshi_shm_exchange(tsh_group *group, const tshi_comm_call *call, const tshi_exchange_plan *plan) {
    tshi_shm_group *lg = group->state;
    tsh_status status = TSH_OK, failed = TSH_OK;
    bool far;
    if (tshi_control_has_failed(group->world)) status = tshi_control_failure(group->world);
    if (status == TSH_OK && lg->compared != lg->sync) status = tshi_shm_catch_up(group, lg->sync, &failed);
    if (status != TSH_OK) return status;
    tshi_slot *slot = tshi_shm_open_slot(group, call);
    if (failed != TSH_OK) return tshi_shm_run_failed(group, failed);
    slot->signature.check = plan->fingerprint;
    slot->flags = TSHI_SLOT_FAR;
    slot->at = tshi_shm_heap_offset(group->world, call->in);
    status = tshi_shm_sync(group, 0);
    if (status == TSH_OK) status = tshi_shm_compare(group, lg->sync, &far);
    if (status == TSH_OK) status = tshi_shm_move(group);
    if (status == TSH_OK) {
        if (call->out) fill(group, call, plan);
        tshi_shm_moved(group);
        status = tshi_shm_sync(group, 0);
    }
    return status == TSH_OK ? TSH_OK : tshi_shm_depart(group, call, plan, status);
}
