/* The one place that calls an operation's functions: the library's own, and a program's (tshard/custom.h). */
#ifndef TSHI_INVOKE_H
#define TSHI_INVOKE_H

#include "autograd/tape.h"

/* The output's dtype and global shape, as the operation's shape rule has them. */
tsh_status tshi_invoke_shape(const tsh_call *call, tsh_dtype *dtype, tsh_shape *out);
/* Runs one of the operation's functions, `part` in messages, and releases the scratch that it has taken. A function of
 * a program's that fails without a reason gets one. */
tsh_status tshi_invoke(tsh_call *call, tsh_status (*function)(tsh_call *call), const char *part);

#endif
