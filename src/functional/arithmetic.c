/* Sums, differences, products and quotients of two tensors, which broadcast as in NumPy. Broadcast operands are never
 * stored. */
#include "functional/functional.h"

#include <string.h>

/* --- rules -------------------------------------------------------------------------------------------------------- */

static const tsh_rule add_rules[] = {
    {{TSH_AS_R, TSH_AS_R}, TSH_AS_R},     {{TSH_AS_ANY, TSH_AS_ANY}, TSH_AS_ANY}, {{TSH_AS_ANY, TSH_AS_L}, TSH_AS_ANY},
    {{TSH_AS_L, TSH_AS_ANY}, TSH_AS_ANY}, {{TSH_AS_P, TSH_AS_P}, TSH_AS_P},       {{TSH_AS_L, TSH_AS_L}, TSH_AS_L},
    {{TSH_ROW_END}, TSH_ROW_END},
};
static const tsh_rule product_rules[] = {
    {{TSH_HAS_P, TSH_AS_COPY}, TSH_AS_P},   {{TSH_AS_COPY, TSH_HAS_P}, TSH_AS_P}, {{TSH_AS_R, TSH_AS_R}, TSH_AS_R},
    {{TSH_AS_ANY, TSH_AS_ANY}, TSH_AS_ANY}, {{TSH_AS_ANY, TSH_AS_L}, TSH_AS_ANY}, {{TSH_AS_L, TSH_AS_ANY}, TSH_AS_ANY},
    {{TSH_AS_L, TSH_AS_L}, TSH_AS_L},       {{TSH_ROW_END}, TSH_ROW_END},
};
static const tsh_rule quotient_rules[] = {
    {{TSH_HAS_P, TSH_AS_COPY}, TSH_AS_P}, {{TSH_AS_R, TSH_AS_R}, TSH_AS_R},     {{TSH_AS_ANY, TSH_AS_ANY}, TSH_AS_ANY},
    {{TSH_AS_ANY, TSH_AS_L}, TSH_AS_ANY}, {{TSH_AS_L, TSH_AS_ANY}, TSH_AS_ANY}, {{TSH_AS_L, TSH_AS_L}, TSH_AS_L},
    {{TSH_ROW_END}, TSH_ROW_END},
};

static tsh_status binary_shape(const tsh_call *call, tsh_dtype *dtype, tsh_shape *out) {
    const tsh_shape *a = &call->in[0]->shape, *b = &call->in[1]->shape;
    *out = *a;
    for (int d = 0; d < a->ndim; d++) {
        if (a->global[d] == 1) out->global[d] = b->global[d];
        if (b->global[d] == 1 || b->global[d] == out->global[d]) continue;
        return tshi_check_fails(call->in[0], call->in[1], "sizes must be equal or 1, aligned at the last dim");
    }
    return tshi_check_floats(call, dtype);
}

/* --- elements ----------------------------------------------------------------------------------------------------- */

static bool is_repeated(const tsh_tensor *x, const tsh_tensor *out) {
    int d = 0;
    while (d < out->shape.ndim && x->shape.local[d] == out->shape.local[d]) d++;
    return d < out->shape.ndim;
}

/* z = f(x, y), with the shape of `like`, to which x and y broadcast. */
static void run_binary(tshi_binary f, const tsh_tensor *x, const tsh_tensor *y, const tsh_tensor *like, tsh_tensor *z) {
    tsh_device *device = tshi_device_of(like);
    tshi_overlay o;
    if (is_repeated(x, like) || is_repeated(y, like)) {
        o = tshi_overlay_of(&like->shape, &x->shape, &y->shape);
    } else {
        o.runs = 1; /* only run 0 is read; zeroing the others would take longer than a small sum */
        o.n[0] = like->numel;
        o.x[0] = o.y[0] = 1;
    }
    device->ops->elementwise[like->dtype].binary(device, f, &o, tshi_data(x), tshi_data(y), tshi_data(z));
}

