/* Products by cuBLASLt against plain loops. The stand-in refuses algorithms that were chosen for something else. */
#include "cuda/standin_device.h"
#include "standin/cublaslt.h"
#include "support/lines.h"

#include <cublasLt.h>

TestSuite(cuda_gemm, .timeout = 120);

static const tsh_dtype dtypes[] = {TSH_FLOAT32, TSH_FLOAT64, TSH_BFLOAT16, TSH_FLOAT16};

/* Small integers: exact in every dtype, sums of up to 32 of them too. */
static double number(int64_t i, int salt) {
    return (double)((i * 7 + salt * 5 + i / 3) % 5 - 2);
}

static double *numbers(int64_t n, int salt) {
    double *x = malloc(sizeof *x * (size_t)(n ? n : 1));
    for (int64_t i = 0; i < n; i++) x[i] = number(i, salt);
    return x;
}

typedef struct gemm_case {
    tsh_dtype dtype;
    bool ta, tb;
    int64_t m, n, k, more; /* more: of each row length */
    double alpha, beta;
    int skew; /* elements */
} gemm_case;

static void check_gemm(tsh_device *device, const gemm_case *c) {
    int64_t lda = (c->ta ? c->m : c->k) + c->more, ldb = (c->tb ? c->k : c->n) + c->more, ldc = c->n + c->more;
    int64_t na = (c->ta ? c->k : c->m) * lda, nb = (c->tb ? c->n : c->k) * ldb, nc = c->m * ldc;
    double *a = numbers(na, 1), *b = numbers(nb, 2), *out = numbers(nc, 3), *want = numbers(nc, 3);
    size_t skew = (size_t)c->skew * tsh_dtype_size(c->dtype);
    for (int64_t i = 0; i < c->m; i++) {
        for (int64_t j = 0; j < c->n; j++) {
            double sum = 0;
            for (int64_t l = 0; l < c->k; l++)
                sum += a[c->ta ? l * lda + i : i * lda + l] * b[c->tb ? j * ldb + l : l * ldb + j];
            want[i * ldc + j] = c->alpha * sum + c->beta * want[i * ldc + j];
        }
    }
    char *da = put_numbers(device, c->dtype, na, a, skew), *db = put_numbers(device, c->dtype, nb, b, skew);
    char *dc = put_numbers(device, c->dtype, nc, out, skew);
    tsh_status status = device->ops->product.gemm(device, c->dtype, c->ta, c->tb, c->m, c->n, c->k, c->alpha, da, lda,
                                                  db, ldb, c->beta, dc, ldc);
    cr_assert_eq(status, TSH_OK, "%s", tsh_error_message());
    get_numbers(device, c->dtype, nc, dc, out);
    for (int64_t i = 0; i < nc; i++) {
        cr_assert_eq(out[i], want[i], "%s %d%d %dx%dx%d alpha %g beta %g, %d: %g, not %g", tsh_dtype_name(c->dtype),
                     c->ta, c->tb, (int)c->m, (int)c->n, (int)c->k, c->alpha, c->beta, (int)i, out[i], want[i]);
    }
    device->ops->memory.release(device, da - skew);
    device->ops->memory.release(device, db - skew);
    device->ops->memory.release(device, dc - skew);
    free(a);
    free(b);
    free(out);
    free(want);
}

Test(cuda_gemm, every_kind) {
    tsh_device *device = open_device();
    for (int d = 0; d < 4; d++) {
        for (int i = 0; i < 32; i++) {
            gemm_case c = {.dtype = dtypes[d],
                           .ta = i & 1,
                           .tb = i >> 1 & 1,
                           .m = i & 4 ? 5 : 1,
                           .n = 7,
                           .k = i & 4 ? 3 : 16,
                           .more = i & 8 ? 3 : 0,
                           .alpha = i & 16 ? 2 : 1,
                           .beta = i % 3 - 1,
                           .skew = i % 5 == 4 ? 1 : 0};
            check_gemm(device, &c);
        }
    }
    close_device(device);
}

Test(cuda_gemm, empty_dims) {
    tsh_device *device = open_device();
    for (int i = 0; i < 24; i++) {
        gemm_case c = {.dtype = dtypes[i % 4],
                       .m = i / 4 == 0 ? 0 : 3,
                       .n = i / 4 == 1 ? 0 : 4,
                       .k = i / 4 >= 2 ? 0 : 2,
                       .more = i / 4 == 3 ? 2 : 0,
                       .alpha = 1,
                       .beta = i / 4 - 3};
        check_gemm(device, &c);
    }
    cr_assert_eq(standin_calls("cublasLtMatmul"), 0);
    close_device(device);
}

