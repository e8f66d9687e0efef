/* What the C blocks of README.md and docs/ take for granted: names of tensors, layers and ranks that a page uses in
 * passing. A block declares the rest itself, or in a comment before it (tests/docs/blocks.py). */
#include <tshard/tshard.h>

#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

extern tsh_world *world;
extern tsh_mesh *mesh;
extern tsh_group *group, *model, *data;
extern tsh_tape *tape;
extern tsh_parameters *list, *parameters;
extern tsh_optimizer *optimizer;
extern tsh_tensor *x, *target;
extern tsh_status st;
extern int rank, steps, layers, step;
int fail(); /* of whatever the program says */
