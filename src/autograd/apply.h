/* Calls of operations: the one entry that functions use. */
#ifndef TSHI_APPLY_H
#define TSHI_APPLY_H

#include "autograd/call.h"

/* Runs a call, which has op, inputs, in, params and want: shape, layout rules, transitions, forward, record. `in` and
 * `params` are borrowed. The tape owns the result, which is NULL on failure and where an input is NULL. */
tsh_tensor *tshi_tape_apply(tsh_tape *tape, const tsh_call *proto);
static inline tsh_tensor *tshi_apply(tsh_tape *tape, const tsh_op *op, int inputs, tsh_tensor **in, void *params) {
    return tshi_tape_apply(tape, &(tsh_call){.op = op, .inputs = inputs, .in = in, .params = params});
}

#endif
