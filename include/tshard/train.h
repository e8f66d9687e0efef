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

/* The dtype that functions of a parameter compute in. If it is not the parameter's dtype, the parameter and the other
 * float inputs are cast, each once in a step, and the output has this dtype. A lookup casts only the rows that it
 * reads. */
typedef enum tsh_arithmetic {
    TSH_ARITHMETIC_AS_STORED = 0, /* the parameter's dtype, which all float inputs must have */
    TSH_ARITHMETIC_FLOAT32,
    TSH_ARITHMETIC_BFLOAT16,
    TSH_ARITHMETIC_FLOAT16
} tsh_arithmetic;

/* The dtypes of a model's parameters, functions and gradients. Sums within a function, statistics of norms and losses
 * of 16-bit logits are always float32. A norm with float32 parameters takes 16-bit inputs, computes in float32, and its
 * output has the inputs' dtype. */
typedef struct tsh_precision {
    tsh_dtype storage;   /* of parameters */
    tsh_dtype reduction; /* of gradients and their sums over ranks: that of storage, or float32 */
    /* names of layers that are stored and computed in float32 all the same, with `*` as in tsh_sharding_rule, ended by
     * NULL; or NULL */
    const char *const *float32_layers;
    tsh_arithmetic arithmetic;
} tsh_precision;

/* The dtype for the configuration of the layer with this name; float32 if precision or layer is NULL. */
TSH_API tsh_dtype tsh_precision_dtype(const tsh_precision *precision, const char *layer);
/* Apply a precision to the list's parameters, which are named "LAYER.weight" and so on: the arithmetic of the functions
 * that take them, and the dtype of their gradients. Gradients with another dtype are dropped. Not collective.
 * TSH_ERR_DTYPE for a parameter with another dtype, or gradients that are neither in the dtype of storage or arithmetic
 * nor in that of its sums; TSH_ERR_STATE when a change concerns parameters that already have a tsh_data_parallel;
 * TSH_ERR_MEMORY. On failure nothing changes. */
TSH_API tsh_status tsh_parameters_set_precision(tsh_parameters *list, const tsh_precision *precision);

/* --- optimizers --------------------------------------------------------------------------------------------------- */

/* An optimizer holds references to the tensors of its list that are not frozen, and one or two state tensors for each,
 * with its layouts: only Muon needs communication. A step skips parameters without a gradient, and does not zero
 * gradients. If a parameter's gradient is sparse (tsh_tensor_set_sparse_grad), a step changes only the gradient's rows
 * and their states; weight decay and moving averages of the other rows do not advance, as in torch.optim.SparseAdam,
 * and bias corrections count all steps of the parameter. */
typedef struct tsh_optimizer tsh_optimizer;

/* What an optimizer's step does with the bits that a bfloat16 or float16 parameter cannot hold. */
typedef enum tsh_low_bits {
    TSH_LOSE_LOW_BITS = 0, /* lost: small steps may change nothing; creating the optimizer logs a warning */
    /* The optimizer keeps a float32 copy of the parameter, steps the copy, and rounds the parameter from it. The copy
     * is taken at the parameter's first step, and again when anything but the optimizer has written the parameter
     * (except through tsh_tensor_data, which is not seen). In checkpoints it is "optimizer.NAME.master". */
    TSH_MASTER_WEIGHTS,
    /* Only bfloat16: rounds up or down at random, so that the mean is kept. The random numbers depend on the world's
     * seed, the parameter's name, its step and the global element index, not on the number of ranks. */
    TSH_STOCHASTIC_ROUNDING
} tsh_low_bits;

/* A group of parameters with a learning rate and weight decay of its own. The `groups` of an optimizer's configuration
 * are an array that ends with a NULL pattern:
 *     static const tsh_parameter_group groups[] = {{"layers.*.norm", 1, 0}, {"tokens", 0.1, 0.1}, {NULL, 0, 0}};
 * A parameter belongs to the first group whose pattern matches it, as in tsh_parameters_freeze. The configuration's lr
 * and weight_decay apply to parameters that are in no group. */
typedef struct tsh_parameter_group {
    const char *pattern;
    double lr_factor; /* times the optimizer's learning rate, so that a schedule is for all groups; 0 means 1 */
    double weight_decay;
} tsh_parameter_group;

