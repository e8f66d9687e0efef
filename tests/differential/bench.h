/* What one rank, or the one that holds the truth, works with: a tape, layers, optimizers; and the call of a step. */
#ifndef TSHI_TEST_BENCH_H
#define TSHI_TEST_BENCH_H

#include "differential/transformer.h"

typedef struct tshi_bench {
    const tshi_program *p;
    tsh_world *world;
    const tsh_mesh *mesh;
    tsh_group *group[TSH_MAX_AXES];
    tsh_tape *tape, *beside[MAX_TAPES]; /* the program's; those that have steps of their own */
    bool whole;                         /* layers are dense */
    tsh_linear *linear[MAX_STEPS];      /* of the steps that own one */
    tsh_embedding *embedding[MAX_STEPS];
    tshi_transformer transformer[MAX_STEPS];
    tsh_parameters *all, *stepped; /* those with gradients; those that the optimizer steps */
    tsh_optimizer *optimizer;
} tshi_bench;

/* The dtype of parameters, and of other floats, as the program's policy has it. */
tsh_dtype tshi_bench_dtype(const tshi_bench *b, bool parameter);
/* The rest of a bench whose p, world, mesh and whole are set. Close it in any case. */
tsh_status tshi_bench_open(tshi_bench *b);
void tshi_bench_close(tshi_bench *b);

/* The layer that a step owns. */
tsh_status tshi_bench_layer(tshi_bench *b, int k);
/* Leaf and layer parameters into the lists, and an optimizer over them. leaf: of the parameter's step. */
tsh_status tshi_bench_add(tshi_bench *b, const tshi_owned *o, int copy, tsh_tensor *tensor);
/* The policy's, of the parameters; before a schedule and an optimizer. */
tsh_status tshi_bench_precision(tshi_bench *b);
tsh_status tshi_bench_optimizer(tshi_bench *b);
tsh_tensor *tshi_bench_parameter(const tshi_bench *b, const tshi_owned *o);
/* The end of a round: clip (*norm, when the program does), step, forget gradients. */
tsh_status tshi_bench_step(tshi_bench *b, double *norm);

/* Step k, not a leaf nor a move, of these inputs: a tensor of the tape's, or NULL. */
tsh_tensor *tshi_bench_call(const tshi_bench *b, int k, tsh_tensor *const *in);

#endif
