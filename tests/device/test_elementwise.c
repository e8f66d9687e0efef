/* Activations, element-wise arithmetic, bias and sums, against plain loops in double. */
#include "kernel_test.h"

TestSuite(elementwise, .timeout = 120);

static double value_of(tshi_unary f, double x) {
    switch (f) {
    case TSHI_GELU_ERF: return 0.5 * x * erfc(-x / sqrt(2.0));
    case TSHI_GELU_TANH: return 0.5 * x * (1.0 + tanh(sqrt(2.0 / acos(-1.0)) * (x + 0.044715 * x * x * x)));
    case TSHI_RELU: return x > 0 ? x : 0;
    default: return x / (1.0 + exp(-x));
    }
}

static double slope_of(tshi_unary f, double x) {
    if (f == TSHI_RELU) return x > 0 ? 1 : 0;
    if (f == TSHI_GELU_ERF) return 0.5 * erfc(-x / sqrt(2.0)) + x * exp(-x * x / 2) / sqrt(2 * acos(-1.0));
    /* A fourth-order difference: good to about 1e-13. */
    double h = 1e-3;
    return (8 * (value_of(f, x + h) - value_of(f, x - h)) - (value_of(f, x + 2 * h) - value_of(f, x - 2 * h))) / 12 / h;
}

static void check_unary(tshi_unary f, tsh_dtype dtype, int64_t n) {
    buffer x = buffer_random(dtype, n, -12, 12);
    buffer y = buffer_make(dtype, n);
    buffer dy = buffer_random(dtype, n, -1, 1);
    buffer dx = buffer_random(dtype, n, -1, 1);
    buffer before = buffer_copy(&dx);
    if (n > 0) set(&x, n / 2, 0.0);
    kernels()->elementwise[dtype].unary(kernel_device(), f, NULL, n, x.data, y.data);
    buffer fresh = buffer_make(dtype, n);
    for (int64_t i = 0; i < n; i++) set(&fresh, i, NAN);
    kernels()->elementwise[dtype].unary_backward(kernel_device(), f, NULL, n, x.data, dy.data, 1.0, dx.data);
    kernels()->elementwise[dtype].unary_backward(kernel_device(), f, NULL, n, x.data, dy.data, 0.0, fresh.data);
    for (int64_t i = 0; i < n; i++) {
        double at = get(&x, i);
        expect_close(&y, i, value_of(f, at), 1 + fabs(at), 16);
        double wanted = get(&before, i) + slope_of(f, at) * get(&dy, i);
        double slack = f == TSHI_GELU_ERF ? 8 : dtype == TSH_FLOAT64 ? 1e4 : 32; /* of the differences */
        expect_close(&dx, i, wanted, 1 + fabs(at), slack);
        expect_close(&fresh, i, wanted - get(&before, i), 1 + fabs(at), slack);
    }
    kernels()->elementwise[dtype].unary(kernel_device(), f, NULL, n, x.data, x.data);
    cr_assert_arr_eq(x.data, y.data, (size_t)n * tsh_dtype_size(dtype), "in place the result is the same");
    buffer_free(&x);
    buffer_free(&y);
    buffer_free(&dy);
    buffer_free(&dx);
    buffer_free(&before);
    buffer_free(&fresh);
}

Test(elementwise, activations_and_their_slopes) {
    for (int f = 0; f < TSHI_IDENTITY; f++) {
        for (int t = 0; t < FLOAT_DTYPES; t++) {
            for (int s = 0; s < ODD_SIZES; s++) check_unary((tshi_unary)f, float_dtypes[t], odd_sizes[s]);
        }
    }
}

Test(elementwise, activations_at_the_ends) {
    for (int t = 0; t < FLOAT_DTYPES; t++) {
        buffer x = buffer_make(float_dtypes[t], 64);
        buffer y = buffer_make(float_dtypes[t], 64);
        for (int f = 0; f < TSHI_IDENTITY; f++) {
            for (int i = 0; i < 64; i += 4) {
                set(&x, i, x.dtype == TSH_FLOAT16 ? 6e4 : 1e30);
                set(&x, i + 1, -get(&x, i));
                set(&x, i + 2, NAN);
                set(&x, i + 3, 0.0);
            }
            kernels()->elementwise[x.dtype].unary(kernel_device(), (tshi_unary)f, NULL, 64, x.data, y.data);
            for (int i = 0; i < 64; i += 4) {
                cr_assert_eq(get(&y, i), get(&x, i), "a large input passes");
                cr_assert_eq(get(&y, i + 1), 0.0, "a large negative input has the value 0");
                cr_assert(isnan(get(&y, i + 2)), "NaN stays");
                cr_assert_eq(get(&y, i + 3), 0.0);
            }
        }
        buffer_free(&x);
        buffer_free(&y);
    }
}

