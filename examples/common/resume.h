/* Saving and resuming a training run. */
#ifndef EXAMPLES_RESUME_H
#define EXAMPLES_RESUME_H

#include "tshard/tshard.h"

/* A number that must be the same when a run is resumed, because its batches depend on it. */
typedef struct run_number {
    const char *name;
    int64_t value;
} run_number;

enum { RUN_NUMBERS = 8 }; /* at most */

typedef struct saved_run {
    const char *program;
    const tsh_world *world;
    tsh_parameters *parameters;
    tsh_optimizer *optimizer;
    tsh_loss_scale *scale; /* or NULL */
    const run_number *numbers;
    int count;
    bool other_states; /* the checkpoint may be of a run that trained other parameters */
} saved_run;

/* Creates the folder if it is missing; false after printing why checkpoints cannot be saved there. */
bool run_can_save(const char *program, const char *folder);
/* Saves in the background all that is needed to resume after this many steps; the folder keeps the last three
 * checkpoints. Collective, like all functions here; false after printing why to stderr. */
bool run_save(const saved_run *r, const char *folder, int64_t steps);
/* Waits for a save in the background. */
bool run_finish_save(const char *program, tsh_world *world);
/* Loads the newest checkpoint of the folder, which must be of a run with the same numbers. */
bool run_load(const saved_run *r, const char *folder, int64_t *steps);

#endif
