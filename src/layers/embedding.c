/* Embedding, dense, or with its vocabulary (row) or features (column) split over a group. */
#include "layers/layers.h"

struct tsh_embedding {
    tsh_world *world;
    int64_t embedding_dim;
    tsh_dtype dtype;      /* of the table, unless it is quantized */
    tshi_want want, head; /* for lookups, and for projections */
    tshi_lookup lookup;
    tsh_tensor *weight;
    tshi_adapter adapter[TSH_EMBEDDING_USES];
};

static tsh_status check_embedding_config(const tsh_group *group, const tsh_embedding_config *config) {
    if (!config) return tshi_fail(TSH_ERR_ARGUMENT, "embedding_create: a configuration is required");
    if (config->num_embeddings < 1 || config->embedding_dim < 1) {
        return tshi_fail(TSH_ERR_ARGUMENT,
                         "embedding_create: num_embeddings=%lld and embedding_dim=%lld, both must be at least 1",
                         (long long)config->num_embeddings, (long long)config->embedding_dim);
    }
    if (config->has_padding && (config->padding < 0 || config->padding >= config->num_embeddings)) {
        return tshi_fail(TSH_ERR_RANGE, "embedding_create: padding=%lld is outside [0, %lld)",
                         (long long)config->padding, (long long)config->num_embeddings);
    }
    if (!(config->max_norm >= 0) || !(config->norm_type >= 0)) {
        return tshi_fail(TSH_ERR_RANGE,
                         "embedding_create: max_norm=%g and norm_type=%g, neither may be negative or NaN",
                         config->max_norm, config->norm_type);
    }
    return tshi_sharding_check("embedding_create", group, config->shard, config->gather_output,
                               config->sequence_parallel, config->dtype);
}

tsh_status tsh_embedding_create(tsh_group *group, const tsh_embedding_config *config, tsh_embedding **out) {
    static const tsh_init fallback = {.kind = TSH_INIT_NORMAL, .b = 1};
    if (!out) return tshi_fail(TSH_ERR_ARGUMENT, "embedding_create: out is NULL");
    *out = NULL;
    tsh_status status = check_embedding_config(group, config);
    if (status != TSH_OK) return status;
    tsh_world *world = tsh_group_world(group);
    tsh_embedding *layer = tshi_calloc(&world->allocator, 1, sizeof *layer);
    if (!layer) return TSH_ERR_MEMORY;
    layer->world = world;
    layer->embedding_dim = config->embedding_dim;
    layer->dtype = config->dtype;
    layer->want = tshi_layer_want(group, config->shard, config->gather_output, config->sequence_parallel);
    layer->want.parameters = 1u << 0;
    layer->want.as_stored = true;
    layer->head = tshi_layer_want(group, config->shard == TSH_COLUMN ? TSH_ROW : TSH_DENSE, false, false);
    layer->head.parameters = 1u << 1 | 1u << 2 | 1u << 3; /* with an adapter there are four inputs */
    layer->lookup = (tshi_lookup){config->has_padding ? config->padding : -1, config->scale_grad_by_freq,
                                  config->max_norm, config->norm_type > 0 ? config->norm_type : 2};
    tsh_layout split = config->shard == TSH_DENSE ? TSH_REPLICATED : TSH_SHARD(config->shard == TSH_ROW ? 0 : 1);
    int64_t shape[2] = {config->num_embeddings, config->embedding_dim};
    status = tshi_parameter_create(group, config->dtype, 2, shape, split, &config->init, &fallback, &layer->weight);
    if (status != TSH_OK) {
        tsh_embedding_destroy(layer);
        return status;
    }
    tshi_initial *initial = tshi_tensor_initial(layer->weight);
    initial->has_zero_row = config->has_padding;
    initial->zero_row = config->padding;
    layer->weight->may_quantize = config->max_norm == 0; /* rows of groups cannot be scaled in place */
    *out = layer;
    return TSH_OK;
}

void tsh_embedding_destroy(tsh_embedding *layer) {
    if (!layer) return;
    tshi_tensor_release(layer->weight);
    for (int i = 0; i < TSH_EMBEDDING_USES; i++) tshi_adapter_release(&layer->adapter[i]);
    tshi_free(&layer->world->allocator, layer);
}

