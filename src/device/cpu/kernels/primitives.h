/* Products by primitives of oneDNN, which are generated for the sizes and kept with the device. */
#ifndef TSHI_CPU_PRIMITIVES_H
#define TSHI_CPU_PRIMITIVES_H

#include "device/cpu/cpu.h"

/* y = x W^T + b (NULL: no bias) in float32: x [m, k], W [n, k], y [m, n], packed. False if it has computed nothing,
 * because gemm is as fast for these sizes, or there is no oneDNN. The choice depends only on the sizes, the bias, the
 * device's threads and the machine. */
bool tshi_cpu_primitive_affine(tshi_cpu_device *cpu, int64_t m, int64_t n, int64_t k, const float *x, const float *w,
                               const float *b, float *y);
/* Frees cpu->primitives. */
void tshi_cpu_primitives_free(tshi_cpu_device *cpu);

#endif
