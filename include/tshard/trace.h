/* trace: writes each rank's timeline to a file; tshard-trace draws tables and pictures from the files
 * (docs/tracing.md).
 *
 * TSHARD_TRACE=FOLDER, set on all ranks or on none, traces a whole run without any of these calls.
 *
 * Thread safety: everything here is for the world's thread. */
#ifndef TSHARD_TRACE_H
#define TSHARD_TRACE_H

#include "tshard/dist.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Start a trace: rank R writes its functions, kernels, collectives, messages, optimizer steps and bytes in use to
 * FOLDER/rank.R, which is created or overwritten. The ranks compare their clocks. The file is complete even if the
 * process is killed; it stops growing at 1 GiB, with a warning. Collective over the world; waits. No collective or
 * message may be in flight. TSH_ERR_STATE when the world is already traced or in a dry run, TSH_ERR_SYSTEM,
 * TSH_ERR_MEMORY; when one rank fails, its peers return TSH_ERR_PEER, and no rank traces. */
TSH_API tsh_status tsh_trace_start(tsh_world *world, const char *folder);
/* Stop the trace, and complete the file; tsh_world_destroy does it too. Does nothing without a trace. Collective over
 * the world; ranks on several machines compare their clocks again, and wait. */
TSH_API tsh_status tsh_trace_stop(tsh_world *world);

/* A range of the program, with a name that is copied; ranges may be nested, and tsh_trace_end ends the innermost one.
 * They do nothing without a trace, and for NULL. Not collective. */
TSH_API void tsh_trace_begin(tsh_world *world, const char *name);
TSH_API void tsh_trace_end(tsh_world *world);

#ifdef __cplusplus
}
#endif

#endif
