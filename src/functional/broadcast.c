/* Sums and products of two tensors of different shapes, by NumPy's rule: dims are aligned at the end, and a size of 1
 * is repeated. */
#include "functional/broadcast.h"

#include <string.h>

typedef struct broadcast_params {
    double factor; /* add, sub: of the second input */
} broadcast_params;

/* --- rules -------------------------------------------------------------------------------------------------------- */

static const tshi_rule sum_rules[] = {
    {{TSHI_R, TSHI_R}, TSHI_R},     {{TSHI_ANY, TSHI_ANY}, TSHI_ANY}, {{TSHI_ANY, TSHI_L}, TSHI_ANY},
    {{TSHI_L, TSHI_ANY}, TSHI_ANY}, {{TSHI_P, TSHI_P}, TSHI_P},       {{TSHI_L, TSHI_L}, TSHI_L},
    {{TSHI_END}, TSHI_END},
};
static const tshi_rule product_rules[] = {
    {{TSHI_HAS_P, TSHI_COPY}, TSHI_P}, {{TSHI_COPY, TSHI_HAS_P}, TSHI_P},
    {{TSHI_R, TSHI_R}, TSHI_R},        {{TSHI_ANY, TSHI_ANY}, TSHI_ANY},
    {{TSHI_ANY, TSHI_L}, TSHI_ANY},    {{TSHI_L, TSHI_ANY}, TSHI_ANY},
    {{TSHI_L, TSHI_L}, TSHI_L},        {{TSHI_END}, TSHI_END},
};

/* A dim that the output is split along splits the inputs that have its size there; an input that is repeated along it
 * is used whole. */
static bool row_holds(const tshi_node *call, const tshi_rule *row, int dim) {
    int64_t a = call->in[0]->shape.global[dim], b = call->in[1]->shape.global[dim], wide = a == 1 ? b : a;
    return (row->in[0] == TSHI_ANY) == (a == wide) && (row->in[1] == TSHI_ANY) == (b == wide);
}

static tsh_status broadcast_shape(const tshi_node *call, tsh_dtype *dtype, tshi_shape *out) {
    const tshi_shape *a = &call->in[0]->shape, *b = &call->in[1]->shape;
    *out = *a;
    for (int d = 0; d < a->ndim; d++) {
        if (a->global[d] == 1) out->global[d] = b->global[d];
        if (b->global[d] == 1 || b->global[d] == out->global[d]) continue;
        return tshi_check_fails(call->in[0], call->in[1], "sizes that are equal or 1 wanted, aligned at the last dim");
    }
    return tshi_check_floats(call, dtype);
}

/* --- repeating and summing ---------------------------------------------------------------------------------------- */

/* A run of dims, seen as one, that is repeated n times or summed over. */
typedef struct run {
    int64_t outer, n, inner;
    bool sums;
} run;

/* The last run of dims in which the shape differs from `to`, where one of them has ones; the shape becomes `to` there.
 * False when they are equal. */
static bool next_run(int ndim, int64_t *shape, const int64_t *to, run *r) {
    int end = ndim;
    while (end > 0 && shape[end - 1] == to[end - 1]) end--;
    if (end == 0) return false;
    int start = end;
    r->sums = shape[end - 1] != 1;
    while (start > 0 && shape[start - 1] != to[start - 1]) start--;
    r->n = tshi_dims_between(r->sums ? shape : to, start, end);
    r->outer = tshi_dims_between(shape, 0, start);
    r->inner = tshi_dims_between(shape, end, ndim);
    if (r->inner == 0) r->outer = 0; /* nothing loops over an n that may then be as large as it likes */
    for (int d = start; d < end; d++) shape[d] = to[d];
    return true;
}

/* Data of shape `from` repeated, or summed and scaled, to shape `to`: *out is a new tensor on like's mesh, or NULL where
 * the shapes are equal. */
