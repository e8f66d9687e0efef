/* How kernels see elements. A typed .inc file is compiled once for each float dtype, after the file of the dtype's name
 * (float32.inc, ...), which sets
 *   ITEM       an element in memory: float, double, or 16 bits in a structure, which no arithmetic takes for a number;
 *   REAL       what it is computed in, tshi_dtype_sum's: float for ITEMs of 16 bits, else ITEM. Statistics are REAL;
 *   LOAD(x)    the REAL of an ITEM;
 *   SAVE(x)    the ITEM nearest to a REAL, ties to even: once for each element of a result;
 *   LOWEST     the lowest finite REAL;
 *   NAME(f)    f's name for the dtype, MATH(f) for REAL: tshi_exp_f32 of vector_math.h serves bfloat16 too;
 *   DTYPE      the dtype. */
#ifndef TSHI_CPU_HALF_H
#define TSHI_CPU_HALF_H

#include "device/cpu/isa/loops.h"

#include <float.h>
#include <stdint.h>
#include <string.h>

typedef struct tshi_bfloat16 {
    uint16_t bits;
} tshi_bfloat16;

typedef struct tshi_float16 {
    uint16_t bits;
} tshi_float16;

TSHI_INLINE uint32_t tshi_bits_of_float(float x) {
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

TSHI_INLINE float tshi_float_of_bits(uint32_t bits) {
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

TSHI_INLINE float tshi_widen_bf16(tshi_bfloat16 h) {
    return tshi_float_of_bits((uint32_t)h.bits << 16);
}

TSHI_INLINE tshi_bfloat16 tshi_narrow_bf16(float x) {
    uint32_t bits = tshi_bits_of_float(x);
    bits = x != x ? (bits & 0xffff0000u) | 0x400000u : bits; /* a quiet NaN that rounding does not change */
    return (tshi_bfloat16){(uint16_t)((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16)};
}

/* Rebases the exponent from bias 15 to 127; infinities and NaNs get the largest exponent. Subnormals are small
 * integers times 2^-24. */
TSHI_INLINE float tshi_widen_f16(tshi_float16 h) {
    uint32_t magnitude = h.bits & 0x7fffu;
    uint32_t normal = (magnitude << 13) + 0x38000000u;
    uint32_t subnormal = tshi_bits_of_float((float)(int32_t)magnitude * 0x1p-24f);
    uint32_t bits = magnitude < 0x400u ? subnormal : normal;
    bits += magnitude >= 0x7c00u ? 0x38000000u : 0u;
    return tshi_float_of_bits(bits | (uint32_t)(h.bits & 0x8000u) << 16);
}

TSHI_INLINE tshi_float16 tshi_narrow_f16(float x) {
    uint32_t bits = tshi_bits_of_float(x);
    uint32_t sign = bits >> 16 & 0x8000u;
    uint32_t magnitude = bits & 0x7fffffffu;
    /* below 2^-14: adding 1/2 shifts the subnormal's rounded bits to the low end of the sum */
    uint32_t small = tshi_bits_of_float(tshi_float_of_bits(magnitude) + 0.5f) - 0x3f000000u;
    uint32_t normal = (magnitude - 0x38000000u + 0xfffu + (magnitude >> 13 & 1u)) >> 13;
    uint32_t nan = 0x7e00u | (magnitude >> 13 & 0x3ffu);
    uint32_t result = magnitude < 0x38800000u ? small : normal;
    result = magnitude >= 0x47800000u ? 0x7c00u : result;
    result = magnitude > 0x7f800000u ? nan : result;
    return (tshi_float16){(uint16_t)(result | sign)};
}

#endif
