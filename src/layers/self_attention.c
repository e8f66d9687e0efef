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
    tsh_context context;
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
    if ((unsigned)c->context > TSH_CONTEXT_RING)
        return tshi_fail(TSH_ERR_ARGUMENT, "self_attention_create: unknown context %d", (int)c->context);
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
    layer->context = c.context;
    layer->rotary_config = c.rotary_config;
    layer->attention = (tsh_attention_config){
        .causal = c.causal, .scale = c.scale, .dropout = c.dropout, .ring = c.context == TSH_CONTEXT_RING};
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

/* The mask compares positions: a cache has its tokens in order. */
static bool masks_by_position(const tsh_self_attention *layer, const tsh_sequences *s) {
    return layer->context != TSH_CONTEXT_IN_ORDER && layer->attention.causal && !s->cache;
}

static bool has_sequences(const tsh_tensor *x, const tsh_sequences *s) {
    if (x->shape.ndim == 3) return x->shape.global[0] == s->batch;
    return x->shape.ndim == 2 && x->shape.global[0] % s->batch == 0;
}

/* Checks that the rows of x are whole sequences, and that a layer that uses positions has some. */
static bool check_sequences(tsh_tape *tape, const tsh_self_attention *layer, const tsh_tensor *x,
                            const tsh_sequences *s) {
    if (!s || s->batch < 1) {
        tshi_tape_fail(tape, TSH_ERR_ARGUMENT, "self_attention_forward: the number of sequences is required");
    } else if (!has_sequences(x, s)) {
        tshi_tape_fail(tape, TSH_ERR_SHAPE,
                       "self_attention_forward: x is %s, must be [tokens, embed] with the same number of tokens for "
                       "each of %lld sequences, or [sequences, T, embed]",
                       TSHI_TENSOR_TEXT(x), (long long)s->batch);
    } else if (layer->rotary && !s->positions) {
        tshi_tape_fail(tape, TSH_ERR_ARGUMENT, "self_attention_forward: positions are required by a rotary layer");
    } else if (masks_by_position(layer, s) && !s->positions) {
        tshi_tape_fail(tape, TSH_ERR_ARGUMENT, "self_attention_forward: positions are required by the context");
    }
    return tsh_tape_status(tape) == TSH_OK;
}

/* Positions, documents or lengths, split as x is, whose dim `first` is that of the numbers' dim 0 (-1: none); else
 * replicated for attention that is split by heads. NULL for none. */
static tsh_tensor *bring_numbers(tsh_tape *tape, const tsh_self_attention *layer, const tsh_tensor *x,
                                 tsh_tensor *numbers, int first) {
    const tsh_tensor *weight = tsh_linear_weight(layer->parts[TSH_ATTENTION_QUERY].linear);
    tsh_layout layout[TSH_MAX_AXES];
    if (!numbers || !tshi_tape_ready(tape, "self_attention_forward", 1, &numbers)) return NULL;
    memcpy(layout, numbers->layout, sizeof layout);
    for (int a = 0; a < x->mesh->axes && numbers->mesh == x->mesh; a++) {
        int dim = first + layout[a].dim;
        bool alike = first >= 0 && layout[a].kind == TSH_KIND_SHARD && dim < x->shape.ndim - 1 &&
                     tshi_layout_splits(x->layout[a], dim) &&
                     (a != layer->axis || weight->layout[a].kind == TSH_KIND_REPLICATED);
        if (layout[a].kind != TSH_KIND_LOCAL && !alike) layout[a] = TSH_REPLICATED;
    }
    tshi_layouts_normalize(numbers->mesh->axes, layout);
    return tshi_to_layouts(tape, "self_attention_forward", numbers, layout);
}

/* The heads' norm. Where ranks share a key head, each has a gradient of its own, for its query heads: the sum over
 * ranks that the norm's weight gets then counts each of them once. */
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

/* Numbers of tokens: [T], or [batch, T]. */
static tsh_tensor *bring_tokens(tsh_tape *tape, const tsh_self_attention *layer, const tsh_tensor *x,
                                tsh_tensor *numbers) {
    bool shared = numbers && numbers->shape.ndim == 1;
    return bring_numbers(tape, layer, x, numbers, !shared ? 0 : x->shape.ndim == 3 ? 1 : -1);
}

/* The configuration of the call: its masks. */
static tsh_attention_config mask_of(tsh_tape *tape, const tsh_self_attention *layer, const tsh_tensor *x,
                                    const tsh_sequences *s) {
    tsh_attention_config c = layer->attention;
    c.lengths = bring_numbers(tape, layer, x, s->lengths, 0);
    c.query_documents = c.key_documents = bring_tokens(tape, layer, x, s->documents);
    if (masks_by_position(layer, s)) c.query_positions = c.key_positions = s->positions;
    return c;
}

/* A projection of x, split into heads, with rotary positions if any: [batch, T, heads, head_dim]. */
static tsh_tensor *project(tsh_tape *tape, const tsh_self_attention *layer, tsh_attention_part part, tsh_tensor *x,
                           const tsh_sequences *s) {
    int64_t heads = part == TSH_ATTENTION_QUERY ? layer->heads : layer->kv_heads;
    int64_t shape[4] = {s->batch, x->shape.ndim == 3 ? x->shape.global[1] : x->shape.global[0] / s->batch, heads,
                        layer->head_dim};
    tsh_tensor *y = tsh_reshape(tape, tsh_linear_forward(tape, layer->parts[part].linear, x), 4, shape);
    y = normalize_heads(tape, layer, part, y);
    if (!layer->rotary || part == TSH_ATTENTION_VALUE) return y;
    return tsh_rotary(tape, y, s->positions, &layer->rotary_config);
}

