/* Activations and element-wise arithmetic. */
#include "device/cpu/kernels/kernels.h"
#include "device/cpu/kernels/vector_math.h"

#include "device/cpu/kernels/float32.inc"

#include "device/cpu/kernels/elementwise.inc"

#include "device/cpu/kernels/float64.inc"

#include "device/cpu/kernels/elementwise.inc"

typedef struct unary_loops {
    void (*forward)(int64_t n, const void *x, void *y);
    void (*backward[2])(int64_t n, const void *x, const void *dy, void *dx); /* dx is written, or added to */
} unary_loops;

#define PAIR(f)                                                                                                        \
    {                                                                                                                  \
        {f##_forward_f32, {f##_backward_f32, f##_backward_add_f32}}, {                                                 \
            f##_forward_f64, {                                                                                         \
                f##_backward_f64, f##_backward_add_f64                                                                 \
            }                                                                                                          \
        }                                                                                                              \
    }

static const unary_loops unaries[TSHI_UNARY_COUNT][2] = {
    [TSHI_GELU_ERF] = PAIR(gelu_erf),
    [TSHI_GELU_TANH] = PAIR(gelu_tanh),
    [TSHI_RELU] = PAIR(relu),
    [TSHI_SILU] = PAIR(silu),
};

void tshi_cpu_unary(tsh_device *device, tshi_unary f, tsh_dtype dtype, int64_t n, const void *x, void *y) {
    unaries[f][dtype == TSH_FLOAT64].forward(n, x, y);
}

void tshi_cpu_unary_backward(tsh_device *device, tshi_unary f, tsh_dtype dtype, int64_t n, const void *x,
                             const void *dy, double beta, void *dx) {
    unaries[f][dtype == TSH_FLOAT64].backward[beta != 0.0](n, x, dy, dx);
}

void tshi_cpu_axpby(tsh_device *device, tsh_dtype dtype, int64_t n, double a, const void *x, double b, const void *y,
                    void *z) {
    bool one_term = b == 0.0;
    if (dtype == TSH_FLOAT64 && one_term)
        scale_f64(n, a, x, z);
    else if (dtype == TSH_FLOAT64)
        axpby_f64(n, a, x, b, y, z);
    else if (one_term)
        scale_f32(n, (float)a, x, z);
    else
        axpby_f32(n, (float)a, x, (float)b, y, z);
}

void tshi_cpu_mul(tsh_device *device, tsh_dtype dtype, int64_t n, const void *x, const void *y, double beta, void *z) {
    bool add = beta != 0.0;
    if (dtype == TSH_FLOAT64 && add)
        mul_add_f64(n, x, y, z);
    else if (dtype == TSH_FLOAT64)
        mul_f64(n, x, y, z);
    else if (add)
        mul_add_f32(n, x, y, z);
    else
        mul_f32(n, x, y, z);
}

void tshi_cpu_divide(tsh_device *device, tsh_dtype dtype, int64_t n, const void *x, const void *y, void *z) {
    if (dtype == TSH_FLOAT64)
        quotient_f64(n, x, y, z);
    else
        quotient_f32(n, x, y, z);
}
