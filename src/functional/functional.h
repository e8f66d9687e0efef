/* Differentiable functions from the inside. */
#ifndef TSHI_FUNCTIONAL_H
#define TSHI_FUNCTIONAL_H

#include "autograd/tape.h"
#include "tshard/functional.h"

/* --- activations -------------------------------------------------------------------------------------------------- */

/* y = f(x W^T + b) in one pass where the device can; f TSHI_UNARY_COUNT: tsh_affine. Layouts as there but for the row
 * entry: f of a sum over ranks is not the sum of f. What is recorded are two calls, the product and f. */
tsh_tensor *tshi_affine(tsh_tape *tape, tsh_tensor *x, tsh_tensor *weight, tsh_tensor *bias, tshi_unary f);
/* y = f(x); f TSHI_UNARY_COUNT: x. with_product: x's call has left its product to this one. */
tsh_tensor *tshi_activate(tsh_tape *tape, tsh_tensor *x, tshi_unary f, bool with_product);
/* x's product, and y = f(x), at once. */
tsh_status tshi_affine_late(const tsh_tape *tape, tshi_unary f, tsh_tensor *x, tsh_tensor *y);

#endif
