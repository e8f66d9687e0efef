/* Private functions of the differentiable functions. */
#ifndef TSHI_FUNCTIONAL_H
#define TSHI_FUNCTIONAL_H

#include "autograd/apply.h"
#include "autograd/redistribute.h"
#include "tshard/functional.h"

/* --- functions for layers, which pass the layouts that they want -------------------------------------------------- */

/* y = f(x W^T + b), fused if the device can. f must be TSHI_IDENTITY for a SHARD(1) weight: f of a sum over ranks is
 * not the sum of f. Inputs: x, weight and, if there are three, bias; `want` names the last two as parameters. */
tsh_tensor *tshi_linear(tsh_tape *tape, int inputs, tsh_tensor **in, tshi_unary f, const tshi_want *want);
/* The shape rule of linear layers, for inputs that begin with x and weight. */
tsh_status tshi_linear_shape(const tsh_call *call, tsh_dtype *dtype, tsh_shape *out);
/* A layer's in_features, the format of its weight, and the activation. */
typedef struct tshi_quantized {
    int64_t in_features;
    tshi_quant format;
    tshi_unary f;
} tshi_quantized;
/* tshi_linear with a weight uint8 [out, groups x bytes of a group], for inference: an x that leads to a gradient is
 * TSH_ERR_STATE. With few rows of x these are first quantized to x' in groups of 32: x' = d q, with q the integer
 * nearest to x / d, d = max |x| / 127 over the group, and d then rounded to float16, as ggml does. So
 * |x' - x| <= (1/2 + 127/2048) d, and y' = x' W^T + b, the sum over groups of d_w d_x (sum of q_w q_x), has
 *     |y' - y| <= sum over groups of max |x| / 225 (sum of |w|), and the rounding of a float32 sum.
 * With many rows y is the product with the float32 values of W. */
tsh_tensor *tshi_linear_quantized(tsh_tape *tape, int inputs, tsh_tensor **in, const tshi_quantized *params,
                                  const tshi_want *want);
/* Checks that an axis splits the features of x only if it splits the weight's in_features. */
tsh_status tshi_linear_check_features(const tsh_tensor *x, const tsh_tensor *weight, int64_t in_features);
/* Dropout with probability p, 0: none; its mask is drawn by global element from a stream of random numbers. */
typedef struct tshi_dropout {
    double p;
    uint64_t seed, stream;
} tshi_dropout;

/* A dropout with the world's next stream; none while recording is off. The tape is ready. */
tshi_dropout tshi_dropout_begin(tsh_tape *tape, double p);
/* y = beta y + x keep / (1 - p). x and y are of the size of `like`, whose global elements choose the mask. */
tsh_status tshi_drop_out(const tshi_dropout *p, const tsh_tensor *like, const tsh_tensor *x, double beta,
                         tsh_tensor *y);
/* y = x W^T + scale (drop(x) A^T) B^T + b, a linear layer with a low-rank adapter, whose input has dropout. Inputs:
 * x, W [out, in], A [r, in], B [out, r] and, if there are five, b; `want` names all but x as parameters. Along an axis
 * that splits W's rows, B is split alike and A is REPLICATED; along one that splits its columns, A is split alike and B
 * is REPLICATED, and one collective sums both terms. */
tsh_tensor *tshi_adapted_linear(tsh_tape *tape, int inputs, tsh_tensor **in, double scale, double dropout,
                                const tshi_want *want);
/* Params of the lookups. The bytes of every operation's params are compared between calls, so that params structs must
 * have no unnamed padding. */
typedef struct tshi_lookup {
    int64_t padding;            /* row without a gradient, or -1 */
    int64_t scale_grad_by_freq; /* or 0; the gradient of a row is divided by the number of its ids on all ranks */
    double max_norm;            /* rows whose norm of type norm_type exceeds it are first scaled in place; 0: none */
    double norm_type;           /* above 0 if max_norm is */
} tshi_lookup;

/* y[i..., :] = table[ids[i...], :]: tsh_lookup for a layer; `want` names the table as a parameter. */
tsh_tensor *tshi_embedding(tsh_tape *tape, tsh_tensor *table, tsh_tensor *ids, const tshi_lookup *lookup,
                           const tshi_want *want);
/* A table's columns, the format of its groups, and the dtype of its values. */
typedef struct tshi_quantized_lookup {
    int64_t embedding_dim;
    tshi_quant format;
    tsh_dtype dtype;
} tshi_quantized_lookup;
/* tshi_embedding with a table uint8 [rows, groups x bytes of a group]: y has the rows' float32 values, converted to the
 * dtype. */
tsh_tensor *tshi_embedding_quantized(tsh_tape *tape, tsh_tensor *table, tsh_tensor *ids,
                                     const tshi_quantized_lookup *params, const tshi_want *want);
/* y[i..., :] = table[ids[i...], :] + scale a[ids[i...], :] b^T. in[] = table, ids, a [rows, r], b [cols, r], where a is
 * split as the table's rows and b as its columns; `want` is a table's. Where ranks split the rows, one collective sums
 * both terms, and backward sums b's gradient; where they split the columns, it sums the gradient of a[ids]. */
tsh_tensor *tshi_adapted_embedding(tsh_tape *tape, tsh_tensor **in, const tshi_lookup *lookup, double scale,
                                   const tshi_want *want);
/* tsh_expert_mlp for a layer: in[] = x, weights, experts, gate, up, down; `want` names the last three as parameters. */
tsh_tensor *tshi_expert_mlp(tsh_tape *tape, tsh_tensor **in, int64_t experts, const tshi_want *want);
/* How many of the tokens chose each of `count` experts, of this dtype; PARTIAL along axes that split the tokens. */
tsh_tensor *tshi_expert_tokens(tsh_tape *tape, tsh_tensor *experts, int64_t count, tsh_dtype dtype);
/* `experts` [tokens, top_k] with -1 for a token that an expert has no room for: each takes ceil(tokens top_k / count
 * factor), of all ranks' tokens, all first choices before all second ones, and in the order of the tokens. batch above
 * 0: token i is at position i / batch of sequence i % batch, and sequences come one after another. */
