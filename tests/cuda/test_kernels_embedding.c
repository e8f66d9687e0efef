/* The GPU's embedding and its gradient against the CPU's. */
#include "kernel_pair.h"

TestSuite(cuda_embedding, .timeout = 600);

typedef struct lookup {
    tsh_dtype dtype;
    int64_t n, start, rows, cols, padding;
    int skew;
    bool integers;
} lookup;

static void check(lookup c, const int64_t *ids) {
    pair (*make)(tsh_dtype, int64_t, int) = pair_integers;
    pair table = make(c.dtype, c.rows * c.cols, c.skew), dtable = make(c.dtype, c.rows * c.cols, c.skew);
    pair dy = make(c.dtype, c.n * c.cols, c.skew), y = make(c.dtype, c.n * c.cols, c.skew);
    if (!c.integers) {
        buffer_fill_random(&dy.cpu, -1, 1);
        pair_round(&dy);
    }
    tshi_cuda_embedding[c.dtype].forward(gpu(), c.n, ids, c.start, c.rows, c.cols, table.gpu, y.gpu);
    kernels()->embedding[y.cpu.dtype].forward(kernel_device(), c.n, ids, c.start, c.rows, c.cols, table.cpu.data,
                                              y.cpu.data);
    expect_same(&y, "y");
    tshi_cuda_embedding[c.dtype].backward(gpu(), c.n, ids, c.start, c.rows, c.cols, c.padding, dy.gpu, dtable.gpu);
    kernels()->embedding[y.cpu.dtype].backward(kernel_device(), c.n, ids, c.start, c.rows, c.cols, c.padding,
                                               dy.cpu.data, dtable.cpu.data);
    double n = (double)c.n;
    expect_pair(&dtable, "dtable", c.integers ? 0 : 8 + sqrt(n), c.integers ? 0 : 2 + sqrt(n));
    pair norms = pair_integers(TSH_FLOAT64, c.n, 0);
    for (int64_t i = 0; i < c.n; i++) set(&norms.cpu, i, (double)(ids[i] % 7));
    pair_round(&norms);
    tshi_cuda_embedding[c.dtype].bound(gpu(), c.n, ids, c.start, c.rows, c.cols, norms.gpu, 3, y.gpu, table.gpu);
    kernels()->embedding[y.cpu.dtype].bound(kernel_device(), c.n, ids, c.start, c.rows, c.cols, norms.cpu.data, 3,
                                            y.cpu.data, table.cpu.data);
    expect_pair(&table, "bounded", 1, 1);
    pair_free(&norms);
    pair_free(&table);
    pair_free(&dtable);
    pair_free(&dy);
    pair_free(&y);
}

/* Ids below `vocabulary`; small ones are frequent. */
static int64_t *make_ids(int64_t n, int64_t vocabulary) {
    int64_t *ids = malloc((size_t)(n + 1) * sizeof *ids);
    cr_assert_not_null(ids);
    for (int64_t i = 0; i < n; i++) {
        double u = random_between(0, 1);
        ids[i] = (int64_t)((double)vocabulary * u * u * u);
    }
    return ids;
}

Test(cuda_embedding, odd_sizes) {
    for (int t = 0; t < 4; t++)
        for (int s = 0; s < ODD_SIZES; s++)
            for (int skew = 0; skew < 2; skew++) {
                int64_t n = odd_sizes[(s * 7 + skew) % ODD_SIZES], cols = odd_sizes[s] + (s % 2 ? 0 : 8);
                int64_t *ids = make_ids(n, 40);
                const int slice = (t + s + skew) % 3;
                const int64_t starts[] = {0, 3, 39}, rows[] = {40, 17, 1}, paddings[] = {-1, 4, -1};
                check((lookup){gpu_dtypes[t], n, starts[slice], rows[slice], cols, paddings[slice], skew, n < 100},
                      ids);
                free(ids);
            }
}

/* A row whose places fill one stretch of the sum exactly, end with it, begin with it, or go over several. */
Test(cuda_embedding, runs_and_stretches) {
    int64_t ids[400];
    const int64_t cuts[][2] = {{0, 32}, {31, 32}, {32, 64}, {0, 64}, {1, 64}, {31, 33}, {5, 395}, {0, 400}, {64, 399}};
    for (int t = 0; t < 4; t++)
        for (size_t c = 0; c < sizeof cuts / sizeof cuts[0]; c++) {
            for (int i = 0; i < 400; i++) ids[i] = i < cuts[c][0] ? i : i < cuts[c][1] ? 400 : 401 + i;
            check((lookup){gpu_dtypes[t], 400, 0, 900, 16, -1, 0, true}, ids);
            check((lookup){gpu_dtypes[t], 400, 0, 900, 3, 7, 0, true}, ids);
            check((lookup){gpu_dtypes[t], 400, 300, 105, 16, -1, 0, true}, ids);
        }
}

