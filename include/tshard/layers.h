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

/* How a parameter is filled; zeros are the default of its layer. */
typedef struct tsh_init {
    tsh_init_kind kind;
    double gain; /* 0 means 1 */
    double a, b; /* the two numbers of U, N and of a constant, as above */
} tsh_init;

/* Fill this rank's part from the world's next stream of random numbers. The layouts must be REPLICATED or SHARD. fan_in
 * and fan_out of a tensor of 1 dim are its size. Not collective, but every rank makes the same call. */
TSH_API tsh_status tsh_tensor_init(tsh_tensor *tensor, const tsh_init *init);

/* --- parameters --------------------------------------------------------------------------------------------------- */

/* A layer's parameters take memory at their first use, by a function or by a call that reads or writes them: a model
 * that is loaded or shared out (tsh_data_parallel_config.level) first has never been whole. */

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

/* A linear layer, y = f(x W^T + b). */
typedef struct tsh_linear tsh_linear;

/* A linear layer's shape, split and parameters. */
typedef struct tsh_linear_config {
    int64_t in_features, out_features; /* the sizes of the last dim of x and of y */
    tsh_sharding shard;
    bool bias; /* the layer adds b */
    /* The layer splits out_features (COLUMN) or in_features (ROW) in units and blocks, as layouts do (layout.h). */
    int64_t units, blocks;
    bool shared;            /* COLUMN: ranks that share a unit hold all of its features */
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
/* tsh_linear_forward with some rows of the weight alone, as tsh_take_rows takes them: x [..., in_features], rows int64
 * [n], laid out as the weight's rows -> [..., n]. For a layer without bias (TSH_ERR_ARGUMENT). */
TSH_API tsh_tensor *tsh_linear_forward_rows(tsh_tape *tape, tsh_linear *layer, tsh_tensor *x, tsh_tensor *rows);
/* weight [out_features, in_features]: SHARD(0) for COLUMN, SHARD(1) for ROW, else REPLICATED. bias [out_features]:
 * SHARD(0) for COLUMN, else REPLICATED; NULL for a layer without bias. In the layer's units. Owned by the layer. */
TSH_API tsh_tensor *tsh_linear_weight(const tsh_linear *layer);
TSH_API tsh_tensor *tsh_linear_bias(const tsh_linear *layer);
/* Append "NAME.weight" and "NAME.bias" to the list. */
TSH_API tsh_status tsh_linear_register(const tsh_linear *layer, tsh_parameters *list, const char *name);
/* Copy this rank's slices from a whole weight [out_features, in_features] and bias [out_features] (NULL: the bias does
 * not change) in host memory, of the layer's dtype. */
TSH_API tsh_status tsh_linear_load(tsh_linear *layer, const void *weight, const void *bias);

/* --- embedding ---------------------------------------------------------------------------------------------------- */

/* A table of rows that are looked up by ids. */
typedef struct tsh_embedding tsh_embedding;

/* A table's shape, split and parameters. */
typedef struct tsh_embedding_config {
    int64_t num_embeddings, embedding_dim; /* rows and columns of the table: the vocabulary, and the features */
    tsh_sharding shard;
    bool has_padding; /* there is a row for padding */
    int64_t padding;  /* with has_padding: this row is initialised to zeros and gets no gradient */
    /* The gradient of a row is divided by the number of its ids in the batch: on all ranks, where ids are SHARD, whose
     * counts backward all-reduces. */
    bool scale_grad_by_freq;
    /* Above 0: a forward first scales in place the rows that its ids use and whose norm, of type norm_type, is above
     * max_norm, by max_norm / (norm + 1e-7), recording or not; gradients do not see the scaling. Ids of all ranks
     * count, so that replicas of the table stay equal: SHARD and LOCAL ids are gathered, and LOCAL ids are as many on
     * each rank. COLUMN: one all-reduce of a number an id. A project earlier in the step has the scaled rows in its
     * backward. */
    double max_norm;
    double norm_type;       /* p > 0 of (sum |x|^p)^(1/p), INFINITY for the largest |x|; 0 means 2 */
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
/* Logits of tied embeddings, Y = X table^T: the layer's table is the output head's weight, too, and gets the sum of
 * both gradients. x [..., embedding_dim] -> [..., num_embeddings], owned by the tape. Layouts and communication are
 * those of a linear layer with this weight, so that the layouts of table and logits are:
 *   ROW     as a COLUMN linear; -> SHARD(last), by vocabulary, as tsh_cross_entropy takes it
 *   COLUMN  x SHARD(last), or REPLICATED (sliced); -> REPLICATED by one all-reduce
 * The padding row counts as any other row here. */
TSH_API tsh_tensor *tsh_embedding_project(tsh_tape *tape, tsh_embedding *layer, tsh_tensor *x);

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
    bool bias;      /* TSH_LAYER_NORM: beta, which begins as zeros */
    bool no_weight; /* neither gamma, which begins as ones, nor beta */
    tsh_dtype dtype;
} tsh_norm_config;

/* tsh_layer_norm or tsh_rms_norm with parameters that are REPLICATED along all axes of the group's mesh. The caller
 * destroys the layer. Not collective, but every rank of the mesh makes the same call. TSH_ERR_ARGUMENT, _DTYPE,
 * _MEMORY; *out is then NULL. */
TSH_API tsh_status tsh_norm_create(tsh_group *group, const tsh_norm_config *config, tsh_norm **out);
TSH_API void tsh_norm_destroy(tsh_norm *layer);
/* x [..., features], in any layout but SHARD(last) and PARTIAL, keeps its layout. The result is owned by the tape.
 * Where x is SHARD, as with sequence parallelism, gradients of the parameters are summed over the axis: an all-reduce
 * each, or one for all with a tsh_data_parallel (tsh_data_parallel_config.sequence_parallel). */
TSH_API tsh_tensor *tsh_norm_forward(tsh_tape *tape, tsh_norm *layer, tsh_tensor *x);
/* gamma and beta [features], or NULL. Owned by the layer. */
TSH_API tsh_tensor *tsh_norm_weight(const tsh_norm *layer);
TSH_API tsh_tensor *tsh_norm_bias(const tsh_norm *layer);
/* Append "NAME.weight" and "NAME.bias" to the list. */
TSH_API tsh_status tsh_norm_register(const tsh_norm *layer, tsh_parameters *list, const char *name);

/* --- sharding by names -------------------------------------------------------------------------------------------- */

/* A row of a table that shards a model by the names of its layers, as Hugging Face's base_model_tp_plan does. A `*` in
 * `layers` stands for one or more characters other than '.'. A table ends with a row of NULLs:
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

/* What a table says of a layer: three fields of its configuration. */
typedef struct tsh_sharding_choice {
    tsh_sharding shard;
    bool gather_output, sequence_parallel; /* as in tsh_linear_config */
} tsh_sharding_choice;

/* *out = the first row for the layer of this name; TSH_DENSE where the table has none. TSH_ERR_ARGUMENT for a table of
 * which any row is malformed. */
TSH_API tsh_status tsh_sharding_find(const tsh_sharding_rule *table, const char *name, tsh_sharding_choice *out);
/* Each row of the table is the first one for some layer of the list, whose parameters are named "LAYER.weight" and so
 * on. TSH_ERR_ARGUMENT names the first row that is not: its pattern is mistyped, or hidden by a row before it. */
TSH_API tsh_status tsh_sharding_check(const tsh_sharding_rule *table, const tsh_parameters *list);

/* --- MLP ---------------------------------------------------------------------------------------------------------- */

/* The linear layers of an MLP. */
typedef enum tsh_mlp_part { TSH_MLP_GATE = 0, TSH_MLP_UP, TSH_MLP_DOWN, TSH_MLP_PARTS } tsh_mlp_part;

/* A feed-forward layer: up and down, and gate where it is gated. */
typedef struct tsh_mlp tsh_mlp;

/* An MLP's shape, split and parameters. */
typedef struct tsh_mlp_config {
    int64_t embed, hidden;     /* features of x and y; features between the layers */
    bool gated;                /* the activation of a third layer, gate, multiplies the output of up */
    tsh_activation activation; /* of gate where there is one, else of up */
    bool bias;                 /* of all layers */
    bool sequence_parallel;    /* x and y are SHARD(0): an all-gather and a reduce-scatter instead of all-reduces */
    tsh_dtype dtype;
    tsh_init weight_init, bias_init, down_init; /* gate and up; all biases; down */
    const char *names[TSH_MLP_PARTS];           /* NULL: "gate_proj", "up_proj", "down_proj" */
    const tsh_sharding_rule *table;             /* NULL: gate and up are column, down is row */
    const char *name;                           /* of this layer, before which names[] stand in the table */
} tsh_mlp_config;

/* A feed-forward layer of two or three linear layers. The caller destroys the layer. Not collective, but every rank of
 * the mesh makes the same call. TSH_ERR_ARGUMENT, _DTYPE, _OVERFLOW, _MEMORY; *out is then NULL. */
TSH_API tsh_status tsh_mlp_create(tsh_group *group, const tsh_mlp_config *config, tsh_mlp **out);
TSH_API void tsh_mlp_destroy(tsh_mlp *layer);
/* y = down(f(up(x))), or gated down(f(gate(x)) * up(x)), f the activation.  x [tokens, embed] -> [tokens, embed], owned
 * by the tape. Over the group: REPLICATED -> REPLICATED by one all-reduce forward, one backward; SHARD(0) -> SHARD(0)
 * with sequence_parallel by one all-gather and one reduce-scatter each way. */
TSH_API tsh_tensor *tsh_mlp_forward(tsh_tape *tape, tsh_mlp *layer, tsh_tensor *x);
/* A part, owned by the layer; NULL for the gate of an MLP without one. */
TSH_API tsh_linear *tsh_mlp_linear(const tsh_mlp *layer, tsh_mlp_part part);
/* Append "NAME.gate_proj.weight" and so on to the list. */
TSH_API tsh_status tsh_mlp_register(const tsh_mlp *layer, tsh_parameters *list, const char *name);

/* --- self-attention ----------------------------------------------------------------------------------------------- */

/* How rows of activations [tokens, embed] are the tokens of sequences: tokens = batch T, the sequences one after
 * another. */
typedef struct tsh_sequences {
    int64_t batch;         /* the number of sequences */
    tsh_tensor *positions; /* int64 [T] or [batch, T]: required with rotary positions, else unused */
    tsh_tensor *lengths;   /* int64 [batch]: keys past a sequence's length are not seen; NULL: all are */
    tsh_kv_cache *cache;   /* of this layer, to which the tokens are appended, in evaluation; NULL: none. It has the
                            * lengths itself. */
} tsh_sequences;

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
    int64_t heads;                   /* of queries */
    int64_t kv_heads;                /* divides heads; 0: heads */
    int64_t head_dim;                /* 0: embed / heads */
    bool causal;                     /* a token sees those before it and itself alone */
    double scale;                    /* 0: 1 / sqrt(head_dim) */
    double dropout;                  /* of the attention weights */
    bool rotary;                     /* turn queries and keys by the positions of tsh_sequences */
    tsh_rotary_config rotary_config; /* with rotary */
    bool bias, out_bias;             /* of query, key and value; of the output projection */
    bool sequence_parallel; /* x and y are SHARD(0): an all-gather and a reduce-scatter instead of all-reduces */
    tsh_dtype dtype;
    tsh_init weight_init, bias_init, out_init; /* query, key and value; all biases; the output projection */
    const char *names[TSH_ATTENTION_PARTS];    /* NULL: "q_proj", "k_proj", "v_proj", "o_proj" */
    const tsh_sharding_rule *table;            /* NULL: query, key and value are column, out is row */
    const char *name;                          /* of this layer, before which names[] stand in the table */
} tsh_self_attention_config;

