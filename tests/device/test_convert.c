/* Conversions between element types, fills and copies. */
#include "kernel_test.h"

#include <limits.h>

TestSuite(convert, .timeout = 120);

/* What a 16-bit float with `fraction` fraction bits stands for, from its definition. */
static double half_value(uint16_t h, int fraction) {
    int exponent_bits = 15 - fraction;
    int bias = (1 << (exponent_bits - 1)) - 1;
    int exponent = h >> fraction & ((1 << exponent_bits) - 1);
    int mantissa = h & ((1 << fraction) - 1);
    double sign = h & 0x8000 ? -1.0 : 1.0;
    if (exponent == (1 << exponent_bits) - 1) return mantissa ? NAN : sign * INFINITY;
    if (exponent == 0) return sign * ldexp(mantissa, 1 - bias - fraction);
    return sign * ldexp(mantissa + (1 << fraction), exponent - bias - fraction);
}

typedef struct half {
    tsh_dtype dtype;
    int fraction;
    uint16_t infinity;
} half;

static const half halves[2] = {{TSH_BFLOAT16, 7, 0x7f80}, {TSH_FLOAT16, 10, 0x7c00}};

static uint16_t from_double(tsh_dtype dtype, double value) {
    uint16_t h = 0;
    kernels()->copy.convert(kernel_device(), 1, TSH_FLOAT64, &value, dtype, &h);
    return h;
}

static uint16_t from_float(tsh_dtype dtype, float value) {
    uint16_t h = 0;
    kernels()->copy.convert(kernel_device(), 1, TSH_FLOAT32, &value, dtype, &h);
    return h;
}

Test(convert, every_half_pattern_widens_and_comes_back) {
    enum { N = 65536 };
    uint16_t *all = malloc(N * sizeof *all), *back = malloc(N * sizeof *back);
    float *wide = malloc(N * sizeof *wide);
    double *wider = malloc(N * sizeof *wider);
    for (int i = 0; i < N; i++) all[i] = (uint16_t)i;
    for (int k = 0; k < 2; k++) {
        tsh_dtype dtype = halves[k].dtype;
        kernels()->copy.convert(kernel_device(), N, dtype, all, TSH_FLOAT32, wide);
        kernels()->copy.convert(kernel_device(), N, dtype, all, TSH_FLOAT64, wider);
        for (int pass = 0; pass < 2; pass++) {
            if (pass == 0)
                kernels()->copy.convert(kernel_device(), N, TSH_FLOAT32, wide, dtype, back);
            else
                kernels()->copy.convert(kernel_device(), N, TSH_FLOAT64, wider, dtype, back);
            for (int i = 0; i < N; i++) {
                double wanted = half_value((uint16_t)i, halves[k].fraction);
                if (isnan(wanted)) {
                    cr_assert(isnan(wide[i]) && isnan(wider[i]));
                    cr_assert(isnan(half_value(back[i], halves[k].fraction)), "%04x became %04x", i, back[i]);
                } else {
                    cr_assert_eq((double)wide[i], wanted, "%s %04x", tsh_dtype_name(dtype), i);
                    cr_assert_eq(wider[i], wanted);
                    cr_assert_eq(back[i], i, "%s %04x became %04x", tsh_dtype_name(dtype), i, back[i]);
                }
            }
        }
    }
    free(all);
    free(back);
    free(wide);
    free(wider);
}

/* Between every two neighbours: the middle goes to the even one, a hair beside it to the nearer. */
Test(convert, narrowing_rounds_to_nearest_even) {
    for (int k = 0; k < 2; k++) {
        tsh_dtype dtype = halves[k].dtype;
        for (int i = 0; i + 1 < halves[k].infinity; i++) {
            double low = half_value((uint16_t)i, halves[k].fraction);
            double high = half_value((uint16_t)(i + 1), halves[k].fraction);
            double middle = (low + high) / 2;
            int even = i % 2 == 0 ? i : i + 1;
            cr_assert_eq(from_double(dtype, middle), even, "%s %04x", tsh_dtype_name(dtype), i);
            cr_assert_eq(from_double(dtype, -middle), even | 0x8000);
            cr_assert_eq(from_double(dtype, nextafter(middle, 0)), i, "no rounding on the way through float32");
            cr_assert_eq(from_double(dtype, nextafter(middle, INFINITY)), i + 1);
            if ((double)(float)middle != middle) continue; /* a subnormal of bfloat16's that float32 lacks */
            cr_assert_eq(from_float(dtype, (float)middle), even);
            cr_assert_eq(from_float(dtype, nextafterf((float)middle, 0)), i);
            cr_assert_eq(from_float(dtype, nextafterf((float)middle, INFINITY)), i + 1);
        }
    }
}

