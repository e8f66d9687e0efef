/* Optimizer steps, in place. */
#include "device/cpu/kernels/clones.h"
#include "device/cpu/kernels/kernels.h"

#include <math.h>

TSHI_INLINE float root_f32(float x) {
    return sqrtf(x);
}

TSHI_INLINE double root_f64(double x) {
    return sqrt(x);
}

#include "device/cpu/kernels/float32.inc"

#include "device/cpu/kernels/optimizer.inc"

#include "device/cpu/kernels/float64.inc"

#include "device/cpu/kernels/optimizer.inc"

void tshi_cpu_sgd(tsh_device *device, tsh_dtype dtype, const tshi_sgd *s, int count, const tshi_update *updates) {
    for (int i = 0; i < count; i++) {
        const tshi_update *u = &updates[i];
        if (dtype == TSH_FLOAT64)
            sgd_f64(u->n, s, u->grad, u->state[0], u->p);
        else
            sgd_f32(u->n, s, u->grad, u->state[0], u->p);
    }
}

void tshi_cpu_adamw(tsh_device *device, tsh_dtype dtype, const tshi_adamw *a, int count, const tshi_update *updates) {
    for (int i = 0; i < count; i++) {
        const tshi_update *u = &updates[i];
        if (dtype == TSH_FLOAT64)
            adamw_f64(u->n, a, u->grad, u->state[0], u->state[1], u->p);
        else
            adamw_f32(u->n, a, u->grad, u->state[0], u->state[1], u->p);
    }
}

void tshi_cpu_clip(tsh_device *device, tsh_dtype dtype, int64_t n, const double *squares, double max_norm, void *x) {
    double norm = sqrt(*squares), factor = max_norm / (norm + 1e-6);
    if (isfinite(norm) && factor < 1) tshi_cpu_axpby(device, dtype, n, factor, x, 0, NULL, x);
}
