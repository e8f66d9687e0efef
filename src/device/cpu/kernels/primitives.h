/* Products by primitives of oneDNN, which are generated for the sizes and kept with the device. */
#ifndef TSHI_CPU_PRIMITIVES_H
#define TSHI_CPU_PRIMITIVES_H

#include "device/cpu/cpu.h"

/* y = x W^T + b (NULL: no bias) in float32: x [m, k], W [n, k], y [m, n], packed. False if it has computed nothing,
 * because gemm is as fast for these sizes, or there is no oneDNN. The choice depends only on the sizes, the bias, the
 * device's threads and the machine. */
bool tshi_cpu_primitive_affine(tshi_cpu_device *cpu, int64_t m, int64_t n, int64_t k, const float *x, const float *w,
                               const float *b, float *y);
/* Products of that dtype need no conversion to float32: the CPU multiplies bfloat16, and oneDNN is there. */
bool tshi_cpu_multiplies_narrow(const tsh_device *device, tsh_dtype dtype);
/* c = A B, or c += A B (accumulate): A [m, k] and B [k, n], or their transposes, of bfloat16, c [m, n] of float32, all
 * packed. False if it has computed nothing, because the product is small or oneDNN has no kernel for it. The choice
 * depends only on the sizes and the machine. */
bool tshi_cpu_primitive_narrow(tshi_cpu_device *cpu, bool transpose_a, bool transpose_b, int64_t m, int64_t n,
                               int64_t k, const uint16_t *a, const uint16_t *b, bool accumulate, float *c);
/* `count` such products of packed matrices in float32, which follow one another in memory. */
bool tshi_cpu_primitive_batch(tshi_cpu_device *cpu, int64_t count, bool transpose_a, bool transpose_b, int64_t m,
                              int64_t n, int64_t k, const float *a, const float *b, bool accumulate, float *c);
/* Frees cpu->primitives. */
void tshi_cpu_primitives_free(tshi_cpu_device *cpu);

#endif
