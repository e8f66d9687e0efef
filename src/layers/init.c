/* Initial values by global element index. */
#include "layers/layers.h"

#include <math.h>

/* Uniform in [a, b), normal with mean a and deviation b, or the constant a. */
typedef struct distribution {
    enum { UNIFORM, NORMAL, CONSTANT } kind;
    double a, b;
} distribution;

/* Fans of the whole [out, in, rest...]; at least 1, so that an empty tensor divides by nothing. */
static void fans(const tsh_tensor *t, double *fan_in, double *fan_out) {
    const tsh_shape *s = &t->shape;
    double rest = 1;
    for (int d = 2; d < s->ndim; d++) rest *= (double)s->global[d];
    *fan_out = s->ndim > 0 ? fmax(1, (double)s->global[0] * rest) : 1;
    *fan_in = s->ndim > 1 ? fmax(1, (double)s->global[1] * rest) : *fan_out;
}

static tsh_status resolve(const tsh_tensor *t, const tsh_init *init, distribution *out) {
    double in, both, fan_out, gain = init->gain == 0 ? 1 : init->gain;
    fans(t, &in, &fan_out);
    both = in + fan_out;
    switch (init->kind) {
    case TSH_INIT_KAIMING_UNIFORM: *out = (distribution){UNIFORM, -gain * sqrt(3 / in), gain * sqrt(3 / in)}; break;
    case TSH_INIT_KAIMING_NORMAL: *out = (distribution){NORMAL, 0, gain / sqrt(in)}; break;
    case TSH_INIT_XAVIER_UNIFORM: *out = (distribution){UNIFORM, -gain * sqrt(6 / both), gain * sqrt(6 / both)}; break;
    case TSH_INIT_XAVIER_NORMAL: *out = (distribution){NORMAL, 0, gain * sqrt(2 / both)}; break;
    case TSH_INIT_UNIFORM: *out = (distribution){UNIFORM, init->a, init->b}; break;
    case TSH_INIT_NORMAL: *out = (distribution){NORMAL, init->a, init->b}; break;
    case TSH_INIT_CONSTANT: *out = (distribution){CONSTANT, init->a, 0}; break;
    case TSH_INIT_DEFAULT:
    default: return tshi_fail(TSH_ERR_ARGUMENT, "tensor_init: %d is no initialiser for a tensor", (int)init->kind);
    }
    return tshi_check_distribution("tensor_init", out->kind == NORMAL, out->a, out->kind == CONSTANT ? out->a : out->b);
}

static tsh_status check_tensor(const tsh_tensor *t) {
    char text[160];
    if (!t->storage) return tshi_fail(TSH_ERR_STATE, "tensor_init: the tensor has no memory");
    tsh_status status = tshi_check_computes(t->mesh->device, t->dtype, "tensor_init: the tensor");
    if (status != TSH_OK) return status;
    for (int a = 0; a < t->mesh->axes; a++) {
        if (t->layout[a].kind == TSH_KIND_REPLICATED || t->layout[a].kind == TSH_KIND_SHARD) continue;
        return tshi_fail(TSH_ERR_LAYOUT, "tensor_init: %s is no part of a whole",
                         tsh_tensor_describe(t, text, sizeof text));
    }
    return TSH_OK;
}

tsh_status tsh_tensor_init(tsh_tensor *tensor, const tsh_init *init) {
    distribution d = {CONSTANT, 0, 0};
    if (!tensor || !init) return tshi_fail(TSH_ERR_ARGUMENT, "tensor_init: a tensor and an initialiser are required");
    tsh_status status = check_tensor(tensor);
    if (status == TSH_OK) status = resolve(tensor, init, &d);
    if (status != TSH_OK) return status;
    uint64_t stream =
        tshi_world_stream(tensor->mesh->world); /* also for a constant: the order of calls alone decides */
    if (d.kind == CONSTANT) return tsh_tensor_fill(tensor, d.a);
    tshi_tensor_draw(tensor, d.kind == NORMAL, tensor->mesh->world->seed, stream, d.a, d.b);
    return TSH_OK;
}
