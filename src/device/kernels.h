/* The kernels: a function type for each, which every device implements, and the tables that hold them. Kernels that
 * compute have no dtype argument: a device has a table of them for each float dtype that it computes with.
 *
 * A kernel takes plain pointers to elements of the dtype in the device's memory and trusts its arguments, because
 * shape rules have checked them. A kernel that returns void cannot fail; sizes of zero are legal. Kernels run in
 * call order; on a device with streams they do not make the host wait, and failures are reported through
 * tshi_device_ops.check. Statistics (maxima, sums, losses) are of tshi_dtype_sum(dtype). Buffers may alias only
 * where a kernel's comment says so. `beta` is 0 (the output is overwritten) or 1 (the output is added to). (outer,
 * n, inner) is a row-major tensor viewed around one dim of size n. */
#ifndef TSHI_KERNELS_H
#define TSHI_KERNELS_H

#include "base/base.h"
#include "tshard/device.h"

bool tshi_dtype_is_complex(tsh_dtype dtype); /* complex64, complex128 */
/* The accumulation dtype: float32 for bfloat16 and float16, else dtype itself. */
TSHI_TOOLS tsh_dtype tshi_dtype_sum(tsh_dtype dtype);

/* --- copies, fills, conversions ----------------------------------------------------------------------------------- */

/* A copy within the device's memory, from it to the host, or from the host to it; `to` may equal `from`. A copy to
 * the host returns when `to` is filled; one from the host returns when `from` may be changed. */
typedef void tshi_copy_fn(tsh_device *device, size_t bytes, const void *from, void *to);
/* `outer` runs of `bytes`, from_stride bytes apart in `from` and to_stride bytes apart in `to`. */
typedef void tshi_copy_strided_fn(tsh_device *device, int64_t outer, size_t bytes, const void *from, size_t from_stride,
                                  void *to, size_t to_stride);
typedef void tshi_zero_fn(tsh_device *device, size_t bytes, void *to);
/* Fills with `value` cast to any dtype; the imaginary part is 0. */
typedef void tshi_fill_fn(tsh_device *device, tsh_dtype dtype, int64_t n, double value, void *to);
/* Converts between any two real dtypes with one rounding, to nearest even. Float to integer truncates and saturates;
 * NaN becomes 0. A complex dtype converts only to itself. */
typedef void tshi_convert_fn(tsh_device *device, int64_t n, tsh_dtype from_dtype, const void *from, tsh_dtype to_dtype,
                             void *to);

/* A permutation of dims: `to` is row-major with these sizes, and its piece (i, j, ...) is read at i stride[0] + j
 * stride[1] + ... pieces into `from`. A piece is the innermost contiguous bytes that stay together. */
#define TSHI_PERMUTED_DIMS 8
typedef struct tshi_permutation {
    size_t piece;
    int ndim;
    int64_t size[TSHI_PERMUTED_DIMS], stride[TSHI_PERMUTED_DIMS];
} tshi_permutation;
typedef void tshi_permute_fn(tsh_device *device, const tshi_permutation *p, const void *from, void *to);

typedef struct tshi_copy_ops {
    tshi_copy_fn *within;
    tshi_copy_fn *to_host;
    tshi_copy_fn *from_host;
    tshi_copy_strided_fn *strided;
    tshi_permute_fn *permute;
    tshi_zero_fn *zero;
    tshi_fill_fn *fill;
    tshi_convert_fn *convert;
} tshi_copy_ops;

/* --- elementwise, by float dtype ---------------------------------------------------------------------------------- */

/* Fused epilogues of products take only the functions before TSHI_IDENTITY, or TSHI_IDENTITY for none. */
typedef enum tshi_unary {
    TSHI_GELU_ERF,
    TSHI_GELU_TANH,
    TSHI_RELU,
    TSHI_SILU,
    TSHI_IDENTITY, /* no epilogue; never passed to a tshi_unary_fn */
    TSHI_EXP,
    TSHI_LOG,
    TSHI_TANH,
    TSHI_SQRT,
    TSHI_SIGMOID,
    TSHI_POW,   /* x^p[0]; -2, -1, -1/2, 1/2, 2 and 3 by division, square root and multiplication */
    TSHI_CLAMP, /* x clamped to [p[0], p[1]]; NaN stays NaN; p[1] where p[0] > p[1] */
    TSHI_UNARY_COUNT
} tshi_unary;

