/* The public calls: they check the arguments and pass the call to the group's transport, at once or when its turn
 * comes. */
#include "dist/collectives/collectives.h"
#include "device/record.h"
#include "dist/collectives/instrument.h"
#include "dist/registry.h"

static bool backend_supports(const tshi_group_ops *backend, tsh_collective op, tsh_dtype dtype, tsh_reduce_op reduce) {
    if ((int)op < 0 || op >= TSH_COLLECTIVE_COUNT) return false;
    /* A group of one rank has no rank to send to. */
    if (tshi_is_message(op) && !backend->start) return false;
    if (op == TSH_COLLECTIVE_BARRIER) return true;
    if (tsh_dtype_size(dtype) == 0) return false;
    if (!tshi_collectives[op].reduces) return true;
    return tshi_reduces(dtype, reduce) && (!backend->reduces || backend->reduces(dtype, reduce));
}

/* Tensors of a GPU go everywhere, through the host's memory if they must. */
static bool takes_device(const tshi_group_ops *backend, tsh_device_kind device) {
#ifdef TSHARD_HAVE_CUDA
    if (device == TSH_CUDA) return true;
#endif
    return device == TSH_CPU && !backend->in_order;
}

bool tsh_group_supports(const tsh_group *group, tsh_collective op, tsh_dtype dtype, tsh_reduce_op reduce) {
    return group && backend_supports(group->ops, op, dtype, reduce);
}

bool tsh_backend_supports(const char *backend, tsh_device_kind device, tsh_collective op, tsh_dtype dtype,
                          tsh_reduce_op reduce) {
    const tshi_group_ops *ops = tshi_backend_find(backend);
    return ops && ops->run && takes_device(ops, device) && backend_supports(ops, op, dtype, reduce);
}

/* --- running ------------------------------------------------------------------------------------------------------ */

tsh_status tshi_collective_run(tsh_group *group, const tshi_arguments *a, tsh_status early) {
    if (!group) return tshi_group_missing(tsh_collective_name(a->op));
    if (group->rank < 0) return TSH_OK;
    uint64_t start = tshi_ticks();
    tsh_status status = tshi_owner_enter(&group->world->owner, tsh_collective_name(a->op));
    if (status != TSH_OK) return status;
    tshi_comm_call call = {.op = a->op, .failed = early};
    if (early == TSH_OK) tshi_check_call(group, a, &call);
    tshi_trace_event *event = NULL;
    if (group->world->device->trace) event = tshi_traced_call(group, &call, tshi_traced_number(group, &call), true);
    status = tshi_group_run(group, &call);
    if (event) tshi_trace_close(event);
    if (status == TSH_OK) tshi_group_count(group, &call, false);
    group->ticks += tshi_ticks() - start;
    tshi_owner_leave(&group->world->owner);
    return status;
}

/* A call that cannot be made still takes its turn, so that its peers get the error. */
tsh_status tshi_collective_start(tsh_group *group, const tshi_arguments *a, tsh_work **out) {
    if (out) *out = NULL;
    if (!group) return tshi_group_missing(tsh_collective_name(a->op));
    uint64_t start = tshi_ticks();
    tshi_comm_call call = {.op = a->op};
    tsh_status status = tshi_owner_enter(&group->world->owner, tsh_collective_name(a->op));
    if (status != TSH_OK) return status;
    tshi_check_call(group, a, &call);
    if (!out && call.failed == TSH_OK) {
        call.failed = tshi_fail(TSH_ERR_ARGUMENT, "%s: work is NULL", tsh_collective_name(a->op));
    }
    status = call.failed;
    tsh_work *work = tshi_work_new(group, &call, a->in, a->out);
    if (!work) {
        if (status == TSH_OK) status = call.failed = TSH_ERR_MEMORY;
        tshi_group_run(group, &call);
    } else {
        work->orphan = status != TSH_OK;
        tshi_work_enqueue(work);
        if (status == TSH_OK) *out = work;
    }
    group->ticks += tshi_ticks() - start;
    tshi_owner_leave(&group->world->owner);
    return status;
}

tsh_status tshi_call_failed(tsh_group *group, tsh_collective op, tsh_status status) {
    return tshi_collective_run(group, &(tshi_arguments){.op = op}, status);
}

/* --- the calls ---------------------------------------------------------------------------------------------------- */

static tsh_status run(tsh_group *group, const tshi_arguments *a) {
    return tshi_collective_run(group, a, TSH_OK);
}

static tsh_status start(tsh_group *group, const tshi_arguments *a, tsh_work **work) {
    return tshi_collective_start(group, a, work);
}

tsh_status tsh_all_reduce(tsh_group *group, tsh_tensor *tensor, tsh_reduce_op op) {
    return run(group, &(tshi_arguments){TSH_COLLECTIVE_ALL_REDUCE, tensor, tensor, .reduce = op});
}

