/* Arithmetic and comparisons of two tensors, which broadcast as in NumPy. Broadcast operands are never stored. */
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

/* The functions that are not linear. */
static const tsh_rule pair_rules[] = {
    {{TSH_AS_R, TSH_AS_R}, TSH_AS_R},     {{TSH_AS_ANY, TSH_AS_ANY}, TSH_AS_ANY}, {{TSH_AS_ANY, TSH_AS_L}, TSH_AS_ANY},
    {{TSH_AS_L, TSH_AS_ANY}, TSH_AS_ANY}, {{TSH_AS_L, TSH_AS_L}, TSH_AS_L},       {{TSH_ROW_END}, TSH_ROW_END},
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

/* z = f(x, y), with the shape of `like`, to which x and y broadcast, and their dtype. */
static void run_binary(tshi_binary f, const tsh_tensor *x, const tsh_tensor *y, const tsh_tensor *like, tsh_tensor *z) {
    tsh_device *device = tshi_device_of(like);
    tshi_broadcast o;
    if (is_repeated(x, like) || is_repeated(y, like)) {
        o = tshi_broadcast_of(&like->shape, &x->shape, &y->shape);
    } else {
        o.runs = 1; /* only run 0 is read; zeroing the others would take longer than a small sum */
        o.n[0] = like->numel;
        o.x[0] = o.y[0] = 1;
    }
    device->ops->elementwise[x->dtype].binary(device, f, &o, tshi_data(x), tshi_data(y), tshi_data(z));
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

tsh_status tshi_grad_add_summed(tsh_call *call, int i, double factor, tsh_tensor *values) {
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
    return tshi_grad_add_summed(call, i, 1, product);
}

/* dx = dz / y, dy = -dz z / y */
static tsh_status div_gradient(tsh_call *call, int i) {
    tsh_tensor *dz = tsh_call_grad_out(call), *quotient = NULL;
    tsh_status status = tshi_gradient_new(call->out, &quotient);
    if (status != TSH_OK) return status;
    if (i == 1) run_binary(TSHI_MUL, dz, call->out, dz, quotient);
    run_binary(TSHI_DIV, i == 1 ? quotient : dz, call->in[1], dz, quotient);
    status = tshi_grad_add_summed(call, i, i == 1 ? -1 : 1, quotient);
    tshi_tensor_release(quotient);
    return status;
}

/* dx = dz where x is chosen, dz / 2 where x and y are equal, else 0. */
static tsh_status extremum_gradient(tsh_call *call, int i) {
    const tsh_tensor *dz = tsh_call_grad_out(call), *x = call->in[i], *other = call->in[1 - i];
    bool largest = function_of(call) == TSHI_MAXIMUM;
    tsh_tensor *share = tsh_call_scratch(call, dz->dtype, dz->numel);
    if (!share) return TSH_ERR_MEMORY;
    run_binary(TSHI_STEP, largest ? x : other, largest ? other : x, call->out, share);
    tsh_device *device = tshi_device_of(dz);
    device->ops->elementwise[dz->dtype].mul(device, dz->numel, tshi_data(dz), tshi_data(share), 0, tshi_data(share));
    return tshi_grad_add_summed(call, i, 1, share);
}

static tsh_status arithmetic_backward(tsh_call *call) {
    tshi_binary f = function_of(call);
    tsh_status status = TSH_OK;
    for (int i = 0; i < 2 && status == TSH_OK; i++) {
        if (!tsh_call_wants_grad(call, i)) continue;
        if (f == TSHI_ADD || f == TSHI_SUB)
            status = tshi_grad_add_summed(call, i, i == 1 && f == TSHI_SUB ? -1 : 1, tsh_call_grad_out(call));
        else if (f == TSHI_MAXIMUM || f == TSHI_MINIMUM)
            status = extremum_gradient(call, i);
        else
            status = f == TSHI_MUL ? mul_gradient(call, i) : div_gradient(call, i);
    }
    return status;
}

#define ARITHMETIC_OP(name, rules)                                                                                     \
    name, rules, binary_shape, arithmetic_forward, arithmetic_backward, .row_holds = tshi_broadcast_row_holds

const tsh_op tshi_arithmetic_ops[TSHI_STEP] = {
    [TSHI_ADD] = {ARITHMETIC_OP("add", add_rules), .reads_no_input = true, .by_element = true},
    [TSHI_SUB] = {ARITHMETIC_OP("sub", add_rules), .reads_no_input = true, .by_element = true},
    [TSHI_MUL] = {ARITHMETIC_OP("mul", product_rules), .by_element = true},
    [TSHI_DIV] = {ARITHMETIC_OP("div", quotient_rules), .reads_output = true},
    [TSHI_MAXIMUM] = {ARITHMETIC_OP("maximum", pair_rules), .by_element = true},
    [TSHI_MINIMUM] = {ARITHMETIC_OP("minimum", pair_rules), .by_element = true},
};

static tsh_tensor *apply_to_pair(tsh_tape *tape, const tsh_op *op, tsh_tensor *x, tsh_tensor *y, void *params) {
    tsh_tensor *in[] = {x, y};
    if (x && y && x->shape.ndim == y->shape.ndim) return tshi_apply(tape, op, 2, in, params);
    if (!tshi_tape_ready(tape, op->name, 2, in)) return NULL;
    int ndim = x->shape.ndim > y->shape.ndim ? x->shape.ndim : y->shape.ndim;
    for (int i = 0; i < 2; i++) in[i] = tshi_align(tape, in[i], ndim);
    return tshi_apply(tape, op, 2, in, params);
}

static tsh_tensor *apply_arithmetic(tsh_tape *tape, tshi_binary f, tsh_tensor *x, tsh_tensor *y) {
    return apply_to_pair(tape, &tshi_arithmetic_ops[f], x, y, NULL);
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

tsh_tensor *tsh_maximum(tsh_tape *tape, tsh_tensor *x, tsh_tensor *y) {
    return apply_arithmetic(tape, TSHI_MAXIMUM, x, y);
}

tsh_tensor *tsh_minimum(tsh_tape *tape, tsh_tensor *x, tsh_tensor *y) {
    return apply_arithmetic(tape, TSHI_MINIMUM, x, y);
}

/* --- comparisons -------------------------------------------------------------------------------------------------- */

typedef struct compare_params {
    int kind, padding; /* padding: named, so that initializers clear it */
    double value;      /* y of compare_scalar */
} compare_params;

static tsh_status compare_shape(const tsh_call *call, tsh_dtype *dtype, tsh_shape *out) {
    const compare_params *p = call->params;
    if (p->kind < TSH_EQUAL || p->kind > TSH_GREATER_EQUAL)
        return tshi_fail(TSH_ERR_ARGUMENT, "unknown comparison %d", p->kind);
    tsh_status status = call->inputs == 2 ? binary_shape(call, dtype, out) : tshi_same_shape(call, dtype, out);
    *dtype = TSH_UINT8;
    return status;
}

/* z = f(x, value) */
static tsh_status run_with_value(tsh_call *call, tshi_binary f, double value, tsh_tensor *z) {
    const tsh_tensor *x = call->in[0], *y = tsh_call_scratch(call, x->dtype, 1);
    if (!y) return TSH_ERR_MEMORY;
    tsh_device *device = tshi_device_of(x);
    const tshi_broadcast o = {1, {x->numel}, {1}, {0}};
    device->ops->copy.fill(device, x->dtype, 1, value, tshi_data(y));
    device->ops->elementwise[x->dtype].binary(device, f, &o, tshi_data(x), tshi_data(y), tshi_data(z));
    return TSH_OK;
}

static tsh_status compare_forward(tsh_call *call) {
    const compare_params *p = call->params;
    const tsh_tensor *x = call->in[0], *z = call->out;
    tshi_binary f = (tshi_binary)(TSHI_EQ + p->kind);
    tsh_device *device = tshi_device_of(x);
    tsh_tensor *holds = tsh_call_scratch(call, x->dtype, z->numel);
    if (!holds) return TSH_ERR_MEMORY;
    tsh_status status = TSH_OK;
    if (call->inputs == 2)
        run_binary(f, x, call->in[1], z, holds);
    else
        status = run_with_value(call, f, p->value, holds);
    if (status == TSH_OK)
        device->ops->copy.convert(device, z->numel, holds->dtype, tshi_data(holds), z->dtype, tshi_data(z));
    return status;
}

static const tsh_op compare_op = {"compare",
                                  pair_rules,
                                  compare_shape,
                                  compare_forward,
                                  .row_holds = tshi_broadcast_row_holds,
                                  .params_size = sizeof(compare_params),
                                  .by_element = true};
static const tsh_op compare_scalar_op = {
    "compare_scalar",  tshi_element_rules, compare_shape, compare_forward, .params_size = sizeof(compare_params),
    .by_element = true};

/* Masks have no gradient, and comparisons are not recorded. */
tsh_tensor *tsh_compare(tsh_tape *tape, tsh_tensor *x, tsh_comparison comparison, tsh_tensor *y) {
    bool recording = tsh_tape_set_recording(tape, false);
    tsh_tensor *mask = apply_to_pair(tape, &compare_op, x, y, &(compare_params){.kind = (int)comparison});
    tsh_tape_set_recording(tape, recording);
    return mask;
}

tsh_tensor *tsh_compare_scalar(tsh_tape *tape, tsh_tensor *x, tsh_comparison comparison, double value) {
    compare_params p = {.kind = (int)comparison, .value = value};
    bool recording = tsh_tape_set_recording(tape, false);
    tsh_tensor *mask = tshi_apply(tape, &compare_scalar_op, 1, &x, &p);
    tsh_tape_set_recording(tape, recording);
    return mask;
}
