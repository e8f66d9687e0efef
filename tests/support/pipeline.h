/* A pipeline whose values are whole numbers: its gradients are those of one rank, bit for bit. */
#ifndef TSHI_TEST_PIPELINE_H
#define TSHI_TEST_PIPELINE_H

#include "support/ranks.h"
#include "tshard/tshard.h"

#define TSHI_PIPELINE_BLOCKS 3
#define TSHI_PIPELINE_MOST   8

typedef struct tshi_pipeline_config {
    int stages, data, model; /* their product is the number of ranks */
    int micro_batches;       /* at most TSHI_PIPELINE_MOST */
    int rows, features, hidden;
    bool forwards_first; /* all forwards, then all backwards; otherwise one forward, one backward */
    bool sums;           /* a tsh_data_parallel sums gradients over data */
} tshi_pipeline_config;

typedef struct tshi_pipeline {
    tshi_rank *r;
    tshi_pipeline_config config;
    int stage;        /* this rank's */
    tsh_group *alone; /* of this rank, where the model is a whole */
    tsh_mesh *mesh, *on[TSHI_PIPELINE_BLOCKS];
    tsh_tensor *table; /* a weight of the first stage that the last one uses, too */
    tsh_linear *up[TSHI_PIPELINE_BLOCKS], *down[TSHI_PIPELINE_BLOCKS];
    tsh_tensor *x[TSHI_PIPELINE_MOST], *factors[TSHI_PIPELINE_MOST], *loss[TSHI_PIPELINE_MOST];
    tsh_tape *tape;
    tsh_parameters *list;
    tsh_optimizer *optimizer;
    tsh_data_parallel *sums;
    void (*before)(struct tshi_pipeline *p, int m, void *arg); /* called before forward m; or NULL */
    void *arg;
} tshi_pipeline;

/* Opens the model on a mesh of stages, or as a whole on each rank alone. */
bool tshi_pipeline_open(tshi_rank *r, const tshi_pipeline_config *config, tshi_pipeline *p);
bool tshi_pipeline_open_alone(tshi_rank *r, const tshi_pipeline_config *config, tshi_pipeline *p);
void tshi_pipeline_close(tshi_pipeline *p);
/* All forwards and backwards of a step, in the order that the configuration names. */
tsh_status tshi_pipeline_gradients(tshi_pipeline *p);
/* Losses, and gradients or after an optimizer's step parameters, are those of `alone`. */
void tshi_pipeline_check_gradients(const tshi_pipeline *p, const tshi_pipeline *alone, double tolerance);
void tshi_pipeline_check_parameters(const tshi_pipeline *p, const tshi_pipeline *alone, double tolerance);
/* Opens both, and compares a step. */
void tshi_pipeline_check_step(tshi_rank *r, const tshi_pipeline_config *config);

#endif
