/* Cross entropy over this rank's slice of the classes. */
#include "device/cpu/isa/kernels.h"
#include "device/cpu/isa/rows.h"
#include "device/cpu/isa/vector_math.h"

#include <string.h>

#define KERNELS "device/cpu/isa/cross_entropy_loops.inc"
#include "device/cpu/isa/each_real.inc"

#define KERNELS "device/cpu/isa/cross_entropy.inc"
#include "device/cpu/isa/each_dtype.inc"

const tshi_cross_entropy_ops TSHI_ISA(tshi_cpu_cross_entropy)[TSH_DTYPE_COUNT] = {
    [TSH_FLOAT32] = {.sums = sums_f32, .shift = shift_f32, .loss = loss_f32, .backward = backward_f32},
    [TSH_FLOAT64] = {.sums = sums_f64, .shift = shift_f64, .loss = loss_f64, .backward = backward_f64},
    [TSH_BFLOAT16] = {.sums = sums_bf16, .shift = shift_bf16, .loss = loss_bf16, .backward = backward_bf16},
    [TSH_FLOAT16] = {.sums = sums_f16, .shift = shift_f16, .loss = loss_f16, .backward = backward_f16},
};
