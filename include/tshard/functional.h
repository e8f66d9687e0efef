/* functional: differentiable functions of tensors.
 *
 * Shapes are global ones. For each function a line lists the layouts that it takes along an axis, inputs -> output,
 * with R, S(d), P, L for REPLICATED, SHARD(d), PARTIAL, LOCAL. From other layouts the tape inserts transitions to one
 * of the entries, chosen for all axes of the mesh together. What is split is used as it is: entries that take an input
 * as it is SHARD come first, then entries that split the work otherwise; last those that gather every split input and
 * so repeat the arithmetic on every rank. Among these the entry whose transitions send the fewest bytes is taken,
 * forward and backward, a sum that it leaves open (P) counting as its all-reduce; the first on ties. The choice depends
 * on shapes, dtypes and layouts alone: it is the same on every rank, at any number of ranks, with and without
 * recording, and for empty tensors. Of a LOCAL tensor, whose sizes ranks may differ in, every size counts as 1024
 * there. LOCAL is only ever taken as LOCAL.
 * All tensors of one float dtype that the device computes with (see tsh_dtype) where not said otherwise, on one mesh.
 * Every function returns a tensor owned by the tape, or NULL with the words in tsh_tape_message(). On a GPU ids out of
 * range, and whatever else only its kernels find, are told by the next call that looks: tsh_backward,
 * tsh_optimizer_step, tsh_tensor_read, tsh_tensor_item, tsh_device_synchronize; it may be one of the next step.
 *
 * Thread safety: everything here is for the world's own thread. */
#ifndef TSHARD_FUNCTIONAL_H
#define TSHARD_FUNCTIONAL_H

#include "tshard/autograd.h"

