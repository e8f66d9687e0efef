/* Cases whose answers are written down in the documents of other libraries. */
#include "support/ranks.h"

#include <criterion/criterion.h>
#include <string.h>

static tsh_tensor *tensor_of(tshi_rank *r, tsh_dtype dtype, int ndim, int64_t rows, int64_t cols) {
    tsh_tensor_config config = {.dtype = dtype, .ndim = ndim, .shape = {rows, cols}};
    tsh_tensor *tensor = NULL;
    tshi_check_ok(r, tsh_tensor_create(tsh_world_mesh(r->world), &config, &tensor));
    return tensor;
}

static tsh_tensor *vector_of(tshi_rank *r, const float *values, int64_t n) {
    tsh_tensor *x = tensor_of(r, TSH_FLOAT32, 1, n, 0);
    if (x && values) memcpy(tsh_tensor_data(x), values, sizeof *values * (size_t)n);
    return x;
}

static bool holds(tshi_rank *r, const tsh_tensor *x, const float *wanted, int64_t n) {
    const float *got = tsh_tensor_data(x);
    if (!tshi_check(r, tsh_tensor_local_numel(x) == n, "%lld elements", (long long)tsh_tensor_local_numel(x)))
        return false;
    for (int64_t i = 0; i < n; i++) {
        if (!tshi_check(r, got[i] == wanted[i], "[%lld] is %g, not %g", (long long)i, got[i], wanted[i])) return false;
    }
    return true;
}

static void all_reduce_of_four(tshi_rank *r, void *arg) {
    (void)arg;
    float rank = (float)r->rank;
    tsh_tensor *x = vector_of(r, (float[]){1 + rank, 2 + rank, 3 + rank, 4 + rank}, 4);
    tshi_check_ok(r, tsh_all_reduce(tsh_world_group(r->world), x, TSH_REDUCE_SUM));
    holds(r, x, (float[]){3, 5, 7, 9}, 4);
    tsh_tensor_release(x);
}

Test(known, all_reduce, .timeout = 120) {
    cr_assert_str_empty(tshi_test_run(2, all_reduce_of_four, NULL));
}

static void int64_sum(tshi_rank *r, void *arg) {
    (void)arg;
    tsh_tensor *x = tshi_test_vector(r, TSH_INT64, 2);
    int64_t *data = tsh_tensor_data(x);
    data[0] = r->rank ? 3 : 1;
    data[1] = r->rank ? 4 : 2;
    tshi_check_ok(r, tsh_all_reduce(tsh_world_group(r->world), x, TSH_REDUCE_SUM));
    tshi_check(r, data[0] == 4 && data[1] == 6, "%lld %lld", (long long)data[0], (long long)data[1]);
    tsh_tensor_release(x);
}

Test(known, int64, .timeout = 120) {
    cr_assert_str_empty(tshi_test_run(2, int64_sum, NULL));
}

/* 8 ranks in two groups of four. */
static void two_groups(tshi_rank *r, void *arg) {
    (void)arg;
    tsh_mesh *mesh = NULL;
    if (!tshi_check_ok(r, tsh_mesh_create(r->world, "data=2,model=4", &mesh))) return;
    tsh_tensor *x = vector_of(r, (float[]){(float)r->rank}, 1);
    tshi_check_ok(r, tsh_all_reduce(tsh_mesh_group(mesh, "model"), x, TSH_REDUCE_SUM));
    holds(r, x, (float[]){r->rank < 4 ? 6 : 22}, 1);
    tsh_tensor_release(x);
    tsh_mesh_destroy(mesh);
}

Test(known, eight_ranks_in_two_groups, .timeout = 120) {
    cr_assert_str_empty(tshi_test_run(8, two_groups, NULL));
}

static void gather_blocks(tshi_rank *r, void *arg) {
    (void)arg;
    tsh_tensor *in = vector_of(r, NULL, 8), *out = vector_of(r, NULL, 32);
    float wanted[32];
    for (int i = 0; i < 32; i++) wanted[i] = (float)(i / 8);
    tshi_check_ok(r, tsh_tensor_fill(in, r->rank));
    tshi_check_ok(r, tsh_all_gather_into_tensor(tsh_world_group(r->world), in, out, NULL));
    holds(r, out, wanted, 32);
    tsh_tensor_release(in);
    tsh_tensor_release(out);
}