/* Self-attention, sharded by heads over the group: a KV head with its query heads is a unit that no rank cuts while
 * there are as many units as ranks; ranks beyond that share a KV head and split its query heads. Ranks may have no
 * head. The caller destroys the layer. Not collective, but every rank of the mesh makes the same call.
 * TSH_ERR_ARGUMENT, _DTYPE, _OVERFLOW, _MEMORY; *out is then NULL. */
TSH_API tsh_status tsh_self_attention_create(tsh_group *group, const tsh_self_attention_config *config,
                                             tsh_self_attention **out);
TSH_API void tsh_self_attention_destroy(tsh_self_attention *layer);
/* y = out(attention(rotary(query(x)), rotary(key(x)), value(x))).  x [tokens, embed] -> [tokens, embed], owned by the
 * tape. Over the group: REPLICATED -> REPLICATED by one all-reduce forward, one backward; SHARD(0) -> SHARD(0) with
 * sequence_parallel by one all-gather and one reduce-scatter each way. Over other axes x may be SHARD(0): by whole
 * sequences without communication. Positions and lengths may be split in any way; split as the sequences of x are, or
 * REPLICATED, they stay where they are. */
TSH_API tsh_tensor *tsh_self_attention_forward(tsh_tape *tape, tsh_self_attention *layer, tsh_tensor *x,
                                               const tsh_sequences *sequences);
