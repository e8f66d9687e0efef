/* Collectives on a list of tensors: the calls on one tensor, through one that holds the list's parts one after another
 * unless they lie like that already. */
#include "dist/world.h"

typedef struct list {
    tsh_tensor *whole;
    int64_t *counts;          /* [size] */
    tsh_tensor *const *parts; /* [size] */
    tsh_tensor **held;        /* [size] references to them, for a work that fills them */
} list;

/* Whether the tensors follow each other in one storage. */
static bool adjoin(tsh_tensor *const *parts, int n) {
    const tshi_storage *storage = parts[0]->storage;
    size_t at = parts[0]->offset;
    for (int i = 0; i < n; i++) {
        if (parts[i]->storage != storage || parts[i]->offset != at) return false;
        at += tsh_tensor_local_nbytes(parts[i]);
    }
    return true;
}

static void release_parts(const tsh_group *group, tsh_tensor **parts) {
    for (int i = 0; parts && i < group->size; i++) tsh_tensor_release(parts[i]);
    tshi_free(&group->world->allocator, parts);
}

static void list_close(const tsh_group *group, list *l) {
    tsh_tensor_release(l->whole);
    tshi_free(&group->world->allocator, l->counts);
    release_parts(group, l->held);
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

/* One tensor for the parts. */
static tsh_status list_open(const tsh_group *group, tsh_collective op, tsh_tensor *const *parts, const char *what,
                            list *l) {
    int64_t total;
    tsh_status status = list_check(group, op, parts, what, &total);
    if (status != TSH_OK) return status;
    l->parts = parts;
    l->counts = tshi_calloc(&group->world->allocator, (size_t)group->size, sizeof *l->counts);
    if (!l->counts) return TSH_ERR_MEMORY;
    for (int i = 0; i < group->size; i++) l->counts[i] = parts[i]->numel;
    if (!adjoin(parts, group->size)) return tshi_tensor_scratch(group->mesh, parts[0]->dtype, total, &l->whole);
    const tsh_layout local[TSH_MAX_AXES] = {TSH_LOCAL, TSH_LOCAL, TSH_LOCAL, TSH_LOCAL};
    tshi_shape shape = {.ndim = 1, .local = {total}, .global = {total}};
    return tshi_tensor_view(parts[0], &shape, local, 0, &l->whole);
}

/* --- to and fro --------------------------------------------------------------------------------------------------- */

static void copy(const tsh_group *group, const tsh_tensor *from, size_t from_at, tsh_tensor *to, size_t to_at,
                 size_t bytes) {
    tsh_device *device = group->world->device;
    if (bytes)
        device->ops->copy.within(device, bytes, (char *)tshi_data(from) + from_at, (char *)tshi_data(to) + to_at);
}

/* One for the parts that has their elements. */
static tsh_status list_fill(const tsh_group *group, tsh_collective op, const tsh_tensor *const *parts, list *l) {
    /* Only read, in spite of the type that the helpers share. */
    tsh_status status = list_open(group, op, (tsh_tensor *const *)(uintptr_t)parts, "ins", l);
    size_t at = 0;
    if (status != TSH_OK || l->whole->storage == parts[0]->storage) return status;
    for (int i = 0; i < group->size; i++) {
        copy(group, parts[i], 0, l->whole, at, tsh_tensor_local_nbytes(parts[i]));
        at += tsh_tensor_local_nbytes(parts[i]);
    }
    return TSH_OK;
}

/* Back into the parts. */
static void spread(const tsh_group *group, const tsh_tensor *whole, tsh_tensor *const *parts) {
    size_t at = 0;
    if (whole->storage == parts[0]->storage) return;
    for (int i = 0; i < group->size; i++) {
        copy(group, whole, at, parts[i], 0, tsh_tensor_local_nbytes(parts[i]));
        at += tsh_tensor_local_nbytes(parts[i]);
    }
}

void tshi_work_spread(tsh_work *work) {
    if (!work->parts) return;
    if (work->status == TSH_OK) spread(work->group, work->out, work->parts);
    release_parts(work->group, work->parts);
    work->parts = NULL;
}

static tsh_status list_hold(const tsh_group *group, list *l) {
    l->held = tshi_calloc(&group->world->allocator, (size_t)group->size, sizeof(tsh_tensor *));
    if (!l->held) return TSH_ERR_MEMORY;
    for (int i = 0; i < group->size; i++) l->held[i] = tsh_tensor_retain(l->parts[i]);
    return TSH_OK;
}

/* To be filled: by a work, where there is one. */
static tsh_status list_await(const tsh_group *group, tsh_collective op, tsh_tensor *const *parts, bool by_work,
                             list *l) {
    tsh_status status = list_open(group, op, parts, "outs", l);
    return status == TSH_OK && by_work ? list_hold(group, l) : status;
}

/* The call has been made, or the work started, which may be done already. */
static void list_take(const tsh_group *group, list *l, tsh_work *work) {
    if (!work) {
        spread(group, l->whole, l->parts);
        return;
    }
    work->parts = l->held;
    l->held = NULL;
    if (!work->linked) tshi_work_spread(work);
}

/* --- the calls: made at once, or, with `work`, started ------------------------------------------------------------ */

static tsh_status no_group(tsh_collective op) {
    return tshi_fail(TSH_ERR_ARGUMENT, "%s: group is NULL", tsh_collective_name(op));
}

static tsh_status no_work(tsh_group *group, tsh_collective op) {
    if (!group) return no_group(op);
    return tshi_call_failed(group, op, tshi_fail(TSH_ERR_ARGUMENT, "%s: work is NULL", tsh_collective_name(op)));
}

static tsh_status all_gather(tsh_group *group, tsh_tensor *const *outs, const tsh_tensor *in, tsh_work **work) {
    if (work) *work = NULL;
    if (!group) return no_group(TSH_COLLECTIVE_ALL_GATHER);
    list out = {0};
    tsh_status status = list_await(group, TSH_COLLECTIVE_ALL_GATHER, outs, work != NULL, &out);
    if (status != TSH_OK)
        status = tshi_call_failed(group, TSH_COLLECTIVE_ALL_GATHER, status);
    else if (work)
        status = tsh_all_gather_into_tensor_async(group, out.whole, in, out.counts, work);
    else
        status = tsh_all_gather_into_tensor(group, out.whole, in, out.counts);
    if (status == TSH_OK) list_take(group, &out, work ? *work : NULL);
    list_close(group, &out);
    return status;
}

static tsh_status reduce_scatter(tsh_group *group, tsh_tensor *out, const tsh_tensor *const *ins, tsh_reduce_op op,
                                 tsh_work **work) {
    if (work) *work = NULL;
    if (!group) return no_group(TSH_COLLECTIVE_REDUCE_SCATTER);
    list in = {0};
    tsh_status status = list_fill(group, TSH_COLLECTIVE_REDUCE_SCATTER, ins, &in);
    if (status != TSH_OK)
        status = tshi_call_failed(group, TSH_COLLECTIVE_REDUCE_SCATTER, status);
    else if (work)
        status = tsh_reduce_scatter_tensor_async(group, out, in.whole, op, in.counts, work);
    else
        status = tsh_reduce_scatter_tensor(group, out, in.whole, op, in.counts);
    list_close(group, &in);
    return status;
}

static tsh_status all_to_all(tsh_group *group, tsh_tensor *const *outs, const tsh_tensor *const *ins, tsh_work **work) {
    if (work) *work = NULL;
    if (!group) return no_group(TSH_COLLECTIVE_ALL_TO_ALL);
    list in = {0}, out = {0};
    tsh_status status = list_fill(group, TSH_COLLECTIVE_ALL_TO_ALL, ins, &in);
    if (status == TSH_OK) status = list_await(group, TSH_COLLECTIVE_ALL_TO_ALL, outs, work != NULL, &out);
    if (status != TSH_OK)
        status = tshi_call_failed(group, TSH_COLLECTIVE_ALL_TO_ALL, status);
    else if (work)
        status = tsh_all_to_all_async(group, out.whole, out.counts, in.whole, in.counts, work);
    else
        status = tsh_all_to_all(group, out.whole, out.counts, in.whole, in.counts);
    if (status == TSH_OK) list_take(group, &out, work ? *work : NULL);
    list_close(group, &in);
    list_close(group, &out);
    return status;
}

tsh_status tsh_all_gather_list(tsh_group *group, tsh_tensor *const *outs, const tsh_tensor *in) {
    return all_gather(group, outs, in, NULL);
}

tsh_status tsh_all_gather_list_async(tsh_group *group, tsh_tensor *const *outs, const tsh_tensor *in, tsh_work **work) {
    return work ? all_gather(group, outs, in, work) : no_work(group, TSH_COLLECTIVE_ALL_GATHER);
}

tsh_status tsh_reduce_scatter_list(tsh_group *group, tsh_tensor *out, const tsh_tensor *const *ins, tsh_reduce_op op) {
    return reduce_scatter(group, out, ins, op, NULL);
}

tsh_status tsh_reduce_scatter_list_async(tsh_group *group, tsh_tensor *out, const tsh_tensor *const *ins,
                                         tsh_reduce_op op, tsh_work **work) {
    return work ? reduce_scatter(group, out, ins, op, work) : no_work(group, TSH_COLLECTIVE_REDUCE_SCATTER);
}

tsh_status tsh_all_to_all_list(tsh_group *group, tsh_tensor *const *outs, const tsh_tensor *const *ins) {
    return all_to_all(group, outs, ins, NULL);
}

tsh_status tsh_all_to_all_list_async(tsh_group *group, tsh_tensor *const *outs, const tsh_tensor *const *ins,
                                     tsh_work **work) {
    return work ? all_to_all(group, outs, ins, work) : no_work(group, TSH_COLLECTIVE_ALL_TO_ALL);
}
