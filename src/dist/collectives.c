/* The public calls: arguments checked, counts resolved, then the backend. */
#include "dist/dist.h"

static const char *const names[TSH_COLLECTIVE_COUNT] = {
    "all_reduce", "all_gather", "reduce_scatter", "broadcast", "all_to_all", "barrier",
    "reduce",     "gather",     "scatter",        "send",      "recv"};

const char *tsh_collective_name(tsh_collective op) {
    return (int)op >= 0 && op < TSH_COLLECTIVE_COUNT ? names[op] : "unknown collective";
}

bool tsh_group_supports(const tsh_group *group, tsh_collective op, tsh_dtype dtype, tsh_reduce_op reduce) {
    if (!group || (int)op < 0 || op >= TSH_COLLECTIVE_COUNT) return false;
    if (op == TSH_OP_BARRIER) return true;
    if (tsh_dtype_size(dtype) == 0) return false;
    if (op != TSH_OP_ALL_REDUCE && op != TSH_OP_REDUCE_SCATTER) return true;
    if ((int)reduce < 0 || reduce > TSH_MAX) return false;
    return !tshi_dtype_is_complex(dtype) || reduce == TSH_SUM || reduce == TSH_PROD;
}

/* --- checks ------------------------------------------------------------------------------------------------------- */

static tsh_status check_tensor(const tsh_group *group, tsh_collective op, const tsh_tensor *tensor, const char *what) {
    if (!tensor) return tshi_fail(TSH_ERR_ARGUMENT, "%s: %s is NULL", names[op], what);
    if (tensor->mesh->world != group->world) {
        return tshi_fail(TSH_ERR_ARGUMENT, "%s: %s belongs to another world", names[op], what);
    }
    if (!tensor->storage) return tshi_fail(TSH_ERR_STATE, "%s: the memory of %s has been freed", names[op], what);
    return TSH_OK;
}

static tsh_status check_pair(const tsh_group *group, tsh_collective op, const tsh_tensor *out, const tsh_tensor *in) {
    tsh_status status = check_tensor(group, op, out, "out");
    if (status == TSH_OK) status = check_tensor(group, op, in, "in");
    if (status != TSH_OK || out->dtype == in->dtype) return status;
    return tshi_fail(TSH_ERR_DTYPE, "%s: out is %s, in is %s", names[op], tsh_dtype_name(out->dtype),
                     tsh_dtype_name(in->dtype));
}

static tsh_status check_reduction(const tsh_group *group, tsh_collective op, tsh_dtype dtype, tsh_reduce_op reduce) {
    if ((int)reduce < 0 || reduce >= TSH_REDUCE_OP_COUNT) {
        return tshi_fail(TSH_ERR_ARGUMENT, "%s: %d is no reduction", names[op], (int)reduce);
    }
    if (tsh_group_supports(group, op, dtype, reduce)) return TSH_OK;
    return tshi_fail(TSH_ERR_DTYPE, "%s: %s has no order, so neither min nor max", names[op], tsh_dtype_name(dtype));
}

/* The counts of a call and their sum, which must be `whole`; part is what this rank's own tensor holds. */
static tsh_status check_counts(const tsh_group *group, tsh_collective op, const int64_t *counts, int64_t whole,
                               int64_t part) {
    int64_t sum = 0;
    for (int i = 0; i < group->size; i++) {
        if (counts[i] < 0) {
            return tshi_fail(TSH_ERR_ARGUMENT, "%s: the count of rank %d is %lld", names[op], i, (long long)counts[i]);
        }
        if (counts[i] > INT64_MAX - sum) return tshi_fail(TSH_ERR_OVERFLOW, "%s: the counts overflow", names[op]);
        sum += counts[i];
    }
    if (sum != whole) {
        return tshi_fail(TSH_ERR_SHAPE, "%s: the counts add up to %lld, the whole tensor has %lld elements", names[op],
                         (long long)sum, (long long)whole);
    }
    if (part == counts[group->rank]) return TSH_OK;
    return tshi_fail(TSH_ERR_SHAPE, "%s: rank %d's part is %lld elements, its tensor has %lld", names[op], group->rank,
                     (long long)counts[group->rank], (long long)part);
}

