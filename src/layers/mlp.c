/* The feed-forward layer of a transformer, plain or gated. */
#include "layers/layers.h"

struct tsh_mlp {
    tsh_world *world;
    bool swiglu; /* the gate's silu is computed together with the product, and not by the gate */
    tshi_linear_part parts[TSH_MLP_PARTS];
};

static const char *const part_names[TSH_MLP_PARTS] = {"gate_proj", "up_proj", "down_proj"};

static tsh_status check_mlp_config(const tsh_mlp_config *config) {
    if (!config) return tshi_fail(TSH_ERR_ARGUMENT, "mlp_create: a configuration is required");
    if (config->embed >= 1 && config->hidden >= 1) return TSH_OK;
    return tshi_fail(TSH_ERR_ARGUMENT, "mlp_create: embed=%lld and hidden=%lld, both must be at least 1",
                     (long long)config->embed, (long long)config->hidden);
}

static bool is_swiglu(const tsh_mlp_config *c) {
    return c->gated && c->activation == TSH_ACTIVATION_SILU;
}

/* The activation is that of gate, or of up without a gate. */
static tsh_linear_config mlp_part_config(const tsh_mlp_config *c, tsh_mlp_part part) {
    bool down = part == TSH_MLP_DOWN, activated = part == TSH_MLP_GATE || (part == TSH_MLP_UP && !c->gated);
    if (is_swiglu(c)) activated = false;
    return (tsh_linear_config){.in_features = down ? c->hidden : c->embed,
                               .out_features = down ? c->embed : c->hidden,
                               .shard = down ? TSH_ROW : TSH_COLUMN,
                               .bias = c->bias,
                               .activation = activated ? c->activation : TSH_ACTIVATION_NONE,
                               .dtype = c->dtype,
                               .weight_init = down ? c->down_init : c->weight_init,
                               .bias_init = c->bias_init};
}

tsh_status tsh_mlp_create(tsh_group *group, const tsh_mlp_config *config, tsh_mlp **out) {
    if (!out) return tshi_fail(TSH_ERR_ARGUMENT, "mlp_create: out is NULL");
    *out = NULL;
    if (!group) return tshi_group_missing("mlp_create");
    tsh_status status = check_mlp_config(config);
    if (status != TSH_OK) return status;
    tsh_world *world = tsh_group_world(group);
    tsh_mlp *layer = tshi_calloc(&world->allocator, 1, sizeof *layer);
    if (!layer) return TSH_ERR_MEMORY;
    layer->world = world;
    layer->swiglu = is_swiglu(config);
    tshi_parts_sharding sharding = {config->table, config->name, config->sequence_parallel};
    for (tsh_mlp_part i = config->gated ? TSH_MLP_GATE : TSH_MLP_UP; i < TSH_MLP_PARTS && status == TSH_OK; i++) {
        tsh_linear_config part = mlp_part_config(config, i);
        const char *name = config->names[i] ? config->names[i] : part_names[i];
        status = tshi_linear_part_create(group, &sharding, name, &part, &layer->parts[i]);
    }
    if (status == TSH_OK)
        *out = layer;
    else
        tsh_mlp_destroy(layer);
    return status;
}

void tsh_mlp_destroy(tsh_mlp *layer) {
    if (!layer) return;
    for (int i = 0; i < TSH_MLP_PARTS; i++) tsh_linear_destroy(layer->parts[i].linear);
    tshi_free(&layer->world->allocator, layer);
}

tsh_tensor *tsh_mlp_forward(tsh_tape *tape, tsh_mlp *layer, tsh_tensor *x) {
    if (!tshi_layer_ready(tape, "mlp_forward", layer, x)) return NULL;
    tsh_linear *gate = layer->parts[TSH_MLP_GATE].linear;
    tsh_tensor *h = tsh_linear_forward(tape, layer->parts[TSH_MLP_UP].linear, x);
    if (gate) {
        tsh_tensor *g = tsh_linear_forward(tape, gate, x);
        h = layer->swiglu ? tsh_swiglu(tape, g, h) : tsh_mul(tape, g, h);
    }
    return tsh_linear_forward(tape, layer->parts[TSH_MLP_DOWN].linear, h);
}

tsh_linear *tsh_mlp_linear(const tsh_mlp *layer, tsh_mlp_part part) {
    return layer && (unsigned)part < TSH_MLP_PARTS ? layer->parts[part].linear : NULL;
}

tsh_status tsh_mlp_register(const tsh_mlp *layer, tsh_parameters *list, const char *name) {
    if (!layer) return tshi_fail(TSH_ERR_ARGUMENT, "mlp_register: a layer is required");
    return tshi_linear_parts_register(layer->parts, TSH_MLP_PARTS, list, name);
}

tsh_status tsh_mlp_adapt(tsh_mlp *layer, const tsh_lora_config *config, tsh_parameters *list, const char *name) {
    if (!layer) return tshi_fail(TSH_ERR_ARGUMENT, "mlp_adapt: a layer is required");
    return tshi_linear_parts_adapt(layer->parts, TSH_MLP_PARTS, config, list, name);
}
