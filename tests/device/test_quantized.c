/* Products with quantized weights: integers make them exact, and the error of quantized activations has a bound. */
#include "kernel_test.h"

#include <float.h>

TestSuite(quantized, .timeout = 120);

static const tshi_quant formats[] = {TSHI_Q8_0, TSHI_Q4_0};

static size_t group_bytes(tshi_quant format) {
    return tshi_quant_format_of(format)->bytes;
}

/* Rows of groups whose scales are 1 or 2, and whose quants are any. */
static buffer random_weights(tshi_quant format, int64_t groups) {
    const int64_t bytes = (int64_t)group_bytes(format);
    buffer w = buffer_make(TSH_UINT8, groups * bytes);
    unsigned char *at = w.data;
    for (int64_t i = 0; i < w.n; i++) at[i] = (unsigned char)(random_word() & 255);
    for (int64_t g = 0; g < groups; g++, at += bytes) {
        at[0] = 0; /* float16 1 is 0x3c00, 2 is 0x4000 */
        at[1] = random_word() & 1 ? 0x3c : 0x40;
        if (g % 3 == 0) at[2] = 0x80; /* -128 for Q8_0 */
    }
    return w;
}

/* As floats, since buffers have no elements of that size. */
static buffer activations_make(int64_t groups) {
    cr_assert_eq(sizeof(tshi_group), 36);
    return statistics_make(TSH_FLOAT32, groups * 9);
}

static void check_products(tshi_quant format, int64_t m, int64_t n, int64_t groups) {
    buffer x = activations_make(m * groups), w = random_weights(format, n * groups),
           y = buffer_nans(TSH_FLOAT32, m * n);
    tshi_group *at = x.data;
    float *floats = calloc((size_t)(n * groups * TSHI_GROUP) + 1, sizeof *floats);
    tshi_quant_format_of(format)->dequantize(n * groups, w.data, floats);
    for (int64_t g = 0; g < m * groups; g++) {
        at[g].d = 1;
        for (int i = 0; i < TSHI_GROUP; i++) at[g].q[i] = (int8_t)((int)(random_word() % 255) - 127);
    }
    kernels()->quantized.multiply(kernel_device(), format, m, n, groups, at, w.data, y.data);
    settle();
    for (int64_t i = 0; i < m * n; i++) {
        double sum = 0;
        for (int64_t k = 0; k < groups * TSHI_GROUP; k++)
            sum +=
                (double)floats[i % n * groups * TSHI_GROUP + k] * at[i / n * groups + k / TSHI_GROUP].q[k % TSHI_GROUP];
        expect_equal(&y, i, sum);
    }
    free(floats);
    free_buffers();
}

Test(quantized, products_of_integers_are_exact) {
    static const int64_t groups[] = {0, 1, 2, 3, 9};
    kernel_device();
    for (int layout = 0; layout < LAYOUTS; layout++) {
        lay_buffers(layout);
        for (int f = 0; f < 2; f++)
            for (int g = 0; g < 5; g++)
                for (int64_t m = 1; m <= 8; m += 7) check_products(formats[f], m, 37, groups[g]);
    }
    lay_buffers(ALIGNED);
    check_products(TSHI_Q8_0, 0, 3, 2);
    check_products(TSHI_Q4_0, 2, 0, 2);
}

static void check_activations(int64_t rows, int64_t cols) {
    const int64_t groups = tshi_groups(cols);
    buffer x = buffer_random(TSH_FLOAT32, rows * cols, -3, 3), to = activations_make(rows * groups);
    const tshi_group *at = to.data;
    memset(to.data, 0x55, bytes_of(&to));
    kernels()->quantized.activations(kernel_device(), rows, cols, x.data, to.data);
    settle();
    for (int64_t g = 0; g < rows * groups; g++) {
        double most = 0;
        for (int i = 0; i < TSHI_GROUP; i++) {
            int64_t col = g % groups * TSHI_GROUP + i;
            double value = col < cols ? get(&x, g / groups * cols + col) : 0;
            cr_assert(fabs(value - (double)at[g].d * at[g].q[i]) <= (double)at[g].d * 0.563, "%g in a group of %g",
                      value, (double)at[g].d);
            most = fmax(most, fabs(value));
        }
        cr_assert(fabs((double)at[g].d - most / 127) <= most / 127 * 0x1p-11, "%g, %g wanted", (double)at[g].d,
                  most / 127);
    }
    free_buffers();
}

