/* Cross entropy, also of logits whose classes are split over ranks: the rows' maxima and sums are reduced, the logits
 * never move. */
#include "functional/functional.h"

static const char name[] = "cross_entropy";

/* logits, target, class weights */
static const tshi_rule reduced_rules[] = {
    {{TSHI_R, TSHI_R, TSHI_R}, TSHI_R},       {{TSHI_LAST, TSHI_R, TSHI_S0}, TSHI_R}, /* vocabulary-parallel */
    {{TSHI_BATCH, TSHI_ANY, TSHI_L}, TSHI_R}, {{TSHI_L, TSHI_L, TSHI_L}, TSHI_L},     {{TSHI_END}, TSHI_END},
};
static const tshi_rule rows_rules[] = {
    {{TSHI_R, TSHI_R, TSHI_R}, TSHI_R},
    {{TSHI_LAST, TSHI_R, TSHI_S0}, TSHI_R},
    {{TSHI_BATCH, TSHI_ANY, TSHI_L}, TSHI_ANY},
    {{TSHI_L, TSHI_L, TSHI_L}, TSHI_L},
    {{TSHI_END}, TSHI_END},
};

typedef struct cross_entropy_params {
    int64_t ignore_index;
    double smoothing;
    tsh_reduction reduction;
} cross_entropy_params;

enum { MAX, SUMS, TOTALS }; /* saved */
/* Elements of TOTALS: the columns' sums of SUMS, of which two places are free for others. */
enum { NUMERATOR = 1, DENOMINATOR = 2, TOTALS_COUNT = 4 };

static const cross_entropy_params *params_of(const tshi_node *call) {
    return call->params;
}

/* Of the statistics. */
static tsh_dtype sum_dtype(const tshi_node *call) {
    return tshi_dtype_sum(call->in[0]->dtype);
}

static void *place(const tsh_tensor *t, int64_t index) {
    return (char *)tshi_data(t) + (size_t)index * tsh_dtype_size(t->dtype);
}

static int last_dim(const tsh_tensor *logits) {
    return logits->shape.ndim - 1;
}

static const tsh_tensor *weights_of(const tshi_node *call) {
    return call->inputs == 3 ? call->in[2] : NULL;
}

/* Smoothing wants the sum of all classes' weights; it travels at the end of SUMS. */
static bool sums_weights(const tshi_node *call) {
    return weights_of(call) && params_of(call)->smoothing != 0;
}

static tshi_classes classes_of(const tshi_node *call) {
    const tsh_tensor *logits = call->in[0], *weight = weights_of(call);
    int last = last_dim(logits);
    return (tshi_classes){.rows = call->in[1]->numel,
                          .n = logits->shape.local[last],
                          .start = tshi_shape_start(logits->mesh, &logits->shape, logits->layout, last),
                          .classes = logits->shape.global[last],
                          .ignore_index = params_of(call)->ignore_index,
                          .smoothing = params_of(call)->smoothing,
                          .weight = weight ? tshi_data(weight) : NULL};
}

/* --- shapes ------------------------------------------------------------------------------------------------------- */

static tsh_status check_target(const tsh_tensor *logits, const tsh_tensor *target) {
    char a[160], b[160];
    const tshi_shape *l = &logits->shape, *t = &target->shape;
    bool fits = t->ndim == l->ndim - 1;
    for (int d = 0; fits && d < t->ndim; d++) fits = t->global[d] == l->global[d];
    if (!fits) {
        return tshi_fail(TSH_ERR_SHAPE, "logits are %s and the target %s, [..., classes] and [...] wanted",
                         tsh_tensor_describe(logits, a, sizeof a), tsh_tensor_describe(target, b, sizeof b));
    }
    if (target->dtype == TSH_INT64) return TSH_OK;
    return tshi_fail(TSH_ERR_DTYPE, "the target is %s, int64 wanted", tsh_dtype_name(target->dtype));
}