tsh_status tsh_all_reduce_async(tsh_group *group, tsh_tensor *tensor, tsh_reduce_op op, tsh_work **work) {
    return start(group, &(tshi_arguments){TSH_COLLECTIVE_ALL_REDUCE, tensor, tensor, .reduce = op}, work);
}

tsh_status tsh_all_gather_into_tensor(tsh_group *group, const tsh_tensor *in, tsh_tensor *out, const int64_t *counts) {
    return run(group, &(tshi_arguments){TSH_COLLECTIVE_ALL_GATHER, in, out, .counts = counts});
}

tsh_status tsh_all_gather_into_tensor_async(tsh_group *group, const tsh_tensor *in, tsh_tensor *out,
                                            const int64_t *counts, tsh_work **work) {
    return start(group, &(tshi_arguments){TSH_COLLECTIVE_ALL_GATHER, in, out, .counts = counts}, work);
}

tsh_status tsh_reduce_scatter_tensor(tsh_group *group, const tsh_tensor *in, tsh_tensor *out, const int64_t *counts,
                                     tsh_reduce_op op) {
    return run(group, &(tshi_arguments){TSH_COLLECTIVE_REDUCE_SCATTER, in, out, .counts = counts, .reduce = op});
}

tsh_status tsh_reduce_scatter_tensor_async(tsh_group *group, const tsh_tensor *in, tsh_tensor *out,
                                           const int64_t *counts, tsh_reduce_op op, tsh_work **work) {
    return start(group, &(tshi_arguments){TSH_COLLECTIVE_REDUCE_SCATTER, in, out, .counts = counts, .reduce = op},
                 work);
}

tsh_status tsh_broadcast(tsh_group *group, tsh_tensor *tensor, int root) {
    return run(group, &(tshi_arguments){TSH_COLLECTIVE_BROADCAST, tensor, tensor, .root = root});
}

tsh_status tsh_broadcast_async(tsh_group *group, tsh_tensor *tensor, int root, tsh_work **work) {
    return start(group, &(tshi_arguments){TSH_COLLECTIVE_BROADCAST, tensor, tensor, .root = root}, work);
}

tsh_status tsh_all_to_all(tsh_group *group, const tsh_tensor *in, const int64_t *in_counts, tsh_tensor *out,
                          const int64_t *out_counts) {
    return run(group,
               &(tshi_arguments){TSH_COLLECTIVE_ALL_TO_ALL, in, out, .counts = out_counts, .in_counts = in_counts});
}

tsh_status tsh_all_to_all_async(tsh_group *group, const tsh_tensor *in, const int64_t *in_counts, tsh_tensor *out,
                                const int64_t *out_counts, tsh_work **work) {
    return start(group,
                 &(tshi_arguments){TSH_COLLECTIVE_ALL_TO_ALL, in, out, .counts = out_counts, .in_counts = in_counts},
                 work);
}

tsh_status tsh_reduce_to_root(tsh_group *group, tsh_tensor *tensor, tsh_reduce_op op, int root) {
    return run(group, &(tshi_arguments){TSH_COLLECTIVE_REDUCE, tensor, tensor, .reduce = op, .root = root});
}

tsh_status tsh_gather_to_root(tsh_group *group, const tsh_tensor *in, tsh_tensor *out, const int64_t *counts,
                              int root) {
    return run(group, &(tshi_arguments){TSH_COLLECTIVE_GATHER, in, out, .counts = counts, .root = root});
}

tsh_status tsh_scatter_from_root(tsh_group *group, const tsh_tensor *in, tsh_tensor *out, const int64_t *counts,
                                 int root) {
    return run(group, &(tshi_arguments){TSH_COLLECTIVE_SCATTER, in, out, .counts = counts, .root = root});
}

tsh_status tsh_reduce_to_root_async(tsh_group *group, tsh_tensor *tensor, tsh_reduce_op op, int root, tsh_work **work) {
    return start(group, &(tshi_arguments){TSH_COLLECTIVE_REDUCE, tensor, tensor, .reduce = op, .root = root}, work);
}

tsh_status tsh_gather_to_root_async(tsh_group *group, const tsh_tensor *in, tsh_tensor *out, const int64_t *counts,
                                    int root, tsh_work **work) {
    return start(group, &(tshi_arguments){TSH_COLLECTIVE_GATHER, in, out, .counts = counts, .root = root}, work);
}

tsh_status tsh_scatter_from_root_async(tsh_group *group, const tsh_tensor *in, tsh_tensor *out, const int64_t *counts,
                                       int root, tsh_work **work) {
    return start(group, &(tshi_arguments){TSH_COLLECTIVE_SCATTER, in, out, .counts = counts, .root = root}, work);
}

tsh_status tsh_barrier(tsh_group *group) {
    return run(group, &(tshi_arguments){.op = TSH_COLLECTIVE_BARRIER});
}

tsh_status tsh_barrier_async(tsh_group *group, tsh_work **work) {
    return start(group, &(tshi_arguments){.op = TSH_COLLECTIVE_BARRIER}, work);
}
