/* The kernels: what their arguments are, a function type for each, which every device implements, and the tables that
 * hold them. device/kernels.def lists them and says what each computes. Kernels that compute have no dtype argument: a
 * device has a table of them for each float dtype that it computes with.
 *
 * A kernel takes plain pointers to elements of the dtype in the device's memory and trusts its arguments, because
 * shape rules have checked them. A kernel that returns void cannot fail; sizes of zero are legal. Kernels run in
 * call order; on a device with streams they do not make the host wait, and failures are reported through
 * tshi_device_ops.check. Statistics (maxima, sums, losses) are of tshi_dtype_sum(dtype). Buffers may alias only
 * where a kernel's comment says so. `beta` is 0 (the output is overwritten) or 1 (the output is added to). (outer,
 * n, inner) is a row-major tensor viewed around one dim of size n. */
#ifndef TSHI_KERNELS_H
#define TSHI_KERNELS_H

#include "device/quant.h"
#include "tshard/device.h"

bool tshi_dtype_is_complex(tsh_dtype dtype); /* complex64, complex128 */
/* The accumulation dtype: float32 for bfloat16 and float16, else dtype itself. */
TSHI_TOOLS tsh_dtype tshi_dtype_sum(tsh_dtype dtype);

/* --- copies, fills, conversions ----------------------------------------------------------------------------------- */

/* A permutation of dims: `to` is row-major with these sizes, and its piece (i, j, ...) is read at i stride[0] + j
 * stride[1] + ... pieces into `from`. A piece is the innermost contiguous bytes that stay together. */
#define TSHI_PERMUTED_DIMS 8
typedef struct tshi_permutation {
    size_t piece;
    int ndim;
    int64_t size[TSHI_PERMUTED_DIMS], stride[TSHI_PERMUTED_DIMS];
} tshi_permutation;

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
    TSHI_ABS,
    TSHI_SCALE_SHIFT, /* p[0] x + p[1] */
    TSHI_UNARY_COUNT
} tshi_unary;

/* The functions from TSHI_STEP on are 0 where x or y is NaN; only TSHI_NE is 1 there. */
typedef enum tshi_binary {
    TSHI_ADD,
    TSHI_SUB,
    TSHI_MUL,
    TSHI_DIV,
    TSHI_MAXIMUM, /* NaN where x or y is */
    TSHI_MINIMUM,
    TSHI_STEP, /* 1 where x > y, 1/2 where x = y, else 0 */
    TSHI_EQ,   /* from here on, 1 where the comparison holds, else 0; in the order of tsh_comparison */
    TSHI_NE,
    TSHI_LT,
    TSHI_LE,
    TSHI_GT,
    TSHI_GE,
    TSHI_BINARY_COUNT
} tshi_binary;

#define TSHI_BROADCAST_RUNS 8

/* Operands broadcast to a row-major output of `runs` dims, dim 0 the innermost: dim k has n[k] elements, and x[k]
 * and y[k] are the operands' strides in elements; a stride of 0 repeats a dim. In dim 0 one stride is 1 and the
 * other is 0 or 1. */
typedef struct tshi_broadcast {
    int runs;
    int64_t n[TSHI_BROADCAST_RUNS], x[TSHI_BROADCAST_RUNS], y[TSHI_BROADCAST_RUNS];
} tshi_broadcast;

/* --- matrix products, float dtypes -------------------------------------------------------------------------------- */

/* TSH_ERR_OVERFLOW where a size of a product passes 2^31 - 1, the limit of `library`. */
tsh_status tshi_check_product(const char *library, int64_t m, int64_t n, int64_t k, int64_t lda, int64_t ldb,
                              int64_t ldc);

/* --- products with quantized weights ------------------------------------------------------------------------------ */

/* The weights in a group of Q8_0 and Q4_0, and the activations in a tshi_group. */
#define TSHI_GROUP 32

/* Activations quantized to 8 bits: x = d q, nearly. The last group of a row is filled up with zeros. */
typedef struct tshi_group {
    float d;
    int8_t q[TSHI_GROUP];
} tshi_group;

/* How many groups hold n weights of a row. */
static inline int64_t tshi_groups(int64_t n) {
    return n / TSHI_GROUP + (n % TSHI_GROUP != 0);
}

/* --- cross entropy of a vocabulary slice -------------------------------------------------------------------------- */

/* The part of a row's loss that the loss kernel gives; COUNT: 1 for a row that is not ignored. */
typedef enum tshi_loss_part { TSHI_LOSS_WHOLE = 0, TSHI_LOSS_OF_Z, TSHI_LOSS_COUNT } tshi_loss_part;

/* Logits of `rows` rows and `n` local classes, which are the global classes from `start` on, of `classes` in all.
 * weight: [n], of the local classes, or NULL for ones; weight_sum: W, the sum of the weights of all classes, one
 * element in device memory, or NULL for `classes`. */
