/* The public calls: arguments checked, counts resolved, then the backend, now or when its turn comes. */
#include "dist/core/collectives.h"
#include "dist/registry.h"

#include <string.h>

const char *tsh_collective_name(tsh_collective op) {
    return (int)op >= 0 && op < TSH_COLLECTIVE_COUNT ? tshi_collectives[op].name : "unknown collective";
}

static bool reduces(tsh_dtype dtype, tsh_reduce_op reduce) {
    bool integer = dtype == TSH_INT32 || dtype == TSH_INT64 || dtype == TSH_UINT8;
    switch (reduce) {
    case TSH_SUM:
    case TSH_PROD: return true;
    case TSH_MIN:
    case TSH_MAX: return !tshi_dtype_is_complex(dtype);
    case TSH_AVG: return !integer;
    case TSH_BAND:
    case TSH_BOR:
    case TSH_BXOR: return integer;
    default: return false;
    }
}

static bool backend_supports(const tshi_group_ops *backend, tsh_collective op, tsh_dtype dtype, tsh_reduce_op reduce) {
    if ((int)op < 0 || op >= TSH_COLLECTIVE_COUNT) return false;
    /* A group of one rank has no rank to send to. */
    if ((op == TSH_COLLECTIVE_SEND || op == TSH_COLLECTIVE_RECV) && !backend->start) return false;
    if (op == TSH_COLLECTIVE_BARRIER) return true;
    if (tsh_dtype_size(dtype) == 0) return false;
    if (!tshi_collectives[op].reduces) return true;
    return reduces(dtype, reduce) && (!backend->reduces || backend->reduces(dtype, reduce));
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
    return ops && takes_device(ops, device) && backend_supports(ops, op, dtype, reduce);
}

/* --- checks ------------------------------------------------------------------------------------------------------- */

tsh_status tshi_check_tensor(const tsh_group *group, tsh_collective op, const tsh_tensor *tensor, const char *what) {
    const char *name = tsh_collective_name(op);
    if (!tensor) return tshi_fail(TSH_ERR_ARGUMENT, "%s: %s is NULL", name, what);
    if (tensor->mesh->world != group->world) {
        return tshi_fail(TSH_ERR_ARGUMENT, "%s: %s belongs to another world", name, what);
    }
    if (!tensor->storage) return tshi_fail(TSH_ERR_STATE, "%s: the memory of %s has been freed", name, what);
    return TSH_OK;
}

static tsh_status check_pair(const tsh_group *group, tsh_collective op, const tsh_tensor *out, const tsh_tensor *in) {
    tsh_status status = tshi_check_tensor(group, op, out, "out");
    if (status == TSH_OK) status = tshi_check_tensor(group, op, in, "in");
    if (status != TSH_OK || out->dtype == in->dtype) return status;
    return tshi_fail(TSH_ERR_DTYPE, "%s: out is %s, in is %s", tsh_collective_name(op), tsh_dtype_name(out->dtype),
                     tsh_dtype_name(in->dtype));
}

static tsh_status check_reduction(const tshi_group_ops *backend, tsh_collective op, tsh_dtype dtype,
                                  tsh_reduce_op reduce) {
    const char *name = tsh_collective_name(op), *type = tsh_dtype_name(dtype);
    if ((int)reduce < 0 || reduce >= TSH_REDUCE_OP_COUNT) {
        return tshi_fail(TSH_ERR_ARGUMENT, "%s: %d is no reduction", name, (int)reduce);
    }
    if (reduces(dtype, reduce)) {
        if (!backend->reduces || backend->reduces(dtype, reduce)) return TSH_OK;
        return tshi_fail(TSH_ERR_UNSUPPORTED, "%s: %s has no %s of %s (see tsh_group_supports)", name, backend->name,
                         tshi_reduction_name(reduce), type);
    }
    if (reduce == TSH_MIN || reduce == TSH_MAX) {
        return tshi_fail(TSH_ERR_DTYPE, "%s: %s has no order, so neither min nor max", name, type);
    }
    return tshi_fail(TSH_ERR_DTYPE, "%s: %s is for %s, not for %s", name, tshi_reduction_name(reduce),
                     reduce == TSH_AVG ? "floats and complex numbers" : "integers", type);
}

