/* Softmax and log-softmax in their passes, whole and sliced. */
#include "kernel_test.h"

TestSuite(softmax, .timeout = 120);

/* max and sum over i of one (o, k), in double. */
static void reference(const buffer *x, int64_t o, int64_t n, int64_t inner, int64_t k, double *max, double *sum) {
    *max = -INFINITY;
    *sum = 0;
    for (int64_t i = 0; i < n; i++) *max = fmax(*max, get(x, (o * n + i) * inner + k));
    for (int64_t i = 0; i < n; i++) *sum += exp(get(x, (o * n + i) * inner + k) - *max);
}

static void check_forward(tsh_dtype dtype, int64_t outer, int64_t n, int64_t inner) {
    buffer x = buffer_random(dtype, outer * n * inner, -20, 20), y = buffer_make(dtype, outer * n * inner);
    buffer logs = buffer_make(dtype, outer * n * inner);
    buffer max = buffer_make(tshi_dtype_sum(dtype), outer * inner),
           sum = buffer_make(tshi_dtype_sum(dtype), outer * inner);
    kernels()->softmax[dtype].max(kernel_device(), outer, n, inner, x.data, max.data);
    kernels()->softmax[dtype].sum(kernel_device(), outer, n, inner, x.data, max.data, sum.data);
    kernels()->softmax[dtype].forward(kernel_device(), false, outer, n, inner, x.data, max.data, sum.data, y.data);
    kernels()->softmax[dtype].forward(kernel_device(), true, outer, n, inner, x.data, max.data, sum.data, logs.data);
    for (int64_t o = 0; o < outer; o++) {
        for (int64_t k = 0; k < inner; k++) {
            double m = 0, s = 0;
            reference(&x, o, n, inner, k, &m, &s);
            cr_assert_eq(get(&max, o * inner + k), m);
            expect_close(&sum, o * inner + k, s, s, 16);
            for (int64_t i = 0; i < n; i++) {
                int64_t at = (o * n + i) * inner + k;
                double wanted = exp(get(&x, at) - m) / s;
                expect_close(&y, at, wanted, wanted, 64);
                expect_close(&logs, at, get(&x, at) - m - log(s), 40, 4);
            }
        }
    }
    buffer_free(&x);
    buffer_free(&y);
    buffer_free(&logs);
    buffer_free(&max);
    buffer_free(&sum);
}

static void check_backward(bool log_form, tsh_dtype dtype, int64_t outer, int64_t n, int64_t inner) {
    buffer y = buffer_random(dtype, outer * n * inner, log_form ? -5 : 0, log_form ? 0 : 1);
    buffer dy = buffer_random(dtype, y.n, -1, 1), dx = buffer_random(dtype, y.n, -1, 1), before = buffer_copy(&dx);
    buffer dot = buffer_make(tshi_dtype_sum(dtype), outer * inner);
    kernels()->softmax[dtype].dot(kernel_device(), log_form, outer, n, inner, y.data, dy.data, dot.data);
    kernels()->softmax[dtype].backward(kernel_device(), log_form, outer, n, inner, y.data, dy.data, dot.data, dx.data);
    for (int64_t o = 0; o < outer; o++) {
        for (int64_t k = 0; k < inner; k++) {
            double sum = 0, size = 1;
            for (int64_t i = 0; i < n; i++) {
                int64_t at = (o * n + i) * inner + k;
                double term = get(&dy, at) * (log_form ? 1 : get(&y, at));
                sum += term;
                size += fabs(term);
            }
            expect_close(&dot, o * inner + k, sum, size, 16);
            double d = get(&dot, o * inner + k);
            for (int64_t i = 0; i < n; i++) {
                int64_t at = (o * n + i) * inner + k;
                double slope = log_form ? get(&dy, at) - exp(get(&y, at)) * d : get(&y, at) * (get(&dy, at) - d);
                expect_close(&dx, at, get(&before, at) + slope, 2 + fabs(d), 16);
            }
        }
    }
    buffer_free(&y);
    buffer_free(&dy);
    buffer_free(&dx);
    buffer_free(&before);
    buffer_free(&dot);
}

Test(softmax, along_any_dim) {
    const int64_t dims[] = {0, 1, 3, 17, 70};
    for (int t = 0; t < FLOAT_DTYPES; t++) {
        for (int o = 0; o < 4; o++) {
            for (int n = 0; n < 5; n++) {
                for (int k = 0; k < 5; k++) {
                    check_forward(float_dtypes[t], dims[o], dims[n], dims[k]);
                    check_backward(false, float_dtypes[t], dims[o], dims[n], dims[k]);
                    check_backward(true, float_dtypes[t], dims[o], dims[n], dims[k]);
                }
            }
        }
    }
}

Test(softmax, long_rows) {
    for (int t = 0; t < FLOAT_DTYPES; t++) {
        for (int s = 0; s < ODD_SIZES; s++) check_forward(float_dtypes[t], 2, odd_sizes[s], 1);
    }
}

Test(softmax, an_empty_slice_is_neutral) {
    double max[2] = {0, 0}, sum[2] = {7, 7}, nothing[1] = {0};
    kernels()->softmax[TSH_FLOAT64].max(kernel_device(), 1, 0, 2, nothing, max);
    cr_assert(max[0] == -INFINITY && max[1] == -INFINITY);
    kernels()->softmax[TSH_FLOAT64].sum(kernel_device(), 2, 0, 1, nothing, max, sum);
    cr_assert(sum[0] == 0 && sum[1] == 0);
}

Test(softmax, masked_and_huge_logits) {
    float x[4] = {1e30f, -INFINITY, 1e30f, -1e30f}, y[4], max[1], sum[1];
    kernels()->softmax[TSH_FLOAT32].max(kernel_device(), 1, 4, 1, x, max);
    kernels()->softmax[TSH_FLOAT32].sum(kernel_device(), 1, 4, 1, x, max, sum);
    kernels()->softmax[TSH_FLOAT32].forward(kernel_device(), false, 1, 4, 1, x, max, sum, y);
    cr_assert(y[0] == 0.5f && y[1] == 0.0f && y[2] == 0.5f && y[3] == 0.0f);
    x[1] = NAN;
    kernels()->softmax[TSH_FLOAT32].max(kernel_device(), 1, 4, 1, x, max);
    kernels()->softmax[TSH_FLOAT32].sum(kernel_device(), 1, 4, 1, x, max, sum);
    cr_assert(isnan(sum[0]), "a NaN is not lost");
}
