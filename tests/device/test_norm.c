/* Layer norm, RMS norm and embeddings against plain loops in double. */
#include "kernel_test.h"

TestSuite(norm, .timeout = 120);
TestSuite(embedding, .timeout = 120);

typedef struct norm_case {
    bool rms, has_gamma, has_beta;
    tsh_dtype dtype;
    int64_t rows, cols;
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
    buffer y = buffer_make(c->dtype, c->rows * c->cols);
    kernels()->norm[c->dtype].forward(kernel_device(), c->rms, c->rows, c->cols, eps, c->x.data,
                                      c->has_gamma ? c->gamma.data : NULL, c->has_beta ? c->beta.data : NULL, y.data,
                                      c->rms ? NULL : c->mean.data, c->rstd.data);
    for (int64_t r = 0; r < c->rows && c->cols > 0; r++) {
        double mean = 0, rstd = 0;
        statistics(c, r, &mean, &rstd);
        double slack = c->dtype == TSH_FLOAT64 ? 64 : 2; /* the plain loop's own rounding */
        if (!c->rms) expect_close(&c->mean, r, mean, 4, slack);
        expect_close(&c->rstd, r, rstd, rstd, slack);
        for (int64_t j = 0; j < c->cols; j++) {
            int64_t at = r * c->cols + j;
            double wanted = (get(&c->x, at) - mean) * rstd * scale_at(c, j) + (c->has_beta ? get(&c->beta, j) : 0);
            expect_close(&y, at, wanted, 4 + 4 * rstd, 16);
        }
    }
    buffer_free(&y);
}

static void check_backward(norm_case *c, double beta) {
    int64_t rows = c->rows, cols = c->cols;
    buffer dy = buffer_random(c->dtype, rows * cols, -1, 1), dx = buffer_random(c->dtype, rows * cols, -1, 1);
    buffer dgamma = buffer_random(c->dtype, cols, -1, 1), dbeta = buffer_random(c->dtype, cols, -1, 1);
    buffer dx_before = buffer_copy(&dx), dgamma_before = buffer_copy(&dgamma), dbeta_before = buffer_copy(&dbeta);
    for (int64_t i = 0; i < dx.n && beta == 0; i++) set(&dx, i, NAN), set(&dx_before, i, 0);
    kernels()->norm[c->dtype].backward(kernel_device(), c->rms, rows, cols, c->x.data,
                                       c->has_gamma ? c->gamma.data : NULL, c->rms ? NULL : c->mean.data, c->rstd.data,
                                       dy.data, beta, dx.data, dgamma.data, c->has_beta ? dbeta.data : NULL);
    double *gammas = calloc((size_t)cols + 1, sizeof(double)), *betas = calloc((size_t)cols + 1, sizeof(double));
    for (int64_t r = 0; r < rows && cols > 0; r++) {
        double mean = 0, rstd = 0, sum = 0, dot = 0;
        statistics(c, r, &mean, &rstd);
        for (int64_t j = 0; j < cols; j++) {
            double hat = (get(&c->x, r * cols + j) - mean) * rstd, up = get(&dy, r * cols + j);
            sum += up * scale_at(c, j);
            dot += up * scale_at(c, j) * hat;
            gammas[j] += up * hat;
            betas[j] += up;
        }
        if (c->rms) sum = 0;
        for (int64_t j = 0; j < cols; j++) {
            int64_t at = r * cols + j;
            double hat = (get(&c->x, at) - mean) * rstd;
            double g = rstd * (get(&dy, at) * scale_at(c, j) - sum / (double)cols - hat * dot / (double)cols);
            expect_close(&dx, at, get(&dx_before, at) + g, 4 + 16 * rstd, 32);
        }
    }
    for (int64_t j = 0; j < cols; j++) {
        expect_close(&dgamma, j, get(&dgamma_before, j) + gammas[j], 4 * (double)(rows + 1), 16);
        expect_close(&dbeta, j, get(&dbeta_before, j) + (c->has_beta ? betas[j] : 0), (double)(rows + 1), 4);
    }
    free(gammas);
    free(betas);
    buffer_free(&dy);
    buffer_free(&dx);
    buffer_free(&dgamma);
    buffer_free(&dbeta);
    buffer_free(&dx_before);
    buffer_free(&dgamma_before);
    buffer_free(&dbeta_before);
}

