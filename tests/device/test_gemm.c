/* Matrix products, and products with bias and function, against three plain loops; integers make them exact. */
#include "kernel_test.h"

#include <limits.h>

TestSuite(gemm, .timeout = 600);

typedef struct product {
    bool transpose_a, transpose_b;
    int64_t m, n, k, pad;
    double alpha, beta;
} product;

/* Row-major with `pad` unused elements after each row. */
static void check(tsh_dtype dtype, const product *p) {
    int64_t lda = (p->transpose_a ? p->m : p->k) + p->pad, ldb = (p->transpose_b ? p->k : p->n) + p->pad;
    int64_t ldc = p->n + p->pad;
    buffer a = buffer_integers(dtype, (p->transpose_a ? p->k : p->m) * lda);
    buffer b = buffer_integers(dtype, (p->transpose_b ? p->n : p->k) * ldb);
    buffer c = buffer_integers(dtype, p->m * ldc), before = buffer_copy(&c);
    for (int64_t i = 0; i < p->m * p->n && p->beta == 0.0; i++) set(&c, i / p->n * ldc + i % p->n, (double)NAN);
    cr_assert_eq(kernels()->product.gemm(kernel_device(), dtype, p->transpose_a, p->transpose_b, p->m, p->n, p->k,
                                         p->alpha, a.data, lda, b.data, ldb, p->beta, c.data, ldc),
                 TSH_OK);
    settle();
    for (int64_t i = 0; i < p->m * ldc; i++) {
        int64_t row = i / ldc, col = i % ldc;
        double wanted = get(&before, i), sum = 0;
        for (int64_t l = 0; l < p->k && col < p->n; l++)
            sum += get(&a, p->transpose_a ? l * lda + row : row * lda + l) *
                   get(&b, p->transpose_b ? col * ldb + l : l * ldb + col);
        if (col < p->n) wanted = p->alpha * sum + (p->beta == 0.0 ? 0.0 : p->beta * wanted);
        expect_equal(&c, i, wanted);
    }
    free_buffers();
}

Test(gemm, all_transposes_sizes_and_leading_dims) {
    const int64_t dims[] = {0, 1, 5, 33};
    for (int bits = 0; bits < 32; bits++) {
        product p = {.transpose_a = bits & 1,
                     .transpose_b = bits & 2,
                     .beta = bits & 4 ? 1.0 : 0.0,
                     .alpha = bits & 8 ? -0.5 : 1.0,
                     .pad = bits & 16 ? 3 : 0};
        for (int s = 0; s < 64; s++) {
            p.m = dims[s & 3];
            p.n = dims[s >> 2 & 3];
            p.k = dims[s >> 4 & 3];
            for (int t = 0; t < FLOAT_DTYPES; t++) check(float_dtypes[t], &p);
        }
    }
}

/* Products of 16-bit factors in several tiles and pieces: rows past TILE_ROWS, a depth past the longest piece. */
Test(gemm, products_in_several_tiles) {
    const int64_t sizes[][3] = {{530, 20, 40}, {20, 530, 40}, {17, 17, 4200}};
    for (int bits = 0; bits < 8; bits++) {
        for (int s = 0; s < 3; s++) {
            const product p = {.transpose_a = bits & 1,
                               .transpose_b = bits & 2,
                               .beta = bits & 4 ? 1.0 : 0.0,
                               .alpha = 1.0,
                               .pad = bits & 4 ? 3 : 0,
                               .m = sizes[s][0],
                               .n = sizes[s][1],
                               .k = sizes[s][2]};
            check(TSH_BFLOAT16, &p);
            if (s < 2) check(TSH_FLOAT16, &p);
        }
    }
}

/* Each product of a batch as by itself; a stride of 0 shares A, and C's matrices have a gap, which stays as it is. */
static void check_batch(tsh_dtype dtype, int64_t count, const product *p) {
    const int64_t lda = (p->transpose_a ? p->m : p->k) + p->pad, ldb = (p->transpose_b ? p->k : p->n) + p->pad;
    const int64_t ldc = p->n + p->pad, stride_a = p->pad ? 0 : p->m * p->k, stride_c = p->m * ldc + p->pad;
    const int64_t stride_b = (p->transpose_b ? p->n : p->k) * ldb;
    buffer a = buffer_integers(dtype, stride_a ? count * stride_a : (p->transpose_a ? p->k : p->m) * lda);
    buffer b = buffer_integers(dtype, count * stride_b);
    buffer c = buffer_integers(dtype, count * stride_c), wanted = buffer_copy(&c);
    const size_t size = tsh_dtype_size(dtype);
    for (int64_t i = 0; i < count; i++) {
        cr_assert_eq(kernels()->product.gemm(kernel_device(), dtype, p->transpose_a, p->transpose_b, p->m, p->n, p->k,
                                             p->alpha, (char *)a.data + (size_t)(i * stride_a) * size, lda,
                                             (char *)b.data + (size_t)(i * stride_b) * size, ldb, p->beta,
                                             (char *)wanted.data + (size_t)(i * stride_c) * size, ldc),
                     TSH_OK);
    }
    cr_assert_eq(kernels()->product.gemm_batch(kernel_device(), dtype, count, p->transpose_a, p->transpose_b, p->m,
                                               p->n, p->k, p->alpha, a.data, lda, stride_a, b.data, ldb, stride_b,
                                               p->beta, c.data, ldc, stride_c),
                 TSH_OK);
    settle();
    expect_same_bits(&c, &wanted, "a batch");
    free_buffers();
}

