/* trace: what ranks do when, in files that tshard-trace makes tables and pictures of (docs/tracing.md).
 *
 * TSHARD_TRACE=FOLDER traces a whole run without any of these calls; all ranks have it, or none.
 *
 * Thread safety: everything here is for the world's thread. */
#ifndef TSHARD_TRACE_H
#define TSHARD_TRACE_H

#include "tshard/dist.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Begin to trace: rank R writes functions, kernels, collectives, messages, steps of optimizers and bytes in use to
 * FOLDER/rank.R, which is made, or made anew. The ranks compare their clocks. The file holds what has been traced also
 * when the process is killed; it stops growing at 1 GiB, with a warning. Collective over the world; waits. No
 * collective or message is under way. TSH_ERR_STATE where the world is traced already or in a planned run,
 * TSH_ERR_SYSTEM, TSH_ERR_MEMORY; where one rank fails its peers return TSH_ERR_PEER, and no rank traces. */
TSH_API tsh_status tsh_trace_start(tsh_world *world, const char *folder);
/* Stop tracing: the file is whole. tsh_world_destroy does it too. Nothing happens where nothing is traced. Collective
 * over the world; ranks of several machines compare their clocks again, and wait. */
TSH_API tsh_status tsh_trace_stop(tsh_world *world);

/* A range of the program's own, by a name that is copied; ranges may lie inside of each other, and `end` ends the
 * one that was begun last. They do nothing while nothing is traced, and for NULL. Not collective. */
TSH_API void tsh_trace_begin(tsh_world *world, const char *name);
TSH_API void tsh_trace_end(tsh_world *world);

#ifdef __cplusplus
}
#endif

#endif
