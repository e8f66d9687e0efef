/* Layer norm and RMS norm. */
#include "device/cpu/kernels/clones.h"
#include "device/cpu/kernels/kernels.h"
#include "device/cpu/kernels/rows.h"

#include <math.h>
#include <string.h>

#define TILE 64

#include "device/cpu/kernels/float32.inc"

#include "device/cpu/kernels/norm.inc"

#include "device/cpu/kernels/float64.inc"

#include "device/cpu/kernels/norm.inc"

void tshi_cpu_norm(tsh_device *device, bool rms, tsh_dtype dtype, int64_t rows, int64_t cols, double eps, const void *x,
                   const void *gamma, const void *beta, void *y, void *mean, void *rstd) {
    if (dtype == TSH_FLOAT64)
        norm_f64(rms, rows, cols, eps, x, gamma, beta, y, mean, rstd);
    else
        norm_f32(rms, rows, cols, eps, x, gamma, beta, y, mean, rstd);
}

void tshi_cpu_norm_backward(tsh_device *device, bool rms, tsh_dtype dtype, int64_t rows, int64_t cols, const void *x,
                            const void *gamma, const void *mean, const void *rstd, const void *dy, double beta,
                            void *dx, void *dgamma, void *dbeta) {
    if (cols == 0) return;
    if (dtype == TSH_FLOAT64)
        norm_backward_f64(rms, rows, cols, x, gamma, mean, rstd, dy, beta != 0.0, dx, dgamma, dbeta);
    else
        norm_backward_f32(rms, rows, cols, x, gamma, mean, rstd, dy, beta != 0.0, dx, dgamma, dbeta);
}
