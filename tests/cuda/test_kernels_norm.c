/* The GPU's layer norm and RMS norm against the CPU's. */
#include "kernel_pair.h"

TestSuite(cuda_norm, .timeout = 600);

typedef struct norm_case {
    tsh_dtype dtype;
    int64_t rows, cols;
    int skew;
    bool rms, gamma, beta, dx, dgamma, dbeta;
} norm_case;

static const double eps = 1e-5;

/* y and the statistics; those of the CPU then stand on both sides, for the backward. */
static void check_forward(const norm_case *c, const pair *x, const pair *gamma, const pair *beta, pair *mean,
                          pair *rstd) {
    pair y = pair_make(c->dtype, c->rows * c->cols, c->skew);
    tshi_cuda_norm[c->dtype].forward(gpu(), c->rms, c->rows, c->cols, eps, x->gpu, gpu_or_null(gamma, c->gamma),
                                     gpu_or_null(beta, c->beta), y.gpu, gpu_or_null(mean, !c->rms), rstd->gpu);
    kernels()->norm[x->cpu.dtype].forward(kernel_device(), c->rms, c->rows, c->cols, eps, x->cpu.data,
                                          cpu_or_null(gamma, c->gamma), cpu_or_null(beta, c->beta), y.cpu.data,
                                          cpu_or_null(mean, !c->rms), rstd->cpu.data);
    double root = sqrt((double)c->cols + 1);
    expect_pair(mean, "mean", 4, root);
    expect_pair(rstd, "rstd", 1, 4 * root);
    expect_pair(&y, "y", 8, 8 * root);
    pair_round(mean);
    pair_round(rstd);
    pair_free(&y);
}

static void check_backward(const norm_case *c, const pair *x, const pair *gamma, const pair *mean, const pair *rstd) {
    pair dy = pair_random(c->dtype, c->rows * c->cols, c->skew, -1, 1);
    pair dx = pair_random(c->dtype, c->rows * c->cols, c->skew, -1, 1);
    pair dgamma = pair_random(c->dtype, c->cols, c->skew, -1, 1), dbeta = pair_random(c->dtype, c->cols, 0, -1, 1);
    for (int before = 1; before >= 0; before--) {
        tshi_cuda_norm[c->dtype].backward(gpu(), c->rms, c->rows, c->cols, x->gpu, gpu_or_null(gamma, c->gamma),
                                          gpu_or_null(mean, !c->rms), rstd->gpu, dy.gpu, before,
                                          gpu_or_null(&dx, c->dx), gpu_or_null(&dgamma, c->dgamma),
                                          gpu_or_null(&dbeta, c->dbeta));
        kernels()->norm[x->cpu.dtype].backward(kernel_device(), c->rms, c->rows, c->cols, x->cpu.data,
                                               cpu_or_null(gamma, c->gamma), cpu_or_null(mean, !c->rms), rstd->cpu.data,
                                               dy.cpu.data, before, cpu_or_null(&dx, c->dx),
                                               cpu_or_null(&dgamma, c->dgamma), cpu_or_null(&dbeta, c->dbeta));
        expect_pair(&dx, "dx", 8, 8 * sqrt((double)c->cols + 1));
        if (!before) break;
        for (int64_t i = 0; i < dx.n; i++) set(&dx.cpu, i, NAN);
        pair_round(&dx);
        for (int64_t i = 0; i < c->cols; i++) set(&dgamma.cpu, i, 0.5), set(&dbeta.cpu, i, -0.5);
        pair_round(&dgamma);
        pair_round(&dbeta);
    }
    expect_pair(&dgamma, "dgamma", 4, 8 * sqrt((double)c->rows + 1));
    expect_pair(&dbeta, "dbeta", 4, 8 * sqrt((double)c->rows + 1));
    pair_free(&dy);
    pair_free(&dx);
    pair_free(&dgamma);
    pair_free(&dbeta);
}

static void check(norm_case c) {
    pair x = pair_random(c.dtype, c.rows * c.cols, c.skew, -2, 3);
    pair gamma = pair_random(c.dtype, c.cols, c.skew, -2, 2), beta = pair_random(c.dtype, c.cols, c.skew, -2, 2);
    pair mean = pair_make(tshi_dtype_sum(c.dtype), c.rows, 0), rstd = pair_make(tshi_dtype_sum(c.dtype), c.rows, 0);
    check_forward(&c, &x, &gamma, &beta, &mean, &rstd);
    check_backward(&c, &x, &gamma, &mean, &rstd);
    pair_free(&x);
    pair_free(&gamma);
    pair_free(&beta);
    pair_free(&mean);
    pair_free(&rstd);
}

/* Two columns and more: the variance of one is 0, and its reciprocal deviation makes every rounding error large. */
Test(cuda_norm, odd_sizes) {
    for (int t = 0; t < 4; t++)
        for (int s = 2; s < ODD_SIZES; s++)
            for (int bits = 0; bits < 4; bits++)
                check((norm_case){.dtype = gpu_dtypes[t],
                                  .rows = 1 + 10 * (s % 3),
                                  .cols = odd_sizes[s] + (s % 2 ? 0 : 16 - odd_sizes[s] % 16),
                                  .skew = bits >> 1,
                                  .rms = bits & 1,
                                  .gamma = true,
                                  .beta = true,
                                  .dx = true,
                                  .dgamma = true,
                                  .dbeta = true});
}

