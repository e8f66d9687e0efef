#include "autograd/run/transition.h"
#include "autograd/grad/retained.h"
#include "autograd/run/call.h"
#include "autograd/run/moves.h"

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

/* With one rank nothing moves, whatever the transition. */
static const tshi_move *move_of(const tsh_call *call, bool backward) {
    const tshi_transition *row = params_of(call)->row;
    if (axis_of_call(call)->size == 1) return &tshi_moves[TSHI_MOVE_NOTHING];
    return &tshi_moves[backward ? row->backward : row->forward];
}

/* The layout of values: all ranks that share a unit hold them. */
static tsh_layout of_values(tsh_layout layout) {
    if (layout.sharing == TSH_SHARED_OWN) layout.sharing = TSH_SHARED;
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

/* The conjugate movement: from the gradient in layout `to` to a new one in layout `from`. */
static tsh_status conjugate(const tsh_call *call, const tshi_move *move, tsh_work **work, tsh_tensor **out) {
    tsh_tensor *dy = tsh_call_grad_out(call);
    const tsh_tensor *x = call->in[0];
    bool last_use = tshi_tensor_sole_owner(dy) && !tshi_gradient_is_retained(call->out->gradient);
    bool share = !move->run || (move->in_place && last_use);
    tsh_status status = share ? tshi_tensor_view(dy, &x->shape, x->layout, 0, out)
                              : tshi_tensor_new(x->mesh, dy->dtype, &x->shape, x->layout, out);
    if (status != TSH_OK || !move->run) return status;
    const transition_params *p = params_of(call);
    return move->run(axis_of_call(call)->group, dy, *out, of_gradient(p->to), of_gradient(p->from), work);
}

/* Starts nothing if no other work would hide the collective, or if a schedule makes the sum. */
tsh_status tshi_transition_backward_start(tsh_call *call) {
    const tshi_move *move = move_of(call, true);
    if (!move->collective || tshi_gradient_schedule_of(call->out) || !tshi_group_overlaps(axis_of_call(call)->group))
        return TSH_OK;
    tshi_started *started = &call->started;
    tsh_status status = conjugate(call, move, &started->work, &started->result);
    if (started->work) return status;
    tshi_tensor_release(started->result);
    started->result = NULL;
    return status;
}

static tsh_status transition_backward(tsh_call *call) {
    if (tshi_gradient_schedule_of(call->out)) return tshi_grad_leave_to_schedule(call);
    tsh_work *work = call->started.work;
    tsh_tensor *dx = call->started.result;
    call->started = (tshi_started){NULL, NULL};
    tsh_status status = work ? tshi_work_wait_queued(work) : conjugate(call, move_of(call, true), NULL, &dx);
    tsh_work_release(work);
    if (status == TSH_OK) status = tshi_grad_adopt(call, 0, dx);
    tshi_tensor_release(dx);
    return status;
}

const tsh_op tshi_transition_op = {.name = "redistribute",
                                   .forward = transition_forward,
                                   .backward = transition_backward,
                                   .params_size = sizeof(transition_params),
                                   .repeats = true,
                                   .reads_no_input = true};

/* When a leaf, its cast or its copy becomes this rank's own along an axis over which this tape's schedule sums its
 * gradient, the copy's gradient goes to the schedule's target; but not past a copy whose own gradient is retained. */
static void share_target(const tsh_tape *tape, const tsh_tensor *x, int axis, const tsh_tensor *moved) {
    if (!moved->computed) return; /* x needs no gradient, and may have no state */
    if (tshi_gradient_is_retained(x->gradient)) return;
    tshi_gradient_target *target = tshi_gradient_summing(tshi_gradient_cast_leaf(x));
    if (!target || target->schedule != tape->schedule || !(target->sums >> axis & 1u)) return;
    if (tshi_gradient_divides(x->layout[axis], moved->layout[axis])) moved->gradient->target = target;
}

tsh_tensor *tshi_transition_run(tsh_tape *tape, tsh_tensor *x, const tshi_plan_step *step, bool consume) {
    int axis = step->axis;
    tsh_layout from = x->layout[axis], to = step->layout[axis];
    transition_params params = {tshi_transition_find(from, to, false), axis, from, to};
    tsh_call call = {.tape = tape, .op = &tshi_transition_op, .inputs = 1, .in = &x, .params = &params};
    const tshi_move *move = move_of(&call, false);
    bool share = !move->run || (consume && move->in_place);
    tsh_tensor *moved = tshi_call_run(&call, step, share ? x : NULL);
    if (moved && moved->computed) moved->gradient->wide = x->gradient->wide;
    if (moved) share_target(tape, x, axis, moved);
    return moved;
}
