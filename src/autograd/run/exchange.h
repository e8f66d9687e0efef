/* Box exchanges as an operation: a redistribution over all axes at once, or between meshes. */
#ifndef TSHI_AUTOGRAD_EXCHANGE_H
#define TSHI_AUTOGRAD_EXCHANGE_H

#include "autograd/plan/plan.h"
#include "autograd/tape.h"

/* Runs the step on x, and records it; no layout of either side is LOCAL. NULL on failure. */
tsh_tensor *tshi_exchange_apply(tsh_tape *tape, tsh_tensor *x, const tshi_plan_step *step);

#endif
