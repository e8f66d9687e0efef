/* What the main function of every program begins and ends with. */
#ifndef EXAMPLES_PROGRAM_H
#define EXAMPLES_PROGRAM_H

#include "tshard/tshard.h"

/* The world of the ranks that were started together; NULL after printing why to stderr. stdout is flushed after each
 * line, also into a pipe. */
tsh_world *program_begin(const char *program);

/* Ends the world. The exit code: the given one, or 1 if not all of the output could be written. */
int program_end(const char *program, tsh_world *world, int code);

#endif
