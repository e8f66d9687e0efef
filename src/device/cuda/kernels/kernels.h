/* The launchers of the GPU's kernels; see device/kernels.h. */
#ifndef TSHI_CUDA_KERNELS_H
#define TSHI_CUDA_KERNELS_H

#include "device/kernels.h"

#ifdef __cplusplus
extern "C" {
#endif

/* copy.cu */
tshi_fill_fn tshi_cuda_fill;
tshi_convert_fn tshi_cuda_convert;

/* permute.cu */
tshi_permute_fn tshi_cuda_permute;

/* top.cu */
tshi_top_fn tshi_cuda_top;
tshi_top_merge_fn tshi_cuda_top_merge;
tshi_top_backward_fn tshi_cuda_top_backward;

/* quantized.cu */
tshi_quantize_activations_fn tshi_cuda_quantize_activations;
tshi_quantized_multiply_fn tshi_cuda_quantized_multiply;
tshi_dequantize_fn tshi_cuda_dequantize;

/* check.cu */
tshi_targets_check_fn tshi_cuda_targets_check;
tshi_ids_check_fn tshi_cuda_ids_check;
tshi_row_numbers_fn tshi_cuda_row_numbers;

/* Tables by dtype, each in the file of its name. */
extern const tshi_elementwise_ops tshi_cuda_elementwise[TSH_DTYPE_COUNT];
extern const tshi_sum_ops tshi_cuda_sum[TSH_DTYPE_COUNT];
extern const tshi_loss_ops tshi_cuda_loss[TSH_DTYPE_COUNT];
extern const tshi_softmax_ops tshi_cuda_softmax[TSH_DTYPE_COUNT];
extern const tshi_cross_entropy_ops tshi_cuda_cross_entropy[TSH_DTYPE_COUNT];
extern const tshi_embedding_ops tshi_cuda_embedding[TSH_DTYPE_COUNT];
extern const tshi_norm_ops tshi_cuda_norm[TSH_DTYPE_COUNT];
extern const tshi_attention_ops tshi_cuda_attention[TSH_DTYPE_COUNT];
extern const tshi_random_ops tshi_cuda_random[TSH_DTYPE_COUNT];
extern const tshi_optimizer_ops tshi_cuda_optimizer[TSH_DTYPE_COUNT];

/* buffers.cu */
tshi_reduce_fn tshi_cuda_reduce;

/* counters.cu */
void tshi_cuda_count(tsh_device *device, int64_t *n); /* *n += 1, in device memory */
double tshi_cuda_matrix_rate(tsh_device *device, tsh_dtype dtype, double *clock);

#ifdef __cplusplus
}
#endif

#endif
