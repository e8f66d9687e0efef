/* Claims: the layout that a program says its LOCAL tensor has. */
#include "tensor/tensor.h"

/* The length of dim d that is left for the other axes when axis a makes no claim: the axes before it split n items
 * first, of each part this rank's share along a counts, and the axes after it split that sum. `axis` is the first that
 * n items are still to be split along. */
static int64_t length_without(const tsh_tensor *tensor, int a, int d, int axis, int64_t n) {
    const tshi_axis *along = &tensor->mesh->axis[axis];
    int64_t length, sum = 0;
    if (axis == a) {
        tsh_split(n, along->size, along->index, NULL, &length);
        return length;
    }
    if (tensor->layout[axis].kind != TSH_KIND_SHARD || tensor->layout[axis].dim != d)
        return length_without(tensor, a, d, axis + 1, n);
    for (int i = 0; i < along->size; i++) {
        tsh_split(n, along->size, i, NULL, &length);
        sum += length_without(tensor, a, d, axis + 1, length);
    }
    return sum;
}

/* A claim along axis a sets the whole's size in that dim, of which the axes that shard it already hold their parts. */
static tsh_status claim_shard(tsh_tensor *tensor, int a, tsh_layout *layout, int64_t global) {
    char text[160];
    const tshi_axis *axis = &tensor->mesh->axis[a];
    int d = layout->dim < 0 ? layout->dim + tensor->shape.ndim : layout->dim;
    if (d < 0 || d >= tensor->shape.ndim) {
        return tshi_fail(TSH_ERR_SHAPE, "tensor_claim: no dim %d in %s", layout->dim,
                         tsh_tensor_describe(tensor, text, sizeof text));
    }
    int64_t have = tensor->shape.global[d], whole = global;
    if (global == 0 && __builtin_mul_overflow(have, (int64_t)axis->size, &whole)) {
        return tshi_fail(TSH_ERR_OVERFLOW, "tensor_claim: %d parts of dim %d of %s", axis->size, d,
                         tsh_tensor_describe(tensor, text, sizeof text));
    }
    if (whole < 0 || length_without(tensor, a, d, 0, whole) != have) {
        return tshi_fail(TSH_ERR_SHAPE, "tensor_claim: %s is not part %d of %d along %s of a dim %d that is %lld long",
                         tsh_tensor_describe(tensor, text, sizeof text), axis->index, axis->size, axis->name, d,
                         (long long)whole);
    }
    layout->dim = d;
    tensor->shape.global[d] = whole;
    return TSH_OK;
}

static tsh_status check_claim(const tsh_tensor *tensor, int a, tsh_layout layout) {
    char text[160];
    if (a < 0) return tshi_fail(TSH_ERR_ARGUMENT, "tensor_claim: the group is no axis of the tensor's mesh");
    if (!tshi_layout_exists(layout)) {
        return tshi_fail(TSH_ERR_ARGUMENT, "tensor_claim: %d is no kind of layout", (int)layout.kind);
    }
    if (tensor->computed) {
        return tshi_fail(TSH_ERR_STATE, "tensor_claim: %s was made by a tape, whose layouts are not claims",
                         tsh_tensor_describe(tensor, text, sizeof text));
    }
    if (layout.kind != TSH_KIND_LOCAL && tensor->layout[a].kind != TSH_KIND_LOCAL) {
        return tshi_fail(TSH_ERR_LAYOUT, "tensor_claim: %s is not LOCAL along axis %s",
                         tsh_tensor_describe(tensor, text, sizeof text), tensor->mesh->axis[a].name);
    }
    return TSH_OK;
}

tsh_status tsh_tensor_claim(tsh_tensor *tensor, const tsh_group *group, tsh_layout layout, int64_t global) {
    int a = tensor && group ? tshi_mesh_axis(tensor->mesh, group) : -1;
    tsh_status status = check_claim(tensor, a, layout);
    if (status != TSH_OK) return status;
    if (layout.kind == TSH_KIND_LOCAL && tensor->layout[a].kind == TSH_KIND_SHARD) {
        int d = tensor->layout[a].dim;
        tensor->shape.global[d] = length_without(tensor, a, d, 0, tensor->shape.global[d]);
    }
    if (layout.kind == TSH_KIND_SHARD) status = claim_shard(tensor, a, &layout, global);
    if (status == TSH_OK) tensor->layout[a] = layout;
    return status;
}
