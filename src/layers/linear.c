/* Linear, whole or split over a group by row or by column. */
#include "layers/layers.h"

#include <math.h>

struct tsh_linear {
    tsh_linear_config config;
    tsh_world *world;
    int axis; /* of the mesh: along which the layer is split */
    tsh_tensor *weight, *bias;
};

static const char what[] = "linear_forward";

static const tshi_unary functions[] = {[TSH_ACTIVATION_NONE] = TSHI_IDENTITY,
                                       [TSH_ACTIVATION_GELU] = TSHI_GELU_ERF,
                                       [TSH_ACTIVATION_GELU_TANH] = TSHI_GELU_TANH,
                                       [TSH_ACTIVATION_RELU] = TSHI_RELU,
                                       [TSH_ACTIVATION_SILU] = TSHI_SILU};

static tsh_status check_config(const tsh_group *group, const tsh_linear_config *config) {
    if (!config) return tshi_fail(TSH_ERR_ARGUMENT, "linear_create: a configuration is required");
    if (config->in_features < 1 || config->out_features < 1) {
        return tshi_fail(TSH_ERR_ARGUMENT,
                         "linear_create: in_features=%lld and out_features=%lld, both must be at least 1",
                         (long long)config->in_features, (long long)config->out_features);
    }
    if ((unsigned)config->activation >= sizeof functions / sizeof functions[0]) {
        return tshi_fail(TSH_ERR_ARGUMENT, "linear_create: %d is no activation", (int)config->activation);
    }
    return tshi_sharding_check("linear_create", group, config->shard, config->gather_output, config->sequence_parallel,
                               config->dtype);
}

static tsh_status make_parameters(tsh_linear *layer, tsh_group *group) {
    const tsh_linear_config *c = &layer->config;
    static const tsh_layout_kind kind[] = {
        [TSH_DENSE] = TSH_KIND_REPLICATED, [TSH_ROW] = TSH_KIND_SHARD, [TSH_COLUMN] = TSH_KIND_SHARD};
    double bound = 1 / sqrt((double)c->in_features);
    tsh_init fallback = {.kind = TSH_INIT_UNIFORM, .a = -bound, .b = bound};
    tsh_layout split = {kind[c->shard], c->shard == TSH_ROW ? 1 : 0};
    tsh_status status = tshi_parameter_create(group, c->dtype, 2, (int64_t[]){c->out_features, c->in_features}, split,
                                              &c->weight_init, &fallback, &layer->weight);
    if (status != TSH_OK || !c->bias) return status;
    return tshi_parameter_create(group, c->dtype, 1, &c->out_features,
                                 c->shard == TSH_COLUMN ? TSH_SHARD(0) : TSH_REPLICATED, &c->bias_init, &fallback,
                                 &layer->bias);
}

tsh_status tsh_linear_create(tsh_group *group, const tsh_linear_config *config, tsh_linear **out) {
    if (!out) return tshi_fail(TSH_ERR_ARGUMENT, "linear_create: where to put the layer is required");
    *out = NULL;
    tsh_status status = check_config(group, config);
    if (status != TSH_OK) return status;
    tsh_world *world = tsh_group_world(group);
    tsh_linear *layer = tshi_calloc(&world->allocator, 1, sizeof *layer);
    if (!layer) return TSH_ERR_MEMORY;
    layer->config = *config;
    layer->world = world;
    layer->axis = tshi_mesh_axis(tsh_group_mesh(group), group);
    status = make_parameters(layer, group);
    if (status == TSH_OK)
        *out = layer;
    else
        tsh_linear_destroy(layer);
    return status;
}

void tsh_linear_destroy(tsh_linear *layer) {
    if (!layer) return;
    tsh_tensor_release(layer->weight);
    tsh_tensor_release(layer->bias);
    tshi_free(&layer->world->allocator, layer);
}

/* --- forward ------------------------------------------------------------------------------------------------------ */

