/* Layout algebra: pure functions of metadata. */
#include "layout/layout.h"

#include <stdio.h>
#include <string.h>

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

bool tshi_layout_equal(tsh_layout a, tsh_layout b) {
    return a.kind == b.kind && (a.kind != TSH_KIND_SHARD || a.dim == b.dim);
}

char *tshi_layout_name(tsh_layout layout, char *text, size_t size) {
    static const char *const names[] = {"REPLICATED", "SHARD", "PARTIAL", "LOCAL"};
    if (layout.kind == TSH_KIND_SHARD) {
        snprintf(text, size, "SHARD(%d)", layout.dim);
    } else {
        snprintf(text, size, "%s", (unsigned)layout.kind < 4 ? names[layout.kind] : "unknown layout");
    }
    return text;
}

int tshi_mesh_axis(const tsh_mesh *mesh, const tsh_group *group) {
    for (int a = 0; a < mesh->axes; a++) {
        if (mesh->axis[a].group == group) return a;
    }
    return -1;
}

tsh_status tshi_shape_resolve(const tsh_mesh *mesh, tshi_shape *shape, tsh_layout layout[TSH_MAX_AXES]) {
    memcpy(shape->local, shape->global, sizeof shape->local);
    for (int a = 0; a < mesh->axes; a++) {
        if (!tshi_layout_exists(layout[a])) {
            return tshi_fail(TSH_ERR_ARGUMENT, "%d along axis %s is no kind of layout", (int)layout[a].kind,
                             mesh->axis[a].name);
        }
        if (layout[a].kind != TSH_KIND_SHARD) continue;
        int d = layout[a].dim < 0 ? layout[a].dim + shape->ndim : layout[a].dim;
        if (d < 0 || d >= shape->ndim) {
            return tshi_fail(TSH_ERR_SHAPE, "SHARD(%d) along axis %s: the tensor has %d dims", layout[a].dim,
                             mesh->axis[a].name, shape->ndim);
        }
        layout[a].dim = d;
        tsh_split(shape->local[d], mesh->axis[a].size, mesh->axis[a].index, NULL, &shape->local[d]);
    }
    return TSH_OK;
}

int64_t tshi_shape_numel(const tshi_shape *shape) {
    int64_t n = 1;
    for (int d = 0; d < shape->ndim; d++) n *= shape->global[d];
    return n;
}

int64_t tshi_shape_start(const tsh_mesh *mesh, const tshi_shape *shape, const tsh_layout layout[TSH_MAX_AXES], int d) {
    int64_t start = 0, length = shape->global[d];
    for (int a = 0; a < mesh->axes; a++) {
        if (layout[a].kind != TSH_KIND_SHARD || layout[a].dim != d) continue;
        int64_t offset;
        tsh_split(length, mesh->axis[a].size, mesh->axis[a].index, &offset, &length);
        start += offset;
    }
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
