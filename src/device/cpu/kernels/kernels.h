/* The CPU's kernels; what each does stands at its slot in tshi_device_ops. None looks at the device: NULL does. */
#ifndef TSHI_CPU_KERNELS_H
#define TSHI_CPU_KERNELS_H

#include "device/device.h"

/* memory.c */
void tshi_cpu_copy(tsh_device *device, size_t bytes, const void *from, void *to);
void tshi_cpu_copy_strided(tsh_device *device, int64_t outer, size_t bytes, const void *from, size_t from_stride,
                           void *to, size_t to_stride);
void tshi_cpu_zero(tsh_device *device, size_t bytes, void *to);
void tshi_cpu_fill(tsh_device *device, tsh_dtype dtype, int64_t n, double value, void *to);

/* event.c */
tsh_status tshi_cpu_synchronize(tsh_device *device);
tsh_event *tshi_cpu_event_create(tsh_device *device);
tsh_status tshi_cpu_event_record(tsh_event *event);
tsh_status tshi_cpu_event_elapsed(tsh_event *begin, tsh_event *end, double *seconds);
void tshi_cpu_event_destroy(tsh_event *event);

/* convert.c */
void tshi_cpu_convert(tsh_device *device, int64_t n, tsh_dtype from_dtype, const void *from, tsh_dtype to_dtype,
                      void *to);
/* bfloat16 or float16 to float32 and back, rounding to nearest even. */
void tshi_cpu_widen(tsh_dtype half, int64_t n, const uint16_t *from, float *to);
void tshi_cpu_narrow(tsh_dtype half, int64_t n, const float *from, uint16_t *to);

/* reduce.c */
void tshi_cpu_reduce(tsh_device *device, tsh_dtype dtype, tshi_reduction op, int64_t n, int count,
                     const void *const *in, int outs, void *const *out);

/* gemm.c */
tsh_status tshi_cpu_gemm(tsh_device *device, tsh_dtype dtype, bool transpose_a, bool transpose_b, int64_t m, int64_t n,
                         int64_t k, double alpha, const void *a, int64_t lda, const void *b, int64_t ldb, double beta,
                         void *c, int64_t ldc);
tsh_status tshi_cpu_affine(tsh_device *device, tsh_dtype dtype, int64_t m, int64_t n, int64_t k, const void *x,
                           const void *w, const void *b, tshi_unary f, void *pre, void *y);
tsh_status tshi_cpu_affine_backward(tsh_device *device, tsh_dtype dtype, int64_t m, int64_t n, int64_t k, const void *x,
                                    const void *dy, double beta, void *dw, double beta_b, void *db);
void tshi_cpu_product_threads(int threads);
/* Which libraries multiply, in words. */
void tshi_cpu_product_libraries(char *text, size_t size);

/* elementwise.c */
void tshi_cpu_unary(tsh_device *device, tshi_unary f, tsh_dtype dtype, int64_t n, const void *x, void *y);
void tshi_cpu_unary_backward(tsh_device *device, tshi_unary f, tsh_dtype dtype, int64_t n, const void *x,
                             const void *dy, double beta, void *dx);
void tshi_cpu_axpby(tsh_device *device, tsh_dtype dtype, int64_t n, double a, const void *x, double b, const void *y,
                    void *z);
void tshi_cpu_divide(tsh_device *device, tsh_dtype dtype, int64_t n, const void *x, const void *y, void *z);
void tshi_cpu_mul(tsh_device *device, tsh_dtype dtype, int64_t n, const void *x, const void *y, double beta, void *z);

/* sum.c */
void tshi_cpu_bias(tsh_device *device, tsh_dtype dtype, int64_t rows, int64_t cols, const void *x, const void *b,
                   void *y);
void tshi_cpu_bias_backward(tsh_device *device, tsh_dtype dtype, int64_t rows, int64_t cols, const void *dy, void *db);
void tshi_cpu_sum(tsh_device *device, tsh_dtype dtype, int64_t outer, int64_t n, int64_t inner, double scale,
                  const void *x, void *y);
void tshi_cpu_sum_backward(tsh_device *device, tsh_dtype dtype, int64_t outer, int64_t n, int64_t inner, double scale,
                           const void *dy, void *dx);
