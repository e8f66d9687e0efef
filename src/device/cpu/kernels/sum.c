/* Bias, sums and their gradients. */
#include "device/cpu/kernels/clones.h"
#include "device/cpu/kernels/kernels.h"
#include "device/cpu/kernels/rows.h"

#include <string.h>

#define TILE 64

#include "device/cpu/kernels/float32.inc"

#include "device/cpu/kernels/sum.inc"

#include "device/cpu/kernels/float64.inc"

#include "device/cpu/kernels/sum.inc"

void tshi_cpu_bias(tsh_device *device, tsh_dtype dtype, int64_t rows, int64_t cols, const void *x, const void *b,
                   void *y) {
    if (cols == 0) return;
    if (dtype == TSH_FLOAT64)
        bias_f64(rows, cols, x, b, y);
    else
        bias_f32(rows, cols, x, b, y);
}

void tshi_cpu_bias_backward(tsh_device *device, tsh_dtype dtype, int64_t rows, int64_t cols, const void *dy, void *db) {
    if (dtype == TSH_FLOAT64)
        column_sums_f64(rows, cols, 1.0, dy, true, db);
    else
        column_sums_f32(rows, cols, 1.0, dy, true, db);
}

void tshi_cpu_sum(tsh_device *device, tsh_dtype dtype, int64_t outer, int64_t n, int64_t inner, double scale,
                  const void *x, void *y) {
    if (dtype == TSH_FLOAT64)
        sum_f64(outer, n, inner, scale, x, y);
    else
        sum_f32(outer, n, inner, scale, x, y);
}

void tshi_cpu_sum_backward(tsh_device *device, tsh_dtype dtype, int64_t outer, int64_t n, int64_t inner, double scale,
                           const void *dy, void *dx) {
    if (dtype == TSH_FLOAT64)
        sum_backward_f64(outer, n, inner, scale, dy, dx);
    else
        sum_backward_f32(outer, n, inner, (float)scale, dy, dx);
}

void tshi_cpu_sum_squares(tsh_device *device, tsh_dtype dtype, int64_t n, const void *x, double *sum) {
    *sum += dtype == TSH_FLOAT64 ? tshi_row_squares_f64(n, x, 0.0) : tshi_row_squares_f32(n, x, 0.0);
}
