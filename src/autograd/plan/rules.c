/* Layout rules: from the inputs' layouts to a row for each axis. Rows of different axes never exclude each other,
 * because a box exchange reaches all layouts at once. */
#include "autograd/plan/rules.h"

#include <string.h>

/* Sets of patterns, a bit each. */
#define BIT(p) (1u << (p))
enum {
    BINDING = BIT(TSH_AS_BATCH) | BIT(TSH_AS_STACK) | BIT(TSH_AS_ANY) | BIT(TSH_AS_OTHER),
    WHOLE = BIT(TSH_AS_R) | BIT(TSH_AS_P) | BIT(TSH_HAS_P) | BIT(TSH_AS_L) | BIT(TSH_AS_COPY)
};

static bool binds_dim(tsh_pattern p) {
    return BIT(p) & BINDING;
}

static bool is_split(tsh_pattern p) {
    return !(BIT(p) & (WHOLE | BIT(TSH_ROW_END)));
}

/* The patterns of the row's inputs. */
static unsigned patterns_of(const tsh_rule *row) {
    unsigned set = 0;
    for (int k = 0; k < TSH_ROW_INPUTS; k++) set |= BIT(row->in[k]);
    return set;
}

static tsh_pattern input_pattern(const tsh_rule *row, int i) {
    for (int k = 0; k < TSH_ROW_INPUTS && k <= i; k++) {
        if (row->in[k] == TSH_ROW_END) return k ? row->in[k - 1] : TSH_ROW_END;
    }
    return row->in[i < TSH_ROW_INPUTS ? i : TSH_ROW_INPUTS - 1];
}

static bool row_binds(const tsh_rule *row) {
    return patterns_of(row) & BINDING;
}

static bool row_splits(const tsh_rule *row) {
    return patterns_of(row) & ~(WHOLE | BIT(TSH_ROW_END));
}

static bool row_has(const tsh_rule *row, tsh_pattern p) {
    return patterns_of(row) & BIT(p);
}

/* The layout splits its dim by units or cut points of its own. */
static bool has_own_parts(const tsh_layout *layout) {
    return layout->kind == TSH_KIND_SHARD && (layout->units || layout->cuts);
}

/* SHARD(d), in the units or at the cut points of `bound`. */
static tsh_layout split_like(const tsh_layout *bound, int d) {
    return TSH_LAYOUT_(TSH_KIND_SHARD, d, 0, bound->sharing, bound->units, bound->blocks, bound->cuts);
}

/* The layout that a pattern requires of a tensor with ndim dims; false if that is impossible. `bound`: the row's SHARD
 * layout, with dim -1 if the row binds none. `have`: the tensor's layout, NULL for an output. */
static bool pattern_layout(tsh_pattern p, int ndim, const tsh_layout *have, const tsh_layout *bound, int call_dim,
                           tsh_layout *out) {
    int d = bound->dim;
    bool fits = true;
    switch (p) {
    case TSH_AS_R: *out = TSH_REPLICATED; return true;
    case TSH_AS_P:
    case TSH_HAS_P: *out = TSH_PARTIAL; return true;
    case TSH_AS_L:
    case TSH_AS_COPY: *out = TSH_LOCAL; return true;
    case TSH_AS_S0:
    case TSH_HAS_S0: d = 0; break;
    case TSH_AS_S1:
    case TSH_HAS_S1: d = 1; break;
    case TSH_HAS_OWN_S0: *out = have ? *have : TSH_LOCAL; return have && tshi_layout_splits(*have, 0);
    case TSH_AS_S2:
    case TSH_AS_S2_WHOLE: d = 2; break;
    case TSH_AS_LAST:
    case TSH_HAS_LAST: d = ndim - 1; break;
    case TSH_AS_ROWS: d = ndim - 2; break;
    case TSH_AS_DIM: d = call_dim; break;
    case TSH_AS_BATCH: fits = d < ndim - 1; break;
    case TSH_AS_STACK: fits = d < ndim - 2; break;
    case TSH_AS_OTHER: fits = d != call_dim; break;
    case TSH_AS_ANY: break;
    case TSH_ROW_END: return false;
    }
    *out = split_like(bound, d);
    if (p == TSH_AS_S2_WHOLE && bound->blocks) {
        out->blocks = 0;
        out->sharing = TSH_SHARED_OWN;
    }
    return fits && d >= 0 && d < ndim;
}

