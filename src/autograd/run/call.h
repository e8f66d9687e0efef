/* Running and recording a call whose inputs have their final layouts. */
#ifndef TSHI_AUTOGRAD_CALL_H
#define TSHI_AUTOGRAD_CALL_H

#include "autograd/plan/plan.h"
#include "autograd/tape.h"

/* Runs a call whose inputs have the layouts that its operation wants: creates the step's output (a view of `share`
 * unless that is NULL), runs forward and records the call. NULL on failure. */
tsh_tensor *tshi_call_run(tsh_call *call, const tshi_plan_step *step, const tsh_tensor *share);
/* Runs forward of a recorded call again, into the same output. A failure is recorded in the tape. */
tsh_status tshi_call_run_again(tsh_call *node);
/* Runs backward of a recorded call: the first input's gradient, then `between`, then the other inputs' gradients, if
 * any. A failure is recorded in the tape. */
tsh_status tshi_call_backward(tsh_call *node, tsh_status (*between)(tsh_call *node));

#endif
