/* What a record and a trace get to know of functions. */
#ifndef TSHI_OBSERVE_H
#define TSHI_OBSERVE_H

#include "autograd/op.h"

/* For a device of which something is noted (tshi_is_noted): a call begins, and has ended. */
void tshi_observe_enter(const tsh_call *call);
void tshi_observe_leave(const tsh_call *call);

#endif
