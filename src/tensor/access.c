/* Queries of a tensor: its shape and layouts, as numbers and as text. */
#include "tensor/tensor.h"

#include <stdio.h>
#include <string.h>

tsh_dtype tsh_tensor_dtype(const tsh_tensor *tensor) {
    return tensor ? tensor->dtype : TSH_DTYPE_COUNT;
}

int tsh_tensor_ndim(const tsh_tensor *tensor) {
    return tensor ? tensor->shape.ndim : 0;
}

const int64_t *tsh_tensor_local_shape(const tsh_tensor *tensor) {
    return tensor ? tensor->shape.local : NULL;
}

const int64_t *tsh_tensor_shape(const tsh_tensor *tensor) {
    return tensor ? tensor->shape.global : NULL;
}

int64_t tsh_tensor_local_numel(const tsh_tensor *tensor) {
    return tensor ? tensor->numel : 0;
}

size_t tsh_tensor_local_nbytes(const tsh_tensor *tensor) {
    return tensor ? (size_t)tensor->numel * tsh_dtype_size(tensor->dtype) : 0;
}

const tsh_mesh *tsh_tensor_mesh(const tsh_tensor *tensor) {
    return tensor && !tshi_tensor_is_free(tensor) ? tensor->mesh : NULL;
}

tsh_layout tsh_tensor_layout(const tsh_tensor *tensor, const tsh_group *group) {
    int axis = tensor ? tshi_mesh_axis(tensor->mesh, group) : -1;
    return axis < 0 ? TSH_REPLICATED : tensor->layout[axis];
}

tsh_box tsh_tensor_box(const tsh_tensor *tensor) {
    tsh_box box = {0};
    for (int d = 0; tensor && d < tensor->shape.ndim; d++) {
        box.start[d] = tshi_shape_start(tensor->mesh, &tensor->shape, tensor->layout, d);
        box.length[d] = tensor->shape.local[d];
    }
    return box;
}

tshi_placement tshi_tensor_placement(const tsh_tensor *tensor) {
    return tshi_mesh_placement(tensor->mesh, tensor->layout);
}

static char *append_layouts(const tsh_tensor *tensor, char *text, size_t size) {
    for (int a = 0; a < tensor->mesh->axes; a++) {
        const tshi_axis *axis = &tensor->mesh->axis[a];
        tshi_append(text, size, " %s=%s", axis->name, TSHI_LAYOUT_TEXT(tensor->layout[a], axis));
        if (!axis->weights || tensor->layout[a].kind != TSH_KIND_SHARD || tensor->layout[a].cuts) continue;
        tshi_append(text, size, " ");
        tshi_parts_append(tshi_axis_parts(axis), text, size);
    }
    return text;
}

char *tshi_tensor_describe_whole(const tsh_tensor *tensor, char *text, size_t size) {
    const tsh_shape *s = &tensor->shape;
    snprintf(text, size, "%s %s", tsh_dtype_name(tensor->dtype), TSHI_DIMS_TEXT(s->ndim, s->global));
    return append_layouts(tensor, text, size);
}

char *tsh_tensor_describe(const tsh_tensor *tensor, char *text, size_t size) {
    if (size == 0) return text;
    if (!tensor) {
        snprintf(text, size, "NULL");
        return text;
    }
    const tsh_shape *s = &tensor->shape;
    snprintf(text, size, "%s %s", tsh_dtype_name(tensor->dtype), TSHI_DIMS_TEXT(s->ndim, s->local));
    if (memcmp(s->local, s->global, sizeof *s->local * (size_t)s->ndim)) {
        tshi_append(text, size, " of %s", TSHI_DIMS_TEXT(s->ndim, s->global));
    }
    return append_layouts(tensor, text, size);
}

void tshi_gradient_layout(const tsh_tensor *x, tsh_layout layout[TSH_MAX_AXES]) {
    memcpy(layout, x->layout, sizeof x->layout);
    for (int a = 0; a < x->mesh->axes; a++) {
        if (layout[a].kind == TSH_KIND_PARTIAL) layout[a] = TSH_REPLICATED;
    }
}