#ifdef __cplusplus
extern "C" {
#endif

/* y = a b.  a [..., k], b [k, n] -> [..., n].
 *   P,R -> P    R,P -> P    R,R -> R    S(d),L -> S(d), d not last    L,S(1) -> S(last)    S(last),S(0) -> P
 *   L,L -> L
 * L,S(1) is for a b that is SHARD(1) already, P,R and R,P for inputs that are that already: the product of a sum's term
 * is a term of the product; the gradient of the R input is summed (all-reduce). Backward: da = dc b^T, db = a^T dc. */
TSH_API tsh_tensor *tsh_matmul(tsh_tape *tape, tsh_tensor *a, tsh_tensor *b);
/* y = x W^T + b.  x [..., in], weight [out, in], bias [out] or NULL -> [..., out].
 *   P,R,P -> P    R,P,P -> P    R,R,R -> R    S(d),L,L -> S(d), d not last    L,S(0),S(0) -> S(last) (column)
 *   S(last),S(1),P -> P (row)    L,L,L -> L
 * The column entry is for a weight that is SHARD(0) already, the first two for an x and a weight that are P and R
 * already.
 * Backward: dx = dy W, dW = dy^T x, db = column sums of dy. */
TSH_API tsh_tensor *tsh_affine(tsh_tape *tape, tsh_tensor *x, tsh_tensor *weight, tsh_tensor *bias);

/* Elementwise, equal shapes.
 *   R,R -> R    S(d),S(d) -> S(d)    L,L -> L    add, sub: P,P -> P    mul: P,R -> P, R,P -> P */
TSH_API tsh_tensor *tsh_add(tsh_tape *tape, tsh_tensor *x, tsh_tensor *y);
TSH_API tsh_tensor *tsh_sub(tsh_tape *tape, tsh_tensor *x, tsh_tensor *y);
TSH_API tsh_tensor *tsh_mul(tsh_tape *tape, tsh_tensor *x, tsh_tensor *y);
/* y = factor x.
 *   R -> R    S(d) -> S(d)    P -> P    L -> L */
TSH_API tsh_tensor *tsh_scale(tsh_tape *tape, tsh_tensor *x, double factor);
/* y = x + b along the last dim.  x [..., n], b [n].
 *   R,R -> R    S(last),S(0) -> S(last)    S(d),L -> S(d), d not last    P,P -> P    L,L -> L */
TSH_API tsh_tensor *tsh_bias(tsh_tape *tape, tsh_tensor *x, tsh_tensor *b);

/* Elementwise.
 *   gelu       x Phi(x), Phi the normal distribution function
 *   gelu_tanh  x/2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3)))
 *   relu       max(x, 0)
 *   silu       x / (1 + e^-x)
 *   R -> R    S(d) -> S(d)    L -> L
 * Source of both gelus: Hendrycks and Gimpel, "Gaussian error linear units", 2016. */
TSH_API tsh_tensor *tsh_gelu(tsh_tape *tape, tsh_tensor *x);
TSH_API tsh_tensor *tsh_gelu_tanh(tsh_tape *tape, tsh_tensor *x);
TSH_API tsh_tensor *tsh_relu(tsh_tape *tape, tsh_tensor *x);
TSH_API tsh_tensor *tsh_silu(tsh_tape *tape, tsh_tensor *x);
/* Zero with probability p (in [0, 1)), else x / (1 - p), keyed by global element. Does nothing while the tape is not
 * recording. Along an axis that is LOCAL every rank draws alike.
 *   R -> R    S(d) -> S(d)    P -> P    L -> L */
TSH_API tsh_tensor *tsh_dropout(tsh_tape *tape, tsh_tensor *x, double p);

/* The same elements in order, shaped anew (global shape; one size may be -1). A sharded dim that stays as it is, or
 * merges with or splits from later dims so that every rank's slice stays a balanced slice, stays sharded; otherwise x
 * is gathered along the axis first.
 *   R -> R    S(d) -> S(e)    P -> P    L -> L */
TSH_API tsh_tensor *tsh_reshape(tsh_tape *tape, tsh_tensor *x, int ndim, const int64_t *shape);
/* [start, start + length) of dim.
 *   R -> R    S(d) -> S(d), d not dim    P -> P    L -> L */
TSH_API tsh_tensor *tsh_slice(tsh_tape *tape, tsh_tensor *x, int dim, int64_t start, int64_t length);
/* One after another along dim, one tensor or more, all in one layout.
 *   R -> R    S(d) -> S(d), d not dim    P -> P    L -> L */
TSH_API tsh_tensor *tsh_concat(tsh_tape *tape, tsh_tensor *const *x, int count, int dim);

/* Sum or mean over dim, which goes away; TSH_ALL_DIMS: over all, giving shape [].
 *   R -> R    S(d) -> S(d), or S(d - 1) past dim    S(dim) -> P    P -> P    L -> L */
#define TSH_ALL_DIMS (-100)
TSH_API tsh_tensor *tsh_sum(tsh_tape *tape, tsh_tensor *x, int dim);
TSH_API tsh_tensor *tsh_mean(tsh_tape *tape, tsh_tensor *x, int dim);

/* exp(x) / sum exp(x) along dim, and its logarithm.
 *   R -> R    S(d) -> S(d), d not dim    S(dim) -> S(dim)    L -> L
 * S(dim) costs two all-reduces forward (max, sum) and one backward. */
TSH_API tsh_tensor *tsh_softmax(tsh_tape *tape, tsh_tensor *x, int dim);
TSH_API tsh_tensor *tsh_log_softmax(tsh_tape *tape, tsh_tensor *x, int dim);

/* y[i..., :] = table[ids[i...], :].  table [rows, cols], ids int64 [...] -> [..., cols]. The gradient of row `padding`
 * (-1: none) stays zero. TSH_ERR_RANGE for a padding or an id outside [0, rows) of the whole table, at any number of
 * ranks.
 *   R,R -> R    S(0),R -> P (row)    S(1),R -> S(last) (column)    L,S(d) -> S(d)    L,L -> L */
TSH_API tsh_tensor *tsh_lookup(tsh_tape *tape, tsh_tensor *table, tsh_tensor *ids, int64_t padding);

/* Over the last dim, eps >= 0 inside the root; gamma, beta [n] or NULL.
 *   layer_norm  (x - mean) / sqrt(var + eps) gamma + beta, var with divisor n
 *   rms_norm    x / sqrt(mean(x^2) + eps) gamma
 *   R,R,R -> R    S(d),L,L -> S(d), d not last    L,L,L -> L
 * Sources: Ba et al., "Layer normalization", 2016; Zhang and Sennrich, "Root mean square layer normalization", 2019. */
TSH_API tsh_tensor *tsh_layer_norm(tsh_tape *tape, tsh_tensor *x, tsh_tensor *gamma, tsh_tensor *beta, double eps);
TSH_API tsh_tensor *tsh_rms_norm(tsh_tape *tape, tsh_tensor *x, tsh_tensor *gamma, double eps);

/* --- cross entropy ------------------------------------------------------------------------------------------------ */

typedef enum tsh_reduction { TSH_REDUCTION_MEAN = 0, TSH_REDUCTION_SUM, TSH_REDUCTION_NONE } tsh_reduction;

typedef struct tsh_cross_entropy_config {
    tsh_tensor *weight;    /* [classes] per-class weights, REPLICATED or laid out as the logits' classes; NULL: ones. No
                              gradient. */
    bool has_ignore_index; /* false: -100 */
    int64_t ignore_index;  /* rows with this target count for nothing */
    double label_smoothing; /* in [0, 1], over the global classes */
    tsh_reduction reduction;
} tsh_cross_entropy_config;

/* logits [..., classes], target int64 [...]; V = global classes, a = smoothing, w = class weights:
 *   nll_i = -w_t log p_t;  L_i = (1 - a) nll_i + a/V sum_j -w_j log p_j;  mean: sum L_i / sum of w_t over targets not
 * ignored.
 * -> [] for mean and sum, [...] for none; of the logits' dtype, float32 for bfloat16 and float16. Along an axis:
 *   logits REPLICATED: no communication. SHARD(last), vocabulary-parallel: two all-reduces forward (max; packed sums),
 * none backward, loss REPLICATED. SHARD(0), target SHARD(0) (batch-parallel): mean and sum: one all-reduce of numerator
 * and denominator, loss REPLICATED; none: SHARD(0). LOCAL: loss LOCAL. TSH_ERR_RANGE for a target outside [0, V) that
 * is not ignore_index, at any number of ranks. config may be NULL. */
TSH_API tsh_tensor *tsh_cross_entropy(tsh_tape *tape, tsh_tensor *logits, tsh_tensor *target,
                                      const tsh_cross_entropy_config *config);

#ifdef __cplusplus
}
#endif

#endif
