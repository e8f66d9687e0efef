/* Conversions between dtypes, and fills. Float to integer truncates and saturates; NaN becomes 0. */
#include "device/cpu/isa/kernels.h"
#include "device/cpu/isa/vector_math.h"

#define TILE 512

/* --- 16-bit floats ------------------------------------------------------------------------------------------------ */

static void bfloat16_widen_all(int64_t n, const tshi_bfloat16 *from, float *to) {
    TSHI_INDEPENDENT
    for (int64_t i = 0; i < n; i++) to[i] = tshi_widen_bf16(from[i]);
}

static void bfloat16_narrow_all(int64_t n, const float *from, tshi_bfloat16 *to) {
    TSHI_INDEPENDENT
    for (int64_t i = 0; i < n; i++) to[i] = tshi_narrow_bf16(from[i]);
}

#if defined(__aarch64__)
/* GCC makes vectors of the CPU's conversions where a loop has nothing else; other loops convert by LOAD and SAVE. */
static void float16_widen_all(int64_t n, const __fp16 *from, float *to) {
    TSHI_INDEPENDENT
    for (int64_t i = 0; i < n; i++) to[i] = (float)from[i];
}

static void float16_narrow_all(int64_t n, const float *from, __fp16 *to) {
    TSHI_INDEPENDENT
    for (int64_t i = 0; i < n; i++) to[i] = (__fp16)from[i];
}
#elif TSHI_VECTOR_BYTES > 16
/* GCC makes no vectors of these conversions. */
#define LANES (TSHI_VECTOR_BYTES / 4)
TSHI_INLINE void widen_vector(const tshi_float16 *from, float *to) {
#if TSHI_VECTOR_BYTES == 64
    _mm512_storeu_ps(to, _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(const void *)from)));
#else
    _mm256_storeu_ps(to, _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(const void *)from)));
#endif
}

TSHI_INLINE void narrow_vector(const float *from, tshi_float16 *to) {
#if TSHI_VECTOR_BYTES == 64
    _mm256_storeu_si256((__m256i *)(void *)to, _mm512_cvtps_ph(_mm512_loadu_ps(from), _MM_FROUND_TO_NEAREST_INT));
#else
    _mm_storeu_si128((__m128i *)(void *)to, _mm256_cvtps_ph(_mm256_loadu_ps(from), _MM_FROUND_TO_NEAREST_INT));
#endif
}

static void float16_widen_all(int64_t n, const tshi_float16 *from, float *to) {
    int64_t i = 0;
    for (; i + LANES <= n; i += LANES) widen_vector(from + i, to + i);
    if (i == n) return;
    tshi_float16 rest[LANES] = {{0}};
    float wide[LANES];
    memcpy(rest, from + i, (size_t)(n - i) * sizeof *rest);
    widen_vector(rest, wide);
    memcpy(to + i, wide, (size_t)(n - i) * sizeof *wide);
}

static void float16_narrow_all(int64_t n, const float *from, tshi_float16 *to) {
    int64_t i = 0;
    for (; i + LANES <= n; i += LANES) narrow_vector(from + i, to + i);
    if (i == n) return;
    float rest[LANES] = {0};
    tshi_float16 narrow[LANES];
    memcpy(rest, from + i, (size_t)(n - i) * sizeof *rest);
    narrow_vector(rest, narrow);
    memcpy(to + i, narrow, (size_t)(n - i) * sizeof *narrow);
}
#else
static void float16_widen_all(int64_t n, const tshi_float16 *from, float *to) {
    TSHI_INDEPENDENT
    for (int64_t i = 0; i < n; i++) to[i] = tshi_widen_f16(from[i]);
}

static void float16_narrow_all(int64_t n, const float *from, tshi_float16 *to) {
    TSHI_INDEPENDENT
    for (int64_t i = 0; i < n; i++) to[i] = tshi_narrow_f16(from[i]);
}
#endif

void TSHI_ISA(tshi_cpu_widen)(tsh_dtype dtype, int64_t n, const void *from, float *to) {
    if (dtype == TSH_BFLOAT16)
        bfloat16_widen_all(n, from, to);
    else
        float16_widen_all(n, from, to);
}

void TSHI_ISA(tshi_cpu_narrow)(tsh_dtype dtype, int64_t n, const float *from, void *to) {
    if (dtype == TSH_BFLOAT16)
        bfloat16_narrow_all(n, from, to);
    else
        float16_narrow_all(n, from, to);
}

/* --- all other pairs, through a tile of doubles ------------------------------------------------------------------- */

/* Rounds to odd: exact, or the neighbour whose last bit is 1. A second rounding to at most 22 bits then gives the
 * same result as a single rounding of x. */
static float float_to_odd(double x) {
    float f = (float)x;
    uint32_t bits = tshi_bits_of_float(f);
    if ((double)f == x || x != x) return f;
    if (fabs((double)f) > fabs(x)) bits--;
    return tshi_float_of_bits(bits | 1u);
}

/* Rounds to odd, for an integer that a double cannot hold. */
static double int64_to_odd(int64_t v) {
    if (v >= -((int64_t)1 << 53) && v <= (int64_t)1 << 53) return (double)v;
    uint64_t sticky = ((uint64_t)v & 0x3ffu) != 0 ? 0x400u : 0u;
    return (double)(int64_t)(((uint64_t)v & ~(uint64_t)0x3ff) | sticky);
}

