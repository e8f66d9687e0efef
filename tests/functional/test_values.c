/* Values and gradients of functions that see a tensor of several dims as a matrix, a run or a window, against plain
 * loops; integers make them exact. The kernels have suites of their own in tests/device. */
#include "support/tensors.h"
#include "tshard/functional.h"

#include <criterion/criterion.h>
#include <math.h>

#define MOST 64

/* A leaf of this shape that holds 0, 1, 2, ... */
static tsh_tensor *leaf(tshi_rank *r, int ndim, const int64_t *shape) {
    tsh_tensor_config config = {.dtype = TSH_FLOAT64, .ndim = ndim};
    double whole[MOST];
    for (int d = 0; d < ndim; d++) config.shape[d] = shape[d];
    for (int i = 0; i < MOST; i++) whole[i] = i;
    return tshi_test_leaf(r, tsh_world_mesh(r->world), &config, whole);
}

/* Backward twice from sum of y * y / 2, whose gradient of y is y: a second sum is added to the first. */
static void backward_twice(tshi_rank *r, tsh_tape *tape, tsh_tensor *y) {
    tsh_tensor *half = tsh_scale(tape, tsh_sum(tape, tsh_mul(tape, y, y), TSH_ALL_DIMS), 0.5);
    tshi_check_ok(r, tsh_backward_with(tape, half, &(tsh_backward_config){.retain_graph = true}));
    tshi_check_ok(r, tsh_backward(tape, half));
}

static void products(tshi_rank *r, void *arg) {
    (void)arg;
    tsh_tape *tape = NULL;
    tsh_tensor *a = leaf(r, 3, (int64_t[]){2, 3, 4}), *b = leaf(r, 2, (int64_t[]){4, 5});
    double y[30] = {0}, da[24] = {0}, db[20] = {0};
    for (int m = 0; m < 6; m++)
        for (int n = 0; n < 5; n++)
            for (int k = 0; k < 4; k++) y[m * 5 + n] += (m * 4 + k) * (k * 5 + n);
    for (int m = 0; m < 6; m++) {
        for (int n = 0; n < 5; n++) {
            for (int k = 0; k < 4; k++) {
                da[m * 4 + k] += 2 * y[m * 5 + n] * (k * 5 + n);
                db[k * 5 + n] += 2 * y[m * 5 + n] * (m * 4 + k);
            }
        }
    }
    tshi_check_ok(r, tsh_tape_create(r->world, &tape));
    tsh_tensor *product = tsh_matmul(tape, a, b);
    tshi_test_same(r, "a b", product, y, 0);
    backward_twice(r, tape, product);
    tshi_test_same_grad(r, "da", a, da, 0);
    tshi_test_same_grad(r, "db", b, db, 0);
    tsh_tape_destroy(tape);
    tsh_tensor_release(a);
    tsh_tensor_release(b);
}

Test(values, products_flatten_leading_dims, .timeout = 120) {
    cr_assert_str_empty(tshi_test_run(1, products, NULL));
}

/* x's columns 3 and 4 of 5 along the middle dim, and behind them columns 0 and 1. */
static void windows(tshi_rank *r, void *arg) {
    (void)arg;
    tsh_tape *tape = NULL;
    tsh_tensor *x = leaf(r, 3, (int64_t[]){2, 5, 3});
    double part[12], both[24], dx[30] = {0};
    for (int o = 0; o < 2; o++) {
        for (int i = 0; i < 6; i++) {
            part[o * 6 + i] = both[o * 12 + i] = o * 15 + 9 + i;
            both[o * 12 + 6 + i] = o * 15 + i;
            dx[o * 15 + 9 + i] = 2 * (o * 15 + 9 + i);
            dx[o * 15 + i] = 2 * (o * 15 + i);
        }
    }
    tshi_check_ok(r, tsh_tape_create(r->world, &tape));
    tsh_tensor *pieces[] = {tsh_slice(tape, x, 1, 3, 2), tsh_slice(tape, x, 1, 0, 2)};
    tshi_test_same(r, "slice", pieces[0], part, 0);
    tsh_tensor *joined = tsh_concat(tape, pieces, 2, 1);
    tshi_test_same(r, "concat", joined, both, 0);
    backward_twice(r, tape, joined);
    tshi_test_same_grad(r, "dx", x, dx, 0);
    tsh_tape_destroy(tape);
    tsh_tensor_release(x);
}

Test(values, slices_and_insertions_along_a_middle_dim, .timeout = 120) {
    cr_assert_str_empty(tshi_test_run(1, windows, NULL));
}

