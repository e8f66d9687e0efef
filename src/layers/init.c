/* Initial values by global element index. */
#include "layers/layers.h"

#include <math.h>

/* fan_in and fan_out of the global shape [out, in, rest...]; at least 1, to avoid a division by zero. */
static void fans(const tsh_tensor *t, double *fan_in, double *fan_out) {
    const tsh_shape *s = &t->shape;
    double rest = 1;
    for (int d = 2; d < s->ndim; d++) rest *= (double)s->global[d];
    *fan_out = s->ndim > 0 ? fmax(1, (double)s->global[0] * rest) : 1;
    *fan_in = s->ndim > 1 ? fmax(1, (double)s->global[1] * rest) : *fan_out;
}

tsh_init tshi_init_with_fans(const tsh_init *init, double fan_in, double fan_out) {
    double gain = init->gain == 0 ? 1 : init->gain, both = fan_in + fan_out, bound;
    switch (init->kind) {
    case TSH_INIT_KAIMING_UNIFORM:
        bound = gain * sqrt(3 / fan_in);
        return (tsh_init){.kind = TSH_INIT_UNIFORM, .a = -bound, .b = bound};
    case TSH_INIT_KAIMING_NORMAL: return (tsh_init){.kind = TSH_INIT_NORMAL, .b = gain / sqrt(fan_in)};
    case TSH_INIT_XAVIER_UNIFORM:
        bound = gain * sqrt(6 / both);
        return (tsh_init){.kind = TSH_INIT_UNIFORM, .a = -bound, .b = bound};
    case TSH_INIT_XAVIER_NORMAL: return (tsh_init){.kind = TSH_INIT_NORMAL, .b = gain * sqrt(2 / both)};
    case TSH_INIT_DEFAULT:
    case TSH_INIT_UNIFORM:
    case TSH_INIT_NORMAL:
    case TSH_INIT_CONSTANT:
    default: return *init;
    }
}

static tsh_status resolve_init(const tsh_tensor *t, const tsh_init *wanted, tshi_initial *out) {
    double in, fan_out;
    fans(t, &in, &fan_out);
    const tsh_init with_fans = tshi_init_with_fans(wanted, in, fan_out), *init = &with_fans;
    switch (init->kind) {
    case TSH_INIT_UNIFORM: *out = (tshi_initial){.kind = TSHI_STARTS_UNIFORM, .a = init->a, .b = init->b}; break;
    case TSH_INIT_NORMAL: *out = (tshi_initial){.kind = TSHI_STARTS_NORMAL, .a = init->a, .b = init->b}; break;
    case TSH_INIT_CONSTANT: *out = (tshi_initial){.kind = TSHI_STARTS_CONSTANT, .a = init->a}; break;
    case TSH_INIT_DEFAULT:
    default:
        return tshi_fail(TSH_ERR_ARGUMENT, "tensor_init: unknown initialiser kind %d, or DEFAULT, which needs a layer",
                         (int)init->kind);
    }
    return tshi_check_distribution("tensor_init", out->kind == TSHI_STARTS_NORMAL, out->a,
                                   out->kind == TSHI_STARTS_CONSTANT ? out->a : out->b);
}

static tsh_status check_initialised(const tsh_tensor *t) {
    if (!t->storage) return tshi_tensor_check(t, "tensor_init", "the tensor");
    tsh_status status = tshi_check_computes(t->mesh->device, t->dtype, "tensor_init: the tensor");
    if (status != TSH_OK) return status;
    for (int a = 0; a < t->mesh->axes; a++) {
        if (t->layout[a].kind == TSH_KIND_REPLICATED || t->layout[a].kind == TSH_KIND_SHARD) continue;
        return tshi_fail(TSH_ERR_LAYOUT, "tensor_init: %s: REPLICATED or SHARD layouts are required",
                         TSHI_TENSOR_TEXT(t));
    }
    return TSH_OK;
}

tsh_status tsh_tensor_init(tsh_tensor *tensor, const tsh_init *init) {
    tshi_initial d = {0};
    if (!tensor || !init) return tshi_fail(TSH_ERR_ARGUMENT, "tensor_init: a tensor and an initialiser are required");
    tsh_status status = check_initialised(tensor);
    if (status == TSH_OK) status = resolve_init(tensor, init, &d);
    tshi_initial *deferred = status == TSH_OK ? tshi_tensor_initial(tensor) : NULL;
    if (status == TSH_OK && !deferred) status = tshi_tensor_materialize_to_write(tensor);
    if (status != TSH_OK) return status;
    d.seed = tensor->mesh->world->seed;
    /* also for a constant, so that streams depend only on the order of calls */
    d.stream = tshi_world_stream(tensor->mesh->world);
    if (deferred)
        *deferred = d;
    else
        tshi_tensor_start(tensor, &d);
    return TSH_OK;
}
