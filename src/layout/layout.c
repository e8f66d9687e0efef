/* Layout algebra: pure functions of metadata. */
#include "layout/layout.h"

#include <stdio.h>
#include <string.h>

const tsh_layout tshi_all_local[TSH_MAX_AXES] = {TSH_LOCAL_INIT, TSH_LOCAL_INIT, TSH_LOCAL_INIT, TSH_LOCAL_INIT,
                                                 TSH_LOCAL_INIT, TSH_LOCAL_INIT, TSH_LOCAL_INIT, TSH_LOCAL_INIT};

bool tshi_layout_exists(tsh_layout layout) {
    return (int)layout.kind >= TSH_KIND_REPLICATED && layout.kind <= TSH_KIND_LOCAL;
}

bool tshi_splits_before(const tsh_layout *layout, int a, int b) {
    return layout[a].order != layout[b].order ? layout[a].order < layout[b].order : a < b;
}

void tshi_split_sequence(int axes, const tsh_layout *layout, int sequence[TSH_MAX_AXES]) {
    for (int a = 0; a < axes; a++) {
        int i = a;
        for (; i > 0 && tshi_splits_before(layout, a, sequence[i - 1]); i--) sequence[i] = sequence[i - 1];
        sequence[i] = a;
    }
}

/* The axes that meet each other, directly or through others, have the lowest of them as their `first`. */
static void find_meeting(int axes, const tsh_layout *layout, int first[TSH_MAX_AXES]) {
    for (int a = 0; a < axes; a++) first[a] = a;
    for (int k = 0; k < axes * axes * axes; k++) {
        int a = k / axes % axes, b = k % axes;
        if (first[b] < first[a] && tshi_layouts_meet(layout[a], layout[b])) first[a] = first[b];
    }
}

/* An axis splits after all that meet it and are before it: the length of the longest chain of these. 0 for axes of
 * which those that meet split in the order of the axes. */
void tshi_layouts_normalize(int axes, tsh_layout *layout) {
    int sequence[TSH_MAX_AXES], first[TSH_MAX_AXES], order[TSH_MAX_AXES] = {0};
    bool ordered = false, given[TSH_MAX_AXES] = {false};
    for (int a = 0; a < axes; a++) {
        if (layout[a].kind != TSH_KIND_SHARD) layout[a] = TSH_LAYOUT_(layout[a].kind, 0, 0, TSH_UNSHARED, 0, 0, 0);
        ordered = ordered || layout[a].order;
    }
    if (!ordered) return;
    tshi_split_sequence(axes, layout, sequence);
    find_meeting(axes, layout, first);
    for (int i = 0; i < axes; i++) {
        int a = sequence[i];
        for (int k = 0; k < i; k++) {
            int b = sequence[k];
            if (!tshi_layouts_meet(layout[a], layout[b])) continue;
            order[a] = order[b] < order[a] ? order[a] : order[b] + 1;
            given[first[a]] = given[first[a]] || b > a;
        }
    }
    for (int a = 0; a < axes; a++) layout[a].order = given[first[a]] ? order[a] : 0;
}

int tshi_mesh_axis(const tsh_mesh *mesh, const tsh_group *group) {
    for (int a = 0; a < mesh->axes; a++) {
        if (mesh->axis[a].group == group) return a;
    }
    return -1;
}

/* --- shapes ------------------------------------------------------------------------------------------------------- */

/* Checks the layouts, and resolves negative dims. */
static tsh_status resolve_dims(const tsh_mesh *mesh, int ndim, tsh_layout layout[TSH_MAX_AXES]) {
    for (int a = 0; a < mesh->axes; a++) {
        if (!tshi_layout_exists(layout[a])) {
            return tshi_fail(TSH_ERR_ARGUMENT, "axis %s has an unknown layout kind, %d", mesh->axis[a].name,
                             (int)layout[a].kind);
        }
        if (layout[a].kind != TSH_KIND_SHARD) continue;
        int d = layout[a].dim < 0 ? layout[a].dim + ndim : layout[a].dim;
        if (d < 0 || d >= ndim) {
            return tshi_fail(TSH_ERR_SHAPE, "SHARD(%d) along axis %s: the tensor has %d dims", layout[a].dim,
                             mesh->axis[a].name, ndim);
        }
        layout[a].dim = d;
    }
    return TSH_OK;
}