const char *tshi_reduction_name(tsh_reduce_op reduce) {
    static const char *const reductions[TSH_REDUCE_OP_COUNT] = {"sum", "prod", "min", "max",
                                                                "avg", "band", "bor", "bxor"};
    return (int)reduce >= 0 && reduce < TSH_REDUCE_OP_COUNT ? reductions[reduce] : "unknown reduction";
}

/* The counts of a call and their sum, which must be `whole`; part is what this rank's own tensor holds. */
static tsh_status check_counts(const tsh_group *group, tsh_collective op, const int64_t *counts, int64_t whole,
                               int64_t part) {
    int64_t sum = 0;
    for (int i = 0; i < group->size; i++) {
        if (counts[i] < 0) {
            return tshi_fail(TSH_ERR_ARGUMENT, "%s: the count of rank %d is %lld", tsh_collective_name(op), i,
                             (long long)counts[i]);
        }
        if (counts[i] > INT64_MAX - sum)
            return tshi_fail(TSH_ERR_OVERFLOW, "%s: the counts overflow", tsh_collective_name(op));
        sum += counts[i];
    }
    if (sum != whole) {
        return tshi_fail(TSH_ERR_SHAPE, "%s: the counts add up to %lld, the whole tensor has %lld elements",
                         tsh_collective_name(op), (long long)sum, (long long)whole);
    }
    if (part == counts[group->rank]) return TSH_OK;
    return tshi_fail(TSH_ERR_SHAPE, "%s: rank %d's part is %lld elements, its tensor has %lld", tsh_collective_name(op),
                     group->rank, (long long)counts[group->rank], (long long)part);
}

/* Counts of the balanced split of dim 0 of `whole`. */
static tsh_status balanced(const tsh_group *group, tsh_collective op, const tsh_tensor *whole, int64_t *counts) {
    if (whole->shape.ndim == 0) {
        return tshi_fail(TSH_ERR_SHAPE, "%s: the whole tensor has no dim 0 to split; give counts",
                         tsh_collective_name(op));
    }
    int64_t rows = whole->shape.local[0];
    int64_t inner = rows ? whole->numel / rows : 0;
    for (int i = 0; i < group->size; i++) {
        tsh_split(rows, group->size, i, NULL, &counts[i]);
        counts[i] *= inner;
    }
    return TSH_OK;
}

static tsh_status equal_parts(const tsh_group *group, const tsh_tensor *tensor, const char *what, int64_t *counts) {
    if (tensor->numel % group->size) {
        return tshi_fail(TSH_ERR_SHAPE, "all_to_all: %s has %lld elements, which %d ranks do not divide", what,
                         (long long)tensor->numel, group->size);
    }
    for (int i = 0; i < group->size; i++) counts[i] = tensor->numel / group->size;
    return TSH_OK;
}

/* In place means exactly this rank's part; any other overlap is an error. `place` is NULL where none is allowed. */
static tsh_status check_overlap(tsh_collective op, const tsh_tensor *out, const tsh_tensor *in, const char *part,
                                const char *place) {
    const char *a = tshi_data(out), *b = tshi_data(in);
    size_t a_bytes = tsh_tensor_local_nbytes(out), b_bytes = tsh_tensor_local_nbytes(in);
    if (!a_bytes || !b_bytes || a + a_bytes <= b || b + b_bytes <= a) return TSH_OK;
    if (place && part == place) return TSH_OK;
    return tshi_fail(TSH_ERR_ARGUMENT, "%s: in and out overlap%s", tsh_collective_name(op),
                     place ? " elsewhere than in this rank's part" : "");
}