/* True when units and blocks divide the tensor's dim, and cut points end at its size. */
static bool units_fit(const tsh_shape *shape, const tsh_layout *layout, const tshi_axis *axis) {
    if (layout->kind != TSH_KIND_SHARD || !has_own_parts(layout)) return true;
    int64_t n = shape->global[layout->dim];
    if (layout->cuts) return tshi_layout_cuts_fit(layout, n, tshi_axis_parts(axis));
    return n % layout->units == 0 && (!layout->blocks || n % layout->blocks == 0);
}

/* True when the layouts are equal, or split this tensor's dim alike, judged by this axis only. */
static inline bool split_alike(const tsh_tensor *t, int axis, tsh_layout *need) {
    const tsh_layout *have = &t->layout[axis];
    if (have->kind == need->kind && have->kind != TSH_KIND_SHARD) return true;
    if (tshi_layout_alike(*have, *need)) return true;
    if (!has_own_parts(need)) return false;
    *need = tshi_layout_plain(*need, t->shape.global[need->dim], tshi_axis_parts(&t->mesh->axis[axis]));
    return tshi_layout_alike(*have, *need);
}

/* Some patterns are only for tensors with a certain layout. */
static bool pattern_takes(tsh_pattern p, int ndim, tsh_layout have) {
    if (p == TSH_HAS_LAST) return tshi_layout_splits(have, ndim - 1);
    if (p == TSH_HAS_S0) return tshi_layout_splits(have, 0);
    if (p == TSH_HAS_S1) return tshi_layout_splits(have, 1);
    if (p == TSH_HAS_P) return have.kind == TSH_KIND_PARTIAL;
    return p != TSH_AS_COPY || have.kind == TSH_KIND_REPLICATED;
}

/* Stands for a size that may differ between ranks. */
static const double usual_size = 1024;

/* Global bytes, with every size at least 1, so that an empty tensor uses the same rows. */
static double shape_bytes(tsh_dtype dtype, const tsh_shape *shape, bool differs) {
    double bytes = (double)tsh_dtype_size(dtype);
    for (int d = 0; d < shape->ndim; d++) {
        double size = differs ? usual_size : (double)shape->global[d];
        bytes *= size > 1 ? size : 1;
    }
    return bytes;
}

/* LOCAL tensors may have different sizes on ranks, which must choose the same rows. */
static bool is_local(const tsh_tensor *t) {
    return tshi_layouts_have_local(t->mesh->axes, t->layout);
}

static double whole_bytes(const tsh_tensor *t) {
    return shape_bytes(t->dtype, &t->shape, is_local(t));
}

static double output_bytes(const tsh_call *call, tsh_dtype dtype, const tsh_shape *shape) {
    bool differs = false;
    for (int i = 0; i < call->inputs; i++) differs = differs || is_local(call->in[i]);
    return shape_bytes(dtype, shape, differs);
}

/* --- the rows that one axis may take ------------------------------------------------------------------------------ */

/* How a row uses inputs that are SHARD along the axis. */
enum {
    USED_AS_THEY_ARE, /* the row takes at least one SHARD input in its present layout, or no input is SHARD */
    SPLIT_ANEW,       /* the row takes SHARD inputs, but split in another way */
    GATHERED          /* every rank repeats the same arithmetic */
};

typedef struct candidate {
    const tsh_rule *row;
    tsh_layout bound; /* as for pattern_layout */
    int split;        /* one of the above */
    double bytes;     /* of this axis' transitions, and of a sum that the row leaves open */
    bool stays;       /* every input is REPLICATED, and stays so */
    tsh_layout out;
} candidate;

/* True when tshi_want allows this layout of a parameter. */
static bool parameter_takes(const tshi_want *want, int i, tsh_layout have, tsh_layout need) {
    if (!want || !(want->parameters >> i & 1u)) return true;
    if (have.sharing == TSH_SHARED && need.sharing == TSH_SHARED_OWN) {
        need.sharing = TSH_SHARED;
        return tshi_layout_alike(have, need);
    }
    return have.kind == TSH_KIND_REPLICATED && (need.kind == TSH_KIND_LOCAL || need.kind == TSH_KIND_PARTIAL);
}