typedef struct tshi_classes {
    int64_t rows, n, start, classes;
    int64_t ignore_index;
    double smoothing;
    const void *weight, *weight_sum;
    /* The z-loss, z lse^2 with lse = log sum exp l, of rows that are not ignored; max [rows] only if it is not 0. Its
     * gradient is divided by *z_divisor, in device memory, unless that is NULL. */
    double z_loss;
    const void *max, *z_divisor;
    tshi_loss_part part;
} tshi_classes;

/* --- losses of elements ------------------------------------------------------------------------------------------- */

typedef enum tshi_loss {
    TSHI_SQUARED_ERROR,        /* (x - t)^2 */
    TSHI_BINARY_CROSS_ENTROPY, /* (1 - t) x + (1 + (w - 1) t) log(1 + e^-x) */
    TSHI_SMOOTH_ERROR          /* d = |x - t|: d^2 / (2 beta) where d < beta, else d - beta / 2 */
} tshi_loss;

/* n predictions x and targets t; the weight w of element i is weight[i % weights], or 1 where weight is NULL. */
typedef struct tshi_loss_inputs {
    tshi_loss f;
    double beta;
    int64_t n, weights;
    const void *x, *target, *weight;
} tshi_loss_inputs;

/* --- the largest elements, of any float dtype --------------------------------------------------------------------- */

/* An element and its global index. NaN compares larger than any number; of equal values the lower index comes first. */
typedef struct tshi_candidate {
    double value;
    int64_t index;
} tshi_candidate;

/* Padding of short lists: compares after every element. */
#define TSHI_NO_CANDIDATE ((tshi_candidate){-INFINITY, INT64_MAX})

/* --- rotary positions and attention, by float dtype --------------------------------------------------------------- */

/* Rotary position embedding of x [batch, tokens, heads, dim]; the first `dims` elements of dim are rotated. */
typedef struct tshi_rotary {
    int64_t batch, tokens, heads, dim, dims;
    bool pairs;   /* element 2i is rotated with 2i + 1; else element i with i + dims / 2 */
    bool batched; /* positions are [batch, tokens], else [tokens] */
    double theta, factor, low, high, original;
    const int64_t *positions;
} tshi_rotary;

/* Positions and documents of queries and keys; arrays come in pairs. Without positions, they are the indices that a
 * causal mask compares, else all keys' are before all queries'; without documents, there is one. */
typedef struct tshi_tokens {
    const int64_t *query_position, *key_position, *query_document, *key_document;
    bool batched; /* arrays are [batch, queries] and [batch, keys], else [queries] and [keys] */
} tshi_tokens;

/* q, y [batch, queries, heads, dim]; k, v [batch, capacity, kv_heads, dim], of whose `capacity` only the first `keys`
 * are read. Query i attends to the keys j < lengths[b] and, with `causal`, j <= i + keys - queries. Query head h reads
 * KV head (h + shift) / sharers: the local heads may begin in the middle of those that share a KV head. Dropout of
 * probabilities is keyed by the global index in [.., heads_whole, queries, keys], where the local part begins at
 * batch_start and head_start; probabilities that stay are scaled by 1 / (1 - dropout). Where ranks split the queries,
 * indices count the queries of the ranks before and after this one too.
 *
 * With `tokens`, a query attends to the keys of its document whose position is not after its own, and `lengths` is
 * NULL. */
typedef struct tshi_attention {
    int64_t batch, queries, keys, capacity, heads, kv_heads, dim;
    int64_t queries_before, queries_after;
    int64_t sharers, shift;
    bool causal;
    tshi_tokens tokens;
    bool repeats; /* deterministic: the gradients have the same bits in every run */
    double scale;
    const int64_t *lengths; /* [batch], or NULL: all keys */
    double dropout;
    uint64_t seed, stream;
    int64_t batch_start, head_start, heads_whole;
} tshi_attention;

/* Gradients of q, k and v: each is beta times its old value plus this call's gradient; a NULL one is skipped. */
typedef struct tshi_attention_grads {
    void *dq, *dk, *dv;
    double beta_q, beta_k, beta_v;
} tshi_attention_grads;

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
#define TSHI_REDUCE_MAX 64

/* --- function types and tables ------------------------------------------------------------------------------------ */

#define SLOT(table, slot, name, returns, parameters) typedef returns tshi_##name##_fn parameters;
#define LONE(name, returns, parameters)              typedef returns tshi_##name##_fn parameters;
#include "device/kernels.def"

/* tshi_copy_ops, tshi_elementwise_ops, ... */
#define TABLE(table)                 typedef struct tshi_##table##_ops {
#define SLOT(table, slot, name, ...) tshi_##name##_fn *slot;
#define END(table)                                                                                                     \
    }                                                                                                                  \
    tshi_##table##_ops;
#include "device/kernels.def"

#endif
