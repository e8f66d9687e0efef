/* Differentiable functions from the inside. */
#ifndef TSHI_FUNCTIONAL_H
#define TSHI_FUNCTIONAL_H

#include "autograd/tape.h"
#include "tshard/functional.h"

/* --- activations -------------------------------------------------------------------------------------------------- */

/* y = f(x W^T + b) in one pass where the device can; f TSHI_IDENTITY: tsh_affine. With a function, the entries whose
 * output is PARTIAL are left out: f of a sum over ranks is not the sum of f. */
tsh_tensor *tshi_affine(tsh_tape *tape, tsh_tensor *x, tsh_tensor *weight, tsh_tensor *bias, tshi_unary f);
/* y = f(x); f TSHI_IDENTITY: x. */
tsh_tensor *tshi_activate(tsh_tape *tape, tsh_tensor *x, tshi_unary f);

#endif
