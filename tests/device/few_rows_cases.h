/* Products of few rows: integers make them exact, and each row of x gets what it gets alone, bit for bit. */
#ifndef FEW_ROWS_CASES_H
#define FEW_ROWS_CASES_H

#include "device/cpu/cpu.h"
#include "device/cpu/isa/kernels.h"
#include "kernel_test.h"

/* Weights of a dtype; `narrow`: those of x as well. */
typedef struct few_rows_case {
    tshi_few_rows_fn *run;
    tsh_dtype dtype;
    bool narrow;
} few_rows_case;

/* Values in the dtype, for the caller to free. */
static void *narrowed(tsh_dtype dtype, const buffer *w) {
    void *values = malloc((size_t)w->n * sizeof(float));
    cr_assert_not_null(values);
    if (dtype == TSH_FLOAT32)
        memcpy(values, w->data, (size_t)w->n * sizeof(float));
    else
        tshi_cpu_narrow_base(dtype, w->n, w->data, values);
    return values;
}

static void check_few_rows(few_rows_case c, int64_t m, int64_t n, int64_t k, int64_t pad, float alpha, float beta) {
    buffer x = buffer_make(TSH_FLOAT32, m * (k + pad)), w = buffer_make(TSH_FLOAT32, n * (k + pad));
    buffer y = buffer_make(TSH_FLOAT32, m * (n + pad));
    buffer *const all[] = {&x, &w, &y};
    for (int i = 0; i < 3; i++) buffer_fill_integers(all[i]);
    buffer before = buffer_copy(&y);
    void *weights = narrowed(c.dtype, &w), *factors = narrowed(c.narrow ? c.dtype : TSH_FLOAT32, &x);
    for (int64_t i = 0; i < m * n && beta == 0; i++) set(&y, i / n * (n + pad) + i % n, NAN);
    c.run(c.dtype,
          &(tshi_few_rows){m, n, k, alpha, factors, k + pad, weights, k + pad, beta, y.data, n + pad, c.narrow});
    for (int64_t i = 0; i < m * (n + pad); i++) {
        int64_t row = i / (n + pad), col = i % (n + pad);
        double wanted = get(&before, i), sum = 0;
        for (int64_t l = 0; l < k && col < n; l++) sum += get(&x, row * (k + pad) + l) * get(&w, col * (k + pad) + l);
        if (col < n) wanted = (double)alpha * sum + (beta != 0 ? (double)beta * wanted : 0);
        cr_assert_eq(get(&y, i), wanted, "%s %dx%dx%d at %d,%d: %g, not %g", tsh_dtype_name(c.dtype), (int)m, (int)n,
                     (int)k, (int)row, (int)col, get(&y, i), wanted);
    }
    for (int i = 0; i < 3; i++) buffer_free(all[i]);
    buffer_free(&before);
    free(weights);
    free(factors);
}

static void check_few_rows_sizes(few_rows_case c) {
    static const int64_t lengths[] = {1, 15, 31, 32, 33, 63, 64, 97, 256};
    for (int64_t m = 1; m <= TSHI_FEW_ROWS + 1; m++) {
        for (int l = 0; l < 9; l++) {
            check_few_rows(c, m, 9, lengths[l], 0, 1, 0);
            check_few_rows(c, m, 3, lengths[l], 3, -0.5f, 2);
        }
    }
}

static void check_few_rows_alone(few_rows_case c) {
    enum { N = 7, K = 203 };
    buffer x = buffer_make(TSH_FLOAT32, TSHI_FEW_ROWS * K), w = buffer_make(TSH_FLOAT32, N * K);
    float together[TSHI_FEW_ROWS * N], alone[N];
    for (int64_t i = 0; i < x.n; i++) set(&x, i, random_between(-1, 1));
    for (int64_t i = 0; i < w.n; i++) set(&w, i, random_between(-1, 1));
    tsh_dtype dtype = c.narrow ? c.dtype : TSH_FLOAT32;
    char *weights = narrowed(c.dtype, &w), *factors = narrowed(dtype, &x);
    tshi_few_rows p = {TSHI_FEW_ROWS, N, K, 1, factors, K, weights, K, 0, together, N, c.narrow};
    c.run(c.dtype, &p);
    for (int r = 0; r < TSHI_FEW_ROWS; r++) {
        for (int j = 0; j < N; j++) {
            p = (tshi_few_rows){1,
                                1,
                                K,
                                1,
                                factors + (size_t)(r * K) * tsh_dtype_size(dtype),
                                K,
                                weights + (size_t)(j * K) * tsh_dtype_size(c.dtype),
                                K,
                                0,
                                alone + j,
                                1,
                                c.narrow};
            c.run(c.dtype, &p);
        }
        cr_assert_eq(memcmp(alone, together + r * N, sizeof alone), 0, "row %d", r);
    }
    buffer_free(&x);
    buffer_free(&w);
    free(weights);
    free(factors);
}

static void check_few_rows_all(tshi_few_rows_fn *run) {
    static const tsh_dtype dtypes[] = {TSH_FLOAT32, TSH_BFLOAT16, TSH_FLOAT16};
    for (int d = 0; d < 3; d++) {
        check_few_rows_sizes((few_rows_case){run, dtypes[d], false});
        check_few_rows_alone((few_rows_case){run, dtypes[d], false});
    }
}

#endif
