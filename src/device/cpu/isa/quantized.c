/* Products with weights in groups of 32 quants, Q8_0 and Q4_0, which are read once and never widened in memory. */
#include "device/cpu/isa/elements.h"
#include "device/cpu/isa/kernels.h"

#include <math.h>

/* Prefetch distance in bytes. */
#define AHEAD 1024

/* A group in memory: a float16 scale, then the quants. */
enum { SCALE = 2, Q8_BYTES = SCALE + TSHI_GROUP, Q4_BYTES = SCALE + TSHI_GROUP / 2 };

TSHI_INLINE int64_t bytes_of(tshi_quant format) {
    return format == TSHI_Q8_0 ? Q8_BYTES : Q4_BYTES;
}

TSHI_INLINE float scale_of(const unsigned char *group) {
    uint16_t bits;
    memcpy(&bits, group, sizeof bits);
#if TSHI_VECTOR_BYTES > 16
    return _cvtsh_ss(bits);
#else
    return tshi_widen_f16((tshi_float16){bits});
#endif
}

/* --- activations -------------------------------------------------------------------------------------------------- */

/* d = NaN in a group with an infinity or a NaN: so are all sums with it. */
static void quantize_group(const float x[TSHI_GROUP], tshi_group *to) {
    float most = 0, strange = 0;
    for (int i = 0; i < TSHI_GROUP; i++) {
        float size = fabsf(x[i]);
        most = size > most ? size : most;
        strange += x[i] - x[i]; /* 0, or NaN */
    }
    bool is_zero = !(most >= 0x1p-120f) || strange != 0;
    float d = is_zero ? strange : most / 127, inverse = is_zero ? 0 : 1 / d;
    to->d = d >= 0x1p-14f && d <= 65504 ? tshi_widen_f16(tshi_narrow_f16(d)) : d;
    for (int i = 0; i < TSHI_GROUP; i++) to->q[i] = is_zero ? 0 : (int8_t)rintf(x[i] * inverse);
}

static void quantize_activations(int64_t cols, int64_t from, int64_t end, const float *x, tshi_group *to) {
    const int64_t groups = tshi_groups(cols), rest = cols % TSHI_GROUP;
    for (int64_t r = from; r < end; r++) {
        const float *row = x + r * cols;
        tshi_group *out = to + r * groups;
        for (int64_t g = 0; g < cols / TSHI_GROUP; g++) quantize_group(row + g * TSHI_GROUP, out + g);
        if (rest == 0) continue;
        float last[TSHI_GROUP] = {0};
        memcpy(last, row + cols - rest, (size_t)rest * sizeof *last);
        quantize_group(last, out + groups - 1);
    }
}

/* --- products ----------------------------------------------------------------------------------------------------- */

/* The sums of a row of w: added to with one group after another, then added up. */
#if TSHI_VECTOR_BYTES > 16
typedef __m256 row_sum;

TSHI_INLINE row_sum no_sum(void) {
    return _mm256_setzero_ps();
}

TSHI_INLINE __m256i load_quants(tshi_quant format, const unsigned char *group) {
    if (format == TSHI_Q8_0) return _mm256_loadu_si256((const __m256i *)(const void *)(group + SCALE));
    __m128i low = _mm_loadu_si128((const __m128i *)(const void *)(group + SCALE)), high = _mm_srli_epi16(low, 4);
    __m256i both = _mm256_and_si256(_mm256_set_m128i(high, low), _mm256_set1_epi8(15));
    return _mm256_sub_epi8(both, _mm256_set1_epi8(8));
}

/* The instructions multiply unsigned by signed bytes: |w| by x with the sign of w. A w of -128 is 128 there, and pairs
 * of products stay below 2^15. */
TSHI_INLINE row_sum add_group(tshi_quant format, row_sum sum, const unsigned char *w, const tshi_group *x) {
    __m256i quants = load_quants(format, w), size = _mm256_abs_epi8(quants);
    __m256i other = _mm256_sign_epi8(_mm256_loadu_si256((const __m256i *)(const void *)x->q), quants);
    __m256i pairs = _mm256_madd_epi16(_mm256_maddubs_epi16(size, other), _mm256_set1_epi16(1));
    return _mm256_fmadd_ps(_mm256_set1_ps(scale_of(w) * x->d), _mm256_cvtepi32_ps(pairs), sum);
}

TSHI_INLINE float total_of(row_sum a, row_sum b) {
    __m256 all = _mm256_add_ps(a, b);
    __m128 four = _mm_add_ps(_mm256_castps256_ps128(all), _mm256_extractf128_ps(all, 1));
    __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}
