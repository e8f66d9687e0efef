/* Optimizers from the inside: what they share, and what one of them is. */
#ifndef TSHI_OPTIMIZER_H
#define TSHI_OPTIMIZER_H

#include "layers/layers.h"
#include "tshard/train.h"

#define TSHI_MAX_STATES 2

/* The target of a parameter that is stepped within backward: a slot's own. */
typedef struct tshi_fused_step {
    tshi_gradient_target target; /* first */
    tsh_optimizer *optimizer;
    int slot;
} tshi_fused_step;

/* A parameter with what its optimizer keeps for it. */
typedef struct tshi_optimizer_slot {
    tsh_tensor *parameter;              /* with data parallelism that shares it out: this rank's slice */
    tsh_tensor *master;                 /* the values that the parameter is rounded from, laid out as it, or NULL */
    int64_t numel;                      /* of the parameter, when the optimizer was made */
    tsh_layout layout[TSH_MAX_AXES];    /* of its gradients then */
    const tsh_tensor *gradient;         /* of this step, borrowed. NULL: the step leaves the parameter out */
    tsh_tensor *state[TSHI_MAX_STATES]; /* laid out as the parameter */
    int64_t steps;                      /* taken */
    uint16_t version;                   /* of the parameter after the last one */
    tshi_fused_step *fused;             /* or NULL: only tsh_optimizer_step steps the parameter */
    uint64_t stream;                    /* of the words that the parameter is rounded by, before the step's number */
} tshi_optimizer_slot;

/* An optimizer is a const struct: its name, those of its state tensors, and step number `step` (from 1) of `count`
 * parameters of one dtype and one weight decay. */
typedef struct tshi_optimizer_kind {
    const char *name;
    const char *state[TSHI_MAX_STATES];
    void (*step)(const tsh_optimizer *optimizer, tsh_dtype dtype, int64_t step, double weight_decay, int count,
                 const tshi_update *updates);
} tshi_optimizer_kind;

struct tsh_optimizer {
    const tshi_optimizer_kind *kind;
    tsh_world *world;
    tshi_optimizer_slot *slots;
    int count;
    tshi_update *updates; /* [update_count]: one for each slot, or for each block of one that is rounded by chance */
    tshi_rounding *roundings; /* [update_count], or NULL */
    int64_t update_count;
    tsh_low_bits low_bits;
    double lr, weight_decay;
    bool decay_matrices;
    int still_steps; /* the last so many had the learning rate 0 */
    /* Warnings that have been logged: a step without gradients, a learning rate out of range, values not finite. */
    bool told_empty, told_lr, told_lost;
    union {
        tsh_sgd_config sgd;
        tsh_adamw_config adamw;
        tsh_lion_config lion;
    } config;
};

/* What all configurations have. */
typedef struct tshi_optimizer_common {
    double lr, weight_decay;
    bool decay_matrices;
    tsh_low_bits low_bits;
} tshi_optimizer_common;

/* Checks the arguments that all optimizers take; *out is NULL then. */
tsh_status tshi_optimizer_check(const char *what, const tsh_parameters *list, const void *config,
                                const tshi_optimizer_common *common, tsh_optimizer **out);
/* An optimizer over the list's tensors with `states` zeroed tensors for each; the caller fills in the configuration. */
tsh_status tshi_optimizer_create(const tshi_optimizer_kind *kind, const tsh_parameters *list, int states,
                                 const tshi_optimizer_common *common, tsh_optimizer **out);
/* The values that the parameter is rounded from become its own where anything but a step of the slot has written it. */
void tshi_optimizer_renew_master(tshi_optimizer_slot *slot);
/* The sum of squares of the gradients on this rank: with `counted` of those that this rank adds to the whole model's
 * sum, otherwise of replicas, which another rank adds. Waits. */
tsh_status tshi_clip_local_squares(const tsh_parameters *list, bool counted, double *sum);
/* list->scalar is summed over the ranks; scales all gradients as tshi_clip_fn does by that sum. */
tsh_status tshi_clip_sum(tsh_parameters *list);
void tshi_clip_all(const tsh_parameters *list, double scale, double max_norm);

/* With TSHARD_CHECK=1, else nothing: TSH_ERR_MISMATCH where ranks of one axis have lists of other parameters, or in
 * another order, or another seed; where copies of a parameter have other values. Collective over the axes of the
 * parameters' meshes; lists are compared along the world, too, by ranks whose list is empty or has a parameter on all
 * ranks. */
tsh_status tshi_compare_lists(const tsh_parameters *list);
tsh_status tshi_compare_values(const tsh_optimizer *optimizer);
/* With TSHARD_CHECK=1: TSH_ERR_MISMATCH where inputs of the calls up to the loss's, no parameters, that are REPLICATED
 * along the schedule's axis have other values on its ranks. Collective over the axis. */
tsh_status tshi_compare_inputs(const tsh_data_parallel *dp, const tsh_tensor *loss);

#endif