/* Counts of the balanced split of dim 0 of `whole`. */
static tsh_status balanced(const tsh_group *group, tsh_collective op, const tsh_tensor *whole, int64_t *counts) {
    if (whole->shape.ndim == 0) {
        return tshi_fail(TSH_ERR_SHAPE, "%s: the whole tensor has no dim 0 to split; give counts", names[op]);
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
    size_t a_bytes = tsh_tensor_nbytes(out), b_bytes = tsh_tensor_nbytes(in);
    if (!a_bytes || !b_bytes || a + a_bytes <= b || b + b_bytes <= a) return TSH_OK;
    if (place && part == place) return TSH_OK;
    return tshi_fail(TSH_ERR_ARGUMENT, "%s: in and out overlap%s", names[op],
                     place ? " elsewhere than in this rank's part" : "");
}

static const char *part_start(const tsh_group *group, const tsh_tensor *whole, const int64_t *counts) {
    int64_t before = 0;
    for (int i = 0; i < group->rank; i++) before += counts[i];
    return (const char *)tshi_data(whole) + (size_t)before * tsh_dtype_size(whole->dtype);
}

/* --- running ------------------------------------------------------------------------------------------------------ */

/* bytes (p - 1) / p without overflow. */
static uint64_t ring_bytes(const tsh_group *group, const tshi_call *call) {
    uint64_t p = (uint64_t)group->size, bytes = (uint64_t)call->count * tsh_dtype_size(call->dtype);
    uint64_t sent = bytes / p * (p - 1) + bytes % p * (p - 1) / p;
    return call->op == TSH_OP_ALL_REDUCE ? 2 * sent : sent;
}

static tsh_status run(tsh_group *group, const tshi_call *call) {
    uint64_t start = tshi_ticks();
    tsh_status status = group->ops->run(group, call);
    if (status == TSH_OK) {
        group->stats.calls[call->op]++;
        if (call->count) group->stats.bytes[call->op] += ring_bytes(group, call);
    }
    group->ticks += tshi_ticks() - start;
    return status;
}

static tsh_status no_group(tsh_collective op) {
    return tshi_fail(TSH_ERR_ARGUMENT, "%s: group is NULL", names[op]);
}

tsh_status tsh_all_reduce(tsh_group *group, tsh_tensor *tensor, tsh_reduce_op op) {
    if (!group) return no_group(TSH_OP_ALL_REDUCE);
    tshi_call call = {.op = TSH_OP_ALL_REDUCE, .reduce = op};
    call.failed = check_tensor(group, call.op, tensor, "tensor");
    if (call.failed == TSH_OK) {
        call.dtype = tensor->dtype;
        call.count = tensor->numel;
        call.in = call.out = tshi_data(tensor);
        call.failed = check_reduction(group, call.op, call.dtype, op);
    }
    return run(group, &call);
}

static tsh_status all_gather_check(tsh_group *group, const tsh_tensor *out, const tsh_tensor *in, tshi_call *call) {
    tsh_status status = check_pair(group, call->op, out, in);
    if (status == TSH_OK && !call->counts) {
        call->counts = group->counts;
        status = balanced(group, call->op, out, group->counts);
    }
    if (status == TSH_OK) status = check_counts(group, call->op, call->counts, out->numel, in->numel);
    if (status != TSH_OK) return status;
    call->dtype = out->dtype;
    call->count = out->numel;
    call->in = tshi_data(in);
    call->out = tshi_data(out);
    return check_overlap(call->op, out, in, call->in, part_start(group, out, call->counts));
}

tsh_status tsh_all_gather_into_tensor(tsh_group *group, tsh_tensor *out, const tsh_tensor *in, const int64_t *counts) {
    if (!group) return no_group(TSH_OP_ALL_GATHER);
    tshi_call call = {.op = TSH_OP_ALL_GATHER, .counts = counts};
    call.failed = all_gather_check(group, out, in, &call);
    return run(group, &call);
}

static tsh_status reduce_scatter_check(tsh_group *group, const tsh_tensor *out, const tsh_tensor *in, tshi_call *call) {
    tsh_status status = check_pair(group, call->op, out, in);
    if (status == TSH_OK) status = check_reduction(group, call->op, in->dtype, call->reduce);
    if (status == TSH_OK && !call->counts) {
        call->counts = group->counts;
        status = balanced(group, call->op, in, group->counts);
    }
    if (status == TSH_OK) status = check_counts(group, call->op, call->counts, in->numel, out->numel);
    if (status != TSH_OK) return status;
    call->dtype = in->dtype;
    call->count = in->numel;
    call->in = tshi_data(in);
    call->out = tshi_data(out);
    return check_overlap(call->op, out, in, call->out, part_start(group, in, call->counts));
}

tsh_status tsh_reduce_scatter_tensor(tsh_group *group, tsh_tensor *out, const tsh_tensor *in, tsh_reduce_op op,
                                     const int64_t *counts) {
    if (!group) return no_group(TSH_OP_REDUCE_SCATTER);
    tshi_call call = {.op = TSH_OP_REDUCE_SCATTER, .reduce = op, .counts = counts};
    call.failed = reduce_scatter_check(group, out, in, &call);
    return run(group, &call);
}

tsh_status tsh_broadcast(tsh_group *group, tsh_tensor *tensor, int root) {
    if (!group) return no_group(TSH_OP_BROADCAST);
    tshi_call call = {.op = TSH_OP_BROADCAST, .root = root};
    call.failed = check_tensor(group, call.op, tensor, "tensor");
    if (call.failed == TSH_OK && (root < 0 || root >= group->size)) {
        call.failed = tshi_fail(TSH_ERR_RANGE, "broadcast: root %d in a group of %d", root, group->size);
    }
    if (call.failed == TSH_OK) {
        call.dtype = tensor->dtype;
        call.count = tensor->numel;
        call.in = call.out = tshi_data(tensor);
    }
    return run(group, &call);
}

static tsh_status all_to_all_check(tsh_group *group, const tsh_tensor *out, const tsh_tensor *in, tshi_call *call) {
    tsh_status status = check_pair(group, call->op, out, in);
    if (status == TSH_OK && !call->in_counts) {
        call->in_counts = group->counts;
        status = equal_parts(group, in, "in", group->counts);
    }
    if (status == TSH_OK && !call->out_counts) {
        call->out_counts = group->counts + group->size;
        status = equal_parts(group, out, "out", group->counts + group->size);
    }
    if (status == TSH_OK) {
        status = check_counts(group, call->op, call->in_counts, in->numel, call->in_counts[group->rank]);
    }
    if (status == TSH_OK) {
        status = check_counts(group, call->op, call->out_counts, out->numel, call->out_counts[group->rank]);
    }
    if (status != TSH_OK) return status;
    call->dtype = in->dtype;
    call->in = tshi_data(in);
    call->out = tshi_data(out);
    return check_overlap(call->op, out, in, NULL, NULL);
}

tsh_status tsh_all_to_all(tsh_group *group, tsh_tensor *out, const int64_t *out_counts, const tsh_tensor *in,
                          const int64_t *in_counts) {
    if (!group) return no_group(TSH_OP_ALL_TO_ALL);
    tshi_call call = {.op = TSH_OP_ALL_TO_ALL, .in_counts = in_counts, .out_counts = out_counts};
    call.failed = all_to_all_check(group, out, in, &call);
    tsh_status status = run(group, &call);
    if (status == TSH_OK) {
        int64_t sent = in->numel - call.in_counts[group->rank];
        group->stats.bytes[call.op] += (uint64_t)sent * tsh_dtype_size(in->dtype);
    }
    return status;
}

tsh_status tsh_barrier(tsh_group *group) {
    if (!group) return no_group(TSH_OP_BARRIER);
    tshi_call call = {.op = TSH_OP_BARRIER};
    return run(group, &call);
}
