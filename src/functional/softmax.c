/* Softmax and log-softmax, also along a sharded dim, where the rows' maxima and sums are reduced over ranks. */
#include "functional/functional.h"

static const tsh_rule softmax_rules[] = {
    {{TSH_AS_R}, TSH_AS_R}, {{TSH_AS_OTHER}, TSH_AS_OTHER}, {{TSH_AS_DIM}, TSH_AS_DIM},
    {{TSH_AS_L}, TSH_AS_L}, {{TSH_ROW_END}, TSH_ROW_END},
};

typedef struct softmax_params {
    int dim;
    int log; /* or 0 */
} softmax_params;

static tsh_status softmax_forward(tsh_call *call) {
    const tsh_tensor *x = call->in[0];
    const softmax_params *p = call->params;
    tsh_device *device = tshi_device_of(x);
    tshi_around a = tshi_around_dim(x, p->dim);
    unsigned axes = tshi_axes_splitting(x, p->dim);
    const tshi_softmax_ops *ops = &device->ops->softmax[x->dtype];
    if (!axes && a.inner == 1 && ops->whole &&
        ops->whole(device, p->log, a.outer, a.n, tshi_data(x), tshi_data(call->out))) {
        return TSH_OK;
    }
    tsh_tensor *max = tshi_statistics_scratch(call, x, a.outer * a.inner);
    tsh_tensor *sum = max ? tshi_statistics_scratch(call, x, a.outer * a.inner) : NULL;
    if (!sum) return TSH_ERR_MEMORY;
    ops->max(device, a.outer, a.n, a.inner, tshi_data(x), tshi_data(max));
    tsh_status status = tshi_statistics_reduce(axes, max, TSH_REDUCE_MAX);
    if (status != TSH_OK) return status;
    ops->sum(device, a.outer, a.n, a.inner, tshi_data(x), tshi_data(max), tshi_data(sum));
    status = tshi_statistics_reduce(axes, sum, TSH_REDUCE_SUM);
    if (status != TSH_OK) return status;
    ops->forward(device, p->log, a.outer, a.n, a.inner, tshi_data(x), tshi_data(max), tshi_data(sum),
                 tshi_data(call->out));
    return TSH_OK;
}

static tsh_status softmax_backward(tsh_call *call) {
    tsh_tensor *y = call->out, *dy = tsh_call_grad_out(call);
    const softmax_params *p = call->params;
    tsh_device *device = tshi_device_of(y);
    tshi_around a = tshi_around_dim(y, p->dim);
    unsigned axes = tshi_axes_splitting(y, p->dim);
    const tshi_softmax_ops *ops = &device->ops->softmax[y->dtype];
    tsh_tensor *dx = tsh_call_grad(call, 0);
    if (!dx) return TSH_ERR_MEMORY;
    if (!axes && a.inner == 1 && ops->whole_backward &&
        ops->whole_backward(device, p->log, a.outer, a.n, tshi_data(y), tshi_data(dy), tshi_data(dx))) {
        return TSH_OK;
    }
    tsh_tensor *dot = tshi_statistics_scratch(call, y, a.outer * a.inner);
    if (!dot) return TSH_ERR_MEMORY;
    ops->dot(device, p->log, a.outer, a.n, a.inner, tshi_data(y), tshi_data(dy), tshi_data(dot));
    tsh_status status = tshi_statistics_reduce(axes, dot, TSH_REDUCE_SUM);
    if (status != TSH_OK) return status;
    ops->backward(device, p->log, a.outer, a.n, a.inner, tshi_data(y), tshi_data(dy), tshi_data(dot), tshi_data(dx));
    return TSH_OK;
}

const tsh_op tshi_softmax_op = {"softmax",       softmax_rules,       tshi_same_shape,
                                softmax_forward, softmax_backward,    .params_size = sizeof(softmax_params),
                                .has_dim = true, .reads_output = true};
static const tsh_op log_softmax_op = {"log_softmax",   softmax_rules,       tshi_same_shape,
                                      softmax_forward, softmax_backward,    .params_size = sizeof(softmax_params),
                                      .has_dim = true, .reads_output = true};

tsh_tensor *tsh_softmax(tsh_tape *tape, tsh_tensor *x, int dim) {
    return tshi_apply(tape, &tshi_softmax_op, 1, &x, &(softmax_params){dim, false});
}

tsh_tensor *tsh_log_softmax(tsh_tape *tape, tsh_tensor *x, int dim) {
    return tshi_apply(tape, &log_softmax_op, 1, &x, &(softmax_params){dim, true});
}
