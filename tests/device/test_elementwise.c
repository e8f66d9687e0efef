/* Element-wise arithmetic, masks, bias, sums, squares and clipping against plain loops in double. */
#include "kernel_test.h"

TestSuite(elementwise, .timeout = 600);

static void check_axpby(tsh_dtype dtype, int64_t n, double a, double b) {
    const tshi_elementwise_ops *ops = &kernels()->elementwise[dtype];
    buffer x = buffer_random(dtype, n, -2, 2), y = buffer_random(dtype, n, -2, 2), z = buffer_make(dtype, n);
    buffer in_place_x = buffer_copy(&x), in_place_y = buffer_copy(&y), one = buffer_make(dtype, n);
    ops->axpby(kernel_device(), n, a, x.data, b, y.data, z.data);
    ops->axpby(kernel_device(), n, a, in_place_x.data, b, y.data, in_place_x.data);
    ops->axpby(kernel_device(), n, a, x.data, b, in_place_y.data, in_place_y.data);
    ops->axpby(kernel_device(), n, a, x.data, 0, NULL, one.data);
    ops->axpby(kernel_device(), n, a, x.data, 0, NULL, x.data);
    expect_same_bits(&in_place_x, &z, "in place of x");
    expect_same_bits(&in_place_y, &z, "in place of y");
    expect_same_bits(&x, &one, "one term in place");
    free_buffers();
}

static void check_values(tsh_dtype dtype, int64_t n, double a, double b) {
    const tshi_elementwise_ops *ops = &kernels()->elementwise[dtype];
    buffer x = buffer_random(dtype, n, -2, 2), y = buffer_random(dtype, n, -2, 2), z = buffer_nans(dtype, n);
    buffer nans = buffer_nans(dtype, n);
    ops->axpby(kernel_device(), n, a, x.data, b, y.data, z.data);
    for (int64_t i = 0; i < n; i++) expect_close(&z, i, a * get(&x, i) + b * get(&y, i), 8, 2);
    ops->axpby(kernel_device(), n, a, x.data, 0, nans.data, nans.data);
    for (int64_t i = 0; i < n; i++) expect_close(&nans, i, a * get(&x, i), 4, 1);
    buffer sum = buffer_copy(&x), product = buffer_nans(dtype, n), in_place = buffer_copy(&y);
    ops->mul(kernel_device(), n, x.data, y.data, 0, product.data);
    ops->mul(kernel_device(), n, y.data, y.data, 1, sum.data);
    ops->mul(kernel_device(), n, x.data, in_place.data, 0, in_place.data);
    for (int64_t i = 0; i < n; i++) {
        expect_close(&product, i, get(&x, i) * get(&y, i), 4, 1);
        expect_close(&sum, i, get(&x, i) + get(&y, i) * get(&y, i), 8, 2);
    }
    expect_same_bits(&in_place, &product, "in place");
    free_buffers();
}

static double sigmoid(double x) {
    return 1 / (1 + exp(-x));
}

