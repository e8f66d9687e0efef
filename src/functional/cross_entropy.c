/* Cross entropy, also of logits whose classes are split over ranks: rows' maxima and sums are reduced, logits are never
 * sent. */
#include "functional/functional.h"

/* logits, target, class weights */
static const tsh_rule reduced_row_rules[] = {
    {{TSH_AS_R, TSH_AS_R, TSH_AS_R}, TSH_AS_R},
    {{TSH_AS_LAST, TSH_AS_R, TSH_AS_S0}, TSH_AS_R}, /* vocabulary-parallel */
    {{TSH_AS_BATCH, TSH_AS_ANY, TSH_AS_L}, TSH_AS_R},
    {{TSH_AS_L, TSH_AS_L, TSH_AS_L}, TSH_AS_L},
    {{TSH_ROW_END}, TSH_ROW_END},
};
static const tsh_rule rows_rules[] = {
    {{TSH_AS_R, TSH_AS_R, TSH_AS_R}, TSH_AS_R},
    {{TSH_AS_LAST, TSH_AS_R, TSH_AS_S0}, TSH_AS_R},
    {{TSH_AS_BATCH, TSH_AS_ANY, TSH_AS_L}, TSH_AS_ANY},
    {{TSH_AS_L, TSH_AS_L, TSH_AS_L}, TSH_AS_L},
    {{TSH_ROW_END}, TSH_ROW_END},
};

typedef struct cross_entropy_params {
    int64_t ignore_index;
    double smoothing;
    tsh_reduction reduction;
    unsigned padding; /* named, so that initializers clear it */
} cross_entropy_params;

/* Saved tensors. MAX: the rows' maxima; SUMS: four sums a row (kernels.h), then with smoothing the sum of all classes'
 * weights; TOTALS: the column sums of SUMS. */
enum { MAX, SUMS, TOTALS };
/* Elements of TOTALS: the sum of w_t in its column, the sum of L_i in an unused column. */
enum { NUMERATOR = 1, DENOMINATOR = 2, TOTALS_COUNT = 4 };

static void *element(const tsh_tensor *t, int64_t index) {
    return (char *)tshi_data(t) + (size_t)index * tsh_dtype_size(t->dtype);
}

static const tsh_tensor *weights_of(const tsh_call *call) {
    return call->inputs == 3 ? call->in[2] : NULL;
}

static bool sums_weights(const tsh_call *call) {
    const cross_entropy_params *p = call->params;
    return weights_of(call) && p->smoothing != 0;
}

/* The kernels' view of a call; SUMS must have memory. */
static tshi_classes classes_of(const tsh_call *call) {
    const cross_entropy_params *p = call->params;
    const tsh_tensor *logits = call->in[0];
    int64_t rows = call->in[1]->numel;
    int last = logits->shape.ndim - 1;
    return (tshi_classes){.rows = rows,
                          .n = logits->shape.local[last],
                          .start = tshi_shape_start(logits->mesh, &logits->shape, logits->layout, last),
                          .classes = logits->shape.global[last],
                          .ignore_index = p->ignore_index,
                          .smoothing = p->smoothing,
                          .weight = tshi_data(weights_of(call)),
                          .weight_sum = sums_weights(call) ? element(call->saved[SUMS], 4 * rows) : NULL};
}

/* --- shape -------------------------------------------------------------------------------------------------------- */

tsh_status tshi_entropy_check_params(double smoothing, tsh_reduction reduction) {
    if (!(smoothing >= 0 && smoothing <= 1)) {
        return tshi_fail(TSH_ERR_ARGUMENT, "label_smoothing %g is outside [0, 1]", smoothing);
    }
    if (reduction == TSH_REDUCTION_MEAN || reduction == TSH_REDUCTION_SUM || reduction == TSH_REDUCTION_NONE) {
        return TSH_OK;
    }
    return tshi_fail(TSH_ERR_ARGUMENT, "unknown reduction %d", (int)reduction);
}

