/* Squared, absolute and smooth errors, and binary cross entropy of logits: for each element, or the mean or sum over
 * all ranks. */
#include "functional/functional.h"

/* predictions, targets, weights of the positive class along the last dim */
static const tsh_rule reduced_rules[] = {{{TSH_AS_R, TSH_AS_R, TSH_AS_R}, TSH_AS_R},
                                         {{TSH_AS_LAST, TSH_AS_LAST, TSH_AS_S0}, TSH_AS_R},
                                         {{TSH_AS_BATCH, TSH_AS_BATCH, TSH_AS_L}, TSH_AS_R},
                                         {{TSH_AS_L, TSH_AS_L, TSH_AS_L}, TSH_AS_L},
                                         {{TSH_ROW_END}, TSH_ROW_END}};
static const tsh_rule element_rules[] = {{{TSH_AS_R, TSH_AS_R, TSH_AS_R}, TSH_AS_R},
                                         {{TSH_AS_LAST, TSH_AS_LAST, TSH_AS_S0}, TSH_AS_LAST},
                                         {{TSH_AS_BATCH, TSH_AS_BATCH, TSH_AS_L}, TSH_AS_BATCH},
                                         {{TSH_AS_L, TSH_AS_L, TSH_AS_L}, TSH_AS_L},
                                         {{TSH_ROW_END}, TSH_ROW_END}};

typedef struct loss_params {
    tshi_loss f;
    tsh_reduction reduction;
    double beta; /* of TSHI_SMOOTH_ERROR */
} loss_params;

static tsh_status check_loss_weight(const tsh_call *call) {
    const tsh_tensor *x = call->in[0], *w = call->in[call->inputs - 1];
    if (call->inputs < 3) return TSH_OK;
    int last = x->shape.ndim - 1;
    if (last >= 0 && w->shape.ndim == 1 && w->shape.global[0] == x->shape.global[last]) return TSH_OK;
    return tshi_fail(TSH_ERR_SHAPE, "pos_weight is %s, must have a weight for each index of the logits' last dim",
                     TSHI_TENSOR_TEXT(w));
}

static tsh_status loss_shape(const tsh_call *call, tsh_dtype *dtype, tsh_shape *out) {
    const loss_params *p = call->params;
    const tsh_tensor *x = call->in[0];
    if (p->reduction != TSH_REDUCTION_MEAN && p->reduction != TSH_REDUCTION_SUM && p->reduction != TSH_REDUCTION_NONE) {
        return tshi_fail(TSH_ERR_ARGUMENT, "unknown reduction %d", (int)p->reduction);
    }
    if (!(p->beta >= 0)) return tshi_fail(TSH_ERR_ARGUMENT, "beta is %g, must be 0 or more", p->beta);
    if (!tshi_shapes_equal(&x->shape, &call->in[1]->shape)) {
        return tshi_check_fails(x, call->in[1], "a target of the prediction's shape wanted");
    }
    tsh_status status = tshi_check_floats(call, dtype);
    if (status == TSH_OK) status = check_loss_weight(call);
    *dtype = tshi_dtype_sum(x->dtype);
    if (p->reduction == TSH_REDUCTION_NONE)
        *out = x->shape;
    else
        out->ndim = 0;
    return status;
}

/* The kernels' view of the call. */
static tshi_loss_inputs inputs_of(const tsh_call *call) {
    const tsh_tensor *x = call->in[0];
    const loss_params *p = call->params;
    return (tshi_loss_inputs){.f = p->f,
                              .beta = p->beta,
                              .n = x->numel,
                              .x = tshi_data(x),
                              .target = tshi_data(call->in[1]),
                              .weight = call->inputs == 3 ? tshi_data(call->in[2]) : NULL,
                              .weights = call->inputs == 3 ? call->in[2]->numel : 1};
}

/* 1, or for a mean 1 / (elements of the whole). */
static double loss_scale(const tsh_call *call) {
    bool mean = ((const loss_params *)call->params)->reduction == TSH_REDUCTION_MEAN;
    return mean ? 1 / (double)tshi_shape_numel(&call->in[0]->shape) : 1;
}

