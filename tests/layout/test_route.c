/* Routes: every change of layouts and split orders is reached, and each step can be carried out: a transition along one
 * axis finds all values that a rank holds afterwards among the ranks that differ from it along that axis alone. */
#include "layout/box.h"

#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

TestSuite(route, .timeout = 120);

static const tsh_layout kinds[] = {TSH_REPLICATED_INIT, TSH_SHARD_INIT(0), TSH_SHARD_INIT(1), TSH_PARTIAL_INIT,
                                   TSH_LOCAL_INIT};
enum { KINDS = 5, WITHOUT_LOCAL = 4, LENGTH = 11 };

static void layouts_of(int n, int axes, int count, tsh_layout layout[TSH_MAX_AXES]) {
    for (int a = 0; a < axes; a++, n /= count) layout[a] = kinds[n % count];
}

static int power(int base, int exponent) {
    int n = 1;
    while (exponent-- > 0) n *= base;
    return n;
}

static tsh_mesh mesh_of(int axes) {
    tsh_mesh mesh = {.axes = axes, .members = power(2, axes)};
    for (int a = 0; a < axes; a++) mesh.axis[a].size = 2;
    return mesh;
}

static tsh_box box_of(const tsh_mesh *mesh, const tsh_layout *layout, int member) {
    const int64_t shape[2] = {LENGTH, LENGTH};
    tshi_placement p = tshi_mesh_placement(mesh, layout);
    for (int a = 0; a < p.axes; a++) {
        if (p.layout[a].kind == TSH_KIND_LOCAL) p.layout[a] = TSH_REPLICATED;
    }
    return tshi_placement_box(&p, 2, shape, member);
}

static bool holds(const tsh_box *box, int64_t i, int64_t j) {
    return i >= box->start[0] && i < box->start[0] + box->length[0] && j >= box->start[1] &&
           j < box->start[1] + box->length[1];
}

/* What a member holds after the transition is held by itself or its neighbour along the axis before it. */
static bool is_along_axis(const tsh_mesh *mesh, const tsh_layout *before, const tsh_layout *after, int axis) {
    int stride = power(2, mesh->axes - 1 - axis);
    for (int m = 0; m < mesh->members; m++) {
        tsh_box wanted = box_of(mesh, after, m), own = box_of(mesh, before, m);
        tsh_box other = box_of(mesh, before, m / stride % 2 ? m - stride : m + stride);
        for (int64_t i = 0; i < LENGTH; i++) {
            for (int64_t j = 0; j < LENGTH; j++) {
                if (holds(&wanted, i, j) && !holds(&own, i, j) && !holds(&other, i, j)) return false;
            }
        }
    }
    return true;
}

static bool has_local(int axes, const tsh_layout *layout) {
    for (int a = 0; a < axes; a++) {
        if (layout[a].kind == TSH_KIND_LOCAL) return true;
    }
    return false;
}

static void check_route(const tshi_change *c, const tshi_route *route) {
    const tsh_layout *now = c->from;
    int axes = c->mesh->axes;
    cr_assert_leq(route->steps, TSHI_ROUTE_STEPS);
    for (int i = 0; i < route->steps; i++) {
        const tshi_route_step *step = &route->step[i];
        if (step->axis < 0) {
            cr_assert(!has_local(axes, now) && !has_local(axes, step->to), "an exchange of LOCAL parts");
        } else {
            cr_assert(tshi_transition_find(now[step->axis], step->to[step->axis], false), "no transition");
            cr_assert(is_along_axis(c->mesh, now, step->to, step->axis), "step %d needs other ranks", i);
            for (int a = 0; a < axes; a++) cr_assert(a == step->axis || tshi_layout_alike(now[a], step->to[a]));
        }
        now = step->to;
    }
    cr_assert(tshi_layouts_equal(axes, now, c->to), "the route ends elsewhere");
}