/* True when input i has the row's layout, or a transition leads to it, whose cost is added to *bytes. */
static bool input_cost(const tsh_call *call, const tshi_want *want, const candidate *c, int axis, int i,
                       double *bytes) {
    const tsh_tensor *t = call->in[i];
    tsh_layout have = t->layout[axis], need;
    tsh_pattern pattern = input_pattern(c->row, i);
    if (!pattern_layout(pattern, t->shape.ndim, &have, &c->bound, tshi_call_dim(call), &need)) return false;
    if (!pattern_takes(pattern, t->shape.ndim, have) || !units_fit(&t->shape, &need, &t->mesh->axis[axis]))
        return false;
    if (split_alike(t, axis, &need)) return true;
    if (!parameter_takes(want, i, have, need)) return false;
    const tshi_transition *step = tshi_transition_find(have, need, true);
    if (step) *bytes += whole_bytes(t) * tshi_transition_cost(step, tshi_differentiable(t));
    return step != NULL;
}

static bool output_layout(const tsh_call *call, candidate *c, int axis, const tsh_shape *out) {
    bool holds = true;
    if (!binds_dim(c->row->out)) {
        holds = pattern_layout(c->row->out, out->ndim, NULL, &c->bound, tshi_call_dim(call), &c->out);
    } else if (call->op->map_split) {
        c->out = c->bound;
        holds = call->op->map_split(call, axis, &c->out);
    } else {
        int d = call->op->map_dim ? call->op->map_dim(call, axis, c->bound.dim) : c->bound.dim;
        c->out = split_like(&c->bound, d);
        holds = d >= 0 && d < out->ndim;
    }
    return holds && units_fit(out, &c->out, &call->in[0]->mesh->axis[axis]);
}

static int split_of(const tsh_call *call, const candidate *c, int axis) {
    bool any = false, anew = false;
    for (int i = 0; i < call->inputs; i++) {
        const tsh_tensor *t = call->in[i];
        tsh_layout need;
        pattern_layout(input_pattern(c->row, i), t->shape.ndim, &t->layout[axis], &c->bound, tshi_call_dim(call),
                       &need);
        any = any || t->layout[axis].kind == TSH_KIND_SHARD;
        anew = anew || need.kind == TSH_KIND_SHARD;
        if (need.kind == TSH_KIND_SHARD && split_alike(t, axis, &need)) return USED_AS_THEY_ARE;
    }
    return !any ? USED_AS_THEY_ARE : anew ? SPLIT_ANEW : GATHERED;
}

/* A row that makes the output PARTIAL from inputs that are not costs a later all-reduce. */
static double open_sum_bytes(const tsh_call *call, const candidate *c, int axis, const tshi_goal *goal) {
    if (c->out.kind != TSH_KIND_PARTIAL) return 0;
    for (int i = 0; i < call->inputs; i++) {
        if (call->in[i]->layout[axis].kind == TSH_KIND_PARTIAL) return 0;
    }
    return output_bytes(call, goal->dtype, goal->shape) *
           tshi_transition_cost(tshi_transition_find(TSH_PARTIAL, TSH_REPLICATED, true), true);
}

/* Compares candidates by how they use sharded inputs, then by bytes; the first wins ties. */
static void consider_row(const tsh_call *call, const tsh_rule *row, const tsh_layout *bound, int axis,
                         const tshi_goal *goal, candidate *best) {
    candidate c = {.row = row, .bound = *bound};
    if (bound->dim >= 0 && call->op->row_holds && !call->op->row_holds(call, row, bound->dim)) return;
    for (int i = 0; i < call->inputs; i++) {
        if (!input_cost(call, goal->want, &c, axis, i, &c.bytes)) return;
    }
    if (!output_layout(call, &c, axis, goal->shape)) return;
    c.split = split_of(call, &c, axis);
    c.bytes += open_sum_bytes(call, &c, axis, goal);
    if (!best->row || (c.split != best->split ? c.split < best->split : c.bytes < best->bytes)) *best = c;
}

/* True when the row takes a LOCAL input: the output then differs between ranks, even in shared units. */
static bool takes_local(const tsh_call *call, const tsh_rule *row, int axis) {
    for (int i = 0; i < call->inputs; i++) {
        bool local = call->in[i]->layout[axis].kind == TSH_KIND_LOCAL;
        if (local && input_pattern(row, i) == TSH_AS_L) return true;
    }
    return false;
}

