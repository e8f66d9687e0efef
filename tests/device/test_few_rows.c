/* Products of few rows: integers make them exact, and each row of x gets what it gets alone, bit for bit. */
#include "device/cpu/kernels/kernels.h"
#include "kernel_test.h"

TestSuite(few_rows, .timeout = 120);

static const tsh_dtype dtypes[] = {TSH_FLOAT32, TSH_BFLOAT16, TSH_FLOAT16};

/* The weights in the dtype, for the caller to free. */
static void *narrowed(tsh_dtype dtype, const buffer *w) {
    void *values = malloc((size_t)w->n * sizeof(float));
    cr_assert_not_null(values);
    if (dtype == TSH_FLOAT32)
        memcpy(values, w->data, (size_t)w->n * sizeof(float));
    else
        tshi_cpu_narrow(dtype, w->n, w->data, values);
    return values;
}

static void check(tsh_dtype dtype, int64_t m, int64_t n, int64_t k, int64_t pad, float alpha, float beta) {
    buffer x = buffer_make(TSH_FLOAT32, m * (k + pad)), w = buffer_make(TSH_FLOAT32, n * (k + pad));
    buffer y = buffer_make(TSH_FLOAT32, m * (n + pad));
    buffer *const all[] = {&x, &w, &y};
    for (int i = 0; i < 3; i++) buffer_fill_integers(all[i]);
    buffer before = buffer_copy(&y);
    void *weights = narrowed(dtype, &w);
    for (int64_t i = 0; i < m * n && beta == 0; i++) set(&y, i / n * (n + pad) + i % n, NAN);
    tshi_cpu_few_rows(dtype,
                      &(tshi_few_rows){m, n, k, alpha, x.data, k + pad, weights, k + pad, beta, y.data, n + pad});
    for (int64_t i = 0; i < m * (n + pad); i++) {
        int64_t row = i / (n + pad), col = i % (n + pad);
        double wanted = get(&before, i), sum = 0;
        for (int64_t l = 0; l < k && col < n; l++) sum += get(&x, row * (k + pad) + l) * get(&w, col * (k + pad) + l);
        if (col < n) wanted = (double)alpha * sum + (beta != 0 ? (double)beta * wanted : 0);
        cr_assert_eq(get(&y, i), wanted, "%s %dx%dx%d at %d,%d: %g, not %g", tsh_dtype_name(dtype), (int)m, (int)n,
                     (int)k, (int)row, (int)col, get(&y, i), wanted);
    }
    for (int i = 0; i < 3; i++) buffer_free(all[i]);
    buffer_free(&before);
    free(weights);
}

Test(few_rows, all_dtypes_sizes_and_leading_dims) {
    static const int64_t lengths[] = {1, 15, 31, 32, 33, 97, 256};
    for (int d = 0; d < 3; d++) {
        for (int64_t m = 1; m <= TSHI_FEW_ROWS + 1; m++) {
            for (int l = 0; l < 7; l++) {
                check(dtypes[d], m, 5, lengths[l], 0, 1, 0);
                check(dtypes[d], m, 3, lengths[l], 3, -0.5f, 2);
            }
        }
    }
}

Test(few_rows, a_row_does_not_depend_on_the_rows_beside_it) {
    enum { N = 7, K = 203 };
    for (int d = 0; d < 3; d++) {
        buffer x = buffer_make(TSH_FLOAT32, TSHI_FEW_ROWS * K), w = buffer_make(TSH_FLOAT32, N * K);
        float together[TSHI_FEW_ROWS * N], alone[N];
        for (int64_t i = 0; i < x.n; i++) set(&x, i, random_between(-1, 1));
        for (int64_t i = 0; i < w.n; i++) set(&w, i, random_between(-1, 1));
        void *weights = narrowed(dtypes[d], &w);
        tshi_few_rows p = {TSHI_FEW_ROWS, N, K, 1, x.data, K, weights, K, 0, together, N};
        tshi_cpu_few_rows(dtypes[d], &p);
        for (int r = 0; r < TSHI_FEW_ROWS; r++) {
            p = (tshi_few_rows){1, N, K, 1, (const float *)x.data + r * K, K, weights, K, 0, alone, N};
            tshi_cpu_few_rows(dtypes[d], &p);
            cr_assert_eq(memcmp(alone, together + r * N, sizeof alone), 0, "row %d", r);
        }
        buffer_free(&x);
        buffer_free(&w);
        free(weights);
    }
}