/* g = grad + weight_decay p;  buf = momentum buf + (1 - dampening) g (first step: buf = g);
 * p -= lr (nesterov ? g + momentum buf : buf). As torch.optim.SGD. */
typedef struct tsh_sgd_config {
    double lr, momentum, dampening, weight_decay;
    bool nesterov;       /* needs momentum > 0 and dampening 0 */
    bool decay_matrices; /* weight decay only for parameters of two or more dims, not for norms and biases */
    tsh_low_bits low_bits;
    const tsh_parameter_group *groups; /* NULL: none */
} tsh_sgd_config;

/* Decoupled weight decay (Loshchilov and Hutter, 2019): p -= lr weight_decay p, then Adam with bias corrections. Zeros
 * in beta1, beta2 and eps take 0.9, 0.999 and 1e-8. */
typedef struct tsh_adamw_config {
    double lr, beta1, beta2, eps, weight_decay;
    bool decay_matrices; /* as in tsh_sgd_config */
    tsh_low_bits low_bits;
    const tsh_parameter_group *groups; /* NULL: none */
} tsh_adamw_config;

/* Chen et al., "Symbolic discovery of optimization algorithms", 2023: p -= lr weight_decay p + lr sign(beta1 m + (1 -
 * beta1) g), then m = beta2 m + (1 - beta2) g. One state tensor. Zeros in beta1 and beta2 take 0.9 and 0.99. */
typedef struct tsh_lion_config {
    double lr, beta1, beta2, weight_decay;
    bool decay_matrices; /* as in tsh_sgd_config */
    tsh_low_bits low_bits;
    const tsh_parameter_group *groups; /* NULL: none */
} tsh_lion_config;

/* Muon (Jordan et al., "Muon: an optimizer for hidden layers in neural networks", 2024). Matrices, which are the
 * parameters of two dims, with elements and without a LOCAL layout, that `adamw` does not name:
 *     buf = momentum buf + grad;  u = grad + momentum buf
 *     p -= lr weight_decay p + lr sqrt(max(1, rows / columns)) orthogonalized(u)
 * where u / |u| is brought near to the product of its singular vectors by Newton-Schulz iterations with the
 * coefficients 3.4445, -4.7750 and 2.0315, in the dtype of the states. All other parameters are stepped as by
 * tsh_adamw_create with the learning rate adamw_lr_factor lr. Embeddings and the output layer should be among them:
 *     static const char *const others[] = {"tokens.*", "head.*", NULL};
 * A matrix is one parameter, whole, however it is sharded, also by a tsh_data_parallel: its update is gathered at one
 * rank, which is its owner, orthogonalized there, and sent back. Owners are chosen so that ranks have equal work. A
 * matrix has one state tensor, exp_avg, which is buf; a step that fails may have changed it. Zeros in momentum,
 * iterations, adamw_lr_factor, beta1, beta2 and eps take 0.95, 5, 1, 0.9, 0.95 and 1e-8. */
typedef struct tsh_muon_config {
    double lr, momentum, weight_decay;
    int iterations;
    const char *const *adamw; /* patterns of names, as in tsh_parameters_freeze, ended by NULL; or NULL */
    double adamw_lr_factor, beta1, beta2, eps;
    bool decay_matrices; /* as in tsh_sgd_config */
    tsh_low_bits low_bits;
    const tsh_parameter_group *groups; /* NULL: none */
} tsh_muon_config;

/* An optimizer for the present parameters of the list; the caller destroys it. State tensors have the parameter's
 * dtype, float32 for bfloat16 and float16. Not collective. TSH_ERR_ARGUMENT for a setting out of range,
 * TSH_ERR_MEMORY. */
TSH_API tsh_status tsh_sgd_create(tsh_parameters *list, const tsh_sgd_config *config, tsh_optimizer **out);
TSH_API tsh_status tsh_adamw_create(tsh_parameters *list, const tsh_adamw_config *config, tsh_optimizer **out);
TSH_API tsh_status tsh_lion_create(tsh_parameters *list, const tsh_lion_config *config, tsh_optimizer **out);
TSH_API tsh_status tsh_muon_create(tsh_parameters *list, const tsh_muon_config *config, tsh_optimizer **out);
TSH_API void tsh_optimizer_destroy(tsh_optimizer *optimizer);
/* One step with the present gradients. Not collective, except Muon's, which is collective over the meshes of its
 * matrices, and waits. When a tsh_data_parallel sums any of them and the last backward was without sync or has failed,
 * the step fails and changes nothing. A warning is logged, once, for a step without any gradient, for the second step
 * in a row with a learning rate of 0, for a learning rate above 1e6, and for parameters that have gradients and no
 * optimizer. TSH_ERR_STATE for an optimizer that is older than its parameters' schedule with a level, and for a sparse
 * gradient of a matrix that Muon steps. */
