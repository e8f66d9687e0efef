/* Embeddings, their gradients and the bound on their rows' norms against plain loops in double. */
#include "kernel_test.h"

TestSuite(embedding, .timeout = 600);

/* A table's slice [start, start + rows) x cols. */
typedef struct slice {
    tsh_dtype dtype;
    int64_t start, rows, cols, padding;
    bool fractions; /* sums of gradients round */
} slice;

static bool is_inside(const slice *s, int64_t id) {
    return id >= s->start && id < s->start + s->rows;
}

/* Ids below `vocabulary`; small ones are frequent. */
static buffer make_ids(int64_t n, int64_t vocabulary) {
    buffer ids = buffer_of_ids(n, NULL);
    for (int64_t i = 0; i < n; i++) {
        double u = random_between(0, 1);
        ((int64_t *)ids.data)[i] = (int64_t)((double)vocabulary * u * u * u);
    }
    return ids;
}

static void check_lookup(const slice *s, int64_t n, const int64_t *ids) {
    buffer table = buffer_integers(s->dtype, s->rows * s->cols), y = buffer_nans(s->dtype, n * s->cols);
    kernels()->embedding[s->dtype].forward(kernel_device(), n, ids, s->start, s->rows, s->cols, table.data, y.data);
    for (int64_t i = 0; i < y.n; i++) {
        int64_t id = ids[i / s->cols];
        expect_equal(&y, i, is_inside(s, id) ? get(&table, (id - s->start) * s->cols + i % s->cols) : 0);
    }
}

static void check_gradient(const slice *s, int64_t n, const int64_t *ids) {
    buffer dtable = buffer_integers(s->dtype, s->rows * s->cols), wanted = buffer_make(TSH_FLOAT64, dtable.n);
    buffer dy = s->fractions ? buffer_random(s->dtype, n * s->cols, -1, 1) : buffer_integers(s->dtype, n * s->cols);
    buffer sizes = buffer_make(TSH_FLOAT64, dtable.n); /* of what is added, for the bound on the error */
    for (int64_t i = 0; i < dtable.n; i++) set(&wanted, i, get(&dtable, i));
    kernels()->embedding[s->dtype].backward(kernel_device(), n, ids, s->start, s->rows, s->cols, s->padding, dy.data,
                                            dtable.data);
    for (int64_t i = 0; i < dy.n; i++) {
        int64_t id = ids[i / s->cols], at = (id - s->start) * s->cols + i % s->cols;
        if (!is_inside(s, id) || id == s->padding) continue;
        set(&wanted, at, get(&wanted, at) + get(&dy, i));
        set(&sizes, at, get(&sizes, at) + fabs(get(&dy, i)));
    }
    double roundings = s->fractions ? 2 + sqrt((double)n) : 0;
    /* Elements of 16 bits are rounded also between. */
    roundings += (double)(n / 16384) * half_rounding(s->dtype, 1) * 0x1p24 / tested.half;
    for (int64_t i = 0; i < dtable.n; i++) expect_close(&dtable, i, get(&wanted, i), 8 + get(&sizes, i), roundings);
}

/* A row whose id is 2 modulo 7 has a norm that is no number: it stays as it is. */
static void check_bound(const slice *s, int64_t n, const int64_t *ids) {
    buffer table = buffer_integers(s->dtype, s->rows * s->cols), before = buffer_copy(&table);
    buffer from = buffer_make(s->dtype, n * s->cols), norms = buffer_make(TSH_FLOAT64, n);
    double factors[7];
    for (int k = 0; k < 7; k++) factors[k] = k > 3 ? 3 / (k + 1e-7) : 1;
    for (int64_t i = 0; i < n; i++) {
        set(&norms, i, ids[i] % 7 == 2 ? (double)NAN : (double)(ids[i] % 7));
        for (int64_t c = 0; c < s->cols; c++)
            set(&from, i * s->cols + c, is_inside(s, ids[i]) ? get(&table, (ids[i] - s->start) * s->cols + c) : 0);
    }
    kernels()->embedding[s->dtype].bound(kernel_device(), n, ids, s->start, s->rows, s->cols, norms.data, 3, from.data,
                                         table.data);
    for (int64_t i = 0; i < n; i++) /* what stays where no id is */
        for (int64_t c = 0; is_inside(s, ids[i]) && c < s->cols; c++) {
            int64_t at = (ids[i] - s->start) * s->cols + c;
            expect_close(&table, at, get(&from, i * s->cols + c) * factors[ids[i] % 7], 8, 1);
            set(&before, at, get(&table, at));
        }
    expect_same_bits(&table, &before, "rows of no id");
}