/* y = f(x); y may alias x. p: the parameters of f, or NULL where it has none. */
typedef void tshi_unary_fn(tsh_device *device, tshi_unary f, const double *p, int64_t n, const void *x, void *y);
/* dx = beta dx + f'(x) dy; with beta 0, dx may alias x or dy. */
typedef void tshi_unary_backward_fn(tsh_device *device, tshi_unary f, const double *p, int64_t n, const void *x,
                                    const void *dy, double beta, void *dx);
/* z = a x + b y; z may alias x or y. When b is 0, y is not read and may be NULL. */
typedef void tshi_axpby_fn(tsh_device *device, int64_t n, double a, const void *x, double b, const void *y, void *z);
/* z = beta z + x y; z may alias x or y when beta is 0. */
typedef void tshi_mul_fn(tsh_device *device, int64_t n, const void *x, const void *y, double beta, void *z);

typedef enum tshi_binary { TSHI_ADD, TSHI_SUB, TSHI_MUL, TSHI_DIV, TSHI_BINARY_COUNT } tshi_binary;

#define TSHI_OVERLAY_RUNS 8

/* Operands broadcast to a row-major output of `runs` dims, dim 0 the innermost: dim k has n[k] elements, and x[k]
 * and y[k] are the operands' strides in elements; a stride of 0 repeats a dim. In dim 0 one stride is 1 and the
 * other is 0 or 1. */
typedef struct tshi_overlay {
    int runs;
    int64_t n[TSHI_OVERLAY_RUNS], x[TSHI_OVERLAY_RUNS], y[TSHI_OVERLAY_RUNS];
} tshi_overlay;

/* z = f(x, y); z may alias an operand that is not broadcast. */
typedef void tshi_binary_fn(tsh_device *device, tshi_binary f, const tshi_overlay *o, const void *x, const void *y,
                            void *z);
/* z = beta z + (mask ? value : x). The mask is broadcast to x, which is not broadcast; when beta is 0, z may alias
 * x. */
typedef void tshi_mask_fn(tsh_device *device, const tshi_overlay *o, const void *x, const uint8_t *mask, double value,
                          double beta, void *z);
/* y[r, c] = x[r, c] + b[c]; y may alias x. With x NULL, y[r, c] = b[c]. */
typedef void tshi_bias_fn(tsh_device *device, int64_t rows, int64_t cols, const void *x, const void *b, void *y);

typedef struct tshi_elementwise_ops {
    tshi_unary_fn *unary;
    tshi_unary_backward_fn *unary_backward;
    tshi_axpby_fn *axpby;
    tshi_mul_fn *mul;
    tshi_binary_fn *binary;
    tshi_mask_fn *mask;
    tshi_bias_fn *bias;
} tshi_elementwise_ops;

/* --- sums, by float dtype ----------------------------------------------------------------------------------------- */

/* y[o, k] = scale * sum over i of x[o, i, k] */
typedef void tshi_sum_fn(tsh_device *device, int64_t outer, int64_t n, int64_t inner, double scale, const void *x,
                         void *y);
/* dx[o, i, k] += scale * dy[o, k] */
typedef void tshi_sum_backward_fn(tsh_device *device, int64_t outer, int64_t n, int64_t inner, double scale,
                                  const void *dy, void *dx);
/* db[c] += sum over r of dy[r, c] */
typedef void tshi_bias_backward_fn(tsh_device *device, int64_t rows, int64_t cols, const void *dy, void *db);
/* *sum += the sum of x's squares; *sum is in device memory. */
typedef void tshi_sum_squares_fn(tsh_device *device, int64_t n, const void *x, double *sum);

typedef struct tshi_sum_ops {
    tshi_sum_fn *over_dim;
    tshi_sum_backward_fn *over_dim_backward;
    tshi_bias_backward_fn *bias_backward, *bias_backward_wide; /* wide: db has the accumulation dtype */
    tshi_sum_squares_fn *squares;
} tshi_sum_ops;

/* --- matrix products, float dtypes -------------------------------------------------------------------------------- */

/* C = alpha op(A) op(B) + beta C for any beta, row-major, op(A) m x k, op(B) k x n; a transposed A is stored k x m.
 * lda, ldb and ldc are row lengths. k = 0 gives beta C. TSH_ERR_OVERFLOW as in tshi_check_product. */
