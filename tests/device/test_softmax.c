/* Softmax and log-softmax, in their passes and over whole rows, against the formula in double. */
#include "kernel_test.h"

TestSuite(softmax, .timeout = 600);

/* Of one (o, k) of a tensor [outer, n, inner]: element i is at `first + i * step`. */
typedef struct column {
    int64_t n, first, step;
} column;

static column column_of(int64_t n, int64_t inner, int64_t number) {
    return (column){n, number / inner * n * inner + number % inner, inner};
}

static void reference(const buffer *x, column c, double *max, double *sum) {
    long double total = 0;
    *max = -(double)INFINITY;
    for (int64_t i = 0; i < c.n; i++) *max = fmax(*max, get(x, c.first + i * c.step));
    for (int64_t i = 0; i < c.n; i++) total += exp(get(x, c.first + i * c.step) - *max);
    *sum = (double)total;
}

static void expect_softmax(const buffer *x, column c, const buffer *y, bool log_form) {
    double max, sum;
    reference(x, c, &max, &sum);
    for (int64_t i = c.first; i < c.first + c.n * c.step; i += c.step) {
        double share = exp(get(x, i) - max) / sum;
        if (log_form)
            expect_close(y, i, get(x, i) - max - log(sum), 40, 4);
        else
            expect_close(y, i, share, share, 64 + 2 * sqrt((double)c.n));
    }
}

static void expect_gradient(bool log_form, column c, double dot, const buffer *y, const buffer *dy,
                            const buffer *before, const buffer *dx) {
    for (int64_t i = c.first; i < c.first + c.n * c.step; i += c.step) {
        double slope = log_form ? get(dy, i) - exp(get(y, i)) * dot : get(y, i) * (get(dy, i) - dot);
        expect_close(dx, i, get(before, i) + slope, 2 + fabs(dot), 16);
    }
}

/* The sum over i of dy y, or of dy; *size: of their absolute values. */
static double dot_of(bool log_form, column c, const buffer *y, const buffer *dy, double *size) {
    double sum = 0;
    *size = 1;
    for (int64_t i = c.first; i < c.first + c.n * c.step; i += c.step) {
        double term = get(dy, i) * (log_form ? 1 : get(y, i));
        sum += term;
        *size += fabs(term);
    }
    return sum;
}

static void check_forward(tsh_dtype dtype, int64_t outer, int64_t n, int64_t inner) {
    const tshi_softmax_ops *ops = &kernels()->softmax[dtype];
    buffer x = buffer_random(dtype, outer * n * inner, -20, 20), y = buffer_nans(dtype, x.n),
           logs = buffer_nans(dtype, x.n);
    buffer max = statistics_make(dtype, outer * inner), sum = statistics_make(dtype, outer * inner);
    ops->max(kernel_device(), outer, n, inner, x.data, max.data);
    ops->sum(kernel_device(), outer, n, inner, x.data, max.data, sum.data);
    ops->forward(kernel_device(), false, outer, n, inner, x.data, max.data, sum.data, y.data);
    ops->forward(kernel_device(), true, outer, n, inner, x.data, max.data, sum.data, logs.data);
    for (int64_t k = 0; k < outer * inner; k++) {
        column c = column_of(n, inner, k);
        double m, s;
        reference(&x, c, &m, &s);
        cr_assert_eq(get(&max, k), m);
        expect_close(&sum, k, s, s, 16 + 2 * sqrt((double)n)); /* which may add one by one */
        expect_softmax(&x, c, &y, false);
        expect_softmax(&x, c, &logs, true);
    }
    free_buffers();
}

static void check_backward(bool log_form, tsh_dtype dtype, int64_t outer, int64_t n, int64_t inner) {
    const tshi_softmax_ops *ops = &kernels()->softmax[dtype];
    buffer y = buffer_random(dtype, outer * n * inner, log_form ? -5 : 0, log_form ? 0 : 1);
    buffer dy = buffer_random(dtype, y.n, -1, 1), dx = buffer_random(dtype, y.n, -1, 1), before = buffer_copy(&dx);
    buffer dot = statistics_make(dtype, outer * inner);
    ops->dot(kernel_device(), log_form, outer, n, inner, y.data, dy.data, dot.data);
    ops->backward(kernel_device(), log_form, outer, n, inner, y.data, dy.data, dot.data, dx.data);
    for (int64_t k = 0; k < outer * inner; k++) {
        column c = column_of(n, inner, k);
        double size, sum = dot_of(log_form, c, &y, &dy, &size);
        expect_close(&dot, k, sum, size, 16);
        expect_gradient(log_form, c, get(&dot, k), &y, &dy, &before, &dx);
    }
    free_buffers();
}

