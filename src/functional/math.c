/* Elementwise functions. */
#include "functional/functional.h"

#include <math.h>

typedef struct unary_params {
    tshi_unary f;
    unsigned padding; /* named, so that initializers clear it */
    double p[2];      /* f's parameters */
} unary_params;

static tsh_status math_shape(const tsh_call *call, tsh_dtype *dtype, tsh_shape *out) {
    const unary_params *p = call->params;
    if (isnan(p->p[0]) || isnan(p->p[1])) return tshi_fail(TSH_ERR_ARGUMENT, "a parameter is not a number");
    return tshi_same_shape(call, dtype, out);
}

static tsh_status math_forward(tsh_call *call) {
    const unary_params *p = call->params;
    const tsh_tensor *x = call->in[0];
    tsh_device *device = tshi_device_of(x);
    device->ops->elementwise[x->dtype].unary(device, p->f, p->p, x->numel, tshi_data(x), tshi_data(call->out));
    return TSH_OK;
}

static tsh_status math_backward(tsh_call *call) {
    const unary_params *p = call->params;
    double beta;
    tsh_tensor *dx = tshi_grad_beta(call, 0, &beta);
    if (!dx) return TSH_ERR_MEMORY;
    const tsh_tensor *x = call->in[0];
    tsh_device *device = tshi_device_of(x);
    device->ops->elementwise[x->dtype].unary_backward(device, p->f, p->p, x->numel, tshi_data(x),
                                                      tshi_data(tsh_call_grad_out(call)), beta, tshi_data(dx));
    return TSH_OK;
}

#define MATH_OP(name)                                                                                                  \
    { name, tshi_element_rules, math_shape, math_forward, math_backward, .params_size = sizeof(unary_params) }

static const tsh_op math_ops[TSHI_UNARY_COUNT] = {
    [TSHI_GELU_ERF] = MATH_OP("gelu"),   [TSHI_GELU_TANH] = MATH_OP("gelu_tanh"),
    [TSHI_RELU] = MATH_OP("relu"),       [TSHI_SILU] = MATH_OP("silu"),
    [TSHI_EXP] = MATH_OP("exp"),         [TSHI_LOG] = MATH_OP("log"),
    [TSHI_TANH] = MATH_OP("tanh"),       [TSHI_SQRT] = MATH_OP("sqrt"),
    [TSHI_SIGMOID] = MATH_OP("sigmoid"), [TSHI_POW] = MATH_OP("pow"),
    [TSHI_CLAMP] = MATH_OP("clamp"),     [TSHI_ABS] = MATH_OP("abs"),
};

static tsh_tensor *apply_math(tsh_tape *tape, tsh_tensor *x, unary_params params) {
    return tshi_apply(tape, &math_ops[params.f], 1, &x, &params);
}

tsh_tensor *tshi_activate(tsh_tape *tape, tsh_tensor *x, tshi_unary f) {
    return apply_math(tape, x, (unary_params){.f = f});
}

tsh_tensor *tsh_gelu(tsh_tape *tape, tsh_tensor *x) {
    return tshi_activate(tape, x, TSHI_GELU_ERF);
}

tsh_tensor *tsh_gelu_tanh(tsh_tape *tape, tsh_tensor *x) {
    return tshi_activate(tape, x, TSHI_GELU_TANH);
}

tsh_tensor *tsh_relu(tsh_tape *tape, tsh_tensor *x) {
    return tshi_activate(tape, x, TSHI_RELU);
}

tsh_tensor *tsh_silu(tsh_tape *tape, tsh_tensor *x) {
    return tshi_activate(tape, x, TSHI_SILU);
}

tsh_tensor *tsh_exp(tsh_tape *tape, tsh_tensor *x) {
    return tshi_activate(tape, x, TSHI_EXP);
}

tsh_tensor *tsh_log(tsh_tape *tape, tsh_tensor *x) {
    return tshi_activate(tape, x, TSHI_LOG);
}

tsh_tensor *tsh_tanh(tsh_tape *tape, tsh_tensor *x) {
    return tshi_activate(tape, x, TSHI_TANH);
}

tsh_tensor *tsh_sqrt(tsh_tape *tape, tsh_tensor *x) {
    return tshi_activate(tape, x, TSHI_SQRT);
}

