/* A small language model such as one trains on text: vocabulary-parallel embedding, column, GELU, row, column head,
 * vocabulary-parallel cross entropy, clipping, AdamW. Sizes that nothing divides. */
#ifndef TSHI_TEST_LANGUAGE_H
#define TSHI_TEST_LANGUAGE_H

#include "tshard/tshard.h"

typedef struct tshi_language {
    tsh_world *world;
    tsh_mesh *mesh;
    tsh_tape *tape;
    tsh_embedding *embedding;
    tsh_linear *up, *down, *head;
    tsh_parameters *parameters;
    tsh_optimizer *optimizer;
    tsh_zero_level level;
    tsh_data_parallel *copies; /* on a mesh with an axis "data", or NULL */
    tsh_tensor *inputs, *targets;
    bool recompute; /* for the program to set: all up to the head runs again in backward */
} tshi_language;

/* Creates the model on a mesh such as "data=-1,model=2". On failure everything is destroyed, and tsh_error_message()
 * says why. Collective. */
tsh_status tshi_language_create(tsh_world *world, const char *axes, tshi_language *out);
/* Over the axis "data", what the level says is shared out. */
tsh_status tshi_language_create_sharded(tsh_world *world, const char *axes, tsh_zero_level level, tshi_language *out);
/* The same without a schedule and an optimizer, which the next two create. */
tsh_status tshi_language_create_bare(tsh_world *world, const char *axes, tsh_zero_level level, tshi_language *out);
tsh_status tshi_language_share(tshi_language *l);
tsh_status tshi_language_optimize(tshi_language *l);
void tshi_language_destroy(tshi_language *l);

/* The mean loss of its one batch, on the tape. */
tsh_tensor *tshi_language_loss(tshi_language *l);
/* Forward and backward of its one batch, and clipping: everything that communicates or allocates memory. Sets *loss and
 * *norm, that of the gradient, on success. After a failure the tape is reset and the world recovered, and `words`
 * (TSHI_TEST_WORDS bytes or NULL) gets the message. */
tsh_status tshi_language_gradients(tshi_language *l, double *loss, double *norm, char *words);
/* The rest of a step. */
tsh_status tshi_language_update(tshi_language *l);

#endif