/* y = silu(g) u and its gradients, replaced, added to, and in place of inputs. */
static void check_swiglu(tsh_dtype dtype, int64_t n) {
    const tshi_elementwise_ops *ops = &kernels()->elementwise[dtype];
    buffer g = buffer_random(dtype, n, -8, 8), u = buffer_random(dtype, n, -2, 2), dy = buffer_random(dtype, n, -2, 2);
    buffer y = buffer_nans(dtype, n), dg = buffer_nans(dtype, n), du = buffer_nans(dtype, n);
    buffer more_g = buffer_copy(&dy), more_u = buffer_copy(&u), over_g = buffer_copy(&dy), over_u = buffer_copy(&u);
    ops->swiglu(kernel_device(), n, g.data, u.data, y.data);
    ops->swiglu_backward(kernel_device(), n, g.data, u.data, dy.data, 0, dg.data, 0, du.data);
    ops->swiglu_backward(kernel_device(), n, g.data, u.data, dy.data, 1, more_g.data, 0, more_u.data);
    expect_same_bits(&more_u, &du, "du beside a dg that is added to");
    more_u = buffer_copy(&u);
    more_g = buffer_copy(&dy);
    ops->swiglu_backward(kernel_device(), n, g.data, u.data, dy.data, 1, more_g.data, 1, more_u.data);
    ops->swiglu_backward(kernel_device(), n, g.data, over_u.data, over_g.data, 0, over_g.data, 0, over_u.data);
    for (int64_t i = 0; i < n; i++) {
        double x = get(&g, i), s = sigmoid(x), to_g = (s + x * s * (1 - s)) * get(&u, i) * get(&dy, i);
        expect_close(&y, i, x * s * get(&u, i), 16, 8);
        expect_close(&dg, i, to_g, 8, 16);
        expect_close(&du, i, x * s * get(&dy, i), 16, 8);
        expect_close(&more_g, i, get(&dy, i) + to_g, 8, 16);
        expect_close(&more_u, i, get(&u, i) + x * s * get(&dy, i), 16, 8);
    }
    expect_same_bits(&over_g, &dg, "dg in place of dy");
    expect_same_bits(&over_u, &du, "du in place of u");
    ops->swiglu(kernel_device(), n, g.data, u.data, g.data);
    expect_same_bits(&g, &y, "in place of g");
    free_buffers();
}

Test(elementwise, gated_silu) {
    for (int t = 0; t < FLOAT_DTYPES; t++) {
        for (int s = 0; s < LAYOUTS * ODD_SIZES; s++) {
            lay_buffers(s % LAYOUTS);
            check_swiglu(float_dtypes[t], odd_sizes[s / LAYOUTS]);
        }
    }
}

Test(elementwise, sums_and_products) {
    for (int t = 0; t < FLOAT_DTYPES; t++) {
        for (int s = 0; s < LAYOUTS * ODD_SIZES; s++) {
            lay_buffers(s % LAYOUTS);
            check_axpby(float_dtypes[t], odd_sizes[s / LAYOUTS], 1.5, -0.25);
            check_values(float_dtypes[t], odd_sizes[s / LAYOUTS], 1.5, -0.25);
            check_values(float_dtypes[t], odd_sizes[s / LAYOUTS], 1, 1);
        }
    }
}

/* --- what is broadcast -------------------------------------------------------------------------------------------- */

static double result_of(tshi_binary f, double x, double y) {
    switch (f) {
    case TSHI_ADD: return x + y;
    case TSHI_SUB: return x - y;
    case TSHI_MUL: return x * y;
    case TSHI_DIV: return x / y;
    case TSHI_MAXIMUM: return fmax(x, y);
    case TSHI_MINIMUM: return fmin(x, y);
    case TSHI_STEP: return x > y ? 1 : x < y ? 0 : 0.5;
    case TSHI_EQ: return x == y;
    case TSHI_NE: return x != y;
    case TSHI_LT: return x < y;
    case TSHI_LE: return x <= y;
    case TSHI_GT: return x > y;
    default: return x >= y;
    }
}

/* x and y have the sizes n of each run where their bit is set, and are repeated along the others; run 0 is the
 * innermost one. */
typedef struct broadcast_case {
    tshi_broadcast o;
    int64_t numel, size_x, size_y;
} broadcast_case;

static broadcast_case broadcast_case_of(int runs, const int64_t *n, unsigned wide_x, unsigned wide_y) {
    broadcast_case v = {{.runs = runs}, 1, 1, 1};
    for (int k = 0; k < runs; k++) {
        v.o.n[k] = n[k];
        v.o.x[k] = wide_x >> k & 1 ? v.size_x : 0;
        v.o.y[k] = wide_y >> k & 1 ? v.size_y : 0;
        v.size_x *= wide_x >> k & 1 ? n[k] : 1;
        v.size_y *= wide_y >> k & 1 ? n[k] : 1;
        v.numel *= n[k];
    }
    return v;
}

static int64_t place_in(const broadcast_case *v, const int64_t *strides, int64_t i) {
    int64_t at = 0;
    for (int k = 0; k < v->o.runs; i /= v->o.n[k++]) at += i % v->o.n[k] * strides[k];
    return at;
}

