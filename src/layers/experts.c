/* A mixture of experts: a router, and gated MLPs, a few of which each token chooses. */
#include "autograd/redistribute.h"
#include "layers/layers.h"

#include <math.h>
#include <string.h>

typedef enum weight_part { GATE, UP, DOWN, WEIGHTS } weight_part;

struct tsh_experts {
    tsh_world *world;
    int64_t count, embed;
    tsh_router_config config; /* without the bias */
    double capacity;          /* 0: none */
    tsh_tensor *router;       /* [experts, embed], of float32 at least */
    tsh_tensor *weights[WEIGHTS];
    tsh_tensor *bias;
    tsh_tensor *loss, *chosen; /* of the latest forward; NULL: none */
    char names[TSH_EXPERTS_PARTS][TSHI_LAYER_NAME];
};

static const char *const part_names[TSH_EXPERTS_PARTS] = {"gate", "gate.e_score_correction_bias", "experts.gate_proj",
                                                          "experts.up_proj", "experts.down_proj"};

static tsh_status check_experts_config(const tsh_group *group, const tsh_experts_config *c) {
    if (!c) return tshi_fail(TSH_ERR_ARGUMENT, "experts_create: a configuration is required");
    if (c->embed < 1 || c->hidden < 1 || c->experts < 1 || c->router.top_k < 1 || c->router.top_k > c->experts) {
        return tshi_fail(TSH_ERR_ARGUMENT,
                         "experts_create: embed=%lld, hidden=%lld and experts=%lld must be at least 1, top_k=%lld from "
                         "1 to experts",
                         (long long)c->embed, (long long)c->hidden, (long long)c->experts, (long long)c->router.top_k);
    }
    if (c->router.bias)
        return tshi_fail(TSH_ERR_ARGUMENT, "experts_create: router.bias must be NULL; choice_bias makes one");
    if (!(c->router.aux_loss >= 0) || !(c->router.z_loss >= 0)) {
        return tshi_fail(TSH_ERR_ARGUMENT, "experts_create: aux_loss=%g and z_loss=%g must be at least 0",
                         c->router.aux_loss, c->router.z_loss);
    }
    if (!(c->capacity >= 0) || !isfinite(c->capacity)) {
        return tshi_fail(TSH_ERR_ARGUMENT, "experts_create: capacity=%g must be finite, and at least 0", c->capacity);
    }
    if (c->hidden > INT64_MAX / c->experts) {
        return tshi_fail(TSH_ERR_OVERFLOW, "experts_create: %lld experts of hidden=%lld", (long long)c->experts,
                         (long long)c->hidden);
    }
    if (c->expert_group && (c->expert_group == group || tsh_group_mesh(c->expert_group) != tsh_group_mesh(group))) {
        return tshi_fail(TSH_ERR_ARGUMENT,
                         "experts_create: expert_group must be another axis of the group's mesh, or NULL");
    }
    return tshi_sharding_check("experts_create", group, TSH_DENSE, false, false, c->dtype);
}

/* A stack of the experts' weights. The first axis splits whole experts, or the hidden features of one among ranks that
 * outnumber the experts; the second axis splits the hidden features of each. Initial values are those of a matrix with
 * all experts' hidden features as rows. */
static tsh_status make_stack(tsh_group *group, const tsh_experts_config *c, const tsh_init *init, tsh_tensor **out) {
    static const tsh_init fallback = {.kind = TSH_INIT_KAIMING_UNIFORM, .gain = 0.57735026918962576451};
    tsh_group *first = c->expert_group ? c->expert_group : group;
    const tsh_mesh *mesh = tsh_group_mesh(group);
    tsh_tensor_config config = {.dtype = c->dtype, .ndim = 3, .shape = {c->experts, c->hidden, c->embed}};
    config.layout[tshi_mesh_axis(mesh, first)] = TSH_SHARD_NEXT(0);
    if (first != group) config.layout[tshi_mesh_axis(mesh, group)] = TSH_SHARD(1);
    const tsh_init *chosen = init->kind == TSH_INIT_DEFAULT ? &fallback : init;
    const tsh_init start = tshi_init_with_fans(chosen, (double)c->embed, (double)(c->experts * c->hidden));
    return tshi_parameter_create_as(mesh, &config, &start, &start, out);
}

