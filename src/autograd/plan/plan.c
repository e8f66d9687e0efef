/* Plans of calls: steps from casts, rules, determinism and routes. */
#include "autograd/plan/plan.h"
#include "autograd/grad/state.h"
#include "autograd/plan/whole.h"

#include <string.h>

static tsh_status add_plan_step(tshi_plan *plan, const tshi_plan_step *step) {
    tsh_status status =
        tshi_grow(plan->allocator, (void **)&plan->step, &plan->capacity, plan->count + 1, sizeof *plan->step);
    if (status == TSH_OK) plan->step[plan->count++] = *step;
    return status;
}

tshi_plan_step tshi_plan_start(const tsh_tensor *x, int input) {
    tshi_plan_step now = {.input = input, .dtype = x->dtype, .mesh = x->mesh, .shape = x->shape};
    memcpy(now.layout, x->layout, sizeof now.layout);
    return now;
}

/* --- routes ------------------------------------------------------------------------------------------------------- */

static tsh_status no_route(const tshi_plan_step *now, const tsh_layout to[TSH_MAX_AXES]) {
    tsh_tensor x = {.dtype = now->dtype, .mesh = now->mesh, .shape = now->shape};
    int axis = 0;
    memcpy(x.layout, now->layout, sizeof x.layout);
    while (axis < x.mesh->axes - 1 &&
           (tshi_layout_alike(x.layout[axis], to[axis]) || tshi_transition_find(x.layout[axis], to[axis], false)))
        axis++;
    return tshi_fail(TSH_ERR_LAYOUT, "no route from %s to %s along axis %s", TSHI_TENSOR_TEXT(&x),
                     TSHI_LAYOUT_TEXT(to[axis], &x.mesh->axis[axis]), x.mesh->axis[axis].name);
}

tsh_status tshi_plan_route(tshi_plan *plan, tshi_plan_step *now, const tsh_layout to[TSH_MAX_AXES]) {
    tshi_route route;
    tsh_status status = TSH_OK;
    if (tshi_layouts_equal(now->mesh->axes, now->layout, to)) return TSH_OK;
    if (!tshi_route_make(&(tshi_change){now->mesh, now->layout, to}, &route)) return no_route(now, to);
    for (int i = 0; i < route.steps && status == TSH_OK; i++) {
        now->axis = route.step[i].axis;
        now->kind = now->axis < 0 ? TSHI_STEP_EXCHANGE : TSHI_STEP_TRANSITION;
        memcpy(now->layout, route.step[i].to, sizeof now->layout);
        status = tshi_shape_resolve(now->mesh, &now->shape, now->layout);
        if (status == TSH_OK) status = add_plan_step(plan, now);
    }
    return status;
}

/* --- inputs ------------------------------------------------------------------------------------------------------- */

/* Casts input i before transitions, which then move the operation's dtype. A PARTIAL input is summed first. */
static tsh_status plan_cast(tshi_plan *plan, const tsh_tensor *given, int i, tsh_tensor *cast) {
    tsh_layout summed[TSH_MAX_AXES];
    tshi_plan_step now = tshi_plan_start(given, i);
    memcpy(summed, now.layout, sizeof summed);
    for (int a = 0; a < given->mesh->axes; a++) {
        if (summed[a].kind == TSH_KIND_PARTIAL) summed[a] = TSH_REPLICATED;
    }
    tsh_status status = tshi_plan_route(plan, &now, summed);
    now.kind = TSHI_STEP_CAST;
    now.dtype = cast->dtype;
    memcpy(cast->layout, now.layout, sizeof cast->layout);
    return status == TSH_OK ? add_plan_step(plan, &now) : status;
}

/* The rows of a call, and the settings on which its steps depend. */
typedef struct choice {
    tshi_rule_rows rows;
    unsigned local; /* bits of the axes along which some input is LOCAL */
    bool whole;     /* the call must have one rank's bits (whole.h) */
} choice;

static unsigned local_axes(const tsh_call *call) {
    unsigned axes = 0;
    for (int i = 0; i < call->inputs; i++) {
        const tsh_tensor *x = call->in[i];
        for (int a = 0; a < x->mesh->axes; a++) {
            if (x->layout[a].kind == TSH_KIND_LOCAL) axes |= 1u << a;
        }
    }
    return axes;
}

/* Steps that come first. A leaf changes first along the axes of its target, which only serves copies that differ from
 * the leaf along no other axis. An input beside a LOCAL one changes first along that input's axes: sizes there may
 * differ between ranks, and with them the rows of other axes, so that only the original input is common to the
 * ranks. */
