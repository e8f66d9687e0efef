/* Transitions and exchanges as text: names, and bytes sent. */
#ifndef TSHI_MOVEMENT_H
#define TSHI_MOVEMENT_H

#include "autograd/plan/plan.h"
#include "autograd/tape.h"

/* Writes "all_gather, 64 bytes sent; backward: reduce_scatter, 64 bytes sent" into text: the bytes that this rank sends
 * of x and, if recorded, of its gradient. Returns text. */
char *tshi_movement_describe(const tshi_cost *cost, const tsh_tensor *x, bool recorded, char *text, size_t size);
/* Logs the step with its bytes, for TSHARD_PLAN. */
void tshi_movement_log(const tsh_tape *tape, const char *what, const tsh_tensor *x, const tshi_plan_step *step);

#endif