Test(known, gather, .timeout = 120) {
    cr_assert_str_empty(tshi_test_run(4, gather_blocks, NULL));
}

static void gather_six(tshi_rank *r, void *arg) {
    (void)arg;
    float wanted[12];
    tsh_tensor *in = tensor_of(r, TSH_FLOAT32, 2, 2, 3), *out = tensor_of(r, TSH_FLOAT32, 2, 4, 3);
    for (int i = 0; i < 6; i++) ((float *)tsh_tensor_data(in))[i] = (float)(i + 1 + 6 * r->rank);
    for (int i = 0; i < 12; i++) wanted[i] = (float)(i + 1);
    tshi_check_ok(r, tsh_all_gather_into_tensor(tsh_world_group(r->world), in, out, NULL));
    holds(r, out, wanted, 12);
    tsh_tensor_release(in);
    tsh_tensor_release(out);
}

Test(known, all_gather_into_tensor, .timeout = 120) {
    cr_assert_str_empty(tshi_test_run(2, gather_six, NULL));
}

/* Rows 0, 1, 2, 3 times ones(4) on each of 4 ranks; row r of the sum is 4 r. */
static void scatter_rows(tshi_rank *r, void *arg) {
    (void)arg;
    tsh_tensor *in = tensor_of(r, TSH_FLOAT32, 2, 4, 4), *out = tensor_of(r, TSH_FLOAT32, 2, 1, 4);
    for (int i = 0; i < 16; i++) ((float *)tsh_tensor_data(in))[i] = (float)(i / 4);
    tshi_check_ok(r, tsh_reduce_scatter_tensor(tsh_world_group(r->world), in, out, NULL, TSH_REDUCE_SUM));
    float row = (float)(4 * r->rank);
    holds(r, out, (float[]){row, row, row, row}, 4);
    tsh_tensor_release(in);
    tsh_tensor_release(out);
}

Test(known, reduce_scatter_rows, .timeout = 120) {
    cr_assert_str_empty(tshi_test_run(4, scatter_rows, NULL));
}

static void scatter_twelve(tshi_rank *r, void *arg) {
    (void)arg;
    tsh_tensor *in = tensor_of(r, TSH_FLOAT32, 2, 4, 3), *out = tensor_of(r, TSH_FLOAT32, 2, 2, 3);
    float wanted[6];
    for (int i = 0; i < 12; i++) ((float *)tsh_tensor_data(in))[i] = (float)(i + 1);
    for (int i = 0; i < 6; i++) wanted[i] = (float)(r->rank ? 14 + 2 * i : 2 + 2 * i);
    tshi_check_ok(r, tsh_reduce_scatter_tensor(tsh_world_group(r->world), in, out, NULL, TSH_REDUCE_SUM));
    holds(r, out, wanted, 6);
    tsh_tensor_release(in);
    tsh_tensor_release(out);
}

Test(known, reduce_scatter_tensor, .timeout = 120) {
    cr_assert_str_empty(tshi_test_run(2, scatter_twelve, NULL));
}

/* Rank i's part of the sum over r of [1,2,3,4] + r + i, on 4 ranks: 4 ([1,2,3,4] + i) + 6. */
static void scatter_list(tshi_rank *r, void *arg) {
    (void)arg;
    tsh_tensor *in = tensor_of(r, TSH_FLOAT32, 2, 4, 4), *out = tensor_of(r, TSH_FLOAT32, 2, 1, 4);
    float wanted[4];
    for (int i = 0; i < 16; i++) ((float *)tsh_tensor_data(in))[i] = (float)(1 + i % 4 + r->rank + i / 4);
    for (int i = 0; i < 4; i++) wanted[i] = (float)(4 * (1 + i + r->rank) + 6);
    tshi_check_ok(r, tsh_reduce_scatter_tensor(tsh_world_group(r->world), in, out, NULL, TSH_REDUCE_SUM));
    holds(r, out, wanted, 4);
    tsh_tensor_release(in);
    tsh_tensor_release(out);
}

Test(known, reduce_scatter_list, .timeout = 120) {
    cr_assert_str_empty(tshi_test_run(4, scatter_list, NULL));
}

