/* Calls of operations: the one entry that functions use. */
#ifndef TSHI_APPLY_H
#define TSHI_APPLY_H

#include "autograd/tape.h"

/* Runs a call of op: its plan is made, or known, its steps run, and it goes on the tape if a gradient may be asked of
 * it. `in` and `params` are borrowed; want: NULL where no layer calls. The tape owns the result, which is NULL on
 * failure and where an input is NULL. */
tsh_tensor *tshi_apply_as(tsh_tape *tape, const tsh_op *op, int inputs, tsh_tensor *const *in, void *params,
                          const tshi_want *want);
static inline tsh_tensor *tshi_apply(tsh_tape *tape, const tsh_op *op, int inputs, tsh_tensor *const *in,
                                     void *params) {
    return tshi_apply_as(tape, op, inputs, in, params, NULL);
}

#endif
