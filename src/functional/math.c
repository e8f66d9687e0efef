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

tsh_tensor *tsh_pow(tsh_tape *tape, tsh_tensor *x, double exponent) {
    return apply_math(tape, x, (unary_params){.f = TSHI_POW, .p = {exponent}});
}

tsh_tensor *tsh_clamp(tsh_tape *tape, tsh_tensor *x, double low, double high) {
    return apply_math(tape, x, (unary_params){.f = TSHI_CLAMP, .p = {low, high}});
}