Test(quantized, activations_are_within_their_bound) {
    kernel_device();
    for (int i = 0; i < ODD_SIZES; i++) check_activations(3, odd_sizes[i]);
}

/* An infinity or a NaN reaches every sum of its row, and no other. */
Test(quantized, strange_activations_are_seen) {
    static const double strange[] = {(double)NAN, (double)INFINITY, -(double)INFINITY, 1e-40, 3e38};
    enum { COLS = 70, GROUPS = 3 };
    for (int s = 0; s < 5; s++) {
        buffer x = buffer_random(TSH_FLOAT32, 2 * COLS, -1, 1), to = activations_make(2 * GROUPS);
        buffer w = random_weights(TSHI_Q8_0, GROUPS), y = buffer_make(TSH_FLOAT32, 2);
        for (int i = 64; i < COLS; i++) set(&x, i, s == 3 ? 1e-40 : 0);
        set(&x, 66, strange[s]);
        kernels()->quantized.activations(kernel_device(), 2, COLS, x.data, to.data);
        kernels()->quantized.multiply(kernel_device(), TSHI_Q8_0, 2, 1, GROUPS, to.data, w.data, y.data);
        settle();
        cr_assert_eq(isnan(get(&y, 0)), s < 3, "%g gives %g", strange[s], get(&y, 0));
        cr_assert(isfinite(get(&y, 1)));
        free_buffers();
    }
}

/* A column by itself has the same bits, and all are within the bound of quantized activations. */
static void check_bound(tshi_quant format, int64_t m, int64_t n, int64_t cols) {
    const int64_t groups = tshi_groups(cols), row = groups * (int64_t)group_bytes(format);
    buffer x = buffer_random(TSH_FLOAT32, m * cols, -2, 2), q = activations_make(m * groups);
    buffer w = buffer_make(TSH_UINT8, n * row), y = buffer_nans(TSH_FLOAT32, m * n), one = buffer_make(TSH_FLOAT32, 1);
    buffer values = buffer_nans(TSH_FLOAT32, n * cols);
    float *floats = calloc((size_t)(n * groups * TSHI_GROUP), sizeof *floats);
    for (int64_t i = 0; i < n * groups * TSHI_GROUP; i++) floats[i] = (float)random_between(-0.1, 0.1);
    tshi_quant_format_of(format)->quantize(n * groups, floats, w.data);
    tshi_quant_format_of(format)->dequantize(n * groups, w.data, floats);
    kernels()->quantized.activations(kernel_device(), m, cols, x.data, q.data);
    kernels()->quantized.multiply(kernel_device(), format, m, n, groups, q.data, w.data, y.data);
    kernels()->quantized.dequantize(kernel_device(), format, n, cols, w.data, values.data);
    settle();
    for (int64_t i = 0; i < n * cols; i++)
        expect_equal(&values, i, (double)floats[i / cols * groups * TSHI_GROUP + i % cols]);
    for (int64_t i = 0; i < m * n; i++) {
        double sum = 0, bound = 0, terms = 0;
        for (int64_t g = 0; g < groups; g++) {
            double most = 0, sizes = 0;
            for (int64_t k = g * TSHI_GROUP; k < (g + 1) * TSHI_GROUP && k < cols; k++) {
                double weight = (double)floats[i % n * groups * TSHI_GROUP + k], value = get(&x, i / n * cols + k);
                sum += weight * value;
                terms += fabs(weight * value);
                sizes += fabs(weight);
                most = fmax(most, fabs(value));
            }
            bound += most / 225 * sizes;
        }
        cr_assert(fabs(get(&y, i) - sum) <= bound + terms * FLT_EPSILON * (double)(4 + groups),
                  "%g, %g wanted within %g", get(&y, i), sum, bound);
    }
    for (int64_t i = 0; i < m * n; i += 5) {
        kernels()->quantized.multiply(kernel_device(), format, 1, 1, groups, (tshi_group *)q.data + i / n * groups,
                                      (char *)w.data + i % n * row, one.data);
        settle();
        cr_assert_eq(memcmp(one.data, (float *)y.data + i, sizeof(float)), 0, "another column changes a sum");
    }
    free(floats);
    free_buffers();
}

Test(quantized, sums_are_within_the_bound_of_the_activations) {
    kernel_device();
    for (int f = 0; f < 2; f++) {
        check_bound(formats[f], 1, 19, 416);
        check_bound(formats[f], 5, 7, 107); /* a short last group */
        check_bound(formats[f], 2, 3, 20);
    }
}
