/* Layer norm and RMS norm against plain loops in double. */
#include "kernel_test.h"

TestSuite(norm, .timeout = 600);

typedef struct norm_case {
    tsh_dtype dtype;
    int64_t rows, cols;
    bool rms, has_gamma, has_beta, dx, dgamma, dbeta;
    buffer x, gamma, beta, mean, rstd;
} norm_case;

static const double eps = 1e-5;

static double scale_at(const norm_case *c, int64_t j) {
    return c->has_gamma ? get(&c->gamma, j) : 1.0;
}

/* Mean and 1 / standard deviation of row r. */
static void statistics(const norm_case *c, int64_t r, double *mean, double *rstd) {
    double sum = 0, squares = 0, n = (double)c->cols;
    for (int64_t j = 0; j < c->cols; j++) sum += get(&c->x, r * c->cols + j);
    *mean = c->rms ? 0 : sum / n;
    for (int64_t j = 0; j < c->cols; j++) squares += pow(get(&c->x, r * c->cols + j) - *mean, 2);
    *rstd = 1 / sqrt(squares / n + eps);
}

static void check_forward(norm_case *c) {
    buffer y = buffer_nans(c->dtype, c->rows * c->cols);
    kernels()->norm[c->dtype].forward(kernel_device(), c->rms, c->rows, c->cols, eps, c->x.data,
                                      data_if(&c->gamma, c->has_gamma), data_if(&c->beta, c->has_beta), y.data,
                                      data_if(&c->mean, !c->rms), c->rstd.data);
    for (int64_t r = 0; r < c->rows && c->cols > 0; r++) {
        double mean = 0, rstd = 0;
        statistics(c, r, &mean, &rstd);
        double slack = c->dtype == TSH_FLOAT64 ? 64 + sqrt((double)c->cols) : 2; /* the plain loop's own rounding */
        if (!c->rms) expect_close(&c->mean, r, mean, 4, slack);
        expect_close(&c->rstd, r, rstd, rstd, slack);
        for (int64_t j = 0; j < c->cols; j++) {
            int64_t at = r * c->cols + j;
            double wanted = (get(&c->x, at) - mean) * rstd * scale_at(c, j) + (c->has_beta ? get(&c->beta, j) : 0);
            expect_close(&y, at, wanted, 4 + 4 * rstd, 16);
        }
    }
}

/* Row r of dx, and what it adds to dgamma and dbeta. */
static void check_row(const norm_case *c, int64_t r, const buffer *dy, const buffer *before, const buffer *dx,
                      double *gammas, double *betas) {
    double mean, rstd, sum = 0, dot = 0, n = (double)c->cols;
    statistics(c, r, &mean, &rstd);
    for (int64_t j = 0; j < c->cols; j++) {
        double hat = (get(&c->x, r * c->cols + j) - mean) * rstd, up = get(dy, r * c->cols + j);
        sum += up * scale_at(c, j);
        dot += up * scale_at(c, j) * hat;
        gammas[j] += up * hat;
        betas[j] += up;
    }
    if (c->rms) sum = 0;
    for (int64_t j = 0; j < c->cols; j++) {
        int64_t at = r * c->cols + j;
        double hat = (get(&c->x, at) - mean) * rstd;
        double g = rstd * (get(dy, at) * scale_at(c, j) - sum / n - hat * dot / n);
        expect_close(dx, at, get(before, at) + (c->dx ? g : 0), 4 + 16 * rstd, 32);
    }
}

static void check_backward(norm_case *c, double beta) {
    int64_t rows = c->rows, cols = c->cols;
    buffer dy = buffer_random(c->dtype, rows * cols, -1, 1), before = buffer_make(c->dtype, rows * cols);
    if (beta != 0 || !c->dx) buffer_fill_random(&before, -1, 1);
    buffer dx = beta != 0 || !c->dx ? buffer_copy(&before) : buffer_nans(c->dtype, rows * cols);
    buffer dgamma = buffer_random(c->dtype, cols, -1, 1), dbeta = buffer_random(c->dtype, cols, -1, 1);
    buffer dgamma_before = buffer_copy(&dgamma), dbeta_before = buffer_copy(&dbeta);
    kernels()->norm[c->dtype].backward(kernel_device(), c->rms, rows, cols, c->x.data, data_if(&c->gamma, c->has_gamma),
                                       data_if(&c->mean, !c->rms), c->rstd.data, dy.data, beta, data_if(&dx, c->dx),
                                       data_if(&dgamma, c->dgamma), data_if(&dbeta, c->dbeta));
    double *gammas = calloc((size_t)cols + 1, sizeof(double)), *betas = calloc((size_t)cols + 1, sizeof(double));
    for (int64_t r = 0; r < rows && cols > 0; r++) check_row(c, r, &dy, &before, &dx, gammas, betas);
    for (int64_t j = 0; j < cols; j++) {
        expect_close(&dgamma, j, get(&dgamma_before, j) + (c->dgamma ? gammas[j] : 0), 4 * (double)(rows + 1), 16);
        expect_close(&dbeta, j, get(&dbeta_before, j) + (c->dbeta ? betas[j] : 0), (double)(rows + 1), 4);
    }
    free(gammas);
    free(betas);
}

static void check(norm_case c) {
    c.x = buffer_random(c.dtype, c.rows * c.cols, -2, 3);
    c.gamma = buffer_random(c.dtype, c.cols, -2, 2);
    c.beta = buffer_random(c.dtype, c.cols, -2, 2);
    c.mean = statistics_make(c.dtype, c.rows);
    c.rstd = statistics_make(c.dtype, c.rows);
    /* The variance of one column is 0 and 1/sqrt(eps) large: integers keep the comparison meaningful. */
    for (int64_t i = 0; i < c.x.n && c.cols == 1 && !c.rms; i++) set(&c.x, i, (double)(random_word() % 17) - 8.0);
    check_forward(&c);
    check_backward(&c, 0);
    check_backward(&c, 1);
    free_buffers();
}

