/* Retained gradients: the target of an intermediate tensor, above that of a schedule. */
#include "autograd/grad/retained.h"
#include "tshard/autograd.h"

typedef struct retained_gradient {
    tshi_gradient_target target; /* first */
    const tsh_allocator *allocator;
    tsh_tensor *sum; /* or NULL */
} retained_gradient;

static retained_gradient *retained_of(const tshi_gradient *gradient) {
    return tshi_gradient_is_retained(gradient) ? (retained_gradient *)gradient->target : NULL;
}

static void drop_sum(tshi_gradient_target *target, tshi_gradient *gradient) {
    retained_gradient *r = (retained_gradient *)target;
    (void)gradient;
    tshi_tensor_release(r->sum);
    r->sum = NULL;
}

static void free_retained(tshi_gradient_target *target) {
    retained_gradient *r = (retained_gradient *)target;
    tshi_tensor_release(r->sum);
    tshi_free(r->allocator, r);
}

const tshi_target_ops tshi_retained_ops = {.clear = drop_sum, .free = free_retained};

tsh_status tsh_tensor_retain_grad(tsh_tensor *tensor) {
    if (!tensor || !tshi_requires_grad(tensor)) {
        return tshi_fail(TSH_ERR_STATE, "tensor_retain_grad: a tensor that leads to a gradient is wanted");
    }
    tshi_gradient *g = tensor->gradient;
    if (!tensor->computed || tshi_gradient_is_retained(g)) return TSH_OK; /* a leaf's gradient stays anyway */
    const tsh_allocator *allocator = &tensor->mesh->device->allocator;
    retained_gradient *r = tshi_calloc(allocator, 1, sizeof *r);
    if (!r) return TSH_ERR_MEMORY;
    *r = (retained_gradient){.target = {.ops = &tshi_retained_ops, .under = g->target}, .allocator = allocator};
    g->target = &r->target;
    return TSH_OK;
}

tsh_tensor *tshi_retained_sum(const tshi_gradient *gradient) {
    const retained_gradient *r = retained_of(gradient);
    return r ? r->sum : NULL;
}

tsh_status tshi_retained_add(const tsh_tensor *x) {
    tshi_gradient *g = x->gradient;
    retained_gradient *r = retained_of(g);
    tsh_device *device = x->mesh->device;
    bool first = !r->sum;
    if (first && tshi_tensor_sole_owner(g->value)) {
        r->sum = g->value;
        g->value = NULL;
        return TSH_OK;
    }
    tsh_status status = first ? tshi_gradient_new(x, &r->sum) : TSH_OK;
    if (status != TSH_OK) return status;
    const void *before = first ? NULL : tshi_data(r->sum);
    device->ops->elementwise[g->value->dtype].axpby(device, x->numel, 1, tshi_data(g->value), first ? 0 : 1, before,
                                                    tshi_data(r->sum));
    return TSH_OK;
}

void tshi_retained_end_step(tshi_gradient *gradient) {
    retained_gradient *r = retained_of(gradient);
    if (!r) return;
    if (r->sum) {
        tshi_tensor_release(gradient->value);
        gradient->value = r->sum;
        gradient->stale = false;
        r->sum = NULL;
    }
    gradient->target = r->target.under;
    free_retained(&r->target);
}
