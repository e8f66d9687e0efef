/* Squared and smooth errors, and binary cross entropy. */
#include "device/cpu/isa/pieces.h"
#include "device/cpu/isa/vector_math.h"

#define KERNELS "device/cpu/isa/loss_loops.inc"
#include "device/cpu/isa/each_real.inc"

#define KERNELS "device/cpu/isa/loss.inc"
#include "device/cpu/isa/each_dtype.inc"

const tshi_loss_ops TSHI_ISA(tshi_cpu_loss)[TSH_DTYPE_COUNT] = {
    [TSH_FLOAT32] = {forward_f32, backward_f32},
    [TSH_FLOAT64] = {forward_f64, backward_f64},
    [TSH_BFLOAT16] = {forward_bf16, backward_bf16},
    [TSH_FLOAT16] = {forward_f16, backward_f16},
};
