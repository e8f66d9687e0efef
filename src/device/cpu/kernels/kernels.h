/* The CPU's kernels; device/kernels.h says what each does. None looks at the device, which may be NULL. */
#ifndef TSHI_CPU_KERNELS_H
#define TSHI_CPU_KERNELS_H

#include "device/kernels.h"

/* copy.c */
tshi_copy_fn tshi_cpu_copy;
tshi_copy_strided_fn tshi_cpu_copy_strided;
tshi_zero_fn tshi_cpu_zero;

/* convert.c */
tshi_fill_fn tshi_cpu_fill;
tshi_convert_fn tshi_cpu_convert;
/* bfloat16 or float16 to float32 and back, rounding to nearest even. */
void tshi_cpu_widen(tsh_dtype half, int64_t n, const uint16_t *from, float *to);
void tshi_cpu_narrow(tsh_dtype half, int64_t n, const float *from, uint16_t *to);

/* gemm.c */
tshi_gemm_fn tshi_cpu_gemm;
tshi_affine_fn tshi_cpu_affine;
tshi_affine_backward_fn tshi_cpu_affine_backward;
void tshi_cpu_product_threads(int threads);
/* The names of the libraries that multiply. */
void tshi_cpu_product_libraries(char *text, size_t size);

/* elementwise.c */
tshi_unary_fn tshi_cpu_unary;
tshi_unary_backward_fn tshi_cpu_unary_backward;
tshi_axpby_fn tshi_cpu_axpby;
tshi_mul_fn tshi_cpu_mul;
tshi_divide_fn tshi_cpu_divide;

/* sum.c */
tshi_bias_fn tshi_cpu_bias;
tshi_bias_backward_fn tshi_cpu_bias_backward;
tshi_sum_fn tshi_cpu_sum;
tshi_sum_backward_fn tshi_cpu_sum_backward;
tshi_sum_squares_fn tshi_cpu_sum_squares;

/* softmax.c */
tshi_softmax_max_fn tshi_cpu_softmax_max;
tshi_softmax_sum_fn tshi_cpu_softmax_sum;
tshi_softmax_fn tshi_cpu_softmax;
tshi_softmax_dot_fn tshi_cpu_softmax_dot;
tshi_softmax_backward_fn tshi_cpu_softmax_backward;

/* cross_entropy.c */
tshi_targets_check_fn tshi_cpu_targets_check;
tshi_cross_entropy_sums_fn tshi_cpu_cross_entropy_sums;
tshi_cross_entropy_shift_fn tshi_cpu_cross_entropy_shift;
tshi_cross_entropy_loss_fn tshi_cpu_cross_entropy_loss;
tshi_cross_entropy_backward_fn tshi_cpu_cross_entropy_backward;

/* embedding.c */
tshi_ids_check_fn tshi_cpu_ids_check;
tshi_embedding_fn tshi_cpu_embedding;
tshi_embedding_backward_fn tshi_cpu_embedding_backward;

/* norm.c */
tshi_norm_fn tshi_cpu_norm;
tshi_norm_backward_fn tshi_cpu_norm_backward;

/* random.c */
tshi_dropout_fn tshi_cpu_dropout;
tshi_uniform_fn tshi_cpu_random_uniform;
tshi_normal_fn tshi_cpu_random_normal;

/* optimizer.c */
tshi_sgd_fn tshi_cpu_sgd;
tshi_adamw_fn tshi_cpu_adamw;
tshi_clip_fn tshi_cpu_clip;

/* reduce.c */
tshi_reduce_fn tshi_cpu_reduce;

#endif