TSH_API tsh_status tsh_optimizer_step(tsh_optimizer *optimizer);
/* Fuses the optimizer's step of this parameter [rows, cols], the weight of one linear layer or tsh_affine, into
 * backward: each piece of the gradient is used as soon as it is computed, and never stored. Set the learning rate
 * before backward. tsh_clip_grad_norm, loss scales and gradient accumulation do not apply to the parameter; a backward
 * that fails may have stepped it. When the parameter has other uses in the step, is summed over ranks or has float32
 * gradients and 16-bit values, tsh_optimizer_step steps it as usual. TSH_ERR_ARGUMENT for any other tensor,
 * TSH_ERR_STATE for a parameter that a tsh_data_parallel shards or that has TSH_STOCHASTIC_ROUNDING, _MEMORY. */
TSH_API tsh_status tsh_optimizer_step_in_backward(tsh_optimizer *optimizer, tsh_tensor *parameter);
/* tsh_tensor_zero_grad for all parameters. */
TSH_API void tsh_optimizer_zero_grad(tsh_optimizer *optimizer);
/* Set the learning rate of the following steps. TSH_ERR_ARGUMENT, and no change, outside [0, inf). */
TSH_API tsh_status tsh_optimizer_set_lr(tsh_optimizer *optimizer, double lr);
/* The learning rate of the next step, without the factors of groups; 0 for NULL. */
TSH_API double tsh_optimizer_lr(const tsh_optimizer *optimizer);

/* How the learning rate changes after the warm-up. */
typedef enum tsh_lr_kind {
    TSH_LR_CONSTANT = 0, /* stays at lr */
    TSH_LR_LINEAR,       /* to min_lr along a line */
    TSH_LR_COSINE,       /* to min_lr as half a cosine (Loshchilov and Hutter, "SGDR", 2017) */
    TSH_LR_STABLE_DECAY  /* lr until the last `decay` steps, then to min_lr along a line */
} tsh_lr_kind;

/* A learning rate as a function of the step. It has no state, so that a resumed run needs only the step's number. */
typedef struct tsh_lr_schedule {
    tsh_lr_kind kind;
    double lr, min_lr; /* the highest rate, and that of step `steps` and all later ones */
    int64_t warmup;    /* step i < warmup has lr (i + 1) / (warmup + 1) */
    int64_t steps;     /* of the whole run; CONSTANT does without */
    int64_t decay;     /* of STABLE_DECAY */
} tsh_lr_schedule;

/* The rate of a step, counted from 0:
 *     tsh_optimizer_set_lr(optimizer, tsh_lr_at(&schedule, step));
 * 0 for NULL, an unknown kind or a step below 0. Pure. */
TSH_API double tsh_lr_at(const tsh_lr_schedule *schedule, int64_t step);

/* Scale all gradients by min(1, max_norm / (norm + 1e-6)), norm = sqrt(sum of squares of all gradients), with each
 * element of the whole model counted once, whether sharded or replicated. *norm (may be NULL) is the norm before
 * clipping. When the norm is not finite, no gradient changes. TSH_ERR_ARGUMENT for max_norm <= 0. Collective: one
 * all-reduce of one double over each axis of the parameters' mesh; over the world when they are on several meshes, as
 * in a pipeline. Waits for a GPU only if norm is not NULL. */
TSH_API tsh_status tsh_clip_grad_norm(tsh_parameters *list, double max_norm, double *norm);
/* From now on, backward clamps each element of the gradients of these parameters to [-value, value], as
 * torch.nn.utils.clip_grad_value_ does after it, once the gradient is complete and before a step in backward uses it;
 * with a tsh_data_parallel once it is summed over ranks, so that micro-batches without sync are summed first. Without a
 * schedule, each backward clamps the gradients to which it has added: set INFINITY, which ends the clamping, for the
 * micro-batches before the last. A NaN stays. A loss scale multiplies gradients, but not `value`. Every rank sets the
 * same value. Parameters that are added to the list later, or do not require a gradient, are left out.
 * TSH_ERR_ARGUMENT for value <= 0, _MEMORY: nothing changes. Not collective. */