typedef tsh_status tshi_gemm_fn(tsh_device *device, tsh_dtype dtype, bool transpose_a, bool transpose_b, int64_t m,
                                int64_t n, int64_t k, double alpha, const void *a, int64_t lda, const void *b,
                                int64_t ldb, double beta, void *c, int64_t ldc);
/* Y = f(X W^T + b): x [m, k], w [n, k], b [n] or NULL, y [m, n]. The pre-activation is saved in pre [m, n] for the
 * backward, unless pre is NULL or f is TSHI_IDENTITY. */
typedef tsh_status tshi_affine_fn(tsh_device *device, tsh_dtype dtype, int64_t m, int64_t n, int64_t k, const void *x,
                                  const void *w, const void *b, tshi_unary f, void *pre, void *y);
/* dW = beta dW + dY^T X for any beta; db = beta_b db + column sums of dY, unless db is NULL. dW and db have dtype
 * `to`: dtype or its accumulation dtype. */
typedef tsh_status tshi_affine_backward_fn(tsh_device *device, tsh_dtype dtype, int64_t m, int64_t n, int64_t k,
                                           const void *x, const void *dy, tsh_dtype to, double beta, void *dw,
                                           double beta_b, void *db);

/* C = f'(Z) * (A B), elementwise: a [m, k], b [k, n], z and c [m, n]. */
typedef tsh_status tshi_gemm_unary_backward_fn(tsh_device *device, tsh_dtype dtype, int64_t m, int64_t n, int64_t k,
                                               const void *a, const void *b, tshi_unary f, const void *z, void *c);

/* TSH_ERR_OVERFLOW where a size of a product passes 2^31 - 1, the limit of `library`. */
tsh_status tshi_check_product(const char *library, int64_t m, int64_t n, int64_t k, int64_t lda, int64_t ldb,
                              int64_t ldc);

typedef struct tshi_product_ops {
    tshi_gemm_fn *gemm;
    tshi_affine_fn *affine;
    tshi_affine_backward_fn *affine_backward;
    tshi_gemm_unary_backward_fn *gemm_unary_backward;
} tshi_product_ops;

/* --- softmax over n, in passes between which a collective may stand ----------------------------------------------- */

/* max[o, k] = max over i of x (-inf where n = 0). */
typedef void tshi_softmax_max_fn(tsh_device *device, int64_t outer, int64_t n, int64_t inner, const void *x, void *max);
/* sum[o, k] = sum over i of exp(x - max) */
typedef void tshi_softmax_sum_fn(tsh_device *device, int64_t outer, int64_t n, int64_t inner, const void *x,
                                 const void *max, void *sum);
/* y = exp(x - max) / sum, or with log: x - max - log(sum). */
typedef void tshi_softmax_fn(tsh_device *device, bool log, int64_t outer, int64_t n, int64_t inner, const void *x,
                             const void *max, const void *sum, void *y);
/* dot[o, k] = sum over i of dy y, or with log: sum of dy. */
typedef void tshi_softmax_dot_fn(tsh_device *device, bool log, int64_t outer, int64_t n, int64_t inner, const void *y,
                                 const void *dy, void *dot);
/* dx += y (dy - dot), or with log: dy - exp(y) dot. */
typedef void tshi_softmax_backward_fn(tsh_device *device, bool log, int64_t outer, int64_t n, int64_t inner,
                                      const void *y, const void *dy, const void *dot, void *dx);

/* Softmax over whole rows in one call, forward and backward, for rows that are not sharded; a row is read once, or
 * twice when it is long. They return false and do nothing for rows that the passes handle better: few long rows, and
 * rows that are neither long nor aligned. */
typedef bool tshi_softmax_whole_fn(tsh_device *device, bool log, int64_t rows, int64_t n, const void *x, void *y);
typedef bool tshi_softmax_whole_backward_fn(tsh_device *device, bool log, int64_t rows, int64_t n, const void *y,
                                            const void *dy, void *dx);

typedef struct tshi_softmax_ops {
    tshi_softmax_max_fn *max;
    tshi_softmax_sum_fn *sum;
    tshi_softmax_fn *forward;
    tshi_softmax_dot_fn *dot;
    tshi_softmax_backward_fn *backward;
    tshi_softmax_whole_fn *whole; /* this and the next slot may be NULL */
    tshi_softmax_whole_backward_fn *whole_backward;
} tshi_softmax_ops;

/* --- cross entropy of a vocabulary slice -------------------------------------------------------------------------- */

