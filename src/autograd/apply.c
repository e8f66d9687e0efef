/* A call of an operation: ready, plan, run each step, record, return. */
#include "autograd/apply.h"
#include "autograd/plan/plan.h"
#include "autograd/run/call.h"
#include "autograd/run/invoke.h"
#include "autograd/run/step.h"
#include "dist/group.h"

/* Resolves a negative dim of the call. */
static tsh_status resolve_dim(tsh_call *call) {
    const tsh_tensor *x = call->in[0];
    int *dim = call->params, d = *dim < 0 ? *dim + x->shape.ndim : *dim;
    if (d < 0 || d >= x->shape.ndim) {
        return tshi_fail(TSH_ERR_SHAPE, "dim %d of %s does not exist", *dim, TSHI_TENSOR_TEXT(x));
    }
    *dim = d;
    return TSH_OK;
}

/* The widest arithmetic of the inputs, in which the call computes; TSH_UINT8 if no input has one. */
static tsh_dtype widest_arithmetic(int inputs, tsh_tensor *const *in) {
    tsh_dtype widest = TSH_UINT8;
    for (int i = 0; i < inputs; i++) {
        if (!in[i]->gradient || !in[i]->gradient->arithmetic) continue;
        tsh_dtype dtype = tshi_gradient_computed_in(in[i]);
        if (tsh_dtype_size(dtype) > tsh_dtype_size(widest)) widest = dtype;
    }
    return widest;
}

/* The inputs, with whole parameters in place of slices; NULL with the message set. */
static inline tsh_tensor **take_inputs(tsh_tape *tape, const tsh_op *op, int inputs, tsh_tensor *const *in) {
    tsh_tensor **given = tshi_plans_inputs(tape->plans, inputs);
    for (int i = 0; given && i < inputs; i++) {
        given[i] = tshi_gradient_whole(in[i]);
        if (tape->schedule && in[i]->parameter && !in[i]->listed) tshi_gradient_leave_out(in[i], op->name);
    }
    return given;
}

/* Replaces inputs that will be cast by copies of their metadata. */
static tsh_status take_casts(tsh_call *call) {
    tsh_tensor **given = call->in, **in = given + call->inputs;
    tsh_dtype dtype = widest_arithmetic(call->inputs, given);
    if (dtype == TSH_UINT8) return TSH_OK;
    tsh_tensor *copies = tshi_plans_copies(call->tape->plans, call->inputs);
    if (!copies) return TSH_ERR_MEMORY;
    for (int i = 0; i < call->inputs; i++) {
        in[i] = given[i];
        if (given[i]->dtype == dtype || !tshi_differentiable(given[i])) continue;
        copies[i] = *given[i];
        copies[i].dtype = dtype;
        copies[i].storage = NULL;
        in[i] = &copies[i];
    }
    call->in = in;
    return TSH_OK;
}

static tsh_status choose_plan(tsh_call *call, const tshi_want *want, const tshi_plan **plan) {
    tsh_dtype dtype = TSH_FLOAT32;
    tsh_shape shape = {0};
    tsh_tensor **given = call->in;
    tsh_status status = want && want->as_stored ? TSH_OK : take_casts(call);
    if (status == TSH_OK) status = tshi_invoke_shape(call, &dtype, &shape);
    const tshi_goal goal = {dtype, &shape, want, call->tape->world->deterministic, call->tape->recording};
    if (status == TSH_OK) status = tshi_plans_get(call->tape->plans, call, given, &goal, plan);
    call->in = given;
    return status;
}

/* True when some input is SHARD along the axis, and another LOCAL. */
static bool mixes_shard_and_local(const tsh_call *call, int axis) {
    unsigned kinds = 0;
    for (int i = 0; i < call->inputs; i++) kinds |= 1u << call->in[i]->layout[axis].kind;
    return kinds >> TSH_KIND_SHARD & kinds >> TSH_KIND_LOCAL & 1u;
}

/* Compares transitions between ranks: beside a LOCAL input they may depend on its sizes, which ranks do not know of
 * each other. */
static tsh_status compare_moves(const tsh_call *call, const tshi_plan *plan, int axis) {
    const tsh_mesh *mesh = call->in[0]->mesh;
    char text[TSHI_LINE];
    snprintf(text, sizeof text,
             "SHARD and LOCAL inputs, where the same dims of LOCAL inputs repeat on all ranks: along %s",
             mesh->axis[axis].name);
    for (int k = 0; k < plan->count; k++) {
        const tshi_plan_step *step = &plan->step[k];
        bool moves = step->kind == TSHI_STEP_TRANSITION || step->kind == TSHI_STEP_EXCHANGE;
        if (step->input < 0 || !moves) continue;
        tshi_append(text, sizeof text, " input %d becomes %s", step->input,
                    TSHI_LAYOUT_TEXT(step->layout[axis], &step->mesh->axis[axis]));
    }
    return tshi_group_agree(tsh_mesh_axis_group(mesh, axis), text, TSH_OK);
}

static tsh_status check_moves(const tsh_call *call, const tshi_plan *plan) {
    const tsh_mesh *mesh = call->in[0]->mesh;
    tsh_status status = TSH_OK;
    for (int a = 0; a < mesh->axes && tshi_mesh_has_me(mesh) && status == TSH_OK; a++) {
        if (mixes_shard_and_local(call, a)) status = compare_moves(call, plan, a);
    }
    return status;
}

static inline tsh_tensor *run_plan(tsh_call *call, const tshi_plan *plan) {
    tsh_tensor *y = NULL;
    for (int k = 0; k < plan->count; k++) {
        const tshi_plan_step *step = &plan->step[k];
        tsh_tensor **x = step->input < 0 ? &y : &call->in[step->input];
        *x = step->kind == TSHI_STEP_KERNEL ? tshi_call_run(call, step, call->op->views ? call->in[0] : NULL)
                                            : tshi_step_run(call->tape, call->op->name, *x, step);
        if (!*x) return NULL;
    }
    return y;
}

tsh_tensor *tshi_apply_as(tsh_tape *tape, const tsh_op *op, int inputs, tsh_tensor *const *in, void *params,
                          const tshi_want *want) {
    tsh_call call = {.tape = tape, .op = op, .inputs = inputs, .params = params};
    const tshi_plan *plan = NULL;
    if (!tshi_tape_ready(tape, op->name, inputs, in)) return NULL;
    call.in = take_inputs(tape, op, inputs, in);
    tsh_status status = call.in ? TSH_OK : TSH_ERR_MEMORY;
    if (status == TSH_OK && op->has_dim) status = resolve_dim(&call);
    if (status == TSH_OK) status = tshi_plans_usual(tape->plans, &call, want, tape->recording, &plan);
    if (status == TSH_OK && !plan) status = choose_plan(&call, want, &plan);
    if (status == TSH_OK && tape->world->checked) status = check_moves(&call, plan);
    return tshi_tape_check(tape, status, op->name) == TSH_OK ? run_plan(&call, plan) : NULL;
}
