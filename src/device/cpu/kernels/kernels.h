/* The CPU's kernels; device/kernels.h says what each does. Only matrix products use the device argument, for its
 * threads and for scratch memory; for all other kernels it may be NULL. */
#ifndef TSHI_CPU_KERNELS_H
#define TSHI_CPU_KERNELS_H

#include "device/kernels.h"

/* copy.c */
tshi_copy_fn tshi_cpu_copy;
tshi_copy_strided_fn tshi_cpu_copy_strided;
tshi_zero_fn tshi_cpu_zero;

/* permute.c */
tshi_permute_fn tshi_cpu_permute;

/* convert.c */
tshi_fill_fn tshi_cpu_fill;
tshi_convert_fn tshi_cpu_convert;
/* Fills with `n` copies of an element of `size` bytes by doubling memcpy, up to `most` bytes at a time. */
void tshi_cpu_repeat(size_t size, const void *element, int64_t n, size_t most, void *to);
/* Conversions of bfloat16 or float16 to float32, and back with rounding to nearest even. */
void tshi_cpu_widen(tsh_dtype half, int64_t n, const void *from, float *to);
void tshi_cpu_narrow(tsh_dtype half, int64_t n, const float *from, void *to);

/* gemm.c */
tshi_gemm_fn tshi_cpu_gemm;
tshi_affine_fn tshi_cpu_affine;
tshi_affine_backward_fn tshi_cpu_affine_backward;
tshi_gemm_unary_backward_fn tshi_cpu_gemm_unary_backward;
/* Bytes of scratch memory of a product; m, n and k are at least 1. */
size_t tshi_cpu_product_scratch(const tsh_device *device, tsh_dtype dtype, bool transpose_a, bool transpose_b,
                                int64_t m, int64_t n, int64_t k);
void tshi_cpu_product_threads(int threads);
/* Writes the names of the matrix product libraries in use. */
void tshi_cpu_product_libraries(char *text, size_t size);

/* top.c */
tshi_top_fn tshi_cpu_top;
tshi_top_merge_fn tshi_cpu_top_merge;
tshi_top_backward_fn tshi_cpu_top_backward;

/* few_rows.c */
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
    bool narrow_x; /* x is bfloat16; needs tshi_cpu_multiplies_bfloat16 */
} tshi_few_rows;
/* Up to this many rows of x, this kernel beats a library on one thread. */
#define TSHI_FEW_ROWS 8
void tshi_cpu_few_rows(tsh_dtype dtype, const tshi_few_rows *p);
/* True on a CPU with dot products of bfloat16 that accumulate in float32. */
bool tshi_cpu_multiplies_bfloat16(void);

/* check.c */
tshi_targets_check_fn tshi_cpu_targets_check;
tshi_ids_check_fn tshi_cpu_ids_check;

/* Tables by dtype, each in the source file of its name. */
extern const tshi_elementwise_ops tshi_cpu_elementwise[TSH_DTYPE_COUNT];
extern const tshi_sum_ops tshi_cpu_sum[TSH_DTYPE_COUNT];
extern const tshi_loss_ops tshi_cpu_loss[TSH_DTYPE_COUNT];
extern const tshi_softmax_ops tshi_cpu_softmax[TSH_DTYPE_COUNT];
extern const tshi_cross_entropy_ops tshi_cpu_cross_entropy[TSH_DTYPE_COUNT];
extern const tshi_embedding_ops tshi_cpu_embedding[TSH_DTYPE_COUNT];
extern const tshi_norm_ops tshi_cpu_norm[TSH_DTYPE_COUNT];
extern const tshi_attention_ops tshi_cpu_attention[TSH_DTYPE_COUNT];
extern const tshi_random_ops tshi_cpu_random[TSH_DTYPE_COUNT];
extern const tshi_optimizer_ops tshi_cpu_optimizer[TSH_DTYPE_COUNT];

/* random.c */
/* Writes the random words of elements [element, element + n) of a stream. */
void tshi_cpu_words(uint64_t seed, uint64_t stream, int64_t element, int64_t n, uint32_t *words);

/* reduce.c */
tshi_reduce_fn tshi_cpu_reduce;

#endif
