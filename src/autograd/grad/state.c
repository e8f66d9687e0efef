/* The state of a tensor's gradient, its memory, and its list of targets. */
#include "autograd/grad/state.h"

/* --- the state of a tensor ---------------------------------------------------------------------------------------- */

/* A leaf outlives the step, whose memory its memo is in: the memo goes with the last tensor made of the leaf. */
void tshi_gradient_forget_memo(const tsh_tensor *tensor) {
    tshi_memo *memo = tensor->gradient->memo, *origin = memo ? memo->origin : NULL;
    if (origin) {
        tshi_memo **at = &origin->made;
        while (*at != memo) at = &(*at)->next;
        *at = memo->next;
        if (!origin->made && !origin->origin) origin->tensor->gradient->memo = NULL;
    }
    for (tshi_memo *m = memo ? memo->made : NULL; m; m = m->next) m->origin = NULL;
    tensor->gradient->memo = NULL;
}

static void free_targets(tshi_gradient_target *target) {
    while (target && !target->schedule) {
        tshi_gradient_target *under = target->under;
        if (target->ops->free) target->ops->free(target);
        target = under;
    }
}

static void gradient_free(tsh_tensor *tensor) {
    tshi_gradient_forget_memo(tensor);
    tshi_tensor_release(tensor->gradient->value);
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
    tensor->computed = tensor->taped = false;
    tensor->ended = true;
    if (!tensor->gradient) return;
    tshi_gradient_forget_memo(tensor);
    tshi_gradient_leave_schedule(tensor);
}

/* --- memory ------------------------------------------------------------------------------------------------------- */

tsh_dtype tshi_gradient_dtype(const tsh_tensor *x) {
    return x->gradient && x->gradient->wide ? tshi_dtype_sum(x->dtype) : x->dtype;
}

tsh_status tshi_gradient_set_wide(tsh_tensor *leaf, bool wide) {
    tshi_gradient *g = tshi_gradient_of(leaf);
    if (!g) return TSH_ERR_MEMORY;
    if (g->wide == wide) return TSH_OK;
    if (leaf->computed || tshi_gradient_schedule_of(leaf)) {
        return tshi_fail(TSH_ERR_STATE, "the dtype of gradients of %s is fixed: %s", TSHI_TENSOR_TEXT(leaf),
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

/* What is under the schedule's target belongs to the leaf. */
void tshi_gradient_leave_schedule(const tsh_tensor *x) {
    tshi_gradient_target **at = &x->gradient->target;
    while (*at && !(*at)->schedule) at = &(*at)->under;
    *at = NULL;
}

bool tshi_gradient_steps(const tsh_tensor *leaf) {
    const tshi_gradient_target *target = leaf->gradient->target;
    while (target && !target->ops->steps) target = target->under;
    return target != NULL;
}

tsh_status tshi_gradient_check(const tsh_tensor *leaf) {
    const tshi_gradient *g = leaf->gradient;
    if (!g || !g->target || !g->target->ops->check || leaf->computed || !g->value || g->stale) return TSH_OK;
    return g->target->ops->check(g->target);
}

void tshi_gradient_revise(const tsh_tensor *leaf, tsh_dtype dtype, int64_t n, void *elements) {
    for (tshi_gradient_target *t = leaf->gradient->target; t; t = t->under) {
        if (t->ops->revise) t->ops->revise(t, dtype, n, elements);
    }
}

void tshi_gradient_revise_all(const tsh_tensor *leaf) {
    const tsh_tensor *value = leaf->gradient->value;
    if (value && !leaf->gradient->stale) tshi_gradient_revise(leaf, value->dtype, value->numel, tshi_data(value));
}

void tshi_gradient_clear(tshi_gradient *gradient) {
    for (tshi_gradient_target *t = gradient->target; t; t = t->under) {
        if (t->ops->clear) t->ops->clear(t, gradient);
    }
    gradient->stale = true;
}
