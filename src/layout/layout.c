/* Layout algebra: pure functions of metadata. */
#include "layout/layout.h"

#include <stdio.h>
#include <string.h>

const tsh_layout tshi_all_local[TSH_MAX_AXES] = {TSH_LOCAL_INIT, TSH_LOCAL_INIT, TSH_LOCAL_INIT, TSH_LOCAL_INIT,
                                                 TSH_LOCAL_INIT, TSH_LOCAL_INIT, TSH_LOCAL_INIT, TSH_LOCAL_INIT};

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

/* The position of axis a among the axes that shard its dim; 0 if they split it in the order of the axes. */
static int normal_order(int axes, const tsh_layout *layout, int a) {
    int d = layout[a].dim, before = 0, last = -1;
    bool own_order = true;
    for (int b = 0; b < axes; b++) {
        if (!tshi_layout_splits(layout[b], d)) continue;
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
        if (layout[a].kind != TSH_KIND_SHARD) layout[a] = TSH_LAYOUT_(layout[a].kind, 0, 0, TSH_UNSHARED, 0, 0);
        ordered = ordered || layout[a].order;
    }
    if (!ordered) return;
    for (int a = 0; a < axes; a++) order[a] = layout[a].kind == TSH_KIND_SHARD ? normal_order(axes, layout, a) : 0;
    for (int a = 0; a < axes; a++) layout[a].order = order[a];
}

char *tshi_layout_name(tsh_layout layout, char *text, size_t size) {
    static const char *const names[] = {"REPLICATED", "SHARD", "PARTIAL", "LOCAL"};
    static const char *const sharing[] = {"", ", shared", ", shared for own use"};
    char order[16] = "", units[24] = "", blocks[32] = "";
    if (layout.kind != TSH_KIND_SHARD) {
        snprintf(text, size, "%s", (unsigned)layout.kind < 4 ? names[layout.kind] : "unknown layout");
        return text;
    }
    if (layout.order) snprintf(order, sizeof order, ",%d", layout.order);
    if (layout.units) snprintf(units, sizeof units, ", %lld units", (long long)layout.units);
    if (layout.blocks) snprintf(blocks, sizeof blocks, " of %lld blocks", (long long)layout.blocks);
    snprintf(text, size, "SHARD(%d%s%s%s%s)", layout.dim, order, units, blocks, sharing[layout.sharing % 3u]);
    return text;
}

char *tshi_mesh_name(const tsh_mesh *mesh, char *text, size_t size) {
    text[0] = '\0';
    for (int a = 0; a < mesh->axes; a++)
        tshi_append(text, size, "%s%s=%d", a ? "," : "", mesh->axis[a].name, mesh->axis[a].size);
    for (int i = 0; i < mesh->members && strlen(text) + 1 < size; i++)
        tshi_append(text, size, "%s%d", i ? "," : " of ranks ", mesh->ranks[i]);
    return text;
}

int tshi_mesh_axis(const tsh_mesh *mesh, const tsh_group *group) {
    for (int a = 0; a < mesh->axes; a++) {
        if (mesh->axis[a].group == group) return a;
    }
    return -1;
}

/* --- units -------------------------------------------------------------------------------------------------------- */

/* The unit that rank `index` of parts > units holds, together with the ranks [*first, *first + *count). */
static int64_t shared_unit(int64_t units, int parts, int index, int *first, int *count) {
    int base = parts / (int)units, extra = parts % (int)units, long_ranks = extra * (base + 1);
    int unit = index < long_ranks ? index / (base + 1) : extra + (index - long_ranks) / base;
    *first = unit * base + (unit < extra ? unit : extra);
    *count = base + (unit < extra ? 1 : 0);
    return unit;
}