static void check(tsh_dtype dtype, int64_t outer, int64_t n, int64_t inner) {
    check_forward(dtype, outer, n, inner);
    check_backward(false, dtype, outer, n, inner);
    check_backward(true, dtype, outer, n, inner);
}

Test(softmax, along_any_dim) {
    const int64_t dims[] = {0, 1, 3, 17, 24, 70};
    for (int t = 0; t < FLOAT_DTYPES; t++) {
        for (int o = 0; o < 4; o++) {
            for (int n = 0; n < 6; n++) {
                for (int k = 0; k < 6; k++) {
                    lay_buffers((o + n + k) % LAYOUTS);
                    check(float_dtypes[t], dims[o], dims[n], dims[k]);
                }
            }
        }
    }
}

Test(softmax, rows) {
    for (int t = 0; t < FLOAT_DTYPES; t++) {
        for (int s = 0; s < 2 * ODD_SIZES; s++) {
            lay_buffers(s % 2);
            check(float_dtypes[t], 2 + s % 4, odd_sizes[s / 2], 1);
        }
    }
}

/* A GPU takes them in parts. */
Test(softmax, few_long_rows) {
    const int64_t shapes[][3] = {{1, 30001, 1}, {2, 16384, 1}, {1, 2000, 8}, {1, 1001, 3}, {2, 700, 40}};
    for (int t = 0; t < FLOAT_DTYPES; t++) {
        for (int s = 0; s < 5; s++) {
            lay_buffers(s % 2);
            check(float_dtypes[t], shapes[s][0], shapes[s][1], shapes[s][2]);
        }
    }
}

Test(softmax, an_empty_slice_is_neutral) {
    buffer max = statistics_make(TSH_FLOAT64, 2), sum = buffer_of(TSH_FLOAT64, 2, (double[]){7, 7});
    kernels()->softmax[TSH_FLOAT64].max(kernel_device(), 1, 0, 2, NULL, max.data);
    cr_assert(get(&max, 0) == -(double)INFINITY && get(&max, 1) == -(double)INFINITY);
    kernels()->softmax[TSH_FLOAT64].sum(kernel_device(), 2, 0, 1, NULL, max.data, sum.data);
    cr_assert(get(&sum, 0) == 0 && get(&sum, 1) == 0);
}

static const double huge[4] = {1e30, -(double)INFINITY, 1e30, -1e30};

Test(softmax, masked_and_huge_logits) {
    const tshi_softmax_ops *ops = &kernels()->softmax[TSH_FLOAT32];
    buffer x = buffer_of(TSH_FLOAT32, 4, huge), y = buffer_make(TSH_FLOAT32, 4);
    buffer max = buffer_make(TSH_FLOAT32, 1), sum = buffer_make(TSH_FLOAT32, 1);
    ops->max(kernel_device(), 1, 4, 1, x.data, max.data);
    ops->sum(kernel_device(), 1, 4, 1, x.data, max.data, sum.data);
    ops->forward(kernel_device(), false, 1, 4, 1, x.data, max.data, sum.data, y.data);
    for (int i = 0; i < 4; i++) expect_equal(&y, i, i % 2 ? 0 : 0.5);
    set(&x, 1, (double)NAN);
    ops->max(kernel_device(), 1, 4, 1, x.data, max.data);
    ops->sum(kernel_device(), 1, 4, 1, x.data, max.data, sum.data);
    cr_assert(isnan(get(&sum, 0)), "a NaN is not lost");
}

/* --- whole rows, on a device that has them ------------------------------------------------------------------------ */

/* A warp's, several warps' and the longest that a block of a GPU holds; longer ones where there are many. Few of these,
 * and short ones that do not begin at a pack, are refused and left alone. */