static const norm_case all = {.has_gamma = true, .has_beta = true, .dx = true, .dgamma = true, .dbeta = true};

static norm_case case_of(tsh_dtype dtype, int64_t rows, int64_t cols) {
    norm_case c = all;
    c.dtype = dtype, c.rows = rows, c.cols = cols;
    return c;
}

Test(norm, forward_and_backward) {
    const int64_t rows[] = {0, 1, 6, 21};
    for (int bits = 0; bits < 8 * FLOAT_DTYPES; bits++) {
        for (int s = tested.is_slow ? bits % 3 : 0; s < 4 * ODD_SIZES; s += tested.is_slow ? 3 : 1) {
            norm_case c = case_of(float_dtypes[bits >> 3], rows[s % 4], odd_sizes[s / 4]);
            c.rms = bits & 1, c.has_gamma = bits & 2, c.has_beta = c.dbeta = bits & 4;
            lay_buffers((bits + s / 4) % LAYOUTS);
            check(c);
        }
    }
}

Test(norm, what_may_be_left_out) {
    for (int bits = 0; bits < 64 * FLOAT_DTYPES; bits++)
        check((norm_case){.dtype = float_dtypes[bits >> 6],
                          .rows = 9,
                          .cols = 40,
                          .rms = bits & 1,
                          .has_gamma = bits & 2,
                          .has_beta = bits & 4,
                          .dx = bits & 8,
                          .dgamma = bits & 16,
                          .dbeta = bits & 32});
}

/* More chunks than the threads of a block keep: 16-byte ones, and single elements. */
Test(norm, long_rows) {
    for (int t = 0; t < FLOAT_DTYPES; t++) {
        const int64_t most = 32768 / (int64_t)tsh_dtype_size(float_dtypes[t]);
        norm_case c = case_of(float_dtypes[t], 70, most + 8);
        lay_buffers(ALIGNED);
        check(case_of(float_dtypes[t], 3, most + 512));
        check(case_of(float_dtypes[t], 2, most));
        c.rms = true, c.has_gamma = c.has_beta = c.dbeta = false;
        check(c);
        lay_buffers(SHIFTED);
        check(case_of(float_dtypes[t], 3, 2049));
    }
}

Test(norm, many_rows) {
    for (int t = 0; t < FLOAT_DTYPES; t++) {
        check(case_of(float_dtypes[t], tested.is_slow ? 259 : 1003, 24));
        check(case_of(float_dtypes[t], 101, 648));
    }
}

Test(norm, nothing_to_do) {
    const tshi_norm_ops *ops = &kernels()->norm[TSH_FLOAT32];
    buffer mean = buffer_of(TSH_FLOAT32, 2, (double[]){1, 1}), rstd = buffer_make(TSH_FLOAT32, 2);
    ops->forward(kernel_device(), false, 0, 8, eps, NULL, NULL, NULL, NULL, NULL, NULL);
    ops->backward(kernel_device(), false, 0, 8, NULL, NULL, NULL, NULL, NULL, 0, NULL, NULL, NULL);
    ops->backward(kernel_device(), false, 2, 0, NULL, NULL, NULL, NULL, NULL, 0, NULL, NULL, NULL);
    ops->forward(kernel_device(), false, 2, 0, 0.25, NULL, NULL, NULL, NULL, mean.data, rstd.data);
    cr_assert_eq(get(&rstd, 1), 2);
    cr_assert_eq(get(&mean, 1), 0);
    free_buffers();
}

Test(norm, a_small_variance_beside_a_large_mean) {
    enum { N = 4096 };
    buffer x = buffer_make(TSH_FLOAT32, N), y = buffer_make(TSH_FLOAT32, N);
    buffer mean = buffer_make(TSH_FLOAT32, 1), rstd = buffer_make(TSH_FLOAT32, 1);
    for (int i = 0; i < N; i++) set(&x, i, 1000.0 + 0.25 * (i % 2 ? 1 : -1));
    kernels()->norm[TSH_FLOAT32].forward(kernel_device(), false, 1, N, 0.0, x.data, NULL, NULL, y.data, mean.data,
                                         rstd.data);
    cr_assert_eq(get(&mean, 0), 1000);
    cr_assert_eq(get(&rstd, 0), 4, "%g", get(&rstd, 0));
    free_buffers();
}

Test(norm, gradients_are_the_same_every_time) {
    enum { ROWS = 300, COLS = 100 };
    buffer x = buffer_random(TSH_FLOAT32, ROWS * COLS, -1, 1), dy = buffer_random(TSH_FLOAT32, ROWS * COLS, -1, 1);
    buffer mean = buffer_random(TSH_FLOAT32, ROWS, -1, 1), rstd = buffer_random(TSH_FLOAT32, ROWS, 1, 2), sums[2][2];
    for (int i = 0; i < 2; i++) {
        for (int k = 0; k < 2; k++) sums[i][k] = buffer_make(TSH_FLOAT32, COLS);
        kernels()->norm[TSH_FLOAT32].backward(kernel_device(), false, ROWS, COLS, x.data, NULL, mean.data, rstd.data,
                                              dy.data, 0, NULL, sums[i][0].data, sums[i][1].data);
    }
    for (int k = 0; k < 2; k++) expect_same_bits(&sums[0][k], &sums[1][k], "dgamma or dbeta");
    free_buffers();
}
