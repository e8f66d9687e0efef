/* Steps of plans, forward. */
#ifndef TSHI_STEP_H
#define TSHI_STEP_H

#include "autograd/plan/plan.h"
#include "autograd/tape.h"

/* Runs a step that is not a kernel on x, or finds its earlier result. NULL on failure; `what` begins the message. */
tsh_tensor *tshi_step_run(tsh_tape *tape, const char *what, tsh_tensor *x, const tshi_plan_step *step);

#endif