/* Logits of `rows` rows and `n` local classes, which are the global classes from `start` on, of `classes` in all.
 * weight: [n], of the local classes, or NULL for ones; weight_sum: W, the sum of the weights of all classes, one
 * element in device memory, or NULL for `classes`. */
typedef struct tshi_classes {
    int64_t rows, n, start, classes;
    int64_t ignore_index;
    double smoothing;
    const void *weight, *weight_sum;
} tshi_classes;

/* The first index whose target is neither ignore_index nor in [0, classes), or -1. An asynchronous device returns -1
 * and reports such a target through tshi_device_ops.check. */
typedef int64_t tshi_targets_check_fn(tsh_device *device, const tshi_classes *c, const int64_t *target);
/* One pass over the logits: max[rows], the maxima of the local classes, at least the lowest finite number;
 * sums[rows, 4] = { sum of exp(l - max), l_target - max, w_target, sum of w (l - max) }. The middle two are 0 where
 * the target is a class of another rank or is ignored; the last is 0 when smoothing is 0. */
typedef void tshi_cross_entropy_sums_fn(tsh_device *device, const tshi_classes *c, const void *logits,
                                        const int64_t *target, void *max, void *sums);
/* Rescales sums from this rank's own maxima to max[rows], the maxima of all ranks, before the ranks' sums are added.
 * c->weight_sum is that of the local classes, or NULL for c->n. */
typedef void tshi_cross_entropy_shift_fn(tsh_device *device, const tshi_classes *c, const void *own, const void *max,
                                         void *sums);
/* The loss from the added sums: loss[row] = (1 - a) w_t (log s - (l_t - max)) + a/classes (W log s - last sum), with
 * a = smoothing; 0 for an ignored target. */
typedef void tshi_cross_entropy_loss_fn(tsh_device *device, const tshi_classes *c, const int64_t *target,
                                        const void *sums, void *loss);
/* dlogits[row, j] = beta dlogits[row, j] + g_row * ((1 - a) w_t (p_j - [j = t]) + a/classes (W p_j - w_j)), the second
 * term 0 for an ignored target; g_row = dloss[row * dloss_stride] (stride 0: one upstream gradient for all rows), over
 * *divisor unless that is NULL. */
typedef void tshi_cross_entropy_backward_fn(tsh_device *device, const tshi_classes *c, const void *logits,
                                            const int64_t *target, const void *max, const void *sums, const void *dloss,
                                            int64_t dloss_stride, const void *divisor, double beta, void *dlogits);

typedef struct tshi_cross_entropy_ops {
    tshi_cross_entropy_sums_fn *sums;
    tshi_cross_entropy_shift_fn *shift;
    tshi_cross_entropy_loss_fn *loss;
    tshi_cross_entropy_backward_fn *backward;
} tshi_cross_entropy_ops;

/* --- losses of elements ------------------------------------------------------------------------------------------- */

typedef enum tshi_loss {
    TSHI_SQUARED_ERROR,       /* (x - t)^2 */
    TSHI_BINARY_CROSS_ENTROPY /* (1 - t) x + (1 + (w - 1) t) log(1 + e^-x) */
} tshi_loss;

/* n predictions x and targets t; the weight w of element i is weight[i % weights], or 1 where weight is NULL. */
typedef struct tshi_loss_inputs {
    tshi_loss f;
    int64_t n, weights;
    const void *x, *target, *weight;
} tshi_loss_inputs;

/* loss[i], in the accumulation dtype. */
typedef void tshi_loss_fn(tsh_device *device, const tshi_loss_inputs *in, void *loss);
/* to[i] = beta to[i] + scale dloss[i stride] times the derivative of loss[i] by x[i], or with of_target by t[i]. */
typedef void tshi_loss_backward_fn(tsh_device *device, const tshi_loss_inputs *in, bool of_target, const void *dloss,
                                   int64_t stride, double scale, double beta, void *to);

typedef struct tshi_loss_ops {
    tshi_loss_fn *forward;
    tshi_loss_backward_fn *backward;
} tshi_loss_ops;

/* --- embedding ---------------------------------------------------------------------------------------------------- */

/* The first index whose id is outside [0, vocabulary), or -1; an asynchronous device reports it as
 * tshi_targets_check_fn does. */
typedef int64_t tshi_ids_check_fn(tsh_device *device, int64_t n, const int64_t *ids, int64_t vocabulary);
/* y[i, :] = table[ids[i] - start, :], zeros for ids outside [start, start + rows); table [rows, cols]. */
typedef void tshi_embedding_fn(tsh_device *device, int64_t n, const int64_t *ids, int64_t start, int64_t rows,
                               int64_t cols, const void *table, void *y);