static void check_whole(tsh_dtype dtype, bool log_form, int64_t rows, int64_t n, int layout, bool takes) {
    const tshi_softmax_ops *ops = &kernels()->softmax[dtype];
    if (!ops->whole) return;
    lay_buffers(layout);
    buffer x = buffer_random(dtype, rows * n, -9, 9), y = buffer_nans(dtype, x.n),
           dy = buffer_random(dtype, x.n, -1, 1);
    buffer dx = buffer_random(dtype, x.n, -1, 1), before = buffer_copy(&dx), untouched = buffer_copy(&y);
    bool took = ops->whole(kernel_device(), log_form, rows, n, x.data, y.data);
    if (tested.whole_rows) cr_assert_eq(took, takes, "%s rows of %lld", tsh_dtype_name(dtype), (long long)n);
    for (int64_t r = 0; r < rows && took; r++) expect_softmax(&x, column_of(n, 1, r), &y, log_form);
    if (!took) expect_same_bits(&y, &untouched, "refused, y");
    for (int64_t i = 0; i < y.n && !took; i++) set(&y, i, log_form ? -1 : 0.5);
    cr_assert_eq(ops->whole_backward(kernel_device(), log_form, rows, n, y.data, dy.data, dx.data), took);
    for (int64_t r = 0; r < rows && took; r++) {
        double size, dot = dot_of(log_form, column_of(n, 1, r), &y, &dy, &size);
        expect_gradient(log_form, column_of(n, 1, r), dot, &y, &dy, &before, &dx);
    }
    if (!took) expect_same_bits(&dx, &before, "refused, dx");
    free_buffers();
}

Test(softmax, whole_rows) {
    for (int bits = 0; bits < 2 * FLOAT_DTYPES; bits++) {
        tsh_dtype dtype = float_dtypes[bits >> 1];
        int64_t width = 16 / (int64_t)tsh_dtype_size(dtype), most = 4 * 512 * width;
        const struct {
            int64_t rows, n;
            int layout;
            bool takes;
        } cases[] = {
            {11, width, ALIGNED, true},       {9, 33 * width, ALIGNED, true},     {7, 129 * width, ALIGNED, true},
            {5, 700 * width, ALIGNED, true},  {2, most, ALIGNED, true},           {2, most + width, ALIGNED, false},
            {2, 8 * width, SHIFTED, false},   {2, 8 * width + 1, ALIGNED, false}, {0, 8 * width, ALIGNED, true},
            {5, most + width, ALIGNED, true}, {4, 2049, SHIFTED, true},           {6, 5027, ALIGNED, true},
            {2, 5027, ALIGNED, false}};
        for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
            check_whole(dtype, bits & 1, cases[i].rows, cases[i].n, cases[i].layout, cases[i].takes);
    }
}

/* Masked elements come first, and all of a thread's may be masked. */
Test(softmax, long_rows_with_masked_and_huge_logits) {
    enum { ROWS = 4, N = 2051 };
    const tshi_softmax_ops *ops = &kernels()->softmax[TSH_FLOAT32];
    if (!ops->whole) cr_skip_test("this device takes no whole rows");
    buffer x = buffer_make(TSH_FLOAT32, ROWS * N), y = buffer_make(TSH_FLOAT32, ROWS * N);
    for (int i = 0; i < ROWS * N; i++)
        set(&x, i, i % N < 2000 ? -(double)INFINITY : i % N == 2001 || i % N == 2050 ? 1e30 : -1e30);
    set(&x, 2 * N + 7, (double)NAN);
    for (int i = 0; i < N; i++) set(&x, 3 * N + i, i % 2 ? -2 : i);
    cr_assert(ops->whole(kernel_device(), false, ROWS, N, x.data, y.data));
    for (int i = 0; i < 2 * N; i++) expect_equal(&y, i, i % N == 2001 || i % N == 2050 ? 0.5 : 0);
    cr_assert(isnan(get(&y, 2 * N)) && isnan(get(&y, 2 * N + 2001)), "a NaN is not lost");
    cr_assert_float_eq(get(&y, 3 * N + 2050), 1 / (1 + exp(-2) + exp(-4) + exp(-6) + exp(-8)), 1e-3);
    free_buffers();
    x = buffer_of(TSH_FLOAT32, 4, huge), y = buffer_make(TSH_FLOAT32, 4);
    cr_assert(ops->whole(kernel_device(), false, 1, 4, x.data, y.data));
    for (int i = 0; i < 4; i++) expect_equal(&y, i, i % 2 ? 0 : 0.5);
    set(&x, 1, (double)NAN);
    cr_assert(ops->whole(kernel_device(), false, 1, 4, x.data, y.data));
    cr_assert(isnan(get(&y, 0)) && isnan(get(&y, 3)), "a NaN is not lost");
}