/* --- gradients: summed over broadcast dims ------------------------------------------------------------------------ */

/* Finds the last run of dims in which the shape differs from `to`, which has size 1 there, as outer x n x inner
 * elements, and sets the shape to `to` there. False when they are equal. */
static bool next_run(int ndim, int64_t *shape, const int64_t *to, tshi_around *r) {
    int end = ndim;
    while (end > 0 && shape[end - 1] == to[end - 1]) end--;
    if (end == 0) return false;
    int start = end;
    while (start > 0 && shape[start - 1] != to[start - 1]) start--;
    *r = (tshi_around){tshi_dims_between(shape, 0, start), tshi_dims_between(shape, start, end),
                       tshi_dims_between(shape, end, ndim)};
    if (r->inner == 0) r->outer = 0; /* n may be huge where the part is empty: nothing loops over it then */
    for (int d = start; d < end; d++) shape[d] = to[d];
    return true;
}

/* *out = a new tensor, factor times `values` (of the shape of `like`) summed to x's shape; NULL if the shapes are
 * equal. */
static tsh_status sum_to(tsh_call *call, const tsh_tensor *x, const tsh_tensor *like, double factor, const void *values,
                         tsh_tensor **out) {
    int64_t shape[TSH_MAX_DIMS];
    tsh_device *device = tshi_device_of(x);
    tshi_around r;
    *out = NULL;
    memcpy(shape, like->shape.local, sizeof shape);
    while (next_run(like->shape.ndim, shape, x->shape.local, &r)) {
        *out = tsh_call_scratch(call, x->dtype, r.outer * r.inner);
        if (!*out) return TSH_ERR_MEMORY;
        device->ops->sum[x->dtype].over_dim(device, r.outer, r.n, r.inner, factor, values, tshi_data(*out));
        values = tshi_data(*out);
        factor = 1;
    }
    return TSH_OK;
}

/* Adds factor times `values`, of the output's shape, to the gradient of input i, summed over the input's broadcast
 * dims. */
static tsh_status add_input_gradient(tsh_call *call, int i, double factor, tsh_tensor *values) {
    const tsh_tensor *x = call->in[i];
    tsh_tensor *sum = NULL;
    double beta;
    if (factor == 1 && !is_repeated(x, call->out)) return tshi_grad_adopt(call, i, values);
    tsh_status status = sum_to(call, x, call->out, factor, tshi_data(values), &sum);
    if (status != TSH_OK) return status;
    if (sum) return tshi_grad_adopt(call, i, sum);
    tsh_tensor *dx = tshi_grad_beta(call, i, &beta);
    if (!dx) return TSH_ERR_MEMORY;
    tsh_device *device = tshi_device_of(x);
    device->ops->elementwise[x->dtype].axpby(device, x->numel, factor, tshi_data(values), beta, tshi_data(dx),
                                             tshi_data(dx));
    return TSH_OK;
}

/* --- the operations ----------------------------------------------------------------------------------------------- */

static tshi_binary function_of(const tsh_call *call) {
    return (tshi_binary)(call->op - tshi_arithmetic_ops);
}

static tsh_status arithmetic_forward(tsh_call *call) {
    run_binary(function_of(call), call->in[0], call->in[1], call->out, call->out);
    return TSH_OK;
}

/* dx = dz y, dy = dz x */
static tsh_status mul_gradient(tsh_call *call, int i) {
    tsh_tensor *dz = tsh_call_grad_out(call);
    const tsh_tensor *other = call->in[1 - i];
    tsh_device *device = tshi_device_of(dz);
    if (!is_repeated(call->in[i], call->out) && !is_repeated(other, call->out)) {
        double beta;
        tsh_tensor *dx = tshi_grad_beta(call, i, &beta);
        if (!dx) return TSH_ERR_MEMORY;
        device->ops->elementwise[dz->dtype].mul(device, dz->numel, tshi_data(other), tshi_data(dz), beta,
                                                tshi_data(dx));
        return TSH_OK;
    }
    tsh_tensor *product = tsh_call_scratch(call, dz->dtype, dz->numel);
    if (!product) return TSH_ERR_MEMORY;
    run_binary(TSHI_MUL, dz, other, dz, product);
    return add_input_gradient(call, i, 1, product);
}