/* dtable[ids[i] - start, :] += dy[i, :] for ids inside the slice that are not padding (-1: no padding), in order of
 * i. Elements of 16 bits are accumulated in float32 and rounded at most once per 16384 indices. */
typedef void tshi_embedding_backward_fn(tsh_device *device, int64_t n, const int64_t *ids, int64_t start, int64_t rows,
                                        int64_t cols, int64_t padding, const void *dy, void *dtable);

/* table[ids[i] - start, :] = from[i, :] * max_norm / (norms[i] + 1e-7) for ids inside the slice whose norms[i] is
 * above max_norm. Equal ids have equal rows of `from` and equal norms. */
typedef void tshi_embedding_bound_fn(tsh_device *device, int64_t n, const int64_t *ids, int64_t start, int64_t rows,
                                     int64_t cols, const double *norms, double max_norm, const void *from, void *table);

typedef struct tshi_embedding_ops {
    tshi_embedding_fn *forward;
    tshi_embedding_backward_fn *backward;
    tshi_embedding_bound_fn *bound;
} tshi_embedding_ops;

/* --- the largest elements, of any float dtype --------------------------------------------------------------------- */

/* An element and its global index. NaN compares larger than any number; of equal values the lower index comes first. */
typedef struct tshi_candidate {
    double value;
    int64_t index;
} tshi_candidate;

/* Padding of short lists: compares after every element. */
#define TSHI_NO_CANDIDATE ((tshi_candidate){-INFINITY, INT64_MAX})

/* top[o, j, k], j in [0, most): the largest of x[o, i, k] in descending order; element i has the index start + i. */
typedef void tshi_top_fn(tsh_device *device, tsh_dtype dtype, int64_t outer, int64_t n, int64_t inner, int64_t most,
                         int64_t start, const void *x, tshi_candidate *top);
/* top[o, j, k]: the largest of all lists[l, o, j, k]; each list is in descending order. */
typedef void tshi_top_merge_fn(tsh_device *device, int64_t count, int64_t outer, int64_t most, int64_t inner,
                               const tshi_candidate *lists, tshi_candidate *top);
/* dx[o, index[o, j, k] - start, k] += dy[o, j, k] for the indices in [start, start + n), which are distinct. */
typedef void tshi_top_backward_fn(tsh_device *device, tsh_dtype dtype, int64_t outer, int64_t n, int64_t inner,
                                  int64_t most, int64_t start, const int64_t *index, const void *dy, void *dx);

typedef struct tshi_top_ops {
    tshi_top_fn *find;
    tshi_top_merge_fn *merge;
    tshi_top_backward_fn *backward;
} tshi_top_ops;

/* --- norms over rows of cols -------------------------------------------------------------------------------------- */

/* y = (x - mean) rstd gamma + beta; with rms, y = x rstd gamma and mean is unused. Sums are accumulated in double.
 * mean (may be NULL with rms) and rstd, [rows], are saved for the backward. gamma and beta may be NULL (1 and 0). */
typedef void tshi_norm_fn(tsh_device *device, bool rms, int64_t rows, int64_t cols, double eps, const void *x,
                          const void *gamma, const void *beta, void *y, void *mean, void *rstd);
/* dx = beta dx + ...; dgamma and dbeta are added to; each of the three may be NULL. */
typedef void tshi_norm_backward_fn(tsh_device *device, bool rms, int64_t rows, int64_t cols, const void *x,
                                   const void *gamma, const void *mean, const void *rstd, const void *dy, double beta,
                                   void *dx, void *dgamma, void *dbeta);

typedef struct tshi_norm_ops {
    tshi_norm_fn *forward;
    tshi_norm_backward_fn *backward;
} tshi_norm_ops;

/* --- rotary positions and attention, by float dtype --------------------------------------------------------------- */

/* Rotary position embedding of x [batch, tokens, heads, dim]; the first `dims` elements of dim are rotated. */
typedef struct tshi_rotary {
    int64_t batch, tokens, heads, dim, dims;
    bool pairs;   /* element 2i is rotated with 2i + 1; else element i with i + dims / 2 */
    bool batched; /* positions are [batch, tokens], else [tokens] */
    double theta, factor, low, high, original;
    const int64_t *positions;
} tshi_rotary;

