/* Gradient check by central differences. Every rank visits the same global elements, so that the objective's
 * collectives match. */
#include "autograd/tape.h"

#include <math.h>

typedef struct check {
    tsh_tape *tape;
    tsh_objective_fn *objective;
    tsh_tensor *const *inputs;
    int count;
    double h;
    void *user;
    tsh_tensor *value; /* one float64, for sums and maxima over ranks */
} check;

/* Reduces `value` over the ranks of the axes for which `over` is true. */
static tsh_status reduce_value(const check *c, double *value, const bool over[TSH_MAX_AXES], tsh_reduce_op op) {
    const tsh_mesh *mesh = c->value->mesh;
    tsh_status status = tsh_tensor_write(c->value, value, 1);
    for (int a = 0; a < mesh->axes && status == TSH_OK; a++) {
        if (over[a] && mesh->axis[a].size > 1) status = tsh_all_reduce(mesh->axis[a].group, c->value, op);
    }
    return status == TSH_OK ? tsh_tensor_read(c->value, value, 1) : status;
}

/* True when every rank holds the one element, or a term of it. */
static bool one_everywhere(const tsh_tensor *t) {
    for (int a = 0; a < t->mesh->axes; a++) {
        if (t->layout[a].kind == TSH_KIND_SHARD) return false;
    }
    return tshi_shape_numel(&t->shape) == 1;
}

/* The objective's value over the whole mesh, and its tensor (the tape's). Resets random streams, so that each
 * evaluation draws the same numbers. */
static tsh_status evaluate_objective(const check *c, tsh_tensor **loss, double *value) {
    uint64_t stream = c->tape->world->next_stream;
    *loss = c->objective(c->tape, c->inputs, c->user);
    c->tape->world->next_stream = stream;
    if (c->tape->status != TSH_OK) return c->tape->status;
    if (!*loss || !one_everywhere(*loss)) {
        return tshi_fail(TSH_ERR_SHAPE,
                         "gradient_check: the objective is %s; one element, sharded along no axis, wanted",
                         TSHI_TENSOR_TEXT(*loss));
    }
    bool summed[TSH_MAX_AXES] = {false};
    for (int a = 0; a < (*loss)->mesh->axes; a++) {
        tsh_layout_kind kind = (*loss)->layout[a].kind;
        summed[a] = kind == TSH_KIND_PARTIAL || kind == TSH_KIND_LOCAL;
    }
    *value = tshi_tensor_element(*loss);
    return reduce_value(c, value, summed, TSH_REDUCE_SUM);
}

/* An element to change: its global index, and along LOCAL axes the rank whose element it is. */
typedef struct target {
    int64_t element;
    int owner[TSH_MAX_AXES];
} target;

/* The local index of the element, -1 if this rank does not hold it. *changes: this rank changes it. */
static int64_t local_index(const tsh_tensor *x, const target *p, bool *changes) {
    int64_t rest = p->element, index = 0, stride = 1;
    *changes = true;
    for (int a = 0; a < x->mesh->axes; a++) {
        int me = x->mesh->axis[a].index;
        if (x->layout[a].kind == TSH_KIND_LOCAL && me != p->owner[a]) return -1;
        if (x->layout[a].kind == TSH_KIND_PARTIAL && me != 0) *changes = false;
    }
    for (int d = x->shape.ndim - 1; d >= 0; d--) {
        int64_t at = rest % x->shape.global[d] - tshi_shape_start(x->mesh, &x->shape, x->layout, d);
        rest /= x->shape.global[d];
        if (at < 0 || at >= x->shape.local[d]) return -1;
        index += at * stride;
        stride *= x->shape.local[d];
    }
    return index;
}

static double element_at(const tsh_tensor *x, int64_t i) {
    tsh_device *device = x->mesh->device;
    double value;
    device->ops->copy.to_host(device, sizeof value, (const double *)tshi_data(x) + i, &value);
    return value;
}

static void set_element(const tsh_tensor *x, int64_t i, double value) {
    tsh_device *device = x->mesh->device;
    device->ops->copy.from_host(device, sizeof value, &value, (double *)tshi_data(x) + i);
}

