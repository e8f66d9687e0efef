/* Gradient clipping by the norm of the whole model. */
#include "train/optimizer.h"

#include <math.h>

/* One rank of those that hold the same gradient counts it: the first along every axis where they do. */
static bool counts_here(const tsh_tensor *grad) {
    for (int a = 0; a < grad->mesh->axes; a++) {
        bool same = grad->layout[a].kind == TSH_KIND_REPLICATED || grad->layout[a].kind == TSH_KIND_PARTIAL;
        if (same && grad->mesh->axis[a].index != 0) return false;
    }
    return true;
}

static double local_squares(const tsh_parameters *list) {
    double sum = 0;
    for (int i = 0; i < list->count; i++) {
        const tsh_tensor *grad = tsh_tensor_grad(list->items[i].tensor);
        if (!grad || !counts_here(grad)) continue;
        sum += grad->mesh->device->ops->sum_squares(grad->dtype, grad->numel, tshi_data(grad));
    }
    return sum;
}

static tsh_status check_meshes(const tsh_parameters *list) {
    for (int i = 1; i < list->count; i++) {
        if (list->items[i].tensor->mesh == list->items[0].tensor->mesh) continue;
        return tshi_fail(TSH_ERR_ARGUMENT, "clip_grad_norm: '%s' and '%s' are on different meshes", list->items[0].name,
                         list->items[i].name);
    }
    return TSH_OK;
}

static tsh_status sum_over_mesh(tsh_parameters *list, const tsh_mesh *mesh, double *value) {
    tsh_status status = tsh_tensor_write(list->scalar, value, 1);
    for (int a = 0; a < mesh->axes && status == TSH_OK; a++) {
        if (mesh->axis[a].size > 1) status = tsh_all_reduce(mesh->axis[a].group, list->scalar, TSH_SUM);
    }
    return status == TSH_OK ? tsh_tensor_read(list->scalar, value, 1) : status;
}

static void scale_all(const tsh_parameters *list, double factor) {
    for (int i = 0; i < list->count; i++) {
        tsh_tensor *grad = tsh_tensor_grad(list->items[i].tensor);
        if (!grad) continue;
        grad->mesh->device->ops->axpby(grad->dtype, grad->numel, factor, tshi_data(grad), 0, NULL, tshi_data(grad));
    }
}

tsh_status tsh_clip_grad_norm(tsh_parameters *list, double max_norm, double *norm) {
    if (norm) *norm = 0;
    if (!list || !(max_norm > 0)) {
        return tshi_fail(TSH_ERR_ARGUMENT, "clip_grad_norm: a list and max_norm > 0 are required, max_norm is %g",
                         max_norm);
    }
    tsh_status status = check_meshes(list);
    for (int i = 0; i < list->count && status == TSH_OK; i++) status = tshi_gradient_settle(list->items[i].tensor);
    if (status != TSH_OK || list->count == 0) return status;
    double squares = local_squares(list);
    status = sum_over_mesh(list, list->items[0].tensor->mesh, &squares);
    if (status != TSH_OK) return status;
    double total = sqrt(squares);
    if (norm) *norm = total;
    double factor = max_norm / (total + 1e-6);
    if (isfinite(total) && factor < 1) scale_all(list, factor);
    return TSH_OK;
}
