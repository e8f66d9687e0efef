/* Collectives on a list of tensors, one for each rank: the calls on one tensor, through a tensor that holds the
 * elements of the list one after another, unless the tensors of the list lie like that already. */
#include "dist/collectives/collectives.h"

typedef struct list {
    tsh_tensor *whole;
    int64_t *counts;          /* [size] elements of each tensor */
    tsh_tensor *const *parts; /* [size] */
} list;

static bool adjoin(tsh_tensor *const *parts, int n) {
    const tshi_storage *storage = parts[0]->storage;
    size_t at = parts[0]->offset;
    for (int i = 0; i < n; i++) {
        if (parts[i]->storage != storage || parts[i]->offset != at) return false;
        at += tsh_tensor_local_nbytes(parts[i]);
    }
    return true;
}

static void list_close(const tsh_group *group, list *l) {
    tshi_tensor_release(l->whole);
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

static tsh_status list_open(const tsh_group *group, tsh_collective op, tsh_tensor *const *parts, const char *what,
                            list *l) {
    int64_t total;
    tsh_status status = list_check(group, op, parts, what, &total);
    if (status != TSH_OK) return status;
    l->parts = parts;
    l->counts = tshi_calloc(&group->world->allocator, (size_t)group->size, sizeof *l->counts);
    if (!l->counts) return TSH_ERR_MEMORY;
    for (int i = 0; i < group->size; i++) l->counts[i] = parts[i]->numel;
    if (!adjoin(parts, group->size)) return tshi_tensor_buffer(group->mesh, parts[0]->dtype, total, &l->whole);
    tsh_shape shape = {.ndim = 1, .local = {total}, .global = {total}};
    return tshi_tensor_view(parts[0], &shape, tshi_all_local, 0, &l->whole);
}

static tsh_status retain_parts(const tsh_group *group, tsh_tensor *const *parts, tsh_tensor ***out) {
    *out = tshi_calloc(&group->world->allocator, (size_t)group->size, sizeof(tsh_tensor *));
    if (!*out) return TSH_ERR_MEMORY;
    for (int i = 0; i < group->size; i++) (*out)[i] = tshi_tensor_retain(parts[i]);
    return TSH_OK;
}

/* --- the calls ---------------------------------------------------------------------------------------------------- */

typedef struct lists {
    bool async;
    tsh_tensor *const *outs;      /* in place of arguments.out, where that is a part for each rank */
    const tsh_tensor *const *ins; /* in place of arguments.in */
    list in, out;
    tsh_tensor **held;
} lists;

static tsh_status lists_open(const tsh_group *group, lists *l, tshi_arguments *a) {
    tsh_status status = TSH_OK;
    if (tshi_collectives[a->op].in != TSHI_PART) {
        /* The call only reads them, in spite of the type. */
        status = list_open(group, a->op, (tsh_tensor *const *)(uintptr_t)l->ins, "ins", &l->in);
        if (status == TSH_OK) tshi_parts_copy(group, l->in.whole, l->in.parts, false);
        a->in = l->in.whole;
        a->counts = a->in_counts = l->in.counts;
    }
    if (status == TSH_OK && tshi_collectives[a->op].out != TSHI_PART) {
        status = list_open(group, a->op, l->outs, "outs", &l->out);
        a->out = l->out.whole;
        a->counts = l->out.counts;
        if (status == TSH_OK && l->async) status = retain_parts(group, l->outs, &l->held);
    }
    return status;
}

/* The call has been made, or the work started, which may be done already. */
static void lists_fill(const tsh_group *group, lists *l, tsh_work *work) {
    if (!l->out.whole) return;
    if (!work) {
        tshi_parts_copy(group, l->out.whole, l->outs, true);
        return;
    }
    work->parts = l->held;
    l->held = NULL;
    if (!work->linked) tshi_work_spread(work);
}

static tsh_status run(tsh_group *group, tshi_arguments a, lists l, tsh_work **work) {
    tsh_status status = TSH_OK;
    if (work) *work = NULL;
    if (!group) return tshi_collective_run(NULL, &a, TSH_OK);
    if (l.async && !work) status = tshi_fail(TSH_ERR_ARGUMENT, "%s: work is NULL", tsh_collective_name(a.op));
    if (status == TSH_OK) status = lists_open(group, &l, &a);
    if (status == TSH_OK && l.async)
        status = tshi_collective_start(group, &a, work);
    else
        status = tshi_collective_run(group, &a, status);
    if (status == TSH_OK) lists_fill(group, &l, l.async ? *work : NULL);
    list_close(group, &l.in);
    list_close(group, &l.out);
    tshi_parts_release(group, l.held);
    return status;
}

tsh_status tsh_all_gather_list(tsh_group *group, const tsh_tensor *in, tsh_tensor *const *outs) {
    return run(group, (tshi_arguments){.op = TSH_COLLECTIVE_ALL_GATHER, .in = in}, (lists){.outs = outs}, NULL);
}

tsh_status tsh_all_gather_list_async(tsh_group *group, const tsh_tensor *in, tsh_tensor *const *outs, tsh_work **work) {
    const tshi_arguments a = {.op = TSH_COLLECTIVE_ALL_GATHER, .in = in};
    return run(group, a, (lists){.async = true, .outs = outs}, work);
}

tsh_status tsh_reduce_scatter_list(tsh_group *group, const tsh_tensor *const *ins, tsh_tensor *out, tsh_reduce_op op) {
    const tshi_arguments a = {.op = TSH_COLLECTIVE_REDUCE_SCATTER, .out = out, .reduce = op};
    return run(group, a, (lists){.ins = ins}, NULL);
}

tsh_status tsh_reduce_scatter_list_async(tsh_group *group, const tsh_tensor *const *ins, tsh_tensor *out,
                                         tsh_reduce_op op, tsh_work **work) {
    const tshi_arguments a = {.op = TSH_COLLECTIVE_REDUCE_SCATTER, .out = out, .reduce = op};
    return run(group, a, (lists){.async = true, .ins = ins}, work);
}

tsh_status tsh_all_to_all_list(tsh_group *group, const tsh_tensor *const *ins, tsh_tensor *const *outs) {
    return run(group, (tshi_arguments){.op = TSH_COLLECTIVE_ALL_TO_ALL}, (lists){.outs = outs, .ins = ins}, NULL);
}

tsh_status tsh_all_to_all_list_async(tsh_group *group, const tsh_tensor *const *ins, tsh_tensor *const *outs,
                                     tsh_work **work) {
    const tshi_arguments a = {.op = TSH_COLLECTIVE_ALL_TO_ALL};
    return run(group, a, (lists){.async = true, .outs = outs, .ins = ins}, work);
}
