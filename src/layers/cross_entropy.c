/* Cross entropy, also of logits whose classes are split over ranks: the rows' maxima and sums are reduced, the logits
 * never move. */
#include "layers/layers.h"

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

/* Where a call keeps what it is about. */
enum { IGNORE_INDEX, REDUCTION, SUM_WEIGHTS }; /* attr.i; SUM_WEIGHTS: the weights' sum is taken over the ranks */
enum { SMOOTHING, WEIGHT_SUM };                /* attr.f */
enum { MAX, SUMS, TOTALS };                    /* saved */
/* Elements of TOTALS: the columns' sums of SUMS, of which two places are free for others. */
enum { NUMERATOR = 1, DENOMINATOR = 2, TOTALS_COUNT = 4 };

static const tshi_device_ops *kernels(const tshi_node *call) {
    return call->in[0]->mesh->device->ops;
}

static int last_dim(const tsh_tensor *logits) {
    return logits->shape.ndim - 1;
}

static const tsh_tensor *weights_of(const tshi_node *call) {
    return call->inputs == 3 ? call->in[2] : NULL;
}

static tshi_classes classes_of(const tshi_node *call) {
    const tsh_tensor *logits = call->in[0], *weight = weights_of(call);
    int last = last_dim(logits);
    return (tshi_classes){.rows = call->in[1]->numel,
                          .n = logits->shape.local[last],
                          .start = tshi_shape_start(logits->mesh, &logits->shape, logits->layout, last),
                          .classes = logits->shape.global[last],
                          .ignore_index = call->attr.i[IGNORE_INDEX],
                          .smoothing = call->attr.f[SMOOTHING],
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
    if (tshi_dtype_is_float(logits->dtype) && logits->shape.ndim > 0) return TSH_OK;
    return tshi_fail(logits->shape.ndim > 0 ? TSH_ERR_DTYPE : TSH_ERR_SHAPE,
                     "logits are %s, [..., classes] of float32 or float64 wanted",
                     tsh_tensor_describe(logits, text, sizeof text));
}

/* The inputs are known to fit. */
static tsh_status shape(const tshi_node *call, tsh_dtype *dtype, tshi_shape *out) {
    *dtype = call->in[0]->dtype;
    if (call->attr.i[REDUCTION] == TSH_REDUCTION_NONE) *out = call->in[1]->shape;
    return TSH_OK; /* [] otherwise, as *out came */
}

/* --- forward ------------------------------------------------------------------------------------------------------ */

static tsh_status check_range(const tshi_node *call, const tshi_classes *c) {
    const int64_t *target = tshi_data(call->in[1]);
    int64_t bad = kernels(call)->targets_check(c, target), value;
    if (bad < 0) return TSH_OK;
    kernels(call)->copy_to_host(sizeof value, target + bad, &value);
    return tshi_fail(TSH_ERR_RANGE, "target %lld at place %lld is outside [0, %lld) and not ignore_index %lld",
                     (long long)value, (long long)bad, (long long)c->classes, (long long)c->ignore_index);
}

/* `part` over the axes that split the classes, or over those that split the rows. */
static tsh_status reduce_over(const tsh_tensor *logits, bool classes, tsh_tensor *part, tsh_reduce_op op) {
    tsh_status status = TSH_OK;
    for (int a = 0; a < logits->mesh->axes && status == TSH_OK; a++) {
        const tshi_axis *axis = &logits->mesh->axis[a];
        tsh_layout layout = logits->layout[a];
        if (layout.kind != TSH_KIND_SHARD || axis->size == 1) continue;
        if ((layout.dim == last_dim(logits)) == classes) status = tsh_all_reduce(axis->group, part, op);
    }
    return status;
}

static tsh_status rows_max(tshi_node *call, const tshi_classes *c) {
    tsh_tensor *logits = call->in[0];
    tsh_status status = tshi_tensor_scratch(logits->mesh, logits->dtype, c->rows, &call->saved[MAX]);
    if (status != TSH_OK) return status;
    kernels(call)->softmax_max(logits->dtype, c->rows, c->n, 1, tshi_data(logits), tshi_data(call->saved[MAX]));
    return reduce_over(logits, true, call->saved[MAX], TSH_MAX);
}

/* One element as a double on the host. */
static double element(const tshi_node *call, const void *data, int64_t index) {
    double as_double;
    float as_float;
    if (call->in[0]->dtype == TSH_FLOAT64) {
        kernels(call)->copy_to_host(sizeof as_double, (const double *)data + index, &as_double);
        return as_double;
    }
    kernels(call)->copy_to_host(sizeof as_float, (const float *)data + index, &as_float);
    return as_float;
}

static void *place(const tsh_tensor *t, int64_t index) {
    return (char *)tshi_data(t) + (size_t)index * tsh_dtype_size(t->dtype);
}

/* The rows' sums over all classes; the sum of split class weights travels at their end. */
static tsh_status rows_sums(tshi_node *call, const tshi_classes *c) {
    const tsh_tensor *logits = call->in[0], *weight = weights_of(call);
    bool extra = weight && call->attr.i[SUM_WEIGHTS] != 0;
    tsh_status status =
        tshi_tensor_scratch(logits->mesh, logits->dtype, 4 * c->rows + (extra ? 1 : 0), &call->saved[SUMS]);
    if (status != TSH_OK) return status;
    tsh_tensor *sums = call->saved[SUMS];
    kernels(call)->cross_entropy_sums(logits->dtype, c, tshi_data(logits), tshi_data(call->in[1]),
                                      tshi_data(call->saved[MAX]), tshi_data(sums));
    if (extra) kernels(call)->sum(weight->dtype, 1, c->n, 1, 1, c->weight, place(sums, 4 * c->rows));
    status = reduce_over(logits, true, sums, TSH_SUM);
    if (status == TSH_OK && extra) call->attr.f[WEIGHT_SUM] = element(call, tshi_data(sums), 4 * c->rows);
    return status;
}

/* The rows' losses become sum L_i and sum of w_t, over all ranks that hold rows. */
static tsh_status make_totals(tshi_node *call, const tshi_classes *c, const tsh_tensor *losses) {
    const tsh_tensor *logits = call->in[0];
    tsh_tensor *pair = NULL;
    tsh_status status = tshi_tensor_scratch(logits->mesh, logits->dtype, TOTALS_COUNT, &call->saved[TOTALS]);
    if (status != TSH_OK) return status;
    tsh_tensor *totals = call->saved[TOTALS];
    kernels(call)->sum(logits->dtype, 1, c->rows, 4, 1, tshi_data(call->saved[SUMS]), tshi_data(totals));
    kernels(call)->sum(logits->dtype, 1, c->rows, 1, 1, tshi_data(losses), place(totals, NUMERATOR));
    tshi_shape two = {.ndim = 1, .local = {2}, .global = {2}};
    status = tshi_tensor_view(totals, &two, totals->layout, tsh_dtype_size(totals->dtype), &pair);
    if (status == TSH_OK) status = reduce_over(logits, false, pair, TSH_SUM);
    tsh_tensor_release(pair);
    return status;
}

static tsh_status reduce_rows(tshi_node *call, const tshi_classes *c, const tsh_tensor *losses) {
    tsh_status status = make_totals(call, c, losses);
    if (status != TSH_OK) return status;
    const void *totals = tshi_data(call->saved[TOTALS]);
    double value = element(call, totals, NUMERATOR);
    if (call->attr.i[REDUCTION] == TSH_REDUCTION_MEAN) value /= element(call, totals, DENOMINATOR);
    kernels(call)->fill(call->out->dtype, 1, value, tshi_data(call->out));
    return TSH_OK;
}

static tsh_status forward(tsh_tape *tape, tshi_node *call) {
    (void)tape;
    tshi_classes c = classes_of(call);
    bool rows = call->attr.i[REDUCTION] == TSH_REDUCTION_NONE;
    tsh_tensor *losses = rows ? tsh_tensor_retain(call->out) : NULL;
    tsh_status status = check_range(call, &c);
    if (status == TSH_OK) status = rows_max(call, &c);
    if (status == TSH_OK) status = rows_sums(call, &c);
    if (status == TSH_OK && !rows) status = tshi_tensor_scratch(call->out->mesh, call->out->dtype, c.rows, &losses);
    if (status == TSH_OK) {
        kernels(call)->cross_entropy_loss(call->out->dtype, &c, call->attr.f[WEIGHT_SUM], tshi_data(call->in[1]),
                                          tshi_data(call->saved[SUMS]), tshi_data(losses));
    }
    if (status == TSH_OK && !rows) status = reduce_rows(call, &c, losses);
    tsh_tensor_release(losses);
    return status;
}

/* --- backward ----------------------------------------------------------------------------------------------------- */

static tsh_status backward(tsh_tape *tape, tshi_node *call) {
    (void)tape;
    tshi_classes c = classes_of(call);
    double scale = 1;
    if (!tshi_wants_grad(call, 0)) return TSH_OK;
    tsh_tensor *dlogits = tshi_grad(call, 0), *dloss = tshi_grad_out(call);
    if (!dlogits) return TSH_ERR_MEMORY;
    if (call->attr.i[REDUCTION] == TSH_REDUCTION_MEAN) {
        scale = 1 / element(call, tshi_data(call->saved[TOTALS]), DENOMINATOR);
    }
    kernels(call)->cross_entropy_backward(dlogits->dtype, &c, call->attr.f[WEIGHT_SUM], tshi_data(call->in[0]),
                                          tshi_data(call->in[1]), tshi_data(call->saved[MAX]),
                                          tshi_data(call->saved[SUMS]), scale, tshi_data(dloss),
                                          call->attr.i[REDUCTION] == TSH_REDUCTION_NONE ? 1 : 0, tshi_data(dlogits));
    return TSH_OK;
}

static const tshi_op reduced_op = {
    .name = name, .rules = reduced_rules, .shape = shape, .forward = forward, .backward = backward};
static const tshi_op rows_op = {
    .name = name, .rules = rows_rules, .shape = shape, .forward = forward, .backward = backward};

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

/* W = the sum of all classes' weights, wanted by smoothing alone: known here for whole weights, else summed on the way.
 */
static tsh_status prepare_weight_sum(tshi_node *call) {
    const tsh_tensor *weight = weights_of(call), *logits = call->in[0];
    if (!weight) {
        call->attr.f[WEIGHT_SUM] = (double)logits->shape.global[last_dim(logits)];
        return TSH_OK;
    }
    if (call->attr.f[SMOOTHING] == 0) return TSH_OK;
    for (int a = 0; a < weight->mesh->axes; a++) {
        if (weight->layout[a].kind != TSH_KIND_SHARD) continue;
        call->attr.i[SUM_WEIGHTS] = 1;
        return TSH_OK;
    }
    tsh_tensor *sum;
    tsh_status status = tshi_tensor_scratch(weight->mesh, weight->dtype, 1, &sum);
    if (status != TSH_OK) return status;
    kernels(call)->sum(weight->dtype, 1, weight->numel, 1, 1, tshi_data(weight), tshi_data(sum));
    call->attr.f[WEIGHT_SUM] = element(call, tshi_data(sum), 0);
    tsh_tensor_release(sum);
    return TSH_OK;
}

tsh_tensor *tsh_cross_entropy(tsh_tape *tape, tsh_tensor *logits, tsh_tensor *target,
                              const tsh_cross_entropy_config *config) {
    static const tsh_cross_entropy_config defaults = {0};
    if (!config) config = &defaults;
    tshi_node call = {.inputs = config->weight ? 3 : 2, .in = {logits, target, config->weight}};
    if (!tshi_tape_ready(tape, name, call.inputs, call.in)) return NULL;
    call.op = config->reduction == TSH_REDUCTION_NONE ? &rows_op : &reduced_op;
    call.attr.i[IGNORE_INDEX] = config->has_ignore_index ? config->ignore_index : -100;
    call.attr.i[REDUCTION] = config->reduction;
    call.attr.f[SMOOTHING] = config->label_smoothing;
    tsh_status status = check_config(config);
    if (status == TSH_OK) status = check_logits(logits);
    if (status == TSH_OK) status = check_target(logits, target);
    if (status == TSH_OK) status = check_weight(logits, config->weight);
    if (status == TSH_OK) status = prepare_weight_sum(&call);
    return status == TSH_OK ? tshi_apply(tape, &call) : tshi_tape_fail_as(tape, status, name);
}
