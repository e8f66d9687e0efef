/* Optimizer steps, in place. */
#include "device/cpu/kernels/clones.h"
#include "device/cpu/kernels/kernels.h"

#include <tgmath.h>

#include "device/cpu/kernels/float32.inc"

#include "device/cpu/kernels/optimizer.inc"

#include "device/cpu/kernels/float64.inc"

#include "device/cpu/kernels/optimizer.inc"

const tshi_optimizer_ops tshi_cpu_optimizer[TSH_DTYPE_COUNT] = {
    [TSH_FLOAT32] = {.sgd = sgd_f32, .adamw = adamw_f32, .clip = clip_f32},
    [TSH_FLOAT64] = {.sgd = sgd_f64, .adamw = adamw_f64, .clip = clip_f64},
};
