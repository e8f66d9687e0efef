/* Cross entropy of a vocabulary slice. */
#include "device/cpu/kernels/kernels.h"
#include "device/cpu/kernels/rows.h"
#include "device/cpu/kernels/vector_math.h"

#include <float.h>
#include <string.h>

#include "device/cpu/kernels/float32.inc"
#define LOWEST (-FLT_MAX)
#include "device/cpu/kernels/cross_entropy.inc"
#undef LOWEST

#include "device/cpu/kernels/float64.inc"
#define LOWEST (-DBL_MAX)
#include "device/cpu/kernels/cross_entropy.inc"

int64_t tshi_cpu_targets_check(tsh_device *device, const tshi_classes *c, const int64_t *target) {
    for (int64_t r = 0; r < c->rows; r++) {
        if (target[r] != c->ignore_index && (target[r] < 0 || target[r] >= c->classes)) return r;
    }
    return -1;
}

void tshi_cpu_cross_entropy_sums(tsh_device *device, tsh_dtype dtype, const tshi_classes *c, const void *logits,
                                 const int64_t *target, void *max, void *sums) {
    if (dtype == TSH_FLOAT64)
        sums_f64(c, logits, target, max, sums);
    else
        sums_f32(c, logits, target, max, sums);
}

void tshi_cpu_cross_entropy_shift(tsh_device *device, tsh_dtype dtype, const tshi_classes *c, const void *own,
                                  const void *max, void *sums) {
    if (dtype == TSH_FLOAT64)
        shift_f64(c, own, max, sums);
    else
        shift_f32(c, own, max, sums);
}

void tshi_cpu_cross_entropy_loss(tsh_device *device, tsh_dtype dtype, const tshi_classes *c, const int64_t *target,
                                 const void *sums, void *loss) {
    if (dtype == TSH_FLOAT64)
        loss_f64(c, target, sums, loss);
    else
        loss_f32(c, target, sums, loss);
}

void tshi_cpu_cross_entropy_backward(tsh_device *device, tsh_dtype dtype, const tshi_classes *c, const void *logits,
                                     const int64_t *target, const void *max, const void *sums, const void *dloss,
                                     int64_t dloss_stride, const void *divisor, double beta, void *dlogits) {
    if (dtype == TSH_FLOAT64)
        backward_f64(c, logits, target, max, sums, dloss, dloss_stride, divisor, beta, dlogits);
    else
        backward_f32(c, logits, target, max, sums, dloss, dloss_stride, divisor, beta, dlogits);
}