/* A part, owned by the layer. */
TSH_API tsh_linear *tsh_self_attention_linear(const tsh_self_attention *layer, tsh_attention_part part);
/* The configuration of a cache for this layer, by heads as its keys are split, of the dtype that the layer computes in
 * (tsh_parameters_set_precision comes before); along other axes of the mesh, where sequences may be split, the caller
 * says SHARD(0). All zeros for a NULL. */
TSH_API tsh_kv_cache_config tsh_self_attention_cache(const tsh_self_attention *layer, int64_t batch, int64_t positions);
/* Append "NAME.q_proj.weight" and so on to the list. */
TSH_API tsh_status tsh_self_attention_register(const tsh_self_attention *layer, tsh_parameters *list, const char *name);

/* --- transformer block -------------------------------------------------------------------------------------------- */

/* The parts of a block: two halves, each with a norm. */
typedef enum tsh_block_part {
    TSH_BLOCK_ATTENTION_NORM = 0,
    TSH_BLOCK_ATTENTION,
    TSH_BLOCK_MLP_NORM,
    TSH_BLOCK_MLP,
    TSH_BLOCK_PARTS
} tsh_block_part;

/* A transformer block: attention and an MLP, each with its norm and residual. */
typedef struct tsh_block tsh_block;

/* A block's norms, halves and what they have in common. */
typedef struct tsh_block_config {
    int64_t embed;          /* features of x and y */
    bool post_norm;         /* x = norm(x + half(x)) as in BERT, not x + half(norm(x)) */
    double dropout;         /* of a half's output, before it is added */
    bool sequence_parallel; /* x and y are SHARD(0), as in tsh_mlp_config */
    bool recompute;         /* backward runs the block again (tsh_tape_recompute_since), which keeps its output alone */
    tsh_dtype dtype;
    tsh_norm_config norm; /* of both; these three leave fields above, table and name to the block */
    tsh_self_attention_config attention;
    tsh_mlp_config mlp;
    const char *names[TSH_BLOCK_PARTS]; /* NULL: "input_layernorm", "self_attn", "post_attention_layernorm", "mlp"; "":
                                         * the part's parameters are named as the block's own */
    const tsh_sharding_rule *table;     /* of the layers in both halves; NULL: their defaults */
    const char *name;                   /* of this block in the table */
} tsh_block_config;

