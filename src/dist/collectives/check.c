/* What a collective's arguments must be, from its descriptor: tensors, reductions, counts and overlaps. */
#include "dist/collectives/collectives.h"

const char *tshi_reduction_name(tsh_reduce_op reduce) {
    static const char *const reductions[TSH_REDUCE_OP_COUNT] = {"sum", "prod", "min", "max",
                                                                "avg", "band", "bor", "bxor"};
    return (int)reduce >= 0 && reduce < TSH_REDUCE_OP_COUNT ? reductions[reduce] : "unknown reduction";
}

bool tshi_reduces(tsh_dtype dtype, tsh_reduce_op reduce) {
    bool integer = dtype == TSH_INT32 || dtype == TSH_INT64 || dtype == TSH_UINT8;
    switch (reduce) {
    case TSH_REDUCE_SUM:
    case TSH_REDUCE_PROD: return true;
    case TSH_REDUCE_MIN:
    case TSH_REDUCE_MAX: return !tshi_dtype_is_complex(dtype);
    case TSH_REDUCE_AVG: return !integer;
    case TSH_REDUCE_BAND:
    case TSH_REDUCE_BOR:
    case TSH_REDUCE_BXOR: return integer;
    default: return false;
    }
}

tsh_status tshi_check_tensor(const tsh_group *group, tsh_collective op, const tsh_tensor *tensor, const char *what) {
    const char *name = tsh_collective_name(op);
    if (!tensor || !tensor->storage) return tshi_tensor_check(tensor, name, what);
    if (tensor->mesh->world != group->world) {
        return tshi_fail(TSH_ERR_ARGUMENT, "%s: %s belongs to another world", name, what);
    }
    return tshi_tensor_materialize(tensor);
}

static tsh_status check_reduction(const tshi_group_ops *backend, tsh_collective op, tsh_dtype dtype,
                                  tsh_reduce_op reduce) {
    const char *name = tsh_collective_name(op), *type = tsh_dtype_name(dtype);
    if ((int)reduce < 0 || reduce >= TSH_REDUCE_OP_COUNT) {
        return tshi_fail(TSH_ERR_ARGUMENT, "%s: %d is not a reduction", name, (int)reduce);
    }
    if (tshi_reduces(dtype, reduce)) {
        if (!backend->reduces || backend->reduces(dtype, reduce)) return TSH_OK;
        return tshi_fail(TSH_ERR_UNSUPPORTED, "%s: %s has no %s of %s (see tsh_group_supports)", name, backend->name,
                         tshi_reduction_name(reduce), type);
    }
    if (reduce == TSH_REDUCE_MIN || reduce == TSH_REDUCE_MAX) {
        return tshi_fail(TSH_ERR_DTYPE, "%s: %s has no order, so neither min nor max", name, type);
    }
    return tshi_fail(TSH_ERR_DTYPE, "%s: %s is for %s, not for %s", name, tshi_reduction_name(reduce),
                     reduce == TSH_REDUCE_AVG ? "floats and complex numbers" : "integers", type);
}

/* The tensors of the sides that this rank has, of one dtype. */
static tsh_status check_tensors(const tsh_group *group, const tshi_collective *c, const tshi_arguments *a) {
    if (c->in == TSHI_WHOLE && c->out == TSHI_WHOLE) return tshi_check_tensor(group, a->op, a->in, "tensor");
    bool root = group->rank == a->root;
    tsh_status status = TSH_OK;
    if (a->out || root || c->receives == TSHI_ALL) status = tshi_check_tensor(group, a->op, a->out, "out");
    if (status == TSH_OK && (a->in || root || c->contributes == TSHI_ALL)) {
        status = tshi_check_tensor(group, a->op, a->in, "in");
    }
    if (status != TSH_OK || !a->in || !a->out || a->out->dtype == a->in->dtype) return status;
    return tshi_fail(TSH_ERR_DTYPE, "%s: out is %s, in is %s", c->name, tsh_dtype_name(a->out->dtype),
                     tsh_dtype_name(a->in->dtype));
}

/* The counts must add up to `whole`, and this rank's count must be `part`, the elements of its own tensor. */
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

