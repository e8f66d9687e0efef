/* The only place that calls an operation's functions, the library's and a program's. */
#ifndef TSHI_INVOKE_H
#define TSHI_INVOKE_H

#include "autograd/tape.h"

/* Runs the operation's shape rule: the output's dtype and global shape. */
tsh_status tshi_invoke_shape(const tsh_call *call, tsh_dtype *dtype, tsh_shape *out);
/* Runs one of the operation's functions, named `part` in messages, and releases its scratch. A program's function that
 * fails without a message gets one. */
tsh_status tshi_invoke(tsh_call *call, tsh_status (*function)(tsh_call *call), const char *part);

#endif