static int check_changes(int axes, int count) {
    const tsh_mesh mesh = mesh_of(axes);
    int n = power(count, axes), found = 0;
    for (int i = 0; i < n; i++) {
        for (int j = 0; j < n; j++) {
            tsh_layout from[TSH_MAX_AXES] = {{0}}, to[TSH_MAX_AXES] = {{0}};
            layouts_of(i, axes, count, from);
            layouts_of(j, axes, count, to);
            tshi_change change = {&mesh, from, to};
            tshi_route route;
            if (!tshi_route_make(&change, &route)) continue;
            check_route(&change, &route);
            found++;
        }
    }
    return found;
}

Test(route, reaches_every_layout_without_local) {
    for (int axes = 1; axes <= 3; axes++) {
        int n = power(WITHOUT_LOCAL, axes);
        cr_assert_eq(check_changes(axes, WITHOUT_LOCAL), n * n);
    }
}

/* Of 25 changes of one axis only those from LOCAL to SHARD(0), SHARD(1) and PARTIAL have no route. */
Test(route, leaves_local_for_replicated_alone) {
    for (int axes = 1; axes <= 3; axes++) cr_assert_eq(check_changes(axes, KINDS), power(25 - 3, axes));
}

Test(route, reaches_every_split_order) {
    const tsh_mesh mesh = mesh_of(3);
    srand(7);
    for (int i = 0; i < 20000; i++) {
        tsh_layout side[2][TSH_MAX_AXES] = {{{0}}};
        for (int s = 0; s < 2; s++) {
            for (int a = 0; a < 3; a++) {
                side[s][a] = kinds[rand() % KINDS];
                side[s][a].order = rand() % 3;
            }
            tshi_layouts_normalize(3, side[s]);
        }
        tshi_change change = {&mesh, side[0], side[1]};
        tshi_route route;
        if (tshi_route_make(&change, &route)) check_route(&change, &route);
        bool stuck = false;
        for (int a = 0; a < 3; a++) {
            int to = (int)side[1][a].kind;
            stuck = stuck || (side[0][a].kind == TSH_KIND_LOCAL && to != TSH_KIND_LOCAL && to != TSH_KIND_REPLICATED);
        }
        cr_assert_eq(tshi_route_make(&change, &route), !stuck);
    }
}

Test(route, goes_nowhere_in_no_step) {
    const tsh_mesh mesh = mesh_of(2);
    const tsh_layout both[TSH_MAX_AXES] = {TSH_SHARD_INIT(0), TSH_SHARD_INIT(0)};
    tshi_route route;
    cr_assert(tshi_route_make(&(tshi_change){&mesh, both, both}, &route));
    cr_assert_eq(route.steps, 0);
}

static int steps_of(const tsh_layout from[2], const tsh_layout to[2], int *axis) {
    const tsh_mesh mesh = mesh_of(2);
    const tsh_layout before[TSH_MAX_AXES] = {from[0], from[1]}, after[TSH_MAX_AXES] = {to[0], to[1]};
    tshi_route route;
    cr_assert(tshi_route_make(&(tshi_change){&mesh, before, after}, &route));
    *axis = route.step[0].axis;
    return route.steps;
}

Test(route, is_one_native_collective_or_one_exchange) {
    const tsh_layout r = TSH_REPLICATED, s0 = TSH_SHARD(0), s1 = TSH_SHARD(1), p = TSH_PARTIAL;
    int axis;
    cr_assert_eq(steps_of((tsh_layout[]){r, s0}, (tsh_layout[]){r, s1}, &axis), 1);
    cr_assert_eq(axis, 1, "an all_to_all");
    cr_assert_eq(steps_of((tsh_layout[]){s0, p}, (tsh_layout[]){s0, s0}, &axis), 1);
    cr_assert_eq(axis, 1, "a reduce_scatter of the axis that splits last");
    cr_assert_eq(steps_of((tsh_layout[]){s0, s0}, (tsh_layout[]){s1, s0}, &axis), 1);
    cr_assert_eq(axis, -1, "the axes are in each other's way: an exchange");
    cr_assert_eq(steps_of((tsh_layout[]){s0, s1}, (tsh_layout[]){s1, s0}, &axis), 1);
    cr_assert_eq(axis, -1, "two all_to_alls would send values twice: an exchange");
    cr_assert_eq(steps_of((tsh_layout[]){r, p}, (tsh_layout[]){s0, r}, &axis), 2, "a slice and an all_reduce");
}
