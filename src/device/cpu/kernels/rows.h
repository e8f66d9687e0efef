/* Reductions of one contiguous row, shared by several kernels. Sums of plain values are accumulated in double. */
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
/* The largest element, but at least `least`. NaN is ignored. */
float tshi_row_max_f32(int64_t n, const float *x, float least);
double tshi_row_max_f64(int64_t n, const double *x, double least);
float tshi_row_max_bf16(int64_t n, const tshi_bfloat16 *x, float least);
float tshi_row_max_f16(int64_t n, const tshi_float16 *x, float least);

/* Adds the accumulators pairwise by halves: log2(TSHI_LANES) dependent additions instead of TSHI_LANES. */
TSHI_INLINE float tshi_lanes_total_f32(const float *lane) {
    float part[TSHI_LANES / 2];
    for (int j = 0; j < TSHI_LANES / 2; j++) part[j] = lane[j] + lane[j + TSHI_LANES / 2];
    TSHI_UNROLL
    for (int n = TSHI_LANES / 4; n > 0; n /= 2) {
        for (int j = 0; j < n; j++) part[j] += part[j + n];
    }
    return part[0];
}

TSHI_INLINE double tshi_lanes_total_f64(const double *lane) {
    double part[TSHI_LANES / 2];
    for (int j = 0; j < TSHI_LANES / 2; j++) part[j] = lane[j] + lane[j + TSHI_LANES / 2];
    TSHI_UNROLL
    for (int n = TSHI_LANES / 4; n > 0; n /= 2) {
        for (int j = 0; j < n; j++) part[j] += part[j + n];
    }
    return part[0];
}

#endif
