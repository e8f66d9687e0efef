/* Transitions along one axis: the operation, whose backward is the conjugate one. */
#ifndef TSHI_TRANSITION_H
#define TSHI_TRANSITION_H

#include "autograd/plan/plan.h"
#include "autograd/tape.h"

/* x after the step, recorded; NULL on failure. consume: x is an intermediate that nothing uses after this call, and its
 * memory may be used in place. */
tsh_tensor *tshi_transition_run(tsh_tape *tape, tsh_tensor *x, const tshi_plan_step *step, bool consume);

#endif
