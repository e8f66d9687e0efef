/* Elements chosen by a mask: masked_fill, and where. */
#include "functional/functional.h"

static tsh_status check_mask(const tsh_tensor *mask) {
    if (mask->dtype == TSH_UINT8) return TSH_OK;
    return tshi_fail(TSH_ERR_DTYPE, "the mask is %s, uint8 wanted", tsh_dtype_name(mask->dtype));
}

/* --- masked_fill -------------------------------------------------------------------------------------------------- */

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
    tsh_status status = check_mask(mask);
    if (status != TSH_OK) return status;
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
    tshi_broadcast o = tshi_broadcast_of(&x->shape, &x->shape, &mask->shape);
    device->ops->elementwise[x->dtype].mask(device, &o, tshi_data(x), tshi_data(mask), false, value, beta,
                                            tshi_data(z));
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
                               .row_holds = tshi_broadcast_row_holds};

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

/* --- where -------------------------------------------------------------------------------------------------------- */

/* mask, x, y */
static const tsh_rule where_rules[] = {{{TSH_AS_R, TSH_AS_R, TSH_AS_R}, TSH_AS_R},
                                       {{TSH_AS_ANY, TSH_AS_ANY, TSH_AS_ANY}, TSH_AS_ANY},
                                       {{TSH_AS_ANY, TSH_AS_ANY, TSH_AS_L}, TSH_AS_ANY},
                                       {{TSH_AS_ANY, TSH_AS_L, TSH_AS_ANY}, TSH_AS_ANY},
                                       {{TSH_AS_ANY, TSH_AS_L, TSH_AS_L}, TSH_AS_ANY},
                                       {{TSH_AS_L, TSH_AS_ANY, TSH_AS_ANY}, TSH_AS_ANY},
                                       {{TSH_AS_L, TSH_AS_ANY, TSH_AS_L}, TSH_AS_ANY},
                                       {{TSH_AS_L, TSH_AS_L, TSH_AS_ANY}, TSH_AS_ANY},
                                       {{TSH_AS_R, TSH_AS_P, TSH_AS_P}, TSH_AS_P},
                                       {{TSH_AS_L, TSH_AS_L, TSH_AS_L}, TSH_AS_L},
                                       {{TSH_ROW_END}, TSH_ROW_END}};

static tsh_status where_shape(const tsh_call *call, tsh_dtype *dtype, tsh_shape *out) {
    const tsh_tensor *x = call->in[1], *y = call->in[2];
    tsh_status status = check_mask(call->in[0]);
    if (status == TSH_OK && x->dtype != y->dtype)
        status = tshi_fail(TSH_ERR_DTYPE, "x is %s, y %s: one float dtype wanted", tsh_dtype_name(x->dtype),
                           tsh_dtype_name(y->dtype));
    if (status != TSH_OK) return status;
    *dtype = x->dtype;
    *out = call->in[0]->shape;
    for (int i = 1; i < 3; i++) {
        for (int d = 0; d < out->ndim; d++) {
            int64_t n = call->in[i]->shape.global[d];
            if (n != 1 && out->global[d] != 1 && n != out->global[d])
                return tshi_check_fails(call->in[0], call->in[i], "sizes must be equal or 1, aligned at the last dim");
            if (n != 1) out->global[d] = n;
        }
    }
    return tshi_check_computes(x->mesh->device, x->dtype, "x");
}

/* z = beta z + the elements of input i, 1 or 2, that are chosen, or of `from`, of the output's shape, in its place. */
static void choose(const tsh_call *call, int i, const tsh_tensor *from, double beta, tsh_tensor *z) {
    const tsh_tensor *mask = call->in[0];
    tsh_device *device = tshi_device_of(z);
    tshi_broadcast o = tshi_broadcast_of(&call->out->shape, &from->shape, &mask->shape);
    device->ops->elementwise[z->dtype].mask(device, &o, tshi_data(from), tshi_data(mask), i == 1, 0, beta,
                                            tshi_data(z));
}

static tsh_status where_forward(tsh_call *call) {
    choose(call, 1, call->in[1], 0, call->out);
    choose(call, 2, call->in[2], 1, call->out);
    return TSH_OK;
}

static tsh_status where_backward(tsh_call *call) {
    const tsh_tensor *dz = tsh_call_grad_out(call);
    tsh_status status = TSH_OK;
    for (int i = 1; i < 3 && status == TSH_OK; i++) {
        if (!tsh_call_wants_grad(call, i)) continue;
        tsh_tensor *chosen = tsh_call_scratch(call, dz->dtype, dz->numel);
        if (!chosen) return TSH_ERR_MEMORY;
        choose(call, i, dz, 0, chosen);
        status = tshi_grad_add_summed(call, i, 1, chosen);
    }
    return status;
}

static const tsh_op where_op = {"where",           where_rules,    where_shape,
                                where_forward,     where_backward, .row_holds = tshi_broadcast_row_holds,
                                .by_element = true};

tsh_tensor *tsh_where(tsh_tape *tape, tsh_tensor *mask, tsh_tensor *x, tsh_tensor *y) {
    tsh_tensor *in[] = {mask, x, y};
    int ndim = 0;
    if (!tshi_tape_ready(tape, "where", 3, in)) return NULL;
    for (int i = 0; i < 3; i++) ndim = in[i]->shape.ndim > ndim ? in[i]->shape.ndim : ndim;
    for (int i = 0; i < 3; i++) in[i] = tshi_align(tape, in[i], ndim);
    return tshi_apply(tape, &where_op, 3, in, NULL);
}
