/* The model of a program on a mesh, and the losses of its batch. */
#ifndef TSHI_TEST_TRAINING_MODEL_H
#define TSHI_TEST_TRAINING_MODEL_H

#include "support/ranks.h"
#include "training_steps/program.h"

enum { MOST_PIECES = 3, MOST_LOSSES = 3 };

/* A part's layers and its parameter, NULL where the part has none of the kind. */
typedef struct tshi_layers {
    tsh_linear *first, *second;
    tsh_norm *norm;
    tsh_block *block;
    tsh_tensor *leaf;
} tshi_layers;

/* A micro-batch: some of the sequences. */
typedef struct tshi_model_piece {
    int64_t sequences, here; /* here: those that tensors have, which are a rank's own where losses are averaged */
    tsh_tensor *ids, *classes, *numbers, *lengths;
} tshi_model_piece;

typedef struct tshi_model {
    const tshi_training_program *p;
    const tshi_training_phase *phase;
    bool exact; /* float64, whatever the program says */
    int pieces, step;
    tsh_mesh *mesh;
    tsh_group *data, *along; /* the axes data and model */
    tsh_tape *tape;
    tsh_parameters *list;
    tsh_embedding *table[2];
    tshi_layers part[MOST_PARTS];
    tsh_linear *head;
    /* Of the last forward, with gradients where the program reads them: what the tables give, and transposes of
     * parameters, each part's. */
    tsh_tensor *looked[1 + MOST_PARTS];
    /* Parts' parameters as each rank's own in the last forward, where losses are averaged; with gradients. */
    tsh_tensor *own[MOST_PARTS];
    tsh_tensor *positions;
    tshi_model_piece piece[MOST_PIECES];
} tshi_model;

/* The members above `mesh` are the caller's. The parameters have the program's values where `written`. */
bool tshi_model_open(tshi_rank *r, tshi_model *m, bool written);
/* The parameters of the first part are frozen. */
bool tshi_model_freezes(const tshi_training_program *p);
/* Early: a schedule of data parallelism replaces the values of all ranks but the first. */
bool tshi_model_write(tshi_rank *r, const tshi_model *m, bool early);
void tshi_model_close(tshi_model *m);
tsh_precision tshi_model_precision(const tshi_model *m);
/* The losses of a piece, each with its share of the batch; returns how many, 0 on failure. */
int tshi_model_losses(tshi_model *m, tsh_tape *tape, int piece, tsh_tensor **losses);
/* Elements of the dtype, from whole values that are exact in all of them. The caller frees them. */
void *tshi_model_values(const tshi_training_program *p, uint64_t salt, tsh_dtype dtype, int64_t count, bool ones);
/* The number of elements of the whole tensor. */
int64_t tshi_model_numel(const tsh_tensor *t);

#endif
