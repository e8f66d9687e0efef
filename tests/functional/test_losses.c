/* Mean squared errors and binary cross entropies against PyTorch in float64 (tests/data/functions), also of large
 * logits: split along either dim, uneven, and in 16 bits; and what they refuse. */
#include "support/tensors.h"
#include "support/vectors.h"
#include "tshard/functional.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

TestSuite(losses, .timeout = 120);

static const char *const names[] = {"mse", "bce", "bce_w"};
static const char *const reductions[] = {
    [TSH_REDUCTION_MEAN] = "mean", [TSH_REDUCTION_SUM] = "sum", [TSH_REDUCTION_NONE] = "none"};

static const double *values(tshi_rank *r, const tshi_vectors *v, const char *name, const char *reduction,
                            const char *what) {
    static const double none[15];
    char full[TSHI_VECTOR_NAME];
    snprintf(full, sizeof full, "%s%s%s%s%s", name, *reduction ? "." : "", reduction, *what ? "." : "", what);
    const tshi_vector *found = tshi_vectors_find(v, full);
    return tshi_check(r, found, "there is no %s", full) ? found->values : none;
}

static tsh_tensor *make(tshi_rank *r, tsh_dtype dtype, int ndim, int64_t rows, tsh_layout layout, const double *whole) {
    tsh_tensor_config config = {dtype, ndim, {rows, 3}, {layout}};
    return tshi_test_leaf(r, tsh_world_mesh(r->world), &config, whole);
}

static tsh_tensor *apply(tsh_tape *tape, int which, tsh_tensor *x, tsh_tensor *t, tsh_tensor *w, tsh_reduction kind) {
    const tsh_bce_loss_config config = {which == 2 ? w : NULL, kind};
    return which == 0 ? tsh_mse_loss(tape, x, t, kind) : tsh_bce_loss(tape, x, t, &config);
}

/* One loss under one layout of x and t; the sums are all-reduced once, the weights never move. */
static void check_loss(tshi_rank *r, tsh_tape *tape, const tshi_vectors *v, int which, tsh_reduction kind,
                       tsh_layout layout) {
    const char *name = names[which], *reduction = reductions[kind];
    tsh_communication_stats wanted = {0};
    tsh_group *group = tsh_world_group(r->world);
    tsh_tensor *x = make(r, TSH_FLOAT64, 2, 5, layout, values(r, v, "x", "", ""));
    tsh_tensor *t = make(r, TSH_FLOAT64, 2, 5, layout, values(r, v, "t", "", ""));
    tsh_tensor *dy = make(r, TSH_FLOAT64, 2, 5, layout, values(r, v, "dy", "", ""));
    tsh_tensor_config of_weights = {TSH_FLOAT64, 1, {3}, {TSH_REPLICATED}};
    tsh_tensor *w = tshi_test_tensor(r, tsh_world_mesh(r->world), &of_weights, values(r, v, "w", "", ""));
    tsh_group_reset_stats(group);
    tsh_tensor *y = apply(tape, which, x, t, w, kind);
    tshi_test_same(r, name, y, values(r, v, name, reduction, "y"), 1e-14);
    if (layout.kind == TSH_KIND_SHARD && kind != TSH_REDUCTION_NONE)
        tshi_test_expect(&wanted, group, TSH_COLLECTIVE_ALL_REDUCE, 1, 8);
    if (kind == TSH_REDUCTION_NONE)
        tshi_check_ok(r, tsh_backward_with(tape, y, &(tsh_backward_config){.gradient = dy}));
    else
        tshi_check_ok(r, tsh_backward(tape, tsh_scale(tape, y, 1.5)));
    tshi_test_calls(r, name, group, &wanted);
    tshi_test_same_grad(r, name, x, values(r, v, name, reduction, "dx"), 1e-14);
    tshi_test_same_grad(r, name, t, values(r, v, name, reduction, "dt"), 1e-14);
    tsh_tape_reset(tape);
    tsh_tensor *all[] = {x, t, dy, w};
    for (int i = 0; i < 4; i++) tsh_tensor_release(all[i]);
}

static void as_pytorch(tshi_rank *r, void *arg) {
    const tsh_layout layouts[] = {TSH_REPLICATED, TSH_SHARD(0), TSH_SHARD(1)};
    (void)arg;
    char error[200];
    tshi_vectors v;
    tsh_tape *tape = NULL;
    if (!tshi_check(r, tshi_vectors_read(TSHARD_TEST_DATA "/functions/losses.txt", &v, error, sizeof error), "%s",
                    error))
        return;
    tshi_check_ok(r, tsh_tape_create(r->world, &tape));
    for (int which = 0; which < 3; which++)
        for (int kind = 0; kind < 3; kind++)
            for (int l = 0; l < 3; l++) check_loss(r, tape, &v, which, (tsh_reduction)kind, layouts[l]);
    tsh_tape_destroy(tape);
    tshi_vectors_free(&v);
}

