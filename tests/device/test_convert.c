/* Conversions between element types, fills and copies. */
#include "kernel_test.h"

#include <limits.h>

TestSuite(convert, .timeout = 600);

enum { REAL = TSH_UINT8 + 1 };

typedef struct half {
    tsh_dtype dtype;
    uint16_t infinity;
} half;

static const half halves[2] = {{TSH_BFLOAT16, 0x7f80}, {TSH_FLOAT16, 0x7c00}};

static double half_value(tsh_dtype dtype, uint16_t h) {
    return (double)load_element(dtype, &h, 0);
}

static void convert(const buffer *from, const buffer *to) {
    kernels()->copy.convert(kernel_device(), from->n, from->dtype, from->data, to->dtype, to->data);
}

/* Every element is the one that its number is rounded to. NaNs may differ in their bits. */
static void expect_converted(const buffer *from, const buffer *to) {
    for (int64_t i = 0; i < from->n; i++) {
        char element[8];
        long double number = load_element(from->dtype, from->data, i), got = load_element(to->dtype, to->data, i);
        store_element(to->dtype, element, 0, number);
        bool same =
            memcmp(element, (char *)to->data + (size_t)i * tsh_dtype_size(to->dtype), tsh_dtype_size(to->dtype)) == 0;
        cr_assert(same || (isnan(number) && isnan(got)), "%s %.20Lg became %s %.20Lg, element %lld of %lld",
                  tsh_dtype_name(from->dtype), number, tsh_dtype_name(to->dtype), got, (long long)i,
                  (long long)from->n);
    }
}

static void check_convert(const buffer *from, tsh_dtype dtype) {
    buffer to = buffer_make(dtype, from->n);
    convert(from, &to);
    expect_converted(from, &to);
}

Test(convert, every_half_pattern_widens_and_comes_back) {
    enum { N = 65536 };
    for (int k = 0; k < 4; k++) {
        tsh_dtype dtype = halves[k / 2].dtype;
        buffer all = buffer_make(dtype, N), wide = buffer_make(float_dtypes[k % 2], N), back = buffer_make(dtype, N);
        for (int i = 0; i < N; i++) ((uint16_t *)all.data)[i] = (uint16_t)i;
        convert(&all, &wide);
        convert(&wide, &back);
        expect_converted(&all, &wide);
        for (int i = 0; i < N; i++) {
            uint16_t h = ((const uint16_t *)back.data)[i];
            if (isnan(half_value(dtype, (uint16_t)i)))
                cr_assert(isnan(half_value(dtype, h)), "%04x became %04x", (unsigned)i, h);
            else
                cr_assert_eq(h, i, "%s %04x became %04x", tsh_dtype_name(dtype), (unsigned)i, h);
        }
        free_buffers();
    }
}

/* Between every two neighbours: the middle goes to the even one, a hair beside it to the nearer: from float64 without a
 * rounding on the way through float32. */
static void check_middles(const half *h, tsh_dtype wide) {
    enum { EACH = 4 };
    buffer from = buffer_make(wide, EACH * h->infinity), to = buffer_make(h->dtype, from.n);
    for (int i = 0; i < h->infinity; i++) {
        double low = half_value(h->dtype, (uint16_t)i), high = half_value(h->dtype, (uint16_t)(i + 1));
        double middle = isinf(high) ? low + (low - half_value(h->dtype, (uint16_t)(i - 1))) / 2 : (low + high) / 2;
        set(&from, EACH * i, middle);
        set(&from, EACH * i + 1, -middle);
        for (int k = 0; k < 2; k++) {
            double to_side = k ? (double)INFINITY : 0, m = get(&from, EACH * i);
            double beside = wide == TSH_FLOAT64 ? nextafter(m, to_side) : (double)nextafterf((float)m, (float)to_side);
            set(&from, EACH * i + 2 + k, beside);
        }
    }
    convert(&from, &to);
    for (int i = 0; i < h->infinity; i++) {
        const uint16_t *got = (const uint16_t *)to.data + EACH * i;
        double low = half_value(h->dtype, (uint16_t)i), high = half_value(h->dtype, (uint16_t)(i + 1));
        if (!isinf(high) && get(&from, EACH * i) != (low + high) / 2) continue; /* a number that float32 lacks */
        int even = i % 2 == 0 ? i : i + 1;
        cr_assert_eq(got[0], even, "%s %04x: %04x", tsh_dtype_name(h->dtype), (unsigned)i, got[0]);
        cr_assert_eq(got[1], even | 0x8000);
        cr_assert_eq(got[2], i);
        cr_assert_eq(got[3], i + 1);
    }
    free_buffers();
}