/* This rank's box, where `sequence` is the split order; on a rank outside the mesh its lengths are 0. */
static tsh_box own_box(const tsh_mesh *mesh, const tsh_layout layout[TSH_MAX_AXES], const int *sequence,
                       const tsh_shape *shape) {
    tsh_box box = {0};
    for (int d = 0; d < shape->ndim; d++) box.length[d] = shape->global[d];
    for (int i = 0; i < mesh->axes; i++) {
        const tshi_axis *axis = &mesh->axis[sequence[i]];
        const tsh_layout *l = &layout[sequence[i]];
        if (l->kind == TSH_KIND_SHARD) tshi_layout_narrow(l, shape->global, tshi_axis_parts(axis), axis->index, &box);
    }
    for (int d = 0; d < shape->ndim && !tshi_mesh_has_me(mesh); d++) box.length[d] = 0;
    return box;
}

static bool is_replicated(const tsh_mesh *mesh, const tsh_layout layout[TSH_MAX_AXES]) {
    for (int a = 0; a < mesh->axes; a++) {
        if (layout[a].kind != TSH_KIND_REPLICATED) return false;
    }
    return true;
}

tsh_status tshi_shape_resolve(const tsh_mesh *mesh, tsh_shape *shape, tsh_layout layout[TSH_MAX_AXES]) {
    if (is_replicated(mesh, layout)) {
        for (int a = 0; a < mesh->axes; a++) layout[a] = TSH_REPLICATED;
        for (int d = 0; d < shape->ndim; d++) shape->local[d] = tshi_mesh_has_me(mesh) ? shape->global[d] : 0;
        return TSH_OK;
    }
    tsh_status status = resolve_dims(mesh, shape->ndim, layout);
    if (status != TSH_OK) return status;
    int sequence[TSH_MAX_AXES];
    tshi_layouts_normalize(mesh->axes, layout);
    tshi_split_sequence(mesh->axes, layout, sequence);
    status = tshi_units_resolve(mesh, shape, sequence, layout);
    if (status != TSH_OK) return status;
    tshi_layouts_normalize(mesh->axes, layout);
    tsh_box box = own_box(mesh, layout, sequence, shape);
    for (int d = 0; d < shape->ndim; d++) shape->local[d] = box.length[d];
    return TSH_OK;
}

tsh_status tshi_shape_settle(const tsh_mesh *mesh, int axis, tsh_shape *shape, tsh_layout layout[TSH_MAX_AXES]) {
    tsh_status status = tshi_shape_resolve(mesh, shape, layout);
    if (status != TSH_ERR_LAYOUT) return status;
    for (int a = 0; a < mesh->axes; a++) {
        if (a != axis && layout[axis].kind == TSH_KIND_SHARD && tshi_layout_splits(layout[a], layout[axis].dim))
            layout[a] = TSH_SHARD_ORDER(layout[a].dim, layout[a].order);
    }
    return tshi_shape_resolve(mesh, shape, layout);
}

bool tshi_shapes_equal(const tsh_shape *a, const tsh_shape *b) {
    int d = 0;
    while (d < a->ndim && a->global[d] == b->global[d]) d++;
    return a->ndim == b->ndim && d == a->ndim;
}

int64_t tshi_shape_numel(const tsh_shape *shape) {
    int64_t n = 1;
    for (int d = 0; d < shape->ndim; d++) n *= shape->global[d];
    return n;
}

int64_t tshi_shape_start(const tsh_mesh *mesh, const tsh_shape *shape, const tsh_layout layout[TSH_MAX_AXES], int d) {
    int sequence[TSH_MAX_AXES];
    tshi_split_sequence(mesh->axes, layout, sequence);
    return own_box(mesh, layout, sequence, shape).start[d];
}
