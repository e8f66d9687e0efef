/* The router of a mixture of experts: which experts each token chooses, with what weights, and the load-balancing
 * losses. */
#include "autograd/run/cast.h"
#include "functional/functional.h"

#include <math.h>
#include <string.h>

/* --- the choice --------------------------------------------------------------------------------------------------- */

/* Experts are chosen for each token by itself, so ranks with different tokens need not communicate. */
static const tsh_rule choice_rules[] = {
    {{TSH_AS_R, TSH_AS_R}, TSH_AS_R},
    {{TSH_AS_S0, TSH_AS_L}, TSH_AS_S0},
    {{TSH_AS_L, TSH_AS_L}, TSH_AS_L},
    {{TSH_ROW_END}, TSH_ROW_END},
};

typedef struct choice_params {
    int64_t top_k, groups, groups_kept;
    tsh_tensor *experts; /* made by forward, owned by the tape */
} choice_params;

/* The scores of a call in host memory, and scratch for choosing from them. */
typedef struct routing {
    int64_t tokens, experts, top_k, groups, groups_kept;
    double *scores;   /* [tokens, experts] */
    double *bias;     /* [experts], or NULL */
    double *values;   /* [experts], of one token: what experts are chosen by */
    double *of_group; /* [groups] */
    int64_t *ids;     /* [tokens, top_k] */
    double *chosen;   /* [tokens, top_k], their scores */
} routing;

static tsh_status choice_shape(const tsh_call *call, tsh_dtype *dtype, tsh_shape *out) {
    const choice_params *p = call->params;
    const tsh_tensor *scores = call->in[0], *bias = call->inputs == 2 ? call->in[1] : scores;
    if (scores->shape.ndim != 2 ||
        (call->inputs == 2 && (bias->shape.ndim != 1 || bias->shape.global[0] != scores->shape.global[1]))) {
        return tshi_check_fails(scores, bias, "logits [tokens, experts] and a bias [experts] wanted");
    }
    int64_t experts = scores->shape.global[1], g = p->groups, kept = p->groups_kept;
    bool grouped = g == 0 || (g > 0 && kept > 0 && kept <= g && experts % g == 0 && p->top_k % kept == 0 &&
                              p->top_k / kept <= experts / g);
    if (p->top_k < 1 || p->top_k > experts || !grouped) {
        return tshi_fail(TSH_ERR_ARGUMENT,
                         "top_k=%lld of %lld experts in %lld groups, groups_kept=%lld: the experts must split into "
                         "equal groups, and top_k evenly over the groups that are kept",
                         (long long)p->top_k, (long long)experts, (long long)g, (long long)kept);
    }
    *out = scores->shape;
    out->global[1] = p->top_k;
    return tshi_check_floats(call, dtype);
}

/* Copies the elements to host memory as doubles. */
static tsh_status read_doubles(tsh_call *call, const tsh_tensor *x, double *to) {
    tsh_device *device = tshi_device_of(x);
    const tsh_tensor *wide = tsh_call_scratch(call, TSH_FLOAT64, x->numel);
    if (!wide) return TSH_ERR_MEMORY;
    device->ops->copy.convert(device, x->numel, x->dtype, tshi_data(x), TSH_FLOAT64, tshi_data(wide));
    device->ops->copy.to_host(device, (size_t)x->numel * sizeof *to, tshi_data(wide), to);
    return TSH_OK;
}

static tsh_status read_scores(tsh_call *call, routing *c) {
    const choice_params *p = call->params;
    const tsh_tensor *scores = call->in[0];
    const tsh_allocator *allocator = &tshi_device_of(scores)->allocator;
    tshi_region *region = &call->tape->memory;
    *c = (routing){.tokens = scores->shape.local[0],
                   .experts = scores->shape.global[1],
                   .top_k = p->top_k,
                   .groups = p->groups,
                   .groups_kept = p->groups_kept};
    size_t size = sizeof(double), experts = (size_t)c->experts, chosen = (size_t)call->out->numel + 1;
    c->scores = tshi_region_take(region, allocator, (size_t)scores->numel + 1, size);
    c->values = tshi_region_take(region, allocator, 2 * experts, size);
    c->of_group = tshi_region_take(region, allocator, (size_t)c->groups + 1, size);
    c->chosen = tshi_region_take(region, allocator, chosen, size);
    c->ids = tshi_region_take(region, allocator, chosen, size);
    if (!c->scores || !c->values || !c->of_group || !c->chosen || !c->ids) return TSH_ERR_MEMORY;
    if (call->inputs == 2) c->bias = c->values + experts;
    tsh_status status = read_doubles(call, scores, c->scores);
    return status == TSH_OK && c->bias ? read_doubles(call, call->in[1], c->bias) : status;
}