static void check(slice s, const buffer *ids) {
    check_lookup(&s, ids->n, ids->data);
    check_gradient(&s, ids->n, ids->data);
    check_bound(&s, ids->n, ids->data);
    free_buffers();
}

Test(embedding, slices_of_the_table) {
    const int64_t counts[] = {0, 1, 100}, slices[][2] = {{0, 13}, {4, 3}, {12, 1}, {13, 0}};
    for (int t = 0; t < FLOAT_DTYPES; t++) {
        for (int i = 0; i < 3 * 4 * ODD_SIZES; i += tested.is_slow ? 5 : 1) {
            const int64_t *part = slices[i / 3 % 4];
            lay_buffers((t + i) % LAYOUTS);
            buffer ids = make_ids(counts[i % 3], 13);
            check((slice){float_dtypes[t], part[0], part[1], odd_sizes[i / 12], 5, false}, &ids);
        }
    }
}

Test(embedding, odd_sizes) {
    for (int t = 0; t < FLOAT_DTYPES; t++)
        for (int s = 0; s < 2 * ODD_SIZES; s++) {
            const int64_t starts[] = {0, 3, 39}, rows[] = {40, 17, 1}, paddings[] = {-1, 4, -1};
            int64_t cols = odd_sizes[s / 2] + (s / 2 % 2 ? 0 : 8), n = odd_sizes[(s / 2 * 7 + s % 2) % ODD_SIZES];
            int part = (t + s / 2 + s % 2) % 3;
            lay_buffers(s % 2);
            buffer ids = make_ids(n, 40);
            check((slice){float_dtypes[t], starts[part], rows[part], cols, paddings[part], n >= 100}, &ids);
        }
}

/* A row whose places fill one stretch of the sum exactly, end with it, begin with it, or go over several. */
Test(embedding, runs_and_stretches) {
    int64_t ids[400];
    const int64_t cuts[][2] = {{0, 32}, {31, 32}, {32, 64}, {0, 64}, {1, 64}, {31, 33}, {5, 395}, {0, 400}, {64, 399}};
    lay_buffers(ALIGNED);
    for (int t = 0; t < FLOAT_DTYPES; t++)
        for (size_t c = 0; c < sizeof cuts / sizeof cuts[0]; c++) {
            for (int i = 0; i < 400; i++) ids[i] = i < cuts[c][0] ? i : i < cuts[c][1] ? 400 : 401 + i;
            const slice slices[] = {{float_dtypes[t], 0, 900, 16, -1, false},
                                    {float_dtypes[t], 0, 900, 3, 7, false},
                                    {float_dtypes[t], 300, 105, 16, -1, false}};
            for (int i = 0; i < 3; i++) {
                buffer there = buffer_of_ids(400, ids);
                check(slices[i], &there);
            }
        }
}

/* More places than a block of a GPU sorts, twice and thrice over. */
Test(embedding, many_places) {
    const int64_t counts[] = {4095, 4096, 4097, 8200, 32769};
    for (int t = 0; t < FLOAT_DTYPES; t++)
        for (int c = 0; c < (t % 2 ? 5 : 4); c++) {
            buffer ids = make_ids(counts[c], 5000);
            check((slice){float_dtypes[t], 0, 5000, 5, 0, true}, &ids);
            ids = make_ids(counts[c], 5000);
            check((slice){float_dtypes[t], 100, 70, 1, -1, true}, &ids);
        }
}

