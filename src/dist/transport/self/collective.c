/* Groups of one rank: copies, and no peers to wait for. */
#include "dist/registry.h"
#include "dist/rendezvous/environment.h"
#include "dist/world.h"

static tsh_status self_probe(const tshi_start *start, bool *takes) {
    *takes = start->settings->size == 1;
    return TSH_OK;
}

static tsh_status self_run(tsh_group *group, const tshi_comm_call *call) {
    if (call->failed != TSH_OK) return call->failed;
    if (call->op == TSH_COLLECTIVE_BARRIER || call->op == TSH_COLLECTIVE_ALL_REDUCE ||
        call->op == TSH_COLLECTIVE_BROADCAST)
        return TSH_OK;
    int64_t count = call->count;
    if (call->op == TSH_COLLECTIVE_ALL_TO_ALL) {
        count = call->in_counts[0];
        if (count != call->out_counts[0]) {
            return tshi_fail(TSH_ERR_MISMATCH, "all_to_all: rank 0 sends %lld elements to itself and expects %lld",
                             (long long)count, (long long)call->out_counts[0]);
        }
    }
    size_t bytes = (size_t)count * tsh_dtype_size(call->dtype);
    if (bytes && call->in != call->out)
        group->world->device->ops->copy.within(group->world->device, bytes, call->in, call->out);
    return TSH_OK;
}

const tshi_group_ops tshi_self_ops = {
    .name = "self",
    .place = 0,
    .probe = self_probe,
    .run = self_run,
};