/* The float32 functions that are written out here, over their whole range. */
Test(elementwise, float32_gelu_and_silu_are_accurate_everywhere) {
    enum { N = 1 << 16 };
    buffer x = buffer_make(TSH_FLOAT32, N), y = buffer_make(TSH_FLOAT32, N);
    for (int i = 0; i < N; i++) set(&x, i, -100.0 + 200.0 * i / N);
    kernels()->elementwise[TSH_FLOAT32].unary(kernel_device(), TSHI_SILU, NULL, N, x.data, y.data);
    for (int i = 0; i < N; i++) {
        double wanted = value_of(TSHI_SILU, get(&x, i));
        expect_close(&y, i, wanted, fabs(wanted) + 1e-30, 16);
    }
    for (int i = 0; i < N; i++) set(&x, i, -7.0 + 14.0 * i / N);
    kernels()->elementwise[TSH_FLOAT32].unary(kernel_device(), TSHI_GELU_ERF, NULL, N, x.data, y.data);
    for (int i = 0; i < N; i++) {
        double at = get(&x, i);
        expect_close(&y, i, value_of(TSHI_GELU_ERF, at), at > -1 ? fabs(at) : 1 + fabs(at), 10);
    }
    buffer_free(&x);
    buffer_free(&y);
}

static void check_axpby(tsh_dtype dtype, int64_t n, double a, double b) {
    buffer x = buffer_random(dtype, n, -2, 2), y = buffer_random(dtype, n, -2, 2), z = buffer_make(dtype, n);
    buffer in_place_x = buffer_copy(&x), in_place_y = buffer_copy(&y);
    kernels()->elementwise[dtype].axpby(kernel_device(), n, a, x.data, b, y.data, z.data);
    for (int64_t i = 0; i < n; i++) expect_close(&z, i, a * get(&x, i) + b * get(&y, i), 8, 2);
    kernels()->elementwise[dtype].axpby(kernel_device(), n, a, in_place_x.data, b, y.data, in_place_x.data);
    kernels()->elementwise[dtype].axpby(kernel_device(), n, a, x.data, b, in_place_y.data, in_place_y.data);
    for (int64_t i = 0; i < n; i++) {
        expect_close(&in_place_x, i, get(&z, i), 1, 0);
        expect_close(&in_place_y, i, get(&z, i), 1, 0);
    }
    kernels()->elementwise[dtype].axpby(kernel_device(), n, a, x.data, 0.0, NULL, z.data);
    for (int64_t i = 0; i < n; i++) expect_close(&z, i, a * get(&x, i), 4, 1);
    buffer_free(&x);
    buffer_free(&y);
    buffer_free(&z);
    buffer_free(&in_place_x);
    buffer_free(&in_place_y);
}

Test(elementwise, axpby) {
    for (int t = 0; t < FLOAT_DTYPES; t++) {
        for (int s = 0; s < ODD_SIZES; s++) {
            check_axpby(float_dtypes[t], odd_sizes[s], 1.5, -0.25);
            check_axpby(float_dtypes[t], odd_sizes[s], 1.0, 1.0);
        }
    }
}

Test(elementwise, axpby_without_y_does_not_read_it) {
    float x[3] = {1, 2, 3}, y[3] = {NAN, INFINITY, NAN};
    kernels()->elementwise[TSH_FLOAT32].axpby(kernel_device(), 3, 2.0, x, 0.0, y, y);
    for (int i = 0; i < 3; i++) cr_assert_eq(y[i], 2 * x[i]);
}

Test(elementwise, mul) {
    for (int t = 0; t < FLOAT_DTYPES; t++) {
        for (int s = 0; s < ODD_SIZES; s++) {
            int64_t n = odd_sizes[s];
            tsh_dtype dtype = float_dtypes[t];
            buffer x = buffer_random(dtype, n, -2, 2), y = buffer_random(dtype, n, -2, 2), z = buffer_make(dtype, n);
            for (int64_t i = 0; i < n; i++) set(&z, i, NAN);
            kernels()->elementwise[dtype].mul(kernel_device(), n, x.data, y.data, 0.0, z.data);
            for (int64_t i = 0; i < n; i++) expect_close(&z, i, get(&x, i) * get(&y, i), 4, 1);
            buffer sum = buffer_copy(&x);
            kernels()->elementwise[dtype].mul(kernel_device(), n, y.data, y.data, 1.0, sum.data);
            for (int64_t i = 0; i < n; i++) expect_close(&sum, i, get(&x, i) + get(&y, i) * get(&y, i), 8, 2);
            kernels()->elementwise[dtype].mul(kernel_device(), n, x.data, y.data, 0.0, x.data);
            for (int64_t i = 0; i < n; i++) expect_close(&x, i, get(&z, i), 1, 0);
            buffer_free(&x);
            buffer_free(&y);
            buffer_free(&z);
            buffer_free(&sum);
        }
    }
}