/* The right number of features, and no axis that splits them unless the layer's own does. */
static bool check_input(tsh_tape *tape, const tsh_linear *layer, const tsh_tensor *x) {
    static const char *const name[] = {[TSH_DENSE] = "dense", [TSH_ROW] = "row", [TSH_COLUMN] = "column"};
    const tsh_linear_config *c = &layer->config;
    char text[160];
    int last = x->shape.ndim - 1;
    if (last < 0 || x->shape.global[last] != c->in_features) {
        tshi_tape_fail(tape, TSH_ERR_SHAPE, "%s: x is %s, layer wants in=%lld", what,
                       tshi_dims_name(x->shape.ndim, x->shape.global, text, sizeof text), (long long)c->in_features);
    } else if (x->dtype != c->dtype) {
        tshi_tape_fail(tape, TSH_ERR_DTYPE, "%s: x is %s, the layer %s", what,
                       tsh_tensor_describe(x, text, sizeof text), tsh_dtype_name(c->dtype));
    }
    for (int a = 0; a < x->mesh->axes && tape->status == TSH_OK; a++) {
        bool own = a == layer->axis && c->shard == TSH_ROW;
        if (own || !tshi_layout_equal(x->layout[a], TSH_SHARD(last))) continue;
        tshi_tape_fail(tape, TSH_ERR_LAYOUT,
                       "%s: x is %s, whose features are split along axis %s; this %s layer wants all in=%lld "
                       "(tsh_gather gives them, a row layer over that axis takes them split)",
                       what, tsh_tensor_describe(x, text, sizeof text), x->mesh->axis[a].name, name[c->shard],
                       (long long)c->in_features);
    }
    return tape->status == TSH_OK;
}

/* x as the product wants it along the layer's axis; sums that are still open along other axes are made. */
static tsh_tensor *bring_input(tsh_tape *tape, const tsh_linear *layer, tsh_tensor *x) {
    int last = x->shape.ndim - 1;
    if (layer->config.shard == TSH_COLUMN) x = tshi_transit(tape, x, layer->axis, TSH_LOCAL, false);
    if (layer->config.shard == TSH_ROW) x = tshi_transit(tape, x, layer->axis, TSH_SHARD(last), false);
    for (int a = 0; x && a < x->mesh->axes; a++) {
        if (x->layout[a].kind == TSH_KIND_PARTIAL) x = tshi_transit(tape, x, a, TSH_REPLICATED, false);
    }
    return x;
}

tsh_tensor *tsh_linear_forward(tsh_tape *tape, tsh_linear *layer, tsh_tensor *x) {
    tsh_tensor *const inputs[] = {x, layer ? layer->weight : NULL};
    if (!tshi_tape_ready(tape, what, 2, inputs) || !check_input(tape, layer, x)) return NULL;
    const tsh_linear_config *c = &layer->config;
    x = bring_input(tape, layer, x);
    if (!x) return NULL;
    tsh_tensor *weight = tshi_parameter_for(tape, layer->weight, x), *bias = layer->bias;
    /* A row layer's output is a sum over ranks, in which the bias must stand once. */
    bool row = c->shard == TSH_ROW;
    bias = tshi_parameter_beside(tape, bias, x, row ? layer->axis : -1);
    if (bias && row) bias = tshi_transit(tape, bias, layer->axis, TSH_PARTIAL, false);
    tshi_unary f = functions[c->activation];
    tsh_tensor *y = tshi_affine(tape, x, weight, bias, row ? TSHI_IDENTITY : f);
    y = tshi_layer_leave(tape, y, layer->axis, c->shard, c->gather_output, c->sequence_parallel);
    return row ? tshi_activate(tape, y, f) : y;
}

/* --- parameters --------------------------------------------------------------------------------------------------- */

tsh_tensor *tsh_linear_weight(const tsh_linear *layer) {
    return layer ? layer->weight : NULL;
}

tsh_tensor *tsh_linear_bias(const tsh_linear *layer) {
    return layer ? layer->bias : NULL;
}

tsh_status tsh_linear_register(const tsh_linear *layer, tsh_parameters *list, const char *name) {
    if (!layer) return tshi_fail(TSH_ERR_ARGUMENT, "linear_register: a layer is required");
    tsh_status status = tshi_parameters_add_part(list, name, "weight", layer->weight);
    return status == TSH_OK ? tshi_parameters_add_part(list, name, "bias", layer->bias) : status;
}

tsh_status tsh_linear_load(tsh_linear *layer, const void *weight, const void *bias) {
    if (!layer || !weight) return tshi_fail(TSH_ERR_ARGUMENT, "linear_load: a layer and a weight are required");
    if (bias && !layer->bias) return tshi_fail(TSH_ERR_ARGUMENT, "linear_load: the layer has no bias");
    tsh_status status = tsh_tensor_write_whole(layer->weight, weight);
    return status == TSH_OK && bias ? tsh_tensor_write_whole(layer->bias, bias) : status;
}
