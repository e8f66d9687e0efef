/* A device is memory plus kernels behind one const table. cpu/ and cuda/ implement it.
 *
 * Kernels take plain pointers to `dtype` elements in device memory, trust their arguments (src/ops has checked
 * shapes and dtypes) and cannot fail unless the slot returns something. Sizes of zero are legal everywhere. They run in
 * the order of the calls; on a device with streams the host does not wait for them, and what goes wrong there is told
 * by `check`. "float dtypes" are those that the device computes with. Statistics (row maxima, sums, losses) are of the
 * dtype that sums of `dtype` are kept in (tshi_dtype_sum): float32 for bfloat16 and float16, else dtype itself.
 * Buffers may be the same only where a slot says "may alias".
 * A three-part index (outer, n, inner) is a row-major tensor seen around one dim of size n. */
#ifndef TSHI_DEVICE_H
#define TSHI_DEVICE_H

#include "base/base.h"
#include "tshard/device.h"

typedef enum tshi_unary {
    TSHI_GELU_ERF,
    TSHI_GELU_TANH,
    TSHI_RELU,
    TSHI_SILU,
    TSHI_UNARY_COUNT,
    TSHI_IDENTITY = TSHI_UNARY_COUNT /* where a slot takes a function or none */
} tshi_unary;
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

/* Which global elements a local block [outer, n, inner] holds, for values keyed by global index:
 * local (o, i, k) is global element ((o + outer_start) * global_n + i + start) * inner + k. */
typedef struct tshi_block {
    int64_t outer, n, inner;
    int64_t outer_start, start, global_n;
} tshi_block;

/* A vocabulary slice's view of cross entropy, over `rows` rows of `n` local classes from global class `start`
 * on, of `classes` in all. weight: [n] of this slice, or NULL for ones; weight_sum: W, the sum of all classes'
 * weights, one element in device memory, or NULL for `classes`. */
typedef struct tshi_classes {
    int64_t rows, n, start, classes;
    int64_t ignore_index;
    double smoothing;
    const void *weight, *weight_sum;
} tshi_classes;

typedef struct tshi_adamw {
    double lr, beta1, beta2, eps, weight_decay;
    int64_t step; /* from 1 */
} tshi_adamw;

typedef struct tshi_sgd {
    double lr, momentum, dampening, weight_decay;
    bool nesterov;
    bool first; /* the first step: the momentum buffer takes the gradient as it is */
} tshi_sgd;

/* One parameter of an optimizer's step: p, grad and `n` elements of each; state as the optimizer says. */
typedef struct tshi_update {
    int64_t n;
    const void *grad;
    void *state[2];
    void *p;
} tshi_update;

/* The most buffers that `reduce` takes of a GPU's. */
#define TSHI_REDUCE_MOST 64

/* Memory of a device, in words that devices of other ranks on this machine understand. */
typedef struct tshi_share {
    unsigned char
        handle[64]; /* the implementation's, of a piece of memory; zeros where other processes cannot map it */
    char gpu[16];   /* its place on the bus */
    uint64_t process;
    uint64_t base, born; /* where the piece lies in that process, and since when: no two are alike */
    uint64_t offset;     /* in the piece */
} tshi_share;

