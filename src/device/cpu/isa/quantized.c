/* Products with weights in groups of 32 quants, Q8_0 and Q4_0, which are read once and never dequantized in memory. */
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
    float amax = 0, nonfinite = 0;
    for (int i = 0; i < TSHI_GROUP; i++) {
        float size = fabsf(x[i]);
        amax = size > amax ? size : amax;
        nonfinite += x[i] - x[i]; /* 0, or NaN */
    }
    bool is_zero = !(amax >= 0x1p-120f) || nonfinite != 0;
    float d = is_zero ? nonfinite : amax / 127, inverse = is_zero ? 0 : 1 / d;
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

#ifndef TSHI_MULTIPLIES_INT8
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
#endif

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

#ifdef TSHI_MULTIPLIES_INT8
/* A product takes WEIGHT_ROWS rows of w and up to ROWS rows of x at once. The rows of w are far apart, so that the CPU
 * prefetches several streams of weights. */
enum { WEIGHT_ROWS = 4, ROWS = 4 };

/* Two groups of a row, the even one in the lower half. The instructions multiply unsigned by signed bytes: quants of w
 * are raised by an offset, and `start` is what the products with that offset sum up to, negated. The integers are those
 * of add_group, and the floats are added in its order. */
typedef struct group_pair {
    __m512i quants, start;
    __m512 scale;
} group_pair;

TSHI_INLINE __m256i load_bytes(const void *at) {
    return _mm256_loadu_si256((const __m256i *)at);
}

TSHI_INLINE __m512i load_nibbles(const unsigned char *even, const unsigned char *odd) {
    __m512i all = _mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i *)(const void *)even));
    all = _mm512_mask_broadcast_i64x2(all, 0xf0, _mm_loadu_si128((const __m128i *)(const void *)odd));
    return _mm512_and_si512(_mm512_mask_srli_epi16(all, 0xff00ff00, all, 4), _mm512_set1_epi8(15));
}

/* Without a second group, the scale of the odd one is 0, and its quants are multiplied by zeros. */
TSHI_INLINE group_pair load_weights(tshi_quant format, const unsigned char *even, bool both) {
    const unsigned char *odd = both ? even + bytes_of(format) : even;
    uint16_t first, second;
    memcpy(&first, even, sizeof first);
    memcpy(&second, odd, sizeof second);
    __m256i halves = _mm256_mask_set1_epi16(_mm256_set1_epi16((short)first), 0xff00, both ? (short)second : 0);
    group_pair pair = {.scale = _mm512_cvtph_ps(halves)};
    if (format == TSHI_Q8_0) {
        __m512i quants = _mm512_castsi256_si512(load_bytes(even + SCALE));
        quants = _mm512_inserti64x4(quants, load_bytes(odd + SCALE), 1);
        pair.quants = _mm512_xor_si512(quants, _mm512_set1_epi8(-128));
    } else {
        pair.quants = load_nibbles(even + SCALE, odd + SCALE);
    }
    return pair;
}

TSHI_INLINE group_pair load_activations(tshi_quant format, const tshi_group *x, bool both) {
    const __m512i offset = _mm512_set1_epi8(format == TSHI_Q8_0 ? -128 : 8), zeros = _mm512_setzero_si512();
    group_pair pair;
    pair.quants = _mm512_zextsi256_si512(load_bytes(x->q));
    if (both) pair.quants = _mm512_inserti64x4(pair.quants, load_bytes(x[1].q), 1);
    pair.start = _mm512_sub_epi32(zeros, _mm512_dpbusd_epi32(zeros, offset, pair.quants));
    pair.scale = _mm512_mask_blend_ps(0xff00, _mm512_set1_ps(x->d), _mm512_set1_ps(both ? x[1].d : 0));
    return pair;
}

TSHI_INLINE void add_pairs(tshi_quant format, int rows, const unsigned char *const w[WEIGHT_ROWS], const tshi_group *x,
                           int64_t groups, bool both, __m512 sum[ROWS][WEIGHT_ROWS]) {
    group_pair weights[WEIGHT_ROWS];
    TSHI_UNROLL
    for (int c = 0; c < WEIGHT_ROWS; c++) weights[c] = load_weights(format, w[c], both);
    TSHI_UNROLL
    for (int r = 0; r < rows; r++) {
        const group_pair a = load_activations(format, x + r * groups, both);
        TSHI_UNROLL
        for (int c = 0; c < WEIGHT_ROWS; c++) {
            __m512i exact = _mm512_dpbusd_epi32(a.start, weights[c].quants, a.quants);
            __m512 scale = _mm512_mul_ps(weights[c].scale, a.scale);
            sum[r][c] = _mm512_fmadd_ps(scale, _mm512_cvtepi32_ps(exact), sum[r][c]);
        }
    }
}

