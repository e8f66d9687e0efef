/* How the backward of an operation adds to the gradients of its inputs. */
#ifndef TSHI_ACCUMULATE_H
#define TSHI_ACCUMULATE_H

#include "autograd/grad/state.h"
#include "autograd/op.h"

/* In addition to tshard/custom.h. tsh_call_grad returns memory in the input's dtype; if the gradient is wide, it is
 * added to the gradient afterwards. Only tshi_grad_adopt may pass on or overwrite the memory of tsh_call_grad_out. */

/* tsh_call_grad_adopt without its checks. */
tsh_status tshi_grad_adopt(const tsh_call *call, int i, tsh_tensor *gradient);
/* Input i's gradient, for kernels with a beta: *beta is 0 the first time (the memory is not zeroed), then 1. */
tsh_tensor *tshi_grad_beta(const tsh_call *call, int i, double *beta);
/* tshi_grad_beta for kernels that can also write the dtype of sums: the gradient itself, in tshi_gradient_dtype. */
tsh_tensor *tshi_grad_sum(const tsh_call *call, int i, double *beta);

/* The call that made input i, if this call may do part of that call's backward: only this call adds to the input's
 * gradient, and only that call's backward reads it. Otherwise NULL. Call it before the gradient gets memory. */
tsh_call *tshi_grad_maker(const tsh_call *call, int i);

/* The target that takes the rows of input i's gradient as they are computed (tshi_target_ops.take_rows), if this call
 * computes the whole gradient. Otherwise NULL. */
tshi_gradient_target *tshi_grad_takes_rows(const tsh_call *call, int i);

/* Input i's target if it can add single rows, else NULL. */
tshi_gradient_target *tshi_grad_adds_rows(const tsh_call *call, int i);
/* Calls its add_rows. `values` is the output's gradient or scratch of the call; its memory may become the gradient's if
 * nothing else refers to it. */
tsh_status tshi_grad_add_rows(const tsh_call *call, int i, const tsh_tensor *ids, int64_t start, int64_t padding,
                              const tsh_tensor *values);

/* Called when the call's backward has returned `status`: adds terms in separate memory to the gradients. */
tsh_status tshi_grad_settle(const tsh_call *call, tsh_status status);
/* Adds the gradient of the call's output, a copy of a leaf that a schedule sums, to the leaf's, unless it is already in
 * the target's memory. */
tsh_status tshi_grad_leave_to_schedule(const tsh_call *call);

#endif