static tsh_status make_experts(tsh_group *group, const tsh_experts_config *c, tsh_experts *layer) {
    static const tsh_init fallback = {.kind = TSH_INIT_KAIMING_UNIFORM, .gain = 0.57735026918962576451};
    static const tsh_init zeros = {.kind = TSH_INIT_CONSTANT};
    tsh_dtype dtype = c->dtype == TSH_FLOAT64 ? TSH_FLOAT64 : TSH_FLOAT32;
    int64_t shape[2] = {c->experts, c->embed};
    tsh_status status =
        tshi_parameter_create(group, dtype, 2, shape, TSH_REPLICATED, &c->router_init, &fallback, &layer->router);
    for (weight_part i = GATE; i < WEIGHTS && status == TSH_OK; i++)
        status = make_stack(group, c, i == DOWN ? &c->down_init : &c->weight_init, &layer->weights[i]);
    if (status != TSH_OK || !c->choice_bias) return status;
    status = tshi_parameter_create(group, dtype, 1, shape, TSH_REPLICATED, &zeros, &zeros, &layer->bias);
    return status == TSH_OK ? tsh_tensor_require_grad(layer->bias, false) : status;
}

tsh_status tsh_experts_create(tsh_group *group, const tsh_experts_config *config, tsh_experts **out) {
    if (!out) return tshi_fail(TSH_ERR_ARGUMENT, "experts_create: out is NULL");
    *out = NULL;
    if (!group) return tshi_group_missing("experts_create");
    tsh_status status = check_experts_config(group, config);
    if (status != TSH_OK) return status;
    tsh_world *world = tsh_group_world(group);
    tsh_experts *layer = tshi_calloc(&world->allocator, 1, sizeof *layer);
    if (!layer) return TSH_ERR_MEMORY;
    layer->world = world;
    layer->count = config->experts;
    layer->embed = config->embed;
    layer->config = config->router;
    layer->capacity = config->capacity;
    for (int i = 0; i < TSH_EXPERTS_PARTS && status == TSH_OK; i++)
        status = tshi_layer_name(NULL, config->names[i] ? config->names[i] : part_names[i], layer->names[i]);
    if (status == TSH_OK) status = make_experts(group, config, layer);
    if (status == TSH_OK)
        *out = layer;
    else
        tsh_experts_destroy(layer);
    return status;
}

static void keep_result(tsh_tensor **kept, tsh_tensor *t) {
    tshi_tensor_release(*kept);
    *kept = tshi_tensor_retain(t);
}

void tsh_experts_destroy(tsh_experts *layer) {
    if (!layer) return;
    keep_result(&layer->loss, NULL);
    keep_result(&layer->chosen, NULL);
    for (int i = 0; i < WEIGHTS; i++) tshi_tensor_release(layer->weights[i]);
    tshi_tensor_release(layer->router);
    tshi_tensor_release(layer->bias);
    tshi_free(&layer->world->allocator, layer);
}

/* --- forward ------------------------------------------------------------------------------------------------------ */

/* The router's logits, in its own dtype. */
static tsh_tensor *router_logits(tsh_tape *tape, const tsh_experts *layer, tsh_tensor *x) {
    static const tshi_want want = {.parameters = 1u << 1, .as_stored = true, .axis = -1};
    tsh_tensor *wide = tsh_cast(tape, x, layer->router->dtype);
    return tshi_linear(tape, 2, (tsh_tensor *[]){wide, layer->router}, TSHI_IDENTITY, &want);
}

/* y with the layouts of x, and whole where x is a term of a sum. */
static tsh_tensor *lay_out_as(tsh_tape *tape, tsh_tensor *y, const tsh_tensor *x) {
    tsh_layout layout[TSH_MAX_AXES];
    if (!y) return NULL;
    memcpy(layout, y->layout, sizeof layout);
    for (int a = 0; a < y->mesh->axes; a++) {
        if (layout[a].kind != TSH_KIND_PARTIAL) continue;
        layout[a] = x->layout[a].kind == TSH_KIND_PARTIAL ? TSH_REPLICATED : x->layout[a];
    }
    tshi_layouts_normalize(y->mesh->axes, layout);
    return tshi_to_layouts(tape, "experts_forward", y, layout);
}

