/* Rotary positions: pairs of elements are rotated by angles proportional to the token's position. */
#include "functional/functional.h"

#include <math.h>

/* x, positions [T] */
static const tsh_rule shared_rules[] = {
    {{TSH_AS_R, TSH_AS_R}, TSH_AS_R}, {{TSH_AS_S1, TSH_AS_S0}, TSH_AS_S1}, {{TSH_AS_BATCH, TSH_AS_R}, TSH_AS_BATCH},
    {{TSH_AS_P, TSH_AS_R}, TSH_AS_P}, {{TSH_AS_L, TSH_AS_L}, TSH_AS_L},    {{TSH_ROW_END}, TSH_ROW_END},
};
/* x, positions [B, T] */
static const tsh_rule batched_rules[] = {
    {{TSH_AS_R, TSH_AS_R}, TSH_AS_R}, {{TSH_AS_ANY, TSH_AS_ANY}, TSH_AS_ANY}, {{TSH_AS_BATCH, TSH_AS_R}, TSH_AS_BATCH},
    {{TSH_AS_P, TSH_AS_R}, TSH_AS_P}, {{TSH_AS_L, TSH_AS_L}, TSH_AS_L},       {{TSH_ROW_END}, TSH_ROW_END},
};

/* With replicated positions, x may be sharded along dims that positions lack. */
static bool row_holds(const tsh_call *call, const tsh_rule *row, int d) {
    return row->in[1] != TSH_AS_R || d == 2 || (d == 0 && call->in[1]->shape.ndim == 1);
}

typedef struct rotary_params {
    double theta;
    int64_t pairs; /* or 0 */
    int64_t dims;
    tsh_rotary_scaling scaling;
} rotary_params;

/* factor 0: no scaling; original_positions 0: all frequencies are divided. */
static tsh_status check_scaling(const tsh_rotary_scaling *s) {
    bool good = s->factor == 0 || (s->factor > 0 && isfinite(s->factor));
    bool turns = s->low_freq_factor > 0 && s->high_freq_factor > s->low_freq_factor && isfinite(s->high_freq_factor);
    if (good && (s->original_positions == 0 || (s->original_positions > 0 && turns))) return TSH_OK;
    return tshi_fail(TSH_ERR_ARGUMENT,
                     "scaling by factor %g, low_freq_factor %g, high_freq_factor %g, original_positions %lld: factor "
                     "must be above 0, and with original_positions 0 < low_freq_factor < high_freq_factor",
                     s->factor, s->low_freq_factor, s->high_freq_factor, (long long)s->original_positions);
}

static tsh_status rotary_shape(const tsh_call *call, tsh_dtype *dtype, tsh_shape *out) {
    const tsh_tensor *x = call->in[0], *positions = call->in[1];
    const rotary_params *p = call->params;
    *out = x->shape;
    *dtype = x->dtype;
    tsh_status status = tshi_check_computes(x->mesh->device, x->dtype, "x");
    if (status != TSH_OK) return status;
    if (positions->dtype != TSH_INT64) {
        return tshi_fail(TSH_ERR_DTYPE, "positions are %s: int64 wanted", tsh_dtype_name(positions->dtype));
    }
    const tsh_shape *s = &positions->shape;
    bool good = x->shape.ndim == 4 && (s->ndim == 1 || s->ndim == 2) && s->global[s->ndim - 1] == x->shape.global[1] &&
                (s->ndim == 1 || s->global[0] == x->shape.global[0]);
    if (!good) return tshi_check_fails(x, positions, "x [B, T, H, D], positions [T] or [B, T] wanted");
    if (!(p->theta > 0 && isfinite(p->theta))) {
        return tshi_fail(TSH_ERR_ARGUMENT, "theta is %g, must be in (0, inf)", p->theta);
    }
    if (p->dims < 0 || p->dims > x->shape.global[3] || p->dims % 2 != 0) {
        return tshi_fail(TSH_ERR_ARGUMENT, "dims=%lld of %lld: it must be an even number", (long long)p->dims,
                         (long long)x->shape.global[3]);
    }
    return check_scaling(&p->scaling);
}

/* y = beta y + x rotated, or with `back` rotated back. */
static void rotate_heads(const tsh_call *call, bool back, const tsh_tensor *x, double beta, tsh_tensor *y) {
    const rotary_params *p = call->params;
    const tsh_rotary_scaling *s = &p->scaling;
    bool llama3 = s->factor > 0 && s->original_positions > 0;
    tsh_device *device = tshi_device_of(x);
    tshi_rotary r = {.batch = x->shape.local[0],
                     .tokens = x->shape.local[1],
                     .heads = x->shape.local[2],
                     .dim = x->shape.local[3],
                     .dims = p->dims,
                     .pairs = p->pairs != 0,
                     .batched = call->in[1]->shape.ndim == 2,
                     .theta = p->theta,
                     .factor = s->factor > 0 ? s->factor : 1,
                     .low = llama3 ? s->low_freq_factor : 1,
                     .high = llama3 ? s->high_freq_factor : 2,
                     .original = llama3 ? (double)s->original_positions : 0,
                     .positions = tshi_data(call->in[1])};
    device->ops->attention[x->dtype].rotary(device, &r, back, tshi_data(x), beta, tshi_data(y));
}

static tsh_status rotary_forward(tsh_call *call) {
    rotate_heads(call, false, call->in[0], 0, call->out);
    return TSH_OK;
}

static tsh_status rotary_backward(tsh_call *call) {
    double beta;
    tsh_tensor *dx = tshi_grad_beta(call, 0, &beta);
    if (!dx) return TSH_ERR_MEMORY;
    rotate_heads(call, true, tsh_call_grad_out(call), beta, dx);
    return TSH_OK;
}

static const tsh_op rotary_op = {"rotary",
                                 shared_rules,
                                 rotary_shape,
                                 rotary_forward,
                                 rotary_backward,
                                 .params_size = sizeof(rotary_params),
                                 .row_holds = row_holds};
static const tsh_op batched_op = {"rotary",
                                  batched_rules,
                                  rotary_shape,
                                  rotary_forward,
                                  rotary_backward,
                                  .params_size = sizeof(rotary_params),
                                  .row_holds = row_holds};

tsh_tensor *tsh_rotary(tsh_tape *tape, tsh_tensor *x, tsh_tensor *positions, const tsh_rotary_config *config) {
    tsh_rotary_config c = config ? *config : (tsh_rotary_config){0};
    rotary_params params = {c.theta == 0 ? 10000 : c.theta, c.order == TSH_ROTARY_PAIRS, c.dims, c.scaling};
    if (c.dims == 0 && x && x->shape.ndim > 0) params.dims = x->shape.global[x->shape.ndim - 1];
    return tshi_apply(tape, positions && positions->shape.ndim == 2 ? &batched_op : &rotary_op, 2,
                      (tsh_tensor *[]){x, positions}, &params);
}