/* A transformer block. The caller destroys the layer. Not collective, but every rank of the mesh makes the same call.
 * TSH_ERR_ARGUMENT, _DTYPE, _OVERFLOW, _MEMORY; *out is then NULL. */
TSH_API tsh_status tsh_block_create(tsh_group *group, const tsh_block_config *config, tsh_block **out);
TSH_API void tsh_block_destroy(tsh_block *block);
/* x [tokens, embed] -> [tokens, embed], owned by the tape. Communication is that of both halves: two all-reduces
 * forward and two backward, or two all-gathers and two reduce-scatters each way with sequence parallelism, where an
 * all-reduce of the gradient of each of the norms' parameters comes on top; with `recompute` that of the forward pass
 * comes again, but for the last half's sum where no norm follows it. While the tape does not record, what the block has
 * made is freed after each half (tsh_tape_free_since). */
TSH_API tsh_tensor *tsh_block_forward(tsh_tape *tape, tsh_block *block, tsh_tensor *x, const tsh_sequences *sequences);
/* The parts, owned by the block; `norm` gives NULL for a part that is no norm. */
TSH_API tsh_self_attention *tsh_block_attention(const tsh_block *block);
TSH_API tsh_mlp *tsh_block_mlp(const tsh_block *block);
TSH_API tsh_norm *tsh_block_norm(const tsh_block *block, tsh_block_part part);
/* Append "NAME.input_layernorm.weight" and so on to the list, in the order of the parts. */
TSH_API tsh_status tsh_block_register(const tsh_block *block, tsh_parameters *list, const char *name);

#ifdef __cplusplus
}
#endif

#endif
