/* Plans: the single-axis transitions that bring a tensor from its layouts to other ones, in an order that is legal.
 *
 * A dim that several axes shard is split by the earlier axis first. So an axis can leave or enter SHARD(d) only while
 * no later axis shards d. Where axes are in each other's way, a plan takes some of them to REPLICATED in between. */
#include "autograd/tape.h"

#include <math.h>

/* The place of one axis within a plan; an axis whose layout changes ends at THERE. */
enum { BEGINNING, BETWEEN, THERE, PLACES };

typedef struct search {
    const tsh_tensor *x;
    const tsh_layout *to;
    bool automatic;
} search;

static int power(int base, int exponent) {
    int n = 1;
    while (exponent-- > 0) n *= base;
    return n;
}

/* A state holds a place for each axis, a digit to the base PLACES. */
static int place_in(int state, int axis) {
    return state / power(PLACES, axis) % PLACES;
}

static tsh_layout layout_in(const search *s, int state, int axis) {
    int place = place_in(state, axis);
    return place == BEGINNING ? s->x->layout[axis] : place == THERE ? s->to[axis] : TSH_REPLICATED;
}

/* The layout of `axis` may change, as far as the order of splits goes. */
static bool in_order(const search *s, int state, int axis, tsh_layout from, tsh_layout to) {
    for (int b = axis + 1; b < s->x->mesh->axes; b++) {
        tsh_layout other = layout_in(s, state, b);
        if (other.kind != TSH_KIND_SHARD) continue;
        if (tshi_layout_equal(other, from) || tshi_layout_equal(other, to)) return false;
    }
    return true;
}

/* The cost of moving `axis` from its place in `state` to `place`; -1: that is no step. */
static double step_cost(const search *s, int state, int axis, int place) {
    tsh_layout from = layout_in(s, state, axis);
    tsh_layout to = place == THERE ? s->to[axis] : TSH_REPLICATED;
    bool halfway = place == BETWEEN && from.kind != TSH_KIND_SHARD;
    if (halfway || tshi_layout_equal(from, to) || !in_order(s, state, axis, from, to)) return -1;
    const tshi_transition *t = tshi_transition_find(from, to, s->automatic);
    return t ? tshi_transition_cost(t, tshi_differentiable(s->x)) : -1;
}

static bool is_end(const search *s, int state) {
    for (int a = 0; a < s->x->mesh->axes; a++) {
        bool stays = place_in(state, a) == BEGINNING && tshi_layout_equal(s->x->layout[a], s->to[a]);
        if (place_in(state, a) != THERE && !stays) return false;
    }
    return true;
}

/* The cheapest way to every state. A step only raises a state's number, so one pass in ascending order finds them. */
static int cheapest_end(const search *s, double cost[], int before[]) {
    int states = power(PLACES, s->x->mesh->axes), end = -1;
    for (int i = 0; i < states; i++) cost[i] = i ? INFINITY : 0;
    for (int i = 0; i < states; i++) {
        if (isinf(cost[i])) continue;
        if (is_end(s, i) && (end < 0 || cost[i] < cost[end])) end = i;
        for (int a = 0; a < s->x->mesh->axes; a++) {
            for (int place = place_in(i, a) + 1; place < PLACES; place++) {
                double step = step_cost(s, i, a, place);
                int next = i + (place - place_in(i, a)) * power(PLACES, a);
                if (step < 0 || cost[i] + step >= cost[next]) continue;
                cost[next] = cost[i] + step;
                before[next] = i;
            }
        }
    }
    return end;
}

static void write_steps(const search *s, int end, const int before[], tshi_plan *plan) {
    plan->steps = 0;
    for (int i = end; i != 0; i = before[i]) plan->steps++;
    int k = plan->steps;
    for (int i = end; i != 0; i = before[i]) {
        int axis = 0;
        while (place_in(i, axis) == place_in(before[i], axis)) axis++;
        plan->step[--k].axis = axis;
        plan->step[k].to = layout_in(s, i, axis);
    }
}

static bool shards(tsh_layout layout, int d) {
    return layout.kind == TSH_KIND_SHARD && layout.dim == d;
}

/* One of the axes shards, before or after, a dim that the other one shards before or after. */
static bool share_a_dim(const tsh_tensor *x, const tsh_layout to[TSH_MAX_AXES], int a, int b) {
    for (int i = 0; i < 2; i++) {
        tsh_layout l = i ? to[a] : x->layout[a];
        if (l.kind == TSH_KIND_SHARD && (shards(x->layout[b], l.dim) || shards(to[b], l.dim))) return true;
    }
    return false;
}

bool tshi_plan_is_simple(const tsh_tensor *x, const tsh_layout to[TSH_MAX_AXES]) {
    for (int a = 0; a < x->mesh->axes; a++) {
        if (tshi_layout_equal(x->layout[a], to[a])) continue;
        for (int b = 0; b < x->mesh->axes; b++) {
            if (b != a && share_a_dim(x, to, a, b)) return false;
        }
    }
    return true;
}

bool tshi_plan_apart(const tsh_tensor *x, const tsh_layout to[TSH_MAX_AXES], bool automatic, tshi_plan *plan) {
    *plan = (tshi_plan){0};
    for (int a = 0; a < x->mesh->axes; a++) {
        if (tshi_layout_equal(x->layout[a], to[a])) continue;
        const tshi_transition *t = tshi_transition_find(x->layout[a], to[a], automatic);
        if (!t) return false;
        plan->cost += tshi_transition_cost(t, tshi_differentiable(x));
        plan->step[plan->steps].axis = a;
        plan->step[plan->steps++].to = to[a];
    }
    return true;
}

bool tshi_plan_make(const tsh_tensor *x, const tsh_layout to[TSH_MAX_AXES], bool automatic, tshi_plan *plan) {
    const search s = {x, to, automatic};
    double cost[TSHI_PLAN_STATES];
    int before[TSHI_PLAN_STATES] = {0};
    if (tshi_plan_is_simple(x, to)) return tshi_plan_apart(x, to, automatic, plan);
    int end = cheapest_end(&s, cost, before);
    if (end < 0) return false;
    write_steps(&s, end, before, plan);
    plan->cost = cost[end];
    return true;
}