tsh_status tshi_entropy_check_target(const tsh_tensor *logits, const tsh_tensor *target, const char *wanted) {
    const tsh_shape *l = &logits->shape, *t = &target->shape;
    bool fits = t->ndim == l->ndim - 1;
    for (int d = 0; fits && d < t->ndim; d++) fits = t->global[d] == l->global[d];
    if (!fits) return tshi_check_fails(logits, target, wanted);
    if (target->dtype == TSH_INT64) return TSH_OK;
    return tshi_fail(TSH_ERR_DTYPE, "the target is %s, int64 wanted", tsh_dtype_name(target->dtype));
}

tsh_status tshi_entropy_check_weight(const tsh_tensor *weight, int64_t classes, tsh_dtype dtype) {
    if (!weight) return TSH_OK;
    if (weight->shape.ndim == 1 && weight->shape.global[0] == classes && weight->dtype == dtype) return TSH_OK;
    return tshi_fail(TSH_ERR_SHAPE, "the class weights are %s, %s [%lld] wanted", TSHI_TENSOR_TEXT(weight),
                     tsh_dtype_name(dtype), (long long)classes);
}

static tsh_status check_logits(const tsh_tensor *logits) {
    if (logits->shape.ndim == 0) {
        return tshi_fail(TSH_ERR_SHAPE, "logits are %s, [..., classes] wanted", TSHI_TENSOR_TEXT(logits));
    }
    return tshi_check_computes(logits->mesh->device, logits->dtype, "the logits' dtype");
}

static tsh_status entropy_shape(const tsh_call *call, tsh_dtype *dtype, tsh_shape *out) {
    const cross_entropy_params *p = call->params;
    const tsh_tensor *logits = call->in[0], *target = call->in[1];
    tsh_status status = tshi_entropy_check_params(p->smoothing, p->reduction);
    if (status == TSH_OK) status = check_logits(logits);
    if (status == TSH_OK) status = tshi_entropy_check_target(logits, target, "[..., classes] and [...] wanted");
    if (status == TSH_OK)
        status =
            tshi_entropy_check_weight(weights_of(call), logits->shape.global[logits->shape.ndim - 1], logits->dtype);
    *dtype = tshi_dtype_sum(logits->dtype);
    out->ndim = 0;
    if (p->reduction == TSH_REDUCTION_NONE) *out = target->shape;
    return status;
}

/* --- forward: the rows' maxima and sums over all classes ---------------------------------------------------------- */

tsh_status tshi_entropy_check_range(const tsh_tensor *targets, const tshi_classes *c) {
    tsh_device *device = tshi_device_of(targets);
    const int64_t *target = tshi_data(targets);
    int64_t bad = device->ops->targets_check(device, c, target), value;
    if (bad < 0) return TSH_OK;
    device->ops->copy.to_host(device, sizeof value, target + bad, &value);
    return tshi_fail(TSH_ERR_RANGE, "target %lld at index %lld is outside [0, %lld) and not ignore_index %lld",
                     (long long)value, (long long)bad, (long long)c->classes, (long long)c->ignore_index);
}

tsh_status tshi_entropy_sum_weights(tsh_call *call, const tsh_tensor *weight, void *to) {
    tsh_device *device = tshi_device_of(weight);
    const tsh_tensor *wide = tshi_statistics_scratch(call, weight, weight->numel);
    if (!wide) return TSH_ERR_MEMORY;
    device->ops->copy.convert(device, wide->numel, weight->dtype, tshi_data(weight), wide->dtype, tshi_data(wide));
    device->ops->sum[wide->dtype].over_dim(device, 1, wide->numel, 1, 1, tshi_data(wide), to);
    return TSH_OK;
}

