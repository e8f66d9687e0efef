/* train: optimizers, gradient clipping, data parallelism.
 *
 * Thread safety: everything here is for the world's thread. */
#ifndef TSHARD_TRAIN_H
#define TSHARD_TRAIN_H

#include "tshard/layers.h"

#ifdef __cplusplus
extern "C" {
#endif

/* --- precision ---------------------------------------------------------------------------------------------------- */

/* The dtype that functions compute in which take a parameter. Where that is not the parameter's, the parameter and the
 * other float inputs are cast, each once in a step, and the output has this dtype. A lookup takes its rows as they are
 * stored and casts these. */
typedef enum tsh_arithmetic {
    TSH_ARITHMETIC_AS_STORED = 0, /* that of the parameter, which all float inputs must have */
    TSH_ARITHMETIC_FLOAT32,
    TSH_ARITHMETIC_BFLOAT16,
    TSH_ARITHMETIC_FLOAT16
} tsh_arithmetic;

/* The dtypes of a model's parameters, of its functions and of its gradients. Whatever the arithmetic is, sums within a
 * function, statistics of norms and losses of 16-bit logits are float32. A norm with float32 parameters takes 16-bit
 * rows, computes in float32 and keeps their dtype. */
typedef struct tsh_precision {
    tsh_dtype storage;                 /* of parameters */
    tsh_dtype reduction;               /* of gradients and their sums over ranks: storage, or float32 */
    const char *const *float32_layers; /* names of layers that are float32, stored and computed, whatever the policy
                                        * says, with `*` as in tsh_sharding_rule, NULL after the last; or NULL */
    tsh_arithmetic arithmetic;
} tsh_precision;

/* The dtype for the configuration of the layer of this name; float32 without a precision or a name. */
TSH_API tsh_dtype tsh_precision_dtype(const tsh_precision *precision, const char *layer);
/* Give the list's parameters, which are named "LAYER.weight" and so on, the arithmetic, and their gradients the dtype,
 * of a policy; present gradients of another dtype are dropped. Not collective. TSH_ERR_DTYPE where a parameter is not
 * of the policy's dtype or the policy's gradients cannot be (of storage, and of the arithmetic: that dtype or that of
 * its sums), TSH_ERR_STATE where parameters with another arithmetic, or gradients of another dtype, have a
 * tsh_data_parallel already, TSH_ERR_MEMORY; then nothing has changed. */
TSH_API tsh_status tsh_parameters_set_precision(tsh_parameters *list, const tsh_precision *precision);

/* --- optimizers --------------------------------------------------------------------------------------------------- */

/* An optimizer holds references to the tensors of its list, and for each one or two state tensors with the parameter's
 * layouts: it needs no communication. A step skips parameters without a gradient and zeroes no gradients.
 * Of a parameter with a sparse gradient (tsh_tensor_set_sparse_grad) a step changes the rows that it has, with their
 * states; weight decay and moving averages of the other rows wait, as in torch.optim.SparseAdam, and bias corrections
 * count all the parameter's steps. */
typedef struct tsh_optimizer tsh_optimizer;

/* What becomes of a step's bits that a bfloat16 or float16 parameter has no room for. */
typedef enum tsh_low_bits {
    TSH_LOSE_LOW_BITS = 0, /* lost: small steps may change nothing; creating the optimizer logs a warning */
    /* The optimizer keeps float32 values beside the parameter, steps these and rounds the parameter from them. They
     * begin as the parameter's values at its first step, and anew at each step before which anything else has written
     * the parameter (but through tsh_tensor_data, which is not seen). Checkpoints have them as
     * "optimizer.NAME.master". */
    TSH_MASTER_WEIGHTS,
    /* bfloat16 alone: rounded up or down by chance, so that the mean is kept. The numbers depend on the world's seed,
     * the parameter's name, its step and the global element index, not on the number of ranks. */
    TSH_STOCHASTIC_ROUNDING
} tsh_low_bits;

/* g = grad + weight_decay p;  buf = momentum buf + (1 - dampening) g (first step: buf = g);
 * p -= lr (nesterov ? g + momentum buf : buf). As torch.optim.SGD. */
typedef struct tsh_sgd_config {
    double lr, momentum, dampening, weight_decay;
    bool nesterov;       /* needs momentum > 0 and dampening 0 */
    bool decay_matrices; /* weight decay is for parameters of two dims or more alone, not for norms and biases */
    tsh_low_bits low_bits;
} tsh_sgd_config;

/* Decoupled weight decay (Loshchilov and Hutter, 2019): p -= lr weight_decay p, then Adam with bias corrections. Zeros
 * in beta1, beta2 and eps take 0.9, 0.999 and 1e-8. */
typedef struct tsh_adamw_config {
    double lr, beta1, beta2, eps, weight_decay;
    bool decay_matrices; /* as in tsh_sgd_config */
    tsh_low_bits low_bits;
} tsh_adamw_config;

/* Chen et al., "Symbolic discovery of optimization algorithms", 2023: p -= lr weight_decay p + lr sign(beta1 m + (1 -
 * beta1) g), then m = beta2 m + (1 - beta2) g. One state tensor. Zeros in beta1 and beta2 take 0.9 and 0.99. */
typedef struct tsh_lion_config {
    double lr, beta1, beta2, weight_decay;
    bool decay_matrices; /* as in tsh_sgd_config */
    tsh_low_bits low_bits;
} tsh_lion_config;

/* An optimizer over the parameters that the list has now; the caller destroys it. Its state tensors have the
 * parameter's dtype, float32 for bfloat16 and float16. Not collective. TSH_ERR_ARGUMENT for a setting out of its range,
 * TSH_ERR_MEMORY. */
TSH_API tsh_status tsh_sgd_create(tsh_parameters *list, const tsh_sgd_config *config, tsh_optimizer **out);
TSH_API tsh_status tsh_adamw_create(tsh_parameters *list, const tsh_adamw_config *config, tsh_optimizer **out);
TSH_API tsh_status tsh_lion_create(tsh_parameters *list, const tsh_lion_config *config, tsh_optimizer **out);
TSH_API void tsh_optimizer_destroy(tsh_optimizer *optimizer);
/* One step with the present gradients. Not collective; waits for the sums of a tsh_data_parallel that has any of the
 * parameters. When these fail or have not been started, the step fails and changes nothing. A step without any gradient
 * is warned of in the log, once, and so are the second step in sequence with a learning rate of 0, one above 1e6, and
 * parameters with gradients that no optimizer has. TSH_ERR_STATE for an optimizer that is older than its parameters'
 * schedule with a level. */
TSH_API tsh_status tsh_optimizer_step(tsh_optimizer *optimizer);
/* From now on a backward steps this parameter [rows, cols] itself where it is the weight of one linear layer or
 * tsh_affine: each piece of the gradient is used up as soon as it is made, and no gradient is kept, which spares its
 * memory and the time to write and to read it. The learning rate is set before; clipping, a loss scale and sums over
 * several backwards leave the parameter out; a backward that fails may have stepped it. Where the parameter has other
 * uses in the step, is summed over ranks or has float32 gradients beside 16 bits, tsh_optimizer_step steps it as any
 * other. TSH_ERR_ARGUMENT for what is no such parameter of the optimizer, TSH_ERR_STATE for one that is sharded by a
 * tsh_data_parallel or rounded by chance, _MEMORY. */
TSH_API tsh_status tsh_optimizer_step_in_backward(tsh_optimizer *optimizer, tsh_tensor *parameter);
/* Clear the gradients of all parameters, as tsh_tensor_zero_grad does. */
TSH_API void tsh_optimizer_zero_grad(tsh_optimizer *optimizer);
/* Set the learning rate of the following steps. TSH_ERR_ARGUMENT, and no change, for one that is not in [0, inf). */
TSH_API tsh_status tsh_optimizer_set_lr(tsh_optimizer *optimizer, double lr);

/* Scale all gradients by min(1, max_norm / (norm + 1e-6)), norm = sqrt(sum of squares of all gradients), with each
 * element of the whole model counted once, sharded and replicated parameters together. *norm (may be NULL) is the norm
 * before. When the norm is not finite, no gradient changes. TSH_ERR_ARGUMENT for max_norm <= 0. Collective: one
 * all-reduce of one double over each axis of the parameters' mesh; over the world where they are on several meshes, as
 * those of a pipeline's stages. Waits for the sums of a tsh_data_parallel first, and for a GPU only where norm is not
 * NULL. */
TSH_API tsh_status tsh_clip_grad_norm(tsh_parameters *list, double max_norm, double *norm);

/* --- loss scale --------------------------------------------------------------------------------------------------- */

/* A dynamic loss scale, as torch.amp.GradScaler: float16's gradients are small, and a loss that is multiplied keeps
 * them in its range. bfloat16 wants none. Zeros take the defaults. Nothing else is kept: a checkpoint has it as two
 * values of the caller's, `scale` and `good_steps`.
 *     tsh_backward(tape, tsh_loss_scale_apply(tape, &scale, loss));
 *     tsh_loss_scale_unscale(&scale, list, max_norm, &norm, &finite);
 *     if (finite) tsh_optimizer_step(optimizer);
 *     tsh_loss_scale_update(&scale, finite); */
typedef struct tsh_loss_scale {
    double scale;       /* 65536 at first */
    double growth;      /* 2: what it is multiplied by after `interval` finite steps on end */
    double backoff;     /* 0.5: and by after one that is not finite */
    int64_t interval;   /* 2000 */
    int64_t good_steps; /* finite ones since the scale changed */
} tsh_loss_scale;

/* loss times the scale, owned by the tape. */
TSH_API tsh_tensor *tsh_loss_scale_apply(tsh_tape *tape, const tsh_loss_scale *scale, tsh_tensor *loss);
/* *finite: no rank of the world has a gradient with an infinity or a NaN. Then all gradients are divided by the scale
 * and clipped as by tsh_clip_grad_norm, in one pass; max_norm 0: not clipped. *norm (may be NULL) is the norm before
 * clipping, of the divided gradients. Otherwise no gradient changes, *norm is NAN, and the step is to be left out:
 * nothing has changed. TSH_ERR_ARGUMENT. Collective over the world: an all-reduce of one double; one more over each
 * axis, as tsh_clip_grad_norm, with max_norm or norm. Waits. */
TSH_API tsh_status tsh_loss_scale_unscale(const tsh_loss_scale *scale, tsh_parameters *list, double max_norm,
                                          double *norm, bool *finite);
/* The scale of the next step. Every rank makes the same call. TSH_ERR_ARGUMENT for fields out of their ranges. */
TSH_API tsh_status tsh_loss_scale_update(tsh_loss_scale *scale, bool finite);

/* --- data parallelism --------------------------------------------------------------------------------------------- */

/* A schedule for the gradient sums of data parallelism. A parameter that is REPLICATED along an axis and used with a
 * batch that differs along it gets a gradient that is a sum over the axis' ranks; without a schedule each of these sums
 * is an all-reduce of its own within backward. With one, gradients lie next to each other in a few buckets, and the
 * all-reduce of a bucket starts when all its gradients are complete, while backward continues. The values are the same.
 *
 * After tsh_backward all sums have been started. The optimizer's step, tsh_clip_grad_norm, tsh_tensor_grad and
 * tsh_data_parallel_wait wait for them. Parameters may be sharded over other axes, have several dtypes, and be left out
 * of a step by some ranks (they contribute zeros) or by all (their gradients do not change). After a failed step, once
 * the tape is reset, there are no gradients. Where inputs are REPLICATED along the axis, its ranks compute the same and
 * there is nothing to sum: the first backward of that kind is warned of in the log. */
typedef struct tsh_data_parallel tsh_data_parallel;

/* What the ranks of the axis share out among them, instead of each having all of it: the balanced slices of each
 * parameter's first dim, inside any split by other axes. Parameters without dims are not shared out.
 *  NOTHING     each rank has and steps everything
 *  OPTIMIZER   the optimizer's states and its step (ZeRO-1); the same as GRADIENTS, which moves as many bytes and takes
 *              less memory
 *  GRADIENTS   the gradients, too (ZeRO-2): they are reduce-scattered, and a bucket has whole ones only from its first
 *              to its sum. The values of a bucket's parameters are gathered just before their first use in a step, and
 *              kept until a backward with sync has ended
 *  PARAMETERS  the parameters, too (ZeRO-3): a bucket has the parameters of a layer, and their values are freed when
 *              those of another layer are used, and gathered again in backward. A layer is what the names of parameters
 *              have in common up to the first number in them ("layers.3"), else up to the last dot
 * From OPTIMIZER on a parameter becomes this rank's slice, SHARD(0) along the axis, and its gradient that of the slice.
 * Functions, and transitions, take the parameter as if it were whole: values are gathered while others are in use, in
 * the order of the step before. Every rank uses the same parameters in the same order. Ranks outside the mesh create
 * the schedule, too, for they plan exchanges with the mesh by the layouts of its parameters. Optimizers over the
 * parameters are created after the schedule; their steps are not collective. */
typedef enum tsh_zero_level {
    TSH_ZERO_NOTHING = 0,
    TSH_ZERO_OPTIMIZER,
    TSH_ZERO_GRADIENTS,
    TSH_ZERO_PARAMETERS
} tsh_zero_level;

/* What data parallelism sums, in which pieces, and what it shares out; zeros are the defaults. */
typedef struct tsh_data_parallel_config {
    bool average;              /* false: the loss is that of the whole batch, of which each rank has a part (SHARD(0)
                                * inputs); gradients are sums. true: each rank has a batch and a LOCAL loss of its own;
                                * the objective is their mean, and gradients are averages. */
    bool keep_values;          /* true: parameters keep their values; false: they take those of the group's rank 0 */
    size_t bucket_bytes;       /* 0: 25 MiB; at a level an eighth of the gradients, if that is less (64 KiB at least) */
    size_t first_bucket_bytes; /* 0: the lesser of 1 MiB and bucket_bytes; small, so that the first sum starts early */
    tsh_zero_level level;      /* the same on every rank */
    tsh_group *model;          /* NULL, or another axis of the mesh, over which layers are split. Gradients of key and
                                * value projections that ranks of it share are then summed over these, too, in one
                                * all-reduce of a bucket; at a level those of matrices are not, for no rank has them. */
    bool sequence_parallel;    /* tokens are split over `model`: gradients of parameters that are REPLICATED there, as
                                * those of norms, are summed over it in buckets, too */
} tsh_data_parallel_config;

/* A schedule for the parameters of the list that are on the mesh of `group` and REPLICATED along that axis, in
 * backwards of `tape`; those on other meshes, as of other stages of a pipeline, are left out. On a rank outside the
 * mesh the schedule does nothing, and leaves the tape alone. Buckets are filled in reverse order of the list; the
 * gradients' memory moves into them. Unless keep_values is set, the parameters take the values of the group's rank 0.
 * The caller destroys the schedule; tape and list may be destroyed first. config may be NULL. Collective over the
 * group, over its mesh with `model`; waits. TSH_ERR_ARGUMENT, TSH_ERR_STATE when the tape or a parameter has a schedule
 * already, TSH_ERR_MEMORY. */
TSH_API tsh_status tsh_data_parallel_create(tsh_tape *tape, tsh_parameters *list, tsh_group *group,
                                            const tsh_data_parallel_config *config, tsh_data_parallel **out);
/* Waits for the sums that have been started. Gradients stay with the parameters, which at a level stay slices. NULL is
 * accepted. */
TSH_API void tsh_data_parallel_destroy(tsh_data_parallel *dp);
/* Wait for the sums that have been started; returns their first failure. TSH_ERR_STATE when gradients have not been
 * summed since a backward without sync or a failed one. */
TSH_API tsh_status tsh_data_parallel_wait(tsh_data_parallel *dp);
/* While sync is off, backwards accumulate without sums, and gradients cannot be read (tsh_tensor_grad is NULL) until a
 * backward with sync sums them all. On at first; every rank makes the same call. Returns the value before the call. */
TSH_API bool tsh_data_parallel_set_sync(tsh_data_parallel *dp, bool sync);
/* The number of buckets, which is that of sums in a backward: all-reduces, or reduce-scatters at a level. */
TSH_API int tsh_data_parallel_buckets(const tsh_data_parallel *dp);
/* The group in which the sums run, and which counts them. */
TSH_API tsh_group *tsh_data_parallel_group(const tsh_data_parallel *dp);

/* --- memory ------------------------------------------------------------------------------------------------------- */

/* Write this rank's live bytes of tensors to the file `path`, a line each: every parameter of the list and its gradient
 * by name, then what the optimizer keeps for each parameter, then what the tape's step holds, results and saved tensors
 * by function (before tsh_backward, which frees what it has passed); at the end all tensors of the device by purpose,
 * as tsh_device_memory has them, with the peak. A gradient in a bucket of data parallelism counts as its own. optimizer
 * and tape may be NULL. Not collective: each rank names a file of its own. TSH_ERR_ARGUMENT, TSH_ERR_SYSTEM. */
TSH_API tsh_status tsh_memory_report(const char *path, const tsh_parameters *list, const tsh_optimizer *optimizer,
                                     const tsh_tape *tape);

#ifdef __cplusplus
}
#endif

#endif
