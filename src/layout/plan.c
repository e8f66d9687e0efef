/* Plans: the single-axis transitions that bring a tensor from its layouts to other ones, in an order that is legal.
 *
 * A dim that several axes shard is split by the earlier axis first. So an axis can start or cease to shard dim d only
 * while no later axis shards d. Where that is not the case, a plan makes some axes REPLICATED in between. */
#include "layout/layout.h"

#include <math.h>

/* The progress of one axis: its first layout, REPLICATED in between, its last layout. An axis whose layout changes ends
 * at THERE. */
enum { BEGINNING, BETWEEN, THERE, LEVELS };

#define STATES 81 /* LEVELS to the power of TSH_MAX_AXES */

static int power(int base, int exponent) {
    int n = 1;
    while (exponent-- > 0) n *= base;
    return n;
}

/* A state holds the progress of each axis as a digit to the base LEVELS. */
static int progress_of(int state, int axis) {
    return state / power(LEVELS, axis) % LEVELS;
}

static tsh_layout layout_in(const tshi_change *c, int state, int axis) {
    int progress = progress_of(state, axis);
    return progress == BEGINNING ? c->from[axis] : progress == THERE ? c->to[axis] : TSH_REPLICATED;
}

/* True when the order of splits allows the layout of `axis` to change. */
static bool in_order(const tshi_change *c, int state, int axis, tsh_layout from, tsh_layout to) {
    for (int b = axis + 1; b < c->mesh->axes; b++) {
        tsh_layout other = layout_in(c, state, b);
        if (other.kind != TSH_KIND_SHARD) continue;
        if (tshi_layout_equal(other, from) || tshi_layout_equal(other, to)) return false;
    }
    return true;
}

/* The cost of moving `axis` from its progress in `state` to `progress`; -1 when that is no step. */
static double step_cost(const tshi_change *c, int state, int axis, int progress) {
    tsh_layout from = layout_in(c, state, axis);
    tsh_layout to = progress == THERE ? c->to[axis] : TSH_REPLICATED;
    bool halfway = progress == BETWEEN && from.kind != TSH_KIND_SHARD;
    if (halfway || tshi_layout_equal(from, to) || !in_order(c, state, axis, from, to)) return -1;
    const tshi_transition *t = tshi_transition_find(from, to, c->automatic);
    return t ? tshi_transition_cost(t, c->backward) : -1;
}

static bool is_end(const tshi_change *c, int state) {
    for (int a = 0; a < c->mesh->axes; a++) {
        bool stays = progress_of(state, a) == BEGINNING && tshi_layout_equal(c->from[a], c->to[a]);
        if (progress_of(state, a) != THERE && !stays) return false;
    }
    return true;
}

/* Finds the cheapest way to every state, and returns the cheapest last one, or -1. A step only raises a state's number,
 * so that one pass in ascending order is enough. */
static int cheapest_end(const tshi_change *c, double cost[], int before[]) {
    int states = power(LEVELS, c->mesh->axes), end = -1;
    for (int i = 0; i < states; i++) cost[i] = i ? INFINITY : 0;
    for (int i = 0; i < states; i++) {
        if (isinf(cost[i])) continue;
        if (is_end(c, i) && (end < 0 || cost[i] < cost[end])) end = i;
        for (int a = 0; a < c->mesh->axes; a++) {
            for (int progress = progress_of(i, a) + 1; progress < LEVELS; progress++) {
                double step = step_cost(c, i, a, progress);
                int next = i + (progress - progress_of(i, a)) * power(LEVELS, a);
                if (step < 0 || cost[i] + step >= cost[next]) continue;
                cost[next] = cost[i] + step;
                before[next] = i;
            }
        }
    }
    return end;
}

static void write_steps(const tshi_change *c, int end, const int before[], tshi_plan *plan) {
    plan->steps = 0;
    for (int i = end; i != 0; i = before[i]) plan->steps++;
    int k = plan->steps;
    for (int i = end; i != 0; i = before[i]) {
        int axis = 0;
        while (progress_of(i, axis) == progress_of(before[i], axis)) axis++;
        plan->step[--k].axis = axis;
        plan->step[k].to = layout_in(c, i, axis);
    }
}

static bool shards(tsh_layout layout, int d) {
    return layout.kind == TSH_KIND_SHARD && layout.dim == d;
}

/* True when one of the axes shards, before or after, a dim that the other one shards before or after. */
static bool share_a_dim(const tshi_change *c, int a, int b) {
    for (int i = 0; i < 2; i++) {
        tsh_layout l = i ? c->to[a] : c->from[a];
        if (l.kind == TSH_KIND_SHARD && (shards(c->from[b], l.dim) || shards(c->to[b], l.dim))) return true;
    }
    return false;
}

bool tshi_plan_is_simple(const tshi_change *c) {
    for (int a = 0; a < c->mesh->axes; a++) {
        if (tshi_layout_equal(c->from[a], c->to[a])) continue;
        for (int b = 0; b < c->mesh->axes; b++) {
            if (b != a && share_a_dim(c, a, b)) return false;
        }
    }
    return true;
}

bool tshi_plan_apart(const tshi_change *c, tshi_plan *plan) {
    *plan = (tshi_plan){0};
    for (int a = 0; a < c->mesh->axes; a++) {
        if (tshi_layout_equal(c->from[a], c->to[a])) continue;
        const tshi_transition *t = tshi_transition_find(c->from[a], c->to[a], c->automatic);
        if (!t) return false;
        plan->cost += tshi_transition_cost(t, c->backward);
        plan->step[plan->steps].axis = a;
        plan->step[plan->steps++].to = c->to[a];
    }
    return true;
}

bool tshi_plan_make(const tshi_change *c, tshi_plan *plan) {
    double cost[STATES];
    int before[STATES] = {0};
    if (tshi_plan_is_simple(c)) return tshi_plan_apart(c, plan);
    int end = cheapest_end(c, cost, before);
    if (end < 0) return false;
    write_steps(c, end, before, plan);
    plan->cost = cost[end];
    return true;
}