static tsh_status check_weight(const tsh_tensor *logits, const tsh_tensor *weight) {
    char text[160];
    if (!weight) return TSH_OK;
    int64_t classes = logits->shape.global[last_dim(logits)];
    if (weight->shape.ndim == 1 && weight->shape.global[0] == classes && weight->dtype == logits->dtype) return TSH_OK;
    return tshi_fail(TSH_ERR_SHAPE, "the class weights are %s, %s [%lld] wanted",
                     tsh_tensor_describe(weight, text, sizeof text), tsh_dtype_name(logits->dtype), (long long)classes);
}

static tsh_status check_logits(const tsh_tensor *logits) {
    char text[160];
    if (logits->shape.ndim == 0) {
        return tshi_fail(TSH_ERR_SHAPE, "logits are %s, [..., classes] wanted",
                         tsh_tensor_describe(logits, text, sizeof text));
    }
    return tshi_check_computes(logits->mesh->device, logits->dtype, "the logits' dtype");
}

/* The inputs are known to fit. */
static tsh_status shape(const tshi_node *call, tsh_dtype *dtype, tshi_shape *out) {
    *dtype = sum_dtype(call);
    if (params_of(call)->reduction == TSH_REDUCTION_NONE) *out = call->in[1]->shape;
    return TSH_OK; /* [] otherwise, as *out came */
}

/* --- forward ------------------------------------------------------------------------------------------------------ */

static tsh_status check_range(const tshi_node *call, const tshi_classes *c) {
    tsh_device *device = tshi_device_of(call->in[0]);
    const int64_t *target = tshi_data(call->in[1]);
    int64_t bad = device->ops->cross_entropy.check(device, c, target), value;
    if (bad < 0) return TSH_OK;
    device->ops->copy.to_host(device, sizeof value, target + bad, &value);
    return tshi_fail(TSH_ERR_RANGE, "target %lld at place %lld is outside [0, %lld) and not ignore_index %lld",
                     (long long)value, (long long)bad, (long long)c->classes, (long long)c->ignore_index);
}

/* Whether an axis splits logits, along the classes or along other dims. */
static bool splits(const tsh_tensor *logits, int axis, bool classes) {
    tsh_layout layout = logits->layout[axis];
    if (layout.kind != TSH_KIND_SHARD || logits->mesh->axis[axis].size == 1) return false;
    return (layout.dim == last_dim(logits)) == classes;
}

static bool splits_classes(const tsh_tensor *logits) {
    for (int a = 0; a < logits->mesh->axes; a++)
        if (splits(logits, a, true)) return true;
    return false;
}

/* `part` over the axes that split the classes, or over those that split the rows. */
static tsh_status reduce_over(const tsh_tensor *logits, bool classes, tsh_tensor *part, tsh_reduce_op op) {
    tsh_status status = TSH_OK;
    for (int a = 0; a < logits->mesh->axes && status == TSH_OK; a++)
        if (splits(logits, a, classes)) status = tsh_all_reduce(logits->mesh->axis[a].group, part, op);
    return status;
}

/* The sum of this slice's class weights, which are of the logits' dtype, into *to. */
static tsh_status sum_weights(const tshi_node *call, const tsh_tensor *weight, int64_t n, void *to) {
    tsh_device *device = tshi_device_of(call->in[0]);
    tsh_tensor *wide = NULL;
    tsh_status status = tshi_tensor_scratch(weight->mesh, sum_dtype(call), n, &wide);
    if (status != TSH_OK) return status;
    device->ops->copy.convert(device, n, weight->dtype, tshi_data(weight), wide->dtype, tshi_data(wide));
    device->ops->sum.over_dim(device, wide->dtype, 1, n, 1, 1, tshi_data(wide), to);
    tsh_tensor_release(wide);
    return TSH_OK;
}

