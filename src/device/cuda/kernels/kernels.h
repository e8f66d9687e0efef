/* The GPU's kernels, as their launchers; what each does stands at its slot in tshi_device_ops. */
#ifndef TSHI_CUDA_KERNELS_H
#define TSHI_CUDA_KERNELS_H

#include "device/device.h"

#ifdef __cplusplus
extern "C" {
#endif

/* memory.cu */
void tshi_cuda_fill(tsh_device *device, tsh_dtype dtype, int64_t n, double value, void *to);
void tshi_cuda_convert(tsh_device *device, int64_t n, tsh_dtype from_dtype, const void *from, tsh_dtype to_dtype,
                       void *to);

/* buffers.cu */
void tshi_cuda_reduce(tsh_device *device, tsh_dtype dtype, tshi_reduction op, int64_t n, int count,
                      const void *const *in, int outs, void *const *out);

/* elementwise.cu */
void tshi_cuda_unary(tsh_device *device, tshi_unary f, tsh_dtype dtype, int64_t n, const void *x, void *y);
void tshi_cuda_unary_backward(tsh_device *device, tshi_unary f, tsh_dtype dtype, int64_t n, const void *x,
                              const void *dy, double beta, void *dx);
void tshi_cuda_axpby(tsh_device *device, tsh_dtype dtype, int64_t n, double a, const void *x, double b, const void *y,
                     void *z);
void tshi_cuda_mul(tsh_device *device, tsh_dtype dtype, int64_t n, const void *x, const void *y, double beta, void *z);
void tshi_cuda_divide(tsh_device *device, tsh_dtype dtype, int64_t n, const void *x, const void *y, void *z);

/* sum.cu */
void tshi_cuda_bias(tsh_device *device, tsh_dtype dtype, int64_t rows, int64_t cols, const void *x, const void *b,
                    void *y);
void tshi_cuda_bias_backward(tsh_device *device, tsh_dtype dtype, int64_t rows, int64_t cols, const void *dy, void *db);
void tshi_cuda_sum(tsh_device *device, tsh_dtype dtype, int64_t outer, int64_t n, int64_t inner, double scale,
                   const void *x, void *y);
void tshi_cuda_sum_backward(tsh_device *device, tsh_dtype dtype, int64_t outer, int64_t n, int64_t inner, double scale,
                            const void *dy, void *dx);
void tshi_cuda_sum_squares(tsh_device *device, tsh_dtype dtype, int64_t n, const void *x, double *sum);
void tshi_cuda_clip(tsh_device *device, tsh_dtype dtype, int64_t n, const double *squares, double max_norm, void *x);

/* softmax.cu */
void tshi_cuda_softmax_max(tsh_device *device, tsh_dtype dtype, int64_t outer, int64_t n, int64_t inner, const void *x,
                           void *max);
void tshi_cuda_softmax_sum(tsh_device *device, tsh_dtype dtype, int64_t outer, int64_t n, int64_t inner, const void *x,
                           const void *max, void *sum);
void tshi_cuda_softmax(tsh_device *device, bool log, tsh_dtype dtype, int64_t outer, int64_t n, int64_t inner,
                       const void *x, const void *max, const void *sum, void *y);
void tshi_cuda_softmax_dot(tsh_device *device, bool log, tsh_dtype dtype, int64_t outer, int64_t n, int64_t inner,
                           const void *y, const void *dy, void *dot);
void tshi_cuda_softmax_backward(tsh_device *device, bool log, tsh_dtype dtype, int64_t outer, int64_t n, int64_t inner,
                                const void *y, const void *dy, const void *dot, void *dx);

/* cross_entropy.cu */
int64_t tshi_cuda_targets_check(tsh_device *device, const tshi_classes *c, const int64_t *target);
void tshi_cuda_cross_entropy_sums(tsh_device *device, tsh_dtype dtype, const tshi_classes *c, const void *logits,
                                  const int64_t *target, void *max, void *sums);
void tshi_cuda_cross_entropy_shift(tsh_device *device, tsh_dtype dtype, const tshi_classes *c, const void *own,
                                   const void *max, void *sums);
void tshi_cuda_cross_entropy_loss(tsh_device *device, tsh_dtype dtype, const tshi_classes *c, const int64_t *target,
                                  const void *sums, void *loss);
void tshi_cuda_cross_entropy_backward(tsh_device *device, tsh_dtype dtype, const tshi_classes *c, const void *logits,
                                      const int64_t *target, const void *max, const void *sums, const void *dloss,
                                      int64_t dloss_stride, const void *divisor, double beta, void *dlogits);

/* embedding.cu */
int64_t tshi_cuda_ids_check(tsh_device *device, int64_t n, const int64_t *ids, int64_t vocabulary);
void tshi_cuda_embedding(tsh_device *device, tsh_dtype dtype, int64_t n, const int64_t *ids, int64_t start,
                         int64_t rows, int64_t cols, const void *table, void *y);
void tshi_cuda_embedding_backward(tsh_device *device, tsh_dtype dtype, int64_t n, const int64_t *ids, int64_t start,
                                  int64_t rows, int64_t cols, int64_t padding, const void *dy, void *dtable);

/* norm.cu */
void tshi_cuda_norm(tsh_device *device, bool rms, tsh_dtype dtype, int64_t rows, int64_t cols, double eps,
                    const void *x, const void *gamma, const void *beta, void *y, void *mean, void *rstd);
void tshi_cuda_norm_backward(tsh_device *device, bool rms, tsh_dtype dtype, int64_t rows, int64_t cols, const void *x,
                             const void *gamma, const void *mean, const void *rstd, const void *dy, double beta,
                             void *dx, void *dgamma, void *dbeta);

/* random.cu */
void tshi_cuda_dropout(tsh_device *device, tsh_dtype dtype, const tshi_block *block, uint64_t seed, uint64_t stream,
                       double p, const void *x, double beta, void *y);
void tshi_cuda_random_uniform(tsh_device *device, tsh_dtype dtype, const tshi_block *block, uint64_t seed,
                              uint64_t stream, double low, double high, void *to);
void tshi_cuda_random_normal(tsh_device *device, tsh_dtype dtype, const tshi_block *block, uint64_t seed,
                             uint64_t stream, double mean, double std, void *to);

/* optimizer.cu */
void tshi_cuda_sgd(tsh_device *device, tsh_dtype dtype, const tshi_sgd *s, int count, const tshi_update *updates);
void tshi_cuda_adamw(tsh_device *device, tsh_dtype dtype, const tshi_adamw *a, int count, const tshi_update *updates);

/* graph.cu */
void tshi_cuda_count(tsh_device *device, int64_t *n); /* *n += 1, in device memory */

/* clock.cu */
double tshi_cuda_matrix_rate(tsh_device *device, tsh_dtype dtype, double *clock);

#ifdef __cplusplus
}
#endif

#endif
