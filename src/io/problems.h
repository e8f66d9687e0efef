/* Everything that is wrong with a model or a checkpoint, in one message. */
#ifndef TSHI_PROBLEMS_H
#define TSHI_PROBLEMS_H

#include "dist/world.h"

typedef struct tshi_problems {
    const tsh_world *world;
    const char *call, *path; /* begin the message */
    int count, left_out;
    char words[TSHI_MESSAGE_SIZE - 64];
} tshi_problems;

/* Adds a problem to the message, or to rank 0's log if the message is full. */
void tshi_problem(tshi_problems *p, const char *format, ...) TSH_PRINTF(2, 3);
/* TSH_OK without problems, else TSH_ERR_IO. */
tsh_status tshi_problems_report(tshi_problems *p);

#endif
