/* The largest elements at 1 to 4 ranks, along sharded dims too: values, indices, ties, NaN, and one collective. */
#include "support/collectives.h"
#include "support/ranks.h"
#include "tshard/functional.h"

#include <criterion/criterion.h>
#include <math.h>
#include <string.h>

enum { ROWS = 4, COLS = 7, K = 3 };

static const double x_values[ROWS * COLS] = {
    1, 5,         5,  -2, 0,  5,        3,         /* ties */
    2, -INFINITY, -3, 2,  -1, -7,       -INFINITY, /* infinities */
    0, NAN,       9,  -1, 4,  INFINITY, NAN,       /* NaN before everything */
    6, 5,         4,  3,  2,  1,        0,
};
static const int64_t along_rows[ROWS][K] = {{1, 2, 5}, {0, 3, 4}, {1, 6, 5}, {0, 1, 2}};

static tsh_tensor *make_x(tshi_rank *r, tsh_layout layout) {
    tsh_tensor_config config = {.dtype = TSH_FLOAT64, .ndim = 2, .shape = {ROWS, COLS}, .layout = {layout}};
    tsh_tensor *x = NULL;
    tshi_check_ok(r, tsh_tensor_create(tsh_world_mesh(r->world), &config, &x));
    tshi_check_ok(r, tsh_tensor_write_whole(x, x_values));
    return x;
}

static void largest_of_rows(tshi_rank *r, tsh_layout layout) {
    tsh_tape *tape = NULL;
    double values[ROWS * K];
    int64_t ids[ROWS * K], best[ROWS];
    tsh_tensor *x = make_x(r, layout), *indices = NULL;
    tsh_group *group = tsh_world_group(r->world);
    tshi_check_ok(r, tsh_tape_create(r->world, &tape));
    tsh_group_reset_stats(group);
    tsh_tensor *y = tsh_topk(tape, x, K, 1, &indices), *largest = tsh_argmax(tape, x, -1);
    if (!tshi_check(r, y && indices && largest, "%s", tsh_tape_message(tape))) return;
    uint64_t calls = tsh_group_stats(group).calls[TSH_COLLECTIVE_ALL_GATHER];
    tshi_check(r, calls == (layout.kind == TSH_KIND_SHARD && layout.dim == 1 && r->size > 1 ? 2 : 0), "%d calls",
               (int)calls);
    tshi_check(r, tsh_tensor_dtype(indices) == TSH_INT64 && tsh_tensor_ndim(largest) == 1, "dtype, or shape");
    tshi_check_ok(r, tsh_tensor_read(tsh_full(tape, y), values, ROWS * K));
    tshi_check_ok(r, tsh_tensor_read(tsh_full(tape, indices), ids, ROWS * K));
    tshi_check_ok(r, tsh_tensor_read(tsh_full(tape, largest), best, ROWS));
    for (int row = 0; row < ROWS; row++) {
        tshi_check(r, best[row] == along_rows[row][0], "argmax of row %d is %d", row, (int)best[row]);
        for (int j = 0; j < K; j++) {
            double wanted = x_values[row * COLS + along_rows[row][j]], got = values[row * K + j];
            tshi_check(r, ids[row * K + j] == along_rows[row][j], "row %d: index %d is %d", row, j,
                       (int)ids[row * K + j]);
            tshi_check(r, got == wanted || (isnan(got) && isnan(wanted)), "row %d: value %d is %g", row, j, got);
        }
    }
    tsh_tensor_release(x);
    tsh_tape_destroy(tape);
}

static void in_all_layouts(tshi_rank *r, void *arg) {
    (void)arg;
    largest_of_rows(r, TSH_REPLICATED);
    largest_of_rows(r, TSH_SHARD(0));
    largest_of_rows(r, TSH_SHARD(1));
}

Test(top, values_and_indices, .timeout = 60) {
    cr_assert_str_empty(tshi_test_run_each(1, 4, in_all_layouts, NULL));
    cr_assert_str_empty(tshi_test_run(8, in_all_layouts, NULL)); /* ranks without an element */
}

