/* Exchanges: calls that move a tensor between layouts of all axes at once, or between meshes. */
#ifndef TSHI_AUTOGRAD_EXCHANGE_H
#define TSHI_AUTOGRAD_EXCHANGE_H

#include "autograd/tape.h"

/* x on `mesh` in these layouts, recorded; no layout of either side is LOCAL. NULL on failure. */
tsh_tensor *tshi_exchange_record(tsh_tape *tape, tsh_tensor *x, const tsh_mesh *mesh, const tsh_shape *shape,
                                 const tsh_layout layout[TSH_MAX_AXES]);
/* Writes "all_gather, 64 bytes sent; backward: reduce_scatter, 64 bytes sent" into text: what this rank sends of x, and of
 * its gradient where that is recorded. Returns text. */
char *tshi_cost_describe(const tshi_cost *cost, const tsh_tensor *x, bool recorded, char *text, size_t size);
/* Logs the step with its bytes, which TSHARD_PLAN asks for. */
void tshi_log_step(const tsh_tape *tape, const char *what, const tsh_tensor *x, const tsh_mesh *mesh,
                   const tshi_plan_step *step);

#endif