/* The index of the largest of n values, of equal ones the first; NaN is the largest, and -INFINITY is not chosen twice:
 * -1 where no value is left. Taken values are marked by `taken`. */
static int64_t find_largest(int64_t n, const double *values, const bool *taken) {
    int64_t best = -1;
    for (int64_t i = 0; i < n; i++) {
        if (taken[i]) continue;
        if (best < 0 || values[i] > values[best] || (isnan(values[i]) && !isnan(values[best]))) best = i;
    }
    return best;
}

/* The sum of the `count` largest of n values, which are left unmarked. */
static double sum_largest(int64_t n, const double *values, int64_t count, bool *taken) {
    double sum = 0;
    for (int64_t i = 0; i < count; i++) {
        int64_t best = find_largest(n, values, taken);
        taken[best] = true;
        sum += values[best];
    }
    memset(taken, 0, (size_t)n * sizeof *taken);
    return sum;
}

/* Marks the experts of groups that are not kept. */
static void drop_groups(const routing *c, bool *taken, bool *kept) {
    int64_t size = c->experts / c->groups;
    for (int64_t g = 0; g < c->groups; g++)
        c->of_group[g] = sum_largest(size, c->values + g * size, c->top_k / c->groups_kept, taken + g * size);
    memset(kept, 0, (size_t)c->groups * sizeof *kept);
    for (int64_t i = 0; i < c->groups_kept; i++) kept[find_largest(c->groups, c->of_group, kept)] = true;
    for (int64_t g = 0; g < c->groups; g++)
        if (!kept[g]) memset(taken + g * size, 1, (size_t)size * sizeof *taken);
}

/* Chooses for one token; `marks` is room for experts + groups marks. */
static void choose_experts(const routing *c, int64_t token, bool *marks) {
    const double *scores = c->scores + token * c->experts;
    memset(marks, 0, (size_t)c->experts * sizeof *marks);
    for (int64_t e = 0; e < c->experts; e++) c->values[e] = scores[e] + (c->bias ? c->bias[e] : 0);
    if (c->groups > 0) drop_groups(c, marks, marks + c->experts);
    for (int64_t j = 0; j < c->top_k; j++) {
        int64_t best = find_largest(c->experts, c->values, marks);
        marks[best] = true;
        c->ids[token * c->top_k + j] = best;
        c->chosen[token * c->top_k + j] = scores[best];
    }
}

/* A call that is recomputed fills the tensor of its first run. */
static tsh_status make_experts(const tsh_call *call) {
    choice_params *p = call->params;
    const tsh_tensor *y = call->out;
    if (p->experts) return p->experts->storage ? TSH_OK : tshi_tensor_renew_storage(p->experts, NULL);
    tsh_status status = tshi_tensor_new(y->mesh, TSH_INT64, &y->shape, y->layout, &p->experts);
    return status == TSH_OK ? tshi_tape_own(call->tape, p->experts) : status;
}

static tsh_status write_choice(tsh_call *call, const routing *c) {
    const tsh_tensor *y = call->out, *ids = call->saved[0];
    tsh_device *device = tshi_device_of(y);
    const tsh_tensor *wide = tsh_call_scratch(call, TSH_FLOAT64, y->numel);
    if (!wide) return TSH_ERR_MEMORY;
    device->ops->copy.from_host(device, (size_t)y->numel * sizeof *c->chosen, c->chosen, tshi_data(wide));
    device->ops->copy.convert(device, y->numel, TSH_FLOAT64, tshi_data(wide), y->dtype, tshi_data(y));
    device->ops->copy.from_host(device, (size_t)y->numel * sizeof *c->ids, c->ids, tshi_data(ids));
    return TSH_OK;
}

