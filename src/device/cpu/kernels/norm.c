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

const tshi_norm_ops tshi_cpu_norm[TSH_DTYPE_COUNT] = {
    [TSH_FLOAT32] = {.forward = forward_f32, .backward = backward_f32},
    [TSH_FLOAT64] = {.forward = forward_f64, .backward = backward_f64},
};
