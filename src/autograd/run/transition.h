/* Transitions along one axis as an operation, whose backward is the conjugate transition. */
#ifndef TSHI_TRANSITION_H
#define TSHI_TRANSITION_H

#include "autograd/plan/plan.h"
#include "autograd/tape.h"

extern const tsh_op tshi_transition_op;

/* Runs the step on x, and records it; NULL on failure. consume: nothing uses x after this call, so that it may be
 * changed in place. */
tsh_tensor *tshi_transition_run(tsh_tape *tape, tsh_tensor *x, const tshi_plan_step *step, bool consume);

static inline bool tshi_is_transition(const tsh_call *call) {
    return call->op == &tshi_transition_op;
}
/* Called when the gradient of a transition's output is complete: starts the collective of its backward in
 * call->started, if there is one; backward waits for it. */
tsh_status tshi_transition_backward_start(tsh_call *call);

#endif