static void sums(tshi_rank *r, void *arg) {
    (void)arg;
    tsh_tape *tape = NULL;
    tsh_tensor *x = leaf(r, 3, (int64_t[]){2, 5, 3});
    double sum[6] = {0}, mean[6] = {0}, dx[30], all = 29 * 30 / 2;
    for (int i = 0; i < 30; i++) sum[i / 15 * 3 + i % 3] += i;
    for (int i = 0; i < 6; i++) mean[i] = sum[i] / 5;
    for (int i = 0; i < 30; i++) dx[i] = 2 * sum[i / 15 * 3 + i % 3];
    tshi_check_ok(r, tsh_tape_create(r->world, &tape));
    tshi_test_same(r, "mean", tsh_mean(tape, x, 1), mean, 1e-15);
    tshi_test_same(r, "sum of all", tsh_sum(tape, x, TSH_ALL_DIMS), &all, 0);
    tsh_tensor *y = tsh_sum(tape, x, 1);
    tshi_test_same(r, "sum", y, sum, 0);
    backward_twice(r, tape, y);
    tshi_test_same_grad(r, "dx", x, dx, 0);
    tsh_tape_destroy(tape);
    tsh_tensor_release(x);
}

Test(values, sums_over_a_middle_dim_and_all, .timeout = 120) {
    cr_assert_str_empty(tshi_test_run(1, sums, NULL));
}

/* The gradient of row i is the sum over the rows from i on. */
static void cumulative_sums(tshi_rank *r, void *arg) {
    (void)arg;
    tsh_tape *tape = NULL;
    tsh_tensor *x = leaf(r, 3, (int64_t[]){2, 5, 3});
    double total[30], dx[30], last[2] = {0};
    for (int i = 0; i < 30; i++) total[i] = i + (i % 15 < 3 ? 0 : total[i - 3]);
    for (int i = 29; i >= 0; i--) dx[i] = 2 * total[i] + (i % 15 >= 12 ? 0 : dx[i + 3]);
    for (int i = 0; i < 30; i++) last[i / 15] += i;
    tshi_check_ok(r, tsh_tape_create(r->world, &tape));
    tsh_tensor *flat = tsh_cumsum(tape, tsh_reshape(tape, x, 2, (int64_t[]){2, 15}), -1);
    tshi_test_same(r, "the last of a row", tsh_slice(tape, flat, 1, 14, 1), last, 0);
    tsh_tensor *y = tsh_cumsum(tape, x, 1);
    tshi_test_same(r, "cumsum", y, total, 0);
    backward_twice(r, tape, y);
    tshi_test_same_grad(r, "dx", x, dx, 0);
    tsh_tape_destroy(tape);
    tsh_tensor_release(x);
}

Test(values, cumulative_sums_along_a_middle_and_the_last_dim, .timeout = 120) {
    cr_assert_str_empty(tshi_test_run(1, cumulative_sums, NULL));
}

static void lookups(tshi_rank *r, void *arg) {
    (void)arg;
    tsh_tape *tape = NULL;
    tsh_tensor *table = leaf(r, 2, (int64_t[]){10, 2}), *ids = NULL;
    const tsh_tensor_config config = {.dtype = TSH_INT64, .ndim = 1, .shape = {4}};
    static const double rows[] = {10, 11, 18, 19, 12, 13, 8, 9};
    tshi_check_ok(r, tsh_tape_create(r->world, &tape));
    tshi_check_ok(r, tsh_tensor_create(tsh_world_mesh(r->world), &config, &ids));
    tshi_check_ok(r, tsh_tensor_write(ids, (int64_t[]){5, 9, 6, 4}, 4));
    tshi_test_same(r, "lookup", tsh_lookup(tape, table, ids, -1), rows, 0);
    tshi_check_ok(r, tsh_tensor_write(ids, (int64_t[]){5, 10, 6, 4}, 4));
    tshi_check(r, !tsh_lookup(tape, table, ids, -1) && tsh_tape_status(tape) == TSH_ERR_RANGE, "id 10 of 10 is taken");
    tsh_tape_destroy(tape);
    tsh_tensor_release(table);
    tsh_tensor_release(ids);
}

Test(values, lookup_and_an_id_past_the_table, .timeout = 120) {
    cr_assert_str_empty(tshi_test_run(1, lookups, NULL));
}

