/* The public redistributions: plans without an operation. */
#include "autograd/redistribute.h"
#include "autograd/run/call.h"
#include "autograd/run/step.h"

#include <string.h>

tsh_tensor *tshi_to_layouts(tsh_tape *tape, const char *what, tsh_tensor *x, const tsh_layout to[TSH_MAX_AXES]) {
    const tshi_plan *plan = NULL;
    tsh_status status = tshi_plans_route(tape->plans, x, to, &plan);
    if (tshi_tape_check(tape, status, what) != TSH_OK) return NULL;
    for (int k = 0; x && k < plan->count; k++) x = tshi_step_run(tape, what, x, &plan->step[k]);
    return x;
}

/* LOCAL makes no claim on other ranks, so the global sizes along this axis are this rank's own. */
tsh_tensor *tshi_transit(tsh_tape *tape, const char *what, tsh_tensor *x, int axis, tsh_layout to) {
    tsh_layout layout[TSH_MAX_AXES];
    if (!tshi_tape_ready(tape, what, 1, &x)) return NULL;
    tsh_shape shape = x->shape;
    memcpy(layout, x->layout, sizeof layout);
    layout[axis] = to;
    tsh_status status = tshi_shape_settle(x->mesh, axis, &shape, layout);
    return tshi_tape_check(tape, status, what) == TSH_OK ? tshi_to_layouts(tape, what, x, layout) : NULL;
}

/* --- public ------------------------------------------------------------------------------------------------------- */

static tsh_status clone_forward(tsh_call *call) {
    tsh_device *device = tshi_device_of(call->out);
    device->ops->copy.within(device, tsh_tensor_local_nbytes(call->out), tshi_data(call->in[0]), tshi_data(call->out));
    return TSH_OK;
}

static const tsh_op clone_op = {.name = "redistribute",
                                .forward = clone_forward,
                                .backward = tshi_pass_gradient,
                                .repeats = true,
                                .reads_no_input = true};

/* The program may read the result: values that exist only during a tape's calls are copied. */
static tsh_tensor *readable_copy(tsh_tape *tape, tsh_tensor *y) {
    tsh_call call = {.tape = tape, .op = &clone_op, .inputs = 1, .in = &y};
    if (!y || !tshi_tensor_is_transient(y)) return y;
    tshi_plan_step step = tshi_plan_start(y, 0);
    tsh_tensor *clone = tshi_call_run(&call, &step, NULL);
    if (clone) tshi_gradient_go_on(y, clone);
    return clone;
}

static int axis_of(tsh_tape *tape, tsh_tensor *x, const tsh_group *group, const char *what) {
    if (!tshi_tape_ready(tape, what, 1, &x)) return -1;
    int axis = group ? tshi_mesh_axis(x->mesh, group) : -1;
    if (!group) tshi_tape_check(tape, tshi_group_missing(what), NULL);
    if (axis < 0) tshi_tape_fail(tape, TSH_ERR_ARGUMENT, "%s: the group is not an axis of the tensor's mesh", what);
    return axis;
}

tsh_tensor *tsh_redistribute_along(tsh_tape *tape, tsh_tensor *x, const tsh_group *group, tsh_layout layout) {
    int axis = axis_of(tape, x, group, "redistribute_along");
    return axis < 0 ? NULL
                    : readable_copy(tape, tshi_transit(tape, "redistribute", tshi_gradient_whole(x), axis, layout));
}

/* Redistributes between meshes by one box exchange. */
static tsh_tensor *move_to_mesh(tsh_tape *tape, tsh_tensor *x, const tsh_mesh *mesh, const tsh_shape *shape,
                                const tsh_layout *to) {
    tshi_plan_step step = tshi_plan_start(x, 0);
    if (tshi_layouts_have_local(x->mesh->axes, x->layout) || tshi_layouts_have_local(mesh->axes, to)) {
        return tshi_tape_fail(tape, TSH_ERR_LAYOUT,
                              "redistribute: %s goes from mesh %s to mesh %s: neither may have LOCAL layouts",
                              TSHI_TENSOR_TEXT(x), TSHI_MESH_TEXT(x->mesh), TSHI_MESH_TEXT(mesh));
    }
    step.kind = TSHI_STEP_EXCHANGE;
    step.axis = -1;
    step.mesh = mesh;
    step.shape = *shape;
    memcpy(step.layout, to, sizeof step.layout);
    return tshi_step_run(tape, "redistribute", x, &step);
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
    if (tshi_tape_check(tape, status, "redistribute") != TSH_OK) return NULL;
    return mesh == x->mesh ? readable_copy(tape, tshi_to_layouts(tape, "redistribute", x, to))
                           : move_to_mesh(tape, x, mesh, &shape, to);
}

tsh_tensor *tsh_full(tsh_tape *tape, tsh_tensor *x) {
    return tsh_redistribute(tape, x, NULL, NULL);
}

/* TorchShard's four functions, each from certain layouts to one. */
static tsh_tensor *named_transition(tsh_tape *tape, tsh_tensor *x, const tsh_group *group, const char *what,
                                    unsigned from_kinds, int dim, tsh_layout to) {
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
            what, TSHI_TENSOR_TEXT(x), x->mesh->axis[axis].name);
    }
    return readable_copy(tape, tshi_transit(tape, what, x, axis, to));
}

tsh_tensor *tsh_scatter(tsh_tape *tape, tsh_tensor *x, const tsh_group *group, int dim) {
    return named_transition(tape, x, group, "scatter", 1u << TSH_KIND_REPLICATED, dim, TSH_SHARD(dim));
}

tsh_tensor *tsh_gather(tsh_tape *tape, tsh_tensor *x, const tsh_group *group, int dim) {
    return named_transition(tape, x, group, "gather", 1u << TSH_KIND_SHARD, dim, TSH_REPLICATED);
}

tsh_tensor *tsh_reduce(tsh_tape *tape, tsh_tensor *x, const tsh_group *group) {
    return named_transition(tape, x, group, "reduce", 1u << TSH_KIND_PARTIAL | 1u << TSH_KIND_LOCAL, 0, TSH_REPLICATED);
}

tsh_tensor *tsh_copy(tsh_tape *tape, tsh_tensor *x, const tsh_group *group) {
    return named_transition(tape, x, group, "copy", 1u << TSH_KIND_REPLICATED, 0, TSH_LOCAL);
}
