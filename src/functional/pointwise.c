/* Scale, bias and dropout. */
#include "functional/functional.h"

/* --- scale -------------------------------------------------------------------------------------------------------- */

typedef struct scale_params {
    double factor, shift;
} scale_params;

/* z = factor x + beta z, with the call's factor. */
static tsh_status scale_by_factor(const tsh_call *call, const tsh_tensor *x, double beta, tsh_tensor *z) {
    const scale_params *p = call->params;
    tsh_device *device = tshi_device_of(x);
    device->ops->elementwise[x->dtype].axpby(device, x->numel, p->factor, tshi_data(x), beta, tshi_data(z),
                                             tshi_data(z));
    return TSH_OK;
}

static tsh_status scale_forward(tsh_call *call) {
    return scale_by_factor(call, call->in[0], 0, call->out);
}

static tsh_status scale_shift_forward(tsh_call *call) {
    const scale_params *p = call->params;
    const tsh_tensor *x = call->in[0];
    tsh_device *device = tshi_device_of(x);
    device->ops->elementwise[x->dtype].unary(device, TSHI_SCALE_SHIFT, (double[2]){p->factor, p->shift}, x->numel,
                                             tshi_data(x), tshi_data(call->out));
    return TSH_OK;
}

static tsh_status scale_backward(tsh_call *call) {
    double beta;
    tsh_tensor *dx = tshi_grad_beta(call, 0, &beta);
    return dx ? scale_by_factor(call, tsh_call_grad_out(call), beta, dx) : TSH_ERR_MEMORY;
}

static const tsh_op scale_op = {"scale",
                                tshi_linear_rules,
                                tshi_same_shape,
                                scale_forward,
                                scale_backward,
                                .params_size = sizeof(scale_params),
                                .reads_no_input = true,
                                .by_element = true};
static const tsh_op scale_shift_op = {"scale_shift",          tshi_element_rules, tshi_same_shape,
                                      scale_shift_forward,    scale_backward,     .params_size = sizeof(scale_params),
                                      .reads_no_input = true, .by_element = true};

tsh_tensor *tsh_scale(tsh_tape *tape, tsh_tensor *x, double factor) {
    return tshi_apply(tape, &scale_op, 1, &x, &(scale_params){.factor = factor});
}

tsh_tensor *tsh_scale_shift(tsh_tape *tape, tsh_tensor *x, double factor, double shift) {
    return tshi_apply(tape, &scale_shift_op, 1, &x, &(scale_params){factor, shift});
}

/* --- bias --------------------------------------------------------------------------------------------------------- */

static const tsh_rule bias_rules[] = {
    {{TSH_AS_R, TSH_AS_R}, TSH_AS_R}, {{TSH_AS_LAST, TSH_AS_S0}, TSH_AS_LAST}, {{TSH_AS_BATCH, TSH_AS_L}, TSH_AS_BATCH},
    {{TSH_AS_P, TSH_AS_P}, TSH_AS_P}, {{TSH_AS_L, TSH_AS_L}, TSH_AS_L},        {{TSH_ROW_END}, TSH_ROW_END},
};

static tsh_status bias_shape(const tsh_call *call, tsh_dtype *dtype, tsh_shape *out) {
    const tsh_shape *x = &call->in[0]->shape, *b = &call->in[1]->shape;
    *out = *x;
    if (x->ndim < 1 || b->ndim != 1 || x->global[x->ndim - 1] != b->global[0]) {
        return tshi_check_fails(call->in[0], call->in[1], "x [..., n] and b [n] wanted");
    }
    return tshi_check_floats(call, dtype);
}

static tsh_status bias_forward(tsh_call *call) {
    const tsh_tensor *x = call->in[0];
    tsh_device *device = tshi_device_of(x);
    device->ops->elementwise[x->dtype].bias(device, tshi_rows(x), tshi_cols(x), tshi_data(x), tshi_data(call->in[1]),
                                            tshi_data(call->out));
    return TSH_OK;
}

