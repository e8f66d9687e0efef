#include "support/values.h"

#include <math.h>
#include <string.h>

static bool is_complex(tsh_dtype dtype) {
    return dtype == TSH_COMPLEX64 || dtype == TSH_COMPLEX128;
}

uint64_t tshi_mix(uint64_t x) {
    x += UINT64_C(0x9e3779b97f4a7c15);
    x = (x ^ x >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ x >> 27) * UINT64_C(0x94d049bb133111eb);
    return x ^ x >> 31;
}

tshi_number tshi_value(tsh_dtype dtype, tsh_reduce_op reduce, int rank, int64_t i) {
    uint64_t bits = tshi_mix((uint64_t)i * 64 + (uint64_t)rank);
    if (reduce == TSH_REDUCE_PROD) {
        double size = bits & 1 ? 2 : 1, sign = bits & 2 && dtype != TSH_UINT8 ? -1 : 1;
        return (tshi_number){is_complex(dtype) ? sign : sign * size, is_complex(dtype) ? (bits & 4 ? 1 : -1) : 0};
    }
    if (dtype == TSH_UINT8) return (tshi_number){(double)(bits % 9), 0};
    return (tshi_number){(double)(bits % 17) - 8, is_complex(dtype) ? (double)(bits / 17 % 17) - 8 : 0};
}

tshi_number tshi_reduce_numbers(tsh_reduce_op reduce, tshi_number a, tshi_number b) {
    switch (reduce) {
    case TSH_REDUCE_PROD: return (tshi_number){a.re * b.re - a.im * b.im, a.re * b.im + a.im * b.re};
    case TSH_REDUCE_MIN: return a.re < b.re ? a : b;
    case TSH_REDUCE_MAX: return a.re > b.re ? a : b;
    case TSH_REDUCE_BAND: return (tshi_number){(double)((int64_t)a.re & (int64_t)b.re), 0};
    case TSH_REDUCE_BOR: return (tshi_number){(double)((int64_t)a.re | (int64_t)b.re), 0};
    case TSH_REDUCE_BXOR: return (tshi_number){(double)((int64_t)a.re ^ (int64_t)b.re), 0};
    default: return (tshi_number){a.re + b.re, a.im + b.im};
    }
}

/* Of a number that is neither tiny nor huge, to the nearest, ties to even. */
static uint16_t half_bits(double value) {
    int exponent;
    if (value == 0) return signbit(value) ? 0x8000 : 0;
    double fraction = frexp(fabs(value), &exponent);
    int mantissa = (int)rint(fraction * 2048) - 1024; /* 1024 carries into the exponent */
    return (uint16_t)((value < 0 ? 0x8000 : 0) + ((exponent + 14) << 10) + mantissa);
}

static uint16_t bfloat_bits(double value) {
    float f = (float)value;
    uint32_t bits;
    memcpy(&bits, &f, sizeof bits);
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

void tshi_put(tsh_dtype dtype, void *data, int64_t i, tshi_number value) {
    switch (dtype) {
    case TSH_FLOAT32: ((float *)data)[i] = (float)value.re; break;
    case TSH_FLOAT64: ((double *)data)[i] = value.re; break;
    case TSH_BFLOAT16: ((uint16_t *)data)[i] = bfloat_bits(value.re); break;
    case TSH_FLOAT16: ((uint16_t *)data)[i] = half_bits(value.re); break;
    case TSH_INT32: ((int32_t *)data)[i] = (int32_t)value.re; break;
    case TSH_INT64: ((int64_t *)data)[i] = (int64_t)value.re; break;
    case TSH_UINT8: ((uint8_t *)data)[i] = (uint8_t)value.re; break;
    case TSH_COMPLEX64:
        ((float *)data)[2 * i] = (float)value.re;
        ((float *)data)[2 * i + 1] = (float)value.im;
        break;
    default:
        ((double *)data)[2 * i] = value.re;
        ((double *)data)[2 * i + 1] = value.im;
        break;
    }
}

bool tshi_is(tsh_dtype dtype, const void *data, int64_t i, tshi_number value) {
    unsigned char wanted[16];
    size_t size = tsh_dtype_size(dtype);
    tshi_put(dtype, wanted, 0, value);
    /* The sign of a zero in a complex product depends on the order of the factors. */
    if (dtype == TSH_COMPLEX64) {
        const float *got = (const float *)data + 2 * i;
        return got[0] == (float)value.re && got[1] == (float)value.im;
    }
    if (dtype == TSH_COMPLEX128) {
        const double *got = (const double *)data + 2 * i;
        return got[0] == value.re && got[1] == value.im;
    }
    return !memcmp((const char *)data + (size_t)i * size, wanted, size);
}