typedef struct tshi_device_ops {
    const char *name;
    tsh_device_kind kind;
    unsigned computes; /* bit d: dtype d is a float dtype here */

    /* --- memory --------------------------------------------------------------------------------------------------- */
    /* At least `size` bytes aligned to 64 (a unique pointer for 0), or NULL with the message set. */
    void *(*alloc)(tsh_device *device, size_t size);
    /* The same in the part of memory that the ranks' devices have in common, if any: `offset` bytes into it. Who
     * asks for the same sizes in the same order gets the same offsets. NULL, without a message, where there is no room.
     * NULL as the slot: never. */
    void *(*alloc_symmetric)(tsh_device *device, size_t size, size_t *offset);
    /* Takes back what these gave. NULL is fine. */
    void (*release)(tsh_device *device, void *pointer);
    void (*destroy)(tsh_device *device);
    /* tsh_device_describe's words. */
    void (*describe)(const tsh_device *device, char *text, size_t size);
    /* What kernels have reported so far and no check has told yet (an id out of range, a launch that failed): its
     * status and words. Does not wait for kernels that still run. */
    tsh_status (*check)(tsh_device *device);
    /* copy_to_host waits until `to` is filled; copy_from_host until `from` may be changed. */
    void (*copy)(tsh_device *device, size_t bytes, const void *from, void *to);
    void (*copy_to_host)(tsh_device *device, size_t bytes, const void *from, void *to);
    void (*copy_from_host)(tsh_device *device, size_t bytes, const void *from, void *to);
    /* Regions: `outer` runs of `bytes`, from_stride and to_stride bytes apart. */
    void (*copy_strided)(tsh_device *device, int64_t outer, size_t bytes, const void *from, size_t from_stride,
                         void *to, size_t to_stride);
    void (*zero)(tsh_device *device, size_t bytes, void *to);
    /* value cast to dtype (any dtype; the imaginary part is 0). */
    void (*fill)(tsh_device *device, tsh_dtype dtype, int64_t n, double value, void *to);
    /* Between any two real dtypes, rounding once, to nearest even. To integers: truncated, saturated, NaN gives 0.
     * Complex only to itself. */
    void (*convert)(tsh_device *device, int64_t n, tsh_dtype from_dtype, const void *from, tsh_dtype to_dtype,
                    void *to);

    /* --- the order of work ---------------------------------------------------------------------------------------- */
    /* Wait for all that is queued; then what check says. */
    tsh_status (*synchronize)(tsh_device *device);
    /* As in the public header; create gives NULL with the message set. */
    tsh_event *(*event_create)(tsh_device *device);
    tsh_status (*event_record)(tsh_event *event);
    tsh_status (*event_elapsed)(tsh_event *begin, tsh_event *end, double *seconds);
    void (*event_destroy)(tsh_event *event);
    /* FLOP/s that the device's matrix units could make for products of dtype at the clock (Hz) that they run at now,
     * which is measured; 0 where that is not known. Waits. */
    double (*matrix_rate)(tsh_device *device, tsh_dtype dtype, double *clock);

    /* --- other ranks' memory in place, on this machine; NULL on the CPU, whose ranks share a heap ----------------- */
    /* Say what `pointer`, memory of this device, is to others. That memory stays the device's until it is destroyed,
     * even when it is released. TSH_ERR_UNSUPPORTED where nobody can reach it. */
    tsh_status (*share)(tsh_device *device, const void *pointer, tshi_share *out);
    /* *out is what another device has shared, for this device's copies and reduce. Mapped at first, and kept mapped. */
    tsh_status (*reach)(tsh_device *device, const tshi_share *share, void **out);
    /* Let go of all that reach has mapped. Its owners are not to be destroyed before; abandon: unless they leave what
     * they have shared to the end of the process. */
    void (*unreach)(tsh_device *device);
    void (*abandon)(tsh_device *device);
    /* Wait for all that is queued, as others have to before they touch this device's memory; tells nothing of what
     * `check` tells. TSH_ERR_STATE while a graph is captured. */
    tsh_status (*settle)(tsh_device *device);

    /* --- reductions across buffers (collectives) ------------------------------------------------------------------ */
    /* out[i] = in[0][i] op in[1][i] op ... op in[count - 1][i], in that order, for every dtype (bfloat16 and
     * float16 accumulate in float32 and round once; complex takes SUM, AVG and PROD; integers wrap; MIN and MAX keep
     * NaNs). AVG is the sum divided by `count` once, not for integers; BAND, BOR and BXOR are for integers alone.
     * The result is written to each of the `outs` buffers out[0..outs). Any out may be the same buffer as any in, but
     * none may overlap another in part. A GPU takes up to TSHI_REDUCE_MOST of each. */
    void (*reduce)(tsh_device *device, tsh_dtype dtype, tshi_reduction op, int64_t n, int count, const void *const *in,
                   int outs, void *const *out);

    /* --- dense maths, float dtypes -------------------------------------------------------------------------------- */
    /* C = alpha op(A) op(B) + beta C, row-major, op(A) m x k, op(B) k x n; transposed A is stored k x m.
     * Leading dims are row lengths. k = 0 leaves beta C. TSH_ERR_OVERFLOW past the library's index type. */
    tsh_status (*gemm)(tsh_device *device, tsh_dtype dtype, bool transpose_a, bool transpose_b, int64_t m, int64_t n,
                       int64_t k, double alpha, const void *a, int64_t lda, const void *b, int64_t ldb, double beta,
                       void *c, int64_t ldc);
    /* Y = f(X W^T + b): x [m, k], w [n, k], b [n] or NULL, y [m, n]; f TSHI_UNARY_COUNT: none. `pre` [m, n] takes f's
     * argument, for its backward; NULL where nobody wants that, and without f. */
    tsh_status (*affine)(tsh_device *device, tsh_dtype dtype, int64_t m, int64_t n, int64_t k, const void *x,
                         const void *w, const void *b, tshi_unary f, void *pre, void *y);
    /* dW = beta dW + dY^T X; db = beta_b db + column sums of dY, unless db is NULL; beta_b 0 or 1 (0: db is not
     * read). */
    tsh_status (*affine_backward)(tsh_device *device, tsh_dtype dtype, int64_t m, int64_t n, int64_t k, const void *x,
                                  const void *dy, double beta, void *dw, double beta_b, void *db);
    /* y = f(x), may alias; dx = beta dx + f'(x) dy, beta 0 or 1 (0: dx is not read, and may alias x or dy). */
    void (*unary)(tsh_device *device, tshi_unary f, tsh_dtype dtype, int64_t n, const void *x, void *y);
    void (*unary_backward)(tsh_device *device, tshi_unary f, tsh_dtype dtype, int64_t n, const void *x, const void *dy,
                           double beta, void *dx);
    /* z = a x + b y; z may alias x or y. With b = 0, y is not read and may be NULL. */
    void (*axpby)(tsh_device *device, tsh_dtype dtype, int64_t n, double a, const void *x, double b, const void *y,
                  void *z);
    /* z = beta z + x y, beta 0 or 1 (0: z is not read); z may alias x or y when beta is 0. */
    void (*mul)(tsh_device *device, tsh_dtype dtype, int64_t n, const void *x, const void *y, double beta, void *z);
    /* z = x / y, may alias. */
    void (*divide)(tsh_device *device, tsh_dtype dtype, int64_t n, const void *x, const void *y, void *z);
    /* y[r, c] = x[r, c] + b[c], may alias (x NULL: y = b); db[c] += sum over r of dy[r, c]. */
    void (*bias)(tsh_device *device, tsh_dtype dtype, int64_t rows, int64_t cols, const void *x, const void *b,
                 void *y);
    void (*bias_backward)(tsh_device *device, tsh_dtype dtype, int64_t rows, int64_t cols, const void *dy, void *db);
    /* y[o, k] = scale * sum over i of x[o, i, k]; dx[o, i, k] += scale * dy[o, k]. */
    void (*sum)(tsh_device *device, tsh_dtype dtype, int64_t outer, int64_t n, int64_t inner, double scale,
                const void *x, void *y);
    void (*sum_backward)(tsh_device *device, tsh_dtype dtype, int64_t outer, int64_t n, int64_t inner, double scale,
                         const void *dy, void *dx);

    /* --- softmax over n, in three passes so that a collective may stand between them ------------------------------ */
    /* max[o, k] = max over i of x (-inf where n = 0). */
    void (*softmax_max)(tsh_device *device, tsh_dtype dtype, int64_t outer, int64_t n, int64_t inner, const void *x,
                        void *max);
    /* sum[o, k] = sum over i of exp(x - max). */
    void (*softmax_sum)(tsh_device *device, tsh_dtype dtype, int64_t outer, int64_t n, int64_t inner, const void *x,
                        const void *max, void *sum);
    /* y = exp(x - max) / sum, or with log: x - max - log(sum). */
    void (*softmax)(tsh_device *device, bool log, tsh_dtype dtype, int64_t outer, int64_t n, int64_t inner,
                    const void *x, const void *max, const void *sum, void *y);
    /* dot[o, k] = sum over i of dy y, or with log: sum of dy. */
    void (*softmax_dot)(tsh_device *device, bool log, tsh_dtype dtype, int64_t outer, int64_t n, int64_t inner,
                        const void *y, const void *dy, void *dot);
    /* dx += y (dy - dot), or with log: dy - exp(y) dot. */
    void (*softmax_backward)(tsh_device *device, bool log, tsh_dtype dtype, int64_t outer, int64_t n, int64_t inner,
                             const void *y, const void *dy, const void *dot, void *dx);

    /* --- cross entropy of a vocabulary slice ---------------------------------------------------------------------- */
    /* First index whose target is neither ignore_index nor in [0, classes), or -1; a device that would have to wait for
     * the answer gives -1, and `check` tells. */
    int64_t (*targets_check)(tsh_device *device, const tshi_classes *c, const int64_t *target);
    /* In one reading of the logits: max[rows], the slice's maxima, at least the lowest finite number; and sums[rows, 4]
     * = { sum of exp(l - max), l_target - max, w_target, sum of w (l - max) }; the middle two are 0 where the target
     * lies in another slice or is ignored, the last is 0 when smoothing is 0. */
    void (*cross_entropy_sums)(tsh_device *device, tsh_dtype dtype, const tshi_classes *c, const void *logits,
                               const int64_t *target, void *max, void *sums);
    /* Before the sums of several slices are added up: they are relative to the slice's own maxima and become relative
     * to max[rows]. c->weight_sum is of this slice here, NULL for c->n. */
    void (*cross_entropy_shift)(tsh_device *device, tsh_dtype dtype, const tshi_classes *c, const void *own,
                                const void *max, void *sums);
    /* From the added sums: loss[row] = (1 - a) w_t (log s - (l_t - max)) + a/classes (W log s - last sum), 0 for an
     * ignored target; a = smoothing. */
    void (*cross_entropy_loss)(tsh_device *device, tsh_dtype dtype, const tshi_classes *c, const int64_t *target,
                               const void *sums, void *loss);
    /* dlogits[row, j] = beta dlogits[row, j] + g_row * ((1 - a) w_t (p_j - [j = t]) + a/classes (W p_j - w_j)), the
     * second term 0 for an ignored target; beta 0 or 1 (0: dlogits is not read); g_row = dloss[row * dloss_stride]
     * (stride 0: one upstream gradient for all), over *divisor unless that is NULL. */
    void (*cross_entropy_backward)(tsh_device *device, tsh_dtype dtype, const tshi_classes *c, const void *logits,
                                   const int64_t *target, const void *max, const void *sums, const void *dloss,
                                   int64_t dloss_stride, const void *divisor, double beta, void *dlogits);

    /* --- the rest ------------------------------------------------------------------------------------------------- */
    /* First index whose id is outside [0, vocabulary), or -1; as targets_check. */
    int64_t (*ids_check)(tsh_device *device, int64_t n, const int64_t *ids, int64_t vocabulary);
    /* y[i, :] = table[ids[i] - start, :], zeros for ids outside [start, start + rows). table [rows, cols]. */
    void (*embedding)(tsh_device *device, tsh_dtype dtype, int64_t n, const int64_t *ids, int64_t start, int64_t rows,
                      int64_t cols, const void *table, void *y);
    /* dtable[ids[i] - start, :] += dy[i, :] for ids inside the slice that are not padding (-1: none), in order of i. */
    void (*embedding_backward)(tsh_device *device, tsh_dtype dtype, int64_t n, const int64_t *ids, int64_t start,
                               int64_t rows, int64_t cols, int64_t padding, const void *dy, void *dtable);
    /* y = (x - mean) rstd gamma + beta over rows of cols; with rms: y = x rstd gamma, mean unused.
     * Statistics in double; mean (may be NULL with rms), rstd: [rows] for the backward. gamma and beta may be NULL (1
     * and 0). */
    void (*norm)(tsh_device *device, bool rms, tsh_dtype dtype, int64_t rows, int64_t cols, double eps, const void *x,
                 const void *gamma, const void *beta, void *y, void *mean, void *rstd);
    /* dx = beta dx + ..., beta 0 or 1 (0: dx is not read); dgamma, dbeta += ; each may be NULL. */
    void (*norm_backward)(tsh_device *device, bool rms, tsh_dtype dtype, int64_t rows, int64_t cols, const void *x,
                          const void *gamma, const void *mean, const void *rstd, const void *dy, double beta, void *dx,
                          void *dgamma, void *dbeta);
    /* y = beta y + x * keep / (1 - p) (beta 0 or 1; beta 0 may alias), keep = uniform(element) >= p, element
     * numbers from the block. The backward is the same call on dy with beta 1. */
    void (*dropout)(tsh_device *device, tsh_dtype dtype, const tshi_block *block, uint64_t seed, uint64_t stream,
                    double p, const void *x, double beta, void *y);
    /* to = low + (high - low) uniform(element); to = mean + std normal(element). Float dtypes. A uniform takes word
     * `element` of the stream, a normal words 2 element and 2 element + 1. Any slice gets exactly its part of the
     * whole's values. */
    void (*random_uniform)(tsh_device *device, tsh_dtype dtype, const tshi_block *block, uint64_t seed, uint64_t stream,
                           double low, double high, void *to);
    void (*random_normal)(tsh_device *device, tsh_dtype dtype, const tshi_block *block, uint64_t seed, uint64_t stream,
                          double mean, double std, void *to);

    /* --- optimizers, in place: `count` updates of one dtype; states are of the dtype of statistics --------------- */
    /* g = grad + weight_decay p; buffer = momentum buffer + (1 - dampening) g; p -= lr (nesterov ? g + momentum
     * buffer : buffer). buffer: state[0], may be NULL when momentum is 0. */
    void (*sgd)(tsh_device *device, tsh_dtype dtype, const tshi_sgd *s, int count, const tshi_update *updates);
    /* Loshchilov and Hutter, "Decoupled weight decay regularization": p -= lr weight_decay p; m, v (state[0], state[1])
     * moving averages of g and g^2; p -= lr m^ / (sqrt(v^) + eps), hats for the bias corrections. */
    void (*adamw)(tsh_device *device, tsh_dtype dtype, const tshi_adamw *a, int count, const tshi_update *updates);
    /* *sum += sum of squares; *sum is in device memory. */
    void (*sum_squares)(tsh_device *device, tsh_dtype dtype, int64_t n, const void *x, double *sum);
    /* x *= max_norm / (norm + 1e-6) where that is below 1, norm = sqrt(*squares); nothing where norm is not finite. */
    void (*clip)(tsh_device *device, tsh_dtype dtype, int64_t n, const double *squares, double max_norm, void *x);
} tshi_device_ops;

