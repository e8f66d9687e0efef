/* Layer norm and RMS norm. */
#include "device/cpu/isa/kernels.h"
#include "device/cpu/isa/rows.h"

#include <math.h>

#define COLUMNS 2048 /* whose totals are kept while all rows go by */
#define AT_ONCE 4    /* terms that are added in REAL before their sum is added to a total in double */
/* Vectors of doubles that a vector of REAL is converted to. */
#define DOUBLES_OF(REAL) ((int)(sizeof(double) / sizeof(REAL)))

typedef struct norm_backward {
    bool rms;
    int64_t cols;
    const void *x, *gamma, *mean, *rstd, *dy;
} norm_backward;

#define KERNELS "device/cpu/isa/norm_loops.inc"
#include "device/cpu/isa/each_real.inc"

#define KERNELS "device/cpu/isa/norm.inc"
#include "device/cpu/isa/each_dtype.inc"

const tshi_isa_norm TSHI_ISA(tshi_cpu_norm)[TSH_DTYPE_COUNT] = {
    [TSH_FLOAT32] = {forward_f32, backward_f32, parameters_f32},
    [TSH_FLOAT64] = {forward_f64, backward_f64, parameters_f64},
    [TSH_BFLOAT16] = {forward_bf16, backward_bf16, parameters_bf16},
    [TSH_FLOAT16] = {forward_f16, backward_f16, parameters_f16},
};
