/* y = x W^T with so few rows of x that the time is that of reading W, as in token-by-token generation: each row of W
 * is read once. W is split into a few parts of many rows, which are read interleaved, each from end to end: hardware
 * prefetchers follow a few long streams, and not the starts of many adjacent rows. Each sum depends only on its row
 * of x and its row of W, not on other rows. */
#include "device/cpu/isa/elements.h"
#include "device/cpu/isa/kernels.h"

/* Prefetch distance in bytes. */
#define AHEAD      1536
#define CACHE_LINE 64

/* ROWS rows of x by WEIGHT_ROWS rows of W at once, with VECTORS accumulators to a sum. */
#define ROWS 2
#if TSHI_VECTOR_BYTES == 16 && TSHI_VECTOR_REGISTERS == 16
#define WEIGHT_ROWS 1
#define VECTORS     4
#else
#define WEIGHT_ROWS 4
#define VECTORS     2
#endif

TSHI_INLINE void write_totals(const tshi_few_rows *p, int64_t row, int64_t col, int count, int64_t apart,
                              const float *total) {
    float *to = p->y + row * p->ldy + col;
    for (int c = 0; c < count; c++, to += apart) *to = p->alpha * total[c] + (p->beta != 0 ? p->beta * *to : 0);
}

/* --- vectors ------------------------------------------------------------------------------------------------------ */

typedef float floats __attribute__((vector_size(TSHI_VECTOR_BYTES), aligned(4), may_alias));
typedef int32_t integers __attribute__((vector_size(TSHI_VECTOR_BYTES), aligned(4), may_alias));
typedef uint32_t words __attribute__((vector_size(TSHI_VECTOR_BYTES), aligned(4), may_alias));
typedef uint16_t halves __attribute__((vector_size(TSHI_VECTOR_BYTES / 2), aligned(2), may_alias));

/* A vector of W's elements as float32. */
TSHI_INLINE floats load_weights(tsh_dtype dtype, const char *w) {
    if (dtype == TSH_FLOAT32) return *(const floats *)w;
#if TSHI_VECTOR_BYTES == 64
    __m256i bits = _mm256_loadu_si256((const __m256i *)w);
    if (dtype == TSH_FLOAT16) return (floats)_mm512_cvtph_ps(bits);
    return (floats)_mm512_slli_epi32(_mm512_cvtepu16_epi32(bits), 16);
#elif TSHI_VECTOR_BYTES == 32
    __m128i bits = _mm_loadu_si128((const __m128i *)w);
    if (dtype == TSH_FLOAT16) return (floats)_mm256_cvtph_ps(bits);
    return (floats)_mm256_slli_epi32(_mm256_cvtepu16_epi32(bits), 16);
#elif defined(__aarch64__)
    uint16x4_t bits = vld1_u16((const uint16_t *)(const void *)w);
    if (dtype == TSH_FLOAT16) return (floats)vcvt_f32_f16(vreinterpret_f16_u16(bits));
    return (floats)vshll_n_u16(bits, 16);
#else
    words bits = __builtin_convertvector(*(const halves *)w, words);
    if (dtype == TSH_BFLOAT16) return (floats)(bits << 16);
    /* tshi_widen_f16 for a vector */
    words magnitude = bits & 0x7fffu, normal = (magnitude << 13) + 0x38000000u;
    floats scaled = __builtin_convertvector((integers)magnitude, floats) * 0x1p-24f;
    words small = (words)(magnitude < 0x400u), special = (words)(magnitude >= 0x7c00u);
    words result = (normal & ~small) | ((words)scaled & small);
    return (floats)((result + (special & 0x38000000u)) | (bits & 0x8000u) << 16);
#endif
}

/* The sums of WEIGHT_ROWS vectors. */
TSHI_INLINE void horizontal_sums(const floats all[WEIGHT_ROWS], float *total) {
#if defined(__aarch64__)
    float32x4_t low = vpaddq_f32((float32x4_t)all[0], (float32x4_t)all[1]);
    float32x4_t high = vpaddq_f32((float32x4_t)all[2], (float32x4_t)all[3]);
    vst1q_f32(total, vpaddq_f32(low, high));
#elif TSHI_VECTOR_BYTES == 16
    total[0] = (all[0][0] + all[0][1]) + (all[0][2] + all[0][3]);
#else
    __m256 v[4];
    TSHI_UNROLL
    for (int c = 0; c < 4; c++) {
#if TSHI_VECTOR_BYTES == 64
        v[c] = _mm256_add_ps(_mm512_castps512_ps256((__m512)all[c]), _mm512_extractf32x8_ps((__m512)all[c], 1));
#else
        v[c] = (__m256)all[c];
#endif
    }
    __m256 four = _mm256_hadd_ps(_mm256_hadd_ps(v[0], v[1]), _mm256_hadd_ps(v[2], v[3]));
    _mm_storeu_ps(total, _mm_add_ps(_mm256_castps256_ps128(four), _mm256_extractf128_ps(four, 1)));
#endif
}

/* --- products ----------------------------------------------------------------------------------------------------- */

#define X      float
#define FEW(f) f##_float
#include "device/cpu/isa/few_rows.inc"
#undef X
#undef FEW

/* These instructions flush subnormals to zero. */
#ifdef TSHI_MULTIPLIES_BFLOAT16
#define NATIVE
#define X      uint16_t
#define FEW(f) f##_bfloat16
#include "device/cpu/isa/few_rows.inc"
#endif

void TSHI_TABLE(tshi_cpu_few_rows)(tsh_dtype dtype, const tshi_few_rows *p) {
#ifdef TSHI_MULTIPLIES_BFLOAT16
    if (p->narrow_x) {
        multiply_bfloat16(TSH_BFLOAT16, p);
        return;
    }
#endif
    if (dtype == TSH_FLOAT32)
        multiply_float(TSH_FLOAT32, p);
    else if (dtype == TSH_BFLOAT16)
        multiply_float(TSH_BFLOAT16, p);
    else
        multiply_float(TSH_FLOAT16, p);
}
