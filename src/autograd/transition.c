/* How a tensor takes the transitions of a plan. */
#include "autograd/moves.h"
#include "autograd/tape.h"

#include <string.h>

bool tshi_differentiable(const tsh_tensor *x) {
    return tshi_device_computes(x->mesh->device, x->dtype);
}

/* --- the op ------------------------------------------------------------------------------------------------------- */

typedef struct transition_params {
    const tshi_transition *row;
    int axis;
    int from_dim, to_dim; /* with SHARD */
} transition_params;

static const transition_params *params_of(const tshi_node *call) {
    return call->params;
}

static tsh_group *axis_group(const tshi_node *call) {
    return call->in[0]->mesh->axis[params_of(call)->axis].group;
}

static bool alone(const tshi_node *call) {
    return call->in[0]->mesh->axis[params_of(call)->axis].size == 1;
}

/* A movement over one rank moves nothing, whatever its name. */
static const tshi_move *move_of(const tshi_node *call, bool backward) {
    const tshi_transition *row = params_of(call)->row;
    return &tshi_moves[alone(call) ? TSHI_MOVE_NOTHING : backward ? row->backward : row->forward];
}

static tsh_status transition_forward(tshi_node *call) {
    const transition_params *p = params_of(call);
    return move_of(call, false)->run(axis_group(call), call->in[0], call->out, p->from_dim, p->to_dim);
}

/* The sum over ranks is the schedule's, and the gradient most often in its place already. */
static tsh_status sum_later(const tshi_node *call) {
    double beta;
    tsh_tensor *x = call->in[0], *dy = tshi_grad_out(call);
    tsh_tensor *dx = x->schedule->ops->gradient(x->schedule, x->place, true, &beta);
    if (!dx) return TSH_ERR_MEMORY;
    if (dx == dy) return TSH_OK;
    x->mesh->device->ops->elementwise.axpby(x->mesh->device, x->dtype, x->numel, 1, tshi_data(dy), beta, tshi_data(dx),
                                            tshi_data(dx));
    return TSH_OK;
}

/* Where a reduce-scatter beside other work may leave its result: in this rank's part of its input, for any other memory
 * may still be read by that work. -1 where it needs none, or the part is not in one piece. */
static int64_t part_in_place(const tshi_node *call, const tshi_move *move, const tsh_tensor *dy) {
    int d = params_of(call)->from_dim;
    if (move != &tshi_moves[TSHI_MOVE_REDUCE_SCATTER] || !call->tape->marked || call->tape->marked != tshi_data(dy))
        return -1;
    if (dy->storage->references != 1 || tshi_outer(dy, d) != 1) return -1;
    const tsh_group *group = axis_group(call);
    int64_t start;
    tsh_split(dy->shape.local[d], group->size, group->rank, &start, NULL);
    return start * tshi_inner(dy, d) * (int64_t)tsh_dtype_size(dy->dtype);
}

/* The conjugate: from the gradient laid out as `to` to the one laid out as `from`. */
static tsh_status transition_backward(tshi_node *call) {
    if (call->out->schedule) return sum_later(call);
    const transition_params *p = params_of(call);
    const tshi_move *move = move_of(call, true);
    tsh_tensor *dy = tshi_grad_out(call), *x = call->in[0], *dx = NULL;
    bool in_place = move == &tshi_moves[TSHI_MOVE_NOTHING] || (move->in_place && dy->storage->references == 1);
    int64_t part = in_place ? 0 : part_in_place(call, move, dy);
    tsh_status status = part >= 0 ? tshi_tensor_view(dy, &x->shape, x->layout, (size_t)part, &dx)
                                  : tshi_tensor_new(x->mesh, x->dtype, &x->shape, x->layout, &dx);
    if (status == TSH_OK) status = move->run(axis_group(call), dy, dx, p->to_dim, p->from_dim);
    if (status == TSH_OK) status = tshi_grad_adopt(call, 0, dx);
    tsh_tensor_release(dx);
    return status;
}

static const tshi_op transition_op = {.name = "redistribute",
                                      .forward = transition_forward,
                                      .backward = transition_backward,
                                      .params_size = sizeof(transition_params)};

/* Shape and layout after the change. LOCAL makes no claim on other ranks, so its global sizes along this axis are its
 * own. */
static tsh_status shape_after(const tsh_tensor *x, int axis, tsh_layout *to, tshi_shape *shape,
                              tsh_layout layout[TSH_MAX_AXES]) {
    memcpy(layout, x->layout, sizeof x->layout);
    layout[axis] = *to;
    *shape = x->shape;
    tsh_status status = tshi_shape_resolve(x->mesh, shape, layout);
    *to = layout[axis];
    return status;
}

/* One made before in this step that leads to a gradient where this call is recorded, and to none where it is not. */
static tsh_tensor *made_before(const tsh_tape *tape, const tsh_tensor *x, int axis, tsh_layout to) {
    bool recorded = tape->recording && x->requires_grad;
    if (x->generation != tape->generation) return NULL;
    for (tsh_tensor *t = x->moves; t; t = t->next_move) {
        bool same = t->move_axis == axis && tshi_layout_equal(t->layout[axis], to);
        if (same && t->storage && t->requires_grad == recorded) return t;
    }
    return NULL;
}

static void remember(const tsh_tape *tape, tsh_tensor *x, int axis, tsh_tensor *moved) {
    if (x->generation != tape->generation) {
        x->generation = tape->generation;
        x->node = -1;
        x->moves = NULL;
    }
    moved->move_axis = axis;
    moved->next_move = x->moves;
    x->moves = moved;
}

