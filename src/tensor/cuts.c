/* Cut points that a program makes for the layouts of its tensors, and the references of these tensors. */
#include "base/owner.h"
#include "tensor/tensor.h"

tsh_status tsh_cuts_create(const tsh_mesh *mesh, int parts, const int64_t *offsets, uint64_t *cuts) {
    if (cuts) *cuts = 0;
    if (!mesh || !offsets || !cuts)
        return tshi_fail(TSH_ERR_ARGUMENT, "cuts_create: mesh, offsets and cuts are required");
    if (mesh->device->ended) return tshi_fail(TSH_ERR_STATE, "cuts_create: the mesh's world has been destroyed");
    if (parts < 1) return tshi_fail(TSH_ERR_ARGUMENT, "cuts_create: %d parts; at least 1 is expected", parts);
    for (int i = 0; i <= parts; i++) {
        if (i == 0 ? offsets[i] == 0 : offsets[i] >= offsets[i - 1]) continue;
        return tshi_fail(TSH_ERR_ARGUMENT, "cuts_create: offsets[%d] is %lld; offsets begin with 0 and never descend",
                         i, (long long)offsets[i]);
    }
    tsh_device *device = mesh->device;
    tsh_status status = tshi_owner_check(device->owner, "cuts_create");
    return status == TSH_OK ? tshi_cuts_add(&device->cuts, &device->allocator, parts, offsets, cuts) : status;
}

void tsh_cuts_release(const tsh_mesh *mesh, uint64_t cuts) {
    if (!mesh || mesh->device->ended || tshi_owner_refuses(mesh->device->owner, "cuts_release")) return;
    tshi_cuts_remove(&mesh->device->cuts, &mesh->device->allocator, cuts);
}

void tshi_tensor_retain_cuts(tsh_tensor *tensor) {
    for (int a = 0; a < tensor->mesh->axes; a++) {
        const tsh_layout *l = &tensor->layout[a];
        if (l->kind != TSH_KIND_SHARD || !l->cuts) continue;
        tshi_cuts_retain(&tensor->device->cuts, l->cuts);
        tensor->cut_axes |= 1u << a;
    }
}

void tshi_tensor_release_cuts(tsh_tensor *tensor) {
    tsh_device *device = tensor->device;
    for (int a = 0; tensor->cut_axes >> a; a++) {
        if (tensor->cut_axes >> a & 1u) tshi_cuts_release(&device->cuts, &device->allocator, tensor->layout[a].cuts);
    }
    tensor->cut_axes = 0;
}
