/* Point to point: the public calls. */
#include "dist/collectives/collectives.h"

#include <string.h>

/* Shape and dtype of a tensor that is sent with its description. */
enum { META_DTYPE, META_NDIM, META_DIMS, META_COUNT = META_DIMS + TSH_MAX_DIMS };

static tsh_status check_peer(const tsh_group *group, const tshi_comm_call *call) {
    const char *name = tsh_collective_name(call->op);
    if (call->op == TSH_COLLECTIVE_RECV && call->root == TSH_ANY_RANK) {
        if (group->size > 1) return TSH_OK;
        return tshi_fail(TSH_ERR_ARGUMENT, "%s: a group of one rank has no peer to receive from", name);
    }
    if (call->root < 0 || call->root >= group->size) {
        return tshi_fail(TSH_ERR_RANGE, "%s: rank %d in a group of %d", name, call->root, group->size);
    }
    if (call->root != group->rank) return TSH_OK;
    return tshi_fail(TSH_ERR_ARGUMENT, "%s: rank %d and this rank are the same", name, call->root);
}

/* Not collective: a call that cannot be made returns its error, and no peer gets it. */
static tsh_status prepare(tsh_group *group, tsh_collective op, const tsh_tensor *tensor, int peer, bool meta,
                          tshi_comm_call *call) {
    *call = (tshi_comm_call){.op = op, .root = peer};
    if (!group) return tshi_group_missing(tsh_collective_name(op));
    tsh_status status = tshi_owner_check(&group->world->owner, tsh_collective_name(op));
    if (status == TSH_OK) status = tshi_check_tensor(group, op, tensor, "tensor");
    if (status == TSH_OK) status = check_peer(group, call);
    if (status != TSH_OK) return status;
    call->dtype = tensor->dtype;
    call->count = tensor->numel;
    call->on_device = group->world->device != group->world->host;
    call->reduce = meta ? TSH_REDUCE_MAX : TSH_REDUCE_SUM;
    call->in = op == TSH_COLLECTIVE_SEND ? tshi_data(tensor) : NULL;
    call->out = op == TSH_COLLECTIVE_RECV ? tshi_data_to_write(tensor) : NULL;
    return TSH_OK;
}

static tsh_status now(tsh_group *group, tsh_collective op, const tsh_tensor *tensor, int peer, bool meta, int *sender) {
    uint64_t start = tshi_ticks();
    tshi_comm_call call;
    tsh_status status = prepare(group, op, tensor, peer, meta, &call);
    if (status == TSH_OK) status = tshi_owner_enter(&group->world->owner, tsh_collective_name(op));
    if (status != TSH_OK) return status;
    tsh_work work;
    /* The message of a failure is long, and is not zeroed. */
    memset(&work, 0, offsetof(tsh_work, message));
    memset((char *)&work + offsetof(tsh_work, sender), 0, sizeof work - offsetof(tsh_work, sender));
    tshi_work_set(&work, group, &call);
    if (!tshi_work_quick(&work)) tshi_work_enqueue(&work);
    status = tshi_work_join(&work);
    if (status == TSH_OK && sender) *sender = work.sender;
    group->ticks += tshi_ticks() - start;
    tshi_owner_leave(&group->world->owner);
    return status;
}

static tsh_status later(tsh_group *group, tsh_collective op, const tsh_tensor *tensor, int peer, tsh_work **out) {
    if (out) *out = NULL;
    if (!out) return tshi_fail(TSH_ERR_ARGUMENT, "%s: work is NULL", tsh_collective_name(op));
    uint64_t start = tshi_ticks();
    tshi_comm_call call;
    tsh_status status = prepare(group, op, tensor, peer, false, &call);
    if (status == TSH_OK) status = tshi_owner_enter(&group->world->owner, tsh_collective_name(op));
    if (status != TSH_OK) return status;
    tsh_work *work = tshi_work_new(group, &call, tensor, NULL);
    if (work) tshi_work_enqueue(work);
    tshi_owner_leave(&group->world->owner);
    if (!work) return TSH_ERR_MEMORY;
    *out = work;
    group->ticks += tshi_ticks() - start;
    return TSH_OK;
}

