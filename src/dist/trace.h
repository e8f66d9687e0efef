/* The trace of a world starts and ends. */
#ifndef TSHI_DIST_TRACE_H
#define TSHI_DIST_TRACE_H

#include "dist/world.h"

/* Starts a trace where TSHARD_TRACE names a folder. */
tsh_status tshi_trace_from_environment(tsh_world *world);
/* The trace of a world that is about to be destroyed ends; failures are logged. */
void tshi_trace_leave(tsh_world *world);

#endif