/* More places than a block sorts, twice and thrice over. */
Test(cuda_embedding, many_places) {
    const int64_t counts[] = {4095, 4096, 4097, 8200, 32769};
    for (int t = 0; t < 4; t++)
        for (int c = 0; c < 5; c++) {
            int64_t *ids = make_ids(counts[c], 5000);
            check((lookup){gpu_dtypes[t], counts[c], 0, 5000, 8, 0, 0, false}, ids);
            check((lookup){gpu_dtypes[t], counts[c], 100, 70, 1, -1, 0, false}, ids);
            free(ids);
        }
}

/* Few rows and many ids, as in a table of two segments of a text. Integers: every order of additions has one result. */
Test(cuda_embedding, few_rows) {
    int64_t *ids = make_ids(5000, 2);
    check((lookup){TSH_FLOAT32, 5000, 0, 2, 260, -1, 0, true}, ids);
    check((lookup){TSH_FLOAT64, 5000, 0, 1, 6, -1, 1, true}, ids);
    free(ids);
}

Test(cuda_embedding, wide_rows) {
    int64_t *ids = make_ids(90, 20);
    for (int t = 0; t < 4; t++) {
        check((lookup){gpu_dtypes[t], 90, 0, 20, 2400, -1, 0, true}, ids);
        check((lookup){gpu_dtypes[t], 90, 0, 20, 2401, -1, 1, true}, ids);
    }
    free(ids);
}

/* The table's rounding happens once, after the sum. */
Test(cuda_embedding, halves_are_added_in_float32) {
    enum { N = 1000 };
    int64_t ids[N] = {0};
    pair dy = pair_make(TSH_BFLOAT16, N, 0), dtable = pair_make(TSH_BFLOAT16, 1, 0);
    for (int i = 0; i < N; i++) set(&dy.cpu, i, 1.0);
    pair_round(&dy);
    tshi_cuda_embedding[TSH_BFLOAT16].backward(gpu(), N, ids, 0, 1, 1, -1, dy.gpu, dtable.gpu);
    set(&dtable.cpu, 0, 1000.0);
    expect_same(&dtable, "dtable");
    pair_free(&dy);
    pair_free(&dtable);
}

Test(cuda_embedding, gradients_are_the_same_every_time) {
    enum { N = 3000, COLS = 20 };
    int64_t *ids = make_ids(N, 30);
    pair dy = pair_random(TSH_FLOAT32, N * COLS, 0, -1, 1);
    float tables[2][30 * COLS] = {{0}};
    for (int i = 0; i < 2; i++)
        tshi_cuda_embedding[TSH_FLOAT32].backward(gpu(), N, ids, 0, 30, COLS, -1, dy.gpu, tables[i]);
    cr_assert_arr_eq(tables[0], tables[1], sizeof tables[0]);
    pair_free(&dy);
    free(ids);
}

/* What the report of a check says, and that it is cleared as the host does. */
static void expect_report(const int64_t *ids, int64_t n, int64_t vocabulary, int64_t place) {
    tshi_cuda_report *report = tshi_cuda(gpu())->report;
    gpu_waits(false);
    cr_assert_eq(tshi_cuda_ids_check(gpu(), n, ids, vocabulary), -1);
    gpu_waits(true);
    cr_assert_eq(report->found, place >= 0);
    if (place < 0) return;
    cr_assert_eq(report->index, place, "%lld", (long long)report->index);
    cr_assert_eq(report->value, ids[place]);
    cr_assert_eq(report->limit, vocabulary);
    cr_assert_eq(report->is_target, 0);
    report->found = 0;
}

Test(cuda_embedding, the_first_wrong_id_is_reported) {
    enum { N = 20001 };
    int64_t *ids = make_ids(N, 50);
    expect_report(ids, 0, 50, -1);
    expect_report(ids, N, 50, -1);
    const int64_t places[] = {N - 1, 16384, 9999, 700, 31, 1, 0};
    for (int i = 0; i < 7; i++) {
        ids[places[i]] = i % 3 == 0 ? -1 : i % 3 == 1 ? 50 : INT64_MIN;
        expect_report(ids, N, 50, places[i]);
    }
    tshi_cuda_report *report = tshi_cuda(gpu())->report;
    gpu_waits(false);
    tshi_cuda_ids_check(gpu(), N, ids, 50);
    tshi_cuda_ids_check(gpu(), 1, (int64_t[]){77}, 50);
    gpu_waits(true);
    cr_assert_eq(report->value, -1, "the first is kept until it is reported");
    free(ids);
}
