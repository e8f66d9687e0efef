/* Formats of quantized weights. */
#include "device/quant.h"

#include "device/cpu/isa/elements.h"

#include <math.h>

/* A little-endian float16 without alignment. */
static float fp16_to_fp32(const unsigned char *at) {
    return tshi_widen_f16((tshi_float16){(uint16_t)(at[0] | at[1] << 8)});
}

static void fp32_to_fp16(float x, unsigned char *at) {
    uint16_t bits = tshi_narrow_f16(x).bits;
    at[0] = (unsigned char)(bits & 0xff);
    at[1] = (unsigned char)(bits >> 8);
}

/* --- groups of 32 ------------------------------------------------------------------------------------------------- */

enum { GROUP = 32 };

/* A scale d, and 32 signed bytes q: the weights are d q. */
enum { Q8_0_BYTES = 2 + GROUP };

static void dequantize_q8_0(int64_t groups, const void *from, float *to) {
    const unsigned char *at = from;
    for (int64_t g = 0; g < groups; g++, at += Q8_0_BYTES, to += GROUP) {
        float d = fp16_to_fp32(at);
        for (int i = 0; i < GROUP; i++) to[i] = d * (float)(int8_t)at[2 + i];
    }
}

static void quantize_q8_0(int64_t groups, const float *from, void *to) {
    unsigned char *at = to;
    for (int64_t g = 0; g < groups; g++, at += Q8_0_BYTES, from += GROUP) {
        float largest = 0;
        for (int i = 0; i < GROUP; i++) largest = fmaxf(largest, fabsf(from[i]));
        float d = largest / 127, inverse = d > 0 ? 1 / d : 0;
        fp32_to_fp16(d, at);
        for (int i = 0; i < GROUP; i++) at[2 + i] = (unsigned char)(int8_t)roundf(from[i] * inverse);
    }
}

/* A scale d, and 16 bytes, whose low halves q are the first 16 weights' and whose high halves are the others': the
 * weights are d (q - 8). */
enum { Q4_0_BYTES = 2 + GROUP / 2 };

static void dequantize_q4_0(int64_t groups, const void *from, float *to) {
    const unsigned char *at = from;
    for (int64_t g = 0; g < groups; g++, at += Q4_0_BYTES, to += GROUP) {
        float d = fp16_to_fp32(at);
        for (int i = 0; i < GROUP / 2; i++) {
            to[i] = d * (float)((at[2 + i] & 15) - 8);
            to[i + GROUP / 2] = d * (float)((at[2 + i] >> 4) - 8);
        }
    }
}

/* The sum is rounded once, as with a fused multiply-add: a product rounded by itself changes a few quants. */
static int quantize_4_bits(float x, float inverse) {
    int q = (int)((double)x * (double)inverse + 8.5);
    return q < 15 ? q : 15;
}

static void quantize_q4_0(int64_t groups, const float *from, void *to) {
    unsigned char *at = to;
    for (int64_t g = 0; g < groups; g++, at += Q4_0_BYTES, from += GROUP) {
        float largest = 0;
        for (int i = 0; i < GROUP; i++) largest = fabsf(from[i]) > fabsf(largest) ? from[i] : largest;
        float d = largest / -8, inverse = fabsf(d) > 0 ? 1 / d : 0;
        fp32_to_fp16(d, at);
        for (int i = 0; i < GROUP / 2; i++) {
            int low = quantize_4_bits(from[i], inverse), high = quantize_4_bits(from[i + GROUP / 2], inverse);
            at[2 + i] = (unsigned char)(low | high << 4);
        }
    }
}

/* --- groups of 256 ------------------------------------------------------------------------------------------------ */

enum { SUPER = 256, SCALES = 12, PARTS = 8 };

/* Scale and offset, of 6 bits each, of part i of 8: the first four parts' are the low bits of bytes 0 to 3 and 4 to 7,
 * whose two high bits belong to the last four parts, with 4 bits each in bytes 8 to 11. */
static void unpack_scales(const unsigned char *packed, int i, int *scale, int *offset) {
    if (i < 4) {
        *scale = packed[i] & 63;
        *offset = packed[i + 4] & 63;
    } else {
        *scale = (packed[i + 4] & 15) | (packed[i - 4] >> 6) << 4;
        *offset = (packed[i + 4] >> 4) | (packed[i] >> 6) << 4;
    }
}

