/* Transitions: the operation, and how a tensor takes the steps of a plan. */
#include "autograd/transition.h"
#include "autograd/call.h"
#include "autograd/exchange.h"
#include "autograd/moves.h"
#include "autograd/segment.h"

#include <string.h>

/* --- the operation ------------------------------------------------------------------------------------------------ */

typedef struct transition_params {
    const tshi_transition *row;
    int axis;
    tsh_layout from, to;
} transition_params;

static const transition_params *params_of(const tsh_call *call) {
    return call->params;
}

static const tshi_axis *axis_of_call(const tsh_call *call) {
    return &call->in[0]->mesh->axis[params_of(call)->axis];
}

/* A movement over one rank moves nothing, whatever its name. */
static const tshi_move *move_of(const tsh_call *call, bool backward) {
    const tshi_transition *row = params_of(call)->row;
    if (axis_of_call(call)->size == 1) return &tshi_moves[TSHI_MOVE_NOTHING];
    return &tshi_moves[backward ? row->backward : row->forward];
}

/* All ranks that share a unit hold its values. */
static tsh_layout of_values(tsh_layout layout) {
    if (layout.sharing) layout.sharing = TSH_SHARED;
    return layout.kind == TSH_KIND_LOCAL ? TSH_REPLICATED : layout;
}

static tsh_status transition_forward(tsh_call *call) {
    const transition_params *p = params_of(call);
    const tshi_move *move = move_of(call, false);
    if (!move->run) return TSH_OK;
    return move->run(axis_of_call(call)->group, call->in[0], call->out, of_values(p->from), of_values(p->to), NULL);
}

static tsh_layout of_gradient(tsh_layout layout) {
    return layout.kind == TSH_KIND_LOCAL ? TSH_PARTIAL : layout.kind == TSH_KIND_PARTIAL ? TSH_REPLICATED : layout;
}

/* The conjugate movement: from the gradient laid out as `to` to a new one, laid out as `from`. */
static tsh_status conjugate(const tsh_call *call, const tshi_move *move, tsh_work **work, tsh_tensor **out) {
    tsh_tensor *dy = tsh_call_grad_out(call);
    const tsh_tensor *x = call->in[0];
    bool last_use = tshi_tensor_sole_owner(dy) && !call->out->gradient->retained;
    bool share = !move->run || (move->in_place && last_use);
    tsh_status status = share ? tshi_tensor_view(dy, &x->shape, x->layout, 0, out)
                              : tshi_tensor_new(x->mesh, dy->dtype, &x->shape, x->layout, out);
    if (status != TSH_OK || !move->run) return status;
    const transition_params *p = params_of(call);
    return move->run(axis_of_call(call)->group, dy, *out, of_gradient(p->to), of_gradient(p->from), work);
}

/* Starts nothing where other work would not hide the collective, or where a schedule makes the sum. */
static tsh_status transition_backward_start(tsh_call *call) {
    const tshi_move *move = move_of(call, true);
    if (!move->collective || tshi_gradient_schedule_of(call->out) || !tshi_group_overlaps(axis_of_call(call)->group))
        return TSH_OK;
    tsh_status status = conjugate(call, move, &call->work, &call->early);
    if (call->work) return status;
    tshi_tensor_release(call->early);
    call->early = NULL;
    return status;
}

static tsh_status transition_backward(tsh_call *call) {
    if (tshi_gradient_schedule_of(call->out)) return tshi_grad_leave_to_schedule(call);
    tsh_tensor *dx = call->early;
    call->early = NULL;
    tsh_status status =
        call->work ? tshi_work_wait_queued(call->work) : conjugate(call, move_of(call, true), NULL, &dx);
    tsh_work_release(call->work);
    call->work = NULL;
    if (status == TSH_OK) status = tshi_grad_adopt(call, 0, dx);
    tshi_tensor_release(dx);
    return status;
}

static const tshi_engine_op transition_engine = {.backward_start = transition_backward_start, .moves = true};

static const tsh_op transition_op = {.name = "redistribute",
                                     .forward = transition_forward,
                                     .backward = transition_backward,
                                     .params_size = sizeof(transition_params),
                                     .repeats = true,
                                     .reads_no_input = true,
                                     .engine = &transition_engine};

/* Shape and layout after the change. LOCAL makes no claim on other ranks, so its global sizes along this axis are its
 * own. */