static tsh_status choice_forward(tsh_call *call) {
    choice_params *p = call->params;
    routing c;
    tsh_status status = make_experts(call);
    if (status != TSH_OK) return status;
    call->saved[0] = tshi_tensor_retain(p->experts);
    if (!tsh_call_computes(call, 0, 2.0 * (double)(tsh_tensor_local_nbytes(call->in[0])))) return TSH_OK;
    status = read_scores(call, &c);
    if (status != TSH_OK) return status;
    bool *marks = tshi_region_take(&call->tape->memory, &tshi_device_of(call->out)->allocator,
                                   (size_t)(c.experts + c.groups), sizeof *marks);
    if (!marks) return TSH_ERR_MEMORY;
    for (int64_t t = 0; t < c.tokens; t++) choose_experts(&c, t, marks);
    return write_choice(call, &c);
}

/* The bias only chooses, and has no gradient. */
static tsh_status choice_backward(tsh_call *call) {
    const choice_params *p = call->params;
    const tsh_tensor *scores = call->in[0];
    tsh_device *device = tshi_device_of(scores);
    if (!tsh_call_wants_grad(call, 0)) return TSH_OK;
    const tsh_tensor *dscores = tsh_call_grad(call, 0);
    if (!dscores) return TSH_ERR_MEMORY;
    device->ops->top.backward(device, scores->dtype, scores->shape.local[0], scores->shape.global[1], 1, p->top_k, 0,
                              tshi_data(call->saved[0]), tshi_data(tsh_call_grad_out(call)), tshi_data(dscores));
    return TSH_OK;
}

static const tsh_op choice_op = {"route",           choice_rules,    choice_shape,
                                 choice_forward,    choice_backward, .params_size = sizeof(choice_params),
                                 .by_element = true};

/* --- weights ------------------------------------------------------------------------------------------------------ */

/* x over its sums along the last dim; a sum that underflows gives zeros. */
static tsh_tensor *normalize_rows(tsh_tape *tape, tsh_tensor *x) {
    if (!x) return NULL;
    tsh_tensor *sums = tsh_reshape(tape, tsh_sum(tape, x, 1), 2, (int64_t[]){x->shape.global[0], 1});
    return tsh_div(tape, x, tsh_clamp(tape, sums, 1e-20, INFINITY));
}

static bool check_router(tsh_tape *tape, const char *what, tsh_tensor *logits, const tsh_router_config *config) {
    if (!tshi_tape_ready(tape, what, 1, &logits)) return false;
    if (!config) {
        tshi_tape_fail(tape, TSH_ERR_ARGUMENT, "%s: a configuration is required", what);
    } else if ((unsigned)config->score > TSH_ROUTER_SIGMOID || !isfinite(config->scaling)) {
        tshi_tape_fail(tape, TSH_ERR_ARGUMENT, "%s: score %d is unknown, or scaling=%g is not finite", what,
                       (int)config->score, config->scaling);
    } else if (logits->shape.ndim != 2) {
        tshi_tape_fail(tape, TSH_ERR_SHAPE, "%s: logits are %s, [tokens, experts] wanted", what,
                       TSHI_TENSOR_TEXT(logits));
    }
    return tsh_tape_status(tape) == TSH_OK;
}

tsh_tensor *tsh_route(tsh_tape *tape, tsh_tensor *logits, const tsh_router_config *config, tsh_tensor **experts) {
    if (experts) *experts = NULL;
    if (!check_router(tape, "route", logits, config)) return NULL;
    choice_params p = {config->top_k, config->groups, config->groups_kept, NULL};
    tsh_tensor *scores = logits;
    if (config->score == TSH_ROUTER_SOFTMAX) scores = tsh_softmax(tape, logits, 1);
    if (config->score == TSH_ROUTER_SIGMOID) scores = tsh_sigmoid(tape, logits);
    tsh_tensor *in[] = {scores, config->bias};
    tsh_tensor *weights = tshi_apply(tape, &choice_op, config->bias ? 2 : 1, in, &p);
    tsh_tensor *ids = weights ? p.experts : NULL;
    if (config->score == TSH_ROUTER_SOFTMAX_CHOSEN)
        weights = tsh_softmax(tape, weights, 1);
    else if (config->renormalize)
        weights = normalize_rows(tape, weights);
    if (config->scaling != 0 && config->scaling != 1) weights = tsh_scale(tape, weights, config->scaling);
    if (weights && experts) *experts = ids;
    return weights;
}