Test(gemm, batches) {
    const int64_t counts[] = {0, 1, 2, 7}, sizes[][3] = {{0, 3, 2}, {3, 4, 0}, {1, 9, 20}, {5, 8, 3}, {33, 17, 40}};
    for (int bits = 0; bits < 32; bits++) {
        for (int s = 0; s < 20; s++) {
            const product p = {.transpose_a = bits & 1,
                               .transpose_b = bits & 2,
                               .beta = bits & 4 ? 1.0 : 0.0,
                               .alpha = bits & 8 ? 0.0 : 1.0,
                               .pad = bits & 16 ? 3 : 0,
                               .m = sizes[s / 4][0],
                               .n = sizes[s / 4][1],
                               .k = sizes[s / 4][2]};
            for (int t = 0; t < FLOAT_DTYPES; t++) check_batch(float_dtypes[t], counts[s % 4], &p);
        }
    }
}

Test(gemm, alpha_zero_does_not_read_its_factors) {
    const product p = {.m = 3, .n = 4, .k = 0, .alpha = 1.0, .beta = 2.0};
    check(TSH_FLOAT32, &p);
    buffer c = buffer_of(TSH_FLOAT32, 2, (double[]){1, 2});
    cr_assert_eq(kernels()->product.gemm(kernel_device(), TSH_FLOAT32, false, false, 1, 2, 7, 0.0, NULL, 7, NULL, 2,
                                         3.0, c.data, 2),
                 TSH_OK);
    settle();
    cr_assert(get(&c, 0) == 3 && get(&c, 1) == 6);
    free_buffers();
}

Test(gemm, sizes_past_the_library_are_refused) {
    buffer x = buffer_of(TSH_FLOAT32, 1, (double[]){5});
    int64_t big = (int64_t)INT_MAX + 1;
    cr_assert_eq(kernels()->product.gemm(kernel_device(), TSH_FLOAT32, false, false, 1, 1, big, 1, x.data, big, x.data,
                                         1, 0, x.data, 1),
                 TSH_ERR_OVERFLOW);
    cr_assert_eq(kernels()->product.gemm(kernel_device(), TSH_FLOAT32, false, false, 1, 1, 1, 1, x.data, 1, x.data, big,
                                         0, x.data, 1),
                 TSH_ERR_OVERFLOW);
    cr_assert_not_null(strstr(tsh_error_message(), "2147483648"));
    cr_assert_eq(get(&x, 0), 5);
    free_buffers();
}

static double function_value(tshi_unary f, double x) {
    if (f == TSHI_GELU_ERF) return 0.5 * x * erfc(-x / sqrt(2.0));
    if (f == TSHI_GELU_TANH) return 0.5 * x * (1.0 + tanh(sqrt(2.0 / acos(-1.0)) * (x + 0.044715 * x * x * x)));
    return f == TSHI_RELU ? fmax(x, 0) : f == TSHI_SILU ? x / (1.0 + exp(-x)) : x;
}

/* y = f(x w^T + b) and f's argument; what is not asked for is not touched. */
static void check_affine(tsh_dtype dtype, int64_t m, int64_t n, int64_t k, bool bias, tshi_unary f, bool keep) {
    buffer x = buffer_integers(dtype, m * k), w = buffer_integers(dtype, n * k), b = buffer_integers(dtype, n);
    buffer y = buffer_nans(dtype, m * n), pre = buffer_nans(dtype, m * n), untouched = buffer_copy(&pre);
    cr_assert_eq(kernels()->product.affine(kernel_device(), dtype, m, n, k, x.data, w.data, data_if(&b, bias), f,
                                           data_if(&pre, keep), y.data),
                 TSH_OK);
    settle();
    for (int64_t i = 0; i < m * n; i++) {
        double total = bias ? get(&b, i % n) : 0;
        for (int64_t l = 0; l < k; l++) total += get(&x, i / n * k + l) * get(&w, i % n * k + l);
        if (keep) expect_equal(&pre, i, total);
        /* A GPU may round f's argument to 16 bits, as it saves it. */
        double wanted = function_value(f, total), slack = 1e-6 * (1 + fabs(wanted));
        if (tested.units > 1) slack += half_rounding(dtype, 2 * total);
        slack += half_rounding(dtype, fabs(wanted) + slack);
        cr_assert(fabs(get(&y, i) - wanted) <= slack, "%s %dx%dx%d, function %d: %.9g, not %.9g", tsh_dtype_name(dtype),
                  (int)m, (int)n, (int)k, (int)f, get(&y, i), wanted);
    }
    if (!keep) expect_same_bits(&pre, &untouched, "f's argument");
    free_buffers();
}

