/* Rows of a table by id. */
#include "device/cpu/kernels/clones.h"
#include "device/cpu/kernels/kernels.h"

#include <string.h>

#include "device/cpu/kernels/float32.inc"

#include "device/cpu/kernels/embedding.inc"

#include "device/cpu/kernels/float64.inc"

#include "device/cpu/kernels/embedding.inc"

const tshi_embedding_ops tshi_cpu_embedding[TSH_DTYPE_COUNT] = {
    [TSH_FLOAT32] = {.forward = forward_f32, .backward = backward_f32},
    [TSH_FLOAT64] = {.forward = forward_f64, .backward = backward_f64},
};
