/* Layer norm and RMS norm over the last dim. saved: the rows' means and reciprocal deviations. */
#include "functional/functional.h"

#include <math.h>

static const tsh_rule norm_rules[] = {
    {{TSH_AS_R, TSH_AS_R, TSH_AS_R}, TSH_AS_R},
    {{TSH_AS_BATCH, TSH_AS_L, TSH_AS_L}, TSH_AS_BATCH},
    {{TSH_AS_L, TSH_AS_L, TSH_AS_L}, TSH_AS_L},
    {{TSH_ROW_END}, TSH_ROW_END},
};

typedef struct norm_params {
    int64_t rms; /* or 0 */
    double eps;
} norm_params;

static tsh_status norm_shape(const tsh_call *call, tsh_dtype *dtype, tsh_shape *out) {
    const tsh_shape *x = &call->in[0]->shape;
    *out = *x;
    if (x->ndim < 1) return tshi_fail(TSH_ERR_SHAPE, "x must have at least one dim");
    double eps = ((const norm_params *)call->params)->eps;
    if (!(eps >= 0 && isfinite(eps))) return tshi_fail(TSH_ERR_ARGUMENT, "eps is %g, must be in [0, inf)", eps);
    for (int i = 1; i < call->inputs; i++) {
        const tsh_shape *s = &call->in[i]->shape;
        if (s->ndim == 1 && s->global[0] == x->global[x->ndim - 1]) continue;
        return tshi_check_fails(call->in[0], call->in[i], "x [..., n], gamma and beta [n] wanted");
    }
    return tshi_check_floats(call, dtype);
}

/* Input i's elements; NULL for gamma and beta that are left out. */
static const void *input_data(const tsh_call *call, int i) {
    return i < call->inputs ? tshi_data(call->in[i]) : NULL;
}

static tsh_status norm_forward(tsh_call *call) {
    const norm_params *p = call->params;
    const tsh_tensor *x = call->in[0];
    tsh_device *device = tshi_device_of(x);
    int64_t rows = tshi_rows(x);
    tsh_tensor *means = tshi_statistics_save(call, 0, x, rows);
    tsh_tensor *deviations = means ? tshi_statistics_save(call, 1, x, rows) : NULL;
    if (!deviations) return TSH_ERR_MEMORY;
    device->ops->norm[x->dtype].forward(device, p->rms, rows, tshi_cols(x), p->eps, tshi_data(x), input_data(call, 1),
                                        input_data(call, 2), tshi_data(call->out), tshi_data(means),
                                        tshi_data(deviations));
    return TSH_OK;
}

static tsh_status norm_backward(tsh_call *call) {
    const norm_params *p = call->params;
    tsh_tensor *grads[3] = {NULL, NULL, NULL};
    double before = 0;
    for (int i = 0; i < call->inputs; i++) {
        if (!tsh_call_wants_grad(call, i)) continue;
        grads[i] = i == 0 ? tshi_grad_beta(call, 0, &before) : tsh_call_grad(call, i);
        if (!grads[i]) return TSH_ERR_MEMORY;
    }
    const tsh_tensor *x = call->in[0];
    tsh_device *device = tshi_device_of(x);
    device->ops->norm[x->dtype].backward(device, p->rms, tshi_rows(x), tshi_cols(x), tshi_data(x), input_data(call, 1),
                                         tshi_data(call->saved[0]), tshi_data(call->saved[1]),
                                         tshi_data(tsh_call_grad_out(call)), before, tshi_data(grads[0]),
                                         tshi_data(grads[1]), tshi_data(grads[2]));
    return TSH_OK;
}

const tsh_op tshi_layer_norm_op = {"layer_norm", norm_rules,    norm_shape,
                                   norm_forward, norm_backward, .params_size = sizeof(norm_params)};
static const tsh_op rms_norm_op = {"rms_norm",   norm_rules,    norm_shape,
                                   norm_forward, norm_backward, .params_size = sizeof(norm_params)};

tsh_tensor *tsh_layer_norm(tsh_tape *tape, tsh_tensor *x, tsh_tensor *gamma, tsh_tensor *beta, double eps) {
    if (beta && !gamma && tape) return tshi_tape_fail(tape, TSH_ERR_ARGUMENT, "layer_norm: beta without gamma");
    int inputs = !gamma ? 1 : !beta ? 2 : 3;
    return tshi_apply(tape, &tshi_layer_norm_op, inputs, (tsh_tensor *[]){x, gamma, beta}, &(norm_params){false, eps});
}

tsh_tensor *tsh_rms_norm(tsh_tape *tape, tsh_tensor *x, tsh_tensor *gamma, double eps) {
    return tshi_apply(tape, &rms_norm_op, gamma ? 2 : 1, (tsh_tensor *[]){x, gamma}, &(norm_params){true, eps});
}
