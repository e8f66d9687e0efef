/* Layer norm and RMS norm. */
#include "device/cpu/isa/half.h"
#include "device/cpu/isa/kernels.h"
#include "device/cpu/isa/rows.h"

#include <math.h>
#include <string.h>

#define TILE    64

#define KERNELS "device/cpu/isa/norm.inc"
#include "device/cpu/isa/each_dtype.inc"

const tshi_norm_ops TSHI_ISA(tshi_cpu_norm)[TSH_DTYPE_COUNT] = {
    [TSH_FLOAT32] = {.forward = forward_f32, .backward = backward_f32},
    [TSH_FLOAT64] = {.forward = forward_f64, .backward = backward_f64},
    [TSH_BFLOAT16] = {.forward = forward_bf16, .backward = backward_bf16},
    [TSH_FLOAT16] = {.forward = forward_f16, .backward = backward_f16},
};