/* A row that maps each item separately keeps shared units. A row that reduces the dim would add a shared item once for
 * each rank, and beside a LOCAL input outputs differ: units are then unshared. Beside an input that each rank copies
 * for its own use, units become SHARED_OWN. */
static void settle_sharing(const tsh_call *call, const tsh_rule *row, int axis, tsh_layout *bound) {
    if (!is_split(row->out) || row_has(row, TSH_AS_DIM) || takes_local(call, row, axis)) {
        bound->units = 0;
        bound->sharing = TSH_UNSHARED;
    } else if (row_has(row, TSH_AS_L) || row_has(row, TSH_AS_COPY)) {
        bound->sharing = TSH_SHARED_OWN;
    }
}

/* The size of dim 2 of the input that has this pattern, or 0. */
static int64_t items_of(const tsh_call *call, const tsh_rule *row, tsh_pattern p) {
    for (int i = 0; i < call->inputs; i++) {
        const tsh_shape *s = &call->in[i]->shape;
        if (input_pattern(row, i) == p && s->ndim > 2) return s->global[2];
    }
    return 0;
}

/* Sets the units of a row with S2_WHOLE. Units of one block are split without sharing. */
static void settle_whole(const tsh_call *call, const tsh_rule *row, tsh_layout *bound) {
    bound->sharing = TSH_UNSHARED;
    bound->cuts = 0;
    if (!bound->units) bound->units = items_of(call, row, TSH_AS_S2_WHOLE);
    if (!bound->blocks && bound->units) bound->blocks = items_of(call, row, TSH_AS_S2);
    if (bound->blocks == bound->units) bound->blocks = 0;
}

/* The split of input i, if its pattern binds dim d, or for d < 0 names a dim; false for other inputs. */
static bool input_split(const tsh_call *call, const tsh_rule *row, int axis, int d, int i, tsh_layout *split) {
    tsh_layout have = call->in[i]->layout[axis], named;
    tsh_pattern p = input_pattern(row, i);
    if (have.kind != TSH_KIND_SHARD || !is_split(p) || binds_dim(p) != (d >= 0) || p == TSH_HAS_OWN_S0) return false;
    if (have.sharing == TSH_SHARED_NEXT) return false; /* its parts are of two dims, which only HAS_OWN_S0 takes */
    if (d < 0 && !pattern_layout(p, call->in[i]->shape.ndim, &have, &TSH_SHARD(-1), tshi_call_dim(call), &named))
        return false;
    if (have.dim != (d < 0 ? named.dim : d)) return false;
    *split = split_like(&have, d);
    if (split->sharing) settle_sharing(call, row, axis, split);
    return true;
}

static bool is_split_before(const tsh_call *call, const tsh_rule *row, int axis, int d, int i, tsh_layout split) {
    tsh_layout other;
    for (int k = 0; k < i; k++) {
        if (input_split(call, row, axis, d, k, &other) && tshi_layout_alike(other, split)) return true;
    }
    return false;
}

/* Bits of the dims along which inputs with a binding pattern are split. */
static unsigned dims_to_bind(const tsh_call *call, const tsh_rule *row, int axis) {
    unsigned dims = 0;
    for (int i = 0; i < call->inputs; i++) {
        tsh_layout have = call->in[i]->layout[axis];
        if (have.kind == TSH_KIND_SHARD && binds_dim(input_pattern(row, i))) dims |= 1u << have.dim;
    }
    return dims;
}

/* True when every input is REPLICATED, as the row wants: no transitions, and no costs to compare. */
static bool takes_replicated(const tsh_call *call, const tsh_rule *row, int axis) {
    for (int i = 0; i < call->inputs; i++) {
        if (call->in[i]->layout[axis].kind != TSH_KIND_REPLICATED || input_pattern(row, i) != TSH_AS_R) return false;
    }
    return true;
}

