/* The public calls about gradients. */
#include "autograd/grad/retained.h"
#include "autograd/grad/sparse.h"
#include "tshard/autograd.h"

tsh_status tsh_tensor_require_grad(tsh_tensor *tensor) {
    if (!tensor || tshi_tensor_is_free(tensor)) return tshi_tensor_check(tensor, "tensor_require_grad", "tensor");
    if (tensor->computed) {
        return tshi_fail(TSH_ERR_STATE, "tensor_require_grad: %s was made by a tape; a leaf is wanted",
                         TSHI_TENSOR_TEXT(tensor));
    }
    tsh_status status = tshi_check_computes(tensor->mesh->device, tensor->dtype, "tensor_require_grad: the tensor");
    if (status != TSH_OK) return status;
    tshi_gradient *g = tshi_gradient_of(tensor);
    if (!g) return TSH_ERR_MEMORY;
    g->required = true;
    if (tshi_tensor_is_loaded(tensor))
        tshi_device_repurpose(tensor->mesh->device, tensor->storage->data, TSH_MEMORY_PARAMETERS);
    return TSH_OK;
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
