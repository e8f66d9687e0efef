/* Claims: the layout that a program says its LOCAL tensor has. */
#include "tensor/tensor.h"

#include <string.h>

/* The length of dim d that is left for the other axes when axis a makes no claim: the axes that split before it split the
 * items first, of each part this rank's share along a counts, and the axes after it split that sum. layout has the claim,
 * `sequence` is its split order; of the dim's `whole` items n are still to be split along the axes from number `at` on. */
static int64_t length_without(const tsh_mesh *mesh, const tsh_layout *layout, const int *sequence, int a, int at,
                              int64_t whole, int64_t n) {
    int axis = sequence[at], d = layout[a].dim;
    const tshi_axis *along = &mesh->axis[axis];
    int64_t start = 0, length = n, sum = 0;
    if (axis == a) {
        tshi_layout_split(&layout[a], whole, along->size, along->index, &start, &length);
        return length;
    }
    if (!tshi_layout_splits(layout[axis], d)) return length_without(mesh, layout, sequence, a, at + 1, whole, n);
    for (int i = 0; i < along->size; i++) {
        length = n;
        tshi_layout_split(&layout[axis], whole, along->size, i, &start, &length);
        sum += length_without(mesh, layout, sequence, a, at + 1, whole, length);
    }
    return sum;
}

static int64_t length_without_claim(const tsh_mesh *mesh, const tsh_layout *layout, int a, int64_t n) {
    int sequence[TSH_MAX_AXES];
    tshi_split_sequence(mesh->axes, layout, sequence);
    return length_without(mesh, layout, sequence, a, 0, n, n);
}

/* A claim along axis a sets the whole's size in that dim, of which the axes that shard it already hold their parts. */
static tsh_status claim_shard(tsh_tensor *tensor, int a, tsh_layout layout[TSH_MAX_AXES], int64_t global) {
    char text[160];
    const tshi_axis *axis = &tensor->mesh->axis[a];
    int d = layout[a].dim < 0 ? layout[a].dim + tensor->shape.ndim : layout[a].dim;
    if (d < 0 || d >= tensor->shape.ndim) {
        return tshi_fail(TSH_ERR_SHAPE, "tensor_claim: no dim %d in %s", layout[a].dim,
                         tsh_tensor_describe(tensor, text, sizeof text));
    }
    layout[a].dim = d;
    int64_t have = tensor->shape.global[d], whole = global;
    if (global == 0 && __builtin_mul_overflow(have, (int64_t)axis->size, &whole)) {
        return tshi_fail(TSH_ERR_OVERFLOW, "tensor_claim: %d parts of dim %d of %s", axis->size, d,
                         tsh_tensor_describe(tensor, text, sizeof text));
    }
    tsh_shape resolved = tensor->shape;
    resolved.global[d] = whole;
    tsh_status status = whole < 0 ? TSH_OK : tshi_shape_resolve(tensor->mesh, &resolved, layout);
    if (status != TSH_OK) return status;
    bool fits = !tshi_mesh_has_me(tensor->mesh) || length_without_claim(tensor->mesh, layout, a, whole) == have;
    if (whole < 0 || !fits) {
        return tshi_fail(TSH_ERR_SHAPE, "tensor_claim: %s is not part %d of %d along %s of a dim %d that is %lld long",
                         tsh_tensor_describe(tensor, text, sizeof text), axis->index, axis->size, axis->name, d,
                         (long long)whole);
    }
    tensor->shape.global[d] = whole;
    return TSH_OK;
}

static tsh_status check_claim(const tsh_tensor *tensor, int a, tsh_layout layout) {
    char text[160];
    if (a < 0) return tshi_fail(TSH_ERR_ARGUMENT, "tensor_claim: the group is no axis of the tensor's mesh");
    if (!tshi_layout_exists(layout)) {
        return tshi_fail(TSH_ERR_ARGUMENT, "tensor_claim: %d is no kind of layout", (int)layout.kind);
    }
    if (tensor->taped) {
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
        int64_t *length = &tensor->shape.global[tensor->layout[a].dim];
        *length = length_without_claim(tensor->mesh, tensor->layout, a, *length);
    }
    tsh_layout claimed[TSH_MAX_AXES];
    memcpy(claimed, tensor->layout, sizeof claimed);
    claimed[a] = layout;
    if (layout.kind == TSH_KIND_SHARD) status = claim_shard(tensor, a, claimed, global);
    if (status != TSH_OK) return status;
    tshi_layouts_normalize(tensor->mesh->axes, claimed);
    memcpy(tensor->layout, claimed, sizeof claimed);
    return TSH_OK;
}