static tsh_status stretch(const tsh_tensor *like, const int64_t *from, const int64_t *to, double scale,
                          const void *data, tsh_tensor **out) {
    int64_t shape[TSH_MAX_DIMS];
    tsh_device *device = tshi_device_of(like);
    const tshi_sum_ops *ops = &device->ops->sum[like->dtype];
    run r;
    *out = NULL;
    memcpy(shape, from, sizeof shape);
    while (next_run(like->shape.ndim, shape, to, &r)) {
        tsh_tensor *next;
        tsh_status status = tshi_tensor_scratch(like->mesh, like->dtype, r.outer * (r.sums ? 1 : r.n) * r.inner, &next);
        if (status == TSH_OK && r.sums) {
            ops->over_dim(device, r.outer, r.n, r.inner, scale, data, tshi_data(next));
        } else if (status == TSH_OK) {
            device->ops->copy.zero(device, tsh_tensor_local_nbytes(next), tshi_data(next));
            ops->over_dim_backward(device, r.outer, r.n, r.inner, scale, data, tshi_data(next));
        }
        tsh_tensor_release(*out);
        *out = next;
        if (status != TSH_OK) return status;
        data = tshi_data(next);
        scale = 1;
    }
    return TSH_OK;
}

static tsh_status repeat(const tsh_tensor *x, const tsh_tensor *like, tsh_tensor **out) {
    return stretch(x, x->shape.local, like->shape.local, 1, tshi_data(x), out);
}

static bool is_repeated(const tsh_tensor *x, const tsh_tensor *out) {
    return memcmp(x->shape.local, out->shape.local, sizeof(int64_t) * (size_t)out->shape.ndim) != 0;
}

/* Adds factor times `values`, of the output's shape, to the gradient of input i, summed where the input is repeated. */
static tsh_status add_gradient(const tshi_node *call, int i, double factor, tsh_tensor *values) {
    const tsh_tensor *x = call->in[i];
    tsh_tensor *sum = NULL;
    double beta;
    if (!is_repeated(x, call->out) && factor == 1) return tshi_grad_adopt(call, i, values);
    tsh_status status = stretch(x, call->out->shape.local, x->shape.local, factor, tshi_data(values), &sum);
    if (status == TSH_OK && sum) {
        status = tshi_grad_adopt(call, i, sum);
    } else if (status == TSH_OK) {
        tsh_tensor *dx = tshi_grad_beta(call, i, &beta);
        if (!dx) return TSH_ERR_MEMORY;
        tsh_device *device = tshi_device_of(x);
        device->ops->elementwise[x->dtype].axpby(device, x->numel, factor, tshi_data(values), beta, tshi_data(dx),
                                                 tshi_data(dx));
    }
    tsh_tensor_release(sum);
    return status;
}

/* --- add, sub: z = x + factor y ----------------------------------------------------------------------------------- */

/* Both inputs as they are where they have the output's shape, else repeated. */
static tsh_status repeat_both(const tshi_node *call, tsh_tensor *wide[2], const void *data[2]) {
    tsh_status status = TSH_OK;
    for (int i = 0; i < 2; i++) wide[i] = NULL;
    for (int i = 0; i < 2 && status == TSH_OK; i++) {
        status = repeat(call->in[i], call->out, &wide[i]);
        data[i] = tshi_data(wide[i] ? wide[i] : call->in[i]);
    }
    return status;
}

static tsh_status sum_forward(tshi_node *call) {
    const broadcast_params *p = call->params;
    const void *data[2];
    tsh_tensor *wide[2], *z = call->out;
    tsh_device *device = tshi_device_of(z);
    tsh_status status = repeat_both(call, wide, data);
    if (status == TSH_OK)
        device->ops->elementwise[z->dtype].axpby(device, z->numel, 1, data[0], p->factor, data[1], tshi_data(z));
    for (int i = 0; i < 2; i++) tsh_tensor_release(wide[i]);
    return status;
}

static tsh_status sum_backward(tshi_node *call) {
    const broadcast_params *p = call->params;
    tsh_status status = TSH_OK;
    for (int i = 0; i < 2 && status == TSH_OK; i++) {
        if (tshi_wants_grad(call, i)) status = add_gradient(call, i, i ? p->factor : 1, tshi_grad_out(call));
    }
    return status;
}

