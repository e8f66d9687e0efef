/* Squared error and binary cross entropy, computed in double, which keeps the tails accurate. */
#include "device/cpu/isa/kernels.h"
#include "device/cpu/isa/vector_math.h"

#include <math.h>

/* log(1 + exp(x)) */
static double softplus(double x) {
    return log1p(exp(-fabs(x))) + (x > 0.0 ? x : 0.0);
}

static double logistic(double x) {
    return 1.0 / (1.0 + exp(-x));
}

#define KERNELS "device/cpu/isa/loss.inc"
#include "device/cpu/isa/each_dtype.inc"

const tshi_loss_ops TSHI_ISA(tshi_cpu_loss)[TSH_DTYPE_COUNT] = {
    [TSH_FLOAT32] = {forward_f32, backward_f32},
    [TSH_FLOAT64] = {forward_f64, backward_f64},
    [TSH_BFLOAT16] = {forward_bf16, backward_bf16},
    [TSH_FLOAT16] = {forward_f16, backward_f16},
};