Test(gemm, affine_with_each_function) {
    static const int64_t dims[] = {0, 1, 5, 33};
    for (int i = 0; i < 64 * 4 * (TSHI_IDENTITY + 1); i++) {
        tshi_unary f = (tshi_unary)(i / 256);
        bool bias = i >> 6 & 1, keep = i >> 7 & 1 && f != TSHI_IDENTITY;
        for (int t = 0; t < FLOAT_DTYPES; t++)
            check_affine(float_dtypes[t], dims[i & 3], dims[i >> 2 & 3], dims[i >> 4 & 3], bias, f, keep);
    }
}

/* More sizes than a device keeps plans for, the first ones twice. */
Test(gemm, affine_of_many_sizes) {
    for (int round = 0; round < 2; round++) {
        for (int bits = 0; bits < 4; bits++) {
            check_affine(TSH_FLOAT32, 17, 100, 80, bits & 1, bits & 2 ? TSHI_RELU : TSHI_IDENTITY, bits == 3);
            check_affine(TSH_FLOAT32, 64, 33, 65, bits & 1, bits & 2 ? TSHI_RELU : TSHI_IDENTITY, bits == 3);
            check_affine(TSH_FLOAT32, 16, 100, 90, bits & 1, TSHI_IDENTITY, false);
        }
        for (int i = 0; i < 200 && round == 0; i++)
            check_affine(TSH_FLOAT32, 17 + i, 8, tested.is_slow ? 64 : 1024, i & 1, TSHI_IDENTITY, false);
    }
}

/* dW = beta dW + dY^T X, db = beta_b db + the sums of dY's columns, in `to`. */
static void check_backward(tsh_dtype dtype, tsh_dtype to, int64_t m, int64_t n, int64_t k, double beta, double beta_b,
                           bool bias) {
    buffer x = buffer_integers(dtype, m * k), dy = buffer_integers(dtype, m * n);
    buffer dw = beta != 0 ? buffer_integers(to, n * k) : buffer_nans(to, n * k), dw_before = buffer_copy(&dw);
    buffer db = beta_b != 0 || !bias ? buffer_integers(to, n) : buffer_nans(to, n), db_before = buffer_copy(&db);
    cr_assert_eq(kernels()->product.affine_backward(kernel_device(), dtype, m, n, k, x.data, dy.data, to, beta, dw.data,
                                                    beta_b, data_if(&db, bias)),
                 TSH_OK);
    settle();
    for (int64_t i = 0; i < n * k; i++) {
        double sum = beta != 0 ? beta * get(&dw_before, i) : 0;
        for (int64_t r = 0; r < m; r++) sum += get(&dy, r * n + i / k) * get(&x, r * k + i % k);
        expect_equal(&dw, i, sum);
    }
    for (int64_t j = 0; j < n; j++) {
        double sum = beta_b != 0 || !bias ? get(&db_before, j) : 0;
        for (int64_t r = 0; r < m && bias; r++) sum += get(&dy, r * n + j);
        expect_equal(&db, j, sum);
    }
    free_buffers();
}

Test(gemm, gradients_of_weights_and_bias) {
    static const int64_t dims[] = {0, 1, 5, 33};
    for (int i = 0; i < 64 * 6; i++) {
        for (int t = 0; t < 2 * FLOAT_DTYPES; t++) {
            tsh_dtype dtype = float_dtypes[t / 2], to = t % 2 ? tshi_dtype_sum(dtype) : dtype;
            check_backward(dtype, to, dims[i & 3], dims[i >> 2 & 3], dims[i >> 4 & 3], i / 64 & 1, i / 128 & 1,
                           i / 64 < 4);
        }
    }
}

/* C = f'(Z) (A B): of relu, exactly. */
Test(gemm, products_with_the_slope_of_a_function) {
    static const int64_t dims[] = {0, 1, 5, 33};
    for (int i = 0; i < 64 * FLOAT_DTYPES; i++) {
        int64_t m = dims[i & 3], n = dims[i >> 2 & 3], k = dims[i >> 4 & 3];
        tsh_dtype dtype = float_dtypes[i >> 6];
        buffer a = buffer_integers(dtype, m * k), b = buffer_integers(dtype, k * n), z = buffer_integers(dtype, m * n);
        buffer c = buffer_nans(dtype, m * n);
        cr_assert_eq(kernels()->product.gemm_unary_backward(kernel_device(), dtype, m, n, k, a.data, b.data, TSHI_RELU,
                                                            z.data, c.data),
                     TSH_OK);
        settle();
        for (int64_t j = 0; j < m * n; j++) {
            double sum = 0;
            for (int64_t l = 0; l < k; l++) sum += get(&a, j / n * k + l) * get(&b, l * n + j % n);
            expect_equal(&c, j, get(&z, j) > 0 ? sum : 0);
        }
        free_buffers();
    }
}