static void check_bias(tsh_dtype dtype, int64_t rows, int64_t cols) {
    buffer x = buffer_make(dtype, rows * cols), b = buffer_make(dtype, cols), y = buffer_make(dtype, rows * cols);
    buffer db = buffer_make(dtype, cols);
    buffer_fill_integers(&x);
    buffer_fill_integers(&b);
    buffer_fill_integers(&db);
    buffer before = buffer_copy(&db);
    kernels()->elementwise[dtype].bias(kernel_device(), rows, cols, NULL, b.data, y.data);
    for (int64_t i = 0; i < rows * cols; i++) cr_assert_eq(get(&y, i), get(&b, i % cols));
    kernels()->elementwise[dtype].bias(kernel_device(), rows, cols, x.data, b.data, y.data);
    for (int64_t i = 0; i < rows * cols; i++) cr_assert_eq(get(&y, i), rounded(dtype, get(&x, i) + get(&b, i % cols)));
    kernels()->sum[dtype].bias_backward(kernel_device(), rows, cols, x.data, db.data);
    for (int64_t c = 0; c < cols; c++) {
        double wanted = get(&before, c);
        for (int64_t r = 0; r < rows; r++) wanted += get(&x, r * cols + c);
        cr_assert_eq(get(&db, c), rounded(dtype, wanted));
    }
    kernels()->elementwise[dtype].bias(kernel_device(), rows, cols, x.data, b.data, x.data);
    for (int64_t i = 0; i < rows * cols; i++) cr_assert_eq(get(&x, i), get(&y, i));
    buffer_free(&x);
    buffer_free(&b);
    buffer_free(&y);
    buffer_free(&db);
    buffer_free(&before);
}

Test(elementwise, bias_and_its_gradient) {
    const int64_t rows[] = {0, 1, 2, 5, 33};
    for (int t = 0; t < FLOAT_DTYPES; t++) {
        for (int r = 0; r < 5; r++) {
            for (int s = 0; s < ODD_SIZES; s++) check_bias(float_dtypes[t], rows[r], odd_sizes[s]);
        }
    }
}

static void check_sum(tsh_dtype dtype, int64_t outer, int64_t n, int64_t inner) {
    const double scale = 0.5;
    buffer x = buffer_make(dtype, outer * n * inner), y = buffer_make(dtype, outer * inner);
    buffer dx = buffer_make(dtype, outer * n * inner), dy = buffer_make(dtype, outer * inner);
    buffer_fill_integers(&x);
    buffer_fill_integers(&dx);
    buffer_fill_integers(&dy);
    buffer before = buffer_copy(&dx);
    for (int64_t i = 0; i < y.n; i++) set(&y, i, NAN);
    kernels()->sum[dtype].over_dim(kernel_device(), outer, n, inner, scale, x.data, y.data);
    kernels()->sum[dtype].over_dim_backward(kernel_device(), outer, n, inner, scale, dy.data, dx.data);
    for (int64_t o = 0; o < outer; o++) {
        for (int64_t k = 0; k < inner; k++) {
            double wanted = 0;
            for (int64_t i = 0; i < n; i++) {
                int64_t at = (o * n + i) * inner + k;
                wanted += scale * get(&x, at);
                cr_assert_eq(get(&dx, at), rounded(dtype, get(&before, at) + scale * get(&dy, o * inner + k)));
            }
            cr_assert_eq(get(&y, o * inner + k), rounded(dtype, wanted));
        }
    }
    buffer_free(&x);
    buffer_free(&y);
    buffer_free(&dx);
    buffer_free(&dy);
    buffer_free(&before);
}

Test(elementwise, sums_over_any_dim) {
    const int64_t dims[] = {0, 1, 3, 17, 130};
    for (int t = 0; t < FLOAT_DTYPES; t++) {
        for (int o = 0; o < 4; o++) {
            for (int n = 0; n < 5; n++) {
                for (int k = 0; k < 5; k++) check_sum(float_dtypes[t], dims[o], dims[n], dims[k]);
            }
        }
    }
}

Test(elementwise, float32_sums_add_up_in_double) {
    enum { N = 1000000 };
    buffer x = buffer_make(TSH_FLOAT32, N), y = buffer_make(TSH_FLOAT32, 1), db = buffer_make(TSH_FLOAT32, 1);
    double wanted = 0;
    for (int i = 0; i < N; i++) {
        set(&x, i, 1.0 + 1e-3 * (i % 7));
        wanted += get(&x, i);
    }
    kernels()->sum[TSH_FLOAT32].over_dim(kernel_device(), 1, N, 1, 1.0, x.data, y.data);
    expect_close(&y, 0, wanted, wanted, 1.01);
    kernels()->sum[TSH_FLOAT32].bias_backward(kernel_device(), N, 1, x.data, db.data);
    expect_close(&db, 0, wanted, wanted, 1.01);
    buffer_free(&x);
    buffer_free(&y);
    buffer_free(&db);
}