/* Reduces the rows' maxima and sums over this slice of the classes to those over all classes. */
static tsh_status reduce_classes(tsh_call *call, const tshi_classes *c, unsigned axes) {
    const tsh_tensor *logits = call->in[0];
    tsh_device *device = tshi_device_of(logits);
    tsh_tensor *max = call->saved[MAX], *sums = call->saved[SUMS];
    const tsh_tensor *own = tshi_statistics_scratch(call, logits, c->rows);
    if (!own) return TSH_ERR_MEMORY;
    device->ops->copy.within(device, tsh_tensor_local_nbytes(max), tshi_data(max), tshi_data(own));
    tsh_status status = tshi_statistics_reduce(axes, max, TSH_REDUCE_MAX);
    if (status != TSH_OK) return status;
    device->ops->cross_entropy[logits->dtype].shift(device, c, tshi_data(own), tshi_data(max), tshi_data(sums));
    return tshi_statistics_reduce(axes, sums, TSH_REDUCE_SUM);
}

static tsh_status sum_rows(tsh_call *call, const tshi_classes *c) {
    const tsh_tensor *logits = call->in[0];
    tsh_device *device = tshi_device_of(logits);
    unsigned axes = tshi_axes_splitting(logits, logits->shape.ndim - 1);
    tsh_tensor *sums = call->saved[SUMS];
    device->ops->cross_entropy[logits->dtype].sums(device, c, tshi_data(logits), tshi_data(call->in[1]),
                                                   tshi_data(call->saved[MAX]), tshi_data(sums));
    tsh_status status =
        sums_weights(call) ? tshi_entropy_sum_weights(call, call->in[2], element(sums, 4 * c->rows)) : TSH_OK;
    return status == TSH_OK && axes ? reduce_classes(call, c, axes) : status;
}

/* --- forward: the losses and their reduction ---------------------------------------------------------------------- */

/* The sums of L_i and of w_t over all ranks that hold rows. */
static tsh_status make_totals(tsh_call *call, const tshi_classes *c, const tsh_tensor *losses) {
    const tsh_tensor *logits = call->in[0];
    tsh_device *device = tshi_device_of(logits);
    unsigned axes = tshi_axes_splitting(logits, -1) & ~tshi_axes_splitting(logits, logits->shape.ndim - 1);
    tsh_shape two = {.ndim = 1, .local = {2}, .global = {2}};
    tsh_tensor *pair = NULL;
    tsh_tensor *totals = tshi_statistics_save(call, TOTALS, logits, TOTALS_COUNT);
    if (!totals) return TSH_ERR_MEMORY;
    device->ops->sum[totals->dtype].over_dim(device, 1, c->rows, 4, 1, tshi_data(call->saved[SUMS]), tshi_data(totals));
    device->ops->sum[totals->dtype].over_dim(device, 1, c->rows, 1, 1, tshi_data(losses), element(totals, NUMERATOR));
    tsh_status status = tshi_tensor_view(totals, &two, totals->layout, tsh_dtype_size(totals->dtype), &pair);
    if (status == TSH_OK) status = tshi_statistics_reduce(axes, pair, TSH_REDUCE_SUM);
    tshi_tensor_release(pair);
    return status;
}

static tsh_status reduce_losses(tsh_call *call, const tshi_classes *c, const tsh_tensor *losses) {
    const cross_entropy_params *p = call->params;
    tsh_device *device = tshi_device_of(losses);
    tsh_status status = make_totals(call, c, losses);
    if (status != TSH_OK) return status;
    tsh_tensor *out = call->out;
    const void *sum = element(call->saved[TOTALS], NUMERATOR), *weight = element(call->saved[TOTALS], DENOMINATOR);
    if (p->reduction == TSH_REDUCTION_MEAN) {
        device->ops->elementwise[out->dtype].binary(device, TSHI_DIV, &(tshi_broadcast){1, {1}, {1}, {1}}, sum, weight,
                                                    tshi_data(out));
    } else {
        device->ops->copy.within(device, tsh_dtype_size(out->dtype), sum, tshi_data(out));
    }
    return TSH_OK;
}

