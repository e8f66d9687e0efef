/* The state of a tensor's gradient, its memory, and its list of targets. */
#include "autograd/grad/state.h"

/* --- the state of a tensor ---------------------------------------------------------------------------------------- */

void tshi_gradient_leave_lists(tsh_tensor *tensor) {
    tshi_gradient *g = tensor->gradient;
    if (g->moved_from) {
        tsh_tensor **at = &g->moved_from->gradient->moved;
        while (*at && *at != tensor) at = &(*at)->gradient->next_moved;
        if (*at) *at = g->next_moved;
    }
    for (tsh_tensor *t = g->moved; t; t = t->gradient->next_moved) t->gradient->moved_from = NULL;
    g->moved = g->next_moved = g->moved_from = NULL;
}

static void free_targets(tshi_gradient_target *target) {
    while (target && !target->schedule) {
        tshi_gradient_target *under = target->under;
        if (target->ops->free) target->ops->free(target);
        target = under;
    }
}

static void gradient_free(tsh_tensor *tensor) {
    tshi_gradient_leave_lists(tensor);
    tshi_tensor_release(tensor->gradient->value);
    tshi_tensor_release(tensor->gradient->kept);
    free_targets(tensor->gradient->target);
    tshi_pool_give(&tensor->mesh->device->gradients, tensor->gradient);
    tensor->gradient = NULL;
}

tshi_gradient *tshi_gradient_make(tsh_tensor *tensor) {
    tsh_device *device = tensor->mesh->device;
    tensor->gradient = tshi_pool_take(&device->gradients, &device->allocator, sizeof *tensor->gradient);
    if (tensor->gradient) tensor->gradient_free = gradient_free;
    return tensor->gradient;
}

void tshi_gradient_release_value(tshi_gradient *gradient) {
    tshi_tensor_release(gradient->value);
    gradient->value = NULL;
}

void tshi_gradient_end_step(tsh_tensor *tensor) {
    tshi_gradient *g = tensor->gradient;
    tensor->computed = tensor->taped = false;
    tensor->ended = true;
    if (!g) return;
    tshi_gradient_leave_lists(tensor);
    if (g->target && g->target->schedule) g->target = NULL;
    if (!g->kept) return;
    tshi_tensor_release(g->value);
    g->value = g->kept;
    g->stale = false;
    g->kept = NULL;
}

/* --- memory ------------------------------------------------------------------------------------------------------- */

tsh_dtype tshi_gradient_dtype(const tsh_tensor *x) {
    return x->gradient && x->gradient->wide ? tshi_dtype_sum(x->dtype) : x->dtype;
}

tsh_status tshi_gradient_set_wide(tsh_tensor *leaf, bool wide) {
    char text[160];
    tshi_gradient *g = tshi_gradient_of(leaf);
    if (!g) return TSH_ERR_MEMORY;
    if (g->wide == wide) return TSH_OK;
    if (leaf->computed || tshi_gradient_schedule_of(leaf)) {
        return tshi_fail(TSH_ERR_STATE, "the dtype of gradients of %s is fixed: %s",
                         tsh_tensor_describe(leaf, text, sizeof text),
                         leaf->computed ? "a tape made it" : "it has a tsh_data_parallel");
    }
    g->wide = wide;
    tshi_gradient_clear(g);
    tshi_gradient_release_value(g);
    return TSH_OK;
}

tsh_status tshi_gradient_new_as(const tsh_tensor *x, tsh_dtype dtype, tsh_tensor **out) {
    tsh_layout layout[TSH_MAX_AXES];
    tshi_gradient_layout(x, layout);
    tsh_memory_purpose purpose = x->computed ? TSH_MEMORY_ACTIVATIONS : TSH_MEMORY_GRADIENTS;
    tsh_memory_purpose before = tshi_device_purpose(x->mesh->device, purpose);
    tsh_status status = tshi_tensor_new(x->mesh, dtype, &x->shape, layout, out);
    x->mesh->device->purpose = before;
    return status;
}

tsh_status tshi_gradient_new(const tsh_tensor *x, tsh_tensor **out) {
    return tshi_gradient_new_as(x, tshi_gradient_dtype(x), out);
}

bool tshi_gradient_fits(const tsh_tensor *x, const tsh_tensor *tensor) {
    bool fits = tensor->mesh == x->mesh && tshi_shapes_equal(&tensor->shape, &x->shape);
    for (int a = 0; fits && a < x->mesh->axes; a++) {
        const tsh_layout *l = &x->layout[a];
        fits = tshi_layout_equal(tensor->layout[a], l->kind == TSH_KIND_PARTIAL ? TSH_REPLICATED : *l);
    }
    return fits;
}

tsh_status tshi_gradient_view(const tsh_tensor *x, const tsh_tensor *values, tsh_tensor **out) {
    tsh_layout layout[TSH_MAX_AXES];
    tshi_gradient_layout(x, layout);
    return tshi_tensor_view(values, &x->shape, layout, 0, out);
}

/* --- targets ------------------------------------------------------------------------------------------------------ */

void tshi_gradient_attach(tsh_tensor *leaf, tshi_gradient_target *target) {
    tshi_gradient_target **at = &leaf->gradient->target;
    while (!target->ops->memory && *at && (*at)->ops->memory) at = &(*at)->under;
    target->under = *at;
    *at = target;
}

void tshi_gradient_detach(tsh_tensor *leaf, tshi_gradient_target *target) {
    tshi_gradient_target **at = &leaf->gradient->target;
    while (*at && *at != target) at = &(*at)->under;
    if (*at) *at = target->under;
}

tsh_status tshi_gradient_wait(const tsh_tensor *leaf) {
    const tshi_gradient *g = leaf->gradient;
    if (!g || !g->target || !g->target->ops->wait || leaf->computed || !g->value || g->stale) return TSH_OK;
    return g->target->ops->wait(g->target);
}

void tshi_gradient_clear(tshi_gradient *gradient) {
    for (tshi_gradient_target *t = gradient->target; t; t = t->under) {
        if (t->ops->clear) t->ops->clear(t, gradient);
    }
    gradient->stale = true;
}