TSH_API tsh_status tsh_clip_grad_value_in_backward(tsh_parameters *list, double value);

/* --- loss scale --------------------------------------------------------------------------------------------------- */

/* A dynamic loss scale, as torch.amp.GradScaler: it keeps small float16 gradients in range. bfloat16 needs none. Zeros
 * take the defaults. To checkpoint it, save two values of the program, `scale` and `good_steps`.
 *     tsh_backward(tape, tsh_loss_scale_apply(tape, &scale, loss));
 *     tsh_loss_scale_unscale(&scale, list, max_norm, &norm, &finite);
 *     if (finite) tsh_optimizer_step(optimizer);
 *     tsh_loss_scale_update(&scale, finite); */
typedef struct tsh_loss_scale {
    double scale;       /* default 65536 */
    double growth;      /* factor after `interval` finite steps in a row; default 2 */
    double backoff;     /* factor after a step that is not finite; default 0.5 */
    int64_t interval;   /* default 2000 */
    int64_t good_steps; /* finite steps since the scale changed */
} tsh_loss_scale;

/* loss times the scale, owned by the tape. */
TSH_API tsh_tensor *tsh_loss_scale_apply(tsh_tape *tape, const tsh_loss_scale *scale, tsh_tensor *loss);
/* *finite = no rank of the world has a gradient with an infinity or a NaN. If so, all gradients are divided by the
 * scale and clipped as by tsh_clip_grad_norm, in one pass (max_norm 0: not clipped), and *norm (may be NULL) is the
 * norm of the divided gradients before clipping. Otherwise no gradient changes, *norm is NAN, and the caller skips the
 * optimizer's step. TSH_ERR_ARGUMENT. Collective over the world: an all-reduce of one double; with max_norm or norm
 * also those of tsh_clip_grad_norm. Waits. */
TSH_API tsh_status tsh_loss_scale_unscale(const tsh_loss_scale *scale, tsh_parameters *list, double max_norm,
                                          double *norm, bool *finite);
/* Sets the scale for the next step. Every rank makes the same call. TSH_ERR_ARGUMENT for a field out of range. */
TSH_API tsh_status tsh_loss_scale_update(tsh_loss_scale *scale, bool finite);

/* --- data parallelism --------------------------------------------------------------------------------------------- */

/* A schedule for the gradient sums of data parallelism. If a parameter is REPLICATED along an axis and the batch is
 * split along it, the parameter's gradient is a sum over the axis' ranks. Without a schedule, each of these sums is an
 * all-reduce in backward. With one, gradients lie in a few buckets, and the all-reduce of a bucket starts as soon as
 * its gradients are complete, while backward continues. The values are the same.
 *
 * tsh_backward waits for the sums before it returns (on a GPU, its queue of kernels does), and fails if one has failed.
 * Parameters may be sharded over other axes, have different dtypes, and be unused in a step by some ranks (they
 * contribute zeros) or by all (their gradients do not change). tsh_tape_reset after a failed step drops the gradients.
 * If inputs are REPLICATED along the axis, its ranks compute the same and there is nothing to sum: the first such
 * backward logs a warning. */
typedef struct tsh_data_parallel tsh_data_parallel;

/* What the ranks of the axis shard rather than replicate (ZeRO). Each parameter is sliced along its first dim, by the
 * weights of the axis if it has any, inside any split by other axes; one of three or more dims as by SHARD_NEXT(0).
 * Scalar parameters are not sharded.
 *  NOTHING     nothing: each rank steps all parameters
 *  OPTIMIZER   the optimizer's states and step (ZeRO-1); does what GRADIENTS does, which sends as many bytes and takes
 *              less memory
 *  GRADIENTS   also the gradients (ZeRO-2), which are reduce-scattered: a bucket holds whole gradients only until its
 *              sum. The values of a bucket's parameters are gathered before their first use in a step, and kept until a
 *              backward with sync has ended
 *  PARAMETERS  also the parameters (ZeRO-3): a bucket has the parameters of one layer, whose values are freed when
 *              another layer is used, and gathered again in backward. The layer of a parameter is its name up to and
 *              including the first number ("layers.3"), else up to the last dot
 * From OPTIMIZER on, a parameter becomes this rank's slice, SHARD(0) or SHARD_NEXT(0) along the axis, and so does its
 * gradient.
 * Functions and transitions still take the parameter as a whole: its values are prefetched in the order of the previous
 * step. Every rank uses the same parameters in the same order. Ranks outside the mesh also create the schedule, for
 * they plan exchanges with the mesh by its parameters' layouts. Create optimizers for the parameters after the
 * schedule; their steps are not collective. */