tsh_tensor *tsh_sigmoid(tsh_tape *tape, tsh_tensor *x) {
    return tshi_activate(tape, x, TSHI_SIGMOID);
}

tsh_tensor *tsh_abs(tsh_tape *tape, tsh_tensor *x) {
    return tshi_activate(tape, x, TSHI_ABS);
}

/* --- silu(gate) up ------------------------------------------------------------------------------------------------ */

enum { GATE, UP };

static const tsh_rule swiglu_rules[] = {
    {{TSH_AS_COPY, TSH_HAS_P}, TSH_AS_P}, {{TSH_AS_R, TSH_AS_R}, TSH_AS_R}, {{TSH_AS_ANY, TSH_AS_ANY}, TSH_AS_ANY},
    {{TSH_AS_L, TSH_AS_L}, TSH_AS_L},     {{TSH_ROW_END}, TSH_ROW_END},
};

static tsh_status swiglu_shape(const tsh_call *call, tsh_dtype *dtype, tsh_shape *out) {
    *out = call->in[GATE]->shape;
    if (!tshi_shapes_equal(out, &call->in[UP]->shape))
        return tshi_check_fails(call->in[GATE], call->in[UP], "gate and up of one shape wanted");
    return tshi_check_floats(call, dtype);
}

static tsh_status swiglu_forward(tsh_call *call) {
    const tsh_tensor *gate = call->in[GATE];
    tsh_device *device = tshi_device_of(gate);
    device->ops->elementwise[gate->dtype].swiglu(device, gate->numel, tshi_data(gate), tshi_data(call->in[UP]),
                                                 tshi_data(call->out));
    return TSH_OK;
}

/* Where the kernel stores input i's gradient: in scratch if it is not wanted, or if it is `other`, the same tensor as
 * gate's: *same is then what the scratch is to be added to. */
static tsh_tensor *swiglu_target(tsh_call *call, int i, const tsh_tensor *other, double *beta, tsh_tensor **same) {
    const tsh_tensor *gate = call->in[GATE];
    *beta = 0;
    *same = NULL;
    tsh_tensor *gradient = tsh_call_wants_grad(call, i) ? tshi_grad_beta(call, i, beta) : NULL;
    if (tsh_call_wants_grad(call, i) && (!gradient || !other || tshi_data(gradient) != tshi_data(other)))
        return gradient;
    *same = gradient;
    *beta = 0;
    return tsh_call_scratch(call, gate->dtype, gate->numel);
}

static tsh_status swiglu_backward(tsh_call *call) {
    const tsh_tensor *gate = call->in[GATE];
    tsh_device *device = tshi_device_of(gate);
    const tshi_elementwise_ops *ops = &device->ops->elementwise[gate->dtype];
    double beta_g, beta_u;
    tsh_tensor *same = NULL, *dg = swiglu_target(call, GATE, NULL, &beta_g, &same);
    const tsh_tensor *du = dg ? swiglu_target(call, UP, dg, &beta_u, &same) : NULL;
    if (!du) return TSH_ERR_MEMORY;
    ops->swiglu_backward(device, gate->numel, tshi_data(gate), tshi_data(call->in[UP]),
                         tshi_data(tsh_call_grad_out(call)), beta_g, tshi_data(dg), beta_u, tshi_data(du));
    if (same) ops->axpby(device, gate->numel, 1, tshi_data(du), 1, tshi_data(same), tshi_data(same));
    return TSH_OK;
}

/* Not by element: exponentials of vectors and of single numbers differ. */
static const tsh_op swiglu_op = {"swiglu",       swiglu_rules,    swiglu_shape,
                                 swiglu_forward, swiglu_backward, .by_element = false};

tsh_tensor *tsh_swiglu(tsh_tape *tape, tsh_tensor *gate, tsh_tensor *up) {
    return tshi_apply(tape, &swiglu_op, 2, (tsh_tensor *[]){gate, up}, NULL);
}

/* --- functions with parameters ------------------------------------------------------------------------------------ */

tsh_tensor *tsh_pow(tsh_tape *tape, tsh_tensor *x, double exponent) {
    return apply_math(tape, x, (unary_params){.f = TSHI_POW, .p = {exponent}});
}

tsh_tensor *tsh_clamp(tsh_tape *tape, tsh_tensor *x, double low, double high) {
    return apply_math(tape, x, (unary_params){.f = TSHI_CLAMP, .p = {low, high}});
}