static void check_binary(tshi_binary f, tsh_dtype dtype, const broadcast_case *v) {
    buffer x = buffer_random(dtype, v->size_x, -3, 3), y = buffer_random(dtype, v->size_y, 1, 2);
    buffer z = buffer_make(dtype, v->numel);
    for (int64_t i = 0; f >= TSHI_MAXIMUM && i < x.n && i < y.n; i += 3) set(&x, i, get(&y, i)); /* some are equal */
    kernels()->elementwise[dtype].binary(kernel_device(), f, &v->o, x.data, y.data, z.data);
    for (int64_t i = 0; i < v->numel; i++)
        expect_close(&z, i, result_of(f, get(&x, place_in(v, v->o.x, i)), get(&y, place_in(v, v->o.y, i))), 6, 1);
    if (v->size_x == v->numel) {
        kernels()->elementwise[dtype].binary(kernel_device(), f, &v->o, x.data, y.data, x.data);
        expect_same_bits(&x, &z, "in place");
    }
    free_buffers();
}

static void check_mask(tsh_dtype dtype, const broadcast_case *v, bool kept, double beta) {
    buffer x = buffer_integers(dtype, v->size_x),
           z = beta != 0 ? buffer_integers(dtype, v->numel) : buffer_nans(dtype, v->numel);
    buffer before = buffer_copy(&z), mask = buffer_make(TSH_UINT8, v->size_y);
    for (int64_t i = 0; i < mask.n; i++) set(&mask, i, random_word() % 3);
    kernels()->elementwise[dtype].mask(kernel_device(), &v->o, x.data, mask.data, kept, -2, beta, z.data);
    for (int64_t i = 0; i < v->numel; i++) {
        double added = beta != 0 ? get(&before, i) : 0;
        bool chosen = (get(&mask, place_in(v, v->o.y, i)) != 0) == kept;
        expect_equal(&z, i, added + (chosen ? get(&x, place_in(v, v->o.x, i)) : -2));
    }
    if (beta == 0 && v->size_x == v->numel) {
        kernels()->elementwise[dtype].mask(kernel_device(), &v->o, x.data, mask.data, kept, -2, 0, x.data);
        expect_same_bits(&x, &z, "in place");
    }
    free_buffers();
}

static const int64_t repeated_sizes[][3] = {{7, 5, 3}, {1, 2, 3},  {33, 1, 2}, {0, 3, 2},
                                            {3, 0, 2}, {17, 2, 0}, {16, 3, 5}};
static const int64_t large_sizes[][3] = {{100, 50, 3}, {264, 20, 3}};

Test(elementwise, arithmetic_of_what_is_repeated) {
    for (int f = 0; f < TSHI_BINARY_COUNT; f++) {
        for (int t = 0; t < FLOAT_DTYPES; t++) {
            for (int s = 0; s < LAYOUTS * ODD_SIZES; s++) {
                broadcast_case flat = broadcast_case_of(1, &odd_sizes[s / LAYOUTS], 1, 1);
                lay_buffers(s % LAYOUTS);
                check_binary((tshi_binary)f, float_dtypes[t], &flat);
            }
            for (unsigned wide = 0; wide < 64; wide++) {
                lay_buffers((int)(wide + (unsigned)t) % LAYOUTS);
                for (int s = 0; (wide | wide >> 3) & 1 && s < 7; s++) {
                    broadcast_case v = broadcast_case_of(3, repeated_sizes[s], wide & 7, wide >> 3);
                    check_binary((tshi_binary)f, float_dtypes[t], &v);
                }
            }
            for (int i = 0; i < 6; i++) {
                const unsigned wide[3][2] = {{5, 2}, {2, 5}, {7, 1}};
                broadcast_case v = broadcast_case_of(3, large_sizes[i / 3], wide[i % 3][0], wide[i % 3][1]);
                lay_buffers(i % 2);
                check_binary((tshi_binary)f, float_dtypes[t], &v);
            }
        }
    }
}

