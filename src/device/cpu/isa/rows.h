/* Reductions of one contiguous row, which several kernels share, for each float dtype: row_sum_f32, row_squares_bf16,
 * ... */
#ifndef TSHI_CPU_ROWS_H
#define TSHI_CPU_ROWS_H

#include "device/cpu/isa/vector_math.h"

/* Adds the accumulators pairwise by halves: log2(TSHI_LANES) dependent additions instead of TSHI_LANES. */
TSHI_INLINE float tshi_lanes_total_f32(const float *lane) {
    float part[TSHI_LANES / 2];
    for (int j = 0; j < TSHI_LANES / 2; j++) part[j] = lane[j] + lane[j + TSHI_LANES / 2];
    TSHI_UNROLL
    for (int n = TSHI_LANES / 4; n > 0; n /= 2) {
        for (int j = 0; j < n; j++) part[j] += part[j + n];
    }
    return part[0];
}

TSHI_INLINE double tshi_lanes_total_f64(const double *lane) {
    double part[TSHI_LANES / 2];
    for (int j = 0; j < TSHI_LANES / 2; j++) part[j] = lane[j] + lane[j + TSHI_LANES / 2];
    TSHI_UNROLL
    for (int n = TSHI_LANES / 4; n > 0; n /= 2) {
        for (int j = 0; j < n; j++) part[j] += part[j + n];
    }
    return part[0];
}

#define KERNELS "device/cpu/isa/rows.inc"
#include "device/cpu/isa/each_dtype.inc"

#endif
