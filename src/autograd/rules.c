/* Layout rules: from the inputs' layouts to a row for each axis, all axes together. */
#include "autograd/tape.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static bool binds(tshi_pattern p) {
    return p == TSHI_BATCH || p == TSHI_ANY || p == TSHI_OTHER;
}

static tshi_pattern input_pattern(const tshi_rule *row, int i) {
    for (int k = 0; k < 4 && k <= i; k++) {
        if (row->in[k] == TSHI_END) return k ? row->in[k - 1] : TSHI_END;
    }
    return row->in[i < 4 ? i : 3];
}

static bool row_binds(const tshi_rule *row) {
    for (int k = 0; k < 4; k++) {
        if (binds(row->in[k])) return true;
    }
    return false;
}

/* The layout that a pattern asks of a tensor of ndim dims; false when it cannot be. */
static bool pattern_layout(tshi_pattern p, int ndim, int bound, int attr_dim, tsh_layout *out) {
    switch (p) {
    case TSHI_R: *out = TSH_REPLICATED; return true;
    case TSHI_P:
    case TSHI_HAS_P: *out = TSH_PARTIAL; return true;
    case TSHI_L:
    case TSHI_COPY: *out = TSH_LOCAL; return true;
    case TSHI_S0:
    case TSHI_HAS_S0: *out = TSH_SHARD(0); break;
    case TSHI_S1:
    case TSHI_HAS_S1: *out = TSH_SHARD(1); break;
    case TSHI_LAST: *out = TSH_SHARD(ndim - 1); break;
    case TSHI_DIM: *out = TSH_SHARD(attr_dim); break;
    case TSHI_BATCH: *out = TSH_SHARD(bound); return bound < ndim - 1;
    case TSHI_OTHER: *out = TSH_SHARD(bound); return bound < ndim && bound != attr_dim;
    case TSHI_ANY: *out = TSH_SHARD(bound); break;
    case TSHI_END: return false;
    }
    return out->dim >= 0 && out->dim < ndim;
}

/* Some patterns are only for tensors of a certain layout. */
static bool pattern_takes(tshi_pattern p, tsh_layout have) {
    if (p == TSHI_HAS_S0) return tshi_layout_equal(have, TSH_SHARD(0));
    if (p == TSHI_HAS_S1) return tshi_layout_equal(have, TSH_SHARD(1));
    if (p == TSHI_HAS_P) return have.kind == TSH_KIND_PARTIAL;
    return p != TSHI_COPY || have.kind == TSH_KIND_REPLICATED;
}

/* Bytes of the whole, every size taken as at least 1: an empty tensor takes the rows of one that is not. */
static double whole_bytes(const tsh_tensor *t) {
    double bytes = (double)tsh_dtype_size(t->dtype);
    for (int d = 0; d < t->shape.ndim; d++) bytes *= t->shape.global[d] > 1 ? (double)t->shape.global[d] : 1;
    return bytes;
}

/* --- the rows that one axis may take ------------------------------------------------------------------------------ */

typedef struct candidate {
    const tshi_rule *row;
    int bound;
    bool repeats; /* an input is SHARD along the axis, and the row takes no input as SHARD */
    double bytes; /* of the axis' own transitions */
    tsh_layout out;
} candidate;

/* Room for each row of the longest table with every dim bound. */
#define MAX_CANDIDATES 48

typedef struct candidates {
    int count;
    candidate item[MAX_CANDIDATES];
} candidates;

/* Whether input i may come to what the row asks of it, and at what cost. */
static bool input_cost(const tshi_node *call, const candidate *c, int axis, int i, double *bytes) {
    const tsh_tensor *t = call->in[i];
    tsh_layout have = t->layout[axis], need;
    tshi_pattern pattern = input_pattern(c->row, i);
    if (!pattern_layout(pattern, t->shape.ndim, c->bound, call->attr.dim, &need)) return false;
    if (!pattern_takes(pattern, have)) return false;
    if (tshi_layout_equal(have, need)) return true;
    const tshi_transition *step = tshi_transition_find(have, need, true);
    if (step) *bytes += whole_bytes(t) * tshi_transition_cost(step, tshi_differentiable(t));
    return step != NULL;
}