/* Considers the row for each different split of its inputs, in dim or units; for d < 0 also without any. */
static void consider_splits(const tsh_call *call, const tsh_rule *row, int axis, int d, const tshi_goal *goal,
                            candidate *best) {
    bool any = false, whole = row_has(row, TSH_AS_S2_WHOLE);
    tsh_layout split;
    for (int i = 0; i < call->inputs; i++) {
        if (!input_split(call, row, axis, d, i, &split) || is_split_before(call, row, axis, d, i, split)) continue;
        any = true;
        if (whole) settle_whole(call, row, &split);
        consider_row(call, row, &split, axis, goal, best);
    }
    if (any || d >= 0) return;
    split = TSH_SHARD(-1);
    if (whole) settle_whole(call, row, &split);
    consider_row(call, row, &split, axis, goal, best);
}

/* Rows that find_best leaves out. */
typedef enum avoided { AVOID_NONE, AVOID_SHARED_UNITS, AVOID_SPLITS } avoided;

/* Stops when no later row can be better. best->row stays NULL if no row applies. */
static void find_best(const tsh_call *call, int axis, const tshi_goal *goal, avoided avoid, candidate *best) {
    for (const tsh_rule *row = call->op->rules; row->out != TSH_ROW_END; row++) {
        const tsh_layout none = TSH_SHARD(-1);
        if (row->in[0] == TSH_AS_R && row->out == TSH_AS_R && !row_splits(row)) {
            if (takes_replicated(call, row, axis)) {
                *best = (candidate){.row = row, .bound = none, .stays = true, .out = TSH_REPLICATED};
                return;
            }
            consider_row(call, row, &none, axis, goal, best);
            if (best->row && best->split == USED_AS_THEY_ARE && best->bytes <= 0) return;
            continue;
        }
        bool bound = row_binds(row);
        if (avoid == AVOID_SHARED_UNITS && row_has(row, TSH_AS_S2_WHOLE)) continue;
        if (avoid == AVOID_SPLITS && row_splits(row)) continue;
        unsigned dims = bound ? dims_to_bind(call, row, axis) : 1u;
        for (int d = 0; dims >> d; d++) {
            if (dims >> d & 1u) consider_splits(call, row, axis, bound ? d : -1, goal, best);
        }
        if (best->row && best->split == USED_AS_THEY_ARE && best->bytes <= 0) return;
    }
}

static tsh_status no_row(const tsh_call *call, int axis) {
    char text[TSHI_MESSAGE_SIZE] = "";
    for (int i = 0; i < call->inputs; i++) {
        tshi_append(text, sizeof text, "%s%s", i ? " with " : "", TSHI_TENSOR_TEXT(call->in[i]));
    }
    return tshi_fail(TSH_ERR_LAYOUT, "no layout rule along axis %s for %s", call->in[0]->mesh->axis[axis].name, text);
}

/* --- the rows for all axes -------------------------------------------------------------------------------------- */

static bool has_split_order(const tsh_tensor *t) {
    for (int a = 0; a < t->mesh->axes; a++) {
        if (t->layout[a].order) return true;
    }
    return false;
}

/* The tensor whose split order all tensors of the call get: a parameter, else the first input, with a split order other
 * than that of the axes; or NULL. */
static const tsh_tensor *split_order_of(const tsh_call *call, const tshi_want *want) {
    const tsh_tensor *found = NULL;
    for (int i = call->inputs - 1; i >= 0; i--) {
        bool parameter = want && want->parameters >> i & 1u;
        if (!has_split_order(call->in[i])) continue;
        if (parameter) return call->in[i];
        found = call->in[i];
    }
    return found;
}

static void set_split_order(const tshi_rule_rows *rows, int axes, tsh_layout layout[TSH_MAX_AXES]) {
    for (int i = 0; rows->ordered && i < axes; i++) layout[rows->sequence[i]].order = i;
    if (rows->ordered) tshi_layouts_normalize(axes, layout);
}

tsh_status tshi_rules_need(const tsh_call *call, const tshi_rule_rows *rows, int i, tsh_layout need[TSH_MAX_AXES]) {
    const tsh_tensor *t = call->in[i];
    bool units = false;
    for (int a = 0; a < t->mesh->axes; a++) {
        pattern_layout(input_pattern(rows->row[a], i), t->shape.ndim, &t->layout[a], &rows->bound[a],
                       tshi_call_dim(call), &need[a]);
        units = units || has_own_parts(&need[a]);
    }
    set_split_order(rows, t->mesh->axes, need);
    if (!units) return TSH_OK;
    tsh_shape shape = t->shape;
    return tshi_shape_resolve(t->mesh, &shape, need);
}