/* alpha 0 with NaNs in the operands: they are not read. */
Test(cuda_gemm, alpha_0_scales) {
    tsh_device *device = open_device();
    check_gemm(device, &(gemm_case){.m = 2, .n = 3, .k = 2, .alpha = 0, .beta = 2});
    cr_assert_eq(standin_calls("cublasLtMatmul"), 0);
    close_device(device);
}

Test(cuda_gemm, sizes_past_int_are_refused) {
    int64_t big = (int64_t)1 << 31;
    tsh_device *device = open_device();
    const tshi_device_ops *ops = device->ops;
    cr_assert_eq(ops->product.gemm(device, TSH_FLOAT32, 0, 0, big, 1, 1, 1, NULL, 1, NULL, 1, 0, NULL, 1),
                 TSH_ERR_OVERFLOW);
    cr_assert_eq(ops->product.gemm(device, TSH_FLOAT32, 0, 0, 1, 1, 1, 1, NULL, big, NULL, 1, 0, NULL, 1),
                 TSH_ERR_OVERFLOW);
    cr_assert_eq(ops->product.affine(device, TSH_FLOAT32, 1, 1, big, NULL, NULL, NULL, TSHI_IDENTITY, NULL, NULL),
                 TSH_ERR_OVERFLOW);
    cr_assert_eq(
        ops->product.affine_backward(device, TSH_FLOAT32, big, 1, 1, NULL, NULL, TSH_FLOAT32, 0, NULL, 0, NULL),
        TSH_ERR_OVERFLOW);
    cr_assert_not_null(strstr(tsh_error_message(), "2147483648"), "%s", tsh_error_message());
    close_device(device);
}

/* A product of 16-bit numbers is summed in float32, whatever the library likes best: its first algorithm rounds parts
 * of the sum, of which bfloat16 makes 256 + 1 = 256 and then 257 = 256 instead of 258. */
Test(cuda_gemm, sums_of_16_bits_are_rounded_once) {
    tsh_device *device = open_device();
    const double a[4] = {256, 1, 1, 0}, b[4] = {1, 1, 1, 1};
    for (int t = 2; t < 4; t++) {
        double c = 0, scale = dtypes[t] == TSH_BFLOAT16 ? 1 : 8; /* float16 has three bits more */
        double wide[4] = {a[0] * scale, a[1], a[2], a[3]};
        void *at_a = put_numbers(device, dtypes[t], 4, wide, 0), *at_b = put_numbers(device, dtypes[t], 4, b, 0);
        void *at_c = put_numbers(device, dtypes[t], 1, &c, 0);
        cr_assert_eq(device->ops->product.gemm(device, dtypes[t], 0, 0, 1, 1, 4, 1, at_a, 4, at_b, 1, 0, at_c, 1),
                     TSH_OK);
        get_numbers(device, dtypes[t], 1, at_c, &c);
        cr_expect_eq(c, 256 * scale + 2, "%s: %g", tsh_dtype_name(dtypes[t]), c);
        device->ops->memory.release(device, at_a);
        device->ops->memory.release(device, at_b);
        device->ops->memory.release(device, at_c);
    }
    cr_expect_eq(standin_cublaslt_runs(0), 0);
    close_device(device);
}

/* ------------------------------------------------------------------------------------------------------------------ */

/* Vectors that the library's epilogues cannot take, for they do not begin at 16 bytes, are added by a kernel. */
Test(cuda_gemm, a_bias_anywhere) {
    tsh_device *device = open_device();
    const tshi_product_ops *product = &device->ops->product;
    double x[2] = {1, 2}, w[2] = {3, 4}, b = 5, y = 0, db = 0;
    for (int t = 0; t < 4; t++) {
        size_t skew = tsh_dtype_size(dtypes[t]);
        char *at_x = put_numbers(device, dtypes[t], 2, x, 0), *at_w = put_numbers(device, dtypes[t], 2, w, 0);
        char *at_b = put_numbers(device, dtypes[t], 1, &b, skew), *at_y = put_numbers(device, dtypes[t], 1, &y, 0);
        cr_assert_eq(product->affine(device, dtypes[t], 1, 1, 2, at_x, at_w, at_b, TSHI_IDENTITY, NULL, at_y), TSH_OK);
        get_numbers(device, dtypes[t], 1, at_y, &y);
        cr_expect_eq(y, 16, "%s: %g", tsh_dtype_name(dtypes[t]), y);
        cr_assert_eq(product->affine_backward(device, dtypes[t], 1, 1, 2, at_x, at_y, dtypes[t], 0, at_w, 0, at_b),
                     TSH_OK);
        get_numbers(device, dtypes[t], 1, at_b, &db);
        cr_expect_eq(db, 16, "%s: %g", tsh_dtype_name(dtypes[t]), db);
        device->ops->memory.release(device, at_x);
        device->ops->memory.release(device, at_w);
        device->ops->memory.release(device, at_b - skew);
        device->ops->memory.release(device, at_y);
    }
    close_device(device);
}

