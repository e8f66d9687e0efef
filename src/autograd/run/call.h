/* A call whose inputs have their layouts: how it runs, and what is recorded of it. */
#ifndef TSHI_AUTOGRAD_CALL_H
#define TSHI_AUTOGRAD_CALL_H

#include "autograd/plan/plan.h"
#include "autograd/tape.h"

/* Runs a call whose inputs have the layouts that its operation wants: makes the output as the step has it (a view of
 * `share` where that is given), runs forward and records the call. NULL on failure. */
tsh_tensor *tshi_call_run(tsh_call *call, const tshi_plan_step *step, const tsh_tensor *share);
/* Memory is counted as the call's activations, and the device knows where the program is, until the call is left with
 * what `enter` has returned. */
tsh_memory_purpose tshi_call_enter(const tsh_call *call, bool backward);
void tshi_call_leave(const tsh_call *call, tsh_memory_purpose before);
/* Forward, where it runs on this rank; value sources materialize what it reads. */
tsh_status tshi_call_forward(tsh_call *call);
/* Lenders bring what the call's forward, or backward, reads. */
tsh_status tshi_call_use(const tsh_call *call, bool backward);
/* The versions of the first input, the second input, all further inputs together and the output, 16 bits each. */
uint64_t tshi_call_versions(const tsh_call *call);
/* TSH_ERR_STATE where what backward reads, or forward when it runs again, has been written since the call was
 * recorded. */
tsh_status tshi_call_check_unchanged(const tsh_call *call, bool backward);
#endif
