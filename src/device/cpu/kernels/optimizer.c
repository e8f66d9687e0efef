/* Optimizer steps, in place. */
#include "device/cpu/kernels/half.h"
#include "device/cpu/kernels/kernels.h"

#include <tgmath.h>

#define KERNELS "device/cpu/kernels/optimizer.inc"
#include "device/cpu/kernels/each_dtype.inc"

const tshi_optimizer_ops tshi_cpu_optimizer[TSH_DTYPE_COUNT] = {
    [TSH_FLOAT32] = {.sgd = sgd_f32, .adamw = adamw_f32, .clip = clip_f32},
    [TSH_FLOAT64] = {.sgd = sgd_f64, .adamw = adamw_f64, .clip = clip_f64},
    [TSH_BFLOAT16] = {.sgd = sgd_bf16, .adamw = adamw_bf16, .clip = clip_bf16},
    [TSH_FLOAT16] = {.sgd = sgd_f16, .adamw = adamw_f16, .clip = clip_f16},
};
