/* Layout algebra: pure functions of metadata. */
#include "layout/layout.h"

#include <stdio.h>

void tsh_split(int64_t n, int parts, int index, int64_t *start, int64_t *length) {
    bool exists = n >= 0 && parts >= 1 && index >= 0 && index < parts;
    int64_t base = exists ? n / parts : 0, extra = exists ? n % parts : 0;
    if (!exists) index = 0;
    if (start) *start = index * base + (index < extra ? index : extra);
    if (length) *length = base + (index < extra ? 1 : 0);
}

bool tshi_layout_exists(tsh_layout layout) {
    return (int)layout.kind >= TSH_KIND_REPLICATED && layout.kind <= TSH_KIND_LOCAL;
}

bool tshi_layouts_equal(int axes, const tsh_layout *a, const tsh_layout *b) {
    for (int i = 0; i < axes; i++) {
        if (!tshi_layout_equal(a[i], b[i])) return false;
    }
    return true;
}

bool tshi_layouts_have_local(int axes, const tsh_layout *layout) {
    for (int a = 0; a < axes; a++) {
        if (layout[a].kind == TSH_KIND_LOCAL) return true;
    }
    return false;
}

static bool splits(tsh_layout layout, int d) {
    return layout.kind == TSH_KIND_SHARD && layout.dim == d;
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

/* The position of axis a among the axes that shard its dim, or 0 where these split it in their own order. */
static int normal_order(int axes, const tsh_layout *layout, int a) {
    int d = layout[a].dim, before = 0, last = -1;
    bool own_order = true;
    for (int b = 0; b < axes; b++) {
        if (!splits(layout[b], d)) continue;
        if (last >= 0 && tshi_splits_before(layout, b, last)) own_order = false;
        if (b != a && tshi_splits_before(layout, b, a)) before++;
        last = b;
    }
    return own_order ? 0 : before;
}

void tshi_layouts_normalize(int axes, tsh_layout *layout) {
    int order[TSH_MAX_AXES];
    bool ordered = false;
    for (int a = 0; a < axes; a++) {
        if (layout[a].kind != TSH_KIND_SHARD) layout[a].dim = layout[a].order = 0;
        ordered = ordered || layout[a].order;
    }
    if (!ordered) return;
    for (int a = 0; a < axes; a++) order[a] = layout[a].kind == TSH_KIND_SHARD ? normal_order(axes, layout, a) : 0;
    for (int a = 0; a < axes; a++) layout[a].order = order[a];
}

char *tshi_layout_name(tsh_layout layout, char *text, size_t size) {
    static const char *const names[] = {"REPLICATED", "SHARD", "PARTIAL", "LOCAL"};
    if (layout.kind == TSH_KIND_SHARD && layout.order) {
        snprintf(text, size, "SHARD(%d,%d)", layout.dim, layout.order);
    } else if (layout.kind == TSH_KIND_SHARD) {
        snprintf(text, size, "SHARD(%d)", layout.dim);
    } else {
        snprintf(text, size, "%s", (unsigned)layout.kind < 4 ? names[layout.kind] : "unknown layout");
    }
    return text;
}

char *tshi_mesh_name(const tsh_mesh *mesh, char *text, size_t size) {
    size_t used = 0;
    text[0] = '\0';
    for (int a = 0; a < mesh->axes && used < size; a++) {
        used +=
            (size_t)snprintf(text + used, size - used, "%s%s=%d", a ? "," : "", mesh->axis[a].name, mesh->axis[a].size);
    }
    for (int i = 0; i < mesh->members && used < size; i++) {
        used += (size_t)snprintf(text + used, size - used, "%s%d", i ? "," : " of ranks ",
                                 mesh->ranks ? mesh->ranks[i] : i);
    }
    return text;
}

int tshi_mesh_axis(const tsh_mesh *mesh, const tsh_group *group) {
    for (int a = 0; a < mesh->axes; a++) {
        if (mesh->axis[a].group == group) return a;
    }
    return -1;
}

/* Checks the layouts, and replaces negative dims by the dims that they mean. */
static tsh_status resolve_dims(const tsh_mesh *mesh, int ndim, tsh_layout layout[TSH_MAX_AXES]) {
    for (int a = 0; a < mesh->axes; a++) {
        if (!tshi_layout_exists(layout[a])) {
            return tshi_fail(TSH_ERR_ARGUMENT, "%d along axis %s is no kind of layout", (int)layout[a].kind,
                             mesh->axis[a].name);
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

/* This rank's slice of dim d, of global size `length`, when the axes split in this sequence; empty on a rank outside the
 * mesh. */
static int64_t local_slice(const tsh_mesh *mesh, const tsh_layout layout[TSH_MAX_AXES], const int *sequence, int d,
                           int64_t length, int64_t *start) {
    *start = 0;
    for (int i = 0; i < mesh->axes; i++) {
        const tshi_axis *axis = &mesh->axis[sequence[i]];
        int64_t offset;
        if (!splits(layout[sequence[i]], d)) continue;
        tsh_split(length, axis->size, axis->index, &offset, &length);
        *start += offset;
    }
    return tshi_mesh_has_me(mesh) ? length : 0;
}

tsh_status tshi_shape_resolve(const tsh_mesh *mesh, tshi_shape *shape, tsh_layout layout[TSH_MAX_AXES]) {
    tsh_status status = resolve_dims(mesh, shape->ndim, layout);
    if (status != TSH_OK) return status;
    int sequence[TSH_MAX_AXES];
    tshi_layouts_normalize(mesh->axes, layout);
    tshi_split_sequence(mesh->axes, layout, sequence);
    for (int d = 0; d < shape->ndim; d++) {
        int64_t start;
        shape->local[d] = local_slice(mesh, layout, sequence, d, shape->global[d], &start);
    }
    return TSH_OK;
}

int64_t tshi_shape_numel(const tshi_shape *shape) {
    int64_t n = 1;
    for (int d = 0; d < shape->ndim; d++) n *= shape->global[d];
    return n;
}

int64_t tshi_shape_start(const tsh_mesh *mesh, const tshi_shape *shape, const tsh_layout layout[TSH_MAX_AXES], int d) {
    int sequence[TSH_MAX_AXES];
    int64_t start;
    tshi_split_sequence(mesh->axes, layout, sequence);
    local_slice(mesh, layout, sequence, d, shape->global[d], &start);
    return start;
}

char *tshi_dims_name(int ndim, const int64_t *dims, char *text, size_t size) {
    size_t used = 0;
    text[0] = '\0';
    for (int d = 0; d <= ndim && used < size; d++) {
        int n = d == ndim ? snprintf(text + used, size - used, ndim ? "]" : "[]")
                          : snprintf(text + used, size - used, "%s%lld", d ? "," : "[", (long long)dims[d]);
        used += n > 0 ? (size_t)n : 0;
    }
    return text;
}