/* The rows' maxima become those of all classes, and the sums relative to them. */
static tsh_status share_maxima(tshi_node *call, const tshi_classes *c) {
    tsh_device *device = tshi_device_of(call->in[0]);
    tsh_tensor *max = call->saved[MAX], *own = NULL;
    tsh_status status = tshi_tensor_scratch(max->mesh, max->dtype, c->rows, &own);
    if (status != TSH_OK) return status;
    device->ops->copy.within(device, tsh_tensor_local_nbytes(max), tshi_data(max), tshi_data(own));
    status = reduce_over(call->in[0], true, max, TSH_MAX);
    if (status == TSH_OK) {
        device->ops->cross_entropy.shift(device, call->in[0]->dtype, c, tshi_data(own), tshi_data(max),
                                         tshi_data(call->saved[SUMS]));
    }
    tsh_tensor_release(own);
    return status;
}

/* The rows' maxima and sums over all classes. */
static tsh_status rows_sums(tshi_node *call, tshi_classes *c) {
    tsh_device *device = tshi_device_of(call->in[0]);
    const tsh_tensor *logits = call->in[0], *weight = weights_of(call);
    bool extra = sums_weights(call);
    tsh_status status = tshi_tensor_scratch(logits->mesh, sum_dtype(call), c->rows, &call->saved[MAX]);
    if (status != TSH_OK) return status;
    status = tshi_tensor_scratch(logits->mesh, sum_dtype(call), 4 * c->rows + (extra ? 1 : 0), &call->saved[SUMS]);
    if (status != TSH_OK) return status;
    tsh_tensor *sums = call->saved[SUMS];
    device->ops->cross_entropy.sums(device, logits->dtype, c, tshi_data(logits), tshi_data(call->in[1]),
                                    tshi_data(call->saved[MAX]), tshi_data(sums));
    if (extra) status = sum_weights(call, weight, c->n, place(sums, 4 * c->rows));
    if (status != TSH_OK) return status;
    c->weight_sum = extra ? place(sums, 4 * c->rows) : NULL;
    if (!splits_classes(logits)) return TSH_OK;
    status = share_maxima(call, c);
    return status == TSH_OK ? reduce_over(logits, true, sums, TSH_SUM) : status;
}

/* The rows' losses become sum L_i and sum of w_t, over all ranks that hold rows. */
static tsh_status make_totals(tshi_node *call, const tshi_classes *c, const tsh_tensor *losses) {
    tsh_device *device = tshi_device_of(call->in[0]);
    const tsh_tensor *logits = call->in[0];
    tsh_tensor *pair = NULL;
    tsh_status status = tshi_tensor_scratch(logits->mesh, sum_dtype(call), TOTALS_COUNT, &call->saved[TOTALS]);
    if (status != TSH_OK) return status;
    tsh_tensor *totals = call->saved[TOTALS];
    device->ops->sum.over_dim(device, totals->dtype, 1, c->rows, 4, 1, tshi_data(call->saved[SUMS]), tshi_data(totals));
    device->ops->sum.over_dim(device, totals->dtype, 1, c->rows, 1, 1, tshi_data(losses), place(totals, NUMERATOR));
    tshi_shape two = {.ndim = 1, .local = {2}, .global = {2}};
    status = tshi_tensor_view(totals, &two, totals->layout, tsh_dtype_size(totals->dtype), &pair);
    if (status == TSH_OK) status = reduce_over(logits, false, pair, TSH_SUM);
    tsh_tensor_release(pair);
    return status;
}

static tsh_status reduce_rows(tshi_node *call, const tshi_classes *c, const tsh_tensor *losses) {
    tsh_device *device = tshi_device_of(call->in[0]);
    tsh_status status = make_totals(call, c, losses);
    if (status != TSH_OK) return status;
    tsh_tensor *totals = call->saved[TOTALS], *out = call->out;
    if (params_of(call)->reduction == TSH_REDUCTION_MEAN) {
        device->ops->elementwise.divide(device, out->dtype, 1, place(totals, NUMERATOR), place(totals, DENOMINATOR),
                                        tshi_data(out));
    } else {
        device->ops->copy.within(device, tsh_dtype_size(out->dtype), place(totals, NUMERATOR), tshi_data(out));
    }
    return TSH_OK;
}