static bool output_layout(const tshi_node *call, candidate *c, int axis, int out_ndim) {
    if (binds(c->row->out)) {
        int d = call->op->map_dim ? call->op->map_dim(call, axis, c->bound) : c->bound;
        c->out = TSH_SHARD(d);
        return d >= 0 && d < out_ndim;
    }
    return pattern_layout(c->row->out, out_ndim, c->bound, call->attr.dim, &c->out);
}

static void add_candidate(const tshi_node *call, const tshi_rule *row, int bound, int axis, int out_ndim,
                          candidates *all) {
    candidate c = {.row = row, .bound = bound};
    bool split = false, stays_split = false;
    for (int i = 0; i < call->inputs; i++) {
        tsh_layout need;
        if (!input_cost(call, &c, axis, i, &c.bytes)) return;
        pattern_layout(input_pattern(row, i), call->in[i]->shape.ndim, bound, call->attr.dim, &need);
        split = split || call->in[i]->layout[axis].kind == TSH_KIND_SHARD;
        stays_split = stays_split || need.kind == TSH_KIND_SHARD;
    }
    c.repeats = split && !stays_split;
    if (output_layout(call, &c, axis, out_ndim) && all->count < MAX_CANDIDATES) all->item[all->count++] = c;
}

/* Dims along which an input whose pattern binds is split already, a bit each. */
static unsigned dims_to_bind(const tshi_node *call, const tshi_rule *row, int axis) {
    unsigned dims = 0;
    for (int i = 0; i < call->inputs; i++) {
        tsh_layout have = call->in[i]->layout[axis];
        if (have.kind == TSH_KIND_SHARD && binds(input_pattern(row, i))) dims |= 1u << have.dim;
    }
    return dims;
}

static void find_candidates(const tshi_node *call, int axis, int out_ndim, candidates *all) {
    all->count = 0;
    for (const tshi_rule *row = call->op->rules; row->out != TSHI_END; row++) {
        if (!row_binds(row)) {
            add_candidate(call, row, -1, axis, out_ndim, all);
            continue;
        }
        unsigned dims = dims_to_bind(call, row, axis);
        for (int d = 0; d < TSH_MAX_DIMS; d++) {
            if (dims >> d & 1u) add_candidate(call, row, d, axis, out_ndim, all);
        }
    }
}

static tsh_status no_row(const tshi_node *call, int axis) {
    char text[TSHI_MESSAGE_SIZE], one[160];
    size_t used = 0;
    text[0] = '\0';
    for (int i = 0; i < call->inputs && used < sizeof text; i++) {
        int n = snprintf(text + used, sizeof text - used, "%s%s", i ? " with " : "",
                         tsh_tensor_describe(call->in[i], one, sizeof one));
        used += n > 0 ? (size_t)n : 0;
    }
    return tshi_fail(TSH_ERR_LAYOUT, "no layout rule along axis %s for %s", call->in[0]->mesh->axis[axis].name, text);
}

/* --- the choice for all axes -------------------------------------------------------------------------------------- */

void tshi_choice_need(const tshi_node *call, const tshi_choice *choice, int i, tsh_layout need[TSH_MAX_AXES]) {
    const tsh_tensor *t = call->in[i];
    for (int a = 0; a < t->mesh->axes; a++) {
        pattern_layout(input_pattern(choice->row[a], i), t->shape.ndim, choice->bound[a], call->attr.dim, &need[a]);
    }
}

/* What is compared: axes on which work is repeated, then bytes. */
typedef struct price {
    int repeats;
    double bytes;
} price;

