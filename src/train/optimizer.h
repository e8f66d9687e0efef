/* Private functions and structs of optimizers. */
#ifndef TSHI_OPTIMIZER_H
#define TSHI_OPTIMIZER_H

#include "layers/layers.h"
#include "tshard/train.h"

#define TSHI_MAX_STATES 2

/* The learning rate, as a multiple of the optimizer's, and the weight decay of some of its parameters. scale: of the
 * updates of matrices that the optimizer steps whole; 0 for parameters that it steps element by element. */
typedef struct tshi_rate {
    double lr_factor, weight_decay, scale;
} tshi_rate;

/* A parameter and its optimizer state. */
typedef struct tshi_optimizer_slot {
    tshi_gradient_target target; /* first; of the parameter: optimizer.c has its kinds */
    tsh_optimizer *optimizer;
    tsh_tensor *parameter;              /* if data parallelism shards it, this rank's slice */
    tsh_tensor *master;                 /* master weights, in the parameter's layouts, or NULL */
    int64_t numel;                      /* of the parameter when the optimizer was created */
    tsh_layout layout[TSH_MAX_AXES];    /* of its gradients at that time */
    const tsh_tensor *gradient;         /* of this step, borrowed; NULL: the step skips the parameter */
    tsh_tensor *state[TSHI_MAX_STATES]; /* in the parameter's layouts */
    int64_t steps;                      /* steps taken */
    uint16_t version;                   /* the parameter's version after the last step */
    uint64_t stream;                    /* random stream for stochastic rounding, without the step's number */
    int rate;                           /* index of its rate */
    /* Set for a matrix that is stepped whole: the rank that orthogonalizes its update, and during a step the update in
     * the parameter's layouts and, at the owner, whole. */
    int owner;
    tsh_tensor *update, *whole;
} tshi_optimizer_slot;

/* A kind of optimizer is a const struct: its name, the names of its state tensors, and its step for `count` parameters
 * of one dtype, number of steps (from 1), learning rate and weight decay. */
typedef struct tshi_optimizer_kind {
    const char *name;
    const char *state[TSHI_MAX_STATES];
    void (*step)(const tsh_optimizer *optimizer, tsh_dtype dtype, int64_t step, const tshi_rate *rate, int count,
                 const tshi_update *updates);
    /* Set by optimizers that step some matrices whole, else NULL. scale: that of a parameter's rate. prepare: replaces
     * the gradients of such matrices, before any value changes; collective over their meshes. finish: frees what
     * `prepare` has made, also where it has failed. */
    double (*scale)(const void *config, const tsh_tensor *parameter, const char *name);
    tsh_status (*prepare)(tsh_optimizer *optimizer);
    void (*finish)(tsh_optimizer *optimizer);
} tshi_optimizer_kind;

/* What must happen before tsh_optimizer_step changes values; a failure is the step's. */
typedef struct tshi_before_step {
    tsh_status (*call)(void *user); /* or NULL */
    void *user;
} tshi_before_step;

struct tsh_optimizer {
    const tshi_optimizer_kind *kind;
    tsh_world *world;
    tshi_optimizer_slot *slots;
    int count;
    tshi_update *updates;     /* [update_count]: one for each slot, or with stochastic rounding for each block */
    tshi_rounding *roundings; /* [update_count], or NULL */
    int64_t update_count;
    tsh_low_bits low_bits;
    double lr;
    tshi_rate *rates; /* [rate_count]: different ones, and each has a parameter */
    int rate_count;
    tshi_before_step before_step;
    int still_steps; /* the number of steps in a row with learning rate 0 */
    /* Warnings already logged: a step without gradients, a learning rate out of range, values not finite. */
    bool told_empty, told_lr, told_lost;
    union {
        tsh_sgd_config sgd;
        tsh_adamw_config adamw;
        tsh_lion_config lion;
        tsh_muon_config muon;
    } config;
};

/* Fields of all configurations. */
typedef struct tshi_optimizer_common {
    double lr, weight_decay;
    bool decay_matrices;
    tsh_low_bits low_bits;
    const tsh_parameter_group *groups;
    const void *config; /* for the kind's `scale`, or NULL */
} tshi_optimizer_common;

/* Checks the arguments that all optimizers take, and sets *out to NULL. */
tsh_status tshi_optimizer_check(const char *what, const tsh_parameters *list, const void *config,
                                const tshi_optimizer_common *common, tsh_optimizer **out);
/* An optimizer over the list's tensors with `states` zeroed tensors for each; the caller fills in the configuration. */
tsh_status tshi_optimizer_create(const tshi_optimizer_kind *kind, const tsh_parameters *list, int states,
                                 const tshi_optimizer_common *common, tsh_optimizer **out);
/* A parameter is stepped in backward, not in tsh_optimizer_step. */
bool tshi_optimizer_steps_in_backward(const tsh_optimizer *optimizer);
/* Copies the parameter to its master weights if anything but a step of the slot has written it. */
void tshi_optimizer_renew_master(tshi_optimizer_slot *slot);
/* The sum of squares of gradients on this rank: with `counted`, those that this rank adds to the whole model's sum,
 * else replicas, which another rank adds. Waits. */
tsh_status tshi_clip_local_squares(const tsh_parameters *list, bool counted, double *sum);
/* tshi_clip_sum sums list->scalar over the ranks; tshi_clip_all scales all gradients by that sum, as tshi_clip_fn. */
tsh_status tshi_clip_sum(tsh_parameters *list);
void tshi_clip_all(const tsh_parameters *list, double scale, double max_norm);

/* Only with TSHARD_CHECK=1: TSH_ERR_MISMATCH when ranks of an axis have different parameters, orders or seeds, or
 * replicas of a parameter different values. Collective over the axes of the parameters' meshes, for lists also over the
 * world, if the list is empty or has a parameter on all ranks. */
tsh_status tshi_compare_lists(const tsh_parameters *list);
tsh_status tshi_compare_values(const tsh_optimizer *optimizer);
/* With TSHARD_CHECK=1: TSH_ERR_MISMATCH when inputs of the calls up to the loss's that are not parameters and are
 * REPLICATED along the schedule's axis have different values on its ranks. Collective over the axis. */
tsh_status tshi_compare_inputs(const tsh_data_parallel *dp, const tsh_tensor *loss);

#endif
