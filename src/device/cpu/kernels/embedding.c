/* Rows of a table by id. */
#include "device/cpu/kernels/half.h"
#include "device/cpu/kernels/kernels.h"

#include <string.h>

#define KERNELS "device/cpu/kernels/embedding.inc"
#include "device/cpu/kernels/each_dtype.inc"

const tshi_embedding_ops tshi_cpu_embedding[TSH_DTYPE_COUNT] = {
    [TSH_FLOAT32] = {.forward = forward_f32, .backward = backward_f32},
    [TSH_FLOAT64] = {.forward = forward_f64, .backward = backward_f64},
    [TSH_BFLOAT16] = {.forward = forward_bf16, .backward = backward_bf16},
    [TSH_FLOAT16] = {.forward = forward_f16, .backward = backward_f16},
};