static const char *part_start(const tsh_group *group, const tsh_tensor *whole, const int64_t *counts) {
    int64_t before = 0;
    for (int i = 0; i < group->rank; i++) before += counts[i];
    return (const char *)tshi_data(whole) + (size_t)before * tsh_dtype_size(whole->dtype);
}

/* All of one tensor: all_reduce, broadcast, reduce. */
static tsh_status check_one(const tsh_group *group, const tshi_arguments *a, tshi_call *call) {
    tsh_status status = tshi_check_tensor(group, a->op, a->in, "tensor");
    if (status != TSH_OK) return status;
    call->dtype = a->in->dtype;
    call->count = a->in->numel;
    call->in = call->out = tshi_data(a->in);
    return TSH_OK;
}

/* The counts that were given, or those of the whole tensor, or of `part` where only the root has the whole. */
static tsh_status resolve_counts(const tsh_group *group, const tshi_arguments *a, const tsh_tensor *whole,
                                 const tsh_tensor *part, tshi_call *call) {
    tsh_status status = TSH_OK;
    call->counts = a->counts ? a->counts : group->counts;
    if (!a->counts && whole) status = balanced(group, a->op, whole, group->counts);
    call->count = whole ? whole->numel : 0;
    for (int i = 0; !whole && i < group->size; i++) {
        if (!a->counts) group->counts[i] = part->numel;
        if (call->counts[i] > 0 && call->counts[i] <= INT64_MAX - call->count) call->count += call->counts[i];
    }
    if (status == TSH_OK) status = check_counts(group, a->op, call->counts, call->count, part->numel);
    return status;
}

/* One whole, and a part of it on each rank: `whole` and `part` are a's out and in, or its in and out. */
static tsh_status check_parts(const tsh_group *group, const tshi_arguments *a, const tsh_tensor *whole,
                              const tsh_tensor *part, tshi_call *call) {
    bool gathers = whole == a->out && part == a->in;
    tsh_status status = whole || !tshi_is_rooted(a->op) || group->rank == a->root
                            ? check_pair(group, a->op, a->out, a->in)
                            : tshi_check_tensor(group, a->op, part, gathers ? "in" : "out");
    if (status == TSH_OK) status = resolve_counts(group, a, whole, part, call);
    if (status != TSH_OK) return status;
    call->dtype = part->dtype;
    call->in = a->in ? tshi_data(a->in) : NULL;
    call->out = a->out ? tshi_data(a->out) : NULL;
    if (!whole) return TSH_OK;
    return check_overlap(a->op, whole, part, tshi_data(part), part_start(group, whole, call->counts));
}

static tsh_status check_gather(const tsh_group *group, const tshi_arguments *a, tshi_call *call) {
    return check_parts(group, a, a->out, a->in, call);
}

static tsh_status check_scatter(const tsh_group *group, const tshi_arguments *a, tshi_call *call) {
    return check_parts(group, a, a->in, a->out, call);
}

static tsh_status check_all_to_all(const tsh_group *group, const tshi_arguments *a, tshi_call *call) {
    int64_t *scratch = group->counts;
    tsh_status status = check_pair(group, a->op, a->out, a->in);
    call->in_counts = a->in_counts ? a->in_counts : scratch;
    call->out_counts = a->counts ? a->counts : scratch + group->size;
    if (status == TSH_OK && !a->in_counts) status = equal_parts(group, a->in, "in", scratch);
    if (status == TSH_OK && !a->counts) status = equal_parts(group, a->out, "out", scratch + group->size);
    if (status == TSH_OK) {
        status = check_counts(group, a->op, call->in_counts, a->in->numel, call->in_counts[group->rank]);
    }
    if (status == TSH_OK) {
        status = check_counts(group, a->op, call->out_counts, a->out->numel, call->out_counts[group->rank]);
    }
    if (status != TSH_OK) return status;
    call->dtype = a->in->dtype;
    call->in = tshi_data(a->in);
    call->out = tshi_data(a->out);
    return check_overlap(a->op, a->out, a->in, NULL, NULL);
}

