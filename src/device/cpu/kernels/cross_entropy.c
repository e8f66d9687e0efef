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

const tshi_cross_entropy_ops tshi_cpu_cross_entropy[TSH_DTYPE_COUNT] = {
    [TSH_FLOAT32] = {.sums = sums_f32, .shift = shift_f32, .loss = loss_f32, .backward = backward_f32},
    [TSH_FLOAT64] = {.sums = sums_f64, .shift = shift_f64, .loss = loss_f64, .backward = backward_f64},
};