static tsh_status bias_backward(tsh_call *call) {
    tsh_tensor *dy = tsh_call_grad_out(call);
    tsh_device *device = tshi_device_of(dy);
    if (tsh_call_wants_grad(call, 1)) {
        tsh_tensor *db = tsh_call_grad(call, 1);
        if (!db) return TSH_ERR_MEMORY;
        device->ops->sum[dy->dtype].bias_backward(device, tshi_rows(dy), tshi_cols(dy), tshi_data(dy), tshi_data(db));
    }
    return tsh_call_wants_grad(call, 0) ? tshi_grad_adopt(call, 0, dy) : TSH_OK;
}

static const tsh_op bias_op = {"bias", bias_rules, bias_shape, bias_forward, bias_backward, .reads_no_input = true};

tsh_tensor *tsh_bias(tsh_tape *tape, tsh_tensor *x, tsh_tensor *b) {
    return tshi_apply(tape, &bias_op, 2, (tsh_tensor *[]){x, b}, NULL);
}

/* --- dropout ------------------------------------------------------------------------------------------------------ */

static tsh_status dropout_shape(const tsh_call *call, tsh_dtype *dtype, tsh_shape *out) {
    double p = ((const tshi_dropout *)call->params)->p;
    if (!(p >= 0 && p < 1)) return tshi_fail(TSH_ERR_ARGUMENT, "p is %g, must be in [0, 1)", p);
    return tshi_same_shape(call, dtype, out);
}

tsh_status tshi_drop_out(const tshi_dropout *p, const tsh_tensor *like, const tsh_tensor *x, double beta,
                         tsh_tensor *y) {
    tsh_device *device = tshi_device_of(x);
    for (int64_t i = 0; x->numel > 0 && i < tshi_tensor_blocks(like); i++) {
        int64_t offset;
        tshi_block block = tshi_tensor_block(like, i, &offset);
        size_t at = (size_t)offset * tsh_dtype_size(x->dtype);
        device->ops->random[x->dtype].dropout(device, &block, p->seed, p->stream, p->p, (char *)tshi_data(x) + at, beta,
                                              (char *)tshi_data(y) + at);
    }
    return TSH_OK;
}

tshi_dropout tshi_dropout_begin(tsh_tape *tape, double p) {
    if (p == 0 || !tape->recording) return (tshi_dropout){.p = 0};
    return (tshi_dropout){p, tape->world->seed, tshi_world_stream(tape->world)};
}

static tsh_status dropout_forward(tsh_call *call) {
    return tshi_drop_out(call->params, call->in[0], call->in[0], 0, call->out);
}

static tsh_status dropout_backward(tsh_call *call) {
    double beta;
    tsh_tensor *dx = tshi_grad_beta(call, 0, &beta);
    const tsh_tensor *dy = tsh_call_grad_out(call);
    return dx ? tshi_drop_out(call->params, dy, dy, beta, dx) : TSH_ERR_MEMORY;
}

/* Masks are the same on every rank, so that dropout of the terms of a sum gives the terms of its dropout. */
static const tsh_op dropout_op = {"dropout",
                                  tshi_linear_rules,
                                  dropout_shape,
                                  dropout_forward,
                                  dropout_backward,
                                  .params_size = sizeof(tshi_dropout),
                                  .reads_no_input = true,
                                  .by_element = true};

tsh_tensor *tsh_dropout(tsh_tape *tape, tsh_tensor *x, double p) {
    if (tape && !tape->recording) return x;
    tshi_dropout params = {.p = p};
    /* A failed step draws no more random numbers, wherever the program leaves it: see tsh_tape_reset. */
    if (!tshi_tape_ready(tape, "dropout", 1, &x)) return NULL;
    params.seed = tape->world->seed;
    params.stream = tshi_world_stream(tape->world);
    return tshi_apply(tape, &dropout_op, 1, &x, &params);
}