Test(losses, values_and_gradients_are_pytorchs) {
    for (int ranks = 1; ranks <= 4; ranks++) cr_assert_str_empty(tshi_test_run(ranks, as_pytorch, NULL));
}

/* Losses of 16 bits are of float32, gradients of the dtype of the prediction. */
static void in_16_bits(tshi_rank *r, void *arg) {
    const double x[6] = {1, -2, 0.5, 3, 0, -1}, t[6] = {1, 0, 1, 1, 0, 0};
    double sum = 0, dx[6];
    (void)arg;
    for (int i = 0; i < 6; i++) {
        sum += (x[i] - t[i]) * (x[i] - t[i]);
        dx[i] = 2 * (x[i] - t[i]);
    }
    for (int d = TSH_BFLOAT16; d <= TSH_FLOAT16; d++) {
        tsh_tape *tape = NULL;
        tsh_tensor *a = make(r, (tsh_dtype)d, 2, 2, TSH_SHARD(0), x), *b = make(r, (tsh_dtype)d, 2, 2, TSH_SHARD(0), t);
        tshi_check_ok(r, tsh_tape_create(r->world, &tape));
        tsh_tensor *y = tsh_mse_loss(tape, a, b, TSH_REDUCTION_SUM);
        tshi_check(r, tsh_tensor_dtype(y) == TSH_FLOAT32, "the loss is %s", tsh_dtype_name(tsh_tensor_dtype(y)));
        tshi_test_same(r, "mse", y, &sum, 0);
        tshi_check_ok(r, tsh_backward(tape, y));
        tshi_test_same_grad(r, "mse", a, dx, 0);
        tsh_tape_destroy(tape);
        tsh_tensor_release(a);
        tsh_tensor_release(b);
    }
}

Test(losses, of_16_bits) {
    cr_assert_str_empty(tshi_test_run(3, in_16_bits, NULL));
}

static void expect_words(tshi_rank *r, tsh_tape *tape, const tsh_tensor *y, const char *words) {
    tshi_check(r, !y && strstr(tsh_tape_message(tape), words), "'%s', wanted '%s'", tsh_tape_message(tape), words);
    tsh_tape_reset(tape);
}

static void refused(tshi_rank *r, void *arg) {
    const double zeros[15] = {0};
    (void)arg;
    tsh_tape *tape = NULL;
    tsh_tensor *x = make(r, TSH_FLOAT64, 2, 5, TSH_REPLICATED, zeros),
               *t = make(r, TSH_FLOAT64, 2, 4, TSH_REPLICATED, zeros);
    tsh_tensor *w = make(r, TSH_FLOAT64, 1, 5, TSH_REPLICATED, zeros);
    tshi_check_ok(r, tsh_tape_create(r->world, &tape));
    expect_words(r, tape, tsh_mse_loss(tape, x, t, TSH_REDUCTION_MEAN), "a target of the prediction's shape wanted");
    expect_words(r, tape, tsh_mse_loss(tape, x, x, (tsh_reduction)7), "unknown reduction 7");
    expect_words(r, tape, tsh_bce_loss(tape, x, x, &(tsh_bce_loss_config){.pos_weight = w}),
                 "must have a weight for each index of the logits' last dim");
    expect_words(r, tape, tsh_masked_fill(tape, x, x, 0), "masked_fill: the mask is float64, uint8 wanted");
    expect_words(r, tape, tsh_masked_fill(tape, w, tsh_cast(tape, x, TSH_UINT8), 0), "the mask has 2 dims, x has 1");
    expect_words(r, tape, tsh_masked_fill(tape, x, tsh_cast(tape, w, TSH_UINT8), 0), "sizes must be x's or 1");
    expect_words(r, tape, tsh_cast(tape, x, TSH_COMPLEX64), "cast: float64 cannot become complex64");
    tsh_tape_destroy(tape);
    tsh_tensor *all[] = {x, t, w};
    for (int i = 0; i < 3; i++) tsh_tensor_release(all[i]);
}

Test(losses, wrong_input_is_refused_in_words) {
    cr_assert_str_empty(tshi_test_run(1, refused, NULL));
}
