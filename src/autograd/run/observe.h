/* Reports functions to a record and a trace. */
#ifndef TSHI_OBSERVE_H
#define TSHI_OBSERVE_H

#include "autograd/op.h"

/* Called before and after a call, only for a device with a record or a trace (tshi_is_observed). */
void tshi_observe_enter(const tsh_call *call);
void tshi_observe_leave(const tsh_call *call);

#endif
