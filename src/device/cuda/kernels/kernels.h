/* The launchers of the GPU's kernels; device/kernels.h says what each does. */
#ifndef TSHI_CUDA_KERNELS_H
#define TSHI_CUDA_KERNELS_H

#include "device/kernels.h"

#ifdef __cplusplus
extern "C" {
#endif

/* copy.cu */
tshi_fill_fn tshi_cuda_fill;
tshi_convert_fn tshi_cuda_convert;

/* elementwise.cu */
tshi_unary_fn tshi_cuda_unary;
tshi_unary_backward_fn tshi_cuda_unary_backward;
tshi_axpby_fn tshi_cuda_axpby;
tshi_mul_fn tshi_cuda_mul;
tshi_divide_fn tshi_cuda_divide;

/* sum.cu */
tshi_bias_fn tshi_cuda_bias;
tshi_bias_backward_fn tshi_cuda_bias_backward;
tshi_sum_fn tshi_cuda_sum;
tshi_sum_backward_fn tshi_cuda_sum_backward;
tshi_sum_squares_fn tshi_cuda_sum_squares;
tshi_clip_fn tshi_cuda_clip;

/* softmax.cu */
tshi_softmax_max_fn tshi_cuda_softmax_max;
tshi_softmax_sum_fn tshi_cuda_softmax_sum;
tshi_softmax_fn tshi_cuda_softmax;
tshi_softmax_dot_fn tshi_cuda_softmax_dot;
tshi_softmax_backward_fn tshi_cuda_softmax_backward;

/* cross_entropy.cu */
tshi_targets_check_fn tshi_cuda_targets_check;
tshi_cross_entropy_sums_fn tshi_cuda_cross_entropy_sums;
tshi_cross_entropy_shift_fn tshi_cuda_cross_entropy_shift;
tshi_cross_entropy_loss_fn tshi_cuda_cross_entropy_loss;
tshi_cross_entropy_backward_fn tshi_cuda_cross_entropy_backward;

/* embedding.cu */
tshi_ids_check_fn tshi_cuda_ids_check;
tshi_embedding_fn tshi_cuda_embedding;
tshi_embedding_backward_fn tshi_cuda_embedding_backward;

/* norm.cu */
tshi_norm_fn tshi_cuda_norm;
tshi_norm_backward_fn tshi_cuda_norm_backward;

/* random.cu */
tshi_dropout_fn tshi_cuda_dropout;
tshi_uniform_fn tshi_cuda_random_uniform;
tshi_normal_fn tshi_cuda_random_normal;

/* optimizer.cu */
tshi_sgd_fn tshi_cuda_sgd;
tshi_adamw_fn tshi_cuda_adamw;

/* buffers.cu */
tshi_reduce_fn tshi_cuda_reduce;

/* graph.cu */
void tshi_cuda_count(tsh_device *device, int64_t *n); /* *n += 1, in device memory */

/* clock.cu */
double tshi_cuda_matrix_rate(tsh_device *device, tsh_dtype dtype, double *clock);

#ifdef __cplusplus
}
#endif

#endif
