/* Units and cut points of layouts: checked against a shape, and dropped where they change no box. */
#include "layout/layout.h"

bool tshi_layouts_meet(tsh_layout a, tsh_layout b) {
    return (a.kind == TSH_KIND_SHARD && tshi_layout_reaches(b, a.dim)) ||
           (b.kind == TSH_KIND_SHARD && tshi_layout_reaches(a, b.dim));
}

bool tshi_layouts_hold_first(const tsh_mesh *mesh, const tsh_layout *layout) {
    for (int a = 0; a < mesh->axes; a++) {
        int first;
        tshi_layout_sharers(&layout[a], tshi_axis_parts(&mesh->axis[a]), mesh->axis[a].index, &first);
        if (first != mesh->axis[a].index) return false;
    }
    return true;
}

/* Ranks that share a unit split the next dim as the blocks of units that are laid end to end. */
static void narrow_next(int64_t units, tshi_parts parts, int index, int64_t *start, int64_t *length) {
    const tsh_layout flat = TSH_SHARD_UNITS(0, units, units * *length);
    int64_t rows = *length, at = 0;
    *length *= units;
    tshi_layout_split(&flat, units * rows, parts, index, &at, length);
    *start += at % rows;
}

void tshi_layout_narrow(const tsh_layout *layout, const int64_t *shape, tshi_parts parts, int index, tsh_box *box) {
    int d = layout->dim;
    int64_t size = layout->units ? shape[d] / layout->units : 1, units = size ? box->length[d] / size : 0;
    bool next = layout->sharing == TSH_SHARED_NEXT && units > 0 && tshi_parts_holders(parts) > units;
    next = next && box->length[d + 1] > 0 && box->length[d + 1] <= INT64_MAX / units; /* more are of an empty tensor */
    tshi_layout_split(layout, shape[d], parts, index, &box->start[d], &box->length[d]);
    if (next && box->length[d] > 0) narrow_next(units, parts, index, &box->start[d + 1], &box->length[d + 1]);
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

static void check_part(unit_check *c, const tsh_layout *layout, tshi_parts parts, int64_t start, int64_t length) {
    const tsh_layout plain = TSH_SHARD(layout->dim);
    int64_t size = layout->units ? c->n / layout->units : 1;
    if (length == 0) return;
    c->cut = c->cut || start % size || length % size;
    if (tshi_parts_holders(parts) > length / size) c->apart = false;
    for (int i = 0; i < parts.count && !c->needed && !c->cut; i++) {
        int64_t at[2] = {start, start}, some[2] = {length, length};
        tshi_layout_split(layout, c->n, parts, i, &at[0], &some[0]);
        tshi_layout_split(&plain, c->n, parts, i, &at[1], &some[1]);
        c->needed = some[0] != some[1] || (some[0] && at[0] != at[1]);
    }
}

static void check_parts(unit_check *c, int step, int64_t start, int64_t length) {
    int a = c->sequence[step];
    tshi_parts parts = tshi_axis_parts(&c->mesh->axis[a]);
    if (a == c->axis) {
        check_part(c, &c->layout[a], parts, start, length);
    } else if (!tshi_layout_splits(c->layout[a], c->layout[c->axis].dim)) {
        check_parts(c, step + 1, start, length);
    } else {
        for (int i = 0; i < parts.count; i++) {
            int64_t at = start, some = length;
            tshi_layout_split(&c->layout[a], c->n, parts, i, &at, &some);
            check_parts(c, step + 1, at, some);
        }
    }
}

static tsh_layout simplified(const unit_check *c, tsh_layout layout) {
    if (!c->needed) layout.units = 0;
    if (!c->needed) layout.cuts = 0;
    if (!c->needed || c->apart) layout.blocks = 0;
    if (!c->needed || c->apart) layout.sharing = TSH_UNSHARED;
    return layout;
}

tsh_layout tshi_layout_plain(tsh_layout layout, int64_t n, tshi_parts parts) {
    unit_check c = {.n = n, .apart = true};
    if (!layout.cuts && (!layout.units || n == 0 || n % layout.units)) return layout;
    if (layout.cuts && !tshi_layout_cuts_fit(&layout, n, parts)) return layout;
    check_part(&c, &layout, parts, 0, n);
    return simplified(&c, layout);
}

/* Checks the units and blocks of one axis' layout, along a dim of size n. */
static tsh_status check_units(const tsh_mesh *mesh, int a, tsh_layout *layout, int64_t n) {
    if (layout->sharing && !layout->units) layout->units = n;
    int64_t units = layout->units, blocks = layout->blocks;
    bool fits = units >= 0 && blocks >= 0 && (!units || n % units == 0) && (!blocks || n % blocks == 0) &&
                (!blocks || (units && blocks % units == 0 && !layout->sharing));
    if (fits && (unsigned)layout->sharing <= TSH_SHARED_NEXT) return TSH_OK;
    return tshi_fail(TSH_ERR_SHAPE,
                     "%s along axis %s: units and blocks must divide the dim's %lld items, and blocks must be a "
                     "multiple of units that are not shared",
                     TSHI_LAYOUT_TEXT(*layout, &mesh->axis[a]), mesh->axis[a].name, (long long)n);
}

/* Checks the cut points of an axis, the `place`-th to split, along a dim of size n. */
static tsh_status check_cuts(const tsh_mesh *mesh, const int *sequence, int place, const tsh_layout *layout,
                             int64_t n) {
    int a = sequence[place];
    const tshi_axis *axis = &mesh->axis[a];
    const tsh_layout *l = &layout[a];
    const tshi_cuts *cuts = tshi_cuts_find(axis->cuts, l->cuts);
    if (!cuts) {
        return tshi_fail(
            TSH_ERR_ARGUMENT,
            "SHARD(%d) along axis %s: the world has no cut points %llx: tsh_cuts_create makes them, and the "
            "program or its last tensor may have released them",
            l->dim, axis->name, (unsigned long long)l->cuts);
    }
    if (l->units || l->blocks || l->sharing) {
        return tshi_fail(TSH_ERR_LAYOUT, "%s along axis %s: a dim has units or cut points, not both",
                         TSHI_LAYOUT_TEXT(*l, axis), axis->name);
    }
    if (!tshi_layout_cuts_fit(l, n, tshi_axis_parts(axis))) {
        return tshi_fail(TSH_ERR_SHAPE,
                         "%s along axis %s: the cut points make %d parts of %lld items; the axis has %d ranks, the dim "
                         "%lld items",
                         TSHI_LAYOUT_TEXT(*l, axis), axis->name, cuts->parts, (long long)cuts->at[cuts->parts],
                         axis->size, (long long)n);
    }
    for (int k = 0; k < place; k++) {
        if (!tshi_layout_reaches(layout[sequence[k]], l->dim)) continue;
        return tshi_fail(TSH_ERR_LAYOUT,
                         "%s along axis %s: axis %s splits the dim first; give the axis with cut points a lower split "
                         "order",
                         TSHI_LAYOUT_TEXT(*l, axis), axis->name, mesh->axis[sequence[k]].name);
    }
    return TSH_OK;
}

tsh_status tshi_units_resolve(const tsh_mesh *mesh, const tsh_shape *shape, const int *sequence,
                              tsh_layout layout[TSH_MAX_AXES]) {
    for (int i = 0; i < mesh->axes; i++) {
        int a = sequence[i];
        if (layout[a].kind == TSH_KIND_SHARD && layout[a].cuts) {
            int64_t n = shape->global[layout[a].dim];
            tsh_status status = check_cuts(mesh, sequence, i, layout, n);
            if (status != TSH_OK) return status;
            layout[a] = tshi_layout_plain(layout[a], n, tshi_axis_parts(&mesh->axis[a]));
            continue;
        }
        if (layout[a].kind != TSH_KIND_SHARD || (!layout[a].units && !layout[a].blocks && !layout[a].sharing)) continue;
        int64_t n = shape->global[layout[a].dim];
        if (layout[a].sharing == TSH_SHARED_NEXT && layout[a].dim + 1 == shape->ndim) {
            return tshi_fail(TSH_ERR_SHAPE, "%s along axis %s: the tensor has %d dims, and ranks split the next one",
                             TSHI_LAYOUT_TEXT(layout[a], &mesh->axis[a]), mesh->axis[a].name, shape->ndim);
        }
        tsh_status status = check_units(mesh, a, &layout[a], n);
        if (status != TSH_OK) return status;
        if (!layout[a].units || n == 0) continue;
        unit_check c = {mesh, layout, sequence, a, n, false, true, false};
        check_parts(&c, 0, 0, n);
        tsh_layout simple = simplified(&c, layout[a]);
        for (int k = 0; k < i; k++) {
            tsh_layout before = layout[sequence[k]];
            bool own = simple.sharing && simple.sharing != TSH_SHARED_NEXT && tshi_layout_splits(before, layout[a].dim);
            c.cut = c.cut || own ||
                    (simple.units && tshi_layout_reaches(before, layout[a].dim) &&
                     !tshi_layout_splits(before, layout[a].dim));
        }
        if (c.cut) {
            return tshi_fail(TSH_ERR_LAYOUT,
                             "%s along axis %s: another axis splits the dim first, and cuts its units or shares them; "
                             "give this axis a lower split order",
                             TSHI_LAYOUT_TEXT(layout[a], &mesh->axis[a]), mesh->axis[a].name);
        }
        layout[a] = simple;
    }
    return TSH_OK;
}
