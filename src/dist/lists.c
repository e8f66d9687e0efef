/* Collectives on a list of tensors: the calls on one tensor, through one that holds the list's parts one after another
 * unless they lie like that already. */
#include "dist/dist.h"

typedef struct list {
    tsh_tensor *whole;
    int64_t *counts; /* [size] */
} list;

/* Whether the tensors follow each other in one storage. */
static bool adjoin(tsh_tensor *const *parts, int n) {
    const tshi_storage *storage = parts[0]->storage;
    size_t at = parts[0]->offset;
    for (int i = 0; i < n; i++) {
        if (parts[i]->storage != storage || parts[i]->offset != at) return false;
        at += tsh_tensor_nbytes(parts[i]);
    }
    return true;
}

static void list_close(const tsh_group *group, list *l) {
    tsh_tensor_release(l->whole);
    tshi_free(&group->world->allocator, l->counts);
}

static tsh_status list_check(const tsh_group *group, tsh_collective op, tsh_tensor *const *parts, const char *what,
                             int64_t *total) {
    *total = 0;
    if (!parts) return tshi_fail(TSH_ERR_ARGUMENT, "%s: %s is NULL", tsh_collective_name(op), what);
    for (int i = 0; i < group->size; i++) {
        tsh_status status = tshi_check_tensor(group, op, parts[i], what);
        if (status != TSH_OK) return status;
        if (parts[i]->dtype != parts[0]->dtype) {
            return tshi_fail(TSH_ERR_DTYPE, "%s: %s[0] is %s, %s[%d] is %s", tsh_collective_name(op), what,
                             tsh_dtype_name(parts[0]->dtype), what, i, tsh_dtype_name(parts[i]->dtype));
        }
        if (parts[i]->numel > INT64_MAX - *total) {
            return tshi_fail(TSH_ERR_OVERFLOW, "%s: the sizes overflow", tsh_collective_name(op));
        }
        *total += parts[i]->numel;
    }
    return TSH_OK;
}

/* One tensor for the parts; with `fill` it has their elements. */
static tsh_status list_open(const tsh_group *group, tsh_collective op, tsh_tensor *const *parts, const char *what,
                            bool fill, list *l) {
    int64_t total;
    tsh_status status = list_check(group, op, parts, what, &total);
    if (status != TSH_OK) return status;
    l->counts = tshi_calloc(&group->world->allocator, (size_t)group->size, sizeof *l->counts);
    if (!l->counts) return TSH_ERR_MEMORY;
    for (int i = 0; i < group->size; i++) l->counts[i] = parts[i]->numel;
    if (adjoin(parts, group->size)) {
        const tsh_layout local[TSH_MAX_AXES] = {TSH_LOCAL, TSH_LOCAL, TSH_LOCAL, TSH_LOCAL};
        tshi_shape shape = {.ndim = 1, .local = {total}, .global = {total}};
        return tshi_tensor_view(parts[0], &shape, local, 0, &l->whole);
    }
    status = tshi_tensor_scratch(group->mesh, parts[0]->dtype, total, &l->whole);
    if (status != TSH_OK || !fill) return status;
    char *to = tshi_data(l->whole);
    for (int i = 0; i < group->size; i++) {
        size_t bytes = tsh_tensor_nbytes(parts[i]);
        if (bytes) group->world->device->ops->copy(group->world->device, bytes, tshi_data(parts[i]), to);
        to += bytes;
    }
    return TSH_OK;
}

/* Back into the parts. */
static void list_spread(const tsh_group *group, const list *l, tsh_tensor *const *parts) {
    const char *from = tshi_data(l->whole);
    if (l->whole->storage == parts[0]->storage) return;
    for (int i = 0; i < group->size; i++) {
        size_t bytes = tsh_tensor_nbytes(parts[i]);
        if (bytes) group->world->device->ops->copy(group->world->device, bytes, from, tshi_data(parts[i]));
        from += bytes;
    }
}

static tsh_status no_group(tsh_collective op) {
    return tshi_fail(TSH_ERR_ARGUMENT, "%s: group is NULL", tsh_collective_name(op));
}

tsh_status tsh_all_gather_list(tsh_group *group, tsh_tensor *const *outs, const tsh_tensor *in) {
    if (!group) return no_group(TSH_OP_ALL_GATHER);
    list out = {0};
    tsh_status status = list_open(group, TSH_OP_ALL_GATHER, outs, "outs", false, &out);
    if (status == TSH_OK)
        status = tsh_all_gather_into_tensor(group, out.whole, in, out.counts);
    else
        status = tshi_call_failed(group, TSH_OP_ALL_GATHER, status);
    if (status == TSH_OK) list_spread(group, &out, outs);
    list_close(group, &out);
    return status;
}

tsh_status tsh_reduce_scatter_list(tsh_group *group, tsh_tensor *out, const tsh_tensor *const *ins, tsh_reduce_op op) {
    if (!group) return no_group(TSH_OP_REDUCE_SCATTER);
    list in = {0};
    /* Only read, in spite of the type that the helpers share. */
    tsh_status status = list_open(group, TSH_OP_REDUCE_SCATTER, (tsh_tensor *const *)(uintptr_t)ins, "ins", true, &in);
    if (status == TSH_OK)
        status = tsh_reduce_scatter_tensor(group, out, in.whole, op, in.counts);
    else
        status = tshi_call_failed(group, TSH_OP_REDUCE_SCATTER, status);
    list_close(group, &in);
    return status;
}

tsh_status tsh_all_to_all_list(tsh_group *group, tsh_tensor *const *outs, const tsh_tensor *const *ins) {
    if (!group) return no_group(TSH_OP_ALL_TO_ALL);
    list in = {0}, out = {0};
    tsh_status status = list_open(group, TSH_OP_ALL_TO_ALL, (tsh_tensor *const *)(uintptr_t)ins, "ins", true, &in);
    if (status == TSH_OK) status = list_open(group, TSH_OP_ALL_TO_ALL, outs, "outs", false, &out);
    if (status == TSH_OK)
        status = tsh_all_to_all(group, out.whole, out.counts, in.whole, in.counts);
    else
        status = tshi_call_failed(group, TSH_OP_ALL_TO_ALL, status);
    if (status == TSH_OK) list_spread(group, &out, outs);
    list_close(group, &in);
    list_close(group, &out);
    return status;
}
