/* Matrix products, and products with bias and function, against three plain loops; integers make them exact. */
#include "device/cpu/cpu.h"

#include "kernel_test.h"

#include <limits.h>

TestSuite(gemm, .timeout = 120);

typedef struct product {
    bool transpose_a, transpose_b;
    int64_t m, n, k, pad;
    double alpha, beta;
} product;

/* Row-major with `pad` unused elements after each row. */
static buffer make_matrix(tsh_dtype dtype, int64_t rows, int64_t cols, int64_t pad) {
    buffer b = buffer_make(dtype, rows * (cols + pad));
    buffer_fill_integers(&b);
    return b;
}

static void check(tsh_dtype dtype, const product *p) {
    int64_t lda = (p->transpose_a ? p->m : p->k) + p->pad;
    int64_t ldb = (p->transpose_b ? p->k : p->n) + p->pad;
    int64_t ldc = p->n + p->pad;
    buffer a = make_matrix(dtype, p->transpose_a ? p->k : p->m, lda - p->pad, p->pad);
    buffer b = make_matrix(dtype, p->transpose_b ? p->n : p->k, ldb - p->pad, p->pad);
    buffer c = make_matrix(dtype, p->m, p->n, p->pad);
    buffer before = buffer_copy(&c);
    if (p->beta == 0.0) {
        for (int64_t i = 0; i < p->m; i++) {
            for (int64_t j = 0; j < p->n; j++) set(&c, i * ldc + j, NAN);
        }
    }
    tsh_status st = kernels()->product.gemm(kernel_device(), dtype, p->transpose_a, p->transpose_b, p->m, p->n, p->k,
                                            p->alpha, a.data, lda, b.data, ldb, p->beta, c.data, ldc);
    cr_assert_eq(st, TSH_OK);
    for (int64_t i = 0; i < p->m; i++) {
        for (int64_t j = 0; j < ldc; j++) {
            double wanted = get(&before, i * ldc + j);
            if (j < p->n) {
                double sum = 0;
                for (int64_t l = 0; l < p->k; l++) {
                    sum += get(&a, p->transpose_a ? l * lda + i : i * lda + l) *
                           get(&b, p->transpose_b ? j * ldb + l : l * ldb + j);
                }
                wanted = p->alpha * sum + (p->beta == 0.0 ? 0.0 : p->beta * wanted);
            }
            cr_assert_eq(get(&c, i * ldc + j), rounded(dtype, wanted), "%s %lldx%lldx%lld at %lld,%lld",
                         tsh_dtype_name(dtype), (long long)p->m, (long long)p->n, (long long)p->k, (long long)i,
                         (long long)j);
        }
    }
    buffer_free(&a);
    buffer_free(&b);
    buffer_free(&c);
    buffer_free(&before);
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

Test(gemm, alpha_zero_does_not_read_its_factors) {
    const product p = {.m = 3, .n = 4, .k = 0, .alpha = 1.0, .beta = 2.0};
    check(TSH_FLOAT32, &p);
    float c[2] = {1, 2};
    cr_assert_eq(
        kernels()->product.gemm(kernel_device(), TSH_FLOAT32, false, false, 1, 2, 7, 0.0, NULL, 7, NULL, 2, 3.0, c, 2),
        TSH_OK);
    cr_assert(c[0] == 3 && c[1] == 6);
}

Test(gemm, sizes_past_the_blas_are_refused) {
    float x = 5;
    int64_t big = (int64_t)INT_MAX + 1;
    cr_assert_eq(
        kernels()->product.gemm(kernel_device(), TSH_FLOAT32, false, false, 1, 1, big, 1, &x, big, &x, 1, 0, &x, 1),
        TSH_ERR_OVERFLOW);
    cr_assert_eq(
        kernels()->product.gemm(kernel_device(), TSH_FLOAT32, false, false, 1, 1, 1, 1, &x, 1, &x, big, 0, &x, 1),
        TSH_ERR_OVERFLOW);
    cr_assert_not_null(strstr(tsh_error_message(), "2147483648"));
    cr_assert_eq(x, 5.0f);
}

/* y = f(x w^T + b) and f's argument, by the kernel of f alone; what is not asked for is not touched. */
static void check_affine(tsh_dtype dtype, int64_t m, int64_t n, int64_t k, bool bias, tshi_unary f, bool keep) {
    buffer x = make_matrix(dtype, m, k, 0), w = make_matrix(dtype, n, k, 0), b = make_matrix(dtype, 1, n, 0);
    buffer y = make_matrix(dtype, m, n, 0), pre = make_matrix(dtype, m, n, 0);
    buffer sum = make_matrix(TSH_FLOAT64, m, n, 0);
    for (int64_t i = 0; i < m * n; i++) {
        double total = bias ? get(&b, i % n) : 0;
        for (int64_t l = 0; l < k; l++) total += get(&x, i / n * k + l) * get(&w, i % n * k + l);
        set(&sum, i, total);
        set(&y, i, NAN);
        set(&pre, i, 99);
    }
    cr_assert_eq(kernels()->product.affine(kernel_device(), dtype, m, n, k, x.data, w.data, bias ? b.data : NULL, f,
                                           keep ? pre.data : NULL, y.data),
                 TSH_OK);
    for (int64_t i = 0; i < m * n; i++) cr_assert_eq(get(&pre, i), keep ? rounded(dtype, get(&sum, i)) : 99);
    if (f != TSHI_IDENTITY)
        kernels()->elementwise[TSH_FLOAT64].unary(kernel_device(), f, NULL, m * n, sum.data, sum.data);
    for (int64_t i = 0; i < m * n; i++) {
        double wanted = get(&sum, i), slack = 1e-6 * (1 + fabs(wanted));
        slack += half_rounding(dtype, fabs(wanted) + slack);
        cr_assert(fabs(get(&y, i) - wanted) <= slack, "%s %dx%dx%d, function %d: %.9g, not %.9g", tsh_dtype_name(dtype),
                  (int)m, (int)n, (int)k, (int)f, get(&y, i), wanted);
    }
    buffer *const all[] = {&x, &w, &b, &y, &pre, &sum};
    for (int i = 0; i < 6; i++) buffer_free(all[i]);
}

Test(gemm, affine_with_each_function) {
    static const int64_t dims[] = {0, 1, 5, 33};
    for (int i = 0; i < 64 * 4 * (TSHI_IDENTITY + 1); i++) {
        tshi_unary f = (tshi_unary)(i / 256);
        bool bias = i >> 6 & 1, keep = i >> 7 & 1 && f != TSHI_IDENTITY;
        for (int t = 0; t < FLOAT_DTYPES; t++) {
            check_affine(float_dtypes[t], dims[i & 3], dims[i >> 2 & 3], dims[i >> 4 & 3], bias, f, keep);
        }
    }
}

/* More sizes than primitives are kept, the first ones twice; 16 rows or fewer are never theirs. */
Test(gemm, affine_by_primitives_of_many_sizes) {
    for (int round = 0; round < 2; round++) {
        for (int bits = 0; bits < 4; bits++) {
            check_affine(TSH_FLOAT32, 17, 100, 80, bits & 1, bits & 2 ? TSHI_RELU : TSHI_IDENTITY, bits == 3);
            check_affine(TSH_FLOAT32, 64, 33, 65, bits & 1, bits & 2 ? TSHI_RELU : TSHI_IDENTITY, bits == 3);
            check_affine(TSH_FLOAT32, 16, 100, 90, bits & 1, TSHI_IDENTITY, false);
        }
        for (int i = 0; i < 200 && round == 0; i++) {
            check_affine(TSH_FLOAT32, 17 + i, 8, 1024, i & 1, TSHI_IDENTITY, false);
        }
    }
#ifdef TSHARD_HAVE_ONEDNN
    cr_assert_not_null(((tshi_cpu_device *)kernel_device())->primitives);
#endif
}

static _Alignas(4096) char gemm_heaps[2][1 << 20];

/* Bytes of scratch memory that a bfloat16 product of one row takes: the row and a piece of sums, or tiles of a
 * library's product. */
static size_t scratch_of_one_row(tsh_device *device) {
    enum { N = 300, K = 64 };
    uint16_t x[K] = {0}, w[N * K] = {0}, y[N];
    size_t before = device->stats.bytes_peak;
    cr_assert_eq(device->ops->product.gemm(device, TSH_BFLOAT16, false, true, 1, N, K, 1, x, K, w, K, 0, y, N), TSH_OK);
    cr_assert_eq(device->stats.bytes_in_use, 0);
    return device->stats.bytes_peak - before;
}

/* Whatever library multiplies, and whichever device was made last. */
Test(gemm, one_thread_reads_weights_of_few_rows_itself) {
    tsh_device *device[2];
    kernel_device(); /* skips an instruction set that the CPU lacks */
    for (int i = 0; i < 2; i++)
        cr_assert_eq(tshi_device_create_cpu(NULL, gemm_heaps[i], sizeof gemm_heaps[i], i + 1, &device[i]), TSH_OK);
    size_t alone = scratch_of_one_row(device[0]), library = scratch_of_one_row(device[1]);
    cr_assert(alone > 0 && alone < 4096 && library > 65536, "%zu and %zu bytes", alone, library);
    for (int i = 0; i < 2; i++) tshi_device_destroy(device[i]);
}
