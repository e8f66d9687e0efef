/* Plans: every change of layouts on meshes of one to four axes is reached by legal steps, at no more than the cost of
 * gathering everything first. */
#include "layout/layout.h"

#include <criterion/criterion.h>
#include <string.h>

static const tsh_layout kinds[] = {TSH_REPLICATED_INIT, TSH_SHARD_INIT(0), TSH_SHARD_INIT(1), TSH_PARTIAL_INIT,
                                   TSH_LOCAL_INIT};
enum { KINDS = 5, WITHOUT_LOCAL = 4 };

static void layouts_of(int n, int axes, int count, tsh_layout layout[TSH_MAX_AXES]) {
    for (int a = 0; a < axes; a++, n /= count) layout[a] = kinds[n % count];
}

static int power(int base, int exponent) {
    int n = 1;
    while (exponent-- > 0) n *= base;
    return n;
}

/* A dim that several axes shard is split by the earlier axis first: a later one must not shard what this one moves. */
static bool legal(const tsh_layout now[], int axes, int axis, tsh_layout to) {
    for (int b = axis + 1; b < axes; b++) {
        if (now[b].kind != TSH_KIND_SHARD) continue;
        if (tshi_layout_equal(now[b], now[axis]) || tshi_layout_equal(now[b], to)) return false;
    }
    return true;
}

static void check_plan(const tshi_change *c, const tshi_plan *plan) {
    tsh_layout now[TSH_MAX_AXES];
    double cost = 0;
    memcpy(now, c->from, sizeof now);
    cr_assert_leq(plan->steps, 2 * c->mesh->axes);
    for (int i = 0; i < plan->steps; i++) {
        int axis = plan->step[i].axis;
        tsh_layout to = plan->step[i].to;
        const tshi_transition *t = tshi_transition_find(now[axis], to, c->automatic);
        cr_assert(t && legal(now, c->mesh->axes, axis, to), "step %d is not legal", i);
        cost += tshi_transition_cost(t, c->backward);
        now[axis] = to;
    }
    for (int a = 0; a < c->mesh->axes; a++) cr_assert(tshi_layout_equal(now[a], c->to[a]), "axis %d ends elsewhere", a);
    cr_assert_eq(cost, plan->cost);
}

/* What it costs to take each axis that changes, and each that shards, to REPLICATED and then to where it goes. */
static double cost_by_gathering(const tshi_change *c) {
    double cost = 0;
    for (int a = 0; a < c->mesh->axes; a++) {
        tsh_layout ends[2] = {c->from[a], c->to[a]};
        if (tshi_layout_equal(ends[0], ends[1]) && ends[0].kind != TSH_KIND_SHARD) continue;
        if (ends[0].kind != TSH_KIND_REPLICATED) {
            cost += tshi_transition_cost(tshi_transition_find(ends[0], TSH_REPLICATED, false), c->backward);
        }
        if (ends[1].kind != TSH_KIND_REPLICATED) {
            cost += tshi_transition_cost(tshi_transition_find(TSH_REPLICATED, ends[1], false), c->backward);
        }
    }
    return cost;
}

static int check_changes(int axes, int count, bool backward) {
    const tsh_mesh mesh = {.axes = axes};
    int n = power(count, axes), planned = 0;
    for (int i = 0; i < n; i++) {
        for (int j = 0; j < n; j++) {
            tsh_layout from[TSH_MAX_AXES] = {{0}}, to[TSH_MAX_AXES] = {{0}};
            layouts_of(i, axes, count, from);
            layouts_of(j, axes, count, to);
            tshi_change change = {&mesh, from, to, false, backward};
            tshi_plan plan;
            if (!tshi_plan_make(&change, &plan)) continue;
            check_plan(&change, &plan);
            cr_assert_leq(plan.cost, cost_by_gathering(&change));
            planned++;
        }
    }
    return planned;
}

Test(plan, reaches_every_layout_without_local, .timeout = 120) {
    for (int axes = 1; axes <= 3; axes++) {
        int n = power(WITHOUT_LOCAL, axes);
        cr_assert_eq(check_changes(axes, WITHOUT_LOCAL, false), n * n);
        cr_assert_eq(check_changes(axes, WITHOUT_LOCAL, true), n * n);
    }
    cr_assert_eq(check_changes(4, 3, true), 81 * 81, "four axes, REPLICATED and two SHARDs");
}

Test(plan, leaves_local_for_replicated_alone, .timeout = 120) {
    /* From LOCAL the table has only the transition to REPLICATED: 3 of 25 changes of one axis have no transition. */
    cr_assert_eq(check_changes(1, KINDS, true), 25 - 3);
    check_changes(3, KINDS, true);
}

Test(plan, goes_nowhere_in_no_step, .timeout = 120) {
    const tsh_mesh mesh = {.axes = 2};
    const tsh_layout both[TSH_MAX_AXES] = {TSH_SHARD_INIT(0), TSH_SHARD_INIT(0)};
    tshi_plan plan;
    cr_assert(tshi_plan_make(&(tshi_change){&mesh, both, both, true, true}, &plan));
    cr_assert_eq(plan.steps, 0);
    cr_assert_eq(plan.cost, 0);
}

Test(plan, splits_the_later_axis_again_around_a_change_of_the_earlier_one, .timeout = 120) {
    const tsh_mesh mesh = {.axes = 2};
    const tsh_layout from[TSH_MAX_AXES] = {TSH_SHARD_INIT(0), TSH_SHARD_INIT(0)};
    const tsh_layout to[TSH_MAX_AXES] = {TSH_SHARD_INIT(1), TSH_SHARD_INIT(0)};
    tshi_plan plan;
    cr_assert(tshi_plan_make(&(tshi_change){&mesh, from, to, true, false}, &plan));
    cr_assert_eq(plan.steps, 3);
    cr_assert_eq(plan.step[0].axis, 1);
    cr_assert_eq(plan.step[1].axis, 0);
    cr_assert_eq(plan.step[2].axis, 1);
    cr_assert_eq(plan.cost, 1.5, "an all-gather, an all-to-all and a slice");
}