static void exchange(tshi_rank *r, void *arg) {
    (void)arg;
    tsh_tensor *in = vector_of(r, NULL, 8), *out = vector_of(r, NULL, 8);
    float wanted[8];
    for (int i = 0; i < 8; i++) {
        ((float *)tsh_tensor_data(in))[i] = (float)(i % 2 + 2 * (i / 2) + 8 * r->rank);
        wanted[i] = (float)(i % 2 + 2 * r->rank + 8 * (i / 2));
    }
    tshi_check_ok(r, tsh_all_to_all(tsh_world_group(r->world), in, NULL, out, NULL));
    holds(r, out, wanted, 8);
    tsh_tensor_release(in);
    tsh_tensor_release(out);
}

Test(known, all_to_all, .timeout = 120) {
    cr_assert_str_empty(tshi_test_run(4, exchange, NULL));
}

static void exchange_uneven(tshi_rank *r, void *arg) {
    (void)arg;
    static const float first[4] = {0, 10, 20, 30};
    static const int64_t splits[4][4] = {{2, 2, 1, 1}, {3, 2, 2, 2}, {2, 1, 1, 1}, {2, 2, 2, 1}};
    static const int64_t total[4] = {6, 9, 5, 7}, wanted_total[4] = {9, 7, 6, 5};
    static const float wanted[4][9] = {
        {0, 1, 10, 11, 12, 20, 21, 30, 31}, {2, 3, 13, 14, 22, 32, 33}, {4, 15, 16, 23, 34, 35}, {5, 17, 18, 24, 36}};
    int64_t expected[4];
    for (int i = 0; i < 4; i++) expected[i] = splits[i][r->rank];
    tsh_tensor *in = vector_of(r, NULL, total[r->rank]), *out = vector_of(r, NULL, wanted_total[r->rank]);
    for (int64_t i = 0; i < total[r->rank]; i++) ((float *)tsh_tensor_data(in))[i] = first[r->rank] + (float)i;
    tshi_check_ok(r, tsh_all_to_all(tsh_world_group(r->world), in, splits[r->rank], out, expected));
    holds(r, out, wanted[r->rank], wanted_total[r->rank]);
    tsh_tensor_release(in);
    tsh_tensor_release(out);
}

Test(known, all_to_all_uneven, .timeout = 120) {
    cr_assert_str_empty(tshi_test_run(4, exchange_uneven, NULL));
}

/* A PARTIAL value on ranks 0 and 1 becomes halves of its columns on ranks 2 and 3: the sum, cut at column 2. */
static void partial_to_columns(tshi_rank *r, void *arg) {
    (void)arg;
    static const float terms[2][16] = {{4, 6, 5, 20, 6, 8, 9, 0, 3, 7, 5, 0, 6, 8, 9, 0},
                                       {2, 10, 10, 7, 3, 9, 10, 5, 4, 6, 6, 9, 6, 8, 6, 4}};
    static const float wanted[2][8] = {{6, 16, 9, 17, 7, 13, 12, 16}, {15, 27, 19, 5, 11, 9, 15, 4}};
    tsh_group *group = tsh_world_group(r->world);
    tsh_tensor *x = vector_of(r, r->rank < 2 ? terms[r->rank] : NULL, 16), *part = vector_of(r, NULL, 8);
    tshi_check_ok(r, tsh_all_reduce(group, x, TSH_REDUCE_SUM));
    if (r->rank >= 2) {
        for (int i = 0; i < 8; i++) {
            int column = i % 2 + 2 * (r->rank - 2);
            ((float *)tsh_tensor_data(part))[i] = ((float *)tsh_tensor_data(x))[i / 2 * 4 + column];
        }
        holds(r, part, wanted[r->rank - 2], 8);
    }
    tsh_tensor_release(x);
    tsh_tensor_release(part);
}

Test(known, partial_sum_in_columns, .timeout = 120) {
    cr_assert_str_empty(tshi_test_run(4, partial_to_columns, NULL));
}

Test(known, balanced_split, .timeout = 120) {
    static const struct { int64_t n, parts[4]; } cases[] = {{13, {4, 3, 3, 3}}, {5, {2, 1, 1, 1}}, {2, {1, 1, 0, 0}}};
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        int64_t next = 0, start, length;
        for (int i = 0; i < 4; i++) {
            tsh_split(cases[c].n, 4, i, &start, &length);
            cr_assert_eq(start, next);
            cr_assert_eq(length, cases[c].parts[i]);
            next += length;
        }
    }
}