/* Shapes that never repeat do not grow the books without end. */
Test(cuda_gemm, plans_are_forgotten) {
    tsh_device *device = open_device();
    float *x = get(device, 8192 * 4);
    standin_lazy(false);
    for (int64_t ld = 1; ld <= 5000; ld++) {
        cr_assert_eq(device->ops->product.gemm(device, TSH_FLOAT32, 0, 0, 1, 1, 1, 1, x, ld, x, 1, 0, x, 1), TSH_OK);
    }
    cr_assert_eq(standin_calls("cublasLtMatmulAlgoGetHeuristic"), 5000);
    cr_assert_eq(device->ops->product.gemm(device, TSH_FLOAT32, 0, 0, 1, 1, 1, 1, x, 5000, x, 1, 0, x, 1), TSH_OK);
    cr_assert_eq(standin_calls("cublasLtMatmulAlgoGetHeuristic"), 5000);
    device->ops->memory.release(device, x);
    close_device(device);
}

/* --- affine ------------------------------------------------------------------------------------------------------- */

static double value_of(tshi_unary f, double x) {
    switch (f) {
    case TSHI_GELU_ERF: return 0.5 * x * (1 + erf(x * 0.70710678118654752440));
    case TSHI_GELU_TANH: return 0.5 * x * (1 + tanh(0.79788456080286535588 * (x + 0.044715 * x * x * x)));
    case TSHI_RELU: return x > 0 ? x : 0;
    case TSHI_SILU: return x / (1 + exp(-x));
    default: return x;
    }
}

static double rounding(tsh_dtype dtype) {
    return dtype == TSH_BFLOAT16 ? 1.0 / 128 : dtype == TSH_FLOAT16 ? 1.0 / 1024 : dtype == TSH_FLOAT32 ? 1e-5 : 1e-12;
}

typedef struct affine_case {
    tsh_dtype dtype;
    int64_t m, n, k;
    bool bias, pre;
    tshi_unary f;
} affine_case;

static void check_affine(tsh_device *device, const affine_case *c) {
    double *x = numbers(c->m * c->k, 1), *w = numbers(c->n * c->k, 2), *b = numbers(c->n, 3),
           *y = numbers(c->m * c->n, 4);
    double *pre = numbers(c->m * c->n, 5);
    void *dx = put_numbers(device, c->dtype, c->m * c->k, x, 0), *dw = put_numbers(device, c->dtype, c->n * c->k, w, 0);
    void *db = put_numbers(device, c->dtype, c->n, b, 0), *dy = put_numbers(device, c->dtype, c->m * c->n, y, 0);
    void *dpre = put_numbers(device, c->dtype, c->m * c->n, y, 0);
    cr_assert_eq(device->ops->product.affine(device, c->dtype, c->m, c->n, c->k, dx, dw, c->bias ? db : NULL, c->f,
                                             c->pre ? dpre : NULL, dy),
                 TSH_OK, "%s", tsh_error_message());
    get_numbers(device, c->dtype, c->m * c->n, dy, y);
    get_numbers(device, c->dtype, c->m * c->n, dpre, pre);
    for (int64_t i = 0; i < c->m * c->n; i++) {
        double sum = c->bias ? b[i % c->n] : 0;
        for (int64_t l = 0; l < c->k; l++) sum += x[i / c->n * c->k + l] * w[i % c->n * c->k + l];
        double want = value_of(c->f, sum);
        cr_assert(fabs(y[i] - want) <= rounding(c->dtype) * (1 + fabs(want)), "%s %dx%dx%d: %g, not %g",
                  tsh_dtype_name(c->dtype), (int)c->m, (int)c->n, (int)c->k, y[i], want);
        if (c->pre) cr_assert_eq(pre[i], sum);
    }
    device->ops->memory.release(device, dx);
    device->ops->memory.release(device, dw);
    device->ops->memory.release(device, db);
    device->ops->memory.release(device, dy);
    device->ops->memory.release(device, dpre);
    free(x);
    free(w);
    free(b);
    free(y);
    free(pre);
}

