/* Transitions along one axis: the operation, whose backward is the conjugate one. */
#ifndef TSHI_TRANSITION_H
#define TSHI_TRANSITION_H

#include "autograd/plan/plan.h"
#include "autograd/tape.h"

extern const tsh_op tshi_transition_op;

/* x after the step, recorded; NULL on failure. consume: x is an intermediate that nothing uses after this call, and its
 * memory may be used in place. */
tsh_tensor *tshi_transition_run(tsh_tape *tape, tsh_tensor *x, const tshi_plan_step *step, bool consume);

static inline bool tshi_is_transition(const tsh_call *call) {
    return call->op == &tshi_transition_op;
}
/* The gradient of a transition's output is complete: starts the collective of its backward, which then waits for it, and sets
 * call->started; leaves that empty where there is nothing to start. */
tsh_status tshi_transition_backward_start(tsh_call *call);

#endif