void tshi_layout_split(const tsh_layout *layout, int64_t n, int parts, int index, int64_t *start, int64_t *length) {
    int64_t size = layout->units ? n / layout->units : 1, units = size ? *length / size : 0, offset, count;
    bool shares = parts > units && units > 0 && index >= 0 && (layout->blocks || layout->sharing);
    if (!shares) {
        tsh_split(units, parts, index, &offset, &count);
        *start += offset * size;
        *length = count * size;
        return;
    }
    int first, ranks;
    *start += shared_unit(units, parts, index, &first, &ranks) * size;
    *length = size;
    if (layout->sharing) return;
    int64_t block = n / layout->blocks;
    tsh_split(size / block, ranks, index - first, &offset, &count);
    *start += offset * block;
    *length = count * block;
}

int tshi_layout_sharers(const tsh_layout *layout, int parts, int index, int *first) {
    int count = 1;
    *first = index;
    if (layout->kind == TSH_KIND_SHARD && layout->sharing && layout->units && parts > layout->units)
        shared_unit(layout->units, parts, index, first, &count);
    return count;
}

bool tshi_layouts_hold_first(const tsh_mesh *mesh, const tsh_layout *layout) {
    for (int a = 0; a < mesh->axes; a++) {
        int first;
        tshi_layout_sharers(&layout[a], mesh->axis[a].size, mesh->axis[a].index, &first);
        if (first != mesh->axis[a].index) return false;
    }
    return true;
}

tsh_layout tshi_layout_of_part(tsh_layout layout, int64_t n, int64_t length) {
    if (layout.units && n) layout.units = length / (n / layout.units);
    if (layout.blocks && n) layout.blocks = length / (n / layout.blocks);
    return layout;
}

/* A walk over the parts of a dim of size n that the axes before `axis` in split order make, to check the units of
 * `axis`. */
typedef struct unit_check {
    const tsh_mesh *mesh;
    const tsh_layout *layout;
    const int *sequence;
    int axis;
    int64_t n;
    bool cut, apart, needed; /* a part cuts a unit; no two ranks share a unit; without units boxes would differ */
} unit_check;

static void check_part(unit_check *c, const tsh_layout *layout, int parts, int64_t start, int64_t length) {
    const tsh_layout plain = TSH_SHARD(layout->dim);
    int64_t size = c->n / layout->units;
    if (length == 0) return;
    c->cut = c->cut || start % size || length % size;
    if (parts > length / size) c->apart = false;
    for (int i = 0; i < parts && !c->needed && !c->cut; i++) {
        int64_t at[2] = {start, start}, some[2] = {length, length};
        tshi_layout_split(layout, c->n, parts, i, &at[0], &some[0]);
        tshi_layout_split(&plain, c->n, parts, i, &at[1], &some[1]);
        c->needed = some[0] != some[1] || (some[0] && at[0] != at[1]);
    }
}

static void check_parts(unit_check *c, int step, int64_t start, int64_t length) {
    int a = c->sequence[step], parts = c->mesh->axis[a].size;
    if (a == c->axis) {
        check_part(c, &c->layout[a], parts, start, length);
    } else if (!tshi_layout_splits(c->layout[a], c->layout[c->axis].dim)) {
        check_parts(c, step + 1, start, length);
    } else {
        for (int i = 0; i < parts; i++) {
            int64_t at = start, some = length;
            tshi_layout_split(&c->layout[a], c->n, parts, i, &at, &some);
            check_parts(c, step + 1, at, some);
        }
    }
}

static tsh_layout simplified(const unit_check *c, tsh_layout layout) {
    if (!c->needed) layout.units = 0;
    if (!c->needed || c->apart) layout.blocks = 0;
    if (!c->needed || c->apart) layout.sharing = TSH_UNSHARED;
    return layout;
}

tsh_layout tshi_layout_plain(tsh_layout layout, int64_t n, int parts) {
    unit_check c = {.n = n, .apart = true};
    if (!layout.units || n == 0 || n % layout.units) return layout;
    check_part(&c, &layout, parts, 0, n);
    return simplified(&c, layout);
}