Test(elementwise, masks) {
    for (int bits = 0; bits < 2 * FLOAT_DTYPES * 8 * LAYOUTS; bits++) {
        tsh_dtype dtype = float_dtypes[bits >> 1 & 3];
        lay_buffers((bits >> 6) % LAYOUTS);
        for (int s = 0; s < 7; s++) {
            broadcast_case v = broadcast_case_of(3, repeated_sizes[s], s % 2 ? 7 : 5, (unsigned)bits >> 3 & 7);
            check_mask(dtype, &v, s % 3 == 0, bits & 1);
        }
        for (int s = 0; (bits >> 3 & 7) == 0 && s < ODD_SIZES; s++) {
            broadcast_case v = broadcast_case_of(1, &odd_sizes[s], 1, 1);
            check_mask(dtype, &v, s % 2, bits & 1);
        }
    }
}

/* NaN is neither equal to a number nor smaller, and stays in an extremum. */
Test(elementwise, arithmetic_of_nan) {
    const double a[4] = {(double)NAN, 1, (double)NAN, -0.0}, b[4] = {1, (double)NAN, (double)NAN, 0};
    const broadcast_case v = broadcast_case_of(1, (int64_t[]){4}, 1, 1);
    for (int bits = 0; bits < FLOAT_DTYPES * TSHI_BINARY_COUNT; bits++) {
        tshi_binary f = (tshi_binary)(bits / FLOAT_DTYPES);
        buffer x = buffer_of(float_dtypes[bits % FLOAT_DTYPES], 4, a), y = buffer_of(x.dtype, 4, b);
        buffer z = buffer_make(x.dtype, 4);
        kernels()->elementwise[x.dtype].binary(kernel_device(), f, &v.o, x.data, y.data, z.data);
        for (int i = 0; i < 3; i++) {
            if (f < TSHI_STEP) cr_assert(isnan(get(&z, i)), "%d of NaN: %g", (int)f, get(&z, i));
            if (f >= TSHI_STEP) cr_assert_eq(get(&z, i), f == TSHI_NE, "%d of NaN: %g", (int)f, get(&z, i));
        }
        if (f == TSHI_STEP) cr_assert_eq(get(&z, 3), 0.5);
        free_buffers();
    }
}

/* --- bias and sums ------------------------------------------------------------------------------------------------ */

static void check_bias(tsh_dtype dtype, int64_t rows, int64_t cols) {
    const tshi_elementwise_ops *ops = &kernels()->elementwise[dtype];
    buffer x = buffer_integers(dtype, rows * cols), b = buffer_integers(dtype, cols), db = buffer_integers(dtype, cols);
    buffer y = buffer_nans(dtype, rows * cols), alone = buffer_nans(dtype, rows * cols), before = buffer_copy(&db);
    buffer wide = statistics_random(dtype, cols, 0, 1), wide_before = statistics_make(dtype, cols);
    for (int64_t c = 0; c < cols; c++) set(&wide, c, (double)(c % 9) - 4);
    memcpy(wide_before.data, wide.data, bytes_of(&wide));
    ops->bias(kernel_device(), rows, cols, NULL, b.data, alone.data);
    ops->bias(kernel_device(), rows, cols, x.data, b.data, y.data);
    for (int64_t i = 0; i < rows * cols; i++) {
        expect_equal(&alone, i, get(&b, i % cols));
        expect_equal(&y, i, get(&x, i) + get(&b, i % cols));
    }
    kernels()->sum[dtype].bias_backward(kernel_device(), rows, cols, x.data, db.data);
    kernels()->sum[dtype].bias_backward_wide(kernel_device(), rows, cols, x.data, wide.data);
    for (int64_t c = 0; c < cols; c++) {
        double sum = 0;
        for (int64_t r = 0; r < rows; r++) sum += get(&x, r * cols + c);
        expect_equal(&db, c, get(&before, c) + sum);
        expect_equal(&wide, c, get(&wide_before, c) + sum);
    }
    ops->bias(kernel_device(), rows, cols, x.data, b.data, x.data);
    expect_same_bits(&x, &y, "in place");
    free_buffers();
}

