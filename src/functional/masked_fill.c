/* Elements filled by a mask. */
#include "functional/functional.h"

static const tsh_rule fill_rules[] = {{{TSH_AS_R, TSH_AS_R}, TSH_AS_R},
                                      {{TSH_AS_ANY, TSH_AS_ANY}, TSH_AS_ANY},
                                      {{TSH_AS_ANY, TSH_AS_L}, TSH_AS_ANY},
                                      {{TSH_AS_L, TSH_AS_L}, TSH_AS_L},
                                      {{TSH_ROW_END}, TSH_ROW_END}};

typedef struct fill_params {
    double value;
} fill_params;

static tsh_status fill_shape(const tsh_call *call, tsh_dtype *dtype, tsh_shape *out) {
    const tsh_tensor *x = call->in[0], *mask = call->in[1];
    const tsh_shape *m = &mask->shape;
    if (mask->dtype != TSH_UINT8) {
        return tshi_fail(TSH_ERR_DTYPE, "the mask is %s, uint8 wanted", tsh_dtype_name(mask->dtype));
    }
    *out = x->shape;
    *dtype = x->dtype;
    for (int d = 0; d < out->ndim; d++) {
        if (m->global[d] == 1 || m->global[d] == out->global[d]) continue;
        return tshi_check_fails(x, mask, "the mask's sizes must be x's or 1, aligned at the last dim");
    }
    return tshi_check_computes(x->mesh->device, x->dtype, "x");
}

/* z = beta z + (mask ? value : x) */
static void fill_masked(const tsh_call *call, const tsh_tensor *x, double value, double beta, tsh_tensor *z) {
    const tsh_tensor *mask = call->in[1];
    tsh_device *device = tshi_device_of(x);
    tshi_overlay o = tshi_overlay_of(&x->shape, &x->shape, &mask->shape);
    device->ops->elementwise[x->dtype].mask(device, &o, tshi_data(x), tshi_data(mask), value, beta, tshi_data(z));
}

static tsh_status fill_forward(tsh_call *call) {
    fill_masked(call, call->in[0], ((const fill_params *)call->params)->value, 0, call->out);
    return TSH_OK;
}

static tsh_status fill_backward(tsh_call *call) {
    double beta;
    tsh_tensor *dx = tshi_grad_beta(call, 0, &beta);
    if (!dx) return TSH_ERR_MEMORY;
    fill_masked(call, tsh_call_grad_out(call), 0, beta, dx);
    return TSH_OK;
}

static const tsh_op fill_op = {"masked_fill",
                               fill_rules,
                               fill_shape,
                               fill_forward,
                               fill_backward,
                               .params_size = sizeof(fill_params),
                               .row_holds = tshi_overlay_row_holds};

tsh_tensor *tsh_masked_fill(tsh_tape *tape, tsh_tensor *x, tsh_tensor *mask, double value) {
    tsh_tensor *in[] = {x, mask};
    if (!tshi_tape_ready(tape, "masked_fill", 2, in)) return NULL;
    in[1] = tshi_align(tape, mask, x->shape.ndim);
    if (!in[1] && tsh_tape_status(tape) == TSH_OK) {
        return tshi_tape_fail(tape, TSH_ERR_SHAPE, "masked_fill: the mask has %d dims, x has %d", mask->shape.ndim,
                              x->shape.ndim);
    }
    return tshi_apply(tape, &fill_op, 2, in, &(fill_params){value});
}
