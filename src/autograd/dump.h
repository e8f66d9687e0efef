/* What is known of a step, in words. */
#ifndef TSHI_AUTOGRAD_DUMP_H
#define TSHI_AUTOGRAD_DUMP_H

#include "autograd/tape.h"

#include <stdio.h>

/* Writes a line for the bytes of each leaf of the step without a name and of its gradient, and of the results of each
 * function and of what they save. */
void tshi_dump_memory(const tsh_tape *tape, FILE *to);

#endif
