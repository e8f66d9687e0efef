/* many_classes: a classifier with so many classes that its weights are split over all ranks, behind a small network
 * that every rank has and runs on its part of the batch.
 *
 *   options.c  the command line
 *   samples.c  samples whose class is known, and how often the best of classifiers can name it
 *   model.c    the model: layers, a training step, only its matrix products, an evaluation
 *   main.c     the training loop, and what it prints
 *
 * The command line is read by ../common, which draws random numbers, too. */
#ifndef MANY_CLASSES_H
#define MANY_CLASSES_H

#include "text.h"
#include "tshard/tshard.h"

typedef struct options {
    int64_t classes, drawn; /* samples are of `drawn` of the classes, spread evenly over all */
    int64_t inputs, hidden, features, batch, steps, evaluate;
    double sample; /* part of the classes that a step computes with; 0: all */
    double lr, momentum, weight_decay, noise;
    const char *optimizer; /* adamw or sgd */
    uint64_t seed;
    tsh_dtype dtype;
    bool in_backward, products, json;
} options;

/* -1 to continue, or the exit code of --help (0) or of wrong use (2). Only a rank that `speaks` prints. */
int options_parse(int argc, char **argv, bool speaks, options *out);

/* --- samples ------------------------------------------------------------------------------------------------------ */

/* The batch of samples from number `first` on: x [batch, inputs], the unit vector of a sample's class plus noise, and
 * labels [batch]. Both depend only on the seed and the sample's number, so any number of ranks gets the same samples.
 * False if memory runs out. */
bool samples_draw(const options *o, int64_t first, float *x, int64_t *labels);
/* The probability that the nearest class vector is that of the sample's own class, over the random directions of the
 * other classes: no classifier is better on average. */
double samples_best(const options *o, const float *x, int64_t label);

/* --- model -------------------------------------------------------------------------------------------------------- */

typedef struct model model;

/* Collective, like all functions below. NULL after printing why to stderr. */
model *model_create(tsh_world *world, const options *o);
void model_destroy(model *m);

/* What a rank has: bytes of its parameters, with their gradients and the optimizer's states; the most bytes that
 * tensors have had at once in a step. */
typedef struct memory {
    size_t parameters, with_states, peak;
} memory;
memory model_memory(const model *m);

/* One step on a whole batch; this rank takes its part of it. *loss is the loss before the step. False after printing
 * why to stderr. */
bool model_step(model *m, const float *x, const int64_t *labels, double lr, double *loss);
/* The classifier's three matrix products on this rank's weights, and nothing else. */
bool model_products(model *m);
/* The number of samples of a batch whose highest logit is that of their label. */
bool model_evaluate(model *m, const float *x, const int64_t *labels, int64_t *right);

#endif
