/* Optimiser steps, in place. */
#include "device/cpu/clones.h"
#include "device/cpu/kernels.h"

#include <math.h>

TSHI_INLINE float root_f32(float x) {
    return sqrtf(x);
}

TSHI_INLINE double root_f64(double x) {
    return sqrt(x);
}

#include "device/cpu/float32.inc"

#include "device/cpu/optimiser.inc"

#include "device/cpu/float64.inc"

#include "device/cpu/optimiser.inc"

void tshi_cpu_sgd(tsh_dtype dtype, int64_t n, const tshi_sgd *s, const void *grad, void *buffer, void *p) {
    if (dtype == TSH_FLOAT64)
        sgd_f64(n, s, grad, buffer, p);
    else
        sgd_f32(n, s, grad, buffer, p);
}

void tshi_cpu_adamw(tsh_dtype dtype, int64_t n, const tshi_adamw *a, const void *grad, void *m, void *v, void *p) {
    if (dtype == TSH_FLOAT64)
        adamw_f64(n, a, grad, m, v, p);
    else
        adamw_f32(n, a, grad, m, v, p);
}
