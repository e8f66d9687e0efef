/* Self-attention, split by heads. */
#include "autograd/redistribute.h"
#include "layers/layers.h"

#include <string.h>

struct tsh_self_attention {
    tsh_world *world;
    int axis; /* the mesh's axis over which heads are split */
    int64_t heads, kv_heads, head_dim;
    bool rotary;
    tsh_rotary_config rotary_config;
    tsh_attention_config attention; /* without lengths */
    tshi_linear_part parts[TSH_ATTENTION_PARTS];
    tsh_norm *q_norm, *k_norm; /* NULL: none */
};

static const char *const part_names[TSH_ATTENTION_PARTS] = {"q_proj", "k_proj", "v_proj", "o_proj"};

/* Fills in the sizes that are 0, and checks all. */
static tsh_status resolve_heads(tsh_self_attention_config *c) {
    if (c->embed < 1 || c->heads < 1 || c->kv_heads < 0 || c->head_dim < 0) {
        return tshi_fail(TSH_ERR_ARGUMENT,
                         "self_attention_create: embed=%lld, heads=%lld, kv_heads=%lld, head_dim=%lld: the first two "
                         "must be at least 1, the last two at least 0",
                         (long long)c->embed, (long long)c->heads, (long long)c->kv_heads, (long long)c->head_dim);
    }
    if (c->kv_heads == 0) c->kv_heads = c->heads;
    if (c->heads % c->kv_heads) {
        return tshi_fail(TSH_ERR_ARGUMENT, "self_attention_create: kv_heads=%lld does not divide heads=%lld",
                         (long long)c->kv_heads, (long long)c->heads);
    }
    if (c->head_dim == 0 && c->embed % c->heads) {
        return tshi_fail(TSH_ERR_ARGUMENT,
                         "self_attention_create: heads=%lld does not divide embed=%lld; head_dim is required",
                         (long long)c->heads, (long long)c->embed);
    }
    if (c->head_dim == 0) c->head_dim = c->embed / c->heads;
    if (c->heads > INT64_MAX / c->head_dim) {
        return tshi_fail(TSH_ERR_OVERFLOW, "self_attention_create: %lld heads of head_dim=%lld", (long long)c->heads,
                         (long long)c->head_dim);
    }
    if (c->dropout >= 0 && c->dropout < 1) return TSH_OK;
    return tshi_fail(TSH_ERR_ARGUMENT, "self_attention_create: dropout=%g, must be in [0, 1)", c->dropout);
}

/* Each split has a KV head with its query heads as its unit. Ranks may share a unit with several query heads. */
static tsh_linear_config projection_config(const tsh_self_attention_config *c, tsh_attention_part part) {
    bool out = part == TSH_ATTENTION_OUT, kv = part == TSH_ATTENTION_KEY || part == TSH_ATTENTION_VALUE,
         grouped = c->kv_heads < c->heads;
    int64_t features = (kv ? c->kv_heads : c->heads) * c->head_dim;
    return (tsh_linear_config){.in_features = out ? features : c->embed,
                               .out_features = out ? c->embed : features,
                               .shard = out ? TSH_ROW : TSH_COLUMN,
                               .units = c->kv_heads,
                               .blocks = grouped && !kv ? c->heads : 0,
                               .shared = grouped && kv,
                               .bias = out ? c->out_bias : c->bias,
                               .dtype = c->dtype,
                               .weight_init = out ? c->out_init : c->weight_init,
                               .bias_init = c->bias_init};
}

static tsh_status make_parts(tsh_group *group, const tsh_self_attention_config *c, tsh_self_attention *layer) {
    tshi_parts_sharding sharding = {c->table, c->name, c->sequence_parallel};
    tsh_status status = TSH_OK;
    for (tsh_attention_part i = TSH_ATTENTION_QUERY; i < TSH_ATTENTION_PARTS && status == TSH_OK; i++) {
        tsh_linear_config part = projection_config(c, i);
        const char *name = c->names[i] ? c->names[i] : part_names[i];
        status = tshi_linear_part_create(group, &sharding, name, &part, &layer->parts[i]);
    }
    return status;
}

static tsh_status make_norms(tsh_group *group, const tsh_self_attention_config *c, tsh_self_attention *layer) {
    tsh_norm_config norm = {.features = c->head_dim, .kind = TSH_RMS_NORM, .eps = c->qk_norm_eps, .dtype = c->dtype};
    if (!c->qk_norm) return TSH_OK;
    tsh_status status = tsh_norm_create(group, &norm, &layer->q_norm);
    return status == TSH_OK ? tsh_norm_create(group, &norm, &layer->k_norm) : status;
}