static tsh_status central_difference(const check *c, tsh_tensor *x, const target *p, double *worst) {
    bool changes;
    int64_t i = local_index(x, p, &changes);
    double saved = i >= 0 ? element_at(x, i) : 0, value[2] = {0, 0};
    tsh_status status = TSH_OK;
    for (int side = 0; side < 2 && status == TSH_OK; side++) {
        tsh_tensor *loss;
        if (i >= 0 && changes) set_element(x, i, side ? saved - c->h : saved + c->h);
        status = evaluate_objective(c, &loss, &value[side]);
        if (status == TSH_OK) status = tsh_tape_reset(c->tape);
    }
    if (i < 0) return status;
    set_element(x, i, saved);
    const tsh_tensor *grad = tsh_tensor_grad(x);
    double numeric = (value[0] - value[1]) / (2 * c->h), analytic = grad ? element_at(grad, i) : 0;
    double error = fabs(analytic - numeric) / fmax(1, fabs(numeric));
    if (!(error <= *worst)) *worst = isnan(error) ? INFINITY : error;
    return status;
}

static tsh_status compare_input(const check *c, tsh_tensor *x, double *worst) {
    int owners = 1;
    int64_t elements = tshi_shape_numel(&x->shape);
    tsh_status there = tshi_tensor_materialize(x);
    if (there != TSH_OK) return there;
    for (int a = 0; a < x->mesh->axes; a++) {
        if (x->layout[a].kind == TSH_KIND_LOCAL) owners *= x->mesh->axis[a].size;
    }
    for (int o = 0; o < owners; o++) {
        target p = {0};
        for (int a = 0, rest = o; a < x->mesh->axes; a++) {
            if (x->layout[a].kind != TSH_KIND_LOCAL) continue;
            p.owner[a] = rest % x->mesh->axis[a].size;
            rest /= x->mesh->axis[a].size;
        }
        for (p.element = 0; p.element < elements; p.element++) {
            tsh_status status = central_difference(c, x, &p, worst);
            if (status != TSH_OK) return status;
        }
    }
    return TSH_OK;
}

static tsh_status analytic_gradients(const check *c) {
    tsh_tensor *loss;
    double value;
    for (int k = 0; k < c->count; k++) tsh_tensor_zero_grad(c->inputs[k]);
    tsh_status status = evaluate_objective(c, &loss, &value);
    if (status == TSH_OK) status = tsh_backward(c->tape, loss);
    return status == TSH_OK ? tsh_tape_reset(c->tape) : status;
}

static tsh_status check_arguments(const check *c) {
    if (!c->tape || !c->objective || !c->inputs || c->count < 1) {
        return tshi_fail(TSH_ERR_ARGUMENT, "gradient_check: a tape, an objective and inputs are required");
    }
    if (!(c->h > 0 && isfinite(c->h))) {
        return tshi_fail(TSH_ERR_ARGUMENT, "gradient_check: h is %g; a finite step above 0 is wanted (0: 1e-6)", c->h);
    }
    for (int k = 0; k < c->count; k++) {
        const tsh_tensor *x = c->inputs[k];
        if (x && x->dtype == TSH_FLOAT64 && tshi_requires_grad(x) && x->mesh == c->inputs[0]->mesh) continue;
        return tshi_fail(
            TSH_ERR_ARGUMENT,
            "gradient_check: input %d is not a float64 leaf that requires a gradient, on the mesh of input 0", k);
    }
    return TSH_OK;
}

tsh_status tsh_gradient_check(tsh_tape *tape, tsh_objective_fn *objective, tsh_tensor *const *inputs, int count,
                              double h, void *user, double *worst) {
    bool all[TSH_MAX_AXES];
    for (int a = 0; a < TSH_MAX_AXES; a++) all[a] = true;
    check c = {tape, objective, inputs, count, h == 0 ? 1e-6 : h, user, NULL};
    if (!worst) return tshi_fail(TSH_ERR_ARGUMENT, "gradient_check: worst is NULL");
    *worst = NAN;
    tsh_status status = check_arguments(&c);
    if (status == TSH_OK) status = tshi_tensor_scratch(inputs[0]->mesh, TSH_FLOAT64, 1, &c.value);
    if (status == TSH_OK) status = analytic_gradients(&c);
    double error = 0;
    for (int k = 0; k < count && status == TSH_OK; k++) status = compare_input(&c, inputs[k], &error);
    if (status == TSH_OK) status = reduce_value(&c, &error, all, TSH_REDUCE_MAX);
    if (status == TSH_OK) *worst = error;
    tshi_tensor_release(c.value);
    return status;
}
