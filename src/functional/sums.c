/* Sum, mean and cumulative sum. */
#include "functional/functional.h"

static const tsh_rule sum_rules[] = {
    {{TSH_AS_R}, TSH_AS_R}, {{TSH_AS_OTHER}, TSH_AS_OTHER}, {{TSH_AS_DIM}, TSH_AS_P},
    {{TSH_AS_P}, TSH_AS_P}, {{TSH_AS_L}, TSH_AS_L},         {{TSH_ROW_END}, TSH_ROW_END},
};
static const tsh_rule sum_all_rules[] = {
    {{TSH_AS_R}, TSH_AS_R}, {{TSH_AS_ANY}, TSH_AS_P},     {{TSH_AS_P}, TSH_AS_P},
    {{TSH_AS_L}, TSH_AS_L}, {{TSH_ROW_END}, TSH_ROW_END},
};

typedef struct sum_params {
    int dim;  /* sum_all_op: none */
    int mean; /* or 0 */
} sum_params;

/* Dims after the summed one move up by one. */
static int sum_map_dim(const tsh_call *call, int axis, int d) {
    (void)axis;
    return d > tshi_call_dim(call) ? d - 1 : d;
}

static tsh_status sum_shape(const tsh_call *call, tsh_dtype *dtype, tsh_shape *out) {
    const tsh_shape *x = &call->in[0]->shape;
    for (int d = 0; d < x->ndim; d++) {
        if (d != tshi_call_dim(call)) out->global[out->ndim++] = x->global[d];
    }
    return tshi_check_floats(call, dtype);
}

static tsh_status sum_all_shape(const tsh_call *call, tsh_dtype *dtype, tsh_shape *out) {
    out->ndim = 0;
    return tshi_check_floats(call, dtype);
}

/* The factor of the sum: 1, or for a mean 1 / (the global number of elements in one sum). */
static double scale_of(const tsh_call *call) {
    const tsh_shape *x = &call->in[0]->shape;
    int dim = tshi_call_dim(call);
    double n = 1;
    if (!((const sum_params *)call->params)->mean) return 1;
    for (int d = 0; d < x->ndim; d++) {
        if (dim < 0 || d == dim) n *= (double)x->global[d];
    }
    return 1 / n;
}

/* This rank's part around the summed dim; dim < 0: all of it as one run. */
static tshi_around around(const tsh_tensor *x, int dim) {
    return dim < 0 ? (tshi_around){1, x->numel, 1} : tshi_around_dim(x, dim);
}

static tsh_status sum_forward(tsh_call *call) {
    const tsh_tensor *x = call->in[0];
    tsh_device *device = tshi_device_of(x);
    tshi_around a = around(x, tshi_call_dim(call));
    device->ops->sum[x->dtype].over_dim(device, a.outer, a.n, a.inner, scale_of(call), tshi_data(x),
                                        tshi_data(call->out));
    return TSH_OK;
}

static tsh_status sum_backward(tsh_call *call) {
    tsh_tensor *dx = tsh_call_grad(call, 0);
    if (!dx) return TSH_ERR_MEMORY;
    tsh_device *device = tshi_device_of(dx);
    tshi_around a = around(dx, tshi_call_dim(call));
    device->ops->sum[dx->dtype].over_dim_backward(device, a.outer, a.n, a.inner, scale_of(call),
                                                  tshi_data(tsh_call_grad_out(call)), tshi_data(dx));
    return TSH_OK;
}

static const tsh_op sum_op = {"sum",
                              sum_rules,
                              sum_shape,
                              sum_forward,
                              sum_backward,
                              .map_dim = sum_map_dim,
                              .params_size = sizeof(sum_params),
                              .has_dim = true,
                              .reads_no_input = true};
static const tsh_op sum_all_op = {"sum",
                                  sum_all_rules,
                                  sum_all_shape,
                                  sum_forward,
                                  sum_backward,
                                  .params_size = sizeof(sum_params),
                                  .reads_no_input = true};

static tsh_tensor *sum_or_mean(tsh_tape *tape, tsh_tensor *x, sum_params params) {
    return tshi_apply(tape, params.dim == TSH_ALL_DIMS ? &sum_all_op : &sum_op, 1, &x, &params);
}

tsh_tensor *tsh_sum(tsh_tape *tape, tsh_tensor *x, int dim) {
    return sum_or_mean(tape, x, (sum_params){dim, false});
}

tsh_tensor *tsh_mean(tsh_tape *tape, tsh_tensor *x, int dim) {
    return sum_or_mean(tape, x, (sum_params){dim, true});
}

/* --- cumulative sum ----------------------------------------------------------------------------------------------- */

static const tsh_rule cumsum_rules[] = {
    {{TSH_AS_R}, TSH_AS_R}, {{TSH_AS_OTHER}, TSH_AS_OTHER}, {{TSH_AS_P}, TSH_AS_P},
    {{TSH_AS_L}, TSH_AS_L}, {{TSH_ROW_END}, TSH_ROW_END},
};

typedef struct cumsum_params {
    int dim;
} cumsum_params;

static void cumulate(const tsh_call *call, bool reverse, const tsh_tensor *x, double beta, const tsh_tensor *y) {
    tsh_device *device = tshi_device_of(x);
    tshi_around a = tshi_around_dim(x, tshi_call_dim(call));
    device->ops->sum[x->dtype].cumulative(device, reverse, a.outer, a.n, a.inner, tshi_data(x), beta, tshi_data(y));
}

static tsh_status cumsum_forward(tsh_call *call) {
    cumulate(call, false, call->in[0], 0, call->out);
    return TSH_OK;
}

static tsh_status cumsum_backward(tsh_call *call) {
    double beta;
    const tsh_tensor *dx = tshi_grad_beta(call, 0, &beta);
    if (!dx) return TSH_ERR_MEMORY;
    cumulate(call, true, tsh_call_grad_out(call), beta, dx);
    return TSH_OK;
}

static const tsh_op cumsum_op = {"cumsum",        cumsum_rules,          tshi_same_shape,
                                 cumsum_forward,  cumsum_backward,       .params_size = sizeof(cumsum_params),
                                 .has_dim = true, .reads_no_input = true};

tsh_tensor *tsh_cumsum(tsh_tape *tape, tsh_tensor *x, int dim) {
    return tshi_apply(tape, &cumsum_op, 1, &x, &(cumsum_params){dim});
}
