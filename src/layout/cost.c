/* Costs of the steps of routes. */
#include "layout/box.h"

#include <string.h>

/* Elements of this rank's part. */
static double part(const tsh_mesh *mesh, const tsh_shape *shape, const tsh_layout layout[TSH_MAX_AXES]) {
    tsh_layout resolved[TSH_MAX_AXES];
    tsh_shape own = *shape;
    double n = tshi_mesh_has_me(mesh) ? 1 : 0;
    memcpy(resolved, layout, sizeof resolved);
    if (tshi_shape_resolve(mesh, &own, resolved) != TSH_OK) return 0;
    for (int d = 0; d < shape->ndim; d++) n *= (double)own.local[d];
    return n;
}

static tshi_cost exchange_cost(const tsh_mesh *from, const tsh_mesh *to, const tsh_shape *shape,
                               const tsh_layout *layout, const tsh_layout *wanted) {
    tshi_exchange e = {
        .ndim = shape->ndim, .from = tshi_mesh_placement(from, layout), .to = tshi_mesh_placement(to, wanted)};
    const tsh_mesh *mine = tshi_mesh_has_me(from) ? from : to;
    int rank = tshi_mesh_has_me(mine) ? mine->ranks[mine->member] : -1;
    tshi_cost cost = {.name = "exchange"};
    memcpy(e.shape, shape->global, sizeof e.shape);
    tshi_exchange second = e;
    if (tshi_exchange_reduces_first(&e, &second.from)) {
        e.to = second.from;
        cost.elements = (double)tshi_exchange_sent(&second, rank);
    }
    cost.elements += (double)tshi_exchange_sent(&e, rank);
    return cost;
}

/* The elements sent for the gradient, where PARTIAL counts as REPLICATED on both sides. */
static double exchanged_back(const tsh_mesh *from, const tsh_mesh *to, const tsh_shape *shape, const tsh_layout *layout,
                             const tsh_layout *wanted) {
    tsh_layout out[TSH_MAX_AXES], in[TSH_MAX_AXES];
    for (int a = 0; a < TSH_MAX_AXES; a++) {
        out[a] = wanted[a].kind == TSH_KIND_PARTIAL ? TSH_REPLICATED : wanted[a];
        in[a] = layout[a].kind == TSH_KIND_PARTIAL ? TSH_REPLICATED : layout[a];
    }
    return exchange_cost(to, from, shape, out, in).elements;
}

static const char *const move_names[TSHI_MOVE_COUNT] = {
    "no data moves", "all_reduce", "all_gather", "slice", "reduce_scatter", "all_to_all", "zero-pad", "the first keeps",
};

/* All-to-alls between such layouts send what their boxes say. */
static bool has_uneven_boxes(tsh_layout layout) {
    return layout.units || layout.cuts;
}

tshi_cost tshi_route_step_cost(const tsh_mesh *from, const tsh_mesh *to, const tsh_shape *shape,
                               const tsh_layout layout[TSH_MAX_AXES], const tshi_route_step *step) {
    double back = step->axis < 0 ? exchanged_back(from, to, shape, layout, step->to) : 0;
    if (step->axis < 0)
        return (tshi_cost){"exchange", exchange_cost(from, to, shape, layout, step->to).elements, "exchange", back};
    const tshi_transition *t = tshi_transition_find(layout[step->axis], step->to[step->axis], false);
    double p = from->axis[step->axis].size, before = part(from, shape, layout), after = part(from, shape, step->to);
    double whole = before > after ? before : after; /* for an all_to_all both are equal */
    double sent = tshi_transition_cost(t, false) * whole * (p - 1) / p;
    if (t->forward == TSHI_MOVE_ALL_TO_ALL &&
        (has_uneven_boxes(layout[step->axis]) || has_uneven_boxes(step->to[step->axis]))) {
        sent = exchange_cost(from, to, shape, layout, step->to).elements;
    } else if (t->forward == TSHI_MOVE_ALL_TO_ALL) {
        sent = before * (p - 1) / p;
    }
    back = tshi_move_cost[t->backward] * whole * (p - 1) / p;
    if (t->backward == TSHI_MOVE_ALL_TO_ALL) back = exchanged_back(from, to, shape, layout, step->to);
    return (tshi_cost){move_names[t->forward], sent, move_names[t->backward], back};
}
