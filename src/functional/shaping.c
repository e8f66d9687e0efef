/* Reshape, slice, concat. */
#include "autograd/run/moves.h"
#include "functional/functional.h"

#include <string.h>

/* --- reshape ------------------------------------------------------------------------------------------------------ */

/* True when each rank's slice of n items of `a` elements equals its slice of m items of `b` elements. */
static bool same_slices(int64_t n, int64_t a, int64_t m, int64_t b, tshi_parts parts) {
    for (int r = 0; r < parts.count; r++) {
        int64_t start[2], length[2];
        tshi_parts_split(parts, n, r, &start[0], &length[0]);
        tshi_parts_split(parts, m, r, &start[1], &length[1]);
        if (start[0] * a != start[1] * b || length[0] * a != length[1] * b) return false;
    }
    return true;
}

/* The parts into which this axis, or all axes that shard dim d, cut it: if the finest cuts agree and are even, all do.
 * Count 0: uneven. */
static tshi_parts cuts(const tsh_tensor *x, int axis, int d) {
    int parts = 1, axes = 0;
    bool weighted = false;
    for (int a = 0; a < x->mesh->axes; a++) {
        if (!tshi_layout_splits(x->layout[a], d)) continue;
        parts *= x->mesh->axis[a].size;
        weighted = weighted || x->mesh->axis[a].weights;
        axes++;
    }
    if (axes > 1) return (tshi_parts){.count = weighted || x->shape.global[d] % parts ? 0 : parts};
    return tshi_axis_parts(&x->mesh->axis[axis]);
}

/* True when another axis splits a later dim e that becomes the same output dim, because dims d up to e have size 1. */
static bool gives_way(const tsh_tensor *x, int axis, int d) {
    for (int a = 0; a < x->mesh->axes; a++) {
        const tsh_layout *l = &x->layout[a];
        bool later = a != axis && l->kind == TSH_KIND_SHARD && l->dim > d;
        if (later && tshi_dims_between(x->shape.global, d, l->dim) == 1) return true;
    }
    return false;
}

/* Dim d of x is dim e of y. */
static bool is_dim(const tsh_shape *x, int d, const tsh_shape *y, int e) {
    return x->global[d] == y->global[e] && tshi_dims_between(x->global, 0, d) == tshi_dims_between(y->global, 0, e) &&
           tshi_dims_between(x->global, d + 1, x->ndim) == tshi_dims_between(y->global, e + 1, y->ndim);
}

/* True when another axis splits an earlier dim that becomes output dim e, because the dims from there up to d have size
 * 1. */
static bool is_taken(const tsh_tensor *x, int axis, int d, const tsh_shape *y, int e) {
    for (int a = 0; a < x->mesh->axes; a++) {
        const tsh_layout *l = &x->layout[a];
        if (a != axis && l->kind == TSH_KIND_SHARD && l->dim < d && is_dim(&x->shape, l->dim, y, e)) return true;
    }
    return false;
}

/* The output dim gets the input dim's units (without units, each index is one), or a split without units if that makes
 * the same parts. */
static bool reshape_map_split(const tsh_call *call, int axis, tsh_layout *split) {
    const tsh_shape *x = &call->in[0]->shape, *y = call->params;
    int d = split->dim;
    tshi_parts parts = cuts(call->in[0], axis, d);
    int64_t n = x->global[d], before = tshi_dims_between(x->global, 0, d),
            inner = tshi_dims_between(x->global, d + 1, x->ndim);
    int64_t units = split->units ? split->units : n;
    for (int e = 0; e < y->ndim; e++) {
        int64_t m = y->global[e], rest = tshi_dims_between(y->global, e + 1, y->ndim);
        if (tshi_dims_between(y->global, 0, e) != before || is_taken(call->in[0], axis, d, y, e)) continue;
        split->dim = e;
        if (m == n && rest == inner) return true; /* the dim does not change */
        if (split->cuts || before == 0 || gives_way(call->in[0], axis, d)) continue;
        if (m > 0 && units > 0 && m % units == 0 && (!split->blocks || m % split->blocks == 0)) {
            split->units = units;
            return true;
        }
        if (!split->units && parts.count > 0 && same_slices(n, inner, m, rest, parts)) return true;
    }
    return false;
}