/* The layout of x [batch, T, heads, head_dim] with heads in place of tokens. A KV head with its query heads is a unit,
 * as in the projections. False where another axis splits the heads so that they cannot be split again. */
static bool heads_for_tokens(const tsh_self_attention *layer, const tsh_tensor *x, bool kv,
                             tsh_layout layout[TSH_MAX_AXES]) {
    const bool grouped = layer->kv_heads < layer->heads;
    tsh_shape shape = x->shape;
    memcpy(layout, x->layout, sizeof x->layout);
    for (int a = 0; a < x->mesh->axes; a++) {
        if (!tshi_layout_splits(layout[a], 1)) continue;
        layout[a] = TSH_SHARD_UNITS(2, layer->kv_heads, grouped && !kv ? layer->heads : 0);
        if (grouped && kv) layout[a].sharing = TSH_SHARED_OWN;
    }
    tshi_layouts_normalize(x->mesh->axes, layout);
    return tshi_shape_resolve(x->mesh, &shape, layout) == TSH_OK;
}

/* Exchanges heads for tokens in q, k and v. Where that is impossible, they stay as they are. False on failure. */
static bool exchange(tsh_tape *tape, const tsh_self_attention *layer, tsh_tensor *in[TSH_ATTENTION_OUT]) {
    tsh_layout layout[TSH_ATTENTION_OUT][TSH_MAX_AXES];
    for (int i = 0; i < TSH_ATTENTION_OUT; i++)
        if (!in[i] || !heads_for_tokens(layer, in[i], i != TSH_ATTENTION_QUERY, layout[i])) return in[i];
    for (int i = 0; i < TSH_ATTENTION_OUT; i++) {
        in[i] = tshi_to_layouts(tape, "self_attention_forward", in[i], layout[i]);
        if (!in[i]) return false;
    }
    return true;
}

/* Attention of x's tokens: [batch, T, heads, head_dim]. */
static tsh_tensor *attend(tsh_tape *tape, const tsh_self_attention *layer, tsh_tensor *x, const tsh_sequences *s,
                          const tsh_attention_config *config) {
    tsh_tensor *in[TSH_ATTENTION_OUT];
    for (tsh_attention_part i = TSH_ATTENTION_QUERY; i < TSH_ATTENTION_OUT; i++) in[i] = project(tape, layer, i, x, s);
    tsh_tensor *q = in[TSH_ATTENTION_QUERY];
    if (layer->context == TSH_CONTEXT_EXCHANGE && !exchange(tape, layer, in)) return NULL;
    tsh_tensor *y = tsh_attention_cached(tape, s->cache, in[TSH_ATTENTION_QUERY], in[TSH_ATTENTION_KEY],
                                         in[TSH_ATTENTION_VALUE], config);
    bool back = y && layer->context == TSH_CONTEXT_EXCHANGE;
    return back ? tshi_to_layouts(tape, "self_attention_forward", y, q->layout) : y;
}

tsh_tensor *tsh_self_attention_forward(tsh_tape *tape, tsh_self_attention *layer, tsh_tensor *x,
                                       const tsh_sequences *sequences) {
    if (!tshi_layer_ready(tape, "self_attention_forward", layer, x)) return NULL;
    if (!check_sequences(tape, layer, x, sequences)) return NULL;
    tsh_sequences s = *sequences;
    s.positions = layer->rotary || masks_by_position(layer, &s) ? bring_tokens(tape, layer, x, s.positions) : NULL;
    const tsh_attention_config config = mask_of(tape, layer, x, &s);
    if (tsh_tape_status(tape) != TSH_OK) return NULL;
    tsh_tensor *y = attend(tape, layer, x, &s, &config);
    int64_t shape[3] = {x->shape.global[0], x->shape.global[1]};
    shape[x->shape.ndim - 1] = layer->heads * layer->head_dim;
    y = tsh_reshape(tape, y, x->shape.ndim, shape);
    return tsh_linear_forward(tape, layer->parts[TSH_ATTENTION_OUT].linear, y);
}

tsh_linear *tsh_self_attention_linear(const tsh_self_attention *layer, tsh_attention_part part) {
    return layer && (unsigned)part < TSH_ATTENTION_PARTS ? layer->parts[part].linear : NULL;
}

tsh_kv_cache_config tsh_self_attention_cache(const tsh_self_attention *layer, int64_t batch, int64_t positions) {
    if (!layer) return (tsh_kv_cache_config){.batch = 0};
    const tsh_linear *linear = layer->parts[TSH_ATTENTION_KEY].linear;
    const tsh_tensor *keys = tsh_linear_weight(linear);
    tsh_kv_cache_config config = {.batch = batch,
                                  .positions = positions,
                                  .kv_heads = layer->kv_heads,
                                  .head_dim = layer->head_dim,
                                  .dtype = tshi_linear_dtype(linear)};
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
