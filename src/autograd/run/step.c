#include "autograd/run/step.h"
#include "autograd/run/call.h"
#include "autograd/run/cast.h"
#include "autograd/run/exchange.h"
#include "autograd/run/memo.h"
#include "autograd/run/movement.h"
#include "autograd/run/segment.h"
#include "autograd/run/transition.h"

static const tsh_op copy_op = {
    .name = "whole", .backward = tshi_pass_gradient, .views = true, .repeats = true, .reads_no_input = true};

static tsh_tensor *run_copy(tsh_tape *tape, tsh_tensor *x, const tshi_plan_step *step) {
    tsh_call call = {.tape = tape, .op = &copy_op, .inputs = 1, .in = &x};
    tsh_tensor *copy = tshi_call_run(&call, step, x);
    if (copy) tshi_gradient_go_on(x, copy);
    return copy;
}

tsh_tensor *tshi_step_run(tsh_tape *tape, const char *what, tsh_tensor *x, const tshi_plan_step *step) {
    bool moves = step->kind == TSHI_STEP_TRANSITION || step->kind == TSHI_STEP_EXCHANGE, consume = step->input < 0;
    if (step->kind == TSHI_STEP_COPY) return run_copy(tape, x, step);
    if (moves && tape->world->logs_plans) tshi_movement_log(tape, what, x, step);
    tsh_tensor *made = tshi_memo_find(tape, x, step->dtype, step->mesh, step->layout);
    if (made) return tshi_segment_take(tape, made);
    made = step->kind == TSHI_STEP_CAST       ? tshi_cast_run(tape, x, step)
           : step->kind == TSHI_STEP_EXCHANGE ? tshi_exchange_apply(tape, x, step)
                                              : tshi_transition_run(tape, x, step, consume);
    if (!made || consume) return made;
    tsh_status status = tshi_memo_add(tape, x, made);
    return tshi_tape_check(tape, status, what) == TSH_OK ? made : NULL;
}