Test(elementwise, sum_of_squares) {
    for (int t = 0; t < FLOAT_DTYPES; t++) {
        for (int s = 0; s < ODD_SIZES; s++) {
            buffer x = buffer_random(float_dtypes[t], odd_sizes[s], -3, 3);
            double wanted = 0;
            for (int64_t i = 0; i < x.n; i++) wanted += get(&x, i) * get(&x, i);
            double sum = 3;
            kernels()->sum[x.dtype].squares(kernel_device(), x.n, x.data, &sum);
            cr_assert_float_eq(sum, 3 + wanted, 1e-12 * (4 + wanted));
            buffer_free(&x);
        }
    }
    float huge[2] = {1e30f, 1e30f};
    double sum = 0;
    kernels()->sum[TSH_FLOAT32].squares(kernel_device(), 2, huge, &sum);
    cr_assert_float_eq(sum / 2e60, 1.0, 1e-6, "no overflow in float32");
}

Test(elementwise, clip) {
    const double squares[] = {25, 0.25, INFINITY, NAN}, factors[] = {2 / (5 + 1e-6), 1, 1, 1};
    for (int t = 0; t < FLOAT_DTYPES; t++) {
        for (int i = 0; i < 4; i++) {
            buffer x = buffer_random(float_dtypes[t], 37, -3, 3), before = buffer_copy(&x);
            kernels()->optimizer[x.dtype].clip(kernel_device(), x.n, &squares[i], 1, 2, x.data);
            for (int64_t j = 0; j < x.n; j++) expect_close(&x, j, factors[i] * get(&before, j), 3, 2);
            buffer_free(&x);
            buffer_free(&before);
        }
    }
}

static double result_of(tshi_binary f, double x, double y) {
    return f == TSHI_ADD ? x + y : f == TSHI_SUB ? x - y : f == TSHI_MUL ? x * y : x / y;
}

/* x and y have the sizes n of each run where their bit is set, and are repeated along the others; run 0 is the
 * innermost one. */
static void check_overlay(tshi_binary f, tsh_dtype dtype, int runs, const int64_t *n, unsigned wide_x,
                          unsigned wide_y) {
    tshi_overlay o = {.runs = runs};
    int64_t numel = 1, size_x = 1, size_y = 1;
    for (int k = 0; k < runs; k++) {
        o.n[k] = n[k];
        o.x[k] = wide_x >> k & 1 ? size_x : 0;
        o.y[k] = wide_y >> k & 1 ? size_y : 0;
        size_x *= wide_x >> k & 1 ? n[k] : 1;
        size_y *= wide_y >> k & 1 ? n[k] : 1;
        numel *= n[k];
    }
    buffer x = buffer_random(dtype, size_x, -3, 3), y = buffer_random(dtype, size_y, 1, 2);
    buffer z = buffer_make(dtype, numel);
    kernels()->elementwise[dtype].binary(kernel_device(), f, &o, x.data, y.data, z.data);
    for (int64_t i = 0; i < numel; i++) {
        int64_t at_x = 0, at_y = 0, rest = i;
        for (int k = 0; k < runs; rest /= n[k++]) {
            at_x += rest % n[k] * o.x[k];
            at_y += rest % n[k] * o.y[k];
        }
        expect_close(&z, i, result_of(f, get(&x, at_x), get(&y, at_y)), 6, 1);
    }
    if (size_x == numel) {
        kernels()->elementwise[dtype].binary(kernel_device(), f, &o, x.data, y.data, x.data);
        cr_assert_arr_eq(x.data, z.data, (size_t)numel * tsh_dtype_size(dtype), "in place the result is the same");
    }
    buffer_free(&x);
    buffer_free(&y);
    buffer_free(&z);
}

Test(elementwise, sums_products_and_quotients_of_what_is_repeated) {
    static const int64_t sizes[][3] = {{7, 5, 3}, {1, 2, 3}, {33, 1, 2}, {0, 3, 2}, {3, 0, 2}, {17, 2, 0}};
    for (int f = 0; f < TSHI_BINARY_COUNT; f++) {
        for (int t = 0; t < FLOAT_DTYPES; t++) {
            for (int s = 0; s < ODD_SIZES; s++) check_overlay((tshi_binary)f, float_dtypes[t], 1, &odd_sizes[s], 1, 1);
            for (unsigned wide = 0; wide < 64; wide++) {
                for (int s = 0; (wide | wide >> 3) & 1 && s < 6; s++)
                    check_overlay((tshi_binary)f, float_dtypes[t], 3, sizes[s], wide & 7, wide >> 3);
            }
        }
    }
}