/* True when no axis cuts the units of another, or splits before its cut points, in any tensor of the call. */
static bool units_hold(const tsh_call *call, const tshi_goal *goal, const tshi_rule_rows *rows) {
    tsh_layout layout[TSH_MAX_AXES];
    tsh_shape shape = *goal->shape;
    memcpy(layout, rows->out, sizeof layout);
    bool hold = tshi_shape_resolve(call->in[0]->mesh, &shape, layout) == TSH_OK;
    for (int i = 0; hold && i < call->inputs; i++) hold = tshi_rules_need(call, rows, i, layout) == TSH_OK;
    return hold;
}

static void take_candidate(const candidate *c, int axis, tshi_rule_rows *rows) {
    rows->row[axis] = c->row;
    rows->bound[axis] = c->bound;
    rows->out[axis] = c->out;
}

/* Makes all axes that split heads use the same units, which are whole in each input: a rank that has some blocks of a
 * unit after one axis must find the same unit after the next. */
static void settle_heads(const tsh_call *call, const tshi_goal *goal, tshi_rule_rows *rows) {
    int axes = call->in[0]->mesh->axes, last = -1;
    bool differ = false;
    for (int a = 0; a < axes; a++) {
        if (!row_has(rows->row[a], TSH_AS_S2_WHOLE)) continue;
        differ = differ || (last >= 0 && !tshi_layout_alike(rows->bound[last], rows->bound[a]));
        last = a;
    }
    for (int a = 0; differ && a < axes; a++) {
        candidate c = {.row = rows->row[a], .bound = TSH_SHARD(-1)};
        if (!row_has(c.row, TSH_AS_S2_WHOLE)) continue;
        settle_whole(call, c.row, &c.bound);
        output_layout(call, &c, a, goal->shape);
        take_candidate(&c, a, rows);
    }
}

/* Resolves rows of several axes that split a dim in incompatible units, or beside cut points: drops these if the rows
 * still apply, else takes other rows, and at last rows that gather. */
static void settle_units(const tsh_call *call, const tshi_goal *goal, tshi_rule_rows *rows) {
    int axes = call->in[0]->mesh->axes;
    bool units = false;
    for (int a = 0; a < axes; a++) units = units || has_own_parts(&rows->bound[a]);
    if (!units || axes == 1) return;
    settle_heads(call, goal, rows);
    set_split_order(rows, axes, rows->out);
    if (units_hold(call, goal, rows)) return;
    for (int a = 0; a < axes; a++) {
        candidate other = {0};
        if (row_has(rows->row[a], TSH_AS_S2_WHOLE)) {
            find_best(call, a, goal, AVOID_SHARED_UNITS, &other);
            if (other.row) take_candidate(&other, a, rows);
        } else if (!call->op->map_split) {
            rows->bound[a] = TSH_SHARD(rows->bound[a].dim);
            if (rows->out[a].kind == TSH_KIND_SHARD)
                rows->out[a] = TSH_SHARD_ORDER(rows->out[a].dim, rows->out[a].order);
        }
    }
    set_split_order(rows, axes, rows->out);
    for (int a = axes - 1; a >= 0 && !units_hold(call, goal, rows); a--) {
        candidate whole = {0};
        if (has_own_parts(&rows->bound[a])) find_best(call, a, goal, AVOID_SPLITS, &whole);
        if (whole.row) take_candidate(&whole, a, rows);
    }
}

tsh_status tshi_rules_choose(const tsh_call *call, const tshi_goal *goal, tshi_rule_rows *rows) {
    int axes = call->in[0]->mesh->axes;
    rows->ordered = false;
    rows->stay = true;
    for (int a = 0; a < axes; a++) {
        candidate best = {0};
        find_best(call, a, goal, AVOID_NONE, &best);
        if (!best.row) return no_row(call, a);
        take_candidate(&best, a, rows);
        rows->stay = rows->stay && best.stays;
    }
    if (rows->stay) return TSH_OK;
    const tsh_tensor *ordered = split_order_of(call, goal->want);
    rows->ordered = ordered != NULL;
    if (ordered) tshi_split_sequence(axes, ordered->layout, rows->sequence);
    set_split_order(rows, axes, rows->out);
    settle_units(call, goal, rows);
    return TSH_OK;
}