typedef enum tsh_zero_level {
    TSH_ZERO_NOTHING = 0,
    TSH_ZERO_OPTIMIZER,
    TSH_ZERO_GRADIENTS,
    TSH_ZERO_PARAMETERS
} tsh_zero_level;

/* Options of a tsh_data_parallel; zeros are the defaults. */
typedef struct tsh_data_parallel_config {
    /* false: the loss is that of the whole batch, split over ranks (SHARD(0) inputs); gradients are sums. true: each
     * rank has its own batch and LOCAL loss; the objective is their mean, by the weights of the axis if it has any,
     * and gradients are averages. */
    bool average;
    /* false: the parameters get the values of the group's rank 0; true: they keep their own */
    bool keep_values;
    size_t bucket_bytes;       /* 0: 25 MiB; with a level at most an eighth of the gradients (at least 64 KiB) */
    size_t first_bucket_bytes; /* 0: min(1 MiB, bucket_bytes); small, so that the first sum starts early */
    tsh_zero_level level;      /* the same on every rank */
    /* NULL, or another axis of the mesh, over which layers are split. Gradients of KV projections that ranks of the
     * axis share, and of adapters' factors that are REPLICATED beside a split weight, are then summed over these ranks
     * in buckets too; with a level not those of matrices, for no rank has them whole. */
    tsh_group *model;
    /* tokens are split over `model`: gradients of parameters that are REPLICATED there, such as norms', are summed over
     * it in buckets too */
    bool sequence_parallel;
} tsh_data_parallel_config;

/* A schedule for the parameters of the list that are on the mesh of `group` and REPLICATED along that axis, in
 * backwards of `tape`. Frozen parameters are left out, and so are parameters on other meshes, such as those of other
 * stages of a pipeline. A layer whose parameters are in no list gets no gradients on this tape, so it costs no
 * communication; the first such layer logs a warning. On a rank outside the mesh the schedule does nothing. Buckets are
 * filled in reverse order of the list; the gradients' memory moves into them. Without keep_values, the parameters get
 * the values of the group's rank 0. The caller destroys the schedule; tape and list may be destroyed first. config may
 * be NULL. Collective over the group, over its mesh with `model`; waits. TSH_ERR_ARGUMENT, TSH_ERR_STATE when the tape
 * or a parameter has a schedule already, TSH_ERR_MEMORY. */
TSH_API tsh_status tsh_data_parallel_create(tsh_tape *tape, tsh_parameters *list, tsh_group *group,
                                            const tsh_data_parallel_config *config, tsh_data_parallel **out);
/* The parameters keep their gradients if these are summed, and with a level remain slices. NULL is accepted. */
TSH_API void tsh_data_parallel_destroy(tsh_data_parallel *dp);
/* While sync is off, backwards accumulate without sums, and gradients cannot be read (tsh_tensor_grad is NULL) until a
 * backward with sync sums them all. Initially on; every rank makes the same call. Returns the value before the call. */
TSH_API bool tsh_data_parallel_set_sync(tsh_data_parallel *dp, bool sync);
/* The number of buckets, and of sums in a backward: all-reduces, or with a level reduce-scatters. */
TSH_API int tsh_data_parallel_buckets(const tsh_data_parallel *dp);
/* The group in which the sums run and are counted. */
TSH_API tsh_group *tsh_data_parallel_group(const tsh_data_parallel *dp);

/* --- the order of data -------------------------------------------------------------------------------------------- */

/* The order of a data set: shuffled in each epoch, depending only on the seed and the epoch, and cut into batches,
 * which may span the end of an epoch. There is no state: a run that is resumed, or continues at another number of
 * ranks, needs only the number of its next batch. */
typedef struct tsh_batches {
    int64_t items; /* in the data set */
    int64_t batch; /* items in a batch, all ranks together */
    uint64_t seed;
    bool in_order; /* not shuffled */
} tsh_batches;