static tsh_status element_forward(tsh_call *call) {
    const tsh_tensor *x = call->in[0];
    tsh_device *device = tshi_device_of(x);
    tshi_loss_inputs in = inputs_of(call);
    device->ops->loss[x->dtype].forward(device, &in, tshi_data(call->out));
    return TSH_OK;
}

static tsh_status reduced_forward(tsh_call *call) {
    const tsh_tensor *x = call->in[0];
    tsh_device *device = tshi_device_of(x);
    tshi_loss_inputs in = inputs_of(call);
    tsh_tensor *losses = tshi_statistics_scratch(call, x, x->numel), *out = call->out;
    if (!losses) return TSH_ERR_MEMORY;
    device->ops->loss[x->dtype].forward(device, &in, tshi_data(losses));
    device->ops->sum[out->dtype].over_dim(device, 1, x->numel, 1, loss_scale(call), tshi_data(losses), tshi_data(out));
    return tshi_statistics_reduce(tshi_axes_splitting(x, -1), out, TSH_REDUCE_SUM);
}

static tsh_status loss_backward(tsh_call *call) {
    const loss_params *p = call->params;
    const tsh_tensor *x = call->in[0];
    tsh_device *device = tshi_device_of(x);
    tshi_loss_inputs in = inputs_of(call);
    for (int i = 0; i < 2; i++) {
        if (!tsh_call_wants_grad(call, i)) continue;
        double beta;
        tsh_tensor *to = tshi_grad_beta(call, i, &beta);
        if (!to) return TSH_ERR_MEMORY;
        device->ops->loss[x->dtype].backward(device, &in, i == 1, tshi_data(tsh_call_grad_out(call)),
                                             p->reduction == TSH_REDUCTION_NONE, loss_scale(call), beta, tshi_data(to));
    }
    return TSH_OK;
}

/* [reduced] */
#define LOSS_OPS(name)                                                                                                 \
    {                                                                                                                  \
        {name, element_rules, loss_shape, element_forward, loss_backward, .params_size = sizeof(loss_params)}, {       \
            name, reduced_rules, loss_shape, reduced_forward, loss_backward, .params_size = sizeof(loss_params)        \
        }                                                                                                              \
    }
static const tsh_op mse_ops[] = LOSS_OPS("mse_loss"), l1_ops[] = LOSS_OPS("l1_loss"),
                    smooth_l1_ops[] = LOSS_OPS("smooth_l1_loss"), bce_ops[] = LOSS_OPS("bce_loss");

static tsh_tensor *apply_error(tsh_tape *tape, const tsh_op *ops, tsh_tensor *x, tsh_tensor *target, loss_params p) {
    return tshi_apply(tape, &ops[p.reduction != TSH_REDUCTION_NONE], 2, (tsh_tensor *[]){x, target}, &p);
}

tsh_tensor *tsh_mse_loss(tsh_tape *tape, tsh_tensor *x, tsh_tensor *target, tsh_reduction reduction) {
    return apply_error(tape, mse_ops, x, target, (loss_params){TSHI_SQUARED_ERROR, reduction, 0});
}

tsh_tensor *tsh_l1_loss(tsh_tape *tape, tsh_tensor *x, tsh_tensor *target, tsh_reduction reduction) {
    return apply_error(tape, l1_ops, x, target, (loss_params){TSHI_SMOOTH_ERROR, reduction, 0});
}

tsh_tensor *tsh_smooth_l1_loss(tsh_tape *tape, tsh_tensor *x, tsh_tensor *target, double beta,
                               tsh_reduction reduction) {
    return apply_error(tape, smooth_l1_ops, x, target, (loss_params){TSHI_SMOOTH_ERROR, reduction, beta});
}

tsh_tensor *tsh_bce_loss(tsh_tape *tape, tsh_tensor *logits, tsh_tensor *target, const tsh_bce_loss_config *config) {
    tsh_bce_loss_config c = config ? *config : (tsh_bce_loss_config){0};
    return tshi_apply(tape, &bce_ops[c.reduction != TSH_REDUCTION_NONE], c.pos_weight ? 3 : 2,
                      (tsh_tensor *[]){logits, target, c.pos_weight},
                      &(loss_params){TSHI_BINARY_CROSS_ENTROPY, c.reduction, 0});
}
