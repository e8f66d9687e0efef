/* The vector kernels of the CPU: the sources in isa/ are compiled once for each instruction set, and each has a table.
 * A device takes the table of the best instruction set that the CPU has, or the one that TSHARD_CPU_ISA names.
 *
 *   x86-64   base, avx2 (with FMA and F16C), avx512 (F, VL, DQ, BW), avx512vnni, avx512bf16
 *   arm64    base (NEON), bf16
 *   others   base: what the build's own flags allow */
#ifndef TSHI_CPU_ISA_H
#define TSHI_CPU_ISA_H

#include "device/kernels.h"

/* y = alpha x W^T + beta y; with beta = 0, y is not read. x [m, k], y [m, n], W [n, k], whose rows are ldx, ldy and ldw
 * elements apart. */
typedef struct tshi_few_rows {
    int64_t m, n, k;
    float alpha;
    const void *x; /* float32; bfloat16 with narrow_x */
    int64_t ldx;
    const void *w; /* in the call's dtype: float32, bfloat16 or float16 */
    int64_t ldw;
    float beta;
    float *y;
    int64_t ldy;
    bool narrow_x; /* x is bfloat16; needs tshi_isa.multiplies_bfloat16 */
} tshi_few_rows;
/* Up to this many rows of x, this kernel beats a library on one thread. */
#define TSHI_FEW_ROWS 8
typedef void tshi_few_rows_fn(tsh_dtype dtype, const tshi_few_rows *p);

/* Conversions of bfloat16 or float16 to float32, and back with rounding to nearest even. */
typedef void tshi_widen_fn(tsh_dtype from_dtype, int64_t n, const void *from, float *to);
typedef void tshi_narrow_fn(tsh_dtype to_dtype, int64_t n, const float *from, void *to);

/* Kernels that compute a part of a slot's work, so that threads share it: columns [from, end) of rows `cols` long, or
 * parts [from, end) of all. What a part computes has the same bits whatever the other parts are. */
typedef struct tshi_isa_sum {
    tshi_over_dim_fn *over_dim;
    tshi_over_dim_backward_fn *over_dim_backward;
    tshi_squares_fn *squares;
    /* to[c] = scale * sum over r of x[r, c], or += with `add`. wide: db[c] += that sum, in the accumulation dtype. */
    void (*columns)(int64_t rows, int64_t cols, int64_t from, int64_t end, double scale, const void *x, bool add,
                    void *to);
    void (*columns_wide)(int64_t rows, int64_t cols, int64_t from, int64_t end, const void *dy, void *db);
    /* y[r, c] = beta y[r, c] + sum over the rows up to r, or with reverse from r on, of x[., c]. */
    void (*cumulative)(bool reverse, int64_t rows, int64_t cols, int64_t from, int64_t end, const void *x, double beta,
                       void *y);
} tshi_isa_sum;

typedef struct tshi_isa_norm {
    tshi_norm_fn *forward;
    tshi_norm_backward_fn *backward;
    /* Adds to dgamma and dbeta as `backward` does. */
    void (*parameters)(bool rms, int64_t rows, int64_t cols, int64_t from, int64_t end, const void *x, const void *mean,
                       const void *rstd, const void *dy, void *dgamma, void *dbeta);
} tshi_isa_norm;

/* Columns [from, end) of an embedding's gradient; the rest is as in the kernel. */
typedef struct tshi_embedding_part {
    int64_t start, rows, cols, padding;
    int64_t from, end;
} tshi_embedding_part;
typedef struct tshi_isa_embedding {
    tshi_embedding_fn *forward;
    void (*backward)(const tshi_embedding_part *e, int64_t n, const int64_t *ids, const void *dy, void *dtable);
    tshi_embedding_bound_fn *bound;
} tshi_isa_embedding;

/* Part i is KV head i % kv_heads of batch i / kv_heads. `scratch` is that of one thread. */
typedef struct tshi_isa_attention {
    tshi_rotary_fn *rotary;
    int64_t (*scratch)(const tshi_attention *a, bool backward);
    void (*forward)(const tshi_attention *a, int64_t from, int64_t end, const void *q, const void *k, const void *v,
                    void *y, void *log_sums, void *scratch);
    void (*backward)(const tshi_attention *a, int64_t from, int64_t end, const void *q, const void *k, const void *v,
                     const void *y, const void *log_sums, const void *dy, const tshi_attention_grads *grads,
                     void *scratch);
} tshi_isa_attention;

/* The kernels of quantized weights: rows [from, end) of x, columns [from, end) of y, rows [from, end) of w; the rest is
 * as in the kernels. */
typedef struct tshi_quantized_product {
    tshi_quant format;
    int64_t m, n, groups;
    const tshi_group *x;
    const void *w;
    float *y;
} tshi_quantized_product;
typedef struct tshi_isa_quantized {
    void (*activations)(int64_t cols, int64_t from, int64_t end, const float *x, tshi_group *to);
    void (*multiply)(const tshi_quantized_product *p, int64_t from, int64_t end);
    void (*dequantize)(tshi_quant format, int64_t cols, int64_t from, int64_t end, const void *w, float *to);
} tshi_isa_quantized;

typedef struct tshi_isa {
    const char *name;         /* "avx2" */
    int vector_bytes;         /* of explicit vectors */
    bool multiplies_bfloat16; /* has dot products of bfloat16 that accumulate in float32 */
    tshi_widen_fn *widen;
    tshi_narrow_fn *narrow;
    tshi_few_rows_fn *few_rows;
    tshi_fill_fn *fill;
    tshi_convert_fn *convert;
    tshi_reduce_fn *reduce;
    const tshi_top_ops *top;
    const tshi_isa_quantized *quantized;
    /* by dtype */
    const tshi_elementwise_ops *elementwise;
    const tshi_isa_sum *sum;
    const tshi_loss_ops *loss;
    const tshi_softmax_ops *softmax;
    const tshi_cross_entropy_ops *cross_entropy;
    const tshi_isa_embedding *embedding;
    const tshi_isa_norm *norm;
    const tshi_isa_attention *attention;
    const tshi_random_ops *random;
    const tshi_optimizer_ops *optimizer;
} tshi_isa;

/* The instruction set that TSHARD_CPU_ISA names, or the best one that this CPU has. TSH_ERR_UNSUPPORTED where the CPU
 * or this build lacks the one that is named. */
tsh_status tshi_isa_choose(const tshi_isa **out);

#endif
