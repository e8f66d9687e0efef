/* Layout rules: from the inputs' layouts to the row that moves the fewest bytes, one axis at a time. */
#include "autograd/tape.h"

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
    case TSHI_P: *out = TSH_PARTIAL; return true;
    case TSHI_L: *out = TSH_LOCAL; return true;
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

static double whole_bytes(const tsh_tensor *t) {
    double bytes = (double)tsh_dtype_size(t->dtype);
    for (int d = 0; d < t->shape.ndim; d++) bytes *= (double)t->shape.global[d];
    return bytes;
}

/* Bytes to bring the inputs to the row's layouts, or -1 when that cannot be. */
static double row_cost(const tshi_node *call, const tshi_rule *row, int axis, int bound) {
    double bytes = 0;
    tsh_layout need;
    for (int i = 0; i < call->inputs; i++) {
        const tsh_tensor *t = call->in[i];
        tshi_pattern pattern = input_pattern(row, i);
        if (!pattern_layout(pattern, t->shape.ndim, bound, call->attr.dim, &need)) return -1;
        if (tshi_layout_equal(t->layout[axis], need)) continue;
        if (pattern == TSHI_HAS_S0 || pattern == TSHI_HAS_S1) return -1;
        const tshi_transition *step = tshi_transition_find(t->layout[axis], need, true);
        if (!step) return -1;
        bytes += whole_bytes(t) * tshi_transition_cost(step, t->requires_grad);
    }
    return bytes;
}

static bool output_layout(const tshi_node *call, const tshi_rule *row, int axis, int bound, int out_ndim,
                          tsh_layout *out) {
    if (binds(row->out)) {
        int d = call->op->map_dim ? call->op->map_dim(call, axis, bound) : bound;
        *out = TSH_SHARD(d);
        return d >= 0 && d < out_ndim;
    }
    return pattern_layout(row->out, out_ndim, bound, call->attr.dim, out);
}

typedef struct choice {
    double bytes; /* -1: none yet */
    const tshi_rule *row;
    int bound; /* the dim that the row's BATCH, ANY and OTHER stand for */
    tsh_layout out;
} choice;

static void consider(const tshi_node *call, const tshi_rule *row, int axis, int bound, int out_ndim, choice *best) {
    choice c = {.bytes = row_cost(call, row, axis, bound), .row = row, .bound = bound};
    if (c.bytes < 0 || !output_layout(call, row, axis, bound, out_ndim, &c.out)) return;
    if (best->bytes < 0 || c.bytes < best->bytes) *best = c;
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

static tsh_status choose_axis(const tshi_node *call, int axis, int out_ndim, choice *best) {
    best->bytes = -1;
    for (const tshi_rule *row = call->op->rules; row->out != TSHI_END; row++) {
        if (!row_binds(row)) {
            consider(call, row, axis, -1, out_ndim, best);
            continue;
        }
        for (int i = 0; i < call->inputs; i++) {
            tsh_layout have = call->in[i]->layout[axis];
            if (have.kind == TSH_KIND_SHARD) consider(call, row, axis, have.dim, out_ndim, best);
        }
    }
    return best->bytes < 0 ? no_row(call, axis) : TSH_OK;
}

tsh_status tshi_rules_choose(const tshi_node *call, int out_ndim, tsh_layout need[][TSH_MAX_AXES],
                             tsh_layout out[TSH_MAX_AXES]) {
    for (int axis = 0; axis < call->in[0]->mesh->axes; axis++) {
        choice best;
        tsh_status status = choose_axis(call, axis, out_ndim, &best);
        if (status != TSH_OK) return status;
        for (int i = 0; i < call->inputs; i++) {
            pattern_layout(input_pattern(best.row, i), call->in[i]->shape.ndim, best.bound, call->attr.dim,
                           &need[i][axis]);
        }
        out[axis] = best.out;
    }
    return TSH_OK;
}