static tsh_status check_nothing(const tsh_group *group, const tshi_arguments *a, tshi_call *call) {
    (void)group;
    (void)a;
    (void)call;
    return TSH_OK;
}

const tshi_collective tshi_collectives[TSH_COLLECTIVE_COUNT] = {
    [TSH_COLLECTIVE_ALL_REDUCE] = {"all_reduce", check_one, TSHI_WHOLE, TSHI_WHOLE, .ring = 2, .reduces = true},
    [TSH_COLLECTIVE_ALL_GATHER] = {"all_gather", check_gather, TSHI_PART, TSHI_WHOLE, .ring = 1},
    [TSH_COLLECTIVE_REDUCE_SCATTER] = {"reduce_scatter", check_scatter, TSHI_WHOLE, TSHI_PART, .ring = 1,
                                       .reduces = true},
    [TSH_COLLECTIVE_BROADCAST] = {"broadcast", check_one, TSHI_WHOLE, TSHI_WHOLE, .ring = 1, .contributes = TSHI_ROOT},
    [TSH_COLLECTIVE_ALL_TO_ALL] = {"all_to_all", check_all_to_all, TSHI_LISTED, TSHI_LISTED},
    [TSH_COLLECTIVE_BARRIER] = {"barrier", check_nothing, TSHI_NONE, TSHI_NONE},
    [TSH_COLLECTIVE_REDUCE] = {"reduce", check_one, TSHI_WHOLE, TSHI_WHOLE, .ring = 1, .receives = TSHI_ROOT,
                               .reduces = true},
    [TSH_COLLECTIVE_GATHER] = {"gather", check_gather, TSHI_PART, TSHI_WHOLE, .ring = 1, .receives = TSHI_ROOT},
    [TSH_COLLECTIVE_SCATTER] = {"scatter", check_scatter, TSHI_WHOLE, TSHI_PART, .ring = 1, .contributes = TSHI_ROOT},
    [TSH_COLLECTIVE_SEND] = {"send", check_nothing, TSHI_WHOLE, TSHI_NONE},
    [TSH_COLLECTIVE_RECV] = {"recv", check_nothing, TSHI_NONE, TSHI_WHOLE},
};

/* The call that the arguments make, or one marked failed. */
static tshi_call prepare(const tsh_group *group, const tshi_arguments *a) {
    const tshi_collective *c = &tshi_collectives[a->op];
    bool on_device = group->world->device != group->world->host;
    tshi_call call = {.op = a->op, .reduce = a->reduce, .root = a->root, .on_device = on_device};
    if (tshi_is_rooted(a->op) && (a->root < 0 || a->root >= group->size)) {
        call.failed = tshi_fail(TSH_ERR_RANGE, "%s: root %d in a group of %d", c->name, a->root, group->size);
    }
    if (call.failed == TSH_OK) call.failed = c->check(group, a, &call);
    if (call.failed == TSH_OK && c->reduces) call.failed = check_reduction(group->ops, a->op, call.dtype, a->reduce);
    return call;
}

/* --- running ------------------------------------------------------------------------------------------------------ */

/* bytes (p - 1) / p without overflow. */
static uint64_t ring_bytes(const tsh_group *group, const tshi_call *call) {
    uint64_t p = (uint64_t)group->size, bytes = (uint64_t)call->count * tsh_dtype_size(call->dtype);
    return tshi_collectives[call->op].ring * (bytes - bytes / p - (bytes % p != 0));
}

static uint64_t sent_bytes(const tsh_group *group, const tshi_call *call) {
    int64_t sent = call->op == TSH_COLLECTIVE_SEND ? call->count : 0;
    if (call->in_counts) sent = tshi_sum(call->in_counts, group->size) - call->in_counts[group->rank];
    return (uint64_t)sent * tsh_dtype_size(call->dtype);
}

void tshi_group_count(tsh_group *group, const tshi_call *call) {
    bool ring = tshi_collectives[call->op].ring != 0;
    group->stats.calls[call->op]++;
    if (ring && !call->count) return;
    group->stats.bytes[call->op] += ring ? ring_bytes(group, call) : sent_bytes(group, call);
}