tsh_status tsh_self_attention_create(tsh_group *group, const tsh_self_attention_config *config,
                                     tsh_self_attention **out) {
    if (!out) return tshi_fail(TSH_ERR_ARGUMENT, "self_attention_create: out is NULL");
    *out = NULL;
    if (!group || !config)
        return group ? tshi_fail(TSH_ERR_ARGUMENT, "self_attention_create: a configuration is required")
                     : tshi_group_missing("self_attention_create");
    tsh_self_attention_config c = *config;
    tsh_status status = resolve_heads(&c);
    if (status != TSH_OK) return status;
    tsh_world *world = tsh_group_world(group);
    tsh_self_attention *layer = tshi_calloc(&world->allocator, 1, sizeof *layer);
    if (!layer) return TSH_ERR_MEMORY;
    layer->world = world;
    layer->axis = tshi_mesh_axis(tsh_group_mesh(group), group);
    layer->heads = c.heads;
    layer->kv_heads = c.kv_heads;
    layer->head_dim = c.head_dim;
    layer->rotary = c.rotary;
    layer->rotary_config = c.rotary_config;
    layer->attention = (tsh_attention_config){.causal = c.causal, .scale = c.scale, .dropout = c.dropout};
    status = make_parts(group, &c, layer);
    if (status == TSH_OK) status = make_norms(group, &c, layer);
    if (status == TSH_OK)
        *out = layer;
    else
        tsh_self_attention_destroy(layer);
    return status;
}

void tsh_self_attention_destroy(tsh_self_attention *layer) {
    if (!layer) return;
    for (int i = 0; i < TSH_ATTENTION_PARTS; i++) tsh_linear_destroy(layer->parts[i].linear);
    tsh_norm_destroy(layer->q_norm);
    tsh_norm_destroy(layer->k_norm);
    tshi_free(&layer->world->allocator, layer);
}

/* Checks that the rows of x are whole sequences, and that a rotary layer has positions. */
static bool check_sequences(tsh_tape *tape, const tsh_self_attention *layer, const tsh_tensor *x,
                            const tsh_sequences *s) {
    if (!s || s->batch < 1) {
        tshi_tape_fail(tape, TSH_ERR_ARGUMENT, "self_attention_forward: the number of sequences is required");
    } else if (x->shape.ndim != 2 || x->shape.global[0] % s->batch) {
        tshi_tape_fail(tape, TSH_ERR_SHAPE,
                       "self_attention_forward: x is %s, must be [tokens, embed] with the same number of tokens for "
                       "each of %lld sequences",
                       TSHI_TENSOR_TEXT(x), (long long)s->batch);
    } else if (layer->rotary && !s->positions) {
        tshi_tape_fail(tape, TSH_ERR_ARGUMENT, "self_attention_forward: positions are required by a rotary layer");
    }
    return tsh_tape_status(tape) == TSH_OK;
}

/* Positions or lengths, split as x's sequences, else replicated for attention that is split by heads. NULL for none. */
static tsh_tensor *bring_numbers(tsh_tape *tape, const tsh_self_attention *layer, const tsh_tensor *x,
                                 tsh_tensor *numbers, bool by_sequence) {
    const tsh_tensor *weight = tsh_linear_weight(layer->parts[TSH_ATTENTION_QUERY].linear);
    tsh_layout layout[TSH_MAX_AXES];
    if (!numbers || !tshi_tape_ready(tape, "self_attention_forward", 1, &numbers)) return NULL;
    memcpy(layout, numbers->layout, sizeof layout);
    for (int a = 0; a < x->mesh->axes && numbers->mesh == x->mesh; a++) {
        bool alike = by_sequence && tshi_layout_splits(layout[a], 0) && tshi_layout_splits(x->layout[a], 0) &&
                     (a != layer->axis || weight->layout[a].kind == TSH_KIND_REPLICATED);
        if (layout[a].kind != TSH_KIND_LOCAL && !alike) layout[a] = TSH_REPLICATED;
    }
    tshi_layouts_normalize(numbers->mesh->axes, layout);
    return tshi_to_layouts(tape, "self_attention_forward", numbers, layout);
}

/* The heads' norm. Where ranks share a key head, each has a gradient of its own, for its query heads: the sum over ranks
 * that the norm's weight gets then counts each of them once. */
static tsh_tensor *normalize_heads(tsh_tape *tape, const tsh_self_attention *layer, tsh_attention_part part,
                                   tsh_tensor *y) {
    tsh_norm *norm = part == TSH_ATTENTION_QUERY ? layer->q_norm : layer->k_norm;
    if (!y || !norm || part == TSH_ATTENTION_VALUE) return y;
    tsh_layout own = y->layout[layer->axis];
    if (own.kind == TSH_KIND_SHARD && own.sharing == TSH_SHARED) {
        own.sharing = TSH_SHARED_OWN;
        y = tshi_transit(tape, "self_attention_forward", y, layer->axis, own);
    }
    return tsh_norm_forward(tape, norm, y);
}

