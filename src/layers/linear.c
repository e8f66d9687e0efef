/* Linear, dense or split over a group by row or by column. */
#include "layers/layers.h"

#include <math.h>

struct tsh_linear {
    tsh_world *world;
    int64_t in_features;
    tsh_dtype dtype; /* of weight and bias, unless the weight is quantized */
    tshi_want want;
    tshi_unary fused, after; /* the activation: fused into the product, or after a row layer's sum */
    tsh_tensor *weight, *bias;
    tshi_adapter adapter;
};

static const tshi_unary functions[] = {[TSH_ACTIVATION_NONE] = TSHI_IDENTITY,
                                       [TSH_ACTIVATION_GELU] = TSHI_GELU_ERF,
                                       [TSH_ACTIVATION_GELU_TANH] = TSHI_GELU_TANH,
                                       [TSH_ACTIVATION_RELU] = TSHI_RELU,
                                       [TSH_ACTIVATION_SILU] = TSHI_SILU};

static tsh_status check_linear_config(const tsh_group *group, const tsh_linear_config *config) {
    if (!config) return tshi_fail(TSH_ERR_ARGUMENT, "linear_create: a configuration is required");
    if (config->in_features < 1 || config->out_features < 1) {
        return tshi_fail(TSH_ERR_ARGUMENT,
                         "linear_create: in_features=%lld and out_features=%lld, both must be at least 1",
                         (long long)config->in_features, (long long)config->out_features);
    }
    if ((unsigned)config->activation >= sizeof functions / sizeof functions[0]) {
        return tshi_fail(TSH_ERR_ARGUMENT, "linear_create: unknown activation %d", (int)config->activation);
    }
    if ((config->shared && config->shard != TSH_COLUMN) ||
        ((config->units || config->blocks) && config->shard == TSH_DENSE)) {
        return tshi_fail(
            TSH_ERR_ARGUMENT,
            "linear_create: units and blocks are only for TSH_COLUMN and TSH_ROW, shared only for TSH_COLUMN");
    }
    return tshi_sharding_check("linear_create", group, config->shard, config->gather_output, config->sequence_parallel,
                               config->dtype);
}

static tsh_status make_parameters(tsh_linear *layer, tsh_group *group, const tsh_linear_config *c) {
    tsh_layout split =
        c->shard == TSH_DENSE ? TSH_REPLICATED : TSH_SHARD_UNITS(c->shard == TSH_ROW, c->units, c->blocks);
    if (c->shared) split.sharing = TSH_SHARED;
    double bound = 1 / sqrt((double)c->in_features);
    tsh_init fallback = {.kind = TSH_INIT_UNIFORM, .a = -bound, .b = bound};
    tsh_status status = tshi_parameter_create(group, c->dtype, 2, (int64_t[]){c->out_features, c->in_features}, split,
                                              &c->weight_init, &fallback, &layer->weight);
    if (status != TSH_OK) return status;
    layer->weight->may_quantize = true;
    layer->weight->rows_move = !c->bias && !c->units && !c->blocks && !c->shared;
    if (!c->bias) return TSH_OK;
    return tshi_parameter_create(group, c->dtype, 1, &c->out_features, c->shard == TSH_COLUMN ? split : TSH_REPLICATED,
                                 &c->bias_init, &fallback, &layer->bias);
}

tsh_status tsh_linear_create(tsh_group *group, const tsh_linear_config *config, tsh_linear **out) {
    if (!out) return tshi_fail(TSH_ERR_ARGUMENT, "linear_create: out is NULL");
    *out = NULL;
    tsh_status status = check_linear_config(group, config);
    if (status != TSH_OK) return status;
    tsh_world *world = tsh_group_world(group);
    tsh_linear *layer = tshi_calloc(&world->allocator, 1, sizeof *layer);
    if (!layer) return TSH_ERR_MEMORY;
    tshi_unary f = functions[config->activation];
    layer->world = world;
    layer->in_features = config->in_features;
    layer->dtype = config->dtype;
    layer->want = tshi_layer_want(group, config->shard, config->gather_output, config->sequence_parallel);
    layer->want.parameters = 1u << 1 | 1u << 2 | 1u << 3 | 1u << 4; /* with an adapter there are five inputs */
    layer->fused = config->shard == TSH_ROW ? TSHI_IDENTITY : f;
    layer->after = config->shard == TSH_ROW ? f : TSHI_IDENTITY;
    status = make_parameters(layer, group, config);
    if (status == TSH_OK)
        *out = layer;
    else
        tsh_linear_destroy(layer);
    return status;
}

void tsh_linear_destroy(tsh_linear *layer) {
    if (!layer) return;
    tshi_tensor_release(layer->weight);
    tshi_tensor_release(layer->bias);
    tshi_adapter_release(&layer->adapter);
    tshi_free(&layer->world->allocator, layer);
}

static tsh_tensor *multiply_groups(tsh_tape *tape, const tsh_linear *layer, int inputs, tsh_tensor **in) {
    const tshi_quantized params = {layer->in_features, in[1]->quant->quant, layer->fused};
    return tshi_linear_quantized(tape, inputs, in, &params, &layer->want);
}

