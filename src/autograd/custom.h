/* Operations of a program's own: how the engine runs their functions (tshard/custom.h). */
#ifndef TSHI_CUSTOM_H
#define TSHI_CUSTOM_H

#include "autograd/tape.h"

/* The shape rule, of a program's own operation with a check of what it has written. */
tsh_status tshi_custom_shape(tsh_call *call, tsh_dtype *dtype, tsh_shape *out);
static inline tsh_status tshi_call_shape(tsh_call *call, tsh_dtype *dtype, tsh_shape *out) {
    return tshi_op_is_custom(call->op) ? tshi_custom_shape(call, dtype, out) : call->op->shape(call, dtype, out);
}

/* Runs forward, or a backward, of a program's own operation, and releases the scratch memory that it has taken. */
tsh_status tshi_custom_run(tsh_call *call, tsh_status (*function)(tsh_call *call));

#endif
