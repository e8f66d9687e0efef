/* Layer norm and RMS norm as layers. */
#include "layers/layers.h"

#include <math.h>

struct tsh_norm {
    tsh_world *world;
    tsh_norm_kind kind;
    int64_t features;
    double eps;
    tsh_tensor *weight, *bias;
};

static tsh_status check_norm_config(const tsh_group *group, const tsh_norm_config *config) {
    if (!config) return tshi_fail(TSH_ERR_ARGUMENT, "norm_create: a configuration is required");
    if (config->features < 1) {
        return tshi_fail(TSH_ERR_ARGUMENT, "norm_create: features=%lld, must be at least 1",
                         (long long)config->features);
    }
    if (config->kind != TSH_LAYER_NORM && config->kind != TSH_RMS_NORM) {
        return tshi_fail(TSH_ERR_ARGUMENT, "norm_create: unknown kind %d", (int)config->kind);
    }
    if (!(config->eps >= 0 && isfinite(config->eps))) {
        return tshi_fail(TSH_ERR_ARGUMENT, "norm_create: eps=%g, must be in [0, inf); 0 means 1e-5", config->eps);
    }
    if (config->bias && (config->no_weight || config->kind == TSH_RMS_NORM)) {
        return tshi_fail(TSH_ERR_ARGUMENT, "norm_create: bias is only for a TSH_LAYER_NORM with a weight");
    }
    return tshi_sharding_check("norm_create", group, TSH_DENSE, false, false, config->dtype);
}

static tsh_status make_parameter(tsh_group *group, const tsh_norm_config *config, double value, tsh_tensor **out) {
    tsh_init init = {.kind = TSH_INIT_CONSTANT, .a = value};
    return tshi_parameter_create(group, config->dtype, 1, &config->features, TSH_REPLICATED, &init, &init, out);
}

tsh_status tsh_norm_create(tsh_group *group, const tsh_norm_config *config, tsh_norm **out) {
    if (!out) return tshi_fail(TSH_ERR_ARGUMENT, "norm_create: out is NULL");
    *out = NULL;
    tsh_status status = check_norm_config(group, config);
    if (status != TSH_OK) return status;
    tsh_world *world = tsh_group_world(group);
    tsh_norm *layer = tshi_calloc(&world->allocator, 1, sizeof *layer);
    if (!layer) return TSH_ERR_MEMORY;
    *layer = (tsh_norm){world, config->kind, config->features, config->eps == 0 ? 1e-5 : config->eps, NULL, NULL};
    if (!config->no_weight) status = make_parameter(group, config, 1, &layer->weight);
    if (status == TSH_OK && config->bias) status = make_parameter(group, config, 0, &layer->bias);
    if (status == TSH_OK)
        *out = layer;
    else
        tsh_norm_destroy(layer);
    return status;
}

void tsh_norm_destroy(tsh_norm *layer) {
    if (!layer) return;
    tshi_tensor_release(layer->weight);
    tshi_tensor_release(layer->bias);
    tshi_free(&layer->world->allocator, layer);
}

tsh_tensor *tsh_norm_forward(tsh_tape *tape, tsh_norm *layer, tsh_tensor *x) {
    if (!tshi_layer_ready(tape, "norm_forward", layer, x)) return NULL;
    if (x->shape.ndim < 1 || x->shape.global[x->shape.ndim - 1] != layer->features) {
        return tshi_tape_fail(tape, TSH_ERR_SHAPE, "norm_forward: x is %s, layer wants features=%lld",
                              TSHI_DIMS_TEXT(x->shape.ndim, x->shape.global), (long long)layer->features);
    }
    tsh_dtype dtype = x->dtype;
    if (layer->weight && layer->weight->dtype == tshi_dtype_sum(dtype)) x = tsh_cast(tape, x, layer->weight->dtype);
    tsh_tensor *y = layer->kind == TSH_RMS_NORM ? tsh_rms_norm(tape, x, layer->weight, layer->eps)
                                                : tsh_layer_norm(tape, x, layer->weight, layer->bias, layer->eps);
    return y ? tsh_cast(tape, y, dtype) : NULL;
}

tsh_tensor *tsh_norm_weight(const tsh_norm *layer) {
    return layer ? layer->weight : NULL;
}

tsh_tensor *tsh_norm_bias(const tsh_norm *layer) {
    return layer ? layer->bias : NULL;
}

tsh_status tsh_norm_register(const tsh_norm *layer, tsh_parameters *list, const char *name) {
    if (!layer) return tshi_fail(TSH_ERR_ARGUMENT, "norm_register: a layer is required");
    tsh_status status = tshi_parameters_add_part(list, name, "weight", layer->weight);
    return status == TSH_OK ? tshi_parameters_add_part(list, name, "bias", layer->bias) : status;
}
