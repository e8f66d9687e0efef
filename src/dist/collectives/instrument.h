/* What is kept of calls: the counters of their group, the record of a run, and the events of a trace. */
#ifndef TSHI_INSTRUMENT_H
#define TSHI_INSTRUMENT_H

#include "device/trace.h"
#include "dist/world.h"

/* The axis that the group is, or whose ranks it has; "group" where there is none. */
const char *tshi_group_axis(const tsh_group *group);

/* Adds a finished call to the counters of its group. early: it was started before its result was needed. */
void tshi_group_count(tsh_group *group, const tshi_comm_call *call, bool early);
/* The same, for a call in which this rank has sent `bytes` bytes. */
void tshi_group_count_bytes(tsh_group *group, const tshi_comm_call *call, uint64_t bytes, bool early);

/* --- events, for calls of a world that is traced ------------------------------------------------------------------ */

/* The event of a call that starts now; `number`: of a collective among those of its group, of a send among those to its
 * peer. NULL for what is not traced: calls in a group of one rank. */
tshi_trace_event *tshi_traced_call(tsh_group *group, const tshi_comm_call *call, int64_t number, bool blocks);
/* The number of the call that is made now; 0 for a receive, which gets the number of what it has received. */
int64_t tshi_traced_number(tsh_group *group, const tshi_comm_call *call);
/* Closes the event of a work that has ended. */
void tshi_traced_end(tsh_work *work);
/* The event of a wait that begins now, for a work under way, and its end. */
tshi_trace_event *tshi_traced_wait(const tsh_work *work);
void tshi_traced_waited(const tsh_work *work, tshi_trace_event *wait);
/* The event of an agreement that begins now. */
tshi_trace_event *tshi_traced_agree(tsh_group *group);

#endif