Test(convert, narrowing_at_the_ends) {
    for (int k = 0; k < 2; k++) {
        const half *h = &halves[k];
        double largest = half_value((uint16_t)(h->infinity - 1), h->fraction);
        double step = largest - half_value((uint16_t)(h->infinity - 2), h->fraction);
        cr_assert_eq(from_double(h->dtype, largest + step / 2), h->infinity);
        cr_assert_eq(from_double(h->dtype, nextafter(largest + step / 2, 0)), h->infinity - 1);
        cr_assert_eq(from_double(h->dtype, 1e300), h->infinity);
        cr_assert_eq(from_double(h->dtype, -INFINITY), h->infinity | 0x8000);
        cr_assert_eq(from_double(h->dtype, 1e-300), 0);
        cr_assert_eq(from_double(h->dtype, -1e-300), 0x8000);
        cr_assert(isnan(half_value(from_float(h->dtype, NAN), h->fraction)));
        uint32_t quiet_little = 0x7f800001u; /* a NaN whose bits all lie below what is kept */
        float nan;
        memcpy(&nan, &quiet_little, sizeof nan);
        cr_assert(isnan(half_value(from_float(h->dtype, nan), h->fraction)));
    }
}

static double value_at(tsh_dtype dtype, const void *data, int64_t i) {
    switch (dtype) {
    case TSH_FLOAT32: return (double)((const float *)data)[i];
    case TSH_FLOAT64: return ((const double *)data)[i];
    case TSH_BFLOAT16: return half_value(((const uint16_t *)data)[i], 7);
    case TSH_FLOAT16: return half_value(((const uint16_t *)data)[i], 10);
    case TSH_INT32: return ((const int32_t *)data)[i];
    case TSH_INT64: return (double)((const int64_t *)data)[i];
    default: return ((const uint8_t *)data)[i];
    }
}

Test(convert, small_integers_survive_between_all_types) {
    for (int from = 0; from <= TSH_UINT8; from++) {
        for (int to = 0; to <= TSH_UINT8; to++) {
            for (int s = 0; s < ODD_SIZES; s++) {
                int64_t n = odd_sizes[s];
                bool is_unsigned = from == TSH_UINT8 || to == TSH_UINT8;
                buffer a = buffer_make((tsh_dtype)from, n), b = buffer_make((tsh_dtype)to, n);
                for (int64_t i = 0; i < n; i++) {
                    double value = (double)(random_word() % 100) - (is_unsigned ? 0 : 50);
                    kernels()->copy.convert(kernel_device(), 1, TSH_FLOAT64, &value, a.dtype,
                                            (char *)a.data + (size_t)i * tsh_dtype_size(a.dtype));
                }
                kernels()->copy.convert(kernel_device(), n, a.dtype, a.data, b.dtype, b.data);
                for (int64_t i = 0; i < n; i++) {
                    cr_assert_eq(value_at(b.dtype, b.data, i), value_at(a.dtype, a.data, i));
                }
                buffer_free(&a);
                buffer_free(&b);
            }
        }
    }
}

Test(convert, complex_goes_to_itself) {
    double a[6] = {1, 2, 3, 4, 5, 6}, b[6] = {0};
    kernels()->copy.convert(kernel_device(), 3, TSH_COMPLEX128, a, TSH_COMPLEX128, b);
    cr_assert_arr_eq(a, b, sizeof a);
}

Test(convert, floats_truncate_and_saturate) {
    const double in[] = {1.9, -1.9, 255.9, -0.5, 1e20, -1e20, NAN, INFINITY, 2147483647.5};
    const int32_t wanted32[] = {1, -1, 255, 0, INT32_MAX, INT32_MIN, 0, INT32_MAX, INT32_MAX};
    const int64_t wanted64[] = {1, -1, 255, 0, INT64_MAX, INT64_MIN, 0, INT64_MAX, 2147483647};
    const uint8_t wanted8[] = {1, 0, 255, 0, 255, 0, 0, 255, 255};
    int32_t to32[9];
    int64_t to64[9];
    uint8_t to8[9];
    kernels()->copy.convert(kernel_device(), 9, TSH_FLOAT64, in, TSH_INT32, to32);
    kernels()->copy.convert(kernel_device(), 9, TSH_FLOAT64, in, TSH_INT64, to64);
    kernels()->copy.convert(kernel_device(), 9, TSH_FLOAT64, in, TSH_UINT8, to8);
    for (int i = 0; i < 9; i++) {
        cr_assert_eq(to32[i], wanted32[i], "%g", in[i]);
        cr_assert_eq(to64[i], wanted64[i], "%g", in[i]);
        cr_assert_eq(to8[i], wanted8[i], "%g", in[i]);
    }
}