Test(norm, forward_and_backward) {
    const int64_t rows[] = {0, 1, 6};
    for (int bits = 0; bits < 8 * FLOAT_DTYPES; bits++) {
        for (int s = 0; s < 3 * ODD_SIZES; s++) {
            norm_case c = {.rms = bits & 1,
                           .has_gamma = bits & 2,
                           .has_beta = bits & 4,
                           .dtype = float_dtypes[bits >> 3],
                           .rows = rows[s % 3],
                           .cols = odd_sizes[s / 3]};
            c.x = buffer_random(c.dtype, c.rows * c.cols, -2, 3);
            c.gamma = buffer_random(c.dtype, c.cols, -2, 2);
            c.beta = buffer_random(c.dtype, c.cols, -2, 2);
            c.mean = buffer_make(tshi_dtype_sum(c.dtype), c.rows);
            c.rstd = buffer_make(tshi_dtype_sum(c.dtype), c.rows);
            if (c.cols == 1 && !c.rms) {
                /* The variance is 0 and 1/sqrt(eps) large: integers keep the comparison meaningful. */
                buffer_fill_integers(&c.x);
            }
            check_forward(&c);
            check_backward(&c, 0);
            check_backward(&c, 1);
            buffer_free(&c.x);
            buffer_free(&c.gamma);
            buffer_free(&c.beta);
            buffer_free(&c.mean);
            buffer_free(&c.rstd);
        }
    }
}

Test(norm, each_gradient_may_be_left_out) {
    const double x[4] = {1, 2, 4, 8}, dy[4] = {1, 0, -1, 2}, mean[1] = {3.75}, rstd[1] = {0.37};
    double all[3][4] = {{0}}, one[4];
    kernels()->norm[TSH_FLOAT64].backward(kernel_device(), false, 1, 4, x, NULL, mean, rstd, dy, 1, all[0], all[1],
                                          all[2]);
    for (int which = 0; which < 3; which++) {
        memset(one, 0, sizeof one);
        kernels()->norm[TSH_FLOAT64].backward(kernel_device(), false, 1, 4, x, NULL, mean, rstd, dy, 1,
                                              which == 0 ? one : NULL, which == 1 ? one : NULL,
                                              which == 2 ? one : NULL);
        cr_assert_arr_eq(one, all[which], sizeof one);
        cr_assert(one[0] != 0.0);
    }
}

Test(norm, float32_statistics_are_double) {
    enum { N = 4096 };
    buffer x = buffer_make(TSH_FLOAT32, N), y = buffer_make(TSH_FLOAT32, N);
    float mean = 0, rstd = 0;
    for (int i = 0; i < N; i++) set(&x, i, 1000.0 + 0.25 * (i % 2 ? 1 : -1));
    kernels()->norm[TSH_FLOAT32].forward(kernel_device(), false, 1, N, 0.0, x.data, NULL, NULL, y.data, &mean, &rstd);
    cr_assert_eq(mean, 1000.0f);
    cr_assert_eq(rstd, 4.0f, "%g: a small variance beside a large mean", (double)rstd);
    buffer_free(&x);
    buffer_free(&y);
}

static void check_embedding(tsh_dtype dtype, int64_t n, int64_t start, int64_t rows, int64_t cols) {
    int64_t ids[100];
    buffer table = buffer_make(dtype, rows * cols), y = buffer_make(dtype, n * cols), dy = buffer_make(dtype, n * cols);
    buffer dtable = buffer_make(dtype, rows * cols);
    buffer_fill_integers(&table);
    buffer_fill_integers(&dy);
    buffer_fill_integers(&dtable);
    buffer wanted = buffer_make(TSH_FLOAT64, dtable.n);
    for (int64_t i = 0; i < dtable.n; i++) set(&wanted, i, get(&dtable, i));
    const int64_t padding = 5;
    for (int64_t i = 0; i < n; i++) ids[i] = random_word() % 13;
    for (int64_t i = 0; i < y.n; i++) set(&y, i, NAN);
    kernels()->embedding[dtype].forward(kernel_device(), n, ids, start, rows, cols, table.data, y.data);
    kernels()->embedding[dtype].backward(kernel_device(), n, ids, start, rows, cols, padding, dy.data, dtable.data);
    for (int64_t i = 0; i < n; i++) {
        bool inside = ids[i] >= start && ids[i] < start + rows;
        for (int64_t c = 0; c < cols; c++) {
            int64_t row = inside ? (ids[i] - start) * cols + c : 0;
            cr_assert_eq(get(&y, i * cols + c), inside ? get(&table, row) : 0.0);
            if (inside && ids[i] != padding) set(&wanted, row, get(&wanted, row) + get(&dy, i * cols + c));
        }
    }
    for (int64_t i = 0; i < dtable.n; i++) cr_assert_eq(get(&dtable, i), rounded(dtype, get(&wanted, i)));
    buffer_free(&table);
    buffer_free(&y);
    buffer_free(&dy);
    buffer_free(&dtable);
    buffer_free(&wanted);
}