Test(convert, narrowing_rounds_to_nearest_even) {
    for (int k = 0; k < 2; k++)
        for (int wide = 0; wide < 2; wide++) check_middles(&halves[k], float_dtypes[wide]);
}

static const double edges[] = {0,
                               -0.0,
                               0.5,
                               -0.5,
                               1.5,
                               -1.5,
                               1.9,
                               -1.9,
                               255,
                               255.5,
                               255.9,
                               256,
                               -1,
                               65504,
                               65519,
                               65520,
                               1e5,
                               -1e5,
                               2147483647,
                               2147483647.5,
                               2147483648.0,
                               -2147483648.0,
                               -2147483649.0,
                               16777217,
                               257,
                               258,
                               259,
                               0x1p63,
                               -0x1p63,
                               0x1p62,
                               1e20,
                               -1e20,
                               1e300,
                               -1e300,
                               1e-300,
                               -1e-300,
                               0x1p-24,
                               0x1p-25,
                               0x1.000002p-25,
                               0x1p-14,
                               0x1.ffcp-15,
                               0x1.01p0,
                               0x1.03p0,
                               0x1.0080000001p0,
                               0x1.00800001p0,
                               3.4e38,
                               3.5e38,
                               INFINITY,
                               -INFINITY,
                               NAN};
enum { EDGES = sizeof edges / sizeof *edges };
static const int64_t integers[] = {INT64_MAX,
                                   INT64_MIN,
                                   ((int64_t)1 << 53) + 1,
                                   0x123456789abcdef0,
                                   ((int64_t)1 << 62) + ((int64_t)1 << 38) + 1,
                                   ((int64_t)1 << 62) + ((int64_t)1 << 38)};

/* Bits of any kind, and what lies around the edges of the types. */
static buffer values_of(tsh_dtype dtype, int64_t n) {
    buffer b = buffer_make(dtype, n);
    for (size_t i = 0; i < bytes_of(&b); i++) ((unsigned char *)b.data)[i] = (unsigned char)(random_word() >> 7);
    for (int64_t i = 0; i < n && i < EDGES; i++) set(&b, i, edges[(i * 7 + n) % EDGES]);
    for (int64_t i = EDGES; i < n && i < 300 && dtype == TSH_INT64; i++) {
        int64_t power = (int64_t)1 << (i % 60); /* between two bfloat16, two float16 or two float32, and next to that */
        int64_t beside = power + (power >> (8 + i % 3 * 16 % 25)) + i % 5 - 2;
        ((int64_t *)b.data)[i] = i < EDGES + 12 ? integers[i % 6] : i % 2 ? beside : -beside;
    }
    return b;
}

Test(convert, between_all_types) {
    for (int bits = 0; bits < REAL * REAL * LAYOUTS; bits++) {
        tsh_dtype from = (tsh_dtype)(bits % REAL), to = (tsh_dtype)(bits / REAL % REAL);
        lay_buffers(bits / REAL / REAL);
        for (int s = 0; s < ODD_SIZES; s++) {
            buffer values = values_of(from, odd_sizes[s]);
            check_convert(&values, to);
            free_buffers();
        }
    }
}

Test(convert, complex_goes_to_itself) {
    buffer a = buffer_random(TSH_FLOAT64, 6, -1, 1), b = buffer_make(TSH_FLOAT64, 6);
    kernels()->copy.convert(kernel_device(), 3, TSH_COMPLEX128, a.data, TSH_COMPLEX128, b.data);
    settle();
    expect_same_bits(&a, &b, "complex numbers");
}