static tsh_status no_group(tsh_collective op) {
    return tshi_fail(TSH_ERR_ARGUMENT, "%s: group is NULL", tsh_collective_name(op));
}

tsh_status tshi_collective_run(tsh_group *group, const tshi_arguments *a, tsh_status early) {
    if (!group) return no_group(a->op);
    uint64_t start = tshi_ticks();
    tshi_call call = {.op = a->op, .failed = early};
    if (early == TSH_OK) call = prepare(group, a);
    tsh_status status = tshi_group_run(group, &call);
    if (status == TSH_OK) tshi_group_count(group, &call);
    group->ticks += tshi_ticks() - start;
    return status;
}

/* A call that cannot be made still takes its turn, so that its peers get the error. */
tsh_status tshi_collective_start(tsh_group *group, const tshi_arguments *a, tsh_work **out) {
    if (out) *out = NULL;
    if (!group) return no_group(a->op);
    uint64_t start = tshi_ticks();
    tshi_call call = prepare(group, a);
    if (!out && call.failed == TSH_OK) {
        call.failed = tshi_fail(TSH_ERR_ARGUMENT, "%s: work is NULL", tsh_collective_name(a->op));
    }
    tsh_status status = call.failed;
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
    return status;
}

tsh_status tshi_call_failed(tsh_group *group, tsh_collective op, tsh_status status) {
    return tshi_collective_run(group, &(tshi_arguments){.op = op}, status);
}

/* --- the calls ---------------------------------------------------------------------------------------------------- */

tsh_status tsh_all_reduce(tsh_group *group, tsh_tensor *tensor, tsh_reduce_op op) {
    return tshi_collective_run(
        group, &(tshi_arguments){.op = TSH_COLLECTIVE_ALL_REDUCE, .in = tensor, .out = tensor, .reduce = op}, TSH_OK);
}

tsh_status tsh_all_reduce_async(tsh_group *group, tsh_tensor *tensor, tsh_reduce_op op, tsh_work **work) {
    return tshi_collective_start(
        group, &(tshi_arguments){.op = TSH_COLLECTIVE_ALL_REDUCE, .in = tensor, .out = tensor, .reduce = op}, work);
}

tsh_status tsh_all_gather_into_tensor(tsh_group *group, tsh_tensor *out, const tsh_tensor *in, const int64_t *counts) {
    return tshi_collective_run(
        group, &(tshi_arguments){.op = TSH_COLLECTIVE_ALL_GATHER, .in = in, .out = out, .counts = counts}, TSH_OK);
}

tsh_status tsh_all_gather_into_tensor_async(tsh_group *group, tsh_tensor *out, const tsh_tensor *in,
                                            const int64_t *counts, tsh_work **work) {
    return tshi_collective_start(
        group, &(tshi_arguments){.op = TSH_COLLECTIVE_ALL_GATHER, .in = in, .out = out, .counts = counts}, work);
}

tsh_status tsh_reduce_scatter_tensor(tsh_group *group, tsh_tensor *out, const tsh_tensor *in, tsh_reduce_op op,
                                     const int64_t *counts) {
    const tshi_arguments a = {
        .op = TSH_COLLECTIVE_REDUCE_SCATTER, .in = in, .out = out, .counts = counts, .reduce = op};
    return tshi_collective_run(group, &a, TSH_OK);
}

tsh_status tsh_reduce_scatter_tensor_async(tsh_group *group, tsh_tensor *out, const tsh_tensor *in, tsh_reduce_op op,
                                           const int64_t *counts, tsh_work **work) {
    const tshi_arguments a = {
        .op = TSH_COLLECTIVE_REDUCE_SCATTER, .in = in, .out = out, .counts = counts, .reduce = op};
    return tshi_collective_start(group, &a, work);
}

