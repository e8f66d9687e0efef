/* train: optimizers, gradient clipping, data parallelism.
 *
 * Thread safety: everything here is for the world's own thread. */
#ifndef TSHARD_TRAIN_H
#define TSHARD_TRAIN_H

#include "tshard/layers.h"

#ifdef __cplusplus
extern "C" {
#endif

/* An optimizer holds a reference to its list's tensors and one or two state tensors each, laid out as the parameter:
 * nothing is communicated. Parameters without a gradient are left alone. Steps zero no gradients:
 * tsh_optimizer_zero_grad. */
typedef struct tsh_optimizer tsh_optimizer;

/* g = grad + weight_decay p;  buf = momentum buf + (1 - dampening) g (first step: buf = g);
 * p -= lr (nesterov ? g + momentum buf : buf). As torch.optim.SGD. */
typedef struct tsh_sgd_config {
    double lr, momentum, dampening, weight_decay;
    bool nesterov; /* wants momentum > 0 and dampening 0 */
} tsh_sgd_config;

/* Decoupled weight decay (Loshchilov and Hutter): p -= lr weight_decay p, then Adam with bias corrections. Zero beta1,
 * beta2, eps take 0.9, 0.999, 1e-8. */
typedef struct tsh_adamw_config {
    double lr, beta1, beta2, eps, weight_decay;
} tsh_adamw_config;

/* An optimizer over the list as it is now; the caller destroys it. What it keeps for a parameter is of its dtype,
 * float32 for bfloat16 and float16. Not collective. TSH_ERR_ARGUMENT for a setting out
 * of its range, TSH_ERR_MEMORY. */
TSH_API tsh_status tsh_sgd_create(tsh_parameters *list, const tsh_sgd_config *config, tsh_optimizer **out);
TSH_API tsh_status tsh_adamw_create(tsh_parameters *list, const tsh_adamw_config *config, tsh_optimizer **out);
TSH_API void tsh_optimizer_destroy(tsh_optimizer *optimizer);
/* One step from the gradients as they are. Local; first it waits for the sums of a tsh_data_parallel that has any of
 * the parameters, and fails, changing nothing, when they fail or have not been started. */
TSH_API tsh_status tsh_optimizer_step(tsh_optimizer *optimizer);
TSH_API void tsh_optimizer_zero_grad(tsh_optimizer *optimizer);
TSH_API void tsh_optimizer_set_lr(tsh_optimizer *optimizer, double lr);

/* Scale all gradients by min(1, max_norm / (norm + 1e-6)), norm = sqrt(sum of squares of all gradients): each element
 * of the whole model counted once, sharded and replicated parameters together. *norm (may be NULL) is the norm before.
 * One all-reduce of one double over each axis of the parameters' mesh: collective. TSH_ERR_ARGUMENT for max_norm <= 0;
 * a norm that is not finite scales nothing and is reported in *norm. Waits for the sums of a tsh_data_parallel first;
 * for a GPU only where norm is not NULL. */
TSH_API tsh_status tsh_clip_grad_norm(tsh_parameters *list, double max_norm, double *norm);

/* --- data parallelism --------------------------------------------------------------------------------------------- */

/* A parameter that is REPLICATED along an axis and used with a batch that differs along it gets a gradient that is a
 * sum over the axis' ranks. Without a schedule each of these sums is an all-reduce of its own, in the middle of
 * backward. With one, gradients lie one after another in a few buckets, and the sum of a bucket is started when all its
 * gradients are there, while backward goes on: one all-reduce a bucket. Its values are those without it.
 *
 * After tsh_backward all sums have been started. Who looks at a gradient waits for them: the optimizer's step,
 * tsh_clip_grad_norm, tsh_tensor_grad; or tsh_data_parallel_wait.
 *
 * Parameters may be split over other axes, have several dtypes, and be left out of a step by some ranks (they add
 * zeros) or by all (their gradients stay as they were). After a failed step, once the tape is reset, there are no
 * gradients. */
typedef struct tsh_data_parallel tsh_data_parallel;

typedef struct tsh_data_parallel_config {
    bool average;        /* false: the loss is of the whole batch, which the ranks have parts of (SHARD(0) inputs);
                                * gradients are sums. true: every rank has a batch and a LOCAL loss of its own; the
                                * objective is their mean, and gradients are averages. */
    bool keep_values;    /* do not take over the parameters' values from rank 0 of the group */
    size_t bucket_bytes; /* 0: 25 MiB */
    size_t first_bucket_bytes; /* 0: 1 MiB, or bucket_bytes when that is less; small, so that sums start early */
} tsh_data_parallel_config;

/* A schedule for the gradients of the list's parameters that are REPLICATED along the axis of `group` (an axis of their
 * mesh), in backwards of `tape`; buckets are filled in reverse order of the list. Their values are first taken over
 * from rank 0 of the group. The caller destroys it; tape and list may go first. Gradient memory moves into the buckets.
 * config may be NULL. Collective over the group; waits. TSH_ERR_ARGUMENT, _STATE (the tape or a parameter has one
 * already), _MEMORY. */
TSH_API tsh_status tsh_data_parallel_create(tsh_tape *tape, tsh_parameters *list, tsh_group *group,
                                            const tsh_data_parallel_config *config, tsh_data_parallel **out);
/* Waits for what is under way. Gradients stay with the parameters. NULL is fine. */
TSH_API void tsh_data_parallel_destroy(tsh_data_parallel *dp);
/* Wait for the sums under way. Their first failure; TSH_ERR_STATE when gradients have not been summed since a backward
 * without sync or a failed one. */
TSH_API tsh_status tsh_data_parallel_wait(tsh_data_parallel *dp);
/* While off, backwards only gather: gradients are not to be had (tsh_tensor_grad is NULL) until a backward with sync
 * sums them all. The same on every rank. Returns what it was; on at first. */
TSH_API bool tsh_data_parallel_set_sync(tsh_data_parallel *dp, bool sync);
/* The number of buckets: of all-reduces in a backward. */
TSH_API int tsh_data_parallel_buckets(const tsh_data_parallel *dp);
/* The group that the sums run in, which counts them. */
TSH_API tsh_group *tsh_data_parallel_group(const tsh_data_parallel *dp);

#ifdef __cplusplus
}
#endif

#endif