/* x [tokens, embed]; `batch` as for tshi_expert_limit. */
static tsh_tensor *forward(tsh_tape *tape, tsh_experts *layer, int64_t batch, tsh_tensor *x) {
    static const tshi_want want = {.parameters = 7u << 3, .axis = -1};
    tsh_router_config config = layer->config;
    tsh_tensor *experts = NULL, *loss = NULL;
    config.bias = layer->bias;
    tsh_tensor *logits = router_logits(tape, layer, x);
    tsh_tensor *weights = tsh_cast(tape, tsh_route(tape, logits, &config, &experts), x->dtype);
    if (weights && (config.aux_loss > 0 || config.z_loss > 0)) loss = tsh_route_loss(tape, logits, &config, experts);
    keep_result(&layer->loss, loss);
    keep_result(&layer->chosen, experts);
    if (weights && layer->capacity > 0)
        experts = tshi_expert_limit(tape, experts, layer->count, layer->capacity, batch);
    tsh_tensor *in[] = {x, weights, experts, layer->weights[GATE], layer->weights[UP], layer->weights[DOWN]};
    tsh_tensor *y = weights && experts ? tshi_expert_mlp(tape, in, layer->count, &want) : NULL;
    return lay_out_as(tape, y, x);
}

/* x [batch, T, embed] as rows of tokens; a token's expert does not depend on its place, so the tokens of ranks that
 * have parts of the sequences come first in the order of their position. */
static tsh_tensor *forward_sequences(tsh_tape *tape, tsh_experts *layer, tsh_tensor *x) {
    bool by_position = false;
    for (int a = 0; a < x->mesh->axes; a++)
        by_position = by_position || (x->layout[a].kind == TSH_KIND_SHARD && x->layout[a].dim == 1);
    if (by_position) x = tsh_transpose(tape, x, 0, 1);
    if (!x) return NULL;
    const int64_t shape[] = {x->shape.global[0], x->shape.global[1], layer->embed};
    x = tsh_reshape(tape, x, 2, (const int64_t[]){shape[0] * shape[1], layer->embed});
    tsh_tensor *y = x ? forward(tape, layer, by_position ? shape[1] : 0, x) : NULL;
    if (y) y = tsh_reshape(tape, y, 3, shape);
    return y && by_position ? tsh_transpose(tape, y, 0, 1) : y;
}

tsh_tensor *tsh_experts_forward(tsh_tape *tape, tsh_experts *layer, tsh_tensor *x) {
    if (!tshi_layer_ready(tape, "experts_forward", layer, x)) return NULL;
    int ndim = x->shape.ndim;
    if (ndim < 2 || ndim > 3 || x->shape.global[ndim - 1] != layer->embed) {
        return tshi_tape_fail(tape, TSH_ERR_SHAPE,
                              "experts_forward: x is %s, must be [tokens, %lld] or [batch, T, %lld]",
                              TSHI_TENSOR_TEXT(x), (long long)layer->embed, (long long)layer->embed);
    }
    return ndim == 3 ? forward_sequences(tape, layer, x) : forward(tape, layer, 0, x);
}

tsh_tensor *tsh_experts_loss(const tsh_experts *layer) {
    return layer ? layer->loss : NULL;
}

tsh_tensor *tsh_experts_chosen(const tsh_experts *layer) {
    return layer ? layer->chosen : NULL;
}

/* bias_i + rate sign(mean - counts_i); both in host memory. */
static void move_bias(int64_t n, const double *counts, double rate, double *bias) {
    double mean = 0;
    for (int64_t i = 0; i < n; i++) mean += counts[i] / (double)n;
    for (int64_t i = 0; i < n; i++) bias[i] += rate * ((mean > counts[i]) - (mean < counts[i]));
}

/* The bias, which is REPLICATED, as doubles in host memory. Of float32, one element after another is converted. */
static tsh_status read_bias(const tsh_experts *layer, double *to) {
    float *narrow = layer->bias->dtype == TSH_FLOAT32
                        ? tshi_calloc(&layer->world->allocator, (size_t)layer->count, sizeof *narrow)
                        : NULL;
    if (layer->bias->dtype == TSH_FLOAT64) return tsh_tensor_read_whole(layer->bias, to);
    tsh_status status = narrow ? tsh_tensor_read_whole(layer->bias, narrow) : TSH_ERR_MEMORY;
    for (int64_t i = 0; status == TSH_OK && i < layer->count; i++) to[i] = narrow[i];
    tshi_free(&layer->world->allocator, narrow);
    return status;
}