/* A projection of x, split into heads, with rotary positions if any: [batch, T, heads, head_dim]. */
static tsh_tensor *project(tsh_tape *tape, const tsh_self_attention *layer, tsh_attention_part part, tsh_tensor *x,
                           const tsh_sequences *s) {
    int64_t heads = part == TSH_ATTENTION_QUERY ? layer->heads : layer->kv_heads;
    int64_t shape[4] = {s->batch, x->shape.global[0] / s->batch, heads, layer->head_dim};
    tsh_tensor *y = tsh_reshape(tape, tsh_linear_forward(tape, layer->parts[part].linear, x), 4, shape);
    y = normalize_heads(tape, layer, part, y);
    if (!layer->rotary || part == TSH_ATTENTION_VALUE) return y;
    return tsh_rotary(tape, y, s->positions, &layer->rotary_config);
}

tsh_tensor *tsh_self_attention_forward(tsh_tape *tape, tsh_self_attention *layer, tsh_tensor *x,
                                       const tsh_sequences *sequences) {
    if (!tshi_layer_ready(tape, "self_attention_forward", layer, x)) return NULL;
    if (!check_sequences(tape, layer, x, sequences)) return NULL;
    tsh_attention_config config = layer->attention;
    tsh_sequences s = *sequences;
    s.positions = layer->rotary ? bring_numbers(tape, layer, x, s.positions, s.positions->shape.ndim == 2) : NULL;
    config.lengths = bring_numbers(tape, layer, x, s.lengths, true);
    if (tsh_tape_status(tape) != TSH_OK) return NULL;
    tsh_tensor *q = project(tape, layer, TSH_ATTENTION_QUERY, x, &s);
    tsh_tensor *k = project(tape, layer, TSH_ATTENTION_KEY, x, &s);
    tsh_tensor *v = project(tape, layer, TSH_ATTENTION_VALUE, x, &s);
    tsh_tensor *y = tsh_attention_cached(tape, s.cache, q, k, v, &config);
    y = tsh_reshape(tape, y, 2, (int64_t[]){x->shape.global[0], layer->heads * layer->head_dim});
    return tsh_linear_forward(tape, layer->parts[TSH_ATTENTION_OUT].linear, y);
}

tsh_linear *tsh_self_attention_linear(const tsh_self_attention *layer, tsh_attention_part part) {
    return layer && (unsigned)part < TSH_ATTENTION_PARTS ? layer->parts[part].linear : NULL;
}

tsh_kv_cache_config tsh_self_attention_cache(const tsh_self_attention *layer, int64_t batch, int64_t positions) {
    if (!layer) return (tsh_kv_cache_config){.batch = 0};
    const tsh_tensor *keys = tsh_linear_weight(layer->parts[TSH_ATTENTION_KEY].linear);
    tsh_kv_cache_config config = {.batch = batch,
                                  .positions = positions,
                                  .kv_heads = layer->kv_heads,
                                  .head_dim = layer->head_dim,
                                  .dtype = tshi_gradient_computed_in(keys)};
    tsh_layout *heads = &config.layout[layer->axis];
    *heads = keys->layout[layer->axis];
    if (heads->kind == TSH_KIND_SHARD) *heads = TSH_LAYOUT_(heads->kind, 2, 0, heads->sharing, heads->units, 0, 0);
    return config;
}

tsh_status tsh_self_attention_register(const tsh_self_attention *layer, tsh_parameters *list, const char *name) {
    if (!layer) return tshi_fail(TSH_ERR_ARGUMENT, "self_attention_register: a layer is required");
    char full[TSHI_LAYER_NAME];
    tsh_status status = tshi_linear_parts_register(layer->parts, TSH_ATTENTION_PARTS, list, name);
    if (status != TSH_OK || !layer->q_norm) return status;
    status = tshi_layer_name(name, "q_norm", full);
    if (status == TSH_OK) status = tsh_norm_register(layer->q_norm, list, full);
    if (status == TSH_OK) status = tshi_layer_name(name, "k_norm", full);
    return status == TSH_OK ? tsh_norm_register(layer->k_norm, list, full) : status;
}

tsh_status tsh_self_attention_adapt(tsh_self_attention *layer, const tsh_lora_config *config, tsh_parameters *list,
                                    const char *name) {
    if (!layer) return tshi_fail(TSH_ERR_ARGUMENT, "self_attention_adapt: a layer is required");
    return tshi_linear_parts_adapt(layer->parts, TSH_ATTENTION_PARTS, config, list, name);
}