static tsh_status make_loss(tsh_call *call, const tshi_classes *c) {
    const cross_entropy_params *p = call->params;
    const tsh_tensor *logits = call->in[0];
    tsh_device *device = tshi_device_of(logits);
    bool reduces = p->reduction != TSH_REDUCTION_NONE;
    const tsh_tensor *losses = reduces ? tshi_statistics_scratch(call, logits, c->rows) : call->out;
    if (!losses) return TSH_ERR_MEMORY;
    device->ops->cross_entropy[logits->dtype].loss(device, c, tshi_data(call->in[1]), tshi_data(call->saved[SUMS]),
                                                   tshi_data(losses));
    return reduces ? reduce_losses(call, c, losses) : TSH_OK;
}

static tsh_status entropy_forward(tsh_call *call) {
    const tsh_tensor *logits = call->in[0];
    int64_t rows = call->in[1]->numel;
    bool saved = tshi_statistics_save(call, MAX, logits, rows) &&
                 tshi_statistics_save(call, SUMS, logits, 4 * rows + sums_weights(call));
    if (!saved) return TSH_ERR_MEMORY;
    tshi_classes c = classes_of(call);
    tsh_status status = tshi_entropy_check_range(call->in[1], &c);
    if (status == TSH_OK) status = sum_rows(call, &c);
    return status == TSH_OK ? make_loss(call, &c) : status;
}

/* --- backward ----------------------------------------------------------------------------------------------------- */

static tsh_status entropy_backward(tsh_call *call) {
    const cross_entropy_params *p = call->params;
    const tsh_tensor *logits = call->in[0];
    tsh_device *device = tshi_device_of(logits);
    double beta;
    if (!tsh_call_wants_grad(call, 0)) return TSH_OK;
    tsh_tensor *dlogits = tshi_grad_beta(call, 0, &beta);
    if (!dlogits) return TSH_ERR_MEMORY;
    tshi_classes c = classes_of(call);
    int64_t dloss_stride = p->reduction == TSH_REDUCTION_NONE ? 1 : 0;
    const void *divisor = p->reduction == TSH_REDUCTION_MEAN ? element(call->saved[TOTALS], DENOMINATOR) : NULL;
    device->ops->cross_entropy[logits->dtype].backward(device, &c, tshi_data(logits), tshi_data(call->in[1]),
                                                       tshi_data(call->saved[MAX]), tshi_data(call->saved[SUMS]),
                                                       tshi_data(tsh_call_grad_out(call)), dloss_stride, divisor, beta,
                                                       tshi_data(dlogits));
    return TSH_OK;
}

const tsh_op tshi_cross_entropy_op = {"cross_entropy", reduced_row_rules, entropy_shape,
                                      entropy_forward, entropy_backward,  .params_size = sizeof(cross_entropy_params)};
static const tsh_op rows_op = {"cross_entropy", rows_rules,       entropy_shape,
                               entropy_forward, entropy_backward, .params_size = sizeof(cross_entropy_params)};

tsh_tensor *tsh_cross_entropy(tsh_tape *tape, tsh_tensor *logits, tsh_tensor *target,
                              const tsh_cross_entropy_config *config) {
    static const tsh_cross_entropy_config defaults = {0};
    const tsh_cross_entropy_config *c = config ? config : &defaults;
    const tsh_op *op = c->reduction == TSH_REDUCTION_NONE ? &rows_op : &tshi_cross_entropy_op;
    return tshi_apply(tape, op, c->weight ? 3 : 2, (tsh_tensor *[]){logits, target, c->weight},
                      &(cross_entropy_params){.ignore_index = c->has_ignore_index ? c->ignore_index : -100,
                                              .smoothing = c->label_smoothing,
                                              .reduction = c->reduction});
}