Test(elementwise, bias_and_its_gradient) {
    const int64_t rows[] = {0, 1, 2, 3, 5, 33, 70};
    for (int t = 0; t < FLOAT_DTYPES; t++) {
        for (int r = 0; r < 7; r++) {
            for (int s = 0; s < ODD_SIZES; s++) {
                lay_buffers((s + r) % LAYOUTS);
                check_bias(float_dtypes[t], rows[r], odd_sizes[s]);
            }
        }
    }
}

static void check_sum(tsh_dtype dtype, int64_t outer, int64_t n, int64_t inner) {
    const double scale = 0.5;
    buffer x = buffer_integers(dtype, outer * n * inner), y = buffer_nans(dtype, outer * inner);
    buffer dx = buffer_integers(dtype, outer * n * inner), dy = buffer_integers(dtype, outer * inner);
    buffer before = buffer_copy(&dx);
    kernels()->sum[dtype].over_dim(kernel_device(), outer, n, inner, scale, x.data, y.data);
    kernels()->sum[dtype].over_dim_backward(kernel_device(), outer, n, inner, scale, dy.data, dx.data);
    for (int64_t o = 0; o < outer; o++) {
        for (int64_t k = 0; k < inner; k++) {
            double wanted = 0;
            for (int64_t i = 0; i < n; i++) {
                int64_t at = (o * n + i) * inner + k;
                wanted += scale * get(&x, at);
                expect_equal(&dx, at, get(&before, at) + scale * get(&dy, o * inner + k));
            }
            expect_equal(&y, o * inner + k, wanted);
        }
    }
    free_buffers();
}

Test(elementwise, sums_over_any_dim) {
    const int64_t dims[] = {0, 1, 3, 17, 72, 130};
    for (int t = 0; t < FLOAT_DTYPES; t++) {
        for (int o = 0; o < 4; o++) {
            for (int n = 0; n < 6; n++) {
                for (int k = 0; k < 6; k++) {
                    lay_buffers((o + n + k) % LAYOUTS);
                    check_sum(float_dtypes[t], dims[o], dims[n], dims[k]);
                }
            }
        }
    }
}

/* Few results of many elements, which a GPU adds in parts: along rows and down columns, packed and not. */
Test(elementwise, sums_in_parts) {
    const int64_t shapes[][3] = {{1, 70001, 1}, {2, 12288, 1}, {5, 9000, 1},  {1, 3000, 8},  {1, 1111, 16},
                                 {2, 2000, 3},  {1, 5000, 2},  {1, 130, 264}, {30, 5000, 1}, {1, 1025, 300}};
    for (int t = 0; t < FLOAT_DTYPES; t++) {
        for (int s = 0; s < 20; s++) {
            lay_buffers(s % 2);
            check_sum(float_dtypes[t], shapes[s / 2][0], shapes[s / 2][1], shapes[s / 2][2]);
        }
    }
}

static void check_cumulative(tsh_dtype dtype, int64_t outer, int64_t n, int64_t inner, bool reverse, double beta) {
    const int64_t numel = outer * n * inner;
    buffer x = buffer_make(dtype, numel), y = beta != 0 ? buffer_integers(dtype, numel) : buffer_nans(dtype, numel);
    for (int64_t i = 0; i < numel; i++) set(&x, i, (double)(i * 7 % 3) - 1); /* whose sums 8 bits hold */
    buffer before = buffer_copy(&y);
    kernels()->sum[dtype].cumulative(kernel_device(), reverse, outer, n, inner, x.data, beta, y.data);
    for (int64_t o = 0; o < outer; o++) {
        for (int64_t k = 0; k < inner; k++) {
            double total = 0;
            for (int64_t i = 0; i < n; i++) {
                const int64_t at = (o * n + (reverse ? n - 1 - i : i)) * inner + k;
                total += get(&x, at);
                expect_equal(&y, at, total + (beta != 0 ? beta * get(&before, at) : 0));
            }
        }
    }
    free_buffers();
}

