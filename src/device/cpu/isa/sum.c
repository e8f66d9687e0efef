/* Sums and their gradients. */
#include "device/cpu/isa/kernels.h"
#include "device/cpu/isa/rows.h"

#define COLUMNS 1024 /* whose totals are kept while all rows go by */
#define AT_ONCE 4    /* rows added to the totals at a time */

#define KERNELS "device/cpu/isa/sum_loops.inc"
#include "device/cpu/isa/each_real.inc"

#define KERNELS "device/cpu/isa/sum.inc"
#include "device/cpu/isa/each_dtype.inc"

const tshi_isa_sum TSHI_ISA(tshi_cpu_sum)[TSH_DTYPE_COUNT] = {
    [TSH_FLOAT32] = {over_dim_f32, over_dim_backward_f32, squares_f32, columns_f32, columns_wide_f32, cumulative_f32},
    [TSH_FLOAT64] = {over_dim_f64, over_dim_backward_f64, squares_f64, columns_f64, columns_wide_f64, cumulative_f64},
    [TSH_BFLOAT16] = {over_dim_bf16, over_dim_backward_bf16, squares_bf16, columns_bf16, columns_wide_bf16,
                      cumulative_bf16},
    [TSH_FLOAT16] = {over_dim_f16, over_dim_backward_f16, squares_f16, columns_f16, columns_wide_f16, cumulative_f16},
};
