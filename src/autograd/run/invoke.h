/* The only place that calls an operation's functions, the library's and a program's. */
#ifndef TSHI_INVOKE_H
#define TSHI_INVOKE_H

#include "autograd/tape.h"

/* Runs the operation's shape rule: the output's dtype and global shape. */
tsh_status tshi_invoke_shape(const tsh_call *call, tsh_dtype *dtype, tsh_shape *out);
/* The status of `part`, which has failed. If it has recorded no message since `before` (tshi_failures), it gets one:
 * that of an older failure would mislead. */
TSHI_RARE tsh_status tshi_invoke_failed(const tsh_call *call, const char *part, uint64_t before, tsh_status status);
/* Runs one of the operation's functions, named `part` in messages, and releases its scratch. A program's function that
 * fails without a message gets one. */
static inline tsh_status tshi_invoke(tsh_call *call, tsh_status (*function)(tsh_call *call), const char *part) {
    tsh_tape *tape = call->tape;
    uint64_t before = tshi_failures();
    tape->inside = call->op;
    tsh_status status = function(call);
    tape->inside = NULL;
    while (tape->scratch_count > 0) tshi_tensor_release(tape->scratch[--tape->scratch_count]);
    if (status != TSH_OK) return tshi_invoke_failed(call, part, before, status);
    return tape->status; /* it may have called what it must not, and gone on */
}

#endif