Test(convert, floats_truncate_and_saturate) {
    const double in[] = {1.9, -1.9, 255.9, -0.5, 1e20, -1e20, NAN, INFINITY, 2147483647.5};
    const int64_t wanted[3][9] = {{1, -1, 255, 0, INT32_MAX, INT32_MIN, 0, INT32_MAX, INT32_MAX},
                                  {1, -1, 255, 0, INT64_MAX, INT64_MIN, 0, INT64_MAX, 2147483647},
                                  {1, 0, 255, 0, 255, 0, 0, 255, 255}};
    for (int k = 0; k < 3; k++) {
        const tsh_dtype to[] = {TSH_INT32, TSH_INT64, TSH_UINT8};
        buffer from = buffer_of(TSH_FLOAT64, 9, in), there = buffer_make(to[k], 9);
        convert(&from, &there);
        for (int i = 0; i < 9; i++)
            cr_assert_eq((int64_t)load_element(to[k], there.data, i), wanted[k][i], "%g", in[i]);
    }
    free_buffers();
}

static void check_fill(tsh_dtype dtype, int64_t n, double value) {
    tsh_dtype part = dtype == TSH_COMPLEX64 ? TSH_FLOAT32 : dtype == TSH_COMPLEX128 ? TSH_FLOAT64 : dtype;
    buffer b = buffer_nans(dtype, n);
    char wanted[16] = {0};
    store_element(part, wanted, 0, value);
    kernels()->copy.fill(kernel_device(), dtype, n, value, b.data);
    for (int64_t i = 0; i < n; i++)
        cr_assert_eq(memcmp((char *)b.data + (size_t)i * tsh_dtype_size(dtype), wanted, tsh_dtype_size(dtype)), 0,
                     "%g in %s, element %lld of %lld", value, tsh_dtype_name(dtype), (long long)i, (long long)n);
    free_buffers();
}

Test(convert, fill_reaches_every_element_of_every_type) {
    const double some[] = {0, 1, 3, -2.75, 300, 1e300, 0x1.01p0, 1e-7};
    for (int dtype = 0; dtype < TSH_DTYPE_COUNT; dtype++) {
        for (int s = 0; s < ODD_SIZES; s++) {
            for (int v = 0; v < 8; v++) {
                lay_buffers((v + s) % LAYOUTS);
                check_fill((tsh_dtype)dtype, odd_sizes[s], some[v]);
            }
        }
        check_fill((tsh_dtype)dtype, 100003, 3);
    }
}

Test(convert, copies) {
    const tshi_copy_ops *copy = &kernels()->copy;
    buffer from = buffer_make(TSH_UINT8, 60), to = buffer_nans(TSH_UINT8, 60);
    unsigned char *a = from.data, *b = to.data, host[60];
    for (int i = 0; i < 60; i++) a[i] = (unsigned char)i;
    copy->strided(kernel_device(), 3, 5, a + 2, 20, b + 1, 7);
    settle();
    for (int i = 0; i < 60; i++) {
        int run = (i - 1) / 7, at = (i - 1) % 7;
        bool inside = i >= 1 && run < 3 && at < 5;
        cr_assert_eq(b[i], inside ? 2 + run * 20 + at : 0xff, "byte %d", i);
    }
    copy->zero(kernel_device(), 10, b + 1);
    settle();
    for (int i = 0; i < 12; i++) cr_assert_eq(b[i] == 0, i >= 1 && i <= 10);
    copy->within(kernel_device(), 60, a, b);
    settle();
    expect_same_bits(&from, &to, "a copy");
    copy->within(kernel_device(), 0, NULL, NULL);
    copy->zero(kernel_device(), 0, NULL);
    copy->strided(kernel_device(), 0, 8, NULL, 8, NULL, 8);
    copy->zero(kernel_device(), 60, b);
    copy->to_host(kernel_device(), 60, a, host);
    copy->from_host(kernel_device(), 60, host, b);
    settle();
    expect_same_bits(&from, &to, "a copy by the host");
    free_buffers();
}