static tsh_status shape_after(const tsh_tensor *x, int axis, tsh_layout *to, tsh_shape *shape,
                              tsh_layout layout[TSH_MAX_AXES]) {
    memcpy(layout, x->layout, sizeof x->layout);
    layout[axis] = *to;
    *shape = x->shape;
    tsh_status status = tshi_shape_settle(x->mesh, axis, shape, layout);
    *to = layout[axis];
    return status;
}

/* --- one step ----------------------------------------------------------------------------------------------------- */

tsh_tensor *tshi_made_before(const tsh_tape *tape, const tsh_tensor *x, tsh_dtype dtype, const tsh_mesh *mesh,
                             const tsh_layout *to) {
    bool recorded = tape->recording && tshi_requires_grad(x);
    if (!x->gradient || x->gradient->generation != tape->generation) return NULL;
    for (tsh_tensor *t = x->gradient->moved; t; t = t->gradient->next_moved) {
        bool same = t->dtype == dtype && t->mesh == mesh && tshi_layouts_equal(mesh->axes, t->layout, to);
        same = same && t->gradient->moved_version == tshi_tensor_version(x);
        if (!same || tshi_requires_grad(t) != recorded) continue;
        if (t->storage || tshi_segment_dropped(tape, t)) return t;
    }
    return NULL;
}

tsh_status tshi_remember(const tsh_tape *tape, tsh_tensor *x, tsh_tensor *moved) {
    tshi_gradient *from = tshi_gradient_of(x), *to = from ? tshi_gradient_of(moved) : NULL;
    if (!to) return TSH_ERR_MEMORY;
    if (from->generation != tape->generation) {
        tshi_gradient_leave_lists(x);
        from->generation = tape->generation;
    }
    to->next_moved = from->moved;
    to->moved_from = x;
    to->moved_version = tshi_tensor_version(x);
    to->arithmetic = from->arithmetic;
    from->moved = moved;
    return TSH_OK;
}

/* A leaf, its cast or its copy becomes this rank's own along an axis over which this tape's schedule sums its gradient: the
 * copy's gradient goes there. */
static void share_target(const tsh_tape *tape, const tsh_tensor *x, int axis, const tsh_tensor *moved) {
    tshi_gradient_target *target = tshi_gradient_cast_leaf(x)->gradient->target;
    if (!moved->computed || !target || target->schedule != tape->schedule || !(target->sums >> axis & 1u)) return;
    if (tshi_gradient_divides(x->layout[axis], moved->layout[axis])) moved->gradient->target = target;
}

static tsh_tensor *run_transition(tsh_tape *tape, tsh_tensor *x, const tshi_plan_step *step, const tsh_shape *shape,
                                  bool consume) {
    int axis = step->axis;
    tsh_layout from = x->layout[axis], to = step->to[axis];
    transition_params params = {tshi_transition_find(from, to, false), axis, from, to};
    tsh_call call = {.tape = tape, .op = &transition_op, .inputs = 1, .in = &x, .params = &params};
    const tshi_move *move = move_of(&call, false);
    bool share = !move->run || (consume && move->in_place);
    tsh_tensor *moved = tshi_call_run(&call, x->dtype, shape, step->to, share ? x : NULL);
    if (moved && moved->computed) moved->gradient->wide = x->gradient->wide;
    if (moved) share_target(tape, x, axis, moved);
    return moved;
}

/* x after one step of a plan, for `mesh`, which may be another one where the step is an exchange. */
static tsh_tensor *take_step(tsh_tape *tape, const char *what, tsh_tensor *x, const tsh_mesh *mesh,
                             const tshi_plan_step *step, bool consume) {
    tshi_plan_step resolved = *step;
    tsh_shape shape = x->shape;
    if (tape->world->logs_plans) tshi_log_step(tape, what, x, mesh, step);
    tsh_tensor *moved = tshi_made_before(tape, x, x->dtype, mesh, step->to);
    if (moved) return tshi_segment_take(tape, moved);
    tsh_status status = tshi_shape_resolve(mesh, &shape, resolved.to);
    if (status != TSH_OK) return tshi_tape_fail_as(tape, status, what);
    moved = step->axis < 0 ? tshi_exchange_record(tape, x, mesh, &shape, resolved.to)
                           : run_transition(tape, x, &resolved, &shape, consume);
    if (moved && !consume) status = tshi_remember(tape, x, moved);
    return status == TSH_OK ? moved : tshi_tape_fail_as(tape, status, what);
}