static tsh_status balanced(const tsh_group *group, tsh_collective op, const tsh_tensor *whole, int64_t *counts) {
    if (whole->shape.ndim == 0) {
        return tshi_fail(TSH_ERR_SHAPE, "%s: the whole tensor has no dim 0 to split; counts are required",
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
        return tshi_fail(TSH_ERR_SHAPE, "all_to_all: %s has %lld elements, which is not a multiple of %d ranks", what,
                         (long long)tensor->numel, group->size);
    }
    for (int i = 0; i < group->size; i++) counts[i] = tensor->numel / group->size;
    return TSH_OK;
}

/* A call in place has exactly this rank's part, at `own`, as its other tensor; every other overlap is an error. own is
 * NULL where a call cannot be in place. */
static tsh_status check_overlap(tsh_collective op, const tsh_tensor *whole, const tsh_tensor *part, const void *own) {
    const char *a = tshi_data(whole), *b = tshi_data(part);
    size_t a_bytes = tsh_tensor_local_nbytes(whole), b_bytes = tsh_tensor_local_nbytes(part);
    if (!a_bytes || !b_bytes || a + a_bytes <= b || b + b_bytes <= a) return TSH_OK;
    if (own && b == own) return TSH_OK;
    return tshi_fail(TSH_ERR_ARGUMENT, "%s: in and out overlap%s", tsh_collective_name(op),
                     own ? " outside this rank's part" : "");
}

/* The caller's counts, or those of the balanced split of `whole`, or, on a rank without it, equal parts. */
static tsh_status resolve_counts(const tsh_group *group, const tshi_arguments *a, const tsh_tensor *whole,
                                 const tsh_tensor *part, tshi_comm_call *call) {
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

/* A whole, which in rooted calls only the root has to have, and a part of it on each rank. */
static tsh_status check_parts(const tsh_group *group, const tshi_arguments *a, bool gathers, tshi_comm_call *call) {
    const tsh_tensor *whole = gathers ? a->out : a->in, *part = gathers ? a->in : a->out;
    tsh_status status = resolve_counts(group, a, whole, part, call);
    if (status != TSH_OK || !whole) return status;
    size_t before = (size_t)tshi_sum(call->counts, group->rank) * tsh_dtype_size(whole->dtype);
    return check_overlap(a->op, whole, part, (const char *)tshi_data(whole) + before);
}

static tsh_status check_lists(const tsh_group *group, const tshi_arguments *a, tshi_comm_call *call) {
    int64_t *ins = group->counts, *outs = group->counts + group->size;
    tsh_status status = TSH_OK;
    call->in_counts = a->in_counts ? a->in_counts : ins;
    call->out_counts = a->counts ? a->counts : outs;
    if (!a->in_counts) status = equal_parts(group, a->in, "in", ins);
    if (status == TSH_OK && !a->counts) status = equal_parts(group, a->out, "out", outs);
    if (status == TSH_OK) {
        status = check_counts(group, a->op, call->in_counts, a->in->numel, call->in_counts[group->rank]);
    }
    if (status == TSH_OK) {
        status = check_counts(group, a->op, call->out_counts, a->out->numel, call->out_counts[group->rank]);
    }
    return status == TSH_OK ? check_overlap(a->op, a->out, a->in, NULL) : status;
}

static tsh_status check(const tsh_group *group, const tshi_arguments *a, tshi_comm_call *call) {
    const tshi_collective *c = &tshi_collectives[a->op];
    if (tshi_is_rooted(a->op) && (a->root < 0 || a->root >= group->size)) {
        return tshi_fail(TSH_ERR_RANGE, "%s: root %d in a group of %d", c->name, a->root, group->size);
    }
    if (c->in == TSHI_NONE) return TSH_OK;
    tsh_status status = check_tensors(group, c, a);
    if (status != TSH_OK) return status;
    call->dtype = a->in ? a->in->dtype : a->out->dtype;
    call->in = a->in ? tshi_data(a->in) : NULL;
    if (c->in == TSHI_LISTED)
        status = check_lists(group, a, call);
    else if (c->in != c->out)
        status = check_parts(group, a, c->in == TSHI_PART, call);
    else
        call->count = a->in->numel;
    return status == TSH_OK && c->reduces ? check_reduction(group->ops, a->op, call->dtype, a->reduce) : status;
}

void tshi_check_call(const tsh_group *group, const tshi_arguments *a, tshi_comm_call *call) {
    call->reduce = a->reduce;
    call->root = a->root;
    call->on_device = group->world->device != group->world->host;
    call->failed = check(group, a, call);
    if (call->failed == TSH_OK) call->out = tshi_data_to_write(a->out);
}