tsh_tensor *tshi_expert_limit(tsh_tape *tape, tsh_tensor *experts, int64_t count, double factor, int64_t batch);
/* y, a copy or view of elements of x, cast to x's arithmetic, which it takes over. NULL on failure, and if y is
 * NULL. */
tsh_tensor *tshi_cast_as(tsh_tape *tape, tsh_tensor *y, const tsh_tensor *x);
/* y = f(x) */
tsh_tensor *tshi_activate(tsh_tape *tape, tsh_tensor *x, tshi_unary f);

/* Exported for tests of plans. */
extern const tsh_op tshi_linear_op, tshi_matmul_op, tshi_embedding_op, tshi_softmax_op, tshi_cross_entropy_op,
    tshi_layer_norm_op, tshi_arithmetic_ops[TSHI_STEP];

/* --- shared by functions ------------------------------------------------------------------------------------------ */

/* Rules for one input: of linear functions, f(x + y) = f(x) + f(y), and of any elementwise function. */
extern const tsh_rule tshi_linear_rules[], tshi_element_rules[];
/* The shape of input 0; all inputs must be floats. */
tsh_status tshi_same_shape(const tsh_call *call, tsh_dtype *dtype, tsh_shape *out);
/* Checks that all inputs have one float dtype, in which the device computes. */
tsh_status tshi_check_floats(const tsh_call *call, tsh_dtype *dtype);
/* TSH_ERR_RANGE for an id of this rank outside [0, end), which is the range of `what`. */
tsh_status tshi_check_ids(const tsh_tensor *ids, const char *what, int64_t end);
/* TSH_ERR_SHAPE: "A and B: WANTED". */
tsh_status tshi_check_fails(const tsh_tensor *a, const tsh_tensor *b, const char *wanted);

/* --- statistics of sharded rows ----------------------------------------------------------------------------------- */

/* tsh_call_scratch and tsh_call_save for n statistics of x, in the dtype of sums of x. */
tsh_tensor *tshi_statistics_scratch(tsh_call *call, const tsh_tensor *x, int64_t n);
tsh_tensor *tshi_statistics_save(tsh_call *call, int slot, const tsh_tensor *x, int64_t n);
/* Bit a: axis a has several ranks and shards dim of x; dim -1: any dim. */
unsigned tshi_axes_splitting(const tsh_tensor *x, int dim);
/* Reduce the statistics in place over the ranks of each of these axes. Collective over them. */
tsh_status tshi_statistics_reduce(unsigned axes, tsh_tensor *statistics, tsh_reduce_op op);

/* --- cross entropy ------------------------------------------------------------------------------------------------ */

/* The checks of cross entropies: of the settings; that the target is int64 and has the dims of `logits` but the last
 * one (TSH_ERR_SHAPE says what is wanted); that class weights, or NULL, are [classes] of the dtype; that no target is
 * outside the classes, which waits for a GPU. */
tsh_status tshi_entropy_check_params(double smoothing, tsh_reduction reduction);
tsh_status tshi_entropy_check_target(const tsh_tensor *logits, const tsh_tensor *target, const char *wanted);
tsh_status tshi_entropy_check_weight(const tsh_tensor *weight, int64_t classes, tsh_dtype dtype);
tsh_status tshi_entropy_check_range(const tsh_tensor *targets, const tshi_classes *c);
/* *to = the sum of this slice's class weights, in the dtype of sums. */
tsh_status tshi_entropy_sum_weights(tsh_call *call, const tsh_tensor *weight, void *to);

/* --- tensors around a dim ----------------------------------------------------------------------------------------- */

/* This rank's part as outer x n x inner elements, n along the dim. outer is 0 for an empty part, so that nothing loops
 * over an n that may be huge. */
typedef struct tshi_around {
    int64_t outer, n, inner;
} tshi_around;

static inline tshi_around tshi_around_dim(const tsh_tensor *x, int dim) {
    tshi_around a = {tshi_outer(x, dim), x->shape.local[dim], tshi_inner(x, dim)};
    if (a.inner == 0) a.outer = 0;
    return a;
}

/* The `most` largest elements of x along dim, as tshi_candidate [outer, most, inner] in device memory, the same on all
 * ranks that share a column. Along axes that shard the dim, the candidates of all ranks are gathered. Collective over
 * these axes. */
tsh_status tshi_top_candidates(const tsh_tensor *x, int dim, int64_t most, tsh_tensor **out);

/* --- tensors of different shapes ---------------------------------------------------------------------------------- */

/* x with leading dims of size 1 added, ndim dims in all; NULL if x has more. */
tsh_tensor *tshi_align(tsh_tape *tape, tsh_tensor *x, int ndim);
/* row_holds for aligned inputs that broadcast to the output: a sharded dim shards the inputs that have its size; an
 * input of size 1 there is used whole. */
bool tshi_broadcast_row_holds(const tsh_call *call, const tsh_rule *row, int dim);
/* Adds factor times `values`, of the output's shape, to the gradient of input i, summed over the input's broadcast
 * dims. */
tsh_status tshi_grad_add_summed(tsh_call *call, int i, double factor, tsh_tensor *values);
/* Inputs x and y broadcast to this rank's part of the output: their local sizes are the output's or 1. */
tshi_broadcast tshi_broadcast_of(const tsh_shape *out, const tsh_shape *x, const tsh_shape *y);

#endif
