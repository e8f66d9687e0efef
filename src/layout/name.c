/* Layouts, weights, meshes and shapes as text. */
#include "layout/layout.h"

#include <stdio.h>
#include <string.h>

/* Appends ", cut at 0,3,5": the first offsets and the last. */
static void append_cuts(tsh_layout layout, tshi_parts parts, char *text, size_t size) {
    enum { MOST = 8 };
    const tshi_cuts *cuts = tshi_cuts_find(parts.cuts, layout.cuts);
    if (layout.cuts) tshi_append(text, size, cuts ? ", cut at " : ", cut at unknown points");
    for (int i = 0; cuts && i <= cuts->parts; i++) {
        if (i < MOST || i == cuts->parts)
            tshi_append(text, size, "%s%lld", i ? "," : "", (long long)cuts->at[i]);
        else if (i == MOST)
            tshi_append(text, size, ",...");
    }
}

char *tshi_layout_name(tsh_layout layout, tshi_parts parts, char *text, size_t size) {
    static const char *const names[] = {"REPLICATED", "SHARD", "PARTIAL", "LOCAL"};
    static const char *const sharing[] = {"", ", shared", ", shared for own use", ", then next dim"};
    char order[16] = "", units[24] = "", blocks[32] = "";
    if (layout.kind != TSH_KIND_SHARD) {
        snprintf(text, size, "%s", (unsigned)layout.kind < 4 ? names[layout.kind] : "unknown layout");
        return text;
    }
    if (layout.order) snprintf(order, sizeof order, ",%d", layout.order);
    if (layout.units) snprintf(units, sizeof units, ", %lld units", (long long)layout.units);
    if (layout.blocks) snprintf(blocks, sizeof blocks, " of %lld blocks", (long long)layout.blocks);
    snprintf(text, size, "SHARD(%d%s%s%s%s", layout.dim, order, units, blocks, sharing[layout.sharing % 4u]);
    append_cuts(layout, parts, text, size);
    return tshi_append(text, size, ")");
}

char *tshi_parts_append(tshi_parts parts, char *text, size_t size) {
    if (!parts.weights) return tshi_append(text, size, "%d", parts.count);
    for (int i = 0; i < parts.count && strlen(text) + 1 < size; i++)
        tshi_append(text, size, "%s%lld", i ? ":" : "", (long long)parts.weights[i]);
    return text;
}

char *tshi_mesh_name(const tsh_mesh *mesh, char *text, size_t size) {
    text[0] = '\0';
    for (int a = 0; a < mesh->axes; a++) {
        tshi_append(text, size, "%s%s=", a ? "," : "", mesh->axis[a].name);
        tshi_parts_append(tshi_axis_parts(&mesh->axis[a]), text, size);
    }
    for (int i = 0; i < mesh->members && strlen(text) + 1 < size; i++)
        tshi_append(text, size, "%s%d", i ? "," : " of ranks ", mesh->ranks[i]);
    return text;
}

char *tshi_dims_name(int ndim, const int64_t *dims, char *text, size_t size) {
    snprintf(text, size, "[");
    for (int d = 0; d < ndim; d++) tshi_append(text, size, "%s%lld", d ? "," : "", (long long)dims[d]);
    return tshi_append(text, size, "]");
}
