/* Reductions of one contiguous row, which several kernels share, for each float dtype: row_sum_f32, row_squares_bf16,
 * ... */
#ifndef TSHI_CPU_ROWS_H
#define TSHI_CPU_ROWS_H

#include "device/cpu/isa/pieces.h"
#include "device/cpu/isa/vector_math.h"

#define DOUBLES     ((int)(TSHI_VECTOR_BYTES / sizeof(double)))
#define SUM_VECTORS 8
typedef double doubles __attribute__((vector_size(TSHI_VECTOR_BYTES)));

/* Floats that one vector of doubles is made of. */
typedef float floats __attribute__((vector_size(TSHI_VECTOR_BYTES / 2), aligned(sizeof(float)), may_alias));

/* GCC would convert a vector of these widths in pieces. */
TSHI_INLINE doubles doubles_of_f32(floats x) {
#if TSHI_VECTOR_BYTES == 64
    return (doubles)_mm512_cvtps_pd((__m256)x);
#elif TSHI_VECTOR_BYTES == 32
    return (doubles)_mm256_cvtps_pd((__m128)x);
#else
    return __builtin_convertvector(x, doubles);
#endif
}

TSHI_INLINE doubles doubles_of_f64(doubles x) {
    return x;
}

/* The sum of SUM_VECTORS vectors. */
TSHI_INLINE double vectors_total(const doubles *sum) {
    doubles all = ((sum[0] + sum[1]) + (sum[2] + sum[3])) + ((sum[4] + sum[5]) + (sum[6] + sum[7]));
    double total = 0;
    TSHI_UNROLL
    for (int i = 0; i < DOUBLES; i++) total += all[i];
    return total;
}

#define KERNELS "device/cpu/isa/rows_loops.inc"
#include "device/cpu/isa/each_real.inc"

#define KERNELS "device/cpu/isa/rows.inc"
#include "device/cpu/isa/each_dtype.inc"

#endif
