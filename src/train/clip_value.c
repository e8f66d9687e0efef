/* Gradient clipping by value, within backward. */
#include "layers/layers.h"
#include "tshard/train.h"

#include <math.h>

/* The target that clamps a parameter's gradient to [-most, most]; an infinite bound: it does not. */
typedef struct clamped_gradient {
    tshi_gradient_target target; /* first */
    tsh_device *device;
    double most;
} clamped_gradient;

static void clamp(tshi_gradient_target *target, tsh_dtype dtype, int64_t n, void *elements) {
    const clamped_gradient *c = (const clamped_gradient *)target;
    const double bounds[2] = {-c->most, c->most};
    if (!isinf(c->most)) c->device->ops->elementwise[dtype].unary(c->device, TSHI_CLAMP, bounds, n, elements, elements);
}

static void free_clamped(tshi_gradient_target *target) {
    tshi_free(&((clamped_gradient *)target)->device->allocator, target);
}

static const tshi_target_ops clamp_ops = {.revise = clamp, .free = free_clamped};

static clamped_gradient *clamped_of(const tsh_tensor *leaf) {
    tshi_gradient_target *target = leaf->gradient->target;
    while (target && target->ops != &clamp_ops) target = target->under;
    return (clamped_gradient *)target;
}

static tsh_status attach(tsh_tensor *leaf) {
    tsh_device *device = leaf->mesh->device;
    if (clamped_of(leaf)) return TSH_OK;
    clamped_gradient *c = tshi_calloc(&device->allocator, 1, sizeof *c);
    if (!c) return TSH_ERR_MEMORY;
    *c = (clamped_gradient){.target = {.ops = &clamp_ops}, .device = device, .most = INFINITY};
    tshi_gradient_attach(leaf, &c->target);
    return TSH_OK;
}

tsh_status tsh_clip_grad_value_in_backward(tsh_parameters *list, double value) {
    if (!list || !(value > 0)) {
        return tshi_fail(TSH_ERR_ARGUMENT,
                         "clip_grad_value_in_backward: a list and value > 0 are required, value is %g", value);
    }
    tsh_status status = TSH_OK;
    for (int i = 0; i < list->count && status == TSH_OK; i++) {
        if (tshi_requires_grad(list->items[i].tensor)) status = attach(list->items[i].tensor);
    }
    for (int i = 0; i < list->count && status == TSH_OK; i++) {
        const tsh_tensor *leaf = list->items[i].tensor;
        if (tshi_requires_grad(leaf)) clamped_of(leaf)->most = value;
    }
    return status;
}