static tsh_status forward(tshi_node *call) {
    tsh_device *device = tshi_device_of(call->in[0]);
    tshi_classes c = classes_of(call);
    bool rows = params_of(call)->reduction == TSH_REDUCTION_NONE;
    tsh_tensor *losses = rows ? tsh_tensor_retain(call->out) : NULL;
    tsh_status status = check_range(call, &c);
    if (status == TSH_OK) status = rows_sums(call, &c);
    if (status == TSH_OK && !rows) status = tshi_tensor_scratch(call->out->mesh, call->out->dtype, c.rows, &losses);
    if (status == TSH_OK) {
        device->ops->cross_entropy.loss(device, call->in[0]->dtype, &c, tshi_data(call->in[1]),
                                        tshi_data(call->saved[SUMS]), tshi_data(losses));
    }
    if (status == TSH_OK && !rows) status = reduce_rows(call, &c, losses);
    tsh_tensor_release(losses);
    return status;
}

/* --- backward ----------------------------------------------------------------------------------------------------- */

static tsh_status backward(tshi_node *call) {
    tsh_device *device = tshi_device_of(call->in[0]);
    tshi_classes c = classes_of(call);
    bool mean = params_of(call)->reduction == TSH_REDUCTION_MEAN,
         rows = params_of(call)->reduction == TSH_REDUCTION_NONE;
    if (!tshi_wants_grad(call, 0)) return TSH_OK;
    double beta;
    tsh_tensor *dlogits = tshi_grad_beta(call, 0, &beta), *dloss = tshi_grad_out(call);
    if (!dlogits) return TSH_ERR_MEMORY;
    if (sums_weights(call)) c.weight_sum = place(call->saved[SUMS], 4 * c.rows);
    device->ops->cross_entropy.backward(device, dlogits->dtype, &c, tshi_data(call->in[0]), tshi_data(call->in[1]),
                                        tshi_data(call->saved[MAX]), tshi_data(call->saved[SUMS]), tshi_data(dloss),
                                        rows ? 1 : 0, mean ? place(call->saved[TOTALS], DENOMINATOR) : NULL, beta,
                                        tshi_data(dlogits));
    return TSH_OK;
}

static const tshi_op reduced_op = {name,    reduced_rules, shape,
                                   forward, backward,      .params_size = sizeof(cross_entropy_params)};
static const tshi_op rows_op = {name,    rows_rules, shape,
                                forward, backward,   .params_size = sizeof(cross_entropy_params)};

/* --- public ------------------------------------------------------------------------------------------------------- */

static tsh_status check_config(const tsh_cross_entropy_config *config) {
    if (!(config->label_smoothing >= 0 && config->label_smoothing <= 1)) {
        return tshi_fail(TSH_ERR_ARGUMENT, "label_smoothing %g is outside [0, 1]", config->label_smoothing);
    }
    if (config->reduction == TSH_REDUCTION_MEAN || config->reduction == TSH_REDUCTION_SUM ||
        config->reduction == TSH_REDUCTION_NONE) {
        return TSH_OK;
    }
    return tshi_fail(TSH_ERR_ARGUMENT, "%d is no reduction", (int)config->reduction);
}

tsh_tensor *tsh_cross_entropy(tsh_tape *tape, tsh_tensor *logits, tsh_tensor *target,
                              const tsh_cross_entropy_config *config) {
    static const tsh_cross_entropy_config defaults = {0};
    if (!config) config = &defaults;
    cross_entropy_params params = {config->has_ignore_index ? config->ignore_index : -100, config->label_smoothing,
                                   config->reduction};
    const tshi_op *op = config->reduction == TSH_REDUCTION_NONE ? &rows_op : &reduced_op;
    tsh_tensor *in[] = {logits, target, config->weight};
    int inputs = config->weight ? 3 : 2;
    if (!tshi_tape_ready(tape, name, inputs, in)) return NULL;
    tsh_status status = check_config(config);
    if (status == TSH_OK) status = check_logits(logits);
    if (status == TSH_OK) status = check_target(logits, target);
    if (status == TSH_OK) status = check_weight(logits, config->weight);
    return status == TSH_OK ? tshi_apply(tape, op, inputs, in, &params) : tshi_tape_fail_as(tape, status, name);
}
