/* Plans: the single-axis transitions that bring a tensor from its layouts to other ones, in an order that is legal.
 *
 * A dim that several axes shard is split by the earlier axis first. So an axis can leave or enter SHARD(d) only while
 * no later axis shards d. Where axes are in each other's way, a plan takes some of them to REPLICATED in between. */
#include "layout/layout.h"

#include <math.h>

/* How far one axis has come; one whose layout changes ends at THERE. */
enum { BEGINNING, BETWEEN, THERE, STAGES };

#define STATES 81 /* STAGES to the power of TSH_MAX_AXES */

static int power(int base, int exponent) {
    int n = 1;
    while (exponent-- > 0) n *= base;
    return n;
}

/* A state holds a stage for each axis, a digit to the base STAGES. */
static int stage_of(int state, int axis) {
    return state / power(STAGES, axis) % STAGES;
}

static tsh_layout layout_in(const tshi_change *c, int state, int axis) {
    int stage = stage_of(state, axis);
    return stage == BEGINNING ? c->from[axis] : stage == THERE ? c->to[axis] : TSH_REPLICATED;
}

/* The layout of `axis` may change, as far as the order of splits goes. */
static bool in_order(const tshi_change *c, int state, int axis, tsh_layout from, tsh_layout to) {
    for (int b = axis + 1; b < c->mesh->axes; b++) {
        tsh_layout other = layout_in(c, state, b);
        if (other.kind != TSH_KIND_SHARD) continue;
        if (tshi_layout_equal(other, from) || tshi_layout_equal(other, to)) return false;
    }
    return true;
}

/* The cost of moving `axis` from its stage in `state` to `stage`; -1: that is no step. */
static double step_cost(const tshi_change *c, int state, int axis, int stage) {
    tsh_layout from = layout_in(c, state, axis);
    tsh_layout to = stage == THERE ? c->to[axis] : TSH_REPLICATED;
    bool halfway = stage == BETWEEN && from.kind != TSH_KIND_SHARD;
    if (halfway || tshi_layout_equal(from, to) || !in_order(c, state, axis, from, to)) return -1;
    const tshi_transition *t = tshi_transition_find(from, to, c->automatic);
    return t ? tshi_transition_cost(t, c->backward) : -1;
}

static bool is_end(const tshi_change *c, int state) {
    for (int a = 0; a < c->mesh->axes; a++) {
        bool stays = stage_of(state, a) == BEGINNING && tshi_layout_equal(c->from[a], c->to[a]);
        if (stage_of(state, a) != THERE && !stays) return false;
    }
    return true;
}

/* The cheapest way to every state. A step only raises a state's number, so one pass in ascending order finds them. */
static int cheapest_end(const tshi_change *c, double cost[], int before[]) {
    int states = power(STAGES, c->mesh->axes), end = -1;
    for (int i = 0; i < states; i++) cost[i] = i ? INFINITY : 0;
    for (int i = 0; i < states; i++) {
        if (isinf(cost[i])) continue;
        if (is_end(c, i) && (end < 0 || cost[i] < cost[end])) end = i;
        for (int a = 0; a < c->mesh->axes; a++) {
            for (int stage = stage_of(i, a) + 1; stage < STAGES; stage++) {
                double step = step_cost(c, i, a, stage);
                int next = i + (stage - stage_of(i, a)) * power(STAGES, a);
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
        while (stage_of(i, axis) == stage_of(before[i], axis)) axis++;
        plan->step[--k].axis = axis;
        plan->step[k].to = layout_in(c, i, axis);
    }
}

static bool shards(tsh_layout layout, int d) {
    return layout.kind == TSH_KIND_SHARD && layout.dim == d;
}

/* One of the axes shards, before or after, a dim that the other one shards before or after. */
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