/* --- mul ---------------------------------------------------------------------------------------------------------- */

static tsh_status product_forward(tshi_node *call) {
    const void *data[2];
    tsh_tensor *wide[2], *z = call->out;
    tsh_device *device = tshi_device_of(z);
    tsh_status status = repeat_both(call, wide, data);
    if (status == TSH_OK) device->ops->elementwise[z->dtype].mul(device, z->numel, data[0], data[1], 0, tshi_data(z));
    for (int i = 0; i < 2; i++) tsh_tensor_release(wide[i]);
    return status;
}

/* dx = dz y, summed where x is repeated. */
static tsh_status product_gradient(const tshi_node *call, int i) {
    tsh_tensor *dz = tshi_grad_out(call), *wide = NULL, *product = NULL;
    const tsh_tensor *other = call->in[1 - i];
    tsh_device *device = tshi_device_of(dz);
    tsh_status status = repeat(other, call->out, &wide);
    if (status == TSH_OK) status = tshi_tensor_scratch(dz->mesh, dz->dtype, dz->numel, &product);
    if (status == TSH_OK) {
        device->ops->elementwise[dz->dtype].mul(device, dz->numel, tshi_data(dz), tshi_data(wide ? wide : other), 0,
                                                tshi_data(product));
        status = add_gradient(call, i, 1, product);
    }
    tsh_tensor_release(wide);
    tsh_tensor_release(product);
    return status;
}

static tsh_status product_backward(tshi_node *call) {
    tsh_status status = TSH_OK;
    for (int i = 0; i < 2 && status == TSH_OK; i++) {
        if (tshi_wants_grad(call, i)) status = product_gradient(call, i);
    }
    return status;
}

/* --- the calls ---------------------------------------------------------------------------------------------------- */

static const tshi_op add_op = {"add",
                               sum_rules,
                               broadcast_shape,
                               sum_forward,
                               sum_backward,
                               .params_size = sizeof(broadcast_params),
                               .row_holds = row_holds};
static const tshi_op sub_op = {"sub",
                               sum_rules,
                               broadcast_shape,
                               sum_forward,
                               sum_backward,
                               .params_size = sizeof(broadcast_params),
                               .row_holds = row_holds};
static const tshi_op mul_op = {"mul",           product_rules,    broadcast_shape,
                               product_forward, product_backward, .row_holds = row_holds};

bool tshi_broadcasts(const tsh_tensor *x, const tsh_tensor *y) {
    if (!x || !y) return false;
    bool equal = x->shape.ndim == y->shape.ndim;
    for (int d = 0; equal && d < x->shape.ndim; d++) equal = x->shape.global[d] == y->shape.global[d];
    return !equal;
}

/* x with dims of size 1 before its own. */
static tsh_tensor *align(tsh_tape *tape, tsh_tensor *x, int ndim) {
    int64_t shape[TSH_MAX_DIMS];
    int more = ndim - x->shape.ndim;
    if (more == 0) return x;
    for (int d = 0; d < ndim; d++) shape[d] = d < more ? 1 : x->shape.global[d - more];
    return tsh_reshape(tape, x, ndim, shape);
}

tsh_tensor *tshi_broadcast(tsh_tape *tape, tsh_tensor *x, tsh_tensor *y, tshi_binary f) {
    static const tshi_op *const ops[] = {[TSHI_ADD] = &add_op, [TSHI_SUB] = &sub_op, [TSHI_MUL] = &mul_op};
    broadcast_params params = {f == TSHI_SUB ? -1 : 1};
    if (!tshi_tape_ready(tape, ops[f]->name, 2, (tsh_tensor *[]){x, y})) return NULL;
    int ndim = x->shape.ndim > y->shape.ndim ? x->shape.ndim : y->shape.ndim;
    tsh_tensor *in[] = {align(tape, x, ndim), align(tape, y, ndim)};
    return tshi_apply(tape, ops[f], 2, in, f == TSHI_MUL ? NULL : &params);
}