/* y = beta y + x rotated by the angle position * f, or by its negative with `back`; when beta is 0, y may alias x. f
 * is f' = theta^(-2i / dims) times (1 - s) / factor + s, where s = (original f' / 2 pi - low) / (high - low),
 * clamped to [0, 1]. */
typedef void tshi_rotary_fn(tsh_device *device, const tshi_rotary *r, bool back, const void *x, double beta, void *y);

/* q, y [batch, queries, heads, dim]; k, v [batch, room, kv_heads, dim], of whose `room` only the first `keys` are
 * read. Query i attends to the keys j < lengths[b] and, with `causal`, j <= i + keys - queries. Query head h reads
 * KV head (h + shift) / sharers: the local heads may begin in the middle of those that share a KV head. Dropout of
 * probabilities is keyed by the global index in [.., heads_whole, queries, keys], where the local part begins at
 * batch_start and head_start; probabilities that stay are scaled by 1 / (1 - dropout). */
typedef struct tshi_attention {
    int64_t batch, queries, keys, room, heads, kv_heads, dim;
    int64_t sharers, shift;
    bool causal;
    bool repeats; /* deterministic: the gradients have the same bits in every run */
    double scale;
    const int64_t *lengths; /* [batch], or NULL: all keys */
    double dropout;
    uint64_t seed, stream;
    int64_t batch_start, head_start, heads_whole;
} tshi_attention;

/* Size of `scratch` in elements of the accumulation dtype, for the forward or the backward. */
typedef int64_t tshi_attention_scratch_fn(const tshi_attention *a, bool backward);
/* y = softmax(scale q k^T) v; a query that attends to no key gives zeros. log_sums [batch, heads, queries], the
 * logarithms of the rows' sums of exponentials to a base of the device's choice, are saved for the backward; NULL:
 * not saved. */
typedef void tshi_attention_fn(tsh_device *device, const tshi_attention *a, const void *q, const void *k, const void *v,
                               void *y, void *log_sums, void *scratch);
/* Gradients of q, k and v: each is beta times its old value plus this call's gradient; a NULL one is skipped. */
typedef struct tshi_attention_grads {
    void *dq, *dk, *dv;
    double beta_q, beta_k, beta_v;
} tshi_attention_grads;
typedef void tshi_attention_backward_fn(tsh_device *device, const tshi_attention *a, const void *q, const void *k,
                                        const void *v, const void *y, const void *log_sums, const void *dy,
                                        const tshi_attention_grads *grads, void *scratch);

typedef struct tshi_attention_ops {
    tshi_rotary_fn *rotary;
    tshi_attention_scratch_fn *scratch;
    tshi_attention_fn *forward;
    tshi_attention_backward_fn *backward;
} tshi_attention_ops;

/* --- random numbers, float dtypes, keyed by the global element: a slice holds its part of the whole's ------------- */

/* Philox 4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC'11): ten rounds over a 128-bit
 * counter with the 64-bit seed as the key. Word i of stream s is word i % 4 of counter {i / 4 low, i / 4 high, s low, s
 * high}. A word's upper 24 bits are a uniform in [0, 1), exact in float32; two words are a normal by Box and Muller's
 * cosine, with a uniform in (0, 1] for the logarithm. */

/* The global elements of a local block [outer, n, inner]: local (o, i, k) is global element ((o + outer_start) *
 * global_n + i + start) * inner + k. */
typedef struct tshi_block {
    int64_t outer, n, inner;
    int64_t outer_start, start, global_n;
} tshi_block;

/* y = beta y + x * keep / (1 - p), keep = uniform(element) >= p; when beta is 0, y may alias x. The backward is the
 * same call on dy. */
typedef void tshi_dropout_fn(tsh_device *device, const tshi_block *block, uint64_t seed, uint64_t stream, double p,
                             const void *x, double beta, void *y);
/* to = low + (high - low) uniform(element), from word `element` of the stream. */
typedef void tshi_uniform_fn(tsh_device *device, const tshi_block *block, uint64_t seed, uint64_t stream, double low,
                             double high, void *to);
/* to = mean + std normal(element), from words 2 element and 2 element + 1 of the stream. */
typedef void tshi_normal_fn(tsh_device *device, const tshi_block *block, uint64_t seed, uint64_t stream, double mean,
                            double std, void *to);

