/* Gradient clipping by the norm of the whole model. */
#include "train/optimizer.h"

#include "autograd/grad/sparse.h"
#include "dist/collectives/redistribute.h"

#include <math.h>

/* True on one of the ranks that hold the same gradient: the first along every axis, or of those that share a unit. */
static bool counts_here(const tsh_tensor *grad) {
    for (int a = 0; a < grad->mesh->axes; a++) {
        bool same = grad->layout[a].kind == TSH_KIND_REPLICATED || grad->layout[a].kind == TSH_KIND_PARTIAL;
        if (same && grad->mesh->axis[a].index != 0) return false;
    }
    return tshi_layouts_hold_first(grad->mesh, grad->layout);
}

/* list->scalar = the sum of squares of the gradients that count here, or of those that do not. */
static void sum_local_squares(const tsh_parameters *list, bool counted) {
    tsh_device *device = list->scalar->mesh->device;
    device->ops->copy.zero(device, sizeof(double), tshi_data(list->scalar));
    for (int i = 0; i < list->count; i++) {
        const tsh_tensor *parameter = list->items[i].tensor, *grad = tshi_gradient_elements(parameter);
        bool sparse = tshi_gradient_is_sparse(parameter);
        if (!grad || counts_here(sparse ? parameter : grad) != counted) continue;
        device->ops->sum[grad->dtype].squares(device, grad->numel, tshi_data(grad), tshi_data(list->scalar));
    }
}

tsh_status tshi_clip_local_squares(const tsh_parameters *list, bool counted, double *sum) {
    sum_local_squares(list, counted);
    return tsh_tensor_read(list->scalar, sum, 1);
}

static bool on_one_mesh(const tsh_parameters *list) {
    for (int i = 1; i < list->count; i++) {
        if (list->items[i].tensor->mesh != list->items[0].tensor->mesh) return false;
    }
    return true;
}

/* True when some gradient is LOCAL or sparse. */
static bool any_local(const tsh_parameters *list) {
    for (int i = 0; i < list->count; i++) {
        const tsh_tensor *p = list->items[i].tensor;
        if (tshi_layouts_have_local(p->mesh->axes, p->layout) || tshi_gradient_is_sparse(p)) return true;
    }
    return false;
}

/* Gathers a gradient, which the caller releases. All ranks of the mesh get it, or none. */
static tsh_status whole_of(tsh_tensor *grad, tsh_tensor **out) {
    static const tsh_layout everywhere[TSH_MAX_AXES];
    const tsh_mesh *mesh = grad->mesh;
    if (tshi_layouts_equal(mesh->axes, grad->layout, everywhere)) {
        *out = tshi_tensor_retain(grad);
        return TSH_OK;
    }
    tsh_shape shape = grad->shape;
    memcpy(shape.local, shape.global, sizeof shape.local);
    tsh_status status = tshi_tensor_new(mesh, grad->dtype, &shape, everywhere, out);
    status = tshi_group_agree(mesh->group, "clip_grad_norm", status);
    if (status != TSH_OK) return status;
    tshi_exchange e = {
        .ndim = shape.ndim, .from = tshi_tensor_placement(grad), .to = tshi_mesh_placement(mesh, everywhere)};
    memcpy(e.shape, shape.global, sizeof e.shape);
    return tshi_exchange_run(mesh->group, &e, grad, *out);
}

/* list->scalar = the sum of squares on every rank, from whole gradients, as one rank would compute it. */
static tsh_status sum_whole_squares(const tsh_parameters *list) {
    tsh_device *device = list->scalar->mesh->device;
    tsh_status status = TSH_OK;
    device->ops->copy.zero(device, sizeof(double), tshi_data(list->scalar));
    if (!tshi_mesh_has_me(list->items[0].tensor->mesh)) return TSH_OK;
    for (int i = 0; i < list->count && status == TSH_OK; i++) {
        tsh_tensor *grad = tsh_tensor_grad(list->items[i].tensor), *whole = NULL;
        if (!grad) continue;
        status = whole_of(grad, &whole);
        if (status == TSH_OK)
            device->ops->sum[grad->dtype].squares(device, whole->numel, tshi_data(whole), tshi_data(list->scalar));
        tshi_tensor_release(whole);
    }
    return status;
}

/* A rank without any of a mesh's parameters gets that mesh's sum only from the sum over the world. */
tsh_status tshi_clip_sum(tsh_parameters *list) {
    if (list->world->deterministic && on_one_mesh(list) && !any_local(list)) return sum_whole_squares(list);
    const tsh_mesh *mesh = on_one_mesh(list) ? list->items[0].tensor->mesh : tsh_world_mesh(list->world);
    tsh_status status = TSH_OK;
    for (int a = 0; a < mesh->axes && status == TSH_OK; a++) {
        if (mesh->axis[a].size > 1) status = tsh_all_reduce(mesh->axis[a].group, list->scalar, TSH_REDUCE_SUM);
    }
    return status;
}

void tshi_clip_all(const tsh_parameters *list, double scale, double max_norm) {
    tsh_device *device = list->scalar->mesh->device;
    for (int i = 0; i < list->count; i++) {
        tsh_tensor *grad = tshi_gradient_elements(list->items[i].tensor);
        if (!grad) continue;
        device->ops->optimizer[grad->dtype].clip(device, grad->numel, tshi_data(list->scalar), scale, max_norm,
                                                 tshi_data(grad));
    }
}

static tsh_status clip_grad_norm(tsh_parameters *list, double max_norm, double *norm) {
    if (norm) *norm = 0;
    if (!list || !(max_norm > 0)) {
        return tshi_fail(TSH_ERR_ARGUMENT, "clip_grad_norm: a list and max_norm > 0 are required, max_norm is %g",
                         max_norm);
    }
    tsh_status status = TSH_OK;
    for (int i = 0; i < list->count && status == TSH_OK; i++) status = tshi_gradient_check(list->items[i].tensor);
    if (status != TSH_OK || list->count == 0) return status;
    sum_local_squares(list, true);
    status = tshi_clip_sum(list);
    if (status != TSH_OK) return status;
    tshi_clip_all(list, 1, max_norm);
    if (!norm) return TSH_OK;
    status = tsh_tensor_read(list->scalar, norm, 1);
    *norm = sqrt(*norm);
    return status;
}

tsh_status tsh_clip_grad_norm(tsh_parameters *list, double max_norm, double *norm) {
    return tshi_failure_hold(clip_grad_norm(list, max_norm, norm));
}