/* The item at a position in the sequence of all epochs, one epoch after another; each epoch has each item once. -1 for
 * a position below 0, or an empty data set. Pure. */
TSH_API int64_t tsh_batches_item(const tsh_batches *batches, int64_t position);
/* The items of batch `number` that belong to a box whose dim 0 is the batch's rows: with tsh_tensor_box(inputs), those
 * of this rank. items has box->length[0] elements. Pure. TSH_ERR_ARGUMENT, TSH_ERR_OVERFLOW. */
TSH_API tsh_status tsh_batches_rows(const tsh_batches *batches, int64_t number, const tsh_box *box, int64_t *items);

/* --- values that outlive ranks ------------------------------------------------------------------------------------ */

/* Keeps what a program needs to continue after tsh_world_continue: which step each rank has completed, and copies of
 * each rank's boxes of the parameters and of the optimizer's states and master weights, in the rank's own memory and in
 * that of the next rank or, on several machines, of a rank of the next machine. The copies are made after each
 * `every`-th step, straight from the tensors, by messages that progress inside the library's calls; the next
 * tsh_optimizer_step waits until they have arrived on all ranks, and is then collective. Until then only that
 * tsh_optimizer_step may change the values. The copies take three times the memory of a rank's boxes. With `every` 0
 * there are no copies: after a death only the values that surviving ranks hold in their tensors remain. docs/elastic.md
 * has the loop of a program that continues with fewer ranks. */
typedef struct tsh_protection tsh_protection;

/* A protection of the present parameters of the list and their optimizer (or NULL), which are of one world; the
 * optimizer must outlive the protection. The caller destroys the protection, before its world. Collective over the
 * world, waits. TSH_ERR_ARGUMENT, TSH_ERR_LAYOUT for PARTIAL or LOCAL parameters, TSH_ERR_UNSUPPORTED for GPUs,
 * TSH_ERR_MEMORY. */
TSH_API tsh_status tsh_protection_create(tsh_parameters *list, tsh_optimizer *optimizer, int every,
                                         tsh_protection **out);
/* Says that this rank has completed `step` steps. Call it before the first step, with the number of steps completed
 * before (0 in a new run), and after each tsh_optimizer_step. The first call makes copies too, and they are complete
 * when it returns. Every rank makes the same calls. The first call is collective over the world and waits; so is every
 * call that makes copies without an optimizer, or while parameters are stepped in backward; no other call is.
 * TSH_ERR_STATE if the values have changed while a copy of them was in flight. */
TSH_API tsh_status tsh_protection_step(tsh_protection *protection, int64_t step);
/* Restores the parameters and the optimizer of a world that tsh_world_continue has made to the protected values of an
 * earlier world: those of the last step for which the ranks of the new world have all boxes between them, in the
 * tensors of ranks that have completed exactly this step, or else in copies. *step: that step, from which the program
 * continues; steps after it are lost. A rank that has joined (tsh_world_has_joined) passes NULL; all other ranks pass
 * the protection of the same world. Random streams and the optimizer's counters are restored to that step too. The
 * lists have the same names, shapes and dtypes; meshes and layouts may differ. Collective over the new world, waits.
 * TSH_ERR_STATE if there is no such step, and the message names what is missing; TSH_ERR_MISMATCH if the lists differ;
 * nothing has changed then. */
TSH_API tsh_status tsh_protection_move(const tsh_protection *protection, tsh_parameters *list, tsh_optimizer *optimizer,
                                       int64_t *step);
TSH_API void tsh_protection_destroy(tsh_protection *protection);

/* --- memory ------------------------------------------------------------------------------------------------------- */

/* Write this rank's live tensor bytes to the file `path`, a line each: every parameter of the list and its gradient by
 * name, the optimizer's states of each parameter, the step's results and saved tensors by function (call it before
 * tsh_backward, which frees them), and all tensors of the device by purpose with the peak, as in tsh_device_memory. A
 * gradient in a bucket of data parallelism counts as its own. optimizer and tape may be NULL. Not collective: each rank
 * names a file of its own. TSH_ERR_ARGUMENT, TSH_ERR_SYSTEM. */
TSH_API tsh_status tsh_memory_report(const char *path, const tsh_parameters *list, const tsh_optimizer *optimizer,
                                     const tsh_tape *tape);

#ifdef __cplusplus
}
#endif

#endif