static tsh_status write_bias(const tsh_experts *layer, const double *from) {
    float *narrow = layer->bias->dtype == TSH_FLOAT32
                        ? tshi_calloc(&layer->world->allocator, (size_t)layer->count, sizeof *narrow)
                        : NULL;
    if (layer->bias->dtype == TSH_FLOAT64) return tsh_tensor_write_whole(layer->bias, from);
    if (!narrow) return TSH_ERR_MEMORY;
    for (int64_t i = 0; i < layer->count; i++) narrow[i] = (float)from[i];
    tsh_status status = tsh_tensor_write_whole(layer->bias, narrow);
    tshi_free(&layer->world->allocator, narrow);
    return status;
}

/* The tokens of each expert on all ranks, as doubles. */
static tsh_tensor *count_chosen(tsh_tape *tape, const tsh_experts *layer) {
    bool recording = tsh_tape_set_recording(tape, false);
    tsh_tensor *counts = tshi_expert_tokens(tape, layer->chosen, layer->count, TSH_FLOAT64);
    if (counts) counts = tsh_full(tape, counts);
    tsh_tape_set_recording(tape, recording);
    return counts;
}

tsh_status tsh_experts_update_bias(tsh_tape *tape, tsh_experts *layer, double rate) {
    if (!tape || !layer || !layer->bias || !isfinite(rate)) {
        return tshi_fail(TSH_ERR_ARGUMENT,
                         "experts_update_bias: a tape, a layer with a bias and a finite rate are required");
    }
    if (!layer->chosen) return tshi_fail(TSH_ERR_STATE, "experts_update_bias: the layer has had no forward");
    size_t n = (size_t)layer->count;
    double *values = tshi_calloc(&layer->world->allocator, 2 * n, sizeof *values);
    if (!values) return TSH_ERR_MEMORY;
    const tsh_tensor *counts = count_chosen(tape, layer);
    tsh_status status = counts ? tsh_tensor_read_whole(counts, values) : tsh_tape_status(tape);
    if (status == TSH_OK) status = read_bias(layer, values + n);
    if (status == TSH_OK) move_bias(layer->count, values, rate, values + n);
    if (status == TSH_OK) status = write_bias(layer, values + n);
    tshi_free(&layer->world->allocator, values);
    return status;
}

/* --- parameters --------------------------------------------------------------------------------------------------- */

tsh_tensor *tsh_experts_weight(const tsh_experts *layer, tsh_experts_part part) {
    if (!layer || (unsigned)part >= TSH_EXPERTS_PARTS) return NULL;
    if (part == TSH_EXPERTS_ROUTER) return layer->router;
    return part == TSH_EXPERTS_BIAS ? layer->bias : layer->weights[part - TSH_EXPERTS_GATE];
}

tsh_status tshi_experts_check_targets(const tsh_experts *layer, const tsh_lora_config *config, const char *name) {
    char full[TSHI_LAYER_NAME];
    tsh_status status = TSH_OK;
    for (int i = 0; config && config->targets && i < TSH_EXPERTS_PARTS && status == TSH_OK; i++) {
        status = tshi_layer_name(name, layer->names[i], full);
        if (status == TSH_OK && i != TSH_EXPERTS_BIAS && tshi_lora_targets(config, full))
            status =
                tshi_fail(TSH_ERR_UNSUPPORTED, "block_adapt: %.200s is part of experts, which have no adapters", full);
    }
    return status;
}

tsh_status tsh_experts_register(const tsh_experts *layer, tsh_parameters *list, const char *name) {
    char full[TSHI_LAYER_NAME];
    tsh_status status = TSH_OK;
    if (!layer || !list || !name)
        return tshi_fail(TSH_ERR_ARGUMENT, "experts_register: a layer, a list and a name are required");
    for (tsh_experts_part i = TSH_EXPERTS_ROUTER; i < TSH_EXPERTS_PARTS && status == TSH_OK; i++) {
        status = tshi_layer_name(name, layer->names[i], full);
        tsh_tensor *weight = tsh_experts_weight(layer, i);
        if (status == TSH_OK)
            status = tshi_parameters_add_part(list, full, i == TSH_EXPERTS_BIAS ? NULL : "weight", weight);
    }
    return status;
}