tsh_status tsh_send(tsh_group *group, const tsh_tensor *tensor, int to) {
    return now(group, TSH_COLLECTIVE_SEND, tensor, to, false, NULL);
}

tsh_status tsh_recv(tsh_group *group, tsh_tensor *tensor, int from, int *sender) {
    return now(group, TSH_COLLECTIVE_RECV, tensor, from, false, sender);
}

tsh_status tsh_send_async(tsh_group *group, const tsh_tensor *tensor, int to, tsh_work **work) {
    return later(group, TSH_COLLECTIVE_SEND, tensor, to, work);
}

tsh_status tsh_recv_async(tsh_group *group, tsh_tensor *tensor, int from, tsh_work **work) {
    return later(group, TSH_COLLECTIVE_RECV, tensor, from, work);
}

/* --- with a description ------------------------------------------------------------------------------------------- */

tsh_status tsh_send_new(tsh_group *group, const tsh_tensor *tensor, int to) {
    tshi_comm_call call;
    tsh_status status = prepare(group, TSH_COLLECTIVE_SEND, tensor, to, false, &call);
    if (status != TSH_OK) return status;
    tsh_tensor *meta;
    status = tshi_tensor_buffer(group->mesh, TSH_INT64, META_COUNT, &meta);
    if (status != TSH_OK) return status;
    int64_t description[META_COUNT] = {[META_DTYPE] = tensor->dtype, [META_NDIM] = tensor->shape.ndim};
    for (int i = 0; i < tensor->shape.ndim; i++) description[META_DIMS + i] = tensor->shape.local[i];
    group->world->device->ops->copy.from_host(group->world->device, sizeof description, description, tshi_data(meta));
    status = now(group, TSH_COLLECTIVE_SEND, meta, to, true, NULL);
    if (status == TSH_OK) status = now(group, TSH_COLLECTIVE_SEND, tensor, to, false, NULL);
    tshi_tensor_release(meta);
    return status;
}

/* Makes a tensor of that description, which comes from another process and is checked. */
static tsh_status make_tensor(const tsh_mesh *mesh, const int64_t *description, tsh_tensor **out) {
    tsh_shape shape = {0};
    if (description[META_DTYPE] < 0 || description[META_DTYPE] >= TSH_DTYPE_COUNT || description[META_NDIM] < 0 ||
        description[META_NDIM] > TSH_MAX_DIMS) {
        return tshi_fail(TSH_ERR_MISMATCH, "recv: the description of a tensor was expected");
    }
    shape.ndim = (int)description[META_NDIM];
    for (int i = 0; i < shape.ndim; i++) shape.local[i] = shape.global[i] = description[META_DIMS + i];
    return tshi_tensor_new(mesh, (tsh_dtype)description[META_DTYPE], &shape, tshi_all_local, out);
}

tsh_status tsh_recv_new(tsh_group *group, const tsh_mesh *mesh, int from, int *sender, tsh_tensor **out) {
    int found = TSH_ANY_RANK;
    if (out) *out = NULL;
    if (!group || !mesh || !out) return tshi_fail(TSH_ERR_ARGUMENT, "recv: group, mesh and out are required");
    if (mesh->world != group->world) return tshi_fail(TSH_ERR_ARGUMENT, "recv: mesh belongs to another world");
    tsh_tensor *meta, *tensor = NULL;
    tsh_status status = tshi_tensor_buffer(mesh, TSH_INT64, META_COUNT, &meta);
    if (status != TSH_OK) return status;
    status = now(group, TSH_COLLECTIVE_RECV, meta, from, true, &found);
    if (status == TSH_OK) {
        int64_t description[META_COUNT];
        group->world->device->ops->copy.to_host(group->world->device, sizeof description, tshi_data(meta), description);
        status = make_tensor(mesh, description, &tensor);
    }
    tshi_tensor_release(meta);
    if (status == TSH_OK) status = now(group, TSH_COLLECTIVE_RECV, tensor, found, false, NULL);
    if (status != TSH_OK) {
        tshi_tensor_release(tensor);
        return status;
    }
    if (sender) *sender = found;
    tensor->program_refs = 1;
    *out = tensor;
    return TSH_OK;
}
