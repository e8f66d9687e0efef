/* The public calls about gradients. */
#include "autograd/grad/retained.h"
#include "autograd/grad/sparse.h"
#include "dist/world.h"
#include "tshard/autograd.h"

static tsh_status freeze_leaf(tsh_tensor *leaf) {
    if (tshi_gradient_schedule_of(leaf)) {
        return tshi_fail(
            TSH_ERR_STATE,
            "tensor_require_grad: a tsh_data_parallel sums the gradient of %s: freeze it before creating that",
            TSHI_TENSOR_TEXT(leaf));
    }
    leaf->gradient->required = false;
    tshi_gradient_clear(leaf->gradient);
    tshi_gradient_release_value(leaf->gradient);
    return TSH_OK;
}

tsh_status tsh_tensor_require_grad(tsh_tensor *tensor, bool required) {
    if (!tensor || tshi_tensor_is_free(tensor)) return tshi_tensor_check(tensor, "tensor_require_grad", "tensor");
    if (tensor->computed) {
        return tshi_fail(TSH_ERR_STATE, "tensor_require_grad: %s was made by a tape; a leaf is wanted",
                         TSHI_TENSOR_TEXT(tensor));
    }
    tsh_status status = tshi_check_computes(tensor->mesh->device, tensor->dtype, "tensor_require_grad: the tensor");
    if (status != TSH_OK || (!required && !tensor->gradient)) return status;
    if (!required) return freeze_leaf(tensor);
    tshi_gradient *g = tshi_gradient_of(tensor);
    if (!g) return TSH_ERR_MEMORY;
    g->required = true;
    if (tshi_tensor_is_loaded(tensor))
        tshi_device_repurpose(tensor->mesh->device, tensor->storage->data, TSH_MEMORY_PARAMETERS);
    return TSH_OK;
}

void tshi_gradient_leave_out(const tsh_tensor *parameter, const char *what) {
    tsh_world *world = parameter->mesh->world;
    if (!tshi_requires_grad(parameter)) return;
    parameter->gradient->required = false;
    if (world->told_unstepped) return;
    world->told_unstepped = true;
    tshi_log(&world->log, TSH_LOG_WARNING,
             "%s: %s is a layer's parameter that is in no list: it gets no gradient beside a tsh_data_parallel "
             "(tsh_tensor_require_grad(parameter, false) says that this is intended)",
             what, TSHI_TENSOR_TEXT(parameter));
}

tsh_tensor *tsh_tensor_grad(const tsh_tensor *tensor) {
    const tshi_gradient *g = tensor ? tensor->gradient : NULL;
    tsh_tensor *retained = g ? tshi_retained_sum(g) : NULL;
    if (retained) return retained;
    if (g && !g->stale && tshi_gradient_is_sparse(tensor)) {
        tshi_fail(TSH_ERR_STATE, "tensor_grad: the gradient is sparse (tsh_tensor_sparse_grad)");
        return NULL;
    }
    return g && g->value && !g->stale && tshi_gradient_check(tensor) == TSH_OK ? g->value : NULL;
}

void tsh_tensor_zero_grad(tsh_tensor *tensor) {
    if (tensor && tensor->gradient) tshi_gradient_clear(tensor->gradient);
}

tsh_tensor *tshi_gradient_elements(const tsh_tensor *leaf) {
    if (!tshi_gradient_is_sparse(leaf)) return tsh_tensor_grad(leaf);
    return leaf->gradient->stale ? NULL : leaf->gradient->value;
}
