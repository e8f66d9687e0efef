/* Movements between layouts in words: what they are called, and the bytes that they send. */
#ifndef TSHI_MOVEMENT_H
#define TSHI_MOVEMENT_H

#include "autograd/plan/plan.h"
#include "autograd/tape.h"

/* Writes "all_gather, 64 bytes sent; backward: reduce_scatter, 64 bytes sent" into text: what this rank sends of x, and
 * of its gradient where that is recorded. Returns text. */
char *tshi_movement_describe(const tshi_cost *cost, const tsh_tensor *x, bool recorded, char *text, size_t size);
/* Logs the step with its bytes, which TSHARD_PLAN asks for. */
void tshi_movement_log(const tsh_tape *tape, const char *what, const tsh_tensor *x, const tshi_plan_step *step);

#endif
