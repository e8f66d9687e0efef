/* Reductions of one contiguous row, for several kernels. Sums of plain values are in double. */
#ifndef TSHI_CPU_ROWS_H
#define TSHI_CPU_ROWS_H

#include "device/cpu/kernels/half.h"

double tshi_row_sum_f32(int64_t n, const float *x);
double tshi_row_sum_f64(int64_t n, const double *x);
double tshi_row_sum_bf16(int64_t n, const tshi_bfloat16 *x);
double tshi_row_sum_f16(int64_t n, const tshi_float16 *x);
/* Sum of (x - center)^2. */
double tshi_row_squares_f32(int64_t n, const float *x, double center);
double tshi_row_squares_f64(int64_t n, const double *x, double center);
double tshi_row_squares_bf16(int64_t n, const tshi_bfloat16 *x, double center);
double tshi_row_squares_f16(int64_t n, const tshi_float16 *x, double center);
/* Sum of exp(x - max). */
float tshi_row_exp_sum_f32(int64_t n, const float *x, float max);
double tshi_row_exp_sum_f64(int64_t n, const double *x, double max);
float tshi_row_exp_sum_bf16(int64_t n, const tshi_bfloat16 *x, float max);
float tshi_row_exp_sum_f16(int64_t n, const tshi_float16 *x, float max);
/* The largest element, at least `least`. A NaN is no largest element. */
float tshi_row_max_f32(int64_t n, const float *x, float least);
double tshi_row_max_f64(int64_t n, const double *x, double least);
float tshi_row_max_bf16(int64_t n, const tshi_bfloat16 *x, float least);
float tshi_row_max_f16(int64_t n, const tshi_float16 *x, float least);

#endif
