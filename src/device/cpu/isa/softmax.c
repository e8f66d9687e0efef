/* Softmax and log-softmax in passes, so that a collective can combine the ranks' results between them. */
#include "device/cpu/isa/kernels.h"
#include "device/cpu/isa/rows.h"
#include "device/cpu/isa/vector_math.h"

#define KERNELS "device/cpu/isa/softmax_loops.inc"
#include "device/cpu/isa/each_real.inc"

#define KERNELS "device/cpu/isa/softmax.inc"
#include "device/cpu/isa/each_dtype.inc"

const tshi_softmax_ops TSHI_ISA(tshi_cpu_softmax)[TSH_DTYPE_COUNT] = {
    [TSH_FLOAT32] = {.max = max_f32, .sum = sum_f32, .forward = forward_f32, .dot = dot_f32, .backward = backward_f32},
    [TSH_FLOAT64] = {.max = max_f64, .sum = sum_f64, .forward = forward_f64, .dot = dot_f64, .backward = backward_f64},
    [TSH_BFLOAT16] =
        {.max = max_bf16, .sum = sum_bf16, .forward = forward_bf16, .dot = dot_bf16, .backward = backward_bf16},
    [TSH_FLOAT16] = {.max = max_f16, .sum = sum_f16, .forward = forward_f16, .dot = dot_f16, .backward = backward_f16},
};