/* Few rows and many ids, as in a table of two segments of a text; and wide rows. */
Test(embedding, few_rows_and_wide_rows) {
    const slice slices[] = {{TSH_FLOAT32, 0, 2, 260, -1, false}, {TSH_FLOAT64, 0, 1, 6, -1, false}};
    for (int i = 0; i < 2; i++) {
        lay_buffers(i);
        buffer ids = make_ids(5000, 2);
        check(slices[i], &ids);
    }
    for (int i = 0; i < 2 * FLOAT_DTYPES; i++) {
        lay_buffers(i % 2);
        buffer ids = make_ids(90, 20);
        check((slice){float_dtypes[i / 2], 0, 20, 2400 + i % 2, -1, false}, &ids);
    }
}

/* The table's rounding happens once, after the sum. */
Test(embedding, halves_are_added_in_float32) {
    enum { N = 1000 };
    buffer ids = make_ids(N, 1), dy = buffer_make(TSH_BFLOAT16, N), dtable = buffer_make(TSH_BFLOAT16, 1);
    for (int i = 0; i < N; i++) set(&dy, i, 1.0);
    kernels()->embedding[TSH_BFLOAT16].backward(kernel_device(), N, ids.data, 0, 1, 1, -1, dy.data, dtable.data);
    expect_equal(&dtable, 0, 1000.0);
    free_buffers();
}

Test(embedding, gradients_are_the_same_every_time) {
    enum { N = 3000, COLS = 20 };
    buffer ids = make_ids(N, 30), dy = buffer_random(TSH_FLOAT32, N * COLS, -1, 1), tables[2];
    for (int i = 0; i < 2; i++) {
        tables[i] = buffer_make(TSH_FLOAT32, 30 * COLS);
        kernels()->embedding[TSH_FLOAT32].backward(kernel_device(), N, ids.data, 0, 30, COLS, -1, dy.data,
                                                   tables[i].data);
    }
    expect_same_bits(&tables[0], &tables[1], "dtable");
    free_buffers();
}

Test(embedding, the_first_id_outside_is_found) {
    enum { N = 20001 };
    buffer ids = make_ids(N, 50);
    int64_t *there = ids.data;
    cr_assert_eq(kernels()->ids_check(kernel_device(), 0, NULL, 5), -1);
    cr_assert_eq(kernels()->ids_check(kernel_device(), N, there, 50), -1);
    const int64_t places[] = {N - 1, 16384, 9999, 700, 31, 1, 0};
    for (int i = 0; i < 7; i++) {
        there[places[i]] = i % 3 == 0 ? -1 : i % 3 == 1 ? 50 : INT64_MIN;
        cr_assert_eq(kernels()->ids_check(kernel_device(), N, there, 50), places[i]);
    }
    free_buffers();
}

Test(embedding, row_numbers_of_ids) {
    const int64_t sizes[][4] = {{1, 9, 1, 7}, {3, 5, 1, 4}, {2, 4, 6, 5}, {70, 9, 8, 11}, {0, 3, 2, 4}, {2, 0, 3, 4}};
    const int64_t start = 3;
    for (int c = 0; c < 12; c++) {
        const int64_t *s = sizes[c / 2], outer = s[0], kept = s[1], inner = s[2], n = s[3];
        bool each = c % 2;
        buffer ids = buffer_of_ids(each ? outer * kept * inner : kept, NULL),
               rows = buffer_of_ids(outer * kept * inner, NULL);
        for (int64_t i = 0; i < ids.n; i++) ((int64_t *)ids.data)[i] = (int64_t)(random_word() % (uint64_t)(n + 6));
        kernels()->row_numbers(kernel_device(), each, outer, kept, inner, n, start, ids.data, rows.data);
        settle();
        for (int64_t at = 0; at < rows.n; at++) {
            int64_t o = at / (kept * inner), j = at / inner % kept, k = at % inner;
            int64_t i = ((int64_t *)ids.data)[each ? at : j] - start;
            cr_assert_eq(((int64_t *)rows.data)[at], i < 0 || i >= n ? -1 : (o * n + i) * inner + k);
        }
        free_buffers();
    }
}