Test(cuda_gemm, affine_of_every_kind) {
    tsh_device *device = open_device();
    for (int i = 0; i < 64 * (TSHI_IDENTITY + 1); i++) {
        tshi_unary f = (tshi_unary)(i / 64);
        check_affine(device, &(affine_case){.dtype = dtypes[i % 4],
                                            .m = 3,
                                            .n = i & 4 ? 16 : 5,
                                            .k = i & 8 ? 6 : 0,
                                            .bias = i >> 4 & 1,
                                            .pre = i >> 5 & 1 && f != TSHI_IDENTITY,
                                            .f = f});
    }
    close_device(device);
}

/* Bias and GELU are in the product where they can be: one call, no kernel behind it. */
Test(cuda_gemm, epilogues_save_kernels) {
    tsh_device *device = open_device();
    affine_case c = {.dtype = TSH_BFLOAT16, .m = 4, .n = 16, .k = 8, .bias = true, .pre = true, .f = TSHI_GELU_TANH};
    check_affine(device, &c);
    c.pre = false;
    check_affine(device, &c);
    c.f = TSHI_IDENTITY;
    check_affine(device, &c);
    c.dtype = TSH_FLOAT32;
    check_affine(device, &c);
    cr_assert_eq(standin_calls("cublasLtMatmul"), 4);
    cr_assert_eq(standin_calls("cudaGetLastError"), 0, "no kernel was launched");
    c.pre = true;
    c.f = TSHI_GELU_TANH; /* float32: product and bias, then the kernel, whose tanh is exact */
    check_affine(device, &c);
    cr_assert_eq(standin_calls("cublasLtMatmul"), 5);
    cr_assert_eq(standin_calls("cudaGetLastError"), 1);
    close_device(device);
}

static void check_backward(tsh_device *device, tsh_dtype dtype, tsh_dtype to, int64_t m, int64_t n, int64_t k,
                           double beta, double beta_b, bool bias) {
    double *x = numbers(m * k, 1), *dy = numbers(m * n, 2), *dw = numbers(n * k, 3), *db = numbers(n, 4);
    void *at_x = put_numbers(device, dtype, m * k, x, 0), *at_dy = put_numbers(device, dtype, m * n, dy, 0);
    void *at_dw = put_numbers(device, to, n * k, dw, 0), *at_db = put_numbers(device, to, n, db, 0);
    cr_assert_eq(device->ops->product.affine_backward(device, dtype, m, n, k, at_x, at_dy, to, beta, at_dw, beta_b,
                                                      bias ? at_db : NULL),
                 TSH_OK, "%s", tsh_error_message());
    get_numbers(device, to, n * k, at_dw, dw);
    get_numbers(device, to, n, at_db, db);
    for (int64_t j = 0; j < n; j++) {
        double sum = bias ? beta_b * number(j, 4) : number(j, 4);
        for (int64_t i = 0; i < m && bias; i++) sum += dy[i * n + j];
        cr_assert_eq(db[j], sum, "%s db[%d]: %g, not %g", tsh_dtype_name(dtype), (int)j, db[j], sum);
        for (int64_t l = 0; l < k; l++) {
            sum = beta * number(j * k + l, 3);
            for (int64_t i = 0; i < m; i++) sum += dy[i * n + j] * x[i * k + l];
            cr_assert_eq(dw[j * k + l], sum, "%s dw", tsh_dtype_name(dtype));
        }
    }
    device->ops->memory.release(device, at_x);
    device->ops->memory.release(device, at_dy);
    device->ops->memory.release(device, at_dw);
    device->ops->memory.release(device, at_db);
    free(x);
    free(dy);
    free(dw);
    free(db);
}

Test(cuda_gemm, affine_backward_of_every_kind) {
    tsh_device *device = open_device();
    for (int i = 0; i < 256; i++) {
        tsh_dtype dtype = dtypes[i % 4];
        check_backward(device, dtype, i < 128 ? dtype : tshi_dtype_sum(dtype), i & 4 ? 9 : 0, i & 8 ? 5 : 16,
                       i & 16 ? 4 : 0, i >> 5 & 1, i >> 6 & 1, i % 3 != 2);
    }
    close_device(device);
}

