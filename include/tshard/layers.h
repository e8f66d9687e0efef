/* layers: parameters and the sharded layers made of them.
 *
 * Thread safety: everything here is for the world's thread. */
#ifndef TSHARD_LAYERS_H
#define TSHARD_LAYERS_H

#include "tshard/functional.h"

#ifdef __cplusplus
extern "C" {
#endif

/* --- initialisers ------------------------------------------------------------------------------------------------- */

/* Values depend on the world's seed, the order of initialisations and the global element index, never on the number of
 * ranks; fans come from the global shape [fan_out, fan_in]. DEFAULT is the layer's own default.
 *   KAIMING_UNIFORM  U(-b, b), b = gain sqrt(3 / fan_in)
 *   KAIMING_NORMAL   N(0, gain^2 / fan_in)
 *   XAVIER_UNIFORM   U(-b, b), b = gain sqrt(6 / (fan_in + fan_out))
 *   XAVIER_NORMAL    N(0, 2 gain^2 / (fan_in + fan_out))
 *   UNIFORM          U(a, b)
 *   NORMAL           N(a, b^2)
 *   CONSTANT         a
 * N(mean, variance). Sources: He et al., "Delving deep into rectifiers", 2015; Glorot and Bengio, "Understanding the
 * difficulty of training deep feedforward neural networks", 2010. */
typedef enum tsh_init_kind {
    TSH_INIT_DEFAULT = 0,
    TSH_INIT_KAIMING_UNIFORM,
    TSH_INIT_KAIMING_NORMAL,
    TSH_INIT_XAVIER_UNIFORM,
    TSH_INIT_XAVIER_NORMAL,
    TSH_INIT_UNIFORM,
    TSH_INIT_NORMAL,
    TSH_INIT_CONSTANT
} tsh_init_kind;

typedef struct tsh_init {
    tsh_init_kind kind;
    double gain; /* 0 means 1 */
    double a, b;
} tsh_init;

/* Fill this rank's part from the world's next stream of random numbers. The layouts must be REPLICATED or SHARD. fan_in
 * and fan_out of a tensor of 1 dim are its size. Not collective, but every rank makes the same call. */
TSH_API tsh_status tsh_tensor_init(tsh_tensor *tensor, const tsh_init *init);

/* --- parameters --------------------------------------------------------------------------------------------------- */

/* An ordered list of named parameters, for optimizers. Holds a reference to each tensor. The caller destroys it. */
typedef struct tsh_parameters tsh_parameters;
TSH_API tsh_status tsh_parameters_create(tsh_world *world, tsh_parameters **out);
TSH_API void tsh_parameters_destroy(tsh_parameters *list);
/* Append a parameter. The name is copied and must not be in the list; a NULL tensor is skipped (a layer without
 * bias). */
TSH_API tsh_status tsh_parameters_add(tsh_parameters *list, const char *name, tsh_tensor *tensor);
/* The number of parameters; the tensor and the name at an index, NULL outside [0, count). */
TSH_API int tsh_parameters_count(const tsh_parameters *list);
TSH_API tsh_tensor *tsh_parameters_tensor(const tsh_parameters *list, int index);
TSH_API const char *tsh_parameters_name(const tsh_parameters *list, int index);
/* Clear the gradients of all parameters, as tsh_tensor_zero_grad does. */
TSH_API void tsh_parameters_zero_grad(tsh_parameters *list);

/* --- linear ------------------------------------------------------------------------------------------------------- */

/* How a layer's weight is split over the group. Linear weight [out_features, in_features]: COLUMN splits out_features
 * (the columns of W^T), ROW splits in_features. Embedding table [num_embeddings, embedding_dim]: ROW splits
 * num_embeddings (the vocabulary), COLUMN embedding_dim. */
typedef enum tsh_sharding { TSH_DENSE = 0, TSH_ROW, TSH_COLUMN } tsh_sharding;

/* A function of each element of a layer's output: tsh_gelu, tsh_gelu_tanh, tsh_relu or tsh_silu of functional.h. */
typedef enum tsh_activation {
    TSH_ACTIVATION_NONE = 0,
    TSH_ACTIVATION_GELU,
    TSH_ACTIVATION_GELU_TANH,
    TSH_ACTIVATION_RELU,
    TSH_ACTIVATION_SILU
} tsh_activation;

typedef struct tsh_linear tsh_linear;

typedef struct tsh_linear_config {
    int64_t in_features, out_features;
    tsh_sharding shard;
    bool bias;
    bool gather_output;     /* COLUMN: the output is REPLICATED, not SHARD(last) */
    bool sequence_parallel; /* ROW: the output is SHARD(0), not REPLICATED: a reduce-scatter instead of an all-reduce */
    tsh_activation activation; /* y = f(x W^T + b): faster than two calls, with the same values and gradients */
    tsh_dtype dtype;
    tsh_init weight_init; /* default U(-1/sqrt(in_features), 1/sqrt(in_features)) */
    tsh_init bias_init;   /* default U(-1/sqrt(in_features), 1/sqrt(in_features)) */
} tsh_linear_config;

/* A linear layer: each rank of `group`, one axis of a mesh, holds its part of weight and bias; they are REPLICATED
 * along the mesh's other axes. The caller destroys the layer. Not collective, but every rank of the mesh makes the same
 * call. TSH_ERR_ARGUMENT, _DTYPE, _OVERFLOW, _MEMORY; *out is then NULL. */
TSH_API tsh_status tsh_linear_create(tsh_group *group, const tsh_linear_config *config, tsh_linear **out);
TSH_API void tsh_linear_destroy(tsh_linear *layer);

/* Y = f(X W^T + b), f the activation.  x [..., in_features] -> [..., out_features], owned by the tape. Along the
 * group's axis (p ranks):
 *   COLUMN  Y_r = f(X W_r^T + b_r).  x REPLICATED, SHARD(0) (gathered) or LOCAL; -> SHARD(last), or REPLICATED with
 *           gather_output.  Backward: dX is a sum over ranks (all-reduce; reduce-scatter for a SHARD(0) x); dW, db
 *           stay local.
 *   ROW     Y = f(sum_r X_r W_r^T + b).  x SHARD(last), or REPLICATED (sliced); -> REPLICATED by an all-reduce, or
 *           SHARD(0) with sequence_parallel by a reduce-scatter; f comes after the sum.  Backward: no communication; an
 *           all-gather with sequence_parallel.
 *   DENSE   x in any layout but SHARD(last) and PARTIAL keeps it.
 * Along other axes x may be REPLICATED, SHARD(0) or LOCAL; gradients of parameters are summed over them. Collective as
 * listed. NULL on a shape or layout mismatch. */
TSH_API tsh_tensor *tsh_linear_forward(tsh_tape *tape, tsh_linear *layer, tsh_tensor *x);
/* weight [out_features, in_features]: SHARD(0) for COLUMN, SHARD(1) for ROW, else REPLICATED. bias [out_features]:
 * SHARD(0) for COLUMN, else REPLICATED; NULL for a layer without bias. Owned by the layer. */
TSH_API tsh_tensor *tsh_linear_weight(const tsh_linear *layer);
TSH_API tsh_tensor *tsh_linear_bias(const tsh_linear *layer);
/* Append "NAME.weight" and "NAME.bias" to the list. */
TSH_API tsh_status tsh_linear_register(const tsh_linear *layer, tsh_parameters *list, const char *name);
/* Copy this rank's slices from a whole weight [out_features, in_features] and bias [out_features] (NULL: the bias does
 * not change) in host memory, of the layer's dtype. */
TSH_API tsh_status tsh_linear_load(tsh_linear *layer, const void *weight, const void *bias);

/* --- embedding ---------------------------------------------------------------------------------------------------- */

typedef struct tsh_embedding tsh_embedding;

typedef struct tsh_embedding_config {
    int64_t num_embeddings, embedding_dim; /* rows and columns of the table: the vocabulary, and the features */
    tsh_sharding shard;
    bool has_padding;
    int64_t padding;        /* with has_padding: this row is initialised to zeros and gets no gradient */
    bool gather_output;     /* COLUMN: the output is REPLICATED, not SHARD(last) */
    bool sequence_parallel; /* ROW: the output is SHARD(0), not REPLICATED */
    tsh_dtype dtype;
    tsh_init init; /* default N(0, 1) */
} tsh_embedding_config;

/* An embedding layer: each rank of `group` holds its part of the table. The caller destroys the layer. Not collective,
 * but every rank of the mesh makes the same call. TSH_ERR_ARGUMENT, _RANGE, _DTYPE, _OVERFLOW, _MEMORY; *out is then
 * NULL. */
TSH_API tsh_status tsh_embedding_create(tsh_group *group, const tsh_embedding_config *config, tsh_embedding **out);
TSH_API void tsh_embedding_destroy(tsh_embedding *layer);
/* Y[i..., :] = table[ids[i...], :].  ids int64 [...] -> [..., embedding_dim], owned by the tape.
 *   ROW     -> REPLICATED by one all-reduce forward (SHARD(0) by a reduce-scatter with sequence_parallel), none
 *           backward
 *   COLUMN  -> SHARD(last) without communication, or REPLICATED by an all-gather with gather_output
 * TSH_ERR_RANGE for an id outside [0, num_embeddings), at any number of ranks. */
TSH_API tsh_tensor *tsh_embedding_forward(tsh_tape *tape, tsh_embedding *layer, tsh_tensor *ids);
/* table [num_embeddings, embedding_dim]: SHARD(0) for ROW, SHARD(1) for COLUMN, else REPLICATED. Owned by the layer. */
TSH_API tsh_tensor *tsh_embedding_weight(const tsh_embedding *layer);
/* Append "NAME.weight" to the list. */
TSH_API tsh_status tsh_embedding_register(const tsh_embedding *layer, tsh_parameters *list, const char *name);
/* Copy this rank's slice from a whole table [num_embeddings, embedding_dim] in host memory, of the layer's dtype. */
TSH_API tsh_status tsh_embedding_load(tsh_embedding *layer, const void *table);

#ifdef __cplusplus
}
#endif

#endif
