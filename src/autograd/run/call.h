/* A call whose inputs have their layouts: how it runs, and what is recorded of it. */
#ifndef TSHI_AUTOGRAD_CALL_H
#define TSHI_AUTOGRAD_CALL_H

#include "autograd/plan/plan.h"
#include "autograd/tape.h"

/* Runs a call whose inputs have the layouts that its operation wants: makes the output as the step has it (a view of
 * `share` where that is given), runs forward and records the call. NULL on failure. */
tsh_tensor *tshi_call_run(tsh_call *call, const tshi_plan_step *step, const tsh_tensor *share);
/* Runs forward of a recorded call once more, into the same output. Not TSH_OK: the tape has failed. */
tsh_status tshi_call_run_again(tsh_call *node);
/* Runs backward of a recorded call: the first input's gradient, then `between`, then the gradients of the rest, if there
 * are any. Not TSH_OK: the tape has failed. */
tsh_status tshi_call_backward(tsh_call *node, tsh_status (*between)(tsh_call *node));

#endif