/* A product of 16-bit numbers that is added to the output is rounded once, after the addition: bfloat16 has 256 and
 * 258, not 257. */
Test(cuda_gemm, a_bias_gradient_is_rounded_once) {
    tsh_device *device = open_device();
    double x[2] = {1, 1}, dy[2] = {1, 256}, dw = 0, db = 1;
    void *at_x = put_numbers(device, TSH_BFLOAT16, 2, x, 0), *at_dy = put_numbers(device, TSH_BFLOAT16, 2, dy, 0);
    void *at_dw = put_numbers(device, TSH_BFLOAT16, 1, &dw, 0), *at_db = put_numbers(device, TSH_BFLOAT16, 1, &db, 0);
    cr_assert_eq(device->ops->product.affine_backward(device, TSH_BFLOAT16, 2, 1, 1, at_x, at_dy, TSH_BFLOAT16, 0,
                                                      at_dw, 1, at_db),
                 TSH_OK);
    get_numbers(device, TSH_BFLOAT16, 1, at_db, &db);
    cr_assert_eq(db, 258, "%g", db);
    device->ops->memory.release(device, at_x);
    device->ops->memory.release(device, at_dy);
    device->ops->memory.release(device, at_dw);
    device->ops->memory.release(device, at_db);
    close_device(device);
}

/* Products of TF32 are as coarse as the epilogue's tanh. */
Test(cuda_gemm, epilogues_of_tf32) {
    tsh_device *device = open_device();
    tshi_cuda(device)->tf32 = true;
    check_affine(
        device,
        &(affine_case){.dtype = TSH_FLOAT32, .m = 4, .n = 16, .k = 8, .bias = true, .pre = true, .f = TSHI_GELU_TANH});
    cr_assert_eq(standin_calls("cublasLtMatmul"), 1);
    cr_assert_eq(standin_calls("cudaGetLastError"), 0);
    close_device(device);
}

/* c = f'(z) (a b), of float64 by central differences. */
static void check_through(tsh_device *device, tsh_dtype dtype, int64_t m, int64_t n, int64_t k, tshi_unary f) {
    const double h = 1e-5, exact = 1e-8;
    double *a = numbers(m * k, 1), *b = numbers(k * n, 2), *z = numbers(m * n, 3), *c = numbers(m * n, 4);
    void *at_a = put_numbers(device, dtype, m * k, a, 0), *at_b = put_numbers(device, dtype, k * n, b, 0);
    void *at_z = put_numbers(device, dtype, m * n, z, 0), *at_c = put_numbers(device, dtype, m * n, c, 0);
    cr_assert_eq(device->ops->product.gemm_unary_backward(device, dtype, m, n, k, at_a, at_b, f, at_z, at_c), TSH_OK,
                 "%s", tsh_error_message());
    get_numbers(device, dtype, m * n, at_c, c);
    for (int64_t i = 0; i < m * n; i++) {
        double sum = 0, slope = (value_of(f, z[i] + h) - value_of(f, z[i] - h)) / (2 * h);
        for (int64_t l = 0; l < k; l++) sum += a[i / n * k + l] * b[l * n + i % n];
        double want = slope * sum, most = (rounding(dtype) + exact) * (1 + fabs(want));
        cr_assert(fabs(c[i] - want) <= most, "%s %dx%dx%d: %g, not %g", tsh_dtype_name(dtype), (int)m, (int)n, (int)k,
                  c[i], want);
    }
    void *memory[] = {at_a, at_b, at_z, at_c};
    double *values[] = {a, b, z, c};
    for (int i = 0; i < 4; i++) {
        device->ops->memory.release(device, memory[i]);
        free(values[i]);
    }
}

Test(cuda_gemm, an_activations_backward_after_a_product_of_every_kind) {
    const tshi_unary functions[] = {TSHI_GELU_TANH, TSHI_GELU_ERF, TSHI_SILU};
    const int64_t sizes[][3] = {{1, 1, 1}, {5, 8, 3}, {3, 7, 9}, {20, 24, 16}, {0, 4, 4}, {4, 4, 0}};
    tsh_device *device = open_device();
    for (int t = 0; t < 4; t++)
        for (int f = 0; f < 3; f++)
            for (int i = 0; i < 6; i++)
                check_through(device, dtypes[t], sizes[i][0], sizes[i][1], sizes[i][2], functions[f]);
    close_device(device);
}