typedef struct tshi_random_ops {
    tshi_dropout_fn *dropout;
    tshi_uniform_fn *uniform;
    tshi_normal_fn *normal;
} tshi_random_ops;

/* --- optimizers, in place: `count` updates of one dtype; states are of the dtype of statistics -------------------- */

/* Stochastic rounding, which keeps the mean. Element i of an update is global element first + i / run * stride + i %
 * run; the bits that rounding to bfloat16 cuts off are compared with the upper 16 bits of that element's word of the
 * stream. */
typedef struct tshi_rounding {
    uint64_t seed, stream;
    int64_t first, run, stride;
} tshi_rounding;

/* One parameter in an optimizer's step: p, its gradient and states, `n` elements each; the optimizer says which
 * states there are. The members after p are only for elements of 16 bits. */
typedef struct tshi_update {
    int64_t n;
    const void *grad;
    void *state[2];
    void *p;
    void *master;                  /* master weights: they are stepped, and p is rounded from them; or NULL */
    const tshi_rounding *rounding; /* of a bfloat16 p; NULL: round to nearest even */
    bool wide_grad;                /* grad has the accumulation dtype */
} tshi_update;

typedef struct tshi_sgd {
    double lr, momentum, dampening, weight_decay;
    bool nesterov;
    bool first; /* the first step: the momentum buffer is set to the gradient */
} tshi_sgd;

typedef struct tshi_adamw {
    double lr, beta1, beta2, eps, weight_decay;
    int64_t step; /* counted from 1 */
} tshi_adamw;

typedef struct tshi_lion {
    double lr, beta1, beta2, weight_decay;
} tshi_lion;

/* g = grad + weight_decay p; buffer = momentum buffer + (1 - dampening) g; p -= lr (nesterov ? g + momentum buffer :
 * buffer). buffer is state[0] and may be NULL when momentum is 0. */
typedef void tshi_sgd_fn(tsh_device *device, const tshi_sgd *s, int count, const tshi_update *updates);
/* Loshchilov and Hutter, "Decoupled weight decay regularization": p -= lr weight_decay p; m and v (state[0],
 * state[1]) are moving averages of g and g^2; p -= lr m^ / (sqrt(v^) + eps), where m^ and v^ are bias-corrected. */
typedef void tshi_adamw_fn(tsh_device *device, const tshi_adamw *a, int count, const tshi_update *updates);
/* Chen et al., "Symbolic discovery of optimization algorithms": p -= lr weight_decay p + lr sign(beta1 m + (1 - beta1)
 * g); then m (state[0]) = beta2 m + (1 - beta2) g. */
typedef void tshi_lion_fn(tsh_device *device, const tshi_lion *l, int count, const tshi_update *updates);
/* x *= scale min(1, max_norm / (norm + 1e-6)), norm = scale sqrt(*squares); x is left alone when norm is not finite.
 * max_norm may be infinite. */
typedef void tshi_clip_fn(tsh_device *device, int64_t n, const double *squares, double scale, double max_norm, void *x);

typedef struct tshi_optimizer_ops {
    tshi_sgd_fn *sgd;
    tshi_adamw_fn *adamw;
    tshi_lion_fn *lion;
    tshi_clip_fn *clip;
} tshi_optimizer_ops;

/* --- reductions across buffers, for collectives ------------------------------------------------------------------- */

typedef enum tshi_reduction {
    TSHI_SUM,
    TSHI_PROD,
    TSHI_MIN,
    TSHI_MAX,
    TSHI_AVG,
    TSHI_BAND,
    TSHI_BOR,
    TSHI_BXOR,
    TSHI_REDUCTION_COUNT
} tshi_reduction;

/* The most inputs, and the most outputs, that a GPU's tshi_reduce_fn takes. */
#define TSHI_REDUCE_MOST 64

/* out[i] = in[0][i] op in[1][i] op ... op in[count - 1][i], in that order, for every dtype: bfloat16 and float16
 * accumulate in float32 and round once; complex dtypes have SUM, AVG and PROD; integers wrap; MIN and MAX propagate
 * NaN. AVG is the sum divided by `count` once, and not for integers; BAND, BOR and BXOR are only for integers. The
 * result is written to each of out[0..outs). An output may be the same buffer as an input, but no two buffers may
 * overlap partially. */
typedef void tshi_reduce_fn(tsh_device *device, tsh_dtype dtype, tshi_reduction op, int64_t n, int count,
                            const void *const *in, int outs, void *const *out);

#endif
