/* Calls of operations: the one entry that functions use. */
#ifndef TSHI_APPLY_H
#define TSHI_APPLY_H

#include "autograd/tape.h"

/* Calls op: makes or finds its plan, runs the steps, and records the call if it may need a gradient. `in` and `params`
 * are borrowed; want: NULL, or a layer's. The tape owns the result, which is NULL on failure and if an input is
 * NULL. */
tsh_tensor *tshi_apply_as(tsh_tape *tape, const tsh_op *op, int inputs, tsh_tensor *const *in, void *params,
                          const tshi_want *want);
static inline tsh_tensor *tshi_apply(tsh_tape *tape, const tsh_op *op, int inputs, tsh_tensor *const *in,
                                     void *params) {
    return tshi_apply_as(tape, op, inputs, in, params, NULL);
}

#endif
