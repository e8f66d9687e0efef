/* How the backward of an operation adds to the gradients of its inputs. */
#ifndef TSHI_ACCUMULATE_H
#define TSHI_ACCUMULATE_H

#include "autograd/grad/state.h"
#include "autograd/op.h"

/* Beside those of tshard/custom.h. What tsh_call_grad returns is of the input's dtype: where the gradient is wide, what
 * the call writes is added to it afterwards. The memory of tsh_call_grad_out is passed on or overwritten only through
 * tshi_grad_adopt. */

/* tsh_call_grad_adopt without its checks. */
tsh_status tshi_grad_adopt(const tsh_call *call, int i, tsh_tensor *gradient);
/* Input i's gradient for kernels that can start a sum: *beta is 0 the first time (the memory is not zeroed), then 1. */
tsh_tensor *tshi_grad_beta(const tsh_call *call, int i, double *beta);
/* tshi_grad_beta for kernels that write the dtype of sums, too: the gradient itself, of tshi_gradient_dtype. */
tsh_tensor *tshi_grad_sum(const tsh_call *call, int i, double *beta);

/* The call that made input i, if this call may do a part of that one's backward: no other call adds to the input's
 * gradient in this backward, nothing has been added yet, and only the maker's backward reads the gradient. Otherwise
 * NULL. It must be called before the gradient's memory is taken. */
tsh_call *tshi_grad_maker(const tsh_call *call, int i);

/* The target that takes the rows of input i's gradient as they are made (tshi_target_ops.take_rows), if this call makes
 * the whole gradient: no other call of this backward and no other backward adds to it. Otherwise NULL. */
tshi_gradient_target *tshi_grad_takes_rows(const tsh_call *call, int i);

/* The target of input i that adds rows one by one, where it can; else NULL. */
tshi_gradient_target *tshi_grad_adds_rows(const tsh_call *call, int i);
/* Its add_rows. `values` are the output's gradient, or scratch of the call; their memory becomes the gradient's where
 * nothing else refers to it. */
tsh_status tshi_grad_add_rows(const tsh_call *call, int i, const tsh_tensor *ids, int64_t start, int64_t padding,
                              const tsh_tensor *values);

/* The call's backward has returned `status`: what it has written beside gradients is added to them. */
tsh_status tshi_grad_settle(const tsh_call *call, tsh_status status);
/* The gradient of the call's output, a copy of a leaf that a schedule sums, is added to the leaf's: most often it is in
 * the target's memory already. */
tsh_status tshi_grad_leave_to_schedule(const tsh_call *call);

#endif