/* --- plans -------------------------------------------------------------------------------------------------------- */

static tsh_tensor *no_plan(tsh_tape *tape, const char *what, const tsh_tensor *x, const tsh_layout to[TSH_MAX_AXES]) {
    char text[160], name[TSHI_LAYOUT_NAME];
    int axis = 0;
    while (axis < x->mesh->axes - 1 &&
           (tshi_layout_alike(x->layout[axis], to[axis]) || tshi_transition_find(x->layout[axis], to[axis], false)))
        axis++;
    return tshi_tape_fail(tape, TSH_ERR_LAYOUT, "%s: no way from %s to %s along axis %s", what,
                          tsh_tensor_describe(x, text, sizeof text), tshi_layout_name(to[axis], name, sizeof name),
                          x->mesh->axis[axis].name);
}

tsh_tensor *tshi_to_layouts(tsh_tape *tape, const char *what, tsh_tensor *x, const tsh_layout to[TSH_MAX_AXES],
                            bool consume) {
    tshi_plan plan;
    if (!tshi_plan_make(&(tshi_change){x->mesh, x->layout, to}, &plan)) return no_plan(tape, what, x, to);
    for (int i = 0; x && i < plan.steps; i++) {
        x = take_step(tape, what, x, x->mesh, &plan.step[i], consume);
    }
    return x;
}

/* tshi_transit in the name of `what`. */
static tsh_tensor *transit_for(tsh_tape *tape, const char *what, tsh_tensor *x, int axis, tsh_layout to, bool consume) {
    tsh_layout layout[TSH_MAX_AXES];
    tsh_shape shape;
    if (!tshi_tape_ready(tape, what, 1, &x)) return NULL;
    tsh_status status = shape_after(x, axis, &to, &shape, layout); /* `to` exists, its dim is not negative any more */
    if (status != TSH_OK) return tshi_tape_fail_as(tape, status, what);
    return tshi_to_layouts(tape, what, x, layout, consume);
}

tsh_tensor *tshi_transit(tsh_tape *tape, tsh_tensor *x, int axis, tsh_layout to, bool consume) {
    return transit_for(tape, "redistribute", x, axis, to, consume);
}

/* --- public ------------------------------------------------------------------------------------------------------- */

static tsh_status clone_forward(tsh_call *call) {
    tsh_device *device = tshi_device_of(call->out);
    device->ops->copy.within(device, tsh_tensor_local_nbytes(call->out), tshi_data(call->in[0]), tshi_data(call->out));
    return TSH_OK;
}

static const tsh_op clone_op = {
    .name = "redistribute", .forward = clone_forward, .backward = tshi_pass_gradient, .reads_no_input = true};

/* What a program asked for in these layouts it may read: values that are there only in a tape's calls are copied. */
static tsh_tensor *readable(tsh_tape *tape, tsh_tensor *y) {
    tsh_call call = {.tape = tape, .op = &clone_op, .inputs = 1, .in = &y};
    bool lent = y && y->storage && y->storage->source;
    return lent ? tshi_call_run(&call, y->dtype, &y->shape, y->layout, NULL) : y;
}

static int axis_of(tsh_tape *tape, tsh_tensor *x, const tsh_group *group, const char *what) {
    if (!tshi_tape_ready(tape, what, 1, &x)) return -1;
    int axis = group ? tshi_mesh_axis(x->mesh, group) : -1;
    if (!group) tshi_tape_fail_with(tape, tshi_group_missing(what));
    if (axis < 0) tshi_tape_fail(tape, TSH_ERR_ARGUMENT, "%s: the group is no axis of the tensor's mesh", what);
    return axis;
}

tsh_tensor *tsh_redistribute_along(tsh_tape *tape, tsh_tensor *x, const tsh_group *group, tsh_layout layout) {
    int axis = axis_of(tape, x, group, "redistribute_along");
    return axis < 0 ? NULL : readable(tape, tshi_transit(tape, tshi_gradient_whole(x), axis, layout, false));
}