static void first_dim(tshi_rank *r, void *arg) {
    (void)arg;
    static const int64_t wanted[COLS] = {3, 2, 2, 3, 2, 2, 2};
    tsh_tape *tape = NULL;
    int64_t best[COLS];
    tsh_tensor *x = make_x(r, TSH_SHARD(0));
    tshi_check_ok(r, tsh_tape_create(r->world, &tape));
    tshi_check_ok(r, tsh_tensor_require_grad(x, true));
    tsh_tensor *largest = tsh_argmax(tape, x, 0);
    if (tshi_check(r, largest != NULL, "%s", tsh_tape_message(tape)))
        tshi_check_ok(r, tsh_tensor_read(largest, best, COLS));
    for (int i = 0; largest && i < COLS; i++) tshi_check(r, best[i] == wanted[i], "column %d: %d", i, (int)best[i]);
    tshi_check(r, !tsh_argmax(tape, x, 2) && strstr(tsh_tape_message(tape), "topk"), "%s", tsh_tape_message(tape));
    tsh_tape_reset(tape);
    tshi_check(r, !tsh_topk(tape, x, 5, 0, NULL) && strstr(tsh_tape_message(tape), "1 to 4 are possible"), "%s",
               tsh_tape_message(tape));
    tsh_tensor_release(x);
    tsh_tape_destroy(tape);
}

Test(top, along_the_first_dim_and_wrong_use, .timeout = 60) {
    cr_assert_str_empty(tshi_test_run_each(1, 3, first_dim, NULL));
}

/* The first of equal elements gets the gradient, along a sharded dim and of all elements; NaN is the smallest too. */
static void of_ties(tshi_rank *r, tsh_layout layout) {
    static const double wanted_max[ROWS] = {5, 2, NAN, 6}, wanted_min[ROWS] = {-2, -INFINITY, NAN, 0};
    static const int first_max[ROWS] = {1, 0, 1, 0}, first_min[ROWS] = {3, 1, 1, 6};
    tsh_tape *tape = NULL;
    double got[ROWS], slope[ROWS * COLS];
    int64_t ids[ROWS];
    tsh_tensor *x = make_x(r, layout), *indices = NULL;
    tshi_check_ok(r, tsh_tape_create(r->world, &tape));
    tshi_check_ok(r, tsh_tensor_require_grad(x, true));
    for (int least = 0; least < 2; least++) {
        const double *wanted = least ? wanted_min : wanted_max;
        const int *first = least ? first_min : first_max;
        tsh_tensor *y = least ? tsh_min(tape, x, -1, &indices) : tsh_max(tape, x, -1, &indices);
        if (!tshi_check(r, y && indices && tsh_tensor_ndim(indices) == 1, "%s", tsh_tape_message(tape))) return;
        tshi_check_ok(r, tsh_tensor_read(tsh_full(tape, y), got, ROWS));
        tshi_check_ok(r, tsh_tensor_read(tsh_full(tape, indices), ids, ROWS));
        tsh_tensor_zero_grad(x);
        tshi_check_ok(r, tsh_backward(tape, tsh_sum(tape, y, TSH_ALL_DIMS)));
        tshi_check_ok(r, tsh_tensor_read(tsh_full(tape, tsh_tensor_grad(x)), slope, ROWS * COLS));
        for (int row = 0; row < ROWS; row++) {
            bool same = got[row] == wanted[row] || (isnan(got[row]) && isnan(wanted[row]));
            tshi_check(r, same && ids[row] == first[row], "row %d: %g at %d", row, got[row], (int)ids[row]);
            for (int c = 0; c < COLS; c++)
                tshi_check(r, slope[row * COLS + c] == (c == first[row]), "row %d: the slope of %d is %g", row, c,
                           slope[row * COLS + c]);
        }
        tshi_check_ok(r, tsh_tape_reset(tape));
    }
    tsh_tensor_zero_grad(x);
    tsh_backward(tape, tsh_max(tape, tsh_slice(tape, x, 0, 0, 2), TSH_ALL_DIMS, NULL));
    tshi_check_ok(r, tsh_tensor_read(tsh_full(tape, tsh_tensor_grad(x)), slope, ROWS * COLS));
    for (int i = 0; i < ROWS * COLS; i++) tshi_check(r, slope[i] == (i == 1), "the slope of %d is %g", i, slope[i]);
    tshi_check(r, !tsh_max(tape, x, TSH_ALL_DIMS, &indices) && strstr(tsh_tape_message(tape), "max: indices are along"),
               "%s", tsh_tape_message(tape));
    tshi_check_ok(r, tsh_tape_reset(tape));
    tsh_tensor_release(x);
    tsh_tape_destroy(tape);
}

static void ties_in_all_layouts(tshi_rank *r, void *arg) {
    (void)arg;
    of_ties(r, TSH_REPLICATED);
    of_ties(r, TSH_SHARD(0));
    of_ties(r, TSH_SHARD(1));
}

Test(top, the_first_of_equal_elements, .timeout = 60) {
    cr_assert_str_empty(tshi_test_run_each(1, 4, ties_in_all_layouts, NULL));
}