/* --- the tokens of each expert ------------------------------------------------------------------------------------ */

static const tsh_rule count_rules[] = {
    {{TSH_AS_R}, TSH_AS_R},
    {{TSH_AS_S0}, TSH_AS_P},
    {{TSH_AS_L}, TSH_AS_L},
    {{TSH_ROW_END}, TSH_ROW_END},
};

typedef struct count_params {
    int64_t experts;
    int64_t dtype;
} count_params;

static tsh_status count_shape(const tsh_call *call, tsh_dtype *dtype, tsh_shape *out) {
    const count_params *p = call->params;
    const tsh_tensor *ids = call->in[0];
    if (ids->dtype != TSH_INT64 || ids->shape.ndim != 2)
        return tshi_check_fails(ids, ids, "int64 experts [tokens, top_k] wanted");
    *out = (tsh_shape){.ndim = 1, .global = {p->experts}};
    *dtype = (tsh_dtype)p->dtype;
    return TSH_OK;
}

static tsh_status count_forward(tsh_call *call) {
    const tsh_tensor *ids = call->in[0], *counts = call->out;
    tsh_device *device = tshi_device_of(ids);
    const tsh_tensor *ones = tsh_call_scratch(call, counts->dtype, ids->numel);
    if (!ones) return TSH_ERR_MEMORY;
    device->ops->copy.fill(device, counts->dtype, ids->numel, 1, tshi_data(ones));
    device->ops->copy.zero(device, tsh_tensor_local_nbytes(counts), tshi_data(counts));
    device->ops->embedding[counts->dtype].backward(device, ids->numel, tshi_data(ids), 0, counts->numel, 1, -1,
                                                   tshi_data(ones), tshi_data(counts));
    return TSH_OK;
}

static const tsh_op count_op = {"expert_tokens", count_rules, count_shape, count_forward,
                                .params_size = sizeof(count_params)};

tsh_tensor *tshi_expert_tokens(tsh_tape *tape, tsh_tensor *experts, int64_t count, tsh_dtype dtype) {
    return tshi_apply_as(tape, &count_op, 1, &experts, &(count_params){count, dtype}, &tshi_as_stored);
}

/* --- capacity ----------------------------------------------------------------------------------------------------- */

/* Which tokens an expert drops depends on all tokens before them. */
static const tsh_rule limit_rules[] = {
    {{TSH_AS_R}, TSH_AS_R},
    {{TSH_AS_L}, TSH_AS_L},
    {{TSH_ROW_END}, TSH_ROW_END},
};

typedef struct limit_params {
    int64_t experts;
    double factor;
    int64_t batch;
} limit_params;

static tsh_status limit_shape(const tsh_call *call, tsh_dtype *dtype, tsh_shape *out) {
    *dtype = TSH_INT64;
    *out = call->in[0]->shape;
    return TSH_OK;
}

/* Replaces experts that are full: all first choices come before all second ones, and sequence before sequence. */
static void drop_tokens(const limit_params *p, int64_t tokens, int64_t top_k, int64_t *used, int64_t *id) {
    int64_t batch = p->batch > 0 ? p->batch : 1, length = tokens / batch;
    double capacity = ceil((double)(tokens * top_k) / (double)p->experts * p->factor);
    for (int64_t j = 0; j < top_k; j++)
        for (int64_t i = 0; i < tokens; i++) {
            int64_t *expert = &id[(i % length * batch + i / length) * top_k + j];
            if (*expert < 0 || *expert >= p->experts) continue;
            if ((double)used[*expert]++ >= capacity) *expert = -1;
        }
}

