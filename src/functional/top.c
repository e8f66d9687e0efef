/* The largest elements along a dim, which may be sharded: each rank contributes its own largest. */
#include "functional/functional.h"

static const tsh_rule topk_rules[] = {
    {{TSH_AS_R}, TSH_AS_R}, {{TSH_AS_OTHER}, TSH_AS_OTHER}, {{TSH_AS_DIM}, TSH_AS_R},
    {{TSH_AS_L}, TSH_AS_L}, {{TSH_ROW_END}, TSH_ROW_END},
};

typedef struct topk_params {
    int dim, padding; /* padding: named, so that initializers clear it */
    int64_t most;
    tsh_tensor *indices; /* made by forward, owned by the tape */
} topk_params;

/* Candidates are pairs of 64 bits. */
static tsh_status candidates_new(const tsh_tensor *x, int64_t n, tsh_tensor **out) {
    return tshi_tensor_scratch(x->mesh, TSH_INT64, 2 * n, out);
}

/* Merges the lists of the ranks along an axis. */
static tsh_status merge_along(const tsh_tensor *x, const tshi_axis *axis, const tshi_around *a, int64_t most,
                              tsh_tensor *list) {
    tsh_device *device = tshi_device_of(x);
    tsh_tensor *all = NULL;
    tsh_status status = candidates_new(x, axis->size * a->outer * most * a->inner, &all);
    if (status != TSH_OK) return status;
    status = tsh_all_gather_into_tensor(axis->group, list, all, NULL);
    if (status == TSH_OK)
        device->ops->top.merge(device, axis->size, a->outer, most, a->inner, tshi_data(all), tshi_data(list));
    tshi_tensor_release(all);
    return status;
}

tsh_status tshi_top_candidates(const tsh_tensor *x, int dim, int64_t most, tsh_tensor **out) {
    tsh_device *device = tshi_device_of(x);
    tshi_around a = tshi_around_dim(x, dim);
    unsigned axes = tshi_axes_splitting(x, dim);
    tsh_status status = candidates_new(x, a.outer * most * a.inner, out);
    if (status != TSH_OK) return status;
    int64_t start = tshi_shape_start(x->mesh, &x->shape, x->layout, dim);
    device->ops->top.find(device, x->dtype, a.outer, a.n, a.inner, most, start, tshi_data(x), tshi_data(*out));
    for (int i = 0; i < x->mesh->axes && status == TSH_OK; i++) {
        if (axes >> i & 1u) status = merge_along(x, &x->mesh->axis[i], &a, most, *out);
    }
    if (status == TSH_OK) return TSH_OK;
    tshi_tensor_release(*out);
    *out = NULL;
    return status;
}

/* --- the operation ------------------------------------------------------------------------------------------------ */

static tsh_status topk_shape(const tsh_call *call, tsh_dtype *dtype, tsh_shape *out) {
    const topk_params *p = call->params;
    *out = call->in[0]->shape;
    int64_t n = out->global[p->dim];
    out->global[p->dim] = p->most;
    if (p->most >= 1 && p->most <= n) return tshi_check_floats(call, dtype);
    return tshi_fail(TSH_ERR_SHAPE, "the largest %lld of dim %d of %s; 1 to %lld are possible", (long long)p->most,
                     p->dim, TSHI_TENSOR_TEXT(call->in[0]), (long long)n);
}

/* Unpacks candidates to values and indices; `wide` is scratch for the values as doubles. */
static void unpack_top(const tsh_tensor *list, void *wide, const tsh_tensor *values, const tsh_tensor *indices) {
    tsh_device *device = tshi_device_of(values);
    const char *from = tshi_data(list);
    size_t half = sizeof(int64_t);
    device->ops->copy.strided(device, values->numel, half, from, 2 * half, wide, half);
    device->ops->copy.convert(device, values->numel, TSH_FLOAT64, wide, values->dtype, tshi_data(values));
    device->ops->copy.strided(device, values->numel, half, from + half, 2 * half, tshi_data(indices), half);
}

/* A call that is recomputed fills the indices tensor of its first run. */
static tsh_status make_indices(const tsh_call *call) {
    topk_params *p = call->params;
    const tsh_tensor *y = call->out;
    if (p->indices) return p->indices->storage ? TSH_OK : tshi_tensor_renew_storage(p->indices, NULL);
    tsh_status status = tshi_tensor_new(y->mesh, TSH_INT64, &y->shape, y->layout, &p->indices);
    return status == TSH_OK ? tshi_tape_own(call->tape, p->indices) : status;
}