/* What every event starts with. */
struct tsh_event {
    tsh_device *device;
};

/* What every device starts with; an implementation embeds it first. */
struct tsh_device {
    const tshi_device_ops *ops;
    tsh_allocator allocator;
    tsh_memory_stats stats;
    tshi_pool tensors, storages; /* the tensor room's structs */
};

/* A CPU device whose tensor memory is the `size` bytes at `heap` (page aligned, zero pages, borrowed: the caller
 * unmaps them after the device is destroyed). `threads` for the BLAS, at least 1. */
tsh_status tshi_device_create_cpu(const tsh_allocator *allocator, void *heap, size_t size, int threads,
                                  tsh_device **out);

/* A GPU: number local_rank modulo the GPUs there are. TSHARD_CUDA_MANAGED and TSHARD_TF32 (0 or 1) are read now.
 * TSH_ERR_UNSUPPORTED, in words, without a driver, a GPU or cuBLASLt, and in builds without CUDA. */
tsh_status tshi_device_create_cuda(const tsh_allocator *allocator, int local_rank, tsh_device **out);

static inline void tshi_device_destroy(tsh_device *device) {
    if (!device) return;
    tshi_pool_clear(&device->tensors, &device->allocator);
    tshi_pool_clear(&device->storages, &device->allocator);
    device->ops->destroy(device);
}

static inline bool tshi_device_computes(const tsh_device *device, tsh_dtype dtype) {
    return (unsigned)dtype < TSH_DTYPE_COUNT && device->ops->computes >> dtype & 1;
}

/* TSH_ERR_DTYPE when the device does not compute with dtype: "WHAT is bfloat16; the CPU computes with float32 and
 * float64". */
tsh_status tshi_check_computes(const tsh_device *device, tsh_dtype dtype, const char *what);

bool tshi_dtype_is_complex(tsh_dtype dtype); /* complex64, complex128 */
/* What sums of dtype are kept in: float32 for bfloat16 and float16, else dtype. */
tsh_dtype tshi_dtype_sum(tsh_dtype dtype);

#endif
