/* functional: differentiable functions of tensors.
 *
 * Each comment lists the layouts that the function takes along an axis, as entries inputs -> output, with R, S(d), P, L
 * for REPLICATED, SHARD(d), PARTIAL, LOCAL. The tape inserts transitions from other layouts to the entry that moves the
 * fewest bytes (docs/layouts.md). Shapes are global. All tensors of a call are on one mesh and of one float dtype that
 * the device computes with (see tsh_dtype). A function returns a tensor that the tape owns, or NULL; tsh_tape_message()
 * says why. On a GPU, ids out of range are reported by a later call (docs/gpus.md).
 *
 * Thread safety: everything here is for the world's thread. */
#ifndef TSHARD_FUNCTIONAL_H
#define TSHARD_FUNCTIONAL_H

#include "tshard/autograd.h"

#ifdef __cplusplus
extern "C" {
#endif

/* y = a b.  a [..., k], b [k, n] -> [..., n], or a [stack..., m, k], b [stack..., k, n] -> [stack..., m, n].
 *   P,R -> P    R,P -> P    R,R -> R    S(d),L -> S(d), d not last    L,S(1) -> S(last)    S(last),S(0) -> P
 *   L,L -> L
 * a stack of matrices:
 *   P,R -> P    R,P -> P    R,R -> R    S(d),S(d) -> S(d), d of the stack    S(m),L -> S(m)    L,S(n) -> S(n)
 *   S(k),S(k) -> P    L,L -> L
 * L,S(1) is taken only by a b that is SHARD(1) (SHARD(last) in a stack), P,R and R,P only by inputs with these layouts:
 * the product of a term of a sum is a term of the product, and the gradient of the R input is summed (all-reduce).
 * Backward: da = dy b^T, db = a^T dy. */
TSH_API tsh_tensor *tsh_matmul(tsh_tape *tape, tsh_tensor *a, tsh_tensor *b);
/* y = x W^T + b.  x [..., in_features], weight [out_features, in_features], bias [out_features] or NULL
 * -> [..., out_features].
 *   P,R,P -> P    R,P,P -> P    R,R,R -> R    S(d),L,L -> S(d), d not last    L,S(0),S(0) -> S(last) (column)
 *   S(last),S(1),P -> P (row)    L,L,L -> L
 * The column entry is taken only by a weight that is SHARD(0), the first two only by an x and a weight that are P and
 * R. Backward: dx = dy W, dW = dy^T x, db = column sums of dy. */
TSH_API tsh_tensor *tsh_affine(tsh_tape *tape, tsh_tensor *x, tsh_tensor *weight, tsh_tensor *bias);

/* The sum, difference, product and quotient of x and y, element by element. Shapes that differ are aligned at the last
 * dim, and a size of 1 is repeated, as in NumPy: [5,1,3] with [4,1] is [5,4,3].
 *   R,R -> R    S(d),S(d) -> S(d)    L,L -> L    add, sub: P,P -> P    mul: P,R -> P, R,P -> P    div: P,R -> P
 *   S(d),L -> S(d) and L,S(d) -> S(d) where the other input is repeated along d of the output
 *     (the ranks of an axis take one entry: where one input is SHARD along it and the other LOCAL, whose sizes may
 *     differ there, the LOCAL one repeats the same dims on all of them)
 * Backward: the gradient of an input that is repeated is summed. */
TSH_API tsh_tensor *tsh_add(tsh_tape *tape, tsh_tensor *x, tsh_tensor *y);
TSH_API tsh_tensor *tsh_sub(tsh_tape *tape, tsh_tensor *x, tsh_tensor *y);
TSH_API tsh_tensor *tsh_mul(tsh_tape *tape, tsh_tensor *x, tsh_tensor *y);
TSH_API tsh_tensor *tsh_div(tsh_tape *tape, tsh_tensor *x, tsh_tensor *y);
/* y = factor x.
 *   R -> R    S(d) -> S(d)    P -> P    L -> L */
TSH_API tsh_tensor *tsh_scale(tsh_tape *tape, tsh_tensor *x, double factor);
/* y = x + b along the last dim.  x [..., n], b [n].
 *   R,R -> R    S(last),S(0) -> S(last)    S(d),L -> S(d), d not last    P,P -> P    L,L -> L */
TSH_API tsh_tensor *tsh_bias(tsh_tape *tape, tsh_tensor *x, tsh_tensor *b);

/* Functions of each element; the formula says y of x.
 *   gelu       x Phi(x), Phi the normal distribution function
 *   gelu_tanh  x/2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3)))
 *   relu       max(x, 0)
 *   silu       x / (1 + e^-x)
 *   exp, log, tanh, sqrt
 *   sigmoid    1 / (1 + e^-x)
 *   pow        x^exponent
 *   clamp      min(max(x, low), high); its gradient is 0 where x is outside (low, high). Either may be infinite.
 *   R -> R    S(d) -> S(d)    L -> L
 * A NaN stays NaN; limits are PyTorch's: log(0) = -inf; log and sqrt of a negative number, and its powers that are not
 * whole, are NaN. An exponent, low or high that is NaN is TSH_ERR_ARGUMENT.
 * Source of both gelus: Hendrycks and Gimpel, "Gaussian error linear units", 2016. */
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
/* y = value where the mask is not 0, else x; the gradient of x is 0 where it is filled. mask uint8, of x's shape or
 * repeated to it as in tsh_add; value may be infinite.
 *   R,R -> R    S(d),S(d) -> S(d)    S(d),L -> S(d) where the mask is repeated along d    L,L -> L */
TSH_API tsh_tensor *tsh_masked_fill(tsh_tape *tape, tsh_tensor *x, tsh_tensor *mask, double value);
/* x in another real dtype, rounded once; to an integer truncated and saturated. x itself where it has the dtype
 * already. Backward between dtypes that functions take: the gradient is cast back; other results have no gradient.
 *   R -> R    S(d) -> S(d)    L -> L */
TSH_API tsh_tensor *tsh_cast(tsh_tape *tape, tsh_tensor *x, tsh_dtype dtype);
/* y = 0 with probability p (in [0, 1)), else x / (1 - p); the draw depends on the global index of the element. While
 * the tape is not recording, y = x. Along a LOCAL axis every rank draws the same values.
 *   R -> R    S(d) -> S(d)    P -> P    L -> L */
TSH_API tsh_tensor *tsh_dropout(tsh_tape *tape, tsh_tensor *x, double p);

/* x with a new global shape (one size may be -1), its elements in the same order. A sharded dim stays sharded when it
 * keeps its size, or merges with or splits from later dims so that each rank's slice remains a balanced slice;
 * otherwise x is gathered along the axis first.
 *   R -> R    S(d) -> S(e)    P -> P    L -> L */
TSH_API tsh_tensor *tsh_reshape(tsh_tape *tape, tsh_tensor *x, int ndim, const int64_t *shape);
/* y = x with its dims in another order: dim d of y is dim order[d] of x, with ndim numbers in order, each dim once.
 * transpose exchanges two dims.
 *   R -> R    S(order[d]) -> S(d)    P -> P    L -> L
 * Backward: the inverse permutation of dy. */
TSH_API tsh_tensor *tsh_permute(tsh_tape *tape, tsh_tensor *x, const int *order);
TSH_API tsh_tensor *tsh_transpose(tsh_tape *tape, tsh_tensor *x, int a, int b);
/* y = the elements of x at [start, start + length) of dim.
 *   R -> R    S(d) -> S(d), d not dim    P -> P    L -> L */
TSH_API tsh_tensor *tsh_slice(tsh_tape *tape, tsh_tensor *x, int dim, int64_t start, int64_t length);
/* x as count >= 1 parts in order along dim, of these sizes, which add up to what x has (NULL: balanced parts). out[i]
 * becomes part i; on failure all are NULL.
 *   R -> R    S(d) -> S(d), d not dim    P -> P    L -> L
 * Backward: the concat of the parts' gradients. Returns the tape's status. */
TSH_API tsh_status tsh_split_parts(tsh_tape *tape, tsh_tensor *x, int dim, int count, const int64_t *sizes,
                                   tsh_tensor **out);
/* y = count >= 1 tensors in order along dim, all in one layout.
 *   R -> R    S(d) -> S(d), d not dim    P -> P    L -> L */
TSH_API tsh_tensor *tsh_concat(tsh_tape *tape, tsh_tensor *const *x, int count, int dim);

/* y = the sum or mean of x over dim, which y lacks; with TSH_ALL_DIMS over all dims, y of shape [].
 *   R -> R    S(d) -> S(d), or S(d - 1) past dim    S(dim) -> P    P -> P    L -> L */
#define TSH_ALL_DIMS (-100)
TSH_API tsh_tensor *tsh_sum(tsh_tape *tape, tsh_tensor *x, int dim);
TSH_API tsh_tensor *tsh_mean(tsh_tape *tape, tsh_tensor *x, int dim);

/* topk: y = the k largest elements of x along dim, 1 <= k <= its size, in descending order. *indices (or NULL): their
 * indices along dim, int64, owned by the tape. argmax: the index of the largest element, int64, without dim and without
 * a gradient. NaN counts as the largest; of equal elements the one with the lower index comes first.
 *   R -> R    S(d) -> S(d), d not dim (argmax: S(d - 1) past dim)    S(dim) -> R    L -> L
 * S(dim) costs one all-gather of k candidates from each rank. Backward: dy goes to the elements that were taken. */
TSH_API tsh_tensor *tsh_topk(tsh_tape *tape, tsh_tensor *x, int64_t k, int dim, tsh_tensor **indices);
TSH_API tsh_tensor *tsh_argmax(tsh_tape *tape, tsh_tensor *x, int dim);

/* y = exp(x) / sum exp(x) along dim, and the logarithm of that.
 *   R -> R    S(d) -> S(d), d not dim    S(dim) -> S(dim)    L -> L
 * S(dim) costs two all-reduces forward (max, sum) and one backward. */
TSH_API tsh_tensor *tsh_softmax(tsh_tape *tape, tsh_tensor *x, int dim);
TSH_API tsh_tensor *tsh_log_softmax(tsh_tape *tape, tsh_tensor *x, int dim);

/* y[i..., :] = table[ids[i...], :].  table [num_embeddings, embedding_dim], ids int64 [...] -> [..., embedding_dim].
 * The gradient of row `padding` (-1: none) stays zero. TSH_ERR_RANGE for a padding or an id outside [0,
 * num_embeddings), at any number of ranks.
 *   R,R -> R    S(0),R -> P (row)    S(1),R -> S(last) (column)    L,S(d) -> S(d)    L,L -> L */
TSH_API tsh_tensor *tsh_lookup(tsh_tape *tape, tsh_tensor *table, tsh_tensor *ids, int64_t padding);

/* y[i, :] = table[rows[i], :] for rows of this rank's own part of the table.  table [m, cols], rows int64 [n]
 * -> [n, cols].
 *   R,R -> R    S(0),S(0) -> S(0)    S(1),R -> S(1)    L,S(0) -> S(0)    L,L -> L
 * A table that is SHARD(0) takes rows that are SHARD(0) by no communication, forward or backward: numbers from 0 on
 * within the rank's slice. TSH_ERR_RANGE for a row outside it, TSH_ERR_STATE for a SHARD(0) table in a deterministic
 * world. */
TSH_API tsh_tensor *tsh_take_rows(tsh_tape *tape, tsh_tensor *table, tsh_tensor *rows);

/* Sampled classes (An et al., "Partial FC", 2021): a training step that computes with some of very many classes. Of
 * each rank's part of `weight` [classes, ...], REPLICATED or SHARD(0) along one axis, it draws the classes that occur
 * in target, and fills up with others at random to the rank's balanced share of `count`; where a rank's own classes of
 * the target are more than that, all ranks get as many more as their shares then have. target int64 [...], gathered;
 * negative ones count as none, and stay. Returns the drawn classes, int64 [n], as numbers of rows within the rank's
 * part, laid out as the weight's rows: for tsh_take_rows. *places (or NULL) becomes the target as numbers of drawn
 * classes, int64 [...], REPLICATED: for tsh_cross_entropy of their logits, which is then that over the drawn classes.
 * Both are owned by the tape, without gradients. Each class has a random number that follows from the world's seed, the
 * step and the class; those with the least are drawn. Waits for a GPU. TSH_ERR_RANGE for a target outside the classes,
 * TSH_ERR_ARGUMENT for a count below 1, TSH_ERR_LAYOUT for a weight in other layouts. */
TSH_API tsh_tensor *tsh_sample_classes(tsh_tape *tape, tsh_tensor *weight, tsh_tensor *target, int64_t count,
                                       tsh_tensor **places);

/* Normalisation over the last dim, of n elements; eps >= 0; gamma, beta [n] or NULL.
 *   layer_norm  (x - mean) / sqrt(var + eps) gamma + beta, var with divisor n
 *   rms_norm    x / sqrt(mean(x^2) + eps) gamma
 *   R,R,R -> R    S(d),L,L -> S(d), d not last    L,L,L -> L
 * Sources: Ba et al., "Layer normalization", 2016; Zhang and Sennrich, "Root mean square layer normalization", 2019. */
TSH_API tsh_tensor *tsh_layer_norm(tsh_tape *tape, tsh_tensor *x, tsh_tensor *gamma, tsh_tensor *beta, double eps);
TSH_API tsh_tensor *tsh_rms_norm(tsh_tape *tape, tsh_tensor *x, tsh_tensor *gamma, double eps);

/* --- attention ---------------------------------------------------------------------------------------------------- */

/* How tsh_attention attends; zeros are the defaults. */
typedef struct tsh_attention_config {
    bool causal;         /* query i sees the keys j <= i + Tk - Tq: the last query sees all */
    double scale;        /* 0: 1 / sqrt(D) */
    tsh_tensor *lengths; /* int64 [B] in [0, Tk]: the keys of each batch that are seen; NULL: all */
    double dropout;      /* of the probabilities, in [0, 1), as tsh_dropout */
    int64_t keys; /* Tk where k and v have room for more positions than are filled, as a cache; in evaluation. 0: all */
} tsh_attention_config;

/* y = softmax(scale q k^T + mask) v for each batch and head; a query that sees no key gives zeros.
 * q [B, Tq, H, D], k and v [B, Tk, Hkv, D], H a multiple of Hkv: query head h reads KV head h / (H / Hkv)
 * -> [B, Tq, H, D].
 *   q, k, v, lengths:  R,R,R,R -> R    S(0),S(0),S(0),S(0) -> S(0)    S(2),S(2),S(2),R -> S(2)    L,L,L,L -> L
 * S(2) splits by heads, in units of KV heads: q is S(2) of Hkv units of H blocks, and k and v are S(2) of Hkv units;
 * more ranks than those share them (layout.h). Nothing of the size of the probabilities is made: the backward computes
 * them again from a number for each row. No communication. TSH_ERR_RANGE for a length outside [0, Tk]. config may be
 * NULL. Sources: Vaswani et al., "Attention is all you need", 2017; Dao et al., "FlashAttention", 2022. */
TSH_API tsh_tensor *tsh_attention(tsh_tape *tape, tsh_tensor *q, tsh_tensor *k, tsh_tensor *v,
                                  const tsh_attention_config *config);

/* Which elements tsh_rotary turns as a pair. */
typedef enum tsh_rotary_order {
    TSH_ROTARY_HALF = 0, /* element i with i + dims / 2, as Hugging Face stores models */
    TSH_ROTARY_PAIRS     /* element 2i with 2i + 1, as Meta does */
} tsh_rotary_order;

/* Slower turns, for sequences longer than those of the training: each pair's frequency is divided by `factor`. Where
 * original_positions is set, as Llama 3 does it: a pair that turns over these positions more often than
 * high_freq_factor times stays as it is, one that turns less often than low_freq_factor times is divided, and between
 * them 1 / factor rises to 1 with the number of turns. */
typedef struct tsh_rotary_scaling {
    double factor; /* 0: none */
    double low_freq_factor, high_freq_factor;
    int64_t original_positions;
} tsh_rotary_scaling;

/* How tsh_rotary turns; zeros are the defaults. */
typedef struct tsh_rotary_config {
    double theta; /* 0: 10000 */
    tsh_rotary_order order;
    int64_t dims; /* the first of D, an even number, that are turned; 0: all */
    tsh_rotary_scaling scaling;
} tsh_rotary_config;

/* Rotary positions: the pairs (a, b) of x become (a cos t - b sin t, b cos t + a sin t), for pair i with
 * t = position theta^(-2i / dims), scaled.  x [B, T, H, D], positions int64 [T] or [B, T] -> [B, T, H, D].
 *   positions [T]:     R,R -> R    S(0),R -> S(0)       S(1),S(0) -> S(1)    S(2),R -> S(2)    P,R -> P    L,L -> L
 *   positions [B, T]:  R,R -> R    S(0),S(0) -> S(0)    S(1),S(1) -> S(1)    S(2),R -> S(2)    P,R -> P    L,L -> L
 * config may be NULL. Source: Su et al., "RoFormer", 2021. */
TSH_API tsh_tensor *tsh_rotary(tsh_tape *tape, tsh_tensor *x, tsh_tensor *positions, const tsh_rotary_config *config);

/* --- cross entropy ------------------------------------------------------------------------------------------------ */

/* What a loss is of the losses of its rows: their mean, their sum, or all of them. */
typedef enum tsh_reduction { TSH_REDUCTION_MEAN = 0, TSH_REDUCTION_SUM, TSH_REDUCTION_NONE } tsh_reduction;

/* What tsh_cross_entropy computes; zeros are the defaults. */
typedef struct tsh_cross_entropy_config {
    tsh_tensor *weight; /* [classes], REPLICATED or laid out as the classes of the logits; NULL: ones. No gradient. */
    bool has_ignore_index;  /* false: -100 */
    int64_t ignore_index;   /* rows with this target are left out of the loss */
    double label_smoothing; /* in [0, 1], over all classes */
    tsh_reduction reduction;
} tsh_cross_entropy_config;

/* logits [..., V], target int64 [...]; a = label_smoothing, w = weight, t = the row's target:
 *   nll_i = -w_t log p_t;  L_i = (1 - a) nll_i + a/V sum_j -w_j log p_j
 *   mean: sum L_i / sum of w_t, both without ignored rows
 * -> [] for mean and sum, [...] for none; of the logits' dtype, float32 for bfloat16 and float16. Along an axis:
 *   logits REPLICATED                    no communication; loss REPLICATED
 *   logits SHARD(last) (by vocabulary)   two all-reduces forward (max; packed sums), none backward; loss REPLICATED
 *   logits, target SHARD(0) (by batch)   mean and sum: one all-reduce of numerator and denominator, loss REPLICATED;
 *                                        none: no communication, loss SHARD(0)
 *   logits LOCAL                         no communication; loss LOCAL
 * TSH_ERR_RANGE for a target outside [0, V) that is not ignore_index, at any number of ranks. config may be NULL. */
TSH_API tsh_tensor *tsh_cross_entropy(tsh_tape *tape, tsh_tensor *logits, tsh_tensor *target,
                                      const tsh_cross_entropy_config *config);

/* --- losses of elements ------------------------------------------------------------------------------------------- */

/* (x - target)^2. target of x's shape and dtype -> [] for mean and sum, x's shape for none; of x's dtype, float32 for
 * bfloat16 and float16. Along an axis:
 *   R,R -> R    L,L -> L    S(d),S(d) -> R for mean and sum, by one all-reduce; S(d) for none
 * A mean is over the elements of all ranks. Backward: no communication; the target has a gradient, too. */
TSH_API tsh_tensor *tsh_mse_loss(tsh_tape *tape, tsh_tensor *x, tsh_tensor *target, tsh_reduction reduction);

/* What tsh_bce_loss computes; zeros are the defaults. */
typedef struct tsh_bce_loss_config {
    tsh_tensor *pos_weight; /* w [n], n the size of the last dim of the logits x; NULL: ones. No gradient. */
    tsh_reduction reduction;
} tsh_bce_loss_config;

/* Binary cross entropy of logits x: -(w t log s + (1 - t) log(1 - s)), s = 1 / (1 + e^-x), t the target in [0, 1], of
 * the logits' shape and dtype. Result, layouts and communication as tsh_mse_loss; pos_weight is REPLICATED, or laid out
 * as the last dim. config may be NULL. */
TSH_API tsh_tensor *tsh_bce_loss(tsh_tape *tape, tsh_tensor *logits, tsh_tensor *target,
                                 const tsh_bce_loss_config *config);

/* True when this device computes the function, by its name here without tsh_ ("attention"), on tensors of the dtype,
 * and its gradient where the dtype is a float one. The dtype is that of the first tensor and of those that go with it;
 * ids are int64 in any case. False for a NULL and for an unknown name. Pure. */
TSH_API bool tsh_function_supports(const tsh_device *device, const char *function, tsh_dtype dtype);

#ifdef __cplusplus
}
#endif

#endif