static tsh_status plan_first(tshi_plan *plan, const tsh_tensor *given, unsigned local, tshi_plan_step *now,
                             const tsh_layout *need) {
    bool leaf = given->dtype == now->dtype || !given->computed;
    unsigned sums = leaf ? tshi_gradient_summed_axes(given) : 0;
    tsh_status status = TSH_OK;
    for (int a = 0; (sums | local) >> a && status == TSH_OK; a++) {
        tsh_layout first[TSH_MAX_AXES], have = now->layout[a];
        tsh_shape shape = now->shape;
        bool divides = sums >> a & 1u && tshi_gradient_divides(have, need[a]);
        bool becomes_local = local >> a & 1u && need[a].kind == TSH_KIND_LOCAL && have.kind != TSH_KIND_LOCAL;
        if (!divides && !becomes_local) continue;
        memcpy(first, now->layout, sizeof first);
        first[a] = need[a];
        status = tshi_shape_settle(now->mesh, a, &shape, first);
        if (status == TSH_OK) status = tshi_plan_route(plan, now, first);
    }
    return status;
}

/* Adds the steps of input i to the layouts that the rows want. A call on whole inputs copies those with gradients,
 * whose terms are then added call by call, as on one rank. */
static tsh_status plan_input(tshi_plan *plan, const tsh_call *call, const tsh_tensor *given, int i,
                             const tshi_goal *goal, const choice *c) {
    tsh_layout need[TSH_MAX_AXES];
    const tsh_tensor *x = call->in[i];
    tshi_plan_step now = tshi_plan_start(x, i);
    tsh_shape shape = x->shape;
    tsh_status status = tshi_rules_need(call, &c->rows, i, need);
    if (status != TSH_OK) return status;
    if (!c->whole) {
        if (tshi_layouts_equal(x->mesh->axes, x->layout, need)) return TSH_OK;
        status = plan_first(plan, given, c->local, &now, need);
        return status == TSH_OK ? tshi_plan_route(plan, &now, need) : status;
    }
    tshi_whole_apply(x->mesh, c->local, need);
    status = tshi_shape_resolve(x->mesh, &shape, need);
    now.kind = TSHI_STEP_COPY;
    if (status == TSH_OK && goal->recording && tshi_requires_grad(x)) status = add_plan_step(plan, &now);
    return status == TSH_OK ? tshi_plan_route(plan, &now, need) : status;
}

/* --- the call ----------------------------------------------------------------------------------------------------- */

/* Adds the operation, and the steps of its output to the layouts of the rows, or those that a layer wants. */
static tsh_status plan_output(tshi_plan *plan, const tsh_call *call, const tshi_goal *goal, const choice *c) {
    const tsh_mesh *mesh = call->in[0]->mesh;
    const tshi_want *want = goal->want;
    tshi_plan_step now = {
        .kind = TSHI_STEP_KERNEL, .input = -1, .dtype = goal->dtype, .mesh = mesh, .shape = *goal->shape};
    tsh_layout wanted[TSH_MAX_AXES];
    memcpy(now.layout, c->rows.out, sizeof now.layout);
    tsh_status status = tshi_shape_resolve(mesh, &now.shape, now.layout);
    memcpy(wanted, now.layout, sizeof wanted);
    if (status == TSH_OK && want && want->axis >= 0) {
        tsh_shape shape = now.shape;
        wanted[want->axis] = want->out;
        status = tshi_shape_settle(mesh, want->axis, &shape, wanted);
    }
    if (status == TSH_OK && c->whole) {
        tshi_whole_apply(mesh, c->local, now.layout);
        status = tshi_shape_resolve(mesh, &now.shape, now.layout);
    }
    if (status == TSH_OK) status = add_plan_step(plan, &now);
    return status == TSH_OK ? tshi_plan_route(plan, &now, wanted) : status;
}

tsh_status tshi_plan_make(const tsh_call *call, tsh_tensor *const *given, const tshi_goal *goal, tshi_plan *plan) {
    choice c;
    tsh_status status = TSH_OK;
    plan->count = 0;
    for (int i = 0; i < call->inputs && status == TSH_OK; i++) {
        if (call->in[i] != given[i]) status = plan_cast(plan, given[i], i, call->in[i]);
    }
    if (status == TSH_OK) status = tshi_rules_choose(call, goal, &c.rows);
    if (status != TSH_OK) return status;
    c.local = local_axes(call);
    c.whole = goal->deterministic && tshi_whole_wanted(call, &c.rows, c.local, goal->recording);
    bool stay = c.rows.stay && !c.whole;
    for (int k = 0; k < call->inputs && !stay && status == TSH_OK; k++) {
        int i = c.whole ? call->inputs - 1 - k : k;
        status = plan_input(plan, call, given[i], i, goal, &c);
    }
    return status == TSH_OK ? plan_output(plan, call, goal, &c) : status;
}