/* Between meshes a tensor moves in one exchange. */
static tsh_tensor *move_to_mesh(tsh_tape *tape, tsh_tensor *x, const tsh_mesh *mesh, const tsh_layout *to) {
    char text[160], a[TSHI_LINE], b[TSHI_LINE];
    tshi_plan_step step = {.axis = -1};
    if (tshi_layouts_have_local(x->mesh->axes, x->layout) || tshi_layouts_have_local(mesh->axes, to)) {
        return tshi_tape_fail(tape, TSH_ERR_LAYOUT,
                              "redistribute: %s goes from mesh %s to mesh %s: neither may have LOCAL layouts",
                              tsh_tensor_describe(x, text, sizeof text), tshi_mesh_name(x->mesh, a, sizeof a),
                              tshi_mesh_name(mesh, b, sizeof b));
    }
    memcpy(step.to, to, sizeof step.to);
    return take_step(tape, "redistribute", x, mesh, &step, false);
}

tsh_tensor *tsh_redistribute(tsh_tape *tape, tsh_tensor *x, const tsh_mesh *mesh, const tsh_layout *layouts) {
    if (!tshi_tape_ready(tape, "redistribute", 1, &x)) return NULL;
    x = tshi_gradient_whole(x);
    if (!mesh) mesh = x->mesh;
    if (mesh->world != tape->world)
        return tshi_tape_fail(tape, TSH_ERR_ARGUMENT, "redistribute: the mesh belongs to another world than the tape");
    tsh_layout to[TSH_MAX_AXES] = {{0}};
    tsh_shape shape = x->shape;
    for (int a = 0; layouts && a < mesh->axes; a++) to[a] = layouts[a];
    tsh_status status = tshi_shape_resolve(mesh, &shape, to);
    if (status != TSH_OK) return tshi_tape_fail_as(tape, status, "redistribute");
    return mesh == x->mesh ? readable(tape, tshi_to_layouts(tape, "redistribute", x, to, false))
                           : move_to_mesh(tape, x, mesh, to);
}

tsh_tensor *tsh_full(tsh_tape *tape, tsh_tensor *x) {
    return tsh_redistribute(tape, x, NULL, NULL);
}

/* TorchShard's four: each has one kind of layout to start from and one to end with. */
static tsh_tensor *named(tsh_tape *tape, tsh_tensor *x, const tsh_group *group, const char *what, unsigned from_kinds,
                         int dim, tsh_layout to) {
    char text[160];
    int axis = axis_of(tape, x, group, what);
    if (axis < 0) return NULL;
    x = tshi_gradient_whole(x);
    tsh_layout from = x->layout[axis];
    bool right_dim = from.kind != TSH_KIND_SHARD || tshi_layout_splits(from, dim < 0 ? dim + x->shape.ndim : dim);
    if ((from_kinds >> from.kind & 1u) == 0 || !right_dim) {
        return tshi_tape_fail(
            tape, TSH_ERR_LAYOUT,
            "%s: x is %s along axis %s; wanted: scatter and copy REPLICATED, gather SHARD(dim), reduce "
            "PARTIAL or LOCAL (tsh_from_local makes a global tensor of LOCAL ones)",
            what, tsh_tensor_describe(x, text, sizeof text), x->mesh->axis[axis].name);
    }
    return readable(tape, transit_for(tape, what, x, axis, to, false));
}

tsh_tensor *tsh_scatter(tsh_tape *tape, tsh_tensor *x, const tsh_group *group, int dim) {
    return named(tape, x, group, "scatter", 1u << TSH_KIND_REPLICATED, dim, TSH_SHARD(dim));
}

tsh_tensor *tsh_gather(tsh_tape *tape, tsh_tensor *x, const tsh_group *group, int dim) {
    return named(tape, x, group, "gather", 1u << TSH_KIND_SHARD, dim, TSH_REPLICATED);
}

tsh_tensor *tsh_reduce(tsh_tape *tape, tsh_tensor *x, const tsh_group *group) {
    return named(tape, x, group, "reduce", 1u << TSH_KIND_PARTIAL | 1u << TSH_KIND_LOCAL, 0, TSH_REPLICATED);
}

tsh_tensor *tsh_copy(tsh_tape *tape, tsh_tensor *x, const tsh_group *group) {
    return named(tape, x, group, "copy", 1u << TSH_KIND_REPLICATED, 0, TSH_LOCAL);
}