static int64_t to_integer(double x, int64_t low, int64_t high) {
    if (x != x) return 0;
    if (x <= (double)low) return low;
    if (x >= (double)high) return high;
    return (int64_t)x;
}

static void decode(tsh_dtype dtype, int64_t n, const void *from, double *tile) {
    switch (dtype) {
    case TSH_FLOAT32:
        for (int64_t i = 0; i < n; i++) tile[i] = (double)((const float *)from)[i];
        break;
    case TSH_BFLOAT16:
        for (int64_t i = 0; i < n; i++) tile[i] = (double)tshi_widen_bf16(((const tshi_bfloat16 *)from)[i]);
        break;
    case TSH_FLOAT16:
        for (int64_t i = 0; i < n; i++) tile[i] = (double)tshi_widen_f16(((const tshi_float16 *)from)[i]);
        break;
    case TSH_INT32:
        for (int64_t i = 0; i < n; i++) tile[i] = (double)((const int32_t *)from)[i];
        break;
    case TSH_INT64:
        for (int64_t i = 0; i < n; i++) tile[i] = int64_to_odd(((const int64_t *)from)[i]);
        break;
    case TSH_UINT8:
        for (int64_t i = 0; i < n; i++) tile[i] = (double)((const uint8_t *)from)[i];
        break;
    default: memcpy(tile, from, (size_t)n * sizeof(double)); break;
    }
}

static void encode(tsh_dtype dtype, int64_t n, const double *tile, void *to) {
    switch (dtype) {
    case TSH_FLOAT32:
        for (int64_t i = 0; i < n; i++) ((float *)to)[i] = (float)tile[i];
        break;
    case TSH_BFLOAT16:
        for (int64_t i = 0; i < n; i++) ((tshi_bfloat16 *)to)[i] = tshi_narrow_bf16(float_to_odd(tile[i]));
        break;
    case TSH_FLOAT16:
        for (int64_t i = 0; i < n; i++) ((tshi_float16 *)to)[i] = tshi_narrow_f16(float_to_odd(tile[i]));
        break;
    case TSH_INT32:
        for (int64_t i = 0; i < n; i++) ((int32_t *)to)[i] = (int32_t)to_integer(tile[i], INT32_MIN, INT32_MAX);
        break;
    case TSH_INT64:
        for (int64_t i = 0; i < n; i++) ((int64_t *)to)[i] = to_integer(tile[i], INT64_MIN, INT64_MAX);
        break;
    case TSH_UINT8:
        for (int64_t i = 0; i < n; i++) ((uint8_t *)to)[i] = (uint8_t)to_integer(tile[i], 0, UINT8_MAX);
        break;
    default: memcpy(to, tile, (size_t)n * sizeof(double)); break;
    }
}

/* A conversion whose result is double rounds to nearest. */
static void int64_to_float64(int64_t n, const int64_t *from, double *to) {
    for (int64_t i = 0; i < n; i++) to[i] = (double)from[i];
}

static bool is_narrow_dtype(tsh_dtype dtype) {
    return dtype == TSH_BFLOAT16 || dtype == TSH_FLOAT16;
}

static void convert_tiles(int64_t n, tsh_dtype from_dtype, const void *from, tsh_dtype to_dtype, void *to) {
    double tile[TILE];
    size_t from_size = tsh_dtype_size(from_dtype);
    size_t to_size = tsh_dtype_size(to_dtype);
    for (int64_t i = 0; i < n; i += TILE) {
        int64_t count = n - i < TILE ? n - i : TILE;
        decode(from_dtype, count, (const char *)from + (size_t)i * from_size, tile);
        encode(to_dtype, count, tile, (char *)to + (size_t)i * to_size);
    }
}

void TSHI_ISA(tshi_cpu_convert)(tsh_device *device, int64_t n, tsh_dtype from_dtype, const void *from,
                                tsh_dtype to_dtype, void *to) {
    if (n <= 0) return;
    if (from_dtype == to_dtype)
        tshi_cpu_copy(device, (size_t)n * tsh_dtype_size(from_dtype), from, to);
    else if (from_dtype == TSH_FLOAT32 && is_narrow_dtype(to_dtype))
        TSHI_ISA(tshi_cpu_narrow)(to_dtype, n, from, to);
    else if (is_narrow_dtype(from_dtype) && to_dtype == TSH_FLOAT32)
        TSHI_ISA(tshi_cpu_widen)(from_dtype, n, from, to);
    else if (from_dtype == TSH_INT64 && to_dtype == TSH_FLOAT64)
        int64_to_float64(n, from, to);
    else
        convert_tiles(n, from_dtype, from, to_dtype, to);
}

/* --- fills -------------------------------------------------------------------------------------------------------- */

void TSHI_ISA(tshi_cpu_fill)(tsh_device *device, tsh_dtype dtype, int64_t n, double value, void *to) {
    char element[16] = {0};
    if (n <= 0) return;
    tsh_dtype real = dtype;
    if (dtype == TSH_COMPLEX64) real = TSH_FLOAT32;
    if (dtype == TSH_COMPLEX128) real = TSH_FLOAT64;
    TSHI_ISA(tshi_cpu_convert)(device, 1, TSH_FLOAT64, &value, real, element);
    tshi_cpu_repeat(tsh_dtype_size(dtype), element, n, 65536, to);
}
