/* Routes: the steps from a tensor's layouts to others, either transitions along one axis each, which are native
 * collectives, or one box exchange over all axes. */
#include "layout/layout.h"

#include <string.h>

static void add_step(tshi_route *route, int axis, const tsh_layout to[TSH_MAX_AXES]) {
    tshi_route_step *step = &route->step[route->steps++];
    step->axis = axis;
    memcpy(step->to, to, sizeof step->to);
}

/* --- one axis ----------------------------------------------------------------------------------------------------- */

static bool shares_dim(const tsh_layout *layout, int a, int b) {
    return tshi_layouts_meet(layout[a], layout[b]);
}

/* The axes other than a split the same dims in the same order before and after. */
static bool others_stay(int axes, const tsh_layout *from, const tsh_layout *to, int a) {
    for (int b = 0; b < axes; b++) {
        if (b == a) continue;
        if (!tshi_layout_alike(from[b], to[b])) return false;
        for (int c = 0; c < b; c++) {
            if (c == a || !shares_dim(from, b, c)) continue;
            if (tshi_splits_before(from, b, c) != tshi_splits_before(to, b, c)) return false;
        }
    }
    return true;
}

/* No other axis splits the parts that axis a makes of its dim. */
static bool splits_last(int axes, const tsh_layout *layout, int a) {
    for (int b = 0; b < axes; b++) {
        if (b != a && shares_dim(layout, a, b) && tshi_splits_before(layout, a, b)) return false;
    }
    return true;
}

/* False where axis a shares units of its dim between ranks, and another axis splits the dim before it. */
static bool shares_whole_units(int axes, const tsh_layout *layout, int a) {
    for (int b = 0;
         b < axes && layout[a].kind == TSH_KIND_SHARD && layout[a].sharing && layout[a].sharing != TSH_SHARED_NEXT;
         b++) {
        if (b != a && shares_dim(layout, a, b) && tshi_splits_before(layout, b, a)) return false;
    }
    return true;
}

/* One transition along axis a is enough. */
static bool is_transition(int axes, const tsh_layout *from, const tsh_layout *to, int a) {
    return others_stay(axes, from, to, a) && splits_last(axes, from, a) && splits_last(axes, to, a) &&
           shares_whole_units(axes, to, a) && tshi_transition_find(from[a], to[a], false);
}

/* --- several axes ------------------------------------------------------------------------------------------------- */

/* Copies `now` to `next`, with another layout along axis a. */
static void with_axis(int axes, const tsh_layout *now, int a, tsh_layout layout, tsh_layout next[TSH_MAX_AXES]) {
    memcpy(next, now, sizeof *next * TSH_MAX_AXES);
    next[a] = layout;
    tshi_layouts_normalize(axes, next);
}

/* Adds transitions while any axis has a possible one. True if they reach the wanted layouts. */
static bool add_transitions(const tshi_change *c, tshi_route *route, tsh_layout now[TSH_MAX_AXES]) {
    int axes = c->mesh->axes;
    for (int a = 0; a < axes && !tshi_layouts_equal(axes, now, c->to); a++) {
        tsh_layout next[TSH_MAX_AXES];
        if (tshi_layout_alike(now[a], c->to[a])) continue;
        with_axis(axes, now, a, c->to[a], next);
        if (!is_transition(axes, now, next, a)) continue;
        add_step(route, a, next);
        memcpy(now, next, sizeof *now * TSH_MAX_AXES);
        a = -1;
    }
    return tshi_layouts_equal(axes, now, c->to);
}

/* The number of steps that gather or exchange parts between ranks. One box exchange replaces several of them, and sends
 * each value straight to where it is wanted. */
static int moving_steps(const tshi_change *c, const tshi_route *route) {
    const tsh_layout *now = c->from;
    int n = 0;
    for (int i = 0; i < route->steps; i++) {
        int a = route->step[i].axis;
        const tshi_transition *t = tshi_transition_find(now[a], route->step[i].to[a], false);
        bool moves = t->forward == TSHI_MOVE_ALL_GATHER || t->forward == TSHI_MOVE_ALL_TO_ALL;
        if (moves && c->mesh->axis[a].size > 1) n++;
        now = route->step[i].to;
    }
    return n;
}

/* Makes the axis REPLICATED. */
static bool add_gather(const tshi_change *c, tshi_route *route, tsh_layout now[TSH_MAX_AXES], int a) {
    tsh_layout next[TSH_MAX_AXES];
    if (now[a].kind == TSH_KIND_REPLICATED) return true;
    with_axis(c->mesh->axes, now, a, TSH_REPLICATED, next);
    if (!is_transition(c->mesh->axes, now, next, a)) return false;
    add_step(route, a, next);
    memcpy(now, next, sizeof *now * TSH_MAX_AXES);
    return true;
}

/* An exchange cannot contain a LOCAL axis. Where other axes block each other beside a LOCAL one, all axes that shard or
 * change become REPLICATED, the last to split first, and then take their new layouts in split order. */
static bool add_detour(const tshi_change *c, tshi_route *route, tsh_layout now[TSH_MAX_AXES]) {
    int axes = c->mesh->axes, sequence[TSH_MAX_AXES];
    tshi_split_sequence(axes, now, sequence);
    for (int i = axes - 1; i >= 0; i--) {
        int a = sequence[i];
        bool moves = now[a].kind == TSH_KIND_SHARD || !tshi_layout_alike(now[a], c->to[a]);
        if (moves && !add_gather(c, route, now, a)) return false;
    }
    tshi_split_sequence(axes, c->to, sequence);
    for (int i = 0; i < axes; i++) {
        int a = sequence[i];
        tsh_layout next[TSH_MAX_AXES];
        if (tshi_layout_alike(now[a], c->to[a])) continue;
        with_axis(axes, now, a, c->to[a], next);
        for (int b = 0; b < axes; b++) next[b].order = next[b].kind == TSH_KIND_SHARD ? c->to[b].order : 0;
        tshi_layouts_normalize(axes, next);
        if (!is_transition(axes, now, next, a)) return false;
        add_step(route, a, next);
        memcpy(now, next, sizeof next);
    }
    return tshi_layouts_equal(axes, now, c->to);
}

static bool leaves_local(const tshi_change *c) {
    for (int a = 0; a < c->mesh->axes; a++) {
        bool changes = c->from[a].kind == TSH_KIND_LOCAL && c->to[a].kind != TSH_KIND_LOCAL;
        if (changes && c->to[a].kind != TSH_KIND_REPLICATED) return false;
    }
    return true;
}

bool tshi_route_make(const tshi_change *c, tshi_route *route) {
    int axes = c->mesh->axes;
    tsh_layout now[TSH_MAX_AXES];
    memcpy(now, c->from, sizeof now);
    route->steps = 0;
    if (!leaves_local(c)) return false;
    bool apart = add_transitions(c, route, now);
    if (apart && moving_steps(c, route) <= 1) return true;
    if (!tshi_layouts_have_local(axes, c->from) && !tshi_layouts_have_local(axes, c->to)) {
        route->steps = 0;
        add_step(route, -1, c->to);
        return true;
    }
    return apart || add_detour(c, route, now);
}
