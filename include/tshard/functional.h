/* functional: differentiable functions of tensors.
 *
 * Each comment lists the layouts that the function takes along an axis, as entries inputs -> output, with R, S(d), P, L
 * for REPLICATED, SHARD(d), PARTIAL, LOCAL. From other layouts, the tape inserts the transitions to the entry that
 * moves the fewest bytes (docs/layouts.md). Shapes are global. All tensors of a call are on one mesh and of one float
 * dtype that the device computes with (see tsh_dtype). A function returns a tensor that the tape owns, or NULL;
 * tsh_tape_message() says why. On a GPU, ids out of range are reported by a later call (docs/gpus.md).
 *
 * Thread safety: everything here is for the world's thread. */
#ifndef TSHARD_FUNCTIONAL_H
#define TSHARD_FUNCTIONAL_H

#include "tshard/autograd.h"

#ifdef __cplusplus
extern "C" {
#endif

/* y = a b. a [..., k], b [k, n] -> [..., n], or a [stack..., m, k], b [stack..., k, n] -> [stack..., m, n].
 *   P,R -> P    R,P -> P    R,R -> R    S(d),L -> S(d), d not last    L,S(1) -> S(last)    S(last),S(0) -> P
 *   L,L -> L
 * a stack of matrices:
 *   P,R -> P    R,P -> P    R,R -> R    S(d),S(d) -> S(d), d of the stack    S(m),L -> S(m)    L,S(n) -> S(n)
 *   S(k),S(k) -> P    L,L -> L
 * L,S(1) is used only if b is SHARD(1) (SHARD(last) in a stack), P,R and R,P only if the inputs have these layouts: the
 * product with a term of a sum is a term of the product, and the gradient of the R input is summed (all-reduce).
 * Backward: da = dy b^T, db = a^T dy. */
TSH_API tsh_tensor *tsh_matmul(tsh_tape *tape, tsh_tensor *a, tsh_tensor *b);
/* y = x W^T + b. x [..., in_features], weight [out_features, in_features], bias [out_features] or NULL
 * -> [..., out_features].
 *   P,R,P -> P    R,P,P -> P    R,R,R -> R    S(d),L,L -> S(d), d not last    L,S(0),S(0) -> S(last) (column)
 *   S(last),S(1),P -> P (row)    L,L,L -> L
 * The column entry is used only if weight is SHARD(0), the first two only if x and weight have these layouts. Backward:
 * dx = dy W, dW = dy^T x, db = column sums of dy. */
TSH_API tsh_tensor *tsh_affine(tsh_tape *tape, tsh_tensor *x, tsh_tensor *weight, tsh_tensor *bias);

/* The sum, difference, product, quotient, maximum and minimum of x and y, element by element. Shapes broadcast as in
 * NumPy: [5,1,3] with [4,1] gives [5,4,3].
 *   R,R -> R    S(d),S(d) -> S(d)    L,L -> L    add, sub: P,P -> P    mul: P,R -> P, R,P -> P    div: P,R -> P
 *   S(d),L -> S(d) and L,S(d) -> S(d) where the other input is repeated along d of the output
 *     (the ranks of an axis use one entry: where one input is SHARD along it and the other LOCAL, whose sizes may
 *     differ there, the LOCAL one repeats the same dims on all of them; TSHARD_CHECK=1 tells where it does not)
 * Backward: the gradient of a repeated input is summed over its copies. Where x and y are equal, each gets half the
 * gradient of their maximum or minimum. The maximum and the minimum are NaN where x or y is. */
TSH_API tsh_tensor *tsh_add(tsh_tape *tape, tsh_tensor *x, tsh_tensor *y);
TSH_API tsh_tensor *tsh_sub(tsh_tape *tape, tsh_tensor *x, tsh_tensor *y);
TSH_API tsh_tensor *tsh_mul(tsh_tape *tape, tsh_tensor *x, tsh_tensor *y);
TSH_API tsh_tensor *tsh_div(tsh_tape *tape, tsh_tensor *x, tsh_tensor *y);
TSH_API tsh_tensor *tsh_maximum(tsh_tape *tape, tsh_tensor *x, tsh_tensor *y);
TSH_API tsh_tensor *tsh_minimum(tsh_tape *tape, tsh_tensor *x, tsh_tensor *y);

/* x == y, x != y, x < y, x <= y, x > y, x >= y */
typedef enum tsh_comparison {
    TSH_EQUAL = 0,
    TSH_NOT_EQUAL,
    TSH_LESS,
    TSH_LESS_EQUAL,
    TSH_GREATER,
    TSH_GREATER_EQUAL
} tsh_comparison;
/* A uint8 mask, for tsh_masked_fill and tsh_where: 1 where the comparison of x with y, or of x with `value`, holds,
 * else 0; where either operand is NaN, only TSH_NOT_EQUAL holds. Shapes broadcast, and layouts are as in tsh_maximum;
 * `value` is rounded to x's dtype. No gradient. TSH_ERR_ARGUMENT for an unknown comparison. */
TSH_API tsh_tensor *tsh_compare(tsh_tape *tape, tsh_tensor *x, tsh_comparison comparison, tsh_tensor *y);
TSH_API tsh_tensor *tsh_compare_scalar(tsh_tape *tape, tsh_tensor *x, tsh_comparison comparison, double value);

/* y = factor x.
 *   R -> R    S(d) -> S(d)    P -> P    L -> L */
TSH_API tsh_tensor *tsh_scale(tsh_tape *tape, tsh_tensor *x, double factor);
/* y = factor x + shift: 1 - x is tsh_scale_shift(tape, x, -1, 1).
 *   R -> R    S(d) -> S(d)    L -> L */
TSH_API tsh_tensor *tsh_scale_shift(tsh_tape *tape, tsh_tensor *x, double factor, double shift);
/* y = x + b along the last dim.  x [..., n], b [n].
 *   R,R -> R    S(last),S(0) -> S(last)    S(d),L -> S(d), d not last    P,P -> P    L,L -> L */
TSH_API tsh_tensor *tsh_bias(tsh_tape *tape, tsh_tensor *x, tsh_tensor *b);

/* Elementwise functions y of x:
 *   gelu       x Phi(x), Phi the normal distribution function
 *   gelu_tanh  x/2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3)))
 *   relu       max(x, 0)
 *   silu       x / (1 + e^-x)
 *   exp, log, tanh, sqrt
 *   sigmoid    1 / (1 + e^-x)
 *   pow        x^exponent
 *   clamp      min(max(x, low), high); the gradient is 0 where x is outside (low, high). Either bound may be infinite.
 *   abs        |x|; the gradient is 0 where x is 0
 *   R -> R    S(d) -> S(d)    L -> L
 * A NaN stays NaN; limits are PyTorch's: log(0) = -inf; log, sqrt and fractional powers of a negative number are NaN.
 * TSH_ERR_ARGUMENT for an exponent, low or high that is NaN. Source of both gelus: Hendrycks and Gimpel, "Gaussian
 * error linear units", 2016. */
TSH_API tsh_tensor *tsh_gelu(tsh_tape *tape, tsh_tensor *x);
TSH_API tsh_tensor *tsh_gelu_tanh(tsh_tape *tape, tsh_tensor *x);
TSH_API tsh_tensor *tsh_relu(tsh_tape *tape, tsh_tensor *x);
TSH_API tsh_tensor *tsh_silu(tsh_tape *tape, tsh_tensor *x);
TSH_API tsh_tensor *tsh_exp(tsh_tape *tape, tsh_tensor *x);
TSH_API tsh_tensor *tsh_log(tsh_tape *tape, tsh_tensor *x);
TSH_API tsh_tensor *tsh_tanh(tsh_tape *tape, tsh_tensor *x);
TSH_API tsh_tensor *tsh_sqrt(tsh_tape *tape, tsh_tensor *x);
TSH_API tsh_tensor *tsh_sigmoid(tsh_tape *tape, tsh_tensor *x);
TSH_API tsh_tensor *tsh_pow(tsh_tape *tape, tsh_tensor *x, double exponent);
TSH_API tsh_tensor *tsh_clamp(tsh_tape *tape, tsh_tensor *x, double low, double high);
TSH_API tsh_tensor *tsh_abs(tsh_tape *tape, tsh_tensor *x);
/* y = silu(gate) up, the gated activation of Llama's MLP, element by element; one kernel, which stores no silu(gate).
 * The shapes are equal.
 *   R,R -> R    S(d),S(d) -> S(d)    R,P -> P    L,L -> L
 * Backward computes silu(gate) again. In a 16-bit dtype y is rounded once, not twice as by tsh_silu and tsh_mul.
 * Source: Shazeer, "GLU variants improve transformer", 2020. */
TSH_API tsh_tensor *tsh_swiglu(tsh_tape *tape, tsh_tensor *gate, tsh_tensor *up);
/* y = value where the mask is not 0, else x; the gradient of x is 0 where it is filled. mask uint8, of a shape that
 * broadcasts to x's; value may be infinite.
 *   R,R -> R    S(d),S(d) -> S(d)    S(d),L -> S(d) where the mask is repeated along d    L,L -> L */
TSH_API tsh_tensor *tsh_masked_fill(tsh_tape *tape, tsh_tensor *x, tsh_tensor *mask, double value);
/* z = x where the mask is not 0, else y; an infinity or NaN that is not chosen affects neither z nor a gradient. mask
 * uint8; the three shapes broadcast to z's.
 *   mask, x, y:  R,R,R -> R    R,P,P -> P    L,L,L -> L
 *   S(d) for each input that is not repeated along d, L for the others -> S(d), at least one S(d) */
TSH_API tsh_tensor *tsh_where(tsh_tape *tape, tsh_tensor *mask, tsh_tensor *x, tsh_tensor *y);
/* x in another real dtype, rounded once; to an integer, truncated and saturated. Returns x itself when it already has
 * the dtype. Backward, between float dtypes that functions take: casts the gradient back; other results have no
 * gradient.
 *   R -> R    S(d) -> S(d)    L -> L */
TSH_API tsh_tensor *tsh_cast(tsh_tape *tape, tsh_tensor *x, tsh_dtype dtype);
/* y = 0 with probability p (in [0, 1)), else x / (1 - p); the draw depends on the element's global index. While
 * recording is off, y = x. Along a LOCAL axis every rank draws the same values.
 *   R -> R    S(d) -> S(d)    P -> P    L -> L */
TSH_API tsh_tensor *tsh_dropout(tsh_tape *tape, tsh_tensor *x, double p);

/* x with a new global shape (one size may be -1), its elements in the same order. A sharded dim stays sharded when it
 * keeps its size, or when it merges with later dims or splits and each rank's slice is still the rank's part of the new
 * dim; otherwise x is gathered along the axis first.
 *   R -> R    S(d) -> S(e)    P -> P    L -> L */
TSH_API tsh_tensor *tsh_reshape(tsh_tape *tape, tsh_tensor *x, int ndim, const int64_t *shape);
/* y = x with its dims permuted: dim d of y is dim order[d] of x. transpose swaps two dims.
 *   R -> R    S(order[d]) -> S(d)    P -> P    L -> L
 * Backward: the inverse permutation of dy. */
TSH_API tsh_tensor *tsh_permute(tsh_tape *tape, tsh_tensor *x, const int *order);
TSH_API tsh_tensor *tsh_transpose(tsh_tape *tape, tsh_tensor *x, int a, int b);
/* y = the elements of x at [start, start + length) of dim.
 *   R -> R    S(d) -> S(d), d not dim    P -> P    L -> L */
TSH_API tsh_tensor *tsh_slice(tsh_tape *tape, tsh_tensor *x, int dim, int64_t start, int64_t length);
/* x as count >= 1 parts along dim, of these sizes, whose sum is that of dim (NULL: balanced parts). out[i] = part i; on
 * failure all are NULL.
 *   R -> R    S(d) -> S(d), d not dim    P -> P    L -> L
 * Backward: the concat of the parts' gradients. Returns the tape's status. */
TSH_API tsh_status tsh_split_parts(tsh_tape *tape, tsh_tensor *x, int dim, int count, const int64_t *sizes,
                                   tsh_tensor **out);
/* y = count >= 1 tensors concatenated along dim, all in one layout.
 *   R -> R    S(d) -> S(d), d not dim    P -> P    L -> L */
TSH_API tsh_tensor *tsh_concat(tsh_tape *tape, tsh_tensor *const *x, int count, int dim);

/* y = the sum or mean of x over dim, which is removed; with TSH_ALL_DIMS over all dims, y of shape [].
 *   R -> R    S(d) -> S(d), or S(d - 1) past dim    S(dim) -> P    P -> P    L -> L */
#define TSH_ALL_DIMS (-100)
TSH_API tsh_tensor *tsh_sum(tsh_tape *tape, tsh_tensor *x, int dim);
TSH_API tsh_tensor *tsh_mean(tsh_tape *tape, tsh_tensor *x, int dim);
/* y = the cumulative sum of x along dim: y[.., i, ..] = x[.., 0, ..] + ... + x[.., i, ..].
 *   R -> R    S(d) -> S(d), d not dim    P -> P    L -> L
 * Backward: the cumulative sum of dy from the last element to the first. */
TSH_API tsh_tensor *tsh_cumsum(tsh_tape *tape, tsh_tensor *x, int dim);

/* topk: y = the k largest elements of x along dim, 1 <= k <= its size, in descending order. *indices (or NULL): their
 * indices along dim, int64, owned by the tape. argmax: the index of the largest element, int64, without dim and without
 * a gradient. NaN counts as the largest; among equal elements the lower index comes first.
 *   R -> R    S(d) -> S(d), d not dim (argmax: S(d - 1) past dim)    S(dim) -> R    L -> L
 * S(dim) costs one all-gather of k candidates from each rank. Backward: adds dy to the chosen elements. */
TSH_API tsh_tensor *tsh_topk(tsh_tape *tape, tsh_tensor *x, int64_t k, int dim, tsh_tensor **indices);
TSH_API tsh_tensor *tsh_argmax(tsh_tape *tape, tsh_tensor *x, int dim);
/* y = the largest (max) or smallest (min) element of x along dim, and y lacks this dim; with TSH_ALL_DIMS that of all
 * elements, and y has the shape []. *indices as in tsh_topk, without dim; with TSH_ALL_DIMS indices must be NULL.
 * Layouts and communication as in tsh_argmax. A NaN counts as the largest and as the smallest element. Backward: of
 * equal elements, the first gets all of dy. TSH_ERR_SHAPE where there are no elements. */
TSH_API tsh_tensor *tsh_max(tsh_tape *tape, tsh_tensor *x, int dim, tsh_tensor **indices);
TSH_API tsh_tensor *tsh_min(tsh_tape *tape, tsh_tensor *x, int dim, tsh_tensor **indices);

/* y = exp(x) / sum exp(x) along dim, and its logarithm.
 *   R -> R    S(d) -> S(d), d not dim    S(dim) -> S(dim)    L -> L
 * S(dim) costs two all-reduces forward (max, sum) and one backward. */
TSH_API tsh_tensor *tsh_softmax(tsh_tape *tape, tsh_tensor *x, int dim);
TSH_API tsh_tensor *tsh_log_softmax(tsh_tape *tape, tsh_tensor *x, int dim);

/* y[i..., :] = table[ids[i...], :]. table [num_embeddings, embedding_dim], ids int64 [...] -> [..., embedding_dim]. The
 * gradient of row `padding` (-1: none) stays zero. TSH_ERR_RANGE for a padding or an id outside [0, num_embeddings).
 *   R,R -> R    S(0),R -> P (row)    S(1),R -> S(last) (column)    L,S(d) -> S(d)    L,L -> L */
TSH_API tsh_tensor *tsh_lookup(tsh_tape *tape, tsh_tensor *table, tsh_tensor *ids, int64_t padding);

/* y[i, :] = table[rows[i], :] for rows of this rank's own part of the table. table [m, cols], rows int64 [n]
 * -> [n, cols].
 *   R,R -> R    S(0),S(0) -> S(0)    S(1),R -> S(1)    L,S(0) -> S(0)    L,L -> L
 * With a SHARD(0) table, rows are SHARD(0) and count from 0 within the rank's slice; no communication, forward or
 * backward. TSH_ERR_RANGE for a row outside the slice, TSH_ERR_STATE for a SHARD(0) table in a deterministic world. */
TSH_API tsh_tensor *tsh_take_rows(tsh_tape *tape, tsh_tensor *table, tsh_tensor *rows);

/* Slices of x by their indices along dim; indices may repeat. For index_select and index_add, ids int64 [k] are the
 * indices of whole slices, and y has x's shape with size k along dim. For take_along and add_along, ids have one index
 * for each element of y, and y's shape, which is x's except along dim.
 *   index_select  y[.., j, ..] = x[.., ids[j], ..]          take_along  y[i, j, ..] = x[i, ids[i, j, ..], ..] for dim 1
 *   index_add     z = x, with y[.., j, ..] added at ids[j]  add_along   z = x, with y[i, j, ..] added at ids[i, j, ..]
 * x, ids:     R,R -> R    S(d),R -> S(d), d not dim (along: S(d),S(d))    S(dim),R -> P    P,R -> P    L,L -> L
 *             L,S(0) -> S(dim) (along: L,S(dim))
 * x, ids, y:  R,R,R -> R    S(d),R,S(d) -> S(d), d not dim (along: S(d),S(d),S(d))    S(dim),R,R -> S(dim)
 *             P,R,P -> P    L,L,L -> L
 * Backward: an index_select's dx is an index_add of dy, an index_add's dy an index_select of dz; likewise for the other
 * two. TSH_ERR_RANGE for an id outside [0, size of dim). */
TSH_API tsh_tensor *tsh_index_select(tsh_tape *tape, tsh_tensor *x, int dim, tsh_tensor *ids);
TSH_API tsh_tensor *tsh_take_along(tsh_tape *tape, tsh_tensor *x, int dim, tsh_tensor *ids);
TSH_API tsh_tensor *tsh_index_add(tsh_tape *tape, tsh_tensor *x, int dim, tsh_tensor *ids, tsh_tensor *y);
TSH_API tsh_tensor *tsh_add_along(tsh_tape *tape, tsh_tensor *x, int dim, tsh_tensor *ids, tsh_tensor *y);
/* y[i..., c] = 1 where c = ids[i...], else 0. ids int64 [...] -> [..., classes], of a float dtype, without a gradient.
 * Each rank computes all classes of its ids; tsh_cross_entropy and tsh_lookup need no one-hot tensor, and are cheaper.
 * TSH_ERR_RANGE for an id outside [0, classes).
 *   R -> R    S(d) -> S(d)    L -> L */
TSH_API tsh_tensor *tsh_one_hot(tsh_tape *tape, tsh_tensor *ids, int64_t classes, tsh_dtype dtype);

/* Sampled classes (An et al., "Partial FC", 2021): a training step that computes with some of very many classes. From
 * each rank's part of `weight` [classes, ...], REPLICATED or SHARD(0) along one axis, it draws the classes that occur
 * in target, and random others up to the rank's share of `count`. Where more of a rank's classes occur in
 * target, the shares of all ranks grow alike. target int64 [...] is gathered; negative targets are no class, and are
 * kept. Returns the drawn classes, int64 [n], as row numbers within the rank's part, in the layout of the weight's
 * rows, for tsh_take_rows. *places (or NULL): the target as indices of drawn classes, int64 [...], REPLICATED, for
 * tsh_cross_entropy over the drawn classes' logits. The tape owns both; they have no gradients. Each class has a random
 * number that depends on the world's seed, the step and the class; the classes with the smallest are drawn. Waits for a
 * GPU. TSH_ERR_RANGE for a target outside the classes, TSH_ERR_ARGUMENT for a count below 1, TSH_ERR_LAYOUT for a
 * weight in other layouts. */
TSH_API tsh_tensor *tsh_sample_classes(tsh_tape *tape, tsh_tensor *weight, tsh_tensor *target, int64_t count,
                                       tsh_tensor **places);

/* Normalisation over the last dim, of size n; eps >= 0; gamma, beta [n] or NULL.
 *   layer_norm  (x - mean) / sqrt(var + eps) gamma + beta, var with divisor n
 *   rms_norm    x / sqrt(mean(x^2) + eps) gamma
 *   R,R,R -> R    S(d),L,L -> S(d), d not last    L,L,L -> L
 * Sources: Ba et al., "Layer normalization", 2016; Zhang and Sennrich, "Root mean square layer normalization", 2019. */
TSH_API tsh_tensor *tsh_layer_norm(tsh_tape *tape, tsh_tensor *x, tsh_tensor *gamma, tsh_tensor *beta, double eps);
TSH_API tsh_tensor *tsh_rms_norm(tsh_tape *tape, tsh_tensor *x, tsh_tensor *gamma, double eps);

/* --- attention ---------------------------------------------------------------------------------------------------- */

/* Options of tsh_attention; zeros are the defaults. */
typedef struct tsh_attention_config {
    bool causal; /* query i sees the keys j <= i + Tk - Tq: the last query sees all */
    /* Tokens in any order, and several documents in a sequence: int64 [Tq] and [Tk], or all [B, Tq] and [B, Tk], with
     * any values. A query sees only keys of its own document and, with positions, only those whose position is not
     * after its own: `causal` is then implied. Without positions a causal mask compares indices; without documents all
     * tokens are of one document. Not beside lengths or keys. */
    tsh_tensor *query_positions, *key_positions, *query_documents, *key_documents;
    double scale;        /* 0: 1 / sqrt(D) */
    tsh_tensor *lengths; /* int64 [B] in [0, Tk]: how many keys each batch element sees; NULL: all */
    double dropout;      /* of the attention weights, in [0, 1), as tsh_dropout */
    int64_t keys; /* Tk, for k and v that have room for more positions, as in a cache; only in evaluation. 0: all */
    /* Where one axis splits the tokens of q, blocks of keys and values go round its ranks, and are not gathered.
     * Without effect beside dropout, lengths or keys, and for a causal mask without positions. */
    bool ring;
} tsh_attention_config;

/* y = softmax(scale q k^T + mask) v for each batch and head; a query that sees no key gives zeros. q [B, Tq, H, D], k
 * and v [B, Tk, Hkv, D], H a multiple of Hkv: query head h reads KV head h / (H / Hkv)
 * -> [B, Tq, H, D].
 *   q, k, v, lengths:  R,R,R,R -> R    S(0),S(0),S(0),S(0) -> S(0)    S(2),S(2),S(2),R -> S(2)    L,L,L,L -> L
 *                      S(1),L,L,R -> S(1)
 * S(2) splits by heads: q is S(2) with Hkv units and H blocks, k and v are S(2) with Hkv units, which more ranks than
 * Hkv share (layout.h). S(1) splits by tokens: keys and values that are S(1) are gathered, and their gradients
 * reduce-scattered; with `ring` each rank sends its keys and values to the next one, p - 1 times, and in backward their
 * gradients too, p times. Positions and documents are split as their tokens are, and like lengths they are R where
 * heads are split; see docs/long-contexts.md. The attention weights are never stored: backward recomputes them from one
 * number a row. No other communication. TSH_ERR_RANGE for a length outside [0, Tk]; TSH_ERR_ARGUMENT for positions or
 * documents of only the queries or only the keys. config may be NULL. Sources: Vaswani et al., "Attention is
 * all you need", 2017; Dao et al., "FlashAttention", 2022; Liu et al., "Ring attention with blockwise transformers for
 * near-infinite context", 2023. */
TSH_API tsh_tensor *tsh_attention(tsh_tape *tape, tsh_tensor *q, tsh_tensor *k, tsh_tensor *v,
                                  const tsh_attention_config *config);

/* The elements that tsh_rotary rotates as a pair. */
typedef enum tsh_rotary_order {
    TSH_ROTARY_HALF = 0, /* element i with i + dims / 2, as Hugging Face stores models */
    TSH_ROTARY_PAIRS     /* element 2i with 2i + 1, as Meta does */
} tsh_rotary_order;

/* Slower rotation, for sequences longer than in training: each pair's frequency is divided by `factor`. With
 * original_positions, as in Llama 3: a pair that makes more than high_freq_factor turns over these positions keeps its
 * frequency, one that makes fewer than low_freq_factor has it divided, and in between the scale rises from 1 / factor
 * to 1 with the number of turns. */
typedef struct tsh_rotary_scaling {
    double factor; /* 0: none */
    double low_freq_factor, high_freq_factor;
    int64_t original_positions;
} tsh_rotary_scaling;

/* Options of tsh_rotary; zeros are the defaults. */
typedef struct tsh_rotary_config {
    double theta; /* 0: 10000 */
    tsh_rotary_order order;
    int64_t dims; /* rotate the first `dims` of D, an even number; 0: all */
    tsh_rotary_scaling scaling;
} tsh_rotary_config;

/* Rotary positions: the pairs (a, b) of x become (a cos t - b sin t, b cos t + a sin t), for pair i with
 * t = position theta^(-2i / dims), scaled.  x [B, T, H, D], positions int64 [T] or [B, T] -> [B, T, H, D].
 *   positions [T]:     R,R -> R    S(0),R -> S(0)       S(1),S(0) -> S(1)    S(2),R -> S(2)    P,R -> P    L,L -> L
 *   positions [B, T]:  R,R -> R    S(0),S(0) -> S(0)    S(1),S(1) -> S(1)    S(2),R -> S(2)    P,R -> P    L,L -> L
 * config may be NULL. Source: Su et al., "RoFormer", 2021. */
TSH_API tsh_tensor *tsh_rotary(tsh_tape *tape, tsh_tensor *x, tsh_tensor *positions, const tsh_rotary_config *config);

/* --- experts ------------------------------------------------------------------------------------------------------ */

/* How a router chooses experts from the logits l, and computes the weights of the chosen experts:
 *   SOFTMAX_CHOSEN  chosen by l; weights = softmax over the chosen logits, as in Mixtral
 *   SOFTMAX         s = softmax(l) over all experts; weights = s of the chosen, as in Qwen3-MoE
 *   SIGMOID         s = 1 / (1 + e^-l); weights = s of the chosen, as in DeepSeek-V3 */
typedef enum tsh_router_score {
    TSH_ROUTER_SOFTMAX_CHOSEN = 0,
    TSH_ROUTER_SOFTMAX,
    TSH_ROUTER_SIGMOID
} tsh_router_score;

/* Options of a router. */
typedef struct tsh_router_config {
    int64_t top_k; /* experts of each token */
    tsh_router_score score;
    bool renormalize; /* SOFTMAX and SIGMOID: the weights of a token are divided by their sum */
    double scaling;   /* multiplies the weights at last; 0: 1 */
    /* Above 0: expert i of E is in group i groups / E, and only experts of the groups_kept best groups can be chosen. A
     * group's value is the sum of its top_k / groups_kept largest scores. */
    int64_t groups, groups_kept;
    tsh_tensor *bias;        /* [E], added for the choice only, also that of groups; no gradient. NULL: none */
    double aux_loss, z_loss; /* factors of tsh_route_loss, at least 0 */
} tsh_router_config;

/* The weights of each token's experts. logits [tokens, E] -> [tokens, top_k]. *experts (or NULL): the chosen experts,
 * int64 [tokens, top_k], in descending order of the values by which they are chosen, the lower index first where values
 * are equal; owned by the tape, without a gradient.
 *   R,R -> R    S(0),L -> S(0)    L,L -> L
 * Backward: the chosen logits get a gradient; with SOFTMAX, which sums over all experts, all logits do. Waits for a
 * GPU. Sources: Shazeer et al., "Outrageously large neural networks", 2017; Jiang et al., "Mixtral of experts", 2024;
 * DeepSeek-AI, "DeepSeek-V3 technical report", 2024. */
TSH_API tsh_tensor *tsh_route(tsh_tape *tape, tsh_tensor *logits, const tsh_router_config *config,
                              tsh_tensor **experts);
/* A load-balancing loss, to be added to the model's loss: aux_loss E / (top_k T^2) sum_i n_i sum_t p_ti + z_loss mean_t
 * lse_t^2, where n_i is the number of tokens that chose expert i, a constant for backward; p is the softmax of the
 * logits, or with SIGMOID the sigmoids divided by their sum; T is the number of all tokens; lse = log sum_i exp l_i.
 *   logits, experts:  R,R -> R    S(0),S(0) -> P    L,L -> L
 * where S(0) also all-reduces the E numbers n_i. Sources: Fedus et al., "Switch transformers", 2021; Zoph et al.,
 * "ST-MoE", 2022. */
TSH_API tsh_tensor *tsh_route_loss(tsh_tape *tape, tsh_tensor *logits, const tsh_router_config *config,
                                   tsh_tensor *experts);
/* y_t = sum_j weights[t, j] down_e^T (silu(gate_e x_t) * (up_e x_t)), e = experts[t, j]. x [tokens, embed], weights and
 * int64 experts [tokens, top_k]; gate, up and down are stacks [count, hidden, embed] of the experts' rows, which for
 * down are the columns of its output weight, or matrices [count hidden, embed] of all these rows -> [tokens, embed].
 *   x, weights, experts, gate, up, down:
 *   R,R,R,R,R,R -> R    S(0),S(0),S(0),L,L,L -> S(0)    L,L,R,S(0),S(0),S(0) -> P    L,L,L,L,L,L -> L
 *   S(0),S(0),S(0),S(0),S(0),S(0) -> S(0)    stacks: L,L,R,S(1),S(1),S(1) -> P
 * In S(0),S(0),S(0),S(0),S(0),S(0), along the first axis that splits x and the experts, all-to-alls dispatch each
 * token's row to the ranks that hold rows of its experts, and return their terms; in backward likewise the rows of dy,
 * and those of dx and of the weights' gradient. Along further such axes x is gathered, and y is PARTIAL. No token is
 * dropped. S(0) is in any units, or SHARD_NEXT(0) of stacks; up and down are brought to gate's. Each rank computes with
 * its rows of gate, up and down, which in a matrix may begin and end within an expert, and in a stack are the same
 * hidden features of each of its experts, on the tokens that chose these experts. Experts that no token chose get
 * gradients of zeros. Waits for a GPU, forward and backward. Of an expert -1 the token gets nothing. TSH_ERR_RANGE for
 * an expert outside [-1, count). */
TSH_API tsh_tensor *tsh_expert_mlp(tsh_tape *tape, tsh_tensor *x, tsh_tensor *weights, tsh_tensor *experts,
                                   tsh_tensor *gate, tsh_tensor *up, tsh_tensor *down, int64_t count);

/* --- cross entropy ------------------------------------------------------------------------------------------------ */

/* How a loss combines the losses of its rows: mean, sum, or none (all of them). */
typedef enum tsh_reduction { TSH_REDUCTION_MEAN = 0, TSH_REDUCTION_SUM, TSH_REDUCTION_NONE } tsh_reduction;

/* Options of tsh_cross_entropy; zeros are the defaults. */
typedef struct tsh_cross_entropy_config {
    tsh_tensor *weight;     /* [classes], REPLICATED or split as the classes of the logits; NULL: ones. No gradient. */
    bool has_ignore_index;  /* false: -100 */
    int64_t ignore_index;   /* rows with this target do not count */
    double label_smoothing; /* in [0, 1], over all classes */
    tsh_reduction reduction;
} tsh_cross_entropy_config;

/* logits [..., V], target int64 [...]; a = label_smoothing, w = weight, t = the row's target:
 *   nll_i = -w_t log p_t;  L_i = (1 - a) nll_i + a/V sum_j -w_j log p_j
 *   mean: sum L_i / sum w_t, without ignored rows
 * -> [] for mean and sum, [...] for none; of the logits' dtype, float32 for bfloat16 and float16. Along an axis:
 *   logits REPLICATED                    no communication; loss REPLICATED
 *   logits SHARD(last) (by vocabulary)   two all-reduces forward (max; packed sums), none backward; loss REPLICATED
 *   logits, target SHARD(0) (by batch)   mean and sum: one all-reduce of numerator and denominator, loss REPLICATED;
 *                                        none: no communication, loss SHARD(0)
 *   logits LOCAL                         no communication; loss LOCAL
 * TSH_ERR_RANGE for a target outside [0, V) that is not ignore_index. config may be NULL. */
TSH_API tsh_tensor *tsh_cross_entropy(tsh_tape *tape, tsh_tensor *logits, tsh_tensor *target,
                                      const tsh_cross_entropy_config *config);

/* What tsh_linear_cross_entropy keeps between forward and backward. */
typedef enum tsh_linear_loss_memory {
    /* KEEP where the number of features of the weight is at most an eighth of the number of rows on this rank, else
     * RECOMPUTE */
    TSH_LINEAR_LOSS_DEFAULT = 0,
    /* five numbers a row: backward recomputes each chunk's logits */
    TSH_LINEAR_LOSS_RECOMPUTE,
    /* the gradients of x and weight, which forward computes while it has a chunk's logits. RECOMPUTE is used instead
     * with classes that are split over ranks, 16-bit dtypes, TSH_REDUCTION_NONE, a z-loss beside class weights, a
     * deterministic world */
    TSH_LINEAR_LOSS_KEEP
} tsh_linear_loss_memory;

/* Options of tsh_linear_cross_entropy; zeros are the defaults. */
typedef struct tsh_linear_cross_entropy_config {
    tsh_cross_entropy_config loss; /* class weights [V] are split as the rows of the weight, or REPLICATED */
    double z_loss;                 /* z >= 0: adds z lse^2 to each row that is not ignored, lse = log sum_j exp l_j */
    /* The number of rows whose logits exist at a time. 0: a 32nd of the rows, at least 32, or all rows if their logits
     * take at most 4 MiB. A deterministic world ignores it, so that it changes no bit. */
    int64_t chunk;
    tsh_linear_loss_memory memory;
} tsh_linear_cross_entropy_config;

/* tsh_cross_entropy of the logits l = x W^T, without a tensor of all logits: they are computed for one chunk of rows at
 * a time. x [..., in]; weight [V, in] of x's dtype, that of a linear layer or an embedding; target int64 [...]. Class
 * weights do not apply to the z-loss (Chowdhery et al., "PaLM", 2022), whose mean is over the rows that are not
 * ignored. Result and dtype as in tsh_cross_entropy. The weight is not communicated. Along an axis:
 *   all REPLICATED                          no communication; loss REPLICATED
 *   weight SHARD(0) (by vocabulary)         one all-gather of five numbers a row forward; backward sums dx, as of a
 *                                           column layer: an all-reduce, a reduce-scatter for an x that is SHARD(0)
 *   x, target SHARD(0) (by batch)           mean and sum: one all-reduce of four numbers, loss REPLICATED; none: no
 *                                           communication, loss SHARD(0). dW is summed
 *   x LOCAL                                 no communication; loss LOCAL
 * TSH_ERR_LAYOUT for a weight that is SHARD(1); TSH_ERR_RANGE as in tsh_cross_entropy. config may be NULL. */
TSH_API tsh_tensor *tsh_linear_cross_entropy(tsh_tape *tape, tsh_tensor *x, tsh_tensor *weight, tsh_tensor *target,
                                             const tsh_linear_cross_entropy_config *config);

/* --- losses of elements ------------------------------------------------------------------------------------------- */

/* (x - target)^2. target of x's shape and dtype -> [] for mean and sum, x's shape for none; of x's dtype, float32 for
 * bfloat16 and float16. Along an axis:
 *   R,R -> R    L,L -> L    S(d),S(d) -> R for mean and sum, by one all-reduce; S(d) for none
 * A mean is over the elements of all ranks. Backward: no communication; the target gets a gradient as well. */
TSH_API tsh_tensor *tsh_mse_loss(tsh_tape *tape, tsh_tensor *x, tsh_tensor *target, tsh_reduction reduction);
/* l1_loss: d = |x - target|, whose gradient is 0 where x and target are equal. smooth_l1_loss: d^2 / (2 beta) where d <
 * beta, else d - beta / 2; TSH_ERR_ARGUMENT for a beta below 0. Everything else as in tsh_mse_loss. */
TSH_API tsh_tensor *tsh_l1_loss(tsh_tape *tape, tsh_tensor *x, tsh_tensor *target, tsh_reduction reduction);
TSH_API tsh_tensor *tsh_smooth_l1_loss(tsh_tape *tape, tsh_tensor *x, tsh_tensor *target, double beta,
                                       tsh_reduction reduction);

/* Options of tsh_bce_loss; zeros are the defaults. */
typedef struct tsh_bce_loss_config {
    tsh_tensor *pos_weight; /* w [n], n the size of the last dim of the logits x; NULL: ones. No gradient. */
    tsh_reduction reduction;
} tsh_bce_loss_config;

/* Binary cross entropy of logits x: -(w t log s + (1 - t) log(1 - s)), s = 1 / (1 + e^-x), t the target in [0, 1], of
 * the logits' shape and dtype. Result, layouts and communication as tsh_mse_loss; pos_weight is REPLICATED, or split as
 * the last dim. config may be NULL. */
TSH_API tsh_tensor *tsh_bce_loss(tsh_tape *tape, tsh_tensor *logits, tsh_tensor *target,
                                 const tsh_bce_loss_config *config);

/* True when this device computes the function, named as here without tsh_ ("attention"), on tensors of the dtype, and
 * for a float dtype its gradient. The dtype is that of the first tensor; ids are always int64. False for NULL and for
 * an unknown name. Pure. */
TSH_API bool tsh_function_supports(const tsh_device *device, const char *function, tsh_dtype dtype);

#ifdef __cplusplus
}
#endif

#endif
