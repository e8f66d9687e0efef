/* layers: parameters and the sharded layers made of them.
 *
 * Thread safety: everything here is for the world's thread. */
#ifndef TSHARD_LAYERS_H
#define TSHARD_LAYERS_H

#include "tshard/generate.h"

#ifdef __cplusplus
extern "C" {
#endif

/* --- initialisers ------------------------------------------------------------------------------------------------- */

/* Values depend on the world's seed, the order of initialisations and the global element index, never on the number of
 * ranks; fan_out and fan_in are those of the global shape [fan_out, fan_in]. DEFAULT is the layer's default.
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

/* The initial values of a parameter; zeros are the default of its layer. */
typedef struct tsh_init {
    tsh_init_kind kind;
    double gain; /* 0 means 1 */
    double a, b; /* the parameters of U, N and CONSTANT, as above */
} tsh_init;

/* Fill this rank's part from the world's next stream of random numbers. The layouts must be REPLICATED or SHARD. fan_in
 * and fan_out of a tensor with one dim are its size; one with more than two is taken for a convolution's weight, not
 * for a stack of matrices. Not collective, but every rank makes the same call. */
TSH_API tsh_status tsh_tensor_init(tsh_tensor *tensor, const tsh_init *init);

/* --- parameters --------------------------------------------------------------------------------------------------- */

/* A layer's parameters get memory at their first use, by a function or by a call that reads or writes them: a model
 * that a tsh_data_parallel shards before its first use never exists whole on a rank. */

/* An ordered list of named parameters, for optimizers. Holds a reference to each tensor. The caller destroys it. */
typedef struct tsh_parameters tsh_parameters;
TSH_API tsh_status tsh_parameters_create(tsh_world *world, tsh_parameters **out);
TSH_API void tsh_parameters_destroy(tsh_parameters *list);
/* Append a parameter. The name is copied and must not be in the list; a NULL tensor is skipped (a layer without a
 * bias). */
TSH_API tsh_status tsh_parameters_add(tsh_parameters *list, const char *name, tsh_tensor *tensor);
/* The number of parameters; the tensor and the name at an index, NULL outside [0, count). */
TSH_API int tsh_parameters_count(const tsh_parameters *list);
TSH_API tsh_tensor *tsh_parameters_tensor(const tsh_parameters *list, int index);
TSH_API const char *tsh_parameters_name(const tsh_parameters *list, int index);
/* The parameter of this name; NULL if there is none. */
TSH_API tsh_tensor *tsh_parameters_find(const tsh_parameters *list, const char *name);
/* TSH_OK if, on this rank, neither a parameter nor its gradient has an infinity or a NaN; else TSH_ERR_RANGE, and the
 * message names the first that does. Parameters and gradients that have no memory on this rank are not checked. Waits
 * for a GPU; not collective. TSH_ERR_ARGUMENT, TSH_ERR_MEMORY. */
TSH_API tsh_status tsh_parameters_check_finite(const tsh_parameters *list);
/* tsh_tensor_require_grad(t, false) (freeze) or (t, true) (unfreeze) for each parameter t that the pattern matches: by
 * its own name, or by the name of a layer that contains it, with `*` as in tsh_sharding_rule. "layers.3" freezes all of
 * that layer, "layers.*.mlp" the MLPs of all layers, "*" everything. Call it before tsh_data_parallel_create and before
 * creating the optimizer: a frozen parameter then has no gradient, no bucket and no optimizer state, and costs no
 * collective in a step. Every rank makes the same call. TSH_ERR_ARGUMENT for a pattern that matches no parameter;
 * TSH_ERR_STATE as for tsh_tensor_require_grad; nothing changes then. */
TSH_API tsh_status tsh_parameters_freeze(tsh_parameters *list, const char *pattern);
TSH_API tsh_status tsh_parameters_unfreeze(tsh_parameters *list, const char *pattern);
/* tsh_tensor_zero_grad for all parameters. */
TSH_API void tsh_parameters_zero_grad(tsh_parameters *list);

/* --- low-rank adapters -------------------------------------------------------------------------------------------- */

/* A low-rank adapter (LoRA) trains two small factors beside a frozen weight:
 *     y = x W^T + s (x A^T) B^T,  A [r, in_features], B [out_features, r], s = alpha / r
 * Source: Hu et al., "LoRA: low-rank adaptation of large language models", 2021. See docs/fine-tuning.md. */
typedef struct tsh_lora_config {
    int64_t rank;         /* r, at least 1 */
    double alpha;         /* 0: rank, which makes s = 1 */
    bool rank_stabilized; /* s = alpha / sqrt(r) */
    /* y = x W^T + s (tsh_dropout(x, dropout) A^T) B^T, in [0, 1): none while recording is off, nor in an embedding's
     * lookup, as in PEFT */
    double dropout;
    /* tsh_mlp_adapt, tsh_self_attention_adapt and tsh_block_adapt adapt the linear layers with these names, such as
     * "q_proj" or "self_attn.q_proj": a name matches the end of a layer's full name, from a '.' on, with `*` as in
     * tsh_sharding_rule. The array ends with NULL; if `targets` itself is NULL, all linear layers are adapted. */
    const char *const *targets;
    /* Defaults: A U(-1/sqrt(in_features), 1/sqrt(in_features)), B zeros; of an embedding's lookup A zeros, B N(0, 1).
     * At first the layer's output has the same bits as without the adapter. */
    tsh_init a_init, b_init;
} tsh_lora_config;

/* --- linear ------------------------------------------------------------------------------------------------------- */

/* How a layer's weight is split over the group. Linear weight [out_features, in_features]: COLUMN splits out_features
 * (the columns of W^T), ROW splits in_features. Embedding table [num_embeddings, embedding_dim]: ROW splits
 * num_embeddings (the vocabulary), COLUMN embedding_dim. */
typedef enum tsh_sharding { TSH_DENSE = 0, TSH_ROW, TSH_COLUMN } tsh_sharding;

/* An elementwise function of a layer's output: tsh_gelu, tsh_gelu_tanh, tsh_relu or tsh_silu of functional.h. */
typedef enum tsh_activation {
    TSH_ACTIVATION_NONE = 0,
    TSH_ACTIVATION_GELU,
    TSH_ACTIVATION_GELU_TANH,
    TSH_ACTIVATION_RELU,
    TSH_ACTIVATION_SILU
} tsh_activation;

/* A linear layer, y = f(x W^T + b). */
typedef struct tsh_linear tsh_linear;

/* A linear layer's shape, split and parameters. */
typedef struct tsh_linear_config {
    int64_t in_features, out_features; /* sizes of the last dim of x and y */
    tsh_sharding shard;
    bool bias; /* the layer adds b; false by default, unlike PyTorch's nn.Linear */
    /* Units and blocks of the split of out_features (COLUMN) or in_features (ROW), see tsh_layout. */
    int64_t units, blocks;
    bool shared;            /* COLUMN: ranks that share a unit hold all its features */
    bool gather_output;     /* COLUMN: the output is REPLICATED, not SHARD(last) */
    bool sequence_parallel; /* ROW: the output is SHARD(0), not REPLICATED: a reduce-scatter instead of an all-reduce */
    tsh_activation activation; /* y = f(x W^T + b), fused; values and gradients are those of two calls */
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
/* tsh_linear_forward with only some rows of the weight, chosen as by tsh_take_rows: x [..., in_features], rows int64
 * [n], in the layout of the weight's rows -> [..., n]. TSH_ERR_ARGUMENT for a layer with a bias. */
TSH_API tsh_tensor *tsh_linear_forward_rows(tsh_tape *tape, tsh_linear *layer, tsh_tensor *x, tsh_tensor *rows);
/* weight [out_features, in_features]: SHARD(0) for COLUMN, SHARD(1) for ROW, else REPLICATED. bias [out_features]:
 * SHARD(0) for COLUMN, else REPLICATED; NULL for a layer without a bias. Split in the layer's units. Owned by the
 * layer. With tsh_load_options.keep_quantized, a weight may have become uint8. */
TSH_API tsh_tensor *tsh_linear_weight(const tsh_linear *layer);
TSH_API tsh_tensor *tsh_linear_bias(const tsh_linear *layer);
/* Append "NAME.weight" and "NAME.bias" to the list, and the parameters of an adapter. */
TSH_API tsh_status tsh_linear_register(const tsh_linear *layer, tsh_parameters *list, const char *name);
/* Copy this rank's slices from a whole weight [out_features, in_features] and bias [out_features] (NULL: the bias does
 * not change) in host memory, of the layer's dtype. */
TSH_API tsh_status tsh_linear_load(tsh_linear *layer, const void *weight, const void *bias);

/* Adds an adapter: freezes weight and bias, creates A and B, and appends "NAME.lora_A.weight" and "NAME.lora_B.weight"
 * to the list (NULL: none). Call it before tsh_data_parallel_create and before creating the optimizer, and after a
 * tsh_load of the base. Along the group's axis:
 *   COLUMN  A is REPLICATED, B is split as the weight's out_features
 *   ROW     A is split as the weight's in_features, B is REPLICATED
 * Forward costs the same collectives as without the adapter: a row layer's output is one sum of both terms. Backward
 * sums the gradient of the REPLICATED factor over the axis: by an all-reduce, or, with tsh_data_parallel_config.model,
 * in buckets together with the sums over the copies of the model. Not collective, but every rank of the mesh makes the
 * same call. TSH_ERR_STATE for a layer that has an adapter already, and as for tsh_tensor_require_grad;
 * TSH_ERR_ARGUMENT, _MEMORY. After a failure the layer has no new adapter, but its weight may be frozen. */
TSH_API tsh_status tsh_linear_adapt(tsh_linear *layer, const tsh_lora_config *config, tsh_parameters *list,
                                    const char *name);
/* A [r, in_features] and B [out_features, r], owned by the layer; NULL without an adapter. */
TSH_API tsh_tensor *tsh_linear_lora_a(const tsh_linear *layer);
TSH_API tsh_tensor *tsh_linear_lora_b(const tsh_linear *layer);
/* true: adds s B A to the weight; forward then skips the adapter, whose parameters get no gradient, so that evaluation
 * is as fast as without it. false: subtracts s B A again, which restores the weight up to rounding. Does nothing if the
 * layer is in that state already, or has no adapter. No communication. TSH_ERR_STATE where a tsh_data_parallel has
 * split the factors or the weight (TSH_ZERO_PARAMETERS); TSH_ERR_MEMORY. */
TSH_API tsh_status tsh_linear_merge(tsh_linear *layer, bool merged);

/* --- embedding ---------------------------------------------------------------------------------------------------- */

/* A table of rows that are looked up by ids. */
typedef struct tsh_embedding tsh_embedding;

/* A table's shape, split and parameters. */
typedef struct tsh_embedding_config {
    int64_t num_embeddings, embedding_dim; /* rows and columns of the table: the vocabulary, and the features */
    tsh_sharding shard;
    bool has_padding; /* the table has a padding row */
    int64_t padding;  /* with has_padding: this row is initialised to zeros and gets no gradient */
    /* The gradient of a row is divided by the number of its ids in the batch, on all ranks: where ids are SHARD,
     * backward all-reduces the counts. */
    bool scale_grad_by_freq;
    /* Above 0: forward first scales the rows that it looks up and whose norm exceeds max_norm, in place, by max_norm /
     * (norm + 1e-7), also while recording is off; gradients do not see the scaling. SHARD and LOCAL ids are gathered,
     * so that replicas of the table stay equal; each rank must have as many LOCAL ids. COLUMN: one all-reduce of a
     * number for each id. The backward of an earlier tsh_embedding_project in the step uses the scaled rows.
     * With an adapter of the lookup: one forward for each backward. */
    double max_norm;
    double norm_type;       /* p of (sum |x|^p)^(1/p), INFINITY for the largest |x|; 0 means 2 */
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
/* table [num_embeddings, embedding_dim]: SHARD(0) for ROW, SHARD(1) for COLUMN, else REPLICATED. Owned by the layer.
 * With tsh_load_options.keep_quantized, a table may have become uint8. */
TSH_API tsh_tensor *tsh_embedding_weight(const tsh_embedding *layer);
/* Append "NAME.weight" to the list, and the parameters of the lookup's adapter. */
TSH_API tsh_status tsh_embedding_register(const tsh_embedding *layer, tsh_parameters *list, const char *name);
/* Copy this rank's slice from a whole table [num_embeddings, embedding_dim] in host memory, of the layer's dtype.
 * TSH_ERR_STATE for a quantized table. */
TSH_API tsh_status tsh_embedding_load(tsh_embedding *layer, const void *table);
/* Logits of tied embeddings, Y = X table^T: the layer's table is also the output head's weight, and gets the sum of
 * both gradients. x [..., embedding_dim] -> [..., num_embeddings], owned by the tape. Layouts and communication are
 * those of a linear layer with this weight:
 *   ROW     as COLUMN in tsh_linear_forward; -> SHARD(last), by vocabulary, as tsh_cross_entropy takes it
 *   COLUMN  x SHARD(last), or REPLICATED (sliced); -> REPLICATED by one all-reduce
 * The padding row is not special here. A quantized table has no backward: TSH_ERR_STATE where x wants a gradient. */
TSH_API tsh_tensor *tsh_embedding_project(tsh_tape *tape, tsh_embedding *layer, tsh_tensor *x);

/* What a table is used for, which may have an adapter each: tsh_embedding_forward, and tsh_embedding_project. */
typedef enum tsh_embedding_use { TSH_EMBEDDING_LOOKUP = 0, TSH_EMBEDDING_HEAD, TSH_EMBEDDING_USES } tsh_embedding_use;

/* Adds an adapter, as tsh_linear_adapt does, to one use of the table, and freezes the table; the other use stays as it
 * is, as in PEFT. These adapters are never merged, since the table may be in both uses.
 *   LOOKUP  Y[i..., :] = table[ids[i...], :] + s A[ids[i...], :] B^T,  A [num_embeddings, r], B [embedding_dim, r],
 *           named "NAME.lora_embedding_A" and "NAME.lora_embedding_B". A is split as the table's rows, B as its
 *           columns. Forward costs the collectives of the table; backward sums B's gradient for ROW, and the gradient
 *           of A[ids], r numbers an id, for COLUMN. A's padding row gets no gradient; the table's other options, too,
 *           apply to A.
 *   HEAD    Y = X table^T + s (X A^T) B^T,  A [r, embedding_dim], B [num_embeddings, r], as of a linear layer with this
 *           weight, under the head's name: "lm_head.lora_A.weight". tsh_embedding_register does not append these.
 * TSH_ERR_STATE for a use that has an adapter already, for a quantized table, and as for tsh_tensor_require_grad;
 * TSH_ERR_ARGUMENT, _MEMORY. */
TSH_API tsh_status tsh_embedding_adapt(tsh_embedding *layer, tsh_embedding_use use, const tsh_lora_config *config,
                                       tsh_parameters *list, const char *name);
/* A and B, owned by the layer; NULL without an adapter. */
TSH_API tsh_tensor *tsh_embedding_lora_a(const tsh_embedding *layer, tsh_embedding_use use);
TSH_API tsh_tensor *tsh_embedding_lora_b(const tsh_embedding *layer, tsh_embedding_use use);

/* --- norm --------------------------------------------------------------------------------------------------------- */

/* The normalisation of a norm layer: tsh_layer_norm or tsh_rms_norm. */
typedef enum tsh_norm_kind { TSH_LAYER_NORM = 0, TSH_RMS_NORM } tsh_norm_kind;

/* A norm with its parameters. */
typedef struct tsh_norm tsh_norm;

/* A norm's kind, size and parameters. */
typedef struct tsh_norm_config {
    int64_t features; /* the size of the last dim */
    tsh_norm_kind kind;
    double eps;     /* 0 means 1e-5 */
    bool bias;      /* TSH_LAYER_NORM: beta, initially zeros */
    bool no_weight; /* neither gamma (initially ones) nor beta */
    tsh_dtype dtype;
} tsh_norm_config;

/* tsh_layer_norm or tsh_rms_norm with parameters that are REPLICATED along all axes of the group's mesh. The caller
 * destroys the layer. Not collective, but every rank of the mesh makes the same call. TSH_ERR_ARGUMENT, _DTYPE,
 * _MEMORY; *out is then NULL. */
TSH_API tsh_status tsh_norm_create(tsh_group *group, const tsh_norm_config *config, tsh_norm **out);
TSH_API void tsh_norm_destroy(tsh_norm *layer);
/* x [..., features], in any layout but SHARD(last) and PARTIAL, keeps its layout. The result is owned by the tape.
 * Where x is SHARD, as with sequence parallelism, the gradients of the parameters are summed over the axis: by an
 * all-reduce each, or in buckets with tsh_data_parallel_config.sequence_parallel. */
TSH_API tsh_tensor *tsh_norm_forward(tsh_tape *tape, tsh_norm *layer, tsh_tensor *x);
/* gamma and beta [features], or NULL. Owned by the layer. */
TSH_API tsh_tensor *tsh_norm_weight(const tsh_norm *layer);
TSH_API tsh_tensor *tsh_norm_bias(const tsh_norm *layer);
/* Append "NAME.weight" and "NAME.bias" to the list. */
TSH_API tsh_status tsh_norm_register(const tsh_norm *layer, tsh_parameters *list, const char *name);

/* --- sharding by names -------------------------------------------------------------------------------------------- */

/* A row of a table that shards a model by the names of its layers, as Hugging Face's base_model_tp_plan. A `*` in
 * `layers` stands for one or more characters other than '.'. A row of NULLs ends the table:
 *     static const tsh_sharding_rule table[] = {
 *         {"layers.*.self_attn.q_proj", "column"}, {"layers.*.self_attn.o_proj", "row"}, {NULL, NULL}};
 *
 *   sharding                                       the layer's configuration
 *   dense, replicated                              TSH_DENSE
 *   column, colwise                                TSH_COLUMN
 *   column_gather, colwise_rep,
 *     colwise_gather_output                        TSH_COLUMN, gather_output
 *   row, rowwise, vocabulary, embedding_rowwise    TSH_ROW
 *   row_sequence                                   TSH_ROW, sequence_parallel
 *   features                                       TSH_COLUMN of an embedding */
typedef struct tsh_sharding_rule {
    const char *layers, *sharding;
} tsh_sharding_rule;

/* The fields of a layer's configuration that a table sets. */
typedef struct tsh_sharding_choice {
    tsh_sharding shard;
    bool gather_output, sequence_parallel; /* as in tsh_linear_config */
} tsh_sharding_choice;

/* *out = the first row that matches the name of the layer; TSH_DENSE if none does. TSH_ERR_ARGUMENT for a table with a
 * malformed row. */
TSH_API tsh_status tsh_sharding_find(const tsh_sharding_rule *table, const char *name, tsh_sharding_choice *out);
/* Checks that each row of the table is the first match of some layer of the list, whose parameters are named
 * "LAYER.weight" and so on. TSH_ERR_ARGUMENT names the first row that is not: its pattern is mistyped, or hidden by an
 * earlier row. */
TSH_API tsh_status tsh_sharding_check(const tsh_sharding_rule *table, const tsh_parameters *list);

/* --- MLP ---------------------------------------------------------------------------------------------------------- */

/* The linear layers of an MLP. */
typedef enum tsh_mlp_part { TSH_MLP_GATE = 0, TSH_MLP_UP, TSH_MLP_DOWN, TSH_MLP_PARTS } tsh_mlp_part;

/* A feed-forward layer: up, down and, if gated, gate. */
typedef struct tsh_mlp tsh_mlp;

/* An MLP's shape, split and parameters. */
typedef struct tsh_mlp_config {
    int64_t embed, hidden;     /* features of x and y; features between the layers */
    bool gated;                /* a third layer, gate: its activation multiplies the output of up */
    tsh_activation activation; /* of gate if gated, else of up */
    bool bias;                 /* of all layers */
    bool sequence_parallel;    /* x and y are SHARD(0): an all-gather and a reduce-scatter instead of all-reduces */
    tsh_dtype dtype;
    tsh_init weight_init, bias_init, down_init; /* of gate and up; of all biases; of down */
    const char *names[TSH_MLP_PARTS];           /* NULL: "gate_proj", "up_proj", "down_proj" */
    const tsh_sharding_rule *table;             /* NULL: gate and up are column, down is row */
    const char *name;                           /* of this layer: the table matches "NAME." and one of names */
} tsh_mlp_config;

/* A feed-forward layer of two or three linear layers. The caller destroys the layer. Not collective, but every rank of
 * the mesh makes the same call. TSH_ERR_ARGUMENT, _DTYPE, _OVERFLOW, _MEMORY; *out is then NULL. */
TSH_API tsh_status tsh_mlp_create(tsh_group *group, const tsh_mlp_config *config, tsh_mlp **out);
TSH_API void tsh_mlp_destroy(tsh_mlp *layer);
/* y = down(f(up(x))), or gated down(f(gate(x)) * up(x)), f the activation.  x [tokens, embed] -> [tokens, embed], owned
 * by the tape. Over the group: REPLICATED -> REPLICATED by one all-reduce forward, one backward; SHARD(0) -> SHARD(0)
 * with sequence_parallel by one all-gather and one reduce-scatter each way. */
TSH_API tsh_tensor *tsh_mlp_forward(tsh_tape *tape, tsh_mlp *layer, tsh_tensor *x);
/* A part, owned by the layer; NULL for the gate of an MLP that is not gated. With silu, the gate by itself has no
 * activation: the layer multiplies by tsh_swiglu. */
TSH_API tsh_linear *tsh_mlp_linear(const tsh_mlp *layer, tsh_mlp_part part);
/* Append "NAME.gate_proj.weight" and so on to the list. */
TSH_API tsh_status tsh_mlp_register(const tsh_mlp *layer, tsh_parameters *list, const char *name);
/* tsh_linear_adapt for the parts that config->targets names; it is no error if none matches. */
TSH_API tsh_status tsh_mlp_adapt(tsh_mlp *layer, const tsh_lora_config *config, tsh_parameters *list, const char *name);

/* --- experts ------------------------------------------------------------------------------------------------------ */

/* The tensors of a mixture of experts: the router's weight, the bias for the choice of experts, and the experts'
 * weights. */
typedef enum tsh_experts_part {
    TSH_EXPERTS_ROUTER = 0,
    TSH_EXPERTS_BIAS,
    TSH_EXPERTS_GATE,
    TSH_EXPERTS_UP,
    TSH_EXPERTS_DOWN,
    TSH_EXPERTS_PARTS
} tsh_experts_part;

/* A mixture of experts: a router, and gated MLPs with silu. */
typedef struct tsh_experts tsh_experts;

/* A mixture of experts: its shape, split and parameters. */
typedef struct tsh_experts_config {
    int64_t embed, hidden; /* features of x and y; features inside an expert */
    int64_t experts;
    tsh_router_config router; /* with bias NULL */
    bool choice_bias;         /* a bias [experts] for the choice only, zeros at first, which gets no gradient */
    /* Above 0: an expert takes at most ceil(tokens top_k / experts capacity) of all ranks' tokens, and drops others,
     * which get nothing from it. All first choices come before all second ones, each in the order of the tokens, as
     * they are given: permuted ones in their permuted order; LOCAL ones are counted on each rank by itself. 0: no token
     * is dropped */
    double capacity;
    tsh_group
        *expert_group; /* another axis of the group's mesh, which splits the experts, and the group then the hidden
                        * features of each; NULL: the group splits the experts */
    tsh_dtype dtype;
    tsh_init router_init, weight_init, down_init; /* default U(-1/sqrt(embed), 1/sqrt(embed)) */
    /* NULL: "gate", "gate.e_score_correction_bias", "experts.gate_proj", "experts.up_proj", "experts.down_proj" */
    const char *names[TSH_EXPERTS_PARTS];
} tsh_experts_config;

/* A mixture of experts. Its weights are stacks [experts, hidden, embed], as tsh_expert_mlp takes them: SHARD_NEXT(0)
 * over expert_group, and SHARD(1) over the group, each rank of which holds the same part of the hidden features of each
 * of its experts: columns of gate and up, rows of down. Without expert_group the stacks are SHARD_NEXT(0) over the
 * group. 5 experts over 3 ranks are split 2, 2 and 1; 2 experts over 4 ranks are split into halves, so that each rank
 * holds half of one expert's hidden features. Weights of the axes apply, and a rank may have no expert. The router is
 * REPLICATED, and at least float32. The caller destroys the layer. Not collective, but every rank of the mesh makes the
 * same call. TSH_ERR_ARGUMENT, _DTYPE, _OVERFLOW, _MEMORY; *out is then NULL. */
TSH_API tsh_status tsh_experts_create(tsh_group *group, const tsh_experts_config *config, tsh_experts **out);
TSH_API void tsh_experts_destroy(tsh_experts *layer);
/* y = tsh_expert_mlp(x) with the weights and experts that tsh_route gives for the logits x router^T. x [tokens, embed]
 * -> [tokens, embed], in the layouts of x, owned by the tape. Over the axes that split the weights: REPLICATED ->
 * REPLICATED by one all-reduce forward, and backward by one all-reduce of dx and one of the routing weights' gradient;
 * SHARD(0) -> SHARD(0) as tsh_expert_mlp dispatches tokens. Over other axes x may be REPLICATED, SHARD(0) or LOCAL;
 * gradients of parameters are summed over these axes. With a capacity, the choices of tokens that are SHARD are
 * gathered. Ranks without tokens make the call too. x may also be [batch, T, embed]; it may then be SHARD(1), which
 * splits its tokens. */
TSH_API tsh_tensor *tsh_experts_forward(tsh_tape *tape, tsh_experts *layer, tsh_tensor *x);
/* experts_loss: tsh_route_loss of the latest forward, which the program adds to the model's loss; NULL if aux_loss and
 * z_loss are 0. experts_chosen: the experts [tokens, top_k] that the latest forward chose, also those that dropped the
 * token. Both are NULL before the first forward, and valid until the next one. */
TSH_API tsh_tensor *tsh_experts_loss(const tsh_experts *layer);
TSH_API tsh_tensor *tsh_experts_chosen(const tsh_experts *layer);
/* Adds rate sign(mean n - n_i) to the bias of each expert i, where n_i is the number of tokens that chose expert i in
 * the latest forward: this balances experts without a loss. Call it in each step, before tsh_tape_reset. Collective
 * over the axes that split the tokens; waits. TSH_ERR_ARGUMENT for a layer without a bias, or a rate that is not
 * finite; TSH_ERR_STATE without a forward. Source: Wang et al., "Auxiliary-loss-free load balancing strategy for
 * mixture-of-experts", 2024. */
TSH_API tsh_status tsh_experts_update_bias(tsh_tape *tape, tsh_experts *layer, double rate);
/* A parameter, owned by the layer; NULL for the bias of a layer without one. */
TSH_API tsh_tensor *tsh_experts_weight(const tsh_experts *layer, tsh_experts_part part);
/* Append "NAME.gate.weight", "NAME.gate.e_score_correction_bias", "NAME.experts.gate_proj.weight" and so on to the
 * list. */
TSH_API tsh_status tsh_experts_register(const tsh_experts *layer, tsh_parameters *list, const char *name);

/* --- self-attention ----------------------------------------------------------------------------------------------- */

/* The sequences in activations [tokens, embed], tokens = batch T, one sequence after another; or [batch, T, embed]. */
typedef struct tsh_sequences {
    int64_t batch;         /* the number of sequences */
    tsh_tensor *positions; /* int64 [T] or [batch, T]: required with rotary positions, and by tsh_context */
    tsh_tensor *lengths;   /* int64 [batch]: keys past a sequence's length are masked; NULL: none are */
    /* of this layer, to which forward appends the tokens, in evaluation; it has the lengths itself. NULL: none */
    tsh_kv_cache *cache;
    /* int64, with as many dims as positions: a token attends only to tokens of its own document. NULL: all tokens are
     * of one document. Not beside lengths or a cache */
    tsh_tensor *documents;
} tsh_sequences;

/* How attention handles sequences whose tokens are split over another axis, along which x [batch, T, embed] is
 * SHARD(1). See docs/long-contexts.md. */
typedef enum tsh_context {
    /* tokens are in order, and a causal mask compares their indices. Keys and values are gathered */
    TSH_CONTEXT_IN_ORDER = 0,
    /* tokens are in any order, and a causal mask compares tsh_sequences.positions. Keys and values are gathered, and
     * their gradients reduce-scattered */
    TSH_CONTEXT_GATHER,
    /* the same mask as GATHER. An all-to-all for each of queries, keys, values and output exchanges heads for tokens.
     * Gathers instead where another axis that splits heads leaves a rank too few of them */
    TSH_CONTEXT_EXCHANGE,
    /* the same mask as GATHER. Blocks of keys and values go round the ranks, each on its way while the block before it
     * is computed with. Gathers instead with dropout of attention weights, with lengths where the mask is not
     * causal, and in a deterministic world */
    TSH_CONTEXT_RING
} tsh_context;

/* The linear layers of an attention layer. */
typedef enum tsh_attention_part {
    TSH_ATTENTION_QUERY = 0,
    TSH_ATTENTION_KEY,
    TSH_ATTENTION_VALUE,
    TSH_ATTENTION_OUT,
    TSH_ATTENTION_PARTS
} tsh_attention_part;

/* Self-attention with its four projections. */
typedef struct tsh_self_attention tsh_self_attention;

/* A self-attention layer's shape, split and parameters. */
typedef struct tsh_self_attention_config {
    int64_t embed;                   /* features of x and y */
    int64_t heads;                   /* query heads */
    int64_t kv_heads;                /* divides heads; 0: heads */
    int64_t head_dim;                /* 0: embed / heads */
    bool causal;                     /* a token attends only to itself and those before it */
    tsh_context context;             /* how tokens are split over another axis */
    double scale;                    /* 0: 1 / sqrt(head_dim) */
    double dropout;                  /* of the attention weights */
    bool rotary;                     /* rotate queries and keys by tsh_sequences.positions */
    tsh_rotary_config rotary_config; /* with rotary */
    bool bias, out_bias;             /* of query, key and value; of out */
    bool qk_norm;           /* an RMS norm over head_dim of each query and key head, before rotary, as in Qwen3 */
    double qk_norm_eps;     /* 0 means 1e-5 */
    bool sequence_parallel; /* x and y are SHARD(0): an all-gather and a reduce-scatter instead of all-reduces */
    tsh_dtype dtype;
    tsh_init weight_init, bias_init, out_init; /* of query, key and value; of all biases; of out */
    const char *names[TSH_ATTENTION_PARTS];    /* NULL: "q_proj", "k_proj", "v_proj", "o_proj" */
    const tsh_sharding_rule *table;            /* NULL: query, key and value are column, out is row */
    const char *name;                          /* of this layer: the table matches "NAME." and one of names */
} tsh_self_attention_config;

/* Self-attention, sharded by heads over the group: a KV head with its query heads is a unit. With more ranks than
 * units, ranks share a KV head and split its query heads. Ranks may have no head. The caller destroys the layer. Not
 * collective, but every rank of the mesh makes the same call. TSH_ERR_ARGUMENT, _DTYPE, _OVERFLOW, _MEMORY; *out is
 * then NULL. */
TSH_API tsh_status tsh_self_attention_create(tsh_group *group, const tsh_self_attention_config *config,
                                             tsh_self_attention **out);
TSH_API void tsh_self_attention_destroy(tsh_self_attention *layer);
/* y = out(attention(rotary(query(x)), rotary(key(x)), value(x))). x [tokens, embed] or [batch, T, embed] -> as x, owned
 * by the tape. Over the group: REPLICATED -> REPLICATED by one all-reduce forward, one backward; SHARD(0) -> SHARD(0)
 * with sequence_parallel by one all-gather and one reduce-scatter each way. Over other axes x may be SHARD(0), by whole
 * sequences, without communication, and [batch, T, embed] may be SHARD(1), by tokens, with the communication that
 * tsh_context names. Positions, documents and lengths may have any layout; split as x, or REPLICATED, they are not
 * communicated. */
TSH_API tsh_tensor *tsh_self_attention_forward(tsh_tape *tape, tsh_self_attention *layer, tsh_tensor *x,
                                               const tsh_sequences *sequences);
/* A part, owned by the layer. */
TSH_API tsh_linear *tsh_self_attention_linear(const tsh_self_attention *layer, tsh_attention_part part);
/* The configuration of a cache for this layer: split by heads as its keys, of the dtype that the layer computes in
 * (call tsh_parameters_set_precision before). Along the mesh's other axes, the caller sets SHARD(0) where sequences are
 * split. Zeros for NULL. */
TSH_API tsh_kv_cache_config tsh_self_attention_cache(const tsh_self_attention *layer, int64_t batch, int64_t positions);
/* Append "NAME.q_proj.weight" and so on to the list; with qk_norm also "NAME.q_norm.weight" and
 * "NAME.k_norm.weight". */
TSH_API tsh_status tsh_self_attention_register(const tsh_self_attention *layer, tsh_parameters *list, const char *name);
/* tsh_linear_adapt for the projections that config->targets names; it is no error if none matches. */
TSH_API tsh_status tsh_self_attention_adapt(tsh_self_attention *layer, const tsh_lora_config *config,
                                            tsh_parameters *list, const char *name);

/* --- transformer block -------------------------------------------------------------------------------------------- */

/* The parts of a block: two halves (attention and MLP), each with a norm. */
typedef enum tsh_block_part {
    TSH_BLOCK_ATTENTION_NORM = 0,
    TSH_BLOCK_ATTENTION,
    TSH_BLOCK_MLP_NORM,
    TSH_BLOCK_MLP,
    TSH_BLOCK_PARTS
} tsh_block_part;

/* A transformer block: attention and an MLP, each with a norm and a residual connection. */
typedef struct tsh_block tsh_block;

/* A block's parts, and what they have in common. */
typedef struct tsh_block_config {
    int64_t embed;          /* features of x and y */
    bool post_norm;         /* x = norm(x + half(x)) as in BERT, not x + half(norm(x)) */
    double dropout;         /* of a half's output, before the residual connection */
    bool sequence_parallel; /* x and y are SHARD(0), as in tsh_mlp_config */
    bool recompute;         /* backward runs the block again (tsh_tape_recompute_since); only its output is kept */
    bool offload;           /* with recompute: its input waits in host memory (tsh_recompute_config) */
    tsh_dtype dtype;
    /* of both norms. In norm, attention and mlp, the block sets the fields above, table and name */
    tsh_norm_config norm;
    tsh_self_attention_config attention;
    tsh_mlp_config mlp;
    /* With experts.experts above 0, the block has a mixture of experts in place of the MLP, and sets its embed and
     * dtype */
    tsh_experts_config experts;
    /* NULL: "input_layernorm", "self_attn", "post_attention_layernorm", "mlp"; "": the part's parameters have no prefix
     * of their own */
    const char *names[TSH_BLOCK_PARTS];
    const tsh_sharding_rule *table; /* for both halves; NULL: their defaults */
    const char *name;               /* of this block in the table */
} tsh_block_config;

/* A transformer block. The caller destroys the layer. Not collective, but every rank of the mesh makes the same call.
 * TSH_ERR_ARGUMENT, _DTYPE, _OVERFLOW, _MEMORY; *out is then NULL. */
TSH_API tsh_status tsh_block_create(tsh_group *group, const tsh_block_config *config, tsh_block **out);
TSH_API void tsh_block_destroy(tsh_block *block);
/* x [tokens, embed] -> [tokens, embed], owned by the tape. Communication: two all-reduces forward and two backward;
 * with sequence parallelism two all-gathers and two reduce-scatters each way, and an all-reduce of the gradient of each
 * norm parameter. `recompute` repeats that of the forward pass, except the last half's sum if no norm follows it. While
 * recording is off, the tensors of each half are freed after it (tsh_tape_free_since). */
TSH_API tsh_tensor *tsh_block_forward(tsh_tape *tape, tsh_block *block, tsh_tensor *x, const tsh_sequences *sequences);
/* The parts, owned by the block; tsh_block_norm returns NULL for a part that is not a norm, tsh_block_mlp for a block
 * with experts, and tsh_block_experts for one without. */
TSH_API tsh_self_attention *tsh_block_attention(const tsh_block *block);
TSH_API tsh_mlp *tsh_block_mlp(const tsh_block *block);
TSH_API tsh_experts *tsh_block_experts(const tsh_block *block);
TSH_API tsh_norm *tsh_block_norm(const tsh_block *block, tsh_block_part part);
/* Append "NAME.input_layernorm.weight" and so on to the list, in the order of the parts. */
TSH_API tsh_status tsh_block_register(const tsh_block *block, tsh_parameters *list, const char *name);
/* tsh_linear_adapt for the linear layers of both halves that config->targets names; it is no error if none matches.
 * Norms are not frozen. Experts have no adapters: without targets they are passed over, and targets that name the
 * router or a stack of experts are TSH_ERR_UNSUPPORTED, before anything changes. */
TSH_API tsh_status tsh_block_adapt(tsh_block *block, const tsh_lora_config *config, tsh_parameters *list,
                                   const char *name);
/* tsh_linear_merge for all linear layers of both halves. */
TSH_API tsh_status tsh_block_merge(tsh_block *block, bool merged);

#ifdef __cplusplus
}
#endif

#endif