Test(cuda_norm, one_column) {
    for (int t = 0; t < 4; t++) {
        pair x = pair_integers(gpu_dtypes[t], 5, 0), y = pair_make(gpu_dtypes[t], 5, 0);
        pair mean = pair_make(tshi_dtype_sum(x.dtype), 5, 0), rstd = pair_make(tshi_dtype_sum(x.dtype), 5, 0);
        tshi_cuda_norm[x.dtype].forward(gpu(), false, 5, 1, eps, x.gpu, NULL, NULL, y.gpu, mean.gpu, rstd.gpu);
        kernels()->norm[x.cpu.dtype].forward(kernel_device(), false, 5, 1, eps, x.cpu.data, NULL, NULL, y.cpu.data,
                                             mean.cpu.data, rstd.cpu.data);
        expect_same(&y, "y");
        expect_same(&mean, "mean");
        expect_pair(&rstd, "rstd", 400, 2);
        pair_free(&x);
        pair_free(&y);
        pair_free(&mean);
        pair_free(&rstd);
    }
}

/* More chunks than the threads of a block keep: 16-byte ones, and single elements. */
Test(cuda_norm, long_rows) {
    for (int t = 0; t < 4; t++)
        for (int skew = 0; skew < 2; skew++)
            check((norm_case){.dtype = gpu_dtypes[t],
                              .rows = 3,
                              .cols = skew ? 2049 : 32768 / (int64_t)tsh_dtype_size(gpu_dtypes[t]) + 512,
                              .skew = skew,
                              .gamma = true,
                              .dx = true,
                              .dgamma = true,
                              .dbeta = true});
    for (int t = 0; t < 4; t++) {
        const int64_t most = 32768 / (int64_t)tsh_dtype_size(gpu_dtypes[t]);
        check((norm_case){.dtype = gpu_dtypes[t], .rows = 2, .cols = most, .dx = true, .dgamma = true});
        check((norm_case){.dtype = gpu_dtypes[t], .rows = 70, .cols = most + 8, .rms = true, .dgamma = true});
    }
}

Test(cuda_norm, many_rows) {
    for (int t = 0; t < 4; t++) {
        norm_case c = {.dtype = gpu_dtypes[t], .rows = 1003, .cols = 24, .gamma = true, .dx = true, .dgamma = true};
        check(c);
        c.cols = 648;
        c.rows = 101;
        c.beta = c.dbeta = true;
        check(c);
    }
}

Test(cuda_norm, what_may_be_left_out) {
    for (int t = 0; t < 4; t++)
        for (int bits = 0; bits < 64; bits++)
            check((norm_case){.dtype = gpu_dtypes[t],
                              .rows = 9,
                              .cols = 40,
                              .rms = bits & 1,
                              .gamma = bits & 2,
                              .beta = bits & 4,
                              .dx = bits & 8,
                              .dgamma = bits & 16,
                              .dbeta = bits & 32});
}

Test(cuda_norm, nothing_to_do) {
    float rstd[2] = {0}, mean[2] = {1, 1};
    tshi_cuda_norm[TSH_FLOAT32].forward(gpu(), false, 0, 8, eps, NULL, NULL, NULL, NULL, NULL, NULL);
    tshi_cuda_norm[TSH_FLOAT32].backward(gpu(), false, 0, 8, NULL, NULL, NULL, NULL, NULL, 0, NULL, NULL, NULL);
    tshi_cuda_norm[TSH_FLOAT32].backward(gpu(), false, 2, 0, NULL, NULL, NULL, NULL, NULL, 0, NULL, NULL, NULL);
    tshi_cuda_norm[TSH_FLOAT32].forward(gpu(), false, 2, 0, 0.25, NULL, NULL, NULL, NULL, mean, rstd);
    cr_assert_eq(rstd[1], 2.0f);
    cr_assert_eq(mean[1], 0.0f);
    gpu();
}

Test(cuda_norm, a_small_variance_beside_a_large_mean) {
    enum { N = 4096 };
    pair x = pair_make(TSH_FLOAT32, N, 0), y = pair_make(TSH_FLOAT32, N, 0);
    float mean = 0, rstd = 0;
    for (int i = 0; i < N; i++) ((float *)x.gpu)[i] = i % 2 ? 1000.25f : 999.75f;
    tshi_cuda_norm[TSH_FLOAT32].forward(gpu(), false, 1, N, 0.0, x.gpu, NULL, NULL, y.gpu, &mean, &rstd);
    cr_assert_eq(mean, 1000.0f);
    cr_assert_eq(rstd, 4.0f, "%g", (double)rstd);
    pair_free(&x);
    pair_free(&y);
}

Test(cuda_norm, gradients_are_the_same_every_time) {
    enum { ROWS = 300, COLS = 100 };
    pair x = pair_random(TSH_FLOAT32, ROWS * COLS, 0, -1, 1), dy = pair_random(TSH_FLOAT32, ROWS * COLS, 0, -1, 1);
    pair mean = pair_random(TSH_FLOAT32, ROWS, 0, -1, 1), rstd = pair_random(TSH_FLOAT32, ROWS, 0, 1, 2);
    float sums[2][2][COLS] = {{{0}}};
    for (int i = 0; i < 2; i++)
        tshi_cuda_norm[TSH_FLOAT32].backward(gpu(), false, ROWS, COLS, x.gpu, NULL, mean.gpu, rstd.gpu, dy.gpu, 0, NULL,
                                             sums[i][0], sums[i][1]);
    cr_assert_arr_eq(sums[0], sums[1], sizeof sums[0]);
    pair_free(&x);
    pair_free(&dy);
    pair_free(&mean);
    pair_free(&rstd);
}