/* Scales d and m, 12 bytes of scales s and offsets o of the 8 parts, with 5 bits a plane of 32 bytes with one bit for
 * each part, and 4 bits q for each weight; two parts share 32 bytes: the weights are d s q - m o. */
static void dequantize_parts(int bits, const unsigned char *at, float *to) {
    const unsigned char *scales = at + 4, *plane = scales + SCALES, *quants = bits == 5 ? plane + 32 : plane;
    float d = fp16_to_fp32(at), m = fp16_to_fp32(at + 2);
    for (int part = 0; part < PARTS; part++, to += 32) {
        int scale, offset;
        unpack_scales(scales, part, &scale, &offset);
        float step = d * (float)scale, base = m * (float)offset;
        for (int i = 0; i < 32; i++) {
            int q = quants[part / 2 * 32 + i] >> (part % 2 * 4) & 15;
            if (bits == 5) q |= (plane[i] >> part & 1) << 4;
            to[i] = step * (float)q - base;
        }
    }
}

enum { Q4_K_BYTES = 4 + SCALES + SUPER / 2, Q5_K_BYTES = Q4_K_BYTES + SUPER / 8 };

static void dequantize_q4_k(int64_t groups, const void *from, float *to) {
    for (int64_t g = 0; g < groups; g++)
        dequantize_parts(4, (const unsigned char *)from + g * Q4_K_BYTES, to + g * SUPER);
}

static void dequantize_q5_k(int64_t groups, const void *from, float *to) {
    for (int64_t g = 0; g < groups; g++)
        dequantize_parts(5, (const unsigned char *)from + g * Q5_K_BYTES, to + g * SUPER);
}

/* For each half of 128 weights 64 bytes of low 4 bits; then for each half 32 bytes of high 2 bits; 16 signed scales s,
 * one for 16 weights; and a scale d: the weights are d s (q - 32). A half's four rows of 32 take the low halves of its
 * first and last 32 bytes, then the high halves, and the pairs of bits of its 32 bytes from the low end up. */
enum { Q6_K_BYTES = SUPER / 2 + SUPER / 4 + SUPER / 16 + 2 };

static void dequantize_q6_k(int64_t groups, const void *from, float *to) {
    const unsigned char *at = from;
    for (int64_t g = 0; g < groups; g++, at += Q6_K_BYTES, to += SUPER) {
        const unsigned char *low = at, *high = at + SUPER / 2, *scales = high + SUPER / 4;
        float d = fp16_to_fp32(scales + SUPER / 16);
        for (int i = 0; i < SUPER; i++) {
            int half = i / 128, row = i / 32 % 4, col = i % 32;
            int q = low[half * 64 + row % 2 * 32 + col] >> (row / 2 * 4) & 15;
            q |= (high[half * 32 + col] >> (row * 2) & 3) << 4;
            to[i] = d * (float)(int8_t)scales[i / 16] * (float)(q - 32);
        }
    }
}

/* --- formats ------------------------------------------------------------------------------------------------------ */

static const tshi_quant_format formats[TSHI_QUANTS] = {
    [TSHI_Q4_0] = {TSHI_Q4_0, "Q4_0", GROUP, Q4_0_BYTES, dequantize_q4_0, quantize_q4_0},
    [TSHI_Q8_0] = {TSHI_Q8_0, "Q8_0", GROUP, Q8_0_BYTES, dequantize_q8_0, quantize_q8_0},
    [TSHI_Q4_K] = {TSHI_Q4_K, "Q4_K", SUPER, Q4_K_BYTES, dequantize_q4_k, NULL},
    [TSHI_Q5_K] = {TSHI_Q5_K, "Q5_K", SUPER, Q5_K_BYTES, dequantize_q5_k, NULL},
    [TSHI_Q6_K] = {TSHI_Q6_K, "Q6_K", SUPER, Q6_K_BYTES, dequantize_q6_k, NULL},
};

const tshi_quant_format *tshi_quant_format_of(tshi_quant quant) {
    return &formats[quant];
}