/* A tensor without elements may be as long as it likes along another dim. */
static void long_and_empty(tshi_rank *r, void *arg) {
    (void)arg;
    tsh_tape *tape = NULL;
    tsh_tensor *x = leaf(r, 2, (int64_t[]){INT64_MAX, 0}), *one = leaf(r, 2, (int64_t[]){1, 0});
    tshi_check_ok(r, tsh_tape_create(r->world, &tape));
    tsh_tensor *y = tsh_add(tape, tsh_softmax(tape, x, 0), tsh_log_softmax(tape, x, 0));
    tsh_tensor *loss = tsh_sum(tape, tsh_sum(tape, tsh_add(tape, y, one), 0), TSH_ALL_DIMS);
    tshi_check(r, loss != NULL, "%s", tsh_tape_message(tape));
    if (loss) tshi_check_ok(r, tsh_backward(tape, loss));
    tsh_tape_destroy(tape);
    tsh_tensor_release(x);
    tsh_tensor_release(one);
}

Test(values, of_no_elements_take_no_time_however_long_a_dim_is, .timeout = 120) {
    cr_assert_str_empty(tshi_test_run(1, long_and_empty, NULL));
}

/* --- rotary frequencies ------------------------------------------------------------------------------------------- */

/* Of pair i, as transformers has it in float32. */
typedef struct frequency {
    int pair;
    double value;
} frequency;

/* At position 1 the pair (1, 0) becomes the cosine and the sine of its frequency. */
static void check_frequencies(tshi_rank *r, tsh_tape *tape, int64_t dims, const tsh_rotary_config *config,
                              const frequency *wanted, int count) {
    double whole[128] = {0}, one = 1;
    for (int64_t i = 0; i < dims / 2; i++) whole[i] = 1;
    const tsh_mesh *mesh = tsh_world_mesh(r->world);
    tsh_tensor *x = tshi_test_tensor(r, mesh, &(tsh_tensor_config){TSH_FLOAT64, 4, {1, 1, 1, dims}, {{0}}}, whole);
    tsh_tensor *position = tshi_test_tensor(r, mesh, &(tsh_tensor_config){TSH_INT64, 1, {1}, {{0}}}, &one);
    tsh_tensor *y = tsh_rotary(tape, x, position, config);
    for (int k = 0; k < count && tshi_check(r, y, "%s", tsh_tape_message(tape)); k++) {
        const double *turned = tsh_tensor_data(y);
        double got = atan2(turned[wanted[k].pair + dims / 2], turned[wanted[k].pair]);
        tshi_check(r, fabs(got / wanted[k].value - 1) < 1e-6, "pair %d: %.9g, wanted %.9g", wanted[k].pair, got,
                   wanted[k].value);
    }
    tsh_tensor_release(x);
    tsh_tensor_release(position);
}

static void frequencies(tshi_rank *r, void *arg) {
    static const frequency llama3[] = {{0, 1},
                                       {10, 0.128687382},
                                       {28, 0.00321144611},
                                       {29, 0.00216657063},
                                       {30, 0.00137189368},
                                       {32, 0.000524846022},
                                       {34, 0.000178507791},
                                       {35, 9.55621217e-05},
                                       {36, 7.78465546e-05},
                                       {63, 3.06892588e-07}};
    static const frequency linear[] = {{0, 0.25}, {1, 0.025}, {2, 0.0025}, {3, 0.00025}};
    static const tsh_rotary_scaling wrong[] = {{.factor = -1}, {.factor = HUGE_VAL}, {2, 0, 4, 8},
                                               {2, 4, 4, 8},   {2, 1, HUGE_VAL, 8},  {2, 1, 4, -8}};
    tsh_tape *tape = NULL;
    (void)arg;
    tshi_check_ok(r, tsh_tape_create(r->world, &tape));
    check_frequencies(r, tape, 128, &(tsh_rotary_config){.theta = 500000, .scaling = {8, 1, 4, 8192}}, llama3, 10);
    check_frequencies(r, tape, 8, &(tsh_rotary_config){.scaling = {.factor = 4}}, linear, 4);
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        tsh_tensor *x = leaf(r, 4, (int64_t[]){1, 1, 1, 4});
        tsh_tensor *at =
            tshi_test_tensor(r, tsh_world_mesh(r->world), &(tsh_tensor_config){TSH_INT64, 1, {1}, {{0}}}, &(double){0});
        tshi_check(r, !tsh_rotary(tape, x, at, &(tsh_rotary_config){.scaling = wrong[i]}), "scaling %zu is taken", i);
        tshi_check(r, tsh_tape_status(tape) == TSH_ERR_ARGUMENT, "%s", tsh_tape_message(tape));
        tshi_check_ok(r, tsh_tape_reset(tape));
        tsh_tensor_release(x);
        tsh_tensor_release(at);
    }
    tsh_tape_destroy(tape);
}

Test(values, scaled_rotary_frequencies_are_those_of_transformers, .timeout = 120) {
    cr_assert_str_empty(tshi_test_run(1, frequencies, NULL));
}
