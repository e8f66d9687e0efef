/* train_text: a language model that predicts the next byte of a text from the bytes before it, split over ranks.
 *
 *   options.c  the command line
 *   model.c    the model: layers, a training step, writing
 *   main.c     the training loop, its batches, and what it prints
 *
 * Text, command line and checkpoints are read by ../common. */
#ifndef TRAIN_TEXT_H
#define TRAIN_TEXT_H

#include "text.h"
#include "tshard/tshard.h"

typedef struct options {
    const char *text;   /* a file, or NULL for the project's own sources */
    const char *save;   /* a folder for checkpoints, or NULL */
    const char *resume; /* a folder of checkpoints or of one, to go on from, or NULL */
    int64_t steps, every, batch, context, embed, hidden;
    double lr;
    uint64_t seed;
    const char *model_parallel; /* ranks that share one copy of the model, as in a mesh's text; NULL: all */
    int64_t sample;             /* bytes to write after training */
    bool json;
} options;

/* -1 to continue, or an exit code. Only a rank that `speaks` prints, because all ranks find the same mistake. */
int options_parse(int argc, char **argv, bool speaks, options *out);

typedef struct model model;

/* Collective. NULL after printing why to stderr. */
model *model_create(tsh_world *world, const options *o, int64_t vocabulary);
void model_destroy(model *m);

/* One step on a whole batch; this rank takes its part of it. *loss is the loss before the step. Collective. */
bool model_step(model *m, const int64_t *inputs, const int64_t *targets, double lr, double *loss);

/* Save in the background all that is needed to resume after this many steps; load it. Collective; false after printing
 * why to stderr. */
bool model_save(model *m, const text *t, int64_t steps);
bool model_load(model *m, const text *t, int64_t *steps);
/* Wait for a save in the background. */
bool model_finish_save(model *m);

/* The probabilities of the symbol after inputs [context]; NULL on failure. Collective; valid until the next call. */
const float *model_predict(model *m, const int64_t *inputs);

#endif
