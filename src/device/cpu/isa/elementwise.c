/* Activations and element-wise arithmetic. */
#include "device/cpu/isa/broadcast.h"
#include "device/cpu/isa/pieces.h"
#include "device/cpu/isa/vector_math.h"

#include <limits.h>
#include <string.h>

#define KERNELS "device/cpu/isa/functions.inc"
#include "device/cpu/isa/each_real.inc"

#define KERNELS "device/cpu/isa/elementwise_loops.inc"
#include "device/cpu/isa/each_real.inc"

#define KERNELS "device/cpu/isa/elementwise.inc"
#include "device/cpu/isa/each_dtype.inc"

const tshi_elementwise_ops TSHI_ISA(tshi_cpu_elementwise)[TSH_DTYPE_COUNT] = {
    [TSH_FLOAT32] = {unary_f32, unary_backward_f32, swiglu_f32, swiglu_backward_f32, axpby_f32, mul_f32, binary_f32,
                     mask_f32, bias_f32},
    [TSH_FLOAT64] = {unary_f64, unary_backward_f64, swiglu_f64, swiglu_backward_f64, axpby_f64, mul_f64, binary_f64,
                     mask_f64, bias_f64},
    [TSH_BFLOAT16] = {unary_bf16, unary_backward_bf16, swiglu_bf16, swiglu_backward_bf16, axpby_bf16, mul_bf16,
                      binary_bf16, mask_bf16, bias_bf16},
    [TSH_FLOAT16] = {unary_f16, unary_backward_f16, swiglu_f16, swiglu_backward_f16, axpby_f16, mul_f16, binary_f16,
                     mask_f16, bias_f16},
};