static tsh_status topk_forward(tsh_call *call) {
    topk_params *p = call->params;
    tsh_tensor *y = call->out, *list = NULL;
    const tsh_tensor *wide = tsh_call_scratch(call, TSH_FLOAT64, y->numel);
    if (!wide) return TSH_ERR_MEMORY;
    tsh_status status = make_indices(call);
    if (status != TSH_OK) return status;
    call->saved[0] = tshi_tensor_retain(p->indices);
    status = tshi_top_candidates(call->in[0], p->dim, p->most, &list);
    if (status == TSH_OK) unpack_top(list, tshi_data(wide), y, p->indices);
    tshi_tensor_release(list);
    return status;
}

static tsh_status topk_backward(tsh_call *call) {
    const topk_params *p = call->params;
    const tsh_tensor *x = call->in[0];
    tshi_around a = tshi_around_dim(x, p->dim);
    const tsh_tensor *dx = tsh_call_grad(call, 0);
    if (!dx) return TSH_ERR_MEMORY;
    int64_t start = tshi_shape_start(x->mesh, &x->shape, x->layout, p->dim);
    tshi_device_of(x)->ops->top.backward(tshi_device_of(x), x->dtype, a.outer, a.n, a.inner, p->most, start,
                                         tshi_data(call->saved[0]), tshi_data(tsh_call_grad_out(call)), tshi_data(dx));
    return TSH_OK;
}

#define TOP_OP(name)                                                                                                   \
    {                                                                                                                  \
        name, topk_rules, topk_shape, topk_forward, topk_backward,                                                     \
            .params_size = sizeof(topk_params), .has_dim = true, .by_element = true, .reads_no_input = true            \
    }
static const tsh_op topk_op = TOP_OP("topk"), max_op = TOP_OP("max"), min_op = TOP_OP("min");

static tsh_tensor *apply_top(tsh_tape *tape, const tsh_op *op, tsh_tensor *x, int64_t k, int dim,
                             tsh_tensor **indices) {
    topk_params p = {.dim = dim, .most = k};
    if (indices) *indices = NULL;
    tsh_tensor *values = tshi_apply(tape, op, 1, &x, &p);
    if (values && indices) *indices = p.indices;
    return values;
}

tsh_tensor *tsh_topk(tsh_tape *tape, tsh_tensor *x, int64_t k, int dim, tsh_tensor **indices) {
    return apply_top(tape, &topk_op, x, k, dim, indices);
}

/* --- the largest or smallest element ------------------------------------------------------------------------------ */

/* x without dim, which has size 1. */
static tsh_tensor *without_dim(tsh_tape *tape, tsh_tensor *x, int dim) {
    int64_t shape[TSH_MAX_DIMS];
    if (!x) return NULL;
    int ndim = x->shape.ndim, at = dim < 0 ? dim + ndim : dim;
    for (int d = 0; d < ndim; d++) shape[d < at ? d : d - (d > at)] = x->shape.global[d];
    return tsh_reshape(tape, x, ndim - 1, shape);
}

tsh_tensor *tsh_argmax(tsh_tape *tape, tsh_tensor *x, int dim) {
    tsh_tensor *indices = NULL;
    bool recording = tsh_tape_set_recording(tape, false);
    tsh_topk(tape, x, 1, dim, &indices);
    indices = without_dim(tape, indices, dim);
    tsh_tape_set_recording(tape, recording);
    return indices;
}

static tsh_tensor *largest_along(tsh_tape *tape, const tsh_op *op, tsh_tensor *x, int dim, tsh_tensor **indices) {
    tsh_tensor *y = without_dim(tape, apply_top(tape, op, x, 1, dim, indices), dim);
    if (indices) *indices = y ? without_dim(tape, *indices, dim) : NULL;
    return y;
}

static tsh_tensor *largest(tsh_tape *tape, const tsh_op *op, tsh_tensor *x, int dim, tsh_tensor **indices) {
    if (dim != TSH_ALL_DIMS || !tshi_tape_ready(tape, op->name, 1, &x)) return largest_along(tape, op, x, dim, indices);
    if (indices) {
        *indices = NULL;
        return tshi_tape_fail(tape, TSH_ERR_ARGUMENT, "%s: indices are along one dim, not all", op->name);
    }
    for (int d = x->shape.ndim - 1; x && d >= 0; d--) x = largest_along(tape, op, x, d, NULL);
    return x;
}

tsh_tensor *tsh_max(tsh_tape *tape, tsh_tensor *x, int dim, tsh_tensor **indices) {
    return largest(tape, &max_op, x, dim, indices);
}

tsh_tensor *tsh_min(tsh_tape *tape, tsh_tensor *x, int dim, tsh_tensor **indices) {
    return tsh_scale(tape, largest(tape, &min_op, tsh_scale(tape, x, -1), dim, indices), -1);
}