/* y with these rows of the weight, and of B, as rows. */
static tsh_tensor *forward_with(tsh_tape *tape, tsh_linear *layer, tsh_tensor *x, tsh_tensor *weight, tsh_tensor *b) {
    const tshi_adapter *adapter = &layer->adapter;
    int count = layer->bias != NULL;
    tshi_unary f = layer->after;
    tsh_tensor *y;
    if (!b) {
        tsh_tensor *in[] = {x, weight, layer->bias};
        y = weight && weight->quant ? multiply_groups(tape, layer, 2 + count, in)
                                    : tshi_linear(tape, 2 + count, in, layer->fused, &layer->want);
    } else {
        tsh_tensor *in[] = {x, weight, adapter->a, b, layer->bias};
        y = tshi_adapted_linear(tape, 4 + count, in, adapter->scale, adapter->dropout, &layer->want);
        if (f == TSHI_IDENTITY) f = layer->fused;
    }
    return y && f != TSHI_IDENTITY ? tshi_activate(tape, y, f) : y;
}

tsh_tensor *tsh_linear_forward(tsh_tape *tape, tsh_linear *layer, tsh_tensor *x) {
    if (!layer) return tshi_linear(tape, 2, (tsh_tensor *[]){x, NULL}, TSHI_IDENTITY, NULL);
    return forward_with(tape, layer, x, layer->weight, layer->adapter.merged ? NULL : layer->adapter.b);
}

tsh_tensor *tsh_linear_forward_rows(tsh_tape *tape, tsh_linear *layer, tsh_tensor *x, tsh_tensor *rows) {
    if (!layer) return tsh_linear_forward(tape, NULL, x);
    if (layer->bias && tape) {
        return tshi_tape_fail(tape, TSH_ERR_ARGUMENT, "linear_forward_rows: the layer must not have a bias");
    }
    if (layer->weight->quant && tape)
        return tshi_tape_fail(tape, TSH_ERR_STATE, "linear_forward_rows: the layer's weight is quantized");
    bool adapted = layer->adapter.b && !layer->adapter.merged;
    tsh_tensor *weight = tsh_take_rows(tape, layer->weight, rows);
    return forward_with(tape, layer, x, weight, adapted ? tsh_take_rows(tape, layer->adapter.b, rows) : NULL);
}

/* --- parameters --------------------------------------------------------------------------------------------------- */

tsh_tensor *tsh_linear_weight(const tsh_linear *layer) {
    return layer ? layer->weight : NULL;
}

tsh_dtype tshi_linear_dtype(const tsh_linear *layer) {
    const tsh_tensor *weight = layer->weight;
    bool casts = weight->gradient && weight->gradient->arithmetic;
    return weight->quant && !casts ? layer->dtype : tshi_gradient_computed_in(weight);
}

tsh_tensor *tsh_linear_bias(const tsh_linear *layer) {
    return layer ? layer->bias : NULL;
}

tsh_status tsh_linear_register(const tsh_linear *layer, tsh_parameters *list, const char *name) {
    if (!layer) return tshi_fail(TSH_ERR_ARGUMENT, "linear_register: a layer is required");
    tsh_status status = tshi_parameters_add_part(list, name, "weight", layer->weight);
    if (status == TSH_OK) status = tshi_parameters_add_part(list, name, "bias", layer->bias);
    return status == TSH_OK ? tshi_adapter_register(&layer->adapter, list, name) : status;
}

tsh_status tsh_linear_load(tsh_linear *layer, const void *weight, const void *bias) {
    if (!layer || !weight) return tshi_fail(TSH_ERR_ARGUMENT, "linear_load: a layer and a weight are required");
    if (bias && !layer->bias) return tshi_fail(TSH_ERR_ARGUMENT, "linear_load: the layer has no bias");
    if (layer->weight->quant)
        return tshi_fail(TSH_ERR_STATE, "linear_load: the layer's weight is quantized, and has no floats");
    tsh_status status = tsh_tensor_write_whole(layer->weight, weight);
    return status == TSH_OK && bias ? tsh_tensor_write_whole(layer->bias, bias) : status;
}

/* --- the adapter -------------------------------------------------------------------------------------------------- */

tsh_status tsh_linear_adapt(tsh_linear *layer, const tsh_lora_config *config, tsh_parameters *list, const char *name) {
    if (!layer) return tshi_fail(TSH_ERR_ARGUMENT, "linear_adapt: a layer is required");
    if (layer->weight->quant)
        return tshi_fail(TSH_ERR_STATE, "linear_adapt: the layer's weight is quantized (tsh_load_options)");
    const tshi_adapted adapted = {.weight = layer->weight, .bias = layer->bias};
    return tshi_adapter_create("linear_adapt", adapted, config, list, name, &layer->adapter);
}

tsh_tensor *tsh_linear_lora_a(const tsh_linear *layer) {
    return layer ? layer->adapter.a : NULL;
}

tsh_tensor *tsh_linear_lora_b(const tsh_linear *layer) {
    return layer ? layer->adapter.b : NULL;
}

tsh_status tsh_linear_merge(tsh_linear *layer, bool merged) {
    if (!layer) return tshi_fail(TSH_ERR_ARGUMENT, "linear_merge: a layer is required");
    return tshi_adapter_merge("linear_merge", &layer->adapter, layer->weight, merged);
}
