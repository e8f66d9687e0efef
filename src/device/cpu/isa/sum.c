/* Sums and their gradients. */
#include "device/cpu/isa/half.h"
#include "device/cpu/isa/kernels.h"
#include "device/cpu/isa/rows.h"

#define TILE    64

#define KERNELS "device/cpu/isa/sum.inc"
#include "device/cpu/isa/each_dtype.inc"

const tshi_sum_ops TSHI_ISA(tshi_cpu_sum)[TSH_DTYPE_COUNT] = {
    [TSH_FLOAT32] = {.over_dim = over_dim_f32,
                     .over_dim_backward = over_dim_backward_f32,
                     .bias_backward = bias_backward_f32,
                     .bias_backward_wide = bias_backward_wide_f32,
                     .squares = squares_f32},
    [TSH_FLOAT64] = {.over_dim = over_dim_f64,
                     .over_dim_backward = over_dim_backward_f64,
                     .bias_backward = bias_backward_f64,
                     .bias_backward_wide = bias_backward_wide_f64,
                     .squares = squares_f64},
    [TSH_BFLOAT16] = {.over_dim = over_dim_bf16,
                      .over_dim_backward = over_dim_backward_bf16,
                      .bias_backward = bias_backward_bf16,
                      .bias_backward_wide = bias_backward_wide_bf16,
                      .squares = squares_bf16},
    [TSH_FLOAT16] = {.over_dim = over_dim_f16,
                     .over_dim_backward = over_dim_backward_f16,
                     .bias_backward = bias_backward_f16,
                     .bias_backward_wide = bias_backward_wide_f16,
                     .squares = squares_f16},
};