Test(embedding, slices_of_the_table) {
    const int64_t counts[] = {0, 1, 100};
    for (int t = 0; t < FLOAT_DTYPES; t++) {
        for (int n = 0; n < 3; n++) {
            for (int s = 0; s < ODD_SIZES; s++) {
                check_embedding(float_dtypes[t], counts[n], 0, 13, odd_sizes[s]);
                check_embedding(float_dtypes[t], counts[n], 4, 3, odd_sizes[s]);
                check_embedding(float_dtypes[t], counts[n], 12, 1, odd_sizes[s]);
                check_embedding(float_dtypes[t], counts[n], 13, 0, odd_sizes[s]);
            }
        }
    }
}

static void check_bound(tsh_dtype dtype, int64_t start, int64_t rows, int64_t cols) {
    enum { IDS = 40 };
    int64_t ids[IDS];
    double norms[IDS];
    buffer table = buffer_make(dtype, rows * cols), whole = buffer_make(dtype, 13 * cols);
    buffer from = buffer_make(dtype, IDS * cols);
    buffer_fill_integers(&whole);
    for (int64_t i = 0; i < table.n; i++) set(&table, i, get(&whole, start * cols + i));
    for (int64_t i = 0; i < IDS; i++) {
        ids[i] = random_word() % 12;
        norms[i] = ids[i] == 9 ? NAN : (double)(ids[i] + 1);
        for (int64_t c = 0; c < cols; c++) set(&from, i * cols + c, get(&whole, ids[i] * cols + c));
    }
    kernels()->embedding[dtype].bound(kernel_device(), IDS, ids, start, rows, cols, norms, 6.0, from.data, table.data);
    for (int64_t row = 0; row < rows; row++) {
        double factor = 1;
        for (int64_t i = 0; i < IDS; i++)
            if (ids[i] == start + row && norms[i] > 6) factor = 6 / (norms[i] + 1e-7);
        for (int64_t c = 0; c < cols; c++) {
            double before = get(&whole, (start + row) * cols + c), after = get(&table, row * cols + c);
            double error = dtype == TSH_FLOAT64 ? 1e-15 : dtype == TSH_FLOAT32 ? 2e-7 : 0.004;
            cr_assert(factor < 1 ? fabs(after - before * factor) <= fabs(before) * error : after == before);
        }
    }
    buffer_free(&table);
    buffer_free(&whole);
    buffer_free(&from);
}

Test(embedding, rows_above_a_norm_are_scaled_once) {
    for (int t = 0; t < FLOAT_DTYPES; t++) {
        for (int s = 0; s < ODD_SIZES; s++) {
            check_bound(float_dtypes[t], 0, 13, odd_sizes[s]);
            check_bound(float_dtypes[t], 4, 5, odd_sizes[s]);
            check_bound(float_dtypes[t], 13, 0, odd_sizes[s]);
        }
    }
}

Test(embedding, ids_outside_are_found) {
    cr_assert_eq(kernels()->ids_check(kernel_device(), 0, NULL, 5), -1);
    cr_assert_eq(kernels()->ids_check(kernel_device(), 3, (int64_t[]){0, 4, 2}, 5), -1);
    cr_assert_eq(kernels()->ids_check(kernel_device(), 3, (int64_t[]){0, 5, -1}, 5), 1);
    cr_assert_eq(kernels()->ids_check(kernel_device(), 3, (int64_t[]){0, 4, -1}, 5), 2);
}
