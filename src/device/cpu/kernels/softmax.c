/* Softmax and log-softmax, in passes between which a collective may stand. */
#include "device/cpu/kernels/kernels.h"
#include "device/cpu/kernels/rows.h"
#include "device/cpu/kernels/vector_math.h"

#define TILE 64

#include "device/cpu/kernels/float32.inc"

#include "device/cpu/kernels/softmax.inc"

#include "device/cpu/kernels/float64.inc"

#include "device/cpu/kernels/softmax.inc"

void tshi_cpu_softmax_max(tsh_device *device, tsh_dtype dtype, int64_t outer, int64_t n, int64_t inner, const void *x,
                          void *max) {
    if (dtype == TSH_FLOAT64)
        softmax_max_f64(outer, n, inner, x, max);
    else
        softmax_max_f32(outer, n, inner, x, max);
}

void tshi_cpu_softmax_sum(tsh_device *device, tsh_dtype dtype, int64_t outer, int64_t n, int64_t inner, const void *x,
                          const void *max, void *sum) {
    if (dtype == TSH_FLOAT64)
        softmax_sum_f64(outer, n, inner, x, max, sum);
    else
        softmax_sum_f32(outer, n, inner, x, max, sum);
}

void tshi_cpu_softmax(tsh_device *device, bool log, tsh_dtype dtype, int64_t outer, int64_t n, int64_t inner,
                      const void *x, const void *max, const void *sum, void *y) {
    if (dtype == TSH_FLOAT64 && log)
        log_softmax_f64(outer, n, inner, x, max, sum, y);
    else if (dtype == TSH_FLOAT64)
        softmax_f64(outer, n, inner, x, max, sum, y);
    else if (log)
        log_softmax_f32(outer, n, inner, x, max, sum, y);
    else
        softmax_f32(outer, n, inner, x, max, sum, y);
}

void tshi_cpu_softmax_dot(tsh_device *device, bool log, tsh_dtype dtype, int64_t outer, int64_t n, int64_t inner,
                          const void *y, const void *dy, void *dot) {
    if (dtype == TSH_FLOAT64)
        softmax_dot_f64(log, outer, n, inner, y, dy, dot);
    else
        softmax_dot_f32(log, outer, n, inner, y, dy, dot);
}

void tshi_cpu_softmax_backward(tsh_device *device, bool log, tsh_dtype dtype, int64_t outer, int64_t n, int64_t inner,
                               const void *y, const void *dy, const void *dot, void *dx) {
    if (dtype == TSH_FLOAT64)
        softmax_backward_f64(log, outer, n, inner, y, dy, dot, dx);
    else
        softmax_backward_f32(log, outer, n, inner, y, dy, dot, dx);
}
