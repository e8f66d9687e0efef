/* Retained gradients: of an intermediate tensor, kept past backward. */
#ifndef TSHI_RETAINED_GRADIENT_H
#define TSHI_RETAINED_GRADIENT_H

#include "autograd/grad/state.h"

extern const tshi_target_ops tshi_retained_ops;

static inline bool tshi_gradient_is_retained(const tshi_gradient *gradient) {
    return gradient->target && gradient->target->ops == &tshi_retained_ops;
}
/* The sum of a retained gradient over the backwards of this step; NULL before the first of them. */
tsh_tensor *tshi_retained_sum(const tshi_gradient *gradient);
/* Moves the gradient of this backward to the sum: the next backward starts it anew. */
tsh_status tshi_retained_add(const tsh_tensor *x);
/* Called at the end of the step: the sum is the gradient of the leaf that x becomes. */
void tshi_retained_end_step(tshi_gradient *gradient);

#endif
