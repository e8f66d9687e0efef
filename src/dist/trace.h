/* Collectives, messages and waits as events of a trace; starting and ending one. */
#ifndef TSHI_DIST_TRACE_H
#define TSHI_DIST_TRACE_H

#include "device/trace.h"
#include "dist/world.h"

/* For calls of a world that is traced. */

/* The event of a call that starts now; `number`: of a collective among those of its group, of a send among those to its
 * peer. NULL for what is not traced: calls in a group of one rank, and tickets. */
tshi_trace_event *tshi_traced_call(tsh_group *group, const tshi_call *call, int64_t number, bool blocks);
/* The number of the call that is made now; 0 for a receive, which gets the number of what it has received. */
int64_t tshi_traced_number(tsh_group *group, const tshi_call *call);
/* The work has ended. */
void tshi_traced_end(tsh_work *work);
/* The event of a wait that begins now, for a work under way, and its end. */
tshi_trace_event *tshi_traced_wait(const tsh_work *work);
void tshi_traced_waited(const tsh_work *work, tshi_trace_event *wait);
/* The ranks of the group compare texts. */
tshi_trace_event *tshi_traced_agree(tsh_group *group);

/* As TSHARD_TRACE wants. */
tsh_status tshi_trace_from_environment(tsh_world *world);
/* The trace of a world that is about to be destroyed ends; failures are logged. */
void tshi_trace_leave(tsh_world *world);

#endif