/* A leaf becomes LOCAL along the axis over which this tape's schedule sums its gradient. */
static bool scheduled(const tsh_tape *tape, const tsh_tensor *x, int axis, tsh_layout to) {
    return x->schedule && x->schedule == tape->schedule && x->node < 0 && axis == x->schedule->axis &&
           to.kind == TSH_KIND_LOCAL;
}

static tsh_tensor *no_plan(tsh_tape *tape, const char *what, const tsh_tensor *x, const tsh_layout to[TSH_MAX_AXES]) {
    char text[160], name[24];
    int axis = 0;
    while (axis < x->mesh->axes - 1 &&
           (tshi_layout_equal(x->layout[axis], to[axis]) || tshi_transition_find(x->layout[axis], to[axis], false)))
        axis++;
    return tshi_tape_fail(tape, TSH_ERR_LAYOUT, "%s: no way from %s to %s along axis %s", what,
                          tsh_tensor_describe(x, text, sizeof text), tshi_layout_name(to[axis], name, sizeof name),
                          x->mesh->axis[axis].name);
}

/* One step of a plan: one transition of the table. */
static tsh_tensor *take_step(tsh_tape *tape, const char *what, tsh_tensor *x, int axis, tsh_layout to, bool consume) {
    tsh_layout from = x->layout[axis], layout[TSH_MAX_AXES];
    tshi_shape shape;
    tsh_tensor *made = made_before(tape, x, axis, to);
    if (made) return made;
    tsh_status status = shape_after(x, axis, &to, &shape, layout);
    if (status != TSH_OK) return tshi_tape_fail_as(tape, status, what);

    transition_params params = {tshi_transition_find(from, to, false), axis, from.dim, to.dim};
    tshi_node call = {.tape = tape, .op = &transition_op, .inputs = 1, .in = (tsh_tensor *[]){x}, .params = &params};
    const tshi_move *move = move_of(&call, false);
    bool share = move == &tshi_moves[TSHI_MOVE_NOTHING] || (consume && move->in_place);
    tsh_tensor *moved = tshi_run(&call, x->dtype, &shape, layout, share ? x : NULL);
    if (moved && !consume) remember(tape, x, axis, moved);
    if (moved && moved->node >= 0 && scheduled(tape, x, axis, to)) {
        moved->schedule = x->schedule;
        moved->place = x->place;
    }
    return moved;
}

tsh_tensor *tshi_bring(tsh_tape *tape, const char *what, tsh_tensor *x, const tsh_layout to[TSH_MAX_AXES],
                       bool automatic, bool consume) {
    tshi_plan plan;
    if (!tshi_plan_make(&(tshi_change){x->mesh, x->layout, to, automatic, tshi_differentiable(x)}, &plan))
        return no_plan(tape, what, x, to);
    for (int i = 0; x && i < plan.steps; i++) {
        x = take_step(tape, what, x, plan.step[i].axis, plan.step[i].to, consume);
    }
    return x;
}

/* tshi_transit in the name of the call that wants it. */
static tsh_tensor *transit_for(tsh_tape *tape, const char *what, tsh_tensor *x, int axis, tsh_layout to, bool consume) {
    tsh_layout layout[TSH_MAX_AXES];
    tshi_shape shape;
    if (!tshi_tape_ready(tape, what, 1, &x)) return NULL;
    tsh_status status = shape_after(x, axis, &to, &shape, layout); /* `to` exists, its dim is not negative any more */
    if (status != TSH_OK) return tshi_tape_fail_as(tape, status, what);
    return tshi_bring(tape, what, x, layout, false, consume);
}

tsh_tensor *tshi_transit(tsh_tape *tape, tsh_tensor *x, int axis, tsh_layout to, bool consume) {
    return transit_for(tape, "redistribute", x, axis, to, consume);
}

/* --- public ------------------------------------------------------------------------------------------------------- */

static int axis_of(tsh_tape *tape, tsh_tensor *x, const tsh_group *group, const char *what) {
    if (!tshi_tape_ready(tape, what, 1, &x)) return -1;
    int axis = group ? tshi_mesh_axis(x->mesh, group) : -1;
    if (axis < 0) tshi_tape_fail(tape, TSH_ERR_ARGUMENT, "%s: the group is no axis of the tensor's mesh", what);
    return axis;
}

tsh_tensor *tsh_redistribute(tsh_tape *tape, tsh_tensor *x, const tsh_group *group, tsh_layout layout) {
    int axis = axis_of(tape, x, group, "redistribute");
    return axis < 0 ? NULL : tshi_transit(tape, x, axis, layout, false);
}

/* TorchShard's four: one start, one end each. */
static tsh_tensor *named(tsh_tape *tape, tsh_tensor *x, const tsh_group *group, const char *what, unsigned from_kinds,
                         int dim, tsh_layout to) {
    char text[160];
    int axis = axis_of(tape, x, group, what);
    if (axis < 0) return NULL;
    tsh_layout from = x->layout[axis];
    bool right_dim = from.kind != TSH_KIND_SHARD || from.dim == (dim < 0 ? dim + x->shape.ndim : dim);
    if ((from_kinds >> from.kind & 1u) == 0 || !right_dim) {
        return tshi_tape_fail(
            tape, TSH_ERR_LAYOUT,
            "%s: x is %s along axis %s; wanted: scatter and copy REPLICATED, gather SHARD(dim), reduce "
            "PARTIAL or LOCAL (tsh_tensor_claim says what a LOCAL tensor is)",
            what, tsh_tensor_describe(x, text, sizeof text), x->mesh->axis[axis].name);
    }
    return transit_for(tape, what, x, axis, to, false);
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