tsh_tensor *tsh_embedding_forward(tsh_tape *tape, tsh_embedding *layer, tsh_tensor *ids) {
    if (!layer) return tshi_embedding(tape, NULL, ids, &(tshi_lookup){.padding = -1}, NULL);
    const tshi_adapter *adapter = &layer->adapter[TSH_EMBEDDING_LOOKUP];
    tsh_tensor *in[] = {layer->weight, ids, adapter->a, adapter->b};
    if (adapter->b) return tshi_adapted_embedding(tape, in, &layer->lookup, adapter->scale, &layer->want);
    if (layer->weight->quant) {
        const tshi_quantized_lookup params = {layer->embedding_dim, layer->weight->quant->quant, layer->dtype};
        return tshi_embedding_quantized(tape, layer->weight, ids, &params, &layer->want);
    }
    return tshi_embedding(tape, layer->weight, ids, &layer->lookup, &layer->want);
}

tsh_tensor *tsh_embedding_project(tsh_tape *tape, tsh_embedding *layer, tsh_tensor *x) {
    if (!tshi_layer_ready(tape, "embedding_project", layer, x)) return NULL;
    const tshi_adapter *adapter = &layer->adapter[TSH_EMBEDDING_HEAD];
    tsh_tensor *in[] = {x, layer->weight, adapter->a, adapter->b};
    if (adapter->b) return tshi_adapted_linear(tape, 4, in, adapter->scale, adapter->dropout, &layer->head);
    if (layer->weight->quant) {
        const tshi_quantized params = {layer->embedding_dim, layer->weight->quant->quant, TSHI_IDENTITY};
        return tshi_linear_quantized(tape, 2, in, &params, &layer->head);
    }
    return tshi_linear(tape, 2, in, TSHI_IDENTITY, &layer->head);
}

tsh_tensor *tsh_embedding_weight(const tsh_embedding *layer) {
    return layer ? layer->weight : NULL;
}

tsh_status tsh_embedding_register(const tsh_embedding *layer, tsh_parameters *list, const char *name) {
    if (!layer) return tshi_fail(TSH_ERR_ARGUMENT, "embedding_register: a layer is required");
    tsh_status status = tshi_parameters_add_part(list, name, "weight", layer->weight);
    return status == TSH_OK ? tshi_adapter_register(&layer->adapter[TSH_EMBEDDING_LOOKUP], list, name) : status;
}

tsh_status tsh_embedding_load(tsh_embedding *layer, const void *table) {
    if (!layer || !table) return tshi_fail(TSH_ERR_ARGUMENT, "embedding_load: a layer and a table are required");
    if (layer->weight->quant)
        return tshi_fail(TSH_ERR_STATE, "embedding_load: the layer's table is quantized, and has no floats");
    return tsh_tensor_write_whole(layer->weight, table);
}

/* --- adapters ----------------------------------------------------------------------------------------------------- */

static bool is_use(tsh_embedding_use use) {
    return (unsigned)use < TSH_EMBEDDING_USES;
}

tsh_status tsh_embedding_adapt(tsh_embedding *layer, tsh_embedding_use use, const tsh_lora_config *config,
                               tsh_parameters *list, const char *name) {
    if (!layer || !is_use(use)) return tshi_fail(TSH_ERR_ARGUMENT, "embedding_adapt: a layer and a use are required");
    if (layer->weight->quant)
        return tshi_fail(TSH_ERR_STATE, "embedding_adapt: the layer's table is quantized (tsh_load_options)");
    const tshi_adapted adapted = {.weight = layer->weight, .lookup = use == TSH_EMBEDDING_LOOKUP};
    return tshi_adapter_create("embedding_adapt", adapted, config, list, name, &layer->adapter[use]);
}

tsh_tensor *tsh_embedding_lora_a(const tsh_embedding *layer, tsh_embedding_use use) {
    return layer && is_use(use) ? layer->adapter[use].a : NULL;
}

tsh_tensor *tsh_embedding_lora_b(const tsh_embedding *layer, tsh_embedding_use use) {
    return layer && is_use(use) ? layer->adapter[use].b : NULL;
}