tsh_status tsh_broadcast(tsh_group *group, tsh_tensor *tensor, int root) {
    return tshi_collective_run(
        group, &(tshi_arguments){.op = TSH_COLLECTIVE_BROADCAST, .in = tensor, .out = tensor, .root = root}, TSH_OK);
}

tsh_status tsh_broadcast_async(tsh_group *group, tsh_tensor *tensor, int root, tsh_work **work) {
    return tshi_collective_start(
        group, &(tshi_arguments){.op = TSH_COLLECTIVE_BROADCAST, .in = tensor, .out = tensor, .root = root}, work);
}

tsh_status tsh_all_to_all(tsh_group *group, tsh_tensor *out, const int64_t *out_counts, const tsh_tensor *in,
                          const int64_t *in_counts) {
    const tshi_arguments a = {
        .op = TSH_COLLECTIVE_ALL_TO_ALL, .in = in, .out = out, .counts = out_counts, .in_counts = in_counts};
    return tshi_collective_run(group, &a, TSH_OK);
}

tsh_status tsh_all_to_all_async(tsh_group *group, tsh_tensor *out, const int64_t *out_counts, const tsh_tensor *in,
                                const int64_t *in_counts, tsh_work **work) {
    const tshi_arguments a = {
        .op = TSH_COLLECTIVE_ALL_TO_ALL, .in = in, .out = out, .counts = out_counts, .in_counts = in_counts};
    return tshi_collective_start(group, &a, work);
}

tsh_status tsh_reduce_to_root(tsh_group *group, tsh_tensor *tensor, tsh_reduce_op op, int root) {
    const tshi_arguments a = {.op = TSH_COLLECTIVE_REDUCE, .in = tensor, .out = tensor, .reduce = op, .root = root};
    return tshi_collective_run(group, &a, TSH_OK);
}

tsh_status tsh_gather_to_root(tsh_group *group, tsh_tensor *out, const tsh_tensor *in, const int64_t *counts,
                              int root) {
    const tshi_arguments a = {.op = TSH_COLLECTIVE_GATHER, .in = in, .out = out, .counts = counts, .root = root};
    return tshi_collective_run(group, &a, TSH_OK);
}

tsh_status tsh_scatter_from_root(tsh_group *group, tsh_tensor *out, const tsh_tensor *in, const int64_t *counts,
                                 int root) {
    const tshi_arguments a = {.op = TSH_COLLECTIVE_SCATTER, .in = in, .out = out, .counts = counts, .root = root};
    return tshi_collective_run(group, &a, TSH_OK);
}

tsh_status tsh_reduce_to_root_async(tsh_group *group, tsh_tensor *tensor, tsh_reduce_op op, int root, tsh_work **work) {
    const tshi_arguments a = {.op = TSH_COLLECTIVE_REDUCE, .in = tensor, .out = tensor, .reduce = op, .root = root};
    return tshi_collective_start(group, &a, work);
}

tsh_status tsh_gather_to_root_async(tsh_group *group, tsh_tensor *out, const tsh_tensor *in, const int64_t *counts,
                                    int root, tsh_work **work) {
    const tshi_arguments a = {.op = TSH_COLLECTIVE_GATHER, .in = in, .out = out, .counts = counts, .root = root};
    return tshi_collective_start(group, &a, work);
}

tsh_status tsh_scatter_from_root_async(tsh_group *group, tsh_tensor *out, const tsh_tensor *in, const int64_t *counts,
                                       int root, tsh_work **work) {
    const tshi_arguments a = {.op = TSH_COLLECTIVE_SCATTER, .in = in, .out = out, .counts = counts, .root = root};
    return tshi_collective_start(group, &a, work);
}

tsh_status tsh_barrier(tsh_group *group) {
    return tshi_collective_run(group, &(tshi_arguments){.op = TSH_COLLECTIVE_BARRIER}, TSH_OK);
}

tsh_status tsh_barrier_async(tsh_group *group, tsh_work **work) {
    return tshi_collective_start(group, &(tshi_arguments){.op = TSH_COLLECTIVE_BARRIER}, work);
}
