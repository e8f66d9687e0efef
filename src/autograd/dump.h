/* A step as text. */
#ifndef TSHI_AUTOGRAD_DUMP_H
#define TSHI_AUTOGRAD_DUMP_H

#include "autograd/tape.h"

#include <stdio.h>

/* Writes a line with the bytes of each unnamed leaf of the step, of its gradient, and of each function's results and
 * saved tensors. */
void tshi_dump_memory(const tsh_tape *tape, FILE *to);

#endif