Test(elementwise, cumulative_sums) {
    const int64_t shapes[][3] = {{0, 5, 2},  {3, 0, 2},  {2, 5, 0},  {1, 1, 1},    {3, 17, 1},   {2, 31, 5},
                                 {1, 7, 33}, {4, 3, 70}, {1, 72, 8}, {1, 2500, 1}, {2, 300, 32}, {1, 5, 2100}};
    for (int t = 0; t < FLOAT_DTYPES; t++) {
        for (int s = 0; s < 12 * 4; s++) {
            lay_buffers((s + t) % LAYOUTS);
            check_cumulative(float_dtypes[t], shapes[s / 4][0], shapes[s / 4][1], shapes[s / 4][2], s % 2, s / 2 % 2);
        }
    }
}

/* Far closer than one float32 after the other would come. */
Test(elementwise, float32_sums_of_numbers_that_round) {
    const int64_t n = tested.is_slow ? 90000 : 1000000;
    buffer x = buffer_make(TSH_FLOAT32, n), y = buffer_make(TSH_FLOAT32, 1), db = buffer_make(TSH_FLOAT32, 1);
    double wanted = 0;
    for (int64_t i = 0; i < n; i++) {
        set(&x, i, 1.0 + 1e-3 * (double)(i % 7));
        wanted += get(&x, i);
    }
    kernels()->sum[TSH_FLOAT32].over_dim(kernel_device(), 1, n, 1, 1.0, x.data, y.data);
    expect_close(&y, 0, wanted, wanted, 1.01);
    kernels()->sum[TSH_FLOAT32].bias_backward(kernel_device(), n, 1, x.data, db.data);
    expect_close(&db, 0, wanted, wanted, 1.01);
    free_buffers();
}

/* --- squares and clipping ----------------------------------------------------------------------------------------- */

static void check_squares(tsh_dtype dtype, int64_t n) {
    buffer x = buffer_random(dtype, n, -3, 3), sum = buffer_of(TSH_FLOAT64, 1, (double[]){3});
    double wanted = 3;
    for (int64_t i = 0; i < n; i++) wanted += get(&x, i) * get(&x, i);
    kernels()->sum[dtype].squares(kernel_device(), n, x.data, sum.data);
    cr_assert_float_eq(get(&sum, 0), wanted, 1e-12 * (1 + wanted));
    free_buffers();
}

Test(elementwise, sum_of_squares) {
    for (int t = 0; t < FLOAT_DTYPES; t++) {
        for (int s = 0; s < LAYOUTS * ODD_SIZES; s++) {
            lay_buffers(s % LAYOUTS);
            check_squares(float_dtypes[t], odd_sizes[s / LAYOUTS]);
        }
        check_squares(float_dtypes[t], 99999);
    }
    buffer huge = buffer_of(TSH_FLOAT32, 2, (double[]){1e30, 1e30}), sum = buffer_make(TSH_FLOAT64, 1);
    kernels()->sum[TSH_FLOAT32].squares(kernel_device(), 2, huge.data, sum.data);
    cr_assert_float_eq(get(&sum, 0) / 2e60, 1.0, 1e-6, "no overflow in float32");
}

static void check_clip(tsh_dtype dtype, int64_t n, double squares, double scale, double max_norm) {
    buffer x = buffer_random(dtype, n, -3, 3), before = buffer_copy(&x), sum = buffer_of(TSH_FLOAT64, 1, &squares);
    double norm = scale * sqrt(squares), factor = isfinite(norm) ? scale * fmin(1, max_norm / (norm + 1e-6)) : 1;
    kernels()->optimizer[dtype].clip(kernel_device(), n, sum.data, scale, max_norm, x.data);
    for (int64_t i = 0; i < n; i++) expect_close(&x, i, factor * get(&before, i), 3, 2);
    free_buffers();
}

Test(elementwise, clip) {
    const double squares[] = {25, 0.25, (double)INFINITY, (double)NAN, 1.5}, most[] = {2, 1.25, 1e6, (double)INFINITY};
    for (int t = 0; t < FLOAT_DTYPES; t++) {
        for (int s = 0; s < ODD_SIZES; s++) {
            lay_buffers((s + t) % LAYOUTS);
            for (int i = 0; i < 20; i++)
                check_clip(float_dtypes[t], odd_sizes[s], squares[i % 5], (s + i) % 4 ? 1 : 0.125, most[i / 5]);
        }
        check_clip(float_dtypes[t], 99999, 1e5, 0.5, 2);
    }
}
