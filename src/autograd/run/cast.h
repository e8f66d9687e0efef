/* Casts to another dtype: the operation.
 *
 * A leaf may have an arithmetic (tshi_gradient): functions that take it, or what transitions make of it, compute in
 * that dtype. Their inputs of other float dtypes are cast before, once in a step, and their result has that dtype. */
#ifndef TSHI_AUTOGRAD_CAST_H
#define TSHI_AUTOGRAD_CAST_H

#include "autograd/plan/plan.h"
#include "autograd/tape.h"

typedef struct tshi_cast_params {
    tsh_dtype dtype;
} tshi_cast_params;

extern const tsh_op tshi_cast_op;
/* For calls that take inputs in their own dtype. */
extern const tshi_want tshi_as_stored;

/* Runs the step on x, and records it; NULL on failure. */
tsh_tensor *tshi_cast_run(tsh_tape *tape, tsh_tensor *x, const tshi_plan_step *step);

#endif
