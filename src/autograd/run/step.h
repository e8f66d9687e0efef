/* Steps of plans, forward. */
#ifndef TSHI_STEP_H
#define TSHI_STEP_H

#include "autograd/plan/plan.h"
#include "autograd/tape.h"

/* x after a step that is no kernel: made now, or found where the step has been made of x before. NULL on failure, in
 * the name of `what`. */
tsh_tensor *tshi_step_run(tsh_tape *tape, const char *what, tsh_tensor *x, const tshi_plan_step *step);

#endif