/* Computes a size of -1 from the others. */
static tsh_status reshape_resolve(const tsh_tensor *x, int ndim, const int64_t *sizes, tsh_shape *out) {
    int64_t have = tshi_dims_between(x->shape.global, 0, x->shape.ndim), known;
    int free_dim = -1;
    tsh_status status = TSH_OK;
    if (!sizes && ndim > 0) return tshi_fail(TSH_ERR_ARGUMENT, "shape is NULL");
    if (ndim < 0 || ndim > TSH_MAX_DIMS)
        return tshi_fail(TSH_ERR_SHAPE, "%d dims; 0 to %d are possible", ndim, TSH_MAX_DIMS);
    out->ndim = ndim;
    for (int d = 0; d < ndim; d++) {
        out->global[d] = sizes[d];
        if (sizes[d] != -1) continue;
        if (free_dim >= 0) return tshi_fail(TSH_ERR_SHAPE, "two sizes of -1");
        free_dim = d;
        out->global[d] = 1;
    }
    status = tshi_dims_product(ndim, out->global, &known);
    if (status != TSH_OK) return status;
    if (free_dim >= 0 && known > 0 && have % known == 0) out->global[free_dim] = have / known;
    if (tshi_dims_between(out->global, 0, ndim) == have) return TSH_OK;
    return tshi_fail(TSH_ERR_SHAPE, "%s cannot become %s", TSHI_TENSOR_TEXT(x), TSHI_DIMS_TEXT(ndim, sizes));
}

static tsh_status reshape_shape(const tsh_call *call, tsh_dtype *dtype, tsh_shape *out) {
    *out = *(const tsh_shape *)call->params;
    *dtype = call->in[0]->dtype;
    return TSH_OK;
}

static const tsh_op reshape_op = {"reshape",
                                  tshi_linear_rules,
                                  reshape_shape,
                                  NULL,
                                  tshi_pass_gradient,
                                  .map_split = reshape_map_split,
                                  .params_size = sizeof(tsh_shape),
                                  .views = true,
                                  .reads_no_input = true,
                                  .by_element = true};

tsh_tensor *tsh_reshape(tsh_tape *tape, tsh_tensor *x, int ndim, const int64_t *shape) {
    tsh_shape wanted = {0};
    if (!tshi_tape_ready(tape, "reshape", 1, &x)) return NULL;
    tsh_status status = reshape_resolve(x, ndim, shape, &wanted);
    if (tshi_tape_check(tape, status, "reshape") != TSH_OK) return NULL;
    return tshi_apply(tape, &reshape_op, 1, &x, &wanted);
}

/* --- slice -------------------------------------------------------------------------------------------------------- */

static const tsh_rule slice_rules[] = {
    {{TSH_AS_R}, TSH_AS_R}, {{TSH_AS_OTHER}, TSH_AS_OTHER}, {{TSH_AS_P}, TSH_AS_P},
    {{TSH_AS_L}, TSH_AS_L}, {{TSH_ROW_END}, TSH_ROW_END},
};

typedef struct slice_params {
    int dim, padding; /* padding: named, so that initializers clear it */
    int64_t start, length;
} slice_params;

static tsh_status slice_shape(const tsh_call *call, tsh_dtype *dtype, tsh_shape *out) {
    const slice_params *p = call->params;
    *dtype = call->in[0]->dtype;
    *out = call->in[0]->shape;
    int64_t n = out->global[p->dim];
    if (p->start < 0 || p->length < 0 || p->start > n || p->length > n - p->start) {
        return tshi_fail(TSH_ERR_SHAPE, "[%lld, %lld + %lld) of dim %d of %s", (long long)p->start, (long long)p->start,
                         (long long)p->length, p->dim, TSHI_TENSOR_TEXT(call->in[0]));
    }
    out->global[p->dim] = p->length;
    return TSH_OK;
}

static tsh_status slice_forward(tsh_call *call) {
    const slice_params *p = call->params;
    tshi_part_copy(call->in[0], p->dim, p->start, call->out->shape.local[p->dim], tshi_data(call->out), true);
    return TSH_OK;
}

