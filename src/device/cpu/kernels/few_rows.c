/* y = x W^T with so few rows of x that the time is that of reading W, as in token-by-token generation: each row of W
 * is read once. W is split into a few parts of many rows, which are read interleaved, each from end to end: hardware
 * prefetchers follow a few long streams, and not the starts of many adjacent rows. Each sum depends only on its row
 * of x and its row of W, not on other rows. */
#include "device/cpu/kernels/half.h"
#include "device/cpu/kernels/kernels.h"
#ifdef TSHI_X86_LEVELS
#include <immintrin.h>
#endif

/* Prefetch distance in bytes. */
#define AHEAD      1536
#define CACHE_LINE 64

TSHI_INLINE void write_totals(const tshi_few_rows *p, int64_t row, int64_t col, int count, int64_t apart,
                              const float *total) {
    float *to = p->y + row * p->ldy + col;
    for (int c = 0; c < count; c++, to += apart) *to = p->alpha * total[c] + (p->beta != 0 ? p->beta * *to : 0);
}

#define X            float
#define WIDE(f)      f##_128
#define VECTOR_BYTES 16
#define VECTORS      4
#define ROWS         2
#define WEIGHT_ROWS  1
#define TARGET
#include "device/cpu/kernels/few_rows.inc"
#undef WIDE
#undef VECTOR_BYTES
#undef VECTORS
#undef WEIGHT_ROWS
#undef TARGET

#ifdef TSHI_X86_LEVELS
/* The horizontal sums of four vectors. */
__attribute__((target("avx2"))) TSHI_INLINE __m128 four_totals(__m256 a, __m256 b, __m256 c, __m256 d) {
    __m256 all = _mm256_hadd_ps(_mm256_hadd_ps(a, b), _mm256_hadd_ps(c, d));
    return _mm_add_ps(_mm256_castps256_ps128(all), _mm256_extractf128_ps(all, 1));
}

__attribute__((target("avx512f,avx512dq"))) TSHI_INLINE __m256 half_of(__m512 x) {
    return _mm256_add_ps(_mm512_castps512_ps256(x), _mm512_extractf32x8_ps(x, 1));
}

#define VECTORS      2
#define WEIGHT_ROWS  4

#define WIDE(f)      f##_256
#define VECTOR_BYTES 32
#define TARGET       __attribute__((target("avx2,fma")))
#include "device/cpu/kernels/few_rows.inc"
#undef WIDE
#undef VECTOR_BYTES
#undef TARGET

#define VECTOR_BYTES 64

#define WIDE(f)      f##_512
#define TARGET       __attribute__((target("avx512f,avx512vl,avx512dq,avx512bw,fma")))
#include "device/cpu/kernels/few_rows.inc"
#undef WIDE
#undef TARGET
#undef X

/* bfloat16 instructions flush subnormals to zero. */
#define X uint16_t
#define NATIVE
#define WIDE(f) f##_bf16
#define TARGET  __attribute__((target("avx512f,avx512vl,avx512dq,avx512bw,avx512bf16,fma")))
#include "device/cpu/kernels/few_rows.inc"
#undef WIDE
#undef VECTOR_BYTES
#undef VECTORS
#undef WEIGHT_ROWS
#undef TARGET
#endif
#undef X
#undef ROWS

bool tshi_cpu_multiplies_bfloat16(void) {
#ifdef TSHI_X86_LEVELS
    return TSHI_HAS_512 && __builtin_cpu_supports("avx512bf16");
#else
    return false;
#endif
}

void tshi_cpu_few_rows(tsh_dtype dtype, const tshi_few_rows *p) {
#ifdef TSHI_X86_LEVELS
    if (p->narrow_x)
        few_rows_bf16(dtype, p);
    else if (TSHI_HAS_512)
        few_rows_512(dtype, p);
    else if (TSHI_HAS_256)
        few_rows_256(dtype, p);
    else
#endif
        few_rows_128(dtype, p);
}