#else
typedef float row_sum;

TSHI_INLINE row_sum no_sum(void) {
    return 0;
}

TSHI_INLINE row_sum add_group(tshi_quant format, row_sum sum, const unsigned char *w, const tshi_group *x) {
    const unsigned char *quants = w + SCALE;
    int32_t exact = 0;
    if (format == TSHI_Q8_0) {
        for (int i = 0; i < TSHI_GROUP; i++) exact += (int8_t)quants[i] * x->q[i];
    } else {
        for (int i = 0; i < TSHI_GROUP / 2; i++)
            exact += ((quants[i] & 15) - 8) * x->q[i] + ((quants[i] >> 4) - 8) * x->q[i + TSHI_GROUP / 2];
    }
    return sum + scale_of(w) * x->d * (float)exact;
}

TSHI_INLINE float total_of(row_sum a, row_sum b) {
    return a + b;
}
#endif

TSHI_INLINE float multiply_rows(tshi_quant format, int64_t groups, const unsigned char *w, const tshi_group *x) {
    const int64_t bytes = bytes_of(format);
    row_sum even = no_sum(), odd = no_sum();
    int64_t g = 0;
    for (; g + 2 <= groups; g += 2, w += 2 * bytes) {
        __builtin_prefetch(w + AHEAD);
        even = add_group(format, even, w, x + g);
        odd = add_group(format, odd, w + bytes, x + g + 1);
    }
    if (g < groups) even = add_group(format, even, w, x + g);
    return total_of(even, odd);
}

/* All rows of x are multiplied with a row of w while that is in the cache. */
TSHI_INLINE void multiply_format(tshi_quant format, const tshi_quantized_product *p, int64_t from, int64_t end) {
    const int64_t row_bytes = p->groups * bytes_of(format);
    for (int64_t c = from; c < end; c++) {
        const unsigned char *w = (const unsigned char *)p->w + c * row_bytes;
        for (int64_t r = 0; r < p->m; r++)
            p->y[r * p->n + c] = multiply_rows(format, p->groups, w, p->x + r * p->groups);
    }
}

static void multiply(const tshi_quantized_product *p, int64_t from, int64_t end) {
    if (p->format == TSHI_Q8_0)
        multiply_format(TSHI_Q8_0, p, from, end);
    else
        multiply_format(TSHI_Q4_0, p, from, end);
}

/* --- weights as floats -------------------------------------------------------------------------------------------- */

TSHI_INLINE void widen_group(tshi_quant format, const unsigned char *group, float to[TSHI_GROUP]) {
    const unsigned char *quants = group + SCALE;
    const float d = scale_of(group);
    if (format == TSHI_Q8_0) {
        for (int i = 0; i < TSHI_GROUP; i++) to[i] = d * (float)(int8_t)quants[i];
    } else {
        for (int i = 0; i < TSHI_GROUP / 2; i++) to[i] = d * (float)((quants[i] & 15) - 8);
        for (int i = 0; i < TSHI_GROUP / 2; i++) to[i + TSHI_GROUP / 2] = d * (float)((quants[i] >> 4) - 8);
    }
}

TSHI_INLINE void widen_format(tshi_quant format, int64_t cols, int64_t from, int64_t end, const unsigned char *w,
                              float *to) {
    const int64_t groups = tshi_groups(cols), bytes = bytes_of(format), rest = cols % TSHI_GROUP;
    for (int64_t r = from; r < end; r++) {
        const unsigned char *row = w + r * groups * bytes;
        float *out = to + r * cols;
        for (int64_t g = 0; g < cols / TSHI_GROUP; g++) widen_group(format, row + g * bytes, out + g * TSHI_GROUP);
        if (rest == 0) continue;
        float last[TSHI_GROUP];
        widen_group(format, row + (groups - 1) * bytes, last);
        memcpy(out + cols - rest, last, (size_t)rest * sizeof *last);
    }
}

static void widen(tshi_quant format, int64_t cols, int64_t from, int64_t end, const void *w, float *to) {
    if (format == TSHI_Q8_0)
        widen_format(TSHI_Q8_0, cols, from, end, w, to);
    else
        widen_format(TSHI_Q4_0, cols, from, end, w, to);
}

const tshi_isa_quantized TSHI_ISA(tshi_cpu_quantized) = {
    .activations = quantize_activations, .multiply = multiply, .widen = widen};