/* dx[start, start + length) += dy along dim */
static tsh_status slice_backward(tsh_call *call) {
    const slice_params *p = call->params;
    const tsh_tensor *dy = tsh_call_grad_out(call);
    double beta;
    const tsh_tensor *dx = tshi_grad_beta(call, 0, &beta);
    if (!dx) return TSH_ERR_MEMORY;
    tsh_device *device = tshi_device_of(dx);
    int64_t length = dy->shape.local[p->dim];
    if (beta == 0) {
        device->ops->copy.zero(device, tsh_tensor_local_nbytes(dx), tshi_data(dx));
        tshi_part_copy(dx, p->dim, p->start, length, tshi_data(dy), false);
        return TSH_OK;
    }
    const tsh_tensor *sum = tsh_call_scratch(call, dx->dtype, dy->numel);
    if (!sum) return TSH_ERR_MEMORY;
    tshi_part_copy(dx, p->dim, p->start, length, tshi_data(sum), true);
    device->ops->elementwise[dx->dtype].axpby(device, dy->numel, 1, tshi_data(dy), 1, tshi_data(sum), tshi_data(sum));
    tshi_part_copy(dx, p->dim, p->start, length, tshi_data(sum), false);
    return TSH_OK;
}

static const tsh_op slice_op = {"slice",           slice_rules,
                                slice_shape,       slice_forward,
                                slice_backward,    .params_size = sizeof(slice_params),
                                .has_dim = true,   .reads_no_input = true,
                                .by_element = true};

tsh_tensor *tsh_slice(tsh_tape *tape, tsh_tensor *x, int dim, int64_t start, int64_t length) {
    return tshi_apply(tape, &slice_op, 1, &x, &(slice_params){.dim = dim, .start = start, .length = length});
}

/* --- concat ------------------------------------------------------------------------------------------------------- */

typedef struct concat_params {
    int dim;
} concat_params;

static tsh_status concat_shape(const tsh_call *call, tsh_dtype *dtype, tsh_shape *out) {
    int dim = tshi_call_dim(call);
    *dtype = call->in[0]->dtype;
    *out = call->in[0]->shape;
    for (int i = 1; i < call->inputs; i++) {
        const tsh_shape *s = &call->in[i]->shape;
        bool fits = s->ndim == out->ndim && call->in[i]->dtype == *dtype;
        for (int d = 0; fits && d < s->ndim; d++) fits = d == dim || s->global[d] == out->global[d];
        if (!fits)
            return tshi_check_fails(call->in[0], call->in[i], "dtypes must be equal, and sizes except along dim");
        if (__builtin_add_overflow(out->global[dim], s->global[dim], &out->global[dim])) {
            return tshi_fail(TSH_ERR_OVERFLOW, "dim %d", dim);
        }
    }
    return TSH_OK;
}

static tsh_status concat_forward(tsh_call *call) {
    int dim = tshi_call_dim(call);
    int64_t at = 0;
    for (int i = 0; i < call->inputs; i++) {
        int64_t length = call->in[i]->shape.local[dim];
        tshi_part_copy(call->out, dim, at, length, tshi_data(call->in[i]), false);
        at += length;
    }
    return TSH_OK;
}

static tsh_status concat_backward(tsh_call *call) {
    int dim = tshi_call_dim(call);
    int64_t at = 0;
    tsh_status status = TSH_OK;
    for (int i = 0; i < call->inputs && status == TSH_OK; i++) {
        const tsh_tensor *x = call->in[i];
        int64_t start = at, length = x->shape.local[dim];
        tsh_tensor *part = NULL;
        at += length;
        if (!tsh_call_wants_grad(call, i)) continue;
        status = tshi_tensor_new(x->mesh, x->dtype, &x->shape, x->layout, &part);
        if (status != TSH_OK) return status;
        tshi_part_copy(tsh_call_grad_out(call), dim, start, length, tshi_data(part), true);
        status = tshi_grad_adopt(call, i, part);
        tshi_tensor_release(part);
    }
    return status;
}

static const tsh_op concat_op = {"concat",          slice_rules,
                                 concat_shape,      concat_forward,
                                 concat_backward,   .params_size = sizeof(concat_params),
                                 .has_dim = true,   .reads_no_input = true,
                                 .by_element = true};

tsh_tensor *tsh_concat(tsh_tape *tape, tsh_tensor *const *x, int count, int dim) {
    if (!tape) {
        tshi_tape_missing("concat");
        return NULL;
    }
    if (count < 1 || !x) {
        return tshi_tape_fail(tape, TSH_ERR_ARGUMENT, "concat: %d tensors%s; at least one is required", count,
                              x ? "" : " in an array that is NULL");
    }
    return tshi_apply(tape, &concat_op, count, (tsh_tensor **)x, &(concat_params){dim});
}
