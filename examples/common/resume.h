/* Saving a training run, and going on with one. */
#ifndef EXAMPLES_RESUME_H
#define EXAMPLES_RESUME_H

#include "tshard/tshard.h"

/* A number that must not change where a run goes on, for its batches follow from it. */
typedef struct run_number {
    const char *name;
    int64_t value;
} run_number;

enum { RUN_NUMBERS = 8 }; /* at most */

typedef struct saved_run {
    const char *program;
    tsh_parameters *parameters;
    tsh_optimizer *optimizer;
    tsh_loss_scale *scale; /* or NULL */
    const run_number *numbers;
    int count;
} saved_run;

/* Makes the folder if it is missing; false after saying why none of the run's checkpoints will get there. */
bool run_can_save(const char *program, const char *folder);
/* Saves all that the run needs to go on after so many steps, while training goes on; the folder keeps the last three.
 * Collective, as all here; false after saying why on stderr. */
bool run_save(const saved_run *r, const char *folder, int64_t steps);
/* Waits for a save that is under way. */
bool run_finish_save(const char *program, tsh_world *world);
/* Loads the newest checkpoint of the folder, which must be of a run with the same numbers. */
bool run_load(const saved_run *r, const char *folder, int64_t *steps);

#endif