/* y[r, c] for `rows` rows of x, a constant, and `count` rows of w; y's columns are `apart` elements apart. */
TSHI_INLINE void multiply_block(tshi_quant format, int rows, const tshi_quantized_product *p,
                                const unsigned char *const first[WEIGHT_ROWS], const tshi_group *x, int count,
                                int64_t apart, float *y) {
    const int64_t bytes = bytes_of(format);
    const unsigned char *w[WEIGHT_ROWS];
    __m512 sum[ROWS][WEIGHT_ROWS];
    TSHI_UNROLL
    for (int c = 0; c < WEIGHT_ROWS; c++) w[c] = first[c];
    TSHI_UNROLL
    for (int i = 0; i < rows * WEIGHT_ROWS; i++) sum[i / WEIGHT_ROWS][i % WEIGHT_ROWS] = _mm512_setzero_ps();
    int64_t g = 0;
    for (; g + 2 <= p->groups; g += 2) {
        add_pairs(format, rows, w, x + g, p->groups, true, sum);
        TSHI_UNROLL
        for (int c = 0; c < WEIGHT_ROWS; c++) {
            __builtin_prefetch(w[c] + AHEAD);
            w[c] += 2 * bytes;
        }
    }
    if (g < p->groups) add_pairs(format, rows, w, x + g, p->groups, false, sum);
    TSHI_UNROLL
    for (int r = 0; r < rows; r++) {
        TSHI_UNROLL
        for (int c = 0; c < WEIGHT_ROWS; c++) {
            if (c >= count) continue;
            __m512 both = sum[r][c];
            y[r * p->n + c * apart] = total_of(_mm512_castps512_ps256(both), _mm512_extractf32x8_ps(both, 1));
        }
    }
}

TSHI_INLINE void multiply_format(tshi_quant format, const tshi_quantized_product *p, int64_t from, int64_t end) {
    const int64_t row_bytes = p->groups * bytes_of(format), part = (end - from + WEIGHT_ROWS - 1) / WEIGHT_ROWS;
    for (int64_t c = from; c < from + part; c++) {
        const unsigned char *w[WEIGHT_ROWS];
        int count = 0, rows;
        for (int i = 0; i < WEIGHT_ROWS; i++) {
            int64_t row = c + i * part < end ? c + i * part : c;
            w[i] = (const unsigned char *)p->w + row * row_bytes;
            count += row == c + i * part;
        }
        for (int64_t r = 0; r < p->m; r += rows) {
            const tshi_group *x = p->x + r * p->groups;
            float *y = p->y + r * p->n + c;
            rows = p->m - r >= 4 ? 4 : p->m - r >= 2 ? 2 : 1;
            if (rows == 4)
                multiply_block(format, 4, p, w, x, count, part, y);
            else if (rows == 2)
                multiply_block(format, 2, p, w, x, count, part, y);
            else
                multiply_block(format, 1, p, w, x, count, part, y);
        }
    }
}
#else
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
#endif

static void multiply(const tshi_quantized_product *p, int64_t from, int64_t end) {
    if (p->format == TSHI_Q8_0)
        multiply_format(TSHI_Q8_0, p, from, end);
    else
        multiply_format(TSHI_Q4_0, p, from, end);
}

/* --- weights as floats -------------------------------------------------------------------------------------------- */

TSHI_INLINE void dequantize_group(tshi_quant format, const unsigned char *group, float to[TSHI_GROUP]) {
    const unsigned char *quants = group + SCALE;
    const float d = scale_of(group);
    if (format == TSHI_Q8_0) {
        for (int i = 0; i < TSHI_GROUP; i++) to[i] = d * (float)(int8_t)quants[i];
    } else {
        for (int i = 0; i < TSHI_GROUP / 2; i++) to[i] = d * (float)((quants[i] & 15) - 8);
        for (int i = 0; i < TSHI_GROUP / 2; i++) to[i + TSHI_GROUP / 2] = d * (float)((quants[i] >> 4) - 8);
    }
}

TSHI_INLINE void dequantize_format(tshi_quant format, int64_t cols, int64_t from, int64_t end, const unsigned char *w,
                                   float *to) {
    const int64_t groups = tshi_groups(cols), bytes = bytes_of(format), rest = cols % TSHI_GROUP;
    for (int64_t r = from; r < end; r++) {
        const unsigned char *row = w + r * groups * bytes;
        float *out = to + r * cols;
        for (int64_t g = 0; g < cols / TSHI_GROUP; g++) dequantize_group(format, row + g * bytes, out + g * TSHI_GROUP);
        if (rest == 0) continue;
        float last[TSHI_GROUP];
        dequantize_group(format, row + (groups - 1) * bytes, last);
        memcpy(out + cols - rest, last, (size_t)rest * sizeof *last);
    }
}

static void dequantize(tshi_quant format, int64_t cols, int64_t from, int64_t end, const void *w, float *to) {
    if (format == TSHI_Q8_0)
        dequantize_format(TSHI_Q8_0, cols, from, end, w, to);
    else
        dequantize_format(TSHI_Q4_0, cols, from, end, w, to);
}

const tshi_isa_quantized TSHI_TABLE(tshi_cpu_quantized) = {
    .activations = quantize_activations, .multiply = multiply, .dequantize = dequantize};