Test(convert, large_integers_round_once_or_saturate) {
    const int64_t in[] = {INT64_MAX,
                          INT64_MIN,
                          ((int64_t)1 << 53) + 1,
                          ((int64_t)1 << 62) + ((int64_t)1 << 38) + 1,
                          -(((int64_t)1 << 62) + ((int64_t)1 << 38) + 1),
                          ((int64_t)1 << 62) + ((int64_t)1 << 38),
                          0x123456789abcdef0};
    enum { N = sizeof in / sizeof in[0] };
    float f[N];
    double d[N];
    int32_t i32[N];
    uint8_t u8[N];
    kernels()->copy.convert(kernel_device(), N, TSH_INT64, in, TSH_FLOAT32, f);
    kernels()->copy.convert(kernel_device(), N, TSH_INT64, in, TSH_FLOAT64, d);
    kernels()->copy.convert(kernel_device(), N, TSH_INT64, in, TSH_INT32, i32);
    kernels()->copy.convert(kernel_device(), N, TSH_INT64, in, TSH_UINT8, u8);
    for (int i = 0; i < N; i++) {
        cr_assert_eq(f[i], (float)in[i], "%lld", (long long)in[i]);
        cr_assert_eq(d[i], (double)in[i]);
        cr_assert_eq(i32[i], in[i] < 0 ? INT32_MIN : INT32_MAX);
        cr_assert_eq(u8[i], in[i] < 0 ? 0 : 255);
    }
}

Test(convert, fill_reaches_every_element_of_every_type) {
    for (int dtype = 0; dtype < TSH_DTYPE_COUNT; dtype++) {
        for (int s = 0; s < ODD_SIZES + 1; s++) {
            int64_t n = s < ODD_SIZES ? odd_sizes[s] : 100003;
            buffer b = buffer_make((tsh_dtype)dtype, n);
            kernels()->copy.fill(kernel_device(), b.dtype, n, 3.0, b.data);
            for (int64_t i = 0; i < n; i++) {
                if (dtype == TSH_COMPLEX64) {
                    cr_assert(((float *)b.data)[2 * i] == 3.0f && ((float *)b.data)[2 * i + 1] == 0.0f);
                } else if (dtype == TSH_COMPLEX128) {
                    cr_assert(((double *)b.data)[2 * i] == 3.0 && ((double *)b.data)[2 * i + 1] == 0.0);
                } else {
                    cr_assert_eq(value_at(b.dtype, b.data, i), 3.0);
                }
            }
            buffer_free(&b);
        }
    }
}

Test(convert, copies) {
    unsigned char from[60], to[60];
    for (int i = 0; i < 60; i++) from[i] = (unsigned char)i;
    memset(to, 0xff, sizeof to);
    kernels()->copy.strided(kernel_device(), 3, 5, from + 2, 20, to + 1, 7);
    for (int i = 0; i < 60; i++) {
        int run = (i - 1) / 7, at = (i - 1) % 7;
        bool inside = i >= 1 && run < 3 && at < 5;
        cr_assert_eq(to[i], inside ? 2 + run * 20 + at : 0xff, "byte %d", i);
    }
    kernels()->copy.zero(kernel_device(), 10, to + 1);
    for (int i = 0; i < 12; i++) cr_assert_eq(to[i] == 0, i >= 1 && i <= 10);
    kernels()->copy.within(kernel_device(), 60, from, to);
    cr_assert_arr_eq(from, to, 60);
    kernels()->copy.within(kernel_device(), 0, NULL, NULL);
    kernels()->copy.zero(kernel_device(), 0, NULL);
    kernels()->copy.strided(kernel_device(), 0, 8, NULL, 8, NULL, 8);
    kernels()->copy.to_host(kernel_device(), 60, to, from);
    kernels()->copy.from_host(kernel_device(), 60, from, to);
    cr_assert_arr_eq(from, to, 60);
}