/* Of GELU by tanh, in 16 bits, where the rows of its argument are whole packs. */
Test(cuda_gemm, a_products_epilogue_does_the_backward_of_gelu) {
    tsh_device *device = open_device();
    const struct {
        tsh_dtype dtype;
        int64_t n;
        tshi_unary f;
        uint64_t kernels;
    } cases[] = {{TSH_BFLOAT16, 8, TSHI_GELU_TANH, 0}, {TSH_FLOAT16, 16, TSHI_GELU_TANH, 0},
                 {TSH_BFLOAT16, 7, TSHI_GELU_TANH, 1}, {TSH_BFLOAT16, 8, TSHI_GELU_ERF, 1},
                 {TSH_FLOAT32, 8, TSHI_GELU_TANH, 1},  {TSH_FLOAT64, 8, TSHI_GELU_TANH, 1}};
    char *at = get(device, 4096);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        uint64_t before = standin_calls("cudaGetLastError");
        cr_assert_eq(device->ops->product.gemm_unary_backward(device, cases[i].dtype, 4, cases[i].n, 4, at, at + 1024,
                                                              cases[i].f, at + 2048, at + 3072),
                     TSH_OK);
        uint64_t kernels = standin_calls("cudaGetLastError") - before;
        cr_expect_eq(kernels, cases[i].kernels, "case %d: %d kernels", (int)i, (int)kernels);
    }
    device->ops->memory.release(device, at);
    close_device(device);
}

/* A vector that does not begin at 16 bytes: one line in the log, however many shapes come to it, and their number in
 * the description. float64, which may have no epilogues, misses none. */
Test(cuda_gemm, refused_epilogues_are_counted_and_logged_once) {
    tsh_device *device = open_device();
    tshi_lines lines = {""};
    const tsh_log_sink sink = {tshi_keep_line, &lines};
    char text[256], *at = get(device, 4096);
    const tshi_product_ops *product = &device->ops->product;
    device->log = &sink;
    cr_assert_eq(
        product->affine(device, TSH_FLOAT64, 4, 8, 8, at, at + 1024, at + 2048, TSHI_IDENTITY, NULL, at + 3072),
        TSH_OK);
    cr_assert_eq(
        product->affine(device, TSH_FLOAT32, 4, 8, 8, at, at + 1024, at + 2048, TSHI_IDENTITY, NULL, at + 3072),
        TSH_OK);
    tsh_device_describe(device, text, sizeof text);
    cr_expect(strstr(text, " (epilogues: 1 fused, 0 refused)") && !lines.text[0], "%s; %s", text, lines.text);
    for (int m = 1; m <= 3; m++) {
        for (int i = 0; i < 2; i++) {
            cr_assert_eq(
                product->affine(device, TSH_FLOAT32, m, 8, 8, at, at + 1024, at + 2052, TSHI_IDENTITY, NULL, at + 3072),
                TSH_OK);
        }
    }
    tsh_device_describe(device, text, sizeof text);
    cr_expect_not_null(strstr(text, " (epilogues: 1 fused, 3 refused)"), "%s", text);
    const char *line = strstr(lines.text, "cuBLASLt has no algorithm for a float32 product of 1 x 8 x 8 with epilogue");
    cr_expect(line && !strstr(line + 1, "cuBLASLt has"), "%s", lines.text);
    device->log = NULL;
    device->ops->memory.release(device, at);
    close_device(device);
}

Test(cuda_gemm, errors_of_cublaslt_are_reported) {
    tsh_device *device = open_device();
    float *x = get(device, 64);
    standin_fail("cublasLtMatmul", 1, CUBLAS_STATUS_ARCH_MISMATCH);
    cr_assert_eq(device->ops->product.gemm(device, TSH_FLOAT32, 0, 0, 1, 1, 1, 1, x, 1, x, 1, 0, x, 1), TSH_ERR_SYSTEM);
    cr_assert_str_eq(tsh_error_message(), "cublasLtMatmul: CUBLAS_STATUS_ARCH_MISMATCH (8)");
    standin_fail("cublasLtMatmulAlgoGetHeuristic", 1, CUBLAS_STATUS_NOT_SUPPORTED);
    cr_assert_eq(device->ops->product.gemm(device, TSH_FLOAT32, 0, 0, 1, 1, 2, 1, x, 2, x, 1, 0, x, 1),
                 TSH_ERR_UNSUPPORTED);
    cr_assert_str_eq(tsh_error_message(), "cuBLASLt has no algorithm for a float32 product of 1 x 1 x 2");
    device->ops->memory.release(device, x);
    close_device(device);
}
