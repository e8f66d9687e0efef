/* Casts, and the dtype that functions compute in.
 *
 * A leaf may have an arithmetic (tshi_gradient): functions that take it, or what transitions make of it, compute in that
 * dtype. Their inputs of other float dtypes are cast before, once in a step, and their result has that dtype. A cast
 * comes before transitions, which then move what the function takes. */
#ifndef TSHI_AUTOGRAD_CAST_H
#define TSHI_AUTOGRAD_CAST_H

#include "autograd/call.h"

/* The engine's part of operations that take inputs in their own dtype. */
extern const tshi_engine_op tshi_as_stored;

/* tsh_cast. */
tsh_tensor *tshi_cast(tsh_tape *tape, tsh_tensor *x, tsh_dtype dtype);
/* Casts the inputs of a call one of which at least has an arithmetic; the widest counts where several have one. A failure
 * may stand on the tape already. */
tsh_status tshi_cast_inputs(tsh_call *call);
/* y, which is made of x's elements as they are, in the arithmetic of x, which it has from now on. NULL on failure, and
 * for a y that is NULL. */
tsh_tensor *tshi_cast_as(tsh_tape *tape, tsh_tensor *y, const tsh_tensor *x);

#endif