/* Checks the units and blocks of one axis' layout, along a dim of size n. */
static tsh_status check_units(const tsh_mesh *mesh, int a, tsh_layout *layout, int64_t n) {
    if (layout->sharing && !layout->units) layout->units = n;
    int64_t units = layout->units, blocks = layout->blocks;
    bool fits = units >= 0 && blocks >= 0 && (!units || n % units == 0) && (!blocks || n % blocks == 0) &&
                (!blocks || (units && blocks % units == 0 && !layout->sharing));
    if (fits && (unsigned)layout->sharing <= TSH_SHARED_OWN) return TSH_OK;
    return tshi_fail(TSH_ERR_SHAPE,
                     "%s along axis %s: units and blocks must divide the dim's %lld items, and blocks must be a "
                     "multiple of units that are not shared",
                     TSHI_LAYOUT_TEXT(*layout), mesh->axis[a].name, (long long)n);
}

/* Drops units that change no box; a dim of size 0 keeps its units. */
static tsh_status resolve_units(const tsh_mesh *mesh, const int64_t *shape, const int *sequence,
                                tsh_layout layout[TSH_MAX_AXES]) {
    for (int i = 0; i < mesh->axes; i++) {
        int a = sequence[i];
        if (layout[a].kind != TSH_KIND_SHARD || (!layout[a].units && !layout[a].blocks && !layout[a].sharing)) continue;
        int64_t n = shape[layout[a].dim];
        tsh_status status = check_units(mesh, a, &layout[a], n);
        if (status != TSH_OK) return status;
        if (!layout[a].units || n == 0) continue;
        unit_check c = {mesh, layout, sequence, a, n, false, true, false};
        check_parts(&c, 0, 0, n);
        tsh_layout simple = simplified(&c, layout[a]);
        for (int k = 0; k < i; k++)
            c.cut = c.cut || (simple.sharing && tshi_layout_splits(layout[sequence[k]], layout[a].dim));
        if (c.cut) {
            return tshi_fail(TSH_ERR_LAYOUT,
                             "%s along axis %s: another axis splits the dim first, and cuts its units or shares them; "
                             "give this axis a lower split order",
                             TSHI_LAYOUT_TEXT(layout[a]), mesh->axis[a].name);
        }
        layout[a] = simple;
    }
    return TSH_OK;
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

/* This rank's slice of dim d, of global size n, where `sequence` is the split order; empty on a rank outside the
 * mesh. */
static int64_t local_slice(const tsh_mesh *mesh, const tsh_layout layout[TSH_MAX_AXES], const int *sequence, int d,
                           int64_t n, int64_t *start) {
    int64_t length = n;
    *start = 0;
    for (int i = 0; i < mesh->axes; i++) {
        const tshi_axis *axis = &mesh->axis[sequence[i]];
        const tsh_layout *l = &layout[sequence[i]];
        if (tshi_layout_splits(*l, d)) tshi_layout_split(l, n, axis->size, axis->index, start, &length);
    }
    return tshi_mesh_has_me(mesh) ? length : 0;
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
    status = resolve_units(mesh, shape->global, sequence, layout);
    if (status != TSH_OK) return status;
    for (int d = 0; d < shape->ndim; d++) {
        int64_t start;
        shape->local[d] = local_slice(mesh, layout, sequence, d, shape->global[d], &start);
    }
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
    int64_t start;
    tshi_split_sequence(mesh->axes, layout, sequence);
    local_slice(mesh, layout, sequence, d, shape->global[d], &start);
    return start;
}

char *tshi_dims_name(int ndim, const int64_t *dims, char *text, size_t size) {
    snprintf(text, size, "[");
    for (int d = 0; d < ndim; d++) tshi_append(text, size, "%s%lld", d ? "," : "", (long long)dims[d]);
    return tshi_append(text, size, "]");
}