void tshi_cpu_sum_squares(tsh_device *device, tsh_dtype dtype, int64_t n, const void *x, double *sum);

/* softmax.c */
void tshi_cpu_softmax_max(tsh_device *device, tsh_dtype dtype, int64_t outer, int64_t n, int64_t inner, const void *x,
                          void *max);
void tshi_cpu_softmax_sum(tsh_device *device, tsh_dtype dtype, int64_t outer, int64_t n, int64_t inner, const void *x,
                          const void *max, void *sum);
void tshi_cpu_softmax(tsh_device *device, bool log, tsh_dtype dtype, int64_t outer, int64_t n, int64_t inner,
                      const void *x, const void *max, const void *sum, void *y);
void tshi_cpu_softmax_dot(tsh_device *device, bool log, tsh_dtype dtype, int64_t outer, int64_t n, int64_t inner,
                          const void *y, const void *dy, void *dot);
void tshi_cpu_softmax_backward(tsh_device *device, bool log, tsh_dtype dtype, int64_t outer, int64_t n, int64_t inner,
                               const void *y, const void *dy, const void *dot, void *dx);

/* cross_entropy.c */
int64_t tshi_cpu_targets_check(tsh_device *device, const tshi_classes *c, const int64_t *target);
void tshi_cpu_cross_entropy_sums(tsh_device *device, tsh_dtype dtype, const tshi_classes *c, const void *logits,
                                 const int64_t *target, void *max, void *sums);
void tshi_cpu_cross_entropy_shift(tsh_device *device, tsh_dtype dtype, const tshi_classes *c, const void *own,
                                  const void *max, void *sums);
void tshi_cpu_cross_entropy_loss(tsh_device *device, tsh_dtype dtype, const tshi_classes *c, const int64_t *target,
                                 const void *sums, void *loss);
void tshi_cpu_cross_entropy_backward(tsh_device *device, tsh_dtype dtype, const tshi_classes *c, const void *logits,
                                     const int64_t *target, const void *max, const void *sums, const void *dloss,
                                     int64_t dloss_stride, const void *divisor, double beta, void *dlogits);

/* embedding.c */
int64_t tshi_cpu_ids_check(tsh_device *device, int64_t n, const int64_t *ids, int64_t vocabulary);
void tshi_cpu_embedding(tsh_device *device, tsh_dtype dtype, int64_t n, const int64_t *ids, int64_t start, int64_t rows,
                        int64_t cols, const void *table, void *y);
void tshi_cpu_embedding_backward(tsh_device *device, tsh_dtype dtype, int64_t n, const int64_t *ids, int64_t start,
                                 int64_t rows, int64_t cols, int64_t padding, const void *dy, void *dtable);

/* norm.c */
void tshi_cpu_norm(tsh_device *device, bool rms, tsh_dtype dtype, int64_t rows, int64_t cols, double eps, const void *x,
                   const void *gamma, const void *beta, void *y, void *mean, void *rstd);
void tshi_cpu_norm_backward(tsh_device *device, bool rms, tsh_dtype dtype, int64_t rows, int64_t cols, const void *x,
                            const void *gamma, const void *mean, const void *rstd, const void *dy, double beta,
                            void *dx, void *dgamma, void *dbeta);

/* random.c */
void tshi_cpu_dropout(tsh_device *device, tsh_dtype dtype, const tshi_block *block, uint64_t seed, uint64_t stream,
                      double p, const void *x, double beta, void *y);
void tshi_cpu_random_uniform(tsh_device *device, tsh_dtype dtype, const tshi_block *block, uint64_t seed,
                             uint64_t stream, double low, double high, void *to);
void tshi_cpu_random_normal(tsh_device *device, tsh_dtype dtype, const tshi_block *block, uint64_t seed,
                            uint64_t stream, double mean, double std, void *to);

/* optimizer.c */
void tshi_cpu_sgd(tsh_device *device, tsh_dtype dtype, const tshi_sgd *s, int count, const tshi_update *updates);
void tshi_cpu_adamw(tsh_device *device, tsh_dtype dtype, const tshi_adamw *a, int count, const tshi_update *updates);
void tshi_cpu_clip(tsh_device *device, tsh_dtype dtype, int64_t n, const double *squares, double max_norm, void *x);

#endif