static bool cheaper(price a, price b) {
    return a.repeats != b.repeats ? a.repeats < b.repeats : a.bytes < b.bytes;
}

static price own_price(const tshi_node *call, candidate *const pick[]) {
    price sum = {0, 0};
    for (int a = 0; a < call->in[0]->mesh->axes; a++) {
        sum.repeats += pick[a]->repeats;
        sum.bytes += pick[a]->bytes;
    }
    return sum;
}

static void choice_of(const tshi_node *call, candidate *const pick[], tshi_choice *choice) {
    for (int a = 0; a < call->in[0]->mesh->axes; a++) {
        choice->row[a] = pick[a]->row;
        choice->bound[a] = pick[a]->bound;
        choice->out[a] = pick[a]->out;
    }
}

/* The bytes of the inputs' plans, where axes may be in each other's way; false where an input has no plan. */
static bool planned_bytes(const tshi_node *call, const tshi_choice *choice, double *bytes) {
    *bytes = 0;
    for (int i = 0; i < call->inputs; i++) {
        tsh_layout need[TSH_MAX_AXES];
        tshi_plan plan;
        tshi_choice_need(call, choice, i, need);
        if (!tshi_plan_make(call->in[i], need, true, &plan)) return false;
        *bytes += whole_bytes(call->in[i]) * plan.cost;
    }
    return true;
}

static bool is_simple(const tshi_node *call, const tshi_choice *choice) {
    for (int i = 0; i < call->inputs; i++) {
        tsh_layout need[TSH_MAX_AXES];
        tshi_choice_need(call, choice, i, need);
        if (!tshi_plan_is_simple(call->in[i], need)) return false;
    }
    return true;
}

/* Each axis' cheapest candidate for itself. */
static void pick_cheapest(const tshi_node *call, candidates all[], candidate *pick[]) {
    for (int a = 0; a < call->in[0]->mesh->axes; a++) {
        pick[a] = &all[a].item[0];
        for (int k = 1; k < all[a].count; k++) {
            candidate *c = &all[a].item[k];
            if (cheaper((price){c->repeats, c->bytes}, (price){pick[a]->repeats, pick[a]->bytes})) pick[a] = c;
        }
    }
}

/* The next combination of candidates, the last axis running fastest; false after the last. */
static bool next_pick(const tshi_node *call, candidates all[], candidate *pick[]) {
    for (int a = call->in[0]->mesh->axes - 1; a >= 0; a--) {
        if (++pick[a] < all[a].item + all[a].count) return true;
        pick[a] = all[a].item;
    }
    return false;
}

/* Every combination; what the axes cost by themselves is the least that one can cost. */
static bool choose_together(const tshi_node *call, candidates all[], tshi_choice *choice) {
    candidate *pick[TSH_MAX_AXES];
    price best = {TSH_MAX_AXES + 1, INFINITY};
    for (int a = 0; a < call->in[0]->mesh->axes; a++) pick[a] = all[a].item;
    do {
        tshi_choice trial;
        price p = own_price(call, pick);
        if (!cheaper(p, best)) continue;
        choice_of(call, pick, &trial);
        if (!planned_bytes(call, &trial, &p.bytes) || !cheaper(p, best)) continue;
        best = p;
        *choice = trial;
    } while (next_pick(call, all, pick));
    return best.repeats <= TSH_MAX_AXES;
}

tsh_status tshi_rules_choose(const tshi_node *call, int out_ndim, tshi_choice *choice) {
    candidates all[TSH_MAX_AXES];
    candidate *pick[TSH_MAX_AXES];
    for (int a = 0; a < call->in[0]->mesh->axes; a++) {
        find_candidates(call, a, out_ndim, &all[a]);
        if (all[a].count == 0) return no_row(call, a);
    }
    pick_cheapest(call, all, pick);
    choice_of(call, pick, choice);
    if (is_simple(call, choice) || choose_together(call, all, choice)) return TSH_OK;
    return no_row(call, 0);
}
