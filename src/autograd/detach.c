/* tsh_detach: a tensor's values as a constant. */
#include "autograd/plan/plan.h"
#include "autograd/run/call.h"

static const tsh_op detach_op = {.name = "detach", .views = true, .reads_no_input = true};

tsh_tensor *tsh_detach(tsh_tape *tape, tsh_tensor *x) {
    if (!tshi_tape_ready(tape, "detach", 1, &x)) return NULL;
    x = tshi_gradient_whole(x);
    bool recording = tsh_tape_set_recording(tape, false);
    tshi_plan_step step = tshi_plan_start(x, 0);
    tsh_call call = {.tape = tape, .op = &detach_op, .inputs = 1, .in = &x};
    tsh_tensor *y = tshi_call_run(&call, &step, x);
    tsh_tape_set_recording(tape, recording);
    tshi_gradient *g = y && x->gradient && x->gradient->arithmetic ? tshi_gradient_of(y) : NULL;
    if (g) g->arithmetic = x->gradient->arithmetic;
    return y;
}