/* dx = dz / y, dy = -dz z / y */
static tsh_status div_gradient(tsh_call *call, int i) {
    tsh_tensor *dz = tsh_call_grad_out(call), *quotient = NULL;
    tsh_status status = tshi_gradient_new(call->out, &quotient);
    if (status != TSH_OK) return status;
    if (i == 1) run_binary(TSHI_MUL, dz, call->out, dz, quotient);
    run_binary(TSHI_DIV, i == 1 ? quotient : dz, call->in[1], dz, quotient);
    status = add_input_gradient(call, i, i == 1 ? -1 : 1, quotient);
    tshi_tensor_release(quotient);
    return status;
}

static tsh_status arithmetic_backward(tsh_call *call) {
    tshi_binary f = function_of(call);
    tsh_status status = TSH_OK;
    for (int i = 0; i < 2 && status == TSH_OK; i++) {
        if (!tsh_call_wants_grad(call, i)) continue;
        if (f == TSHI_ADD || f == TSHI_SUB)
            status = add_input_gradient(call, i, i == 1 && f == TSHI_SUB ? -1 : 1, tsh_call_grad_out(call));
        else
            status = f == TSHI_MUL ? mul_gradient(call, i) : div_gradient(call, i);
    }
    return status;
}

#define ARITHMETIC_OP(name, rules)                                                                                     \
    name, rules, binary_shape, arithmetic_forward, arithmetic_backward, .row_holds = tshi_overlay_row_holds

const tsh_op tshi_arithmetic_ops[TSHI_BINARY_COUNT] = {
    [TSHI_ADD] = {ARITHMETIC_OP("add", add_rules), .reads_no_input = true, .by_element = true},
    [TSHI_SUB] = {ARITHMETIC_OP("sub", add_rules), .reads_no_input = true, .by_element = true},
    [TSHI_MUL] = {ARITHMETIC_OP("mul", product_rules), .by_element = true},
    [TSHI_DIV] = {ARITHMETIC_OP("div", quotient_rules), .reads_output = true},
};

static tsh_tensor *apply_arithmetic(tsh_tape *tape, tshi_binary f, tsh_tensor *x, tsh_tensor *y) {
    const tsh_op *op = &tshi_arithmetic_ops[f];
    tsh_tensor *in[] = {x, y};
    if (x && y && x->shape.ndim == y->shape.ndim) return tshi_apply(tape, op, 2, in, NULL);
    if (!tshi_tape_ready(tape, op->name, 2, in)) return NULL;
    int ndim = x->shape.ndim > y->shape.ndim ? x->shape.ndim : y->shape.ndim;
    for (int i = 0; i < 2; i++) in[i] = tshi_align(tape, in[i], ndim);
    return tshi_apply(tape, op, 2, in, NULL);
}

tsh_tensor *tsh_add(tsh_tape *tape, tsh_tensor *x, tsh_tensor *y) {
    return apply_arithmetic(tape, TSHI_ADD, x, y);
}

tsh_tensor *tsh_sub(tsh_tape *tape, tsh_tensor *x, tsh_tensor *y) {
    return apply_arithmetic(tape, TSHI_SUB, x, y);
}

tsh_tensor *tsh_mul(tsh_tape *tape, tsh_tensor *x, tsh_tensor *y) {
    return apply_arithmetic(tape, TSHI_MUL, x, y);
}

tsh_tensor *tsh_div(tsh_tape *tape, tsh_tensor *x, tsh_tensor *y) {
    return apply_arithmetic(tape, TSHI_DIV, x, y);
}