static tsh_status limit_forward(tsh_call *call) {
    const tsh_tensor *ids = call->in[0];
    const limit_params *p = call->params;
    tsh_device *device = tshi_device_of(ids);
    size_t bytes = tsh_tensor_local_nbytes(ids), experts = (size_t)p->experts;
    if (!tsh_call_computes(call, 0, 2.0 * (double)bytes)) return TSH_OK;
    int64_t *used =
        tshi_region_take(&call->tape->memory, &device->allocator, experts + (size_t)ids->numel, sizeof *used);
    if (!used) return TSH_ERR_MEMORY;
    int64_t *id = used + experts;
    memset(used, 0, experts * sizeof *used);
    device->ops->copy.to_host(device, bytes, tshi_data(ids), id);
    drop_tokens(p, ids->shape.local[0], ids->shape.global[1], used, id);
    device->ops->copy.from_host(device, bytes, id, tshi_data(call->out));
    return TSH_OK;
}

static const tsh_op limit_op = {"expert_capacity", limit_rules, limit_shape, limit_forward,
                                .params_size = sizeof(limit_params)};

tsh_tensor *tshi_expert_limit(tsh_tape *tape, tsh_tensor *experts, int64_t count, double factor, int64_t batch) {
    tsh_tensor *kept =
        tshi_apply_as(tape, &limit_op, 1, &experts, &(limit_params){count, factor, batch}, &tshi_as_stored);
    return kept ? tshi_to_layouts(tape, "expert_capacity", kept, experts->layout) : NULL;
}

/* --- losses ------------------------------------------------------------------------------------------------------- */

/* The mean over dim, of whose elements 16 bits may not hold the sum; of no tokens 0. */
static tsh_tensor *mean_of_tokens(tsh_tape *tape, tsh_tensor *x, int dim) {
    return x && x->shape.global[0] > 0 ? tsh_mean(tape, x, dim) : tsh_sum(tape, x, dim);
}

/* scale sum_i (tokens_i / tokens) mean_t p_ti; 16 bits do not count tokens. */
static tsh_tensor *balance_loss(tsh_tape *tape, tsh_tensor *logits, const tsh_router_config *config,
                                tsh_tensor *experts) {
    int64_t tokens = logits->shape.global[0], count = logits->shape.global[1];
    tsh_dtype wide = logits->dtype == TSH_FLOAT64 ? TSH_FLOAT64 : TSH_FLOAT32;
    tsh_tensor *p = config->score == TSH_ROUTER_SIGMOID ? normalize_rows(tape, tsh_sigmoid(tape, logits))
                                                        : tsh_softmax(tape, logits, 1);
    tsh_tensor *uses = tshi_expert_tokens(tape, experts, count, wide);
    uses = tsh_cast(tape, tsh_scale(tape, uses, 1 / (tokens > 0 ? (double)tokens : 1)), logits->dtype);
    tsh_tensor *sum = tsh_sum(tape, tsh_mul(tape, uses, mean_of_tokens(tape, p, 0)), TSH_ALL_DIMS);
    return tsh_scale(tape, sum, config->aux_loss * (double)count / (double)config->top_k);
}

/* The mean of log(sum exp)^2: any element of the logits less its log softmax. */
static tsh_tensor *z_loss(tsh_tape *tape, tsh_tensor *logits, double factor) {
    tsh_tensor *first = tsh_slice(tape, logits, 1, 0, 1);
    tsh_tensor *lse = tsh_sub(tape, first, tsh_slice(tape, tsh_log_softmax(tape, logits, 1), 1, 0, 1));
    return tsh_scale(tape, mean_of_tokens(tape, tsh_mul(tape, lse, lse), TSH_ALL_DIMS), factor);
}

tsh_tensor *tsh_route_loss(tsh_tape *tape, tsh_tensor *logits, const tsh_router_config *config, tsh_tensor *experts) {
    if (!check_router(tape, "route_loss", logits, config) || !tshi_tape_ready(tape, "route_loss", 1, &experts))
        return NULL;
    if (!(config->aux_loss >= 0) || !(config->z_loss >= 0) || config->top_k < 1) {
        return tshi_tape_fail(tape, TSH_ERR_ARGUMENT,
                              "route_loss: aux_loss=%g and z_loss=%g must be at least 0, top_k=%lld at least 1",
                              config->aux_loss, config->z_loss, (long long)config->top_k);
    }
    tsh_tensor *loss = balance_loss(tape, logits, config, experts);
    return config->z_loss > 0 ? tsh_add(tape, loss, z_loss(tape, logits, config->z_loss)) : loss;
}
