/* Several losses of one step on one tape, as micro-batches make them: recorded before the backwards of earlier ones. */
#include "support/layouts.h"
#include "support/tensors.h"
#include "tshard/tshard.h"

#include <criterion/criterion.h>

enum { ROWS = 6, IN = 3, OUT = 5, MOST = 3 };

/* y = x W^T + b of a row layer, along data and model: the tape makes W LOCAL along data, and b PARTIAL along model. */
typedef struct kit {
    tshi_rank *r;
    tsh_mesh *mesh;
    tsh_tape *tape;
    tsh_linear *layer;
    tsh_tensor *x[MOST];
} kit;

static void open_kit(kit *k) {
    tsh_linear_config config = {
        .in_features = IN, .out_features = OUT, .shard = TSH_ROW, .bias = true, .dtype = TSH_FLOAT64};
    tsh_tensor_config batch = {TSH_FLOAT64, 2, {ROWS, IN}, {S0, R}};
    double values[ROWS * IN];
    tshi_rank *r = k->r;
    tshi_check_ok(r, tsh_mesh_create(r->world, r->size % 2 ? "data=1,model=-1" : "data=2,model=-1", &k->mesh));
    tshi_check_ok(r, tsh_tape_create(r->world, &k->tape));
    tshi_check_ok(r, tsh_linear_create(tsh_mesh_group(k->mesh, "model"), &config, &k->layer));
    for (int m = 0; m < MOST; m++) {
        tshi_test_integers(m, ROWS * IN, values);
        k->x[m] = tshi_test_tensor(r, k->mesh, &batch, values);
    }
}

static void close_kit(kit *k) {
    for (int m = 0; m < MOST; m++) tsh_tensor_release(k->x[m]);
    tsh_linear_destroy(k->layer);
    tsh_tape_destroy(k->tape);
    tsh_mesh_destroy(k->mesh);
}

static tsh_tensor *loss_of(kit *k, int m) {
    return tsh_sum(k->tape, tsh_linear_forward(k->tape, k->layer, k->x[m]), TSH_ALL_DIMS);
}

static void check_sums(kit *k, int passes) {
    double dw[OUT * IN] = {0}, db[OUT], x[ROWS * IN];
    for (int m = 0; m < MOST; m++) {
        tshi_test_integers(m, ROWS * IN, x);
        for (int i = 0; i < ROWS * IN; i++) {
            for (int o = 0; o < OUT; o++) dw[o * IN + i % IN] += passes * x[i];
        }
    }
    for (int o = 0; o < OUT; o++) db[o] = passes * MOST * ROWS;
    tshi_test_same_grad(k->r, "weight", tsh_linear_weight(k->layer), dw, 0);
    tshi_test_same_grad(k->r, "bias", tsh_linear_bias(k->layer), db, 0);
}

/* The order of each step: letters begin micro-batches, figures end them. */
static const char *const orders[] = {"a0b1c2", "ab0c12", "abc012", "abc210", "ab1c20"};

static void run_order(kit *k, const char *order) {
    tsh_tensor *loss[MOST];
    for (; *order; order++) {
        if (*order >= 'a') loss[*order - 'a'] = loss_of(k, *order - 'a');
        if (*order >= '0' && *order < 'a') tshi_check_ok(k->r, tsh_backward(k->tape, loss[*order - '0']));
    }
}

static void every_order(tshi_rank *r, void *arg) {
    kit k = {.r = r};
    int passes = 0;
    (void)arg;
    open_kit(&k);
    for (size_t i = 0; i < sizeof orders / sizeof *orders; i++) {
        run_order(&k, orders[i]);
        check_sums(&k, ++passes);
        tshi_check_ok(r, tsh_tape_reset(k.tape));
    }
    close_kit(&k);
}

Test(micro_batches, add_up_in_every_order_of_forwards_and_backwards, .timeout = 120) {
    cr_assert_str_empty(tshi_test_run_each(1, 4, every_order, NULL));
}

/* Gradients wait in their buckets for the last backward, which sums them once. */
static void one_sum(tshi_rank *r, void *arg) {
    kit k = {.r = r};
    tsh_parameters *list = NULL;
    tsh_data_parallel *dp = NULL;
    (void)arg;
    open_kit(&k);
    tshi_check_ok(r, tsh_parameters_create(r->world, &list));
    tshi_check_ok(r, tsh_linear_register(k.layer, list, "layer"));
    tshi_check_ok(r, tsh_data_parallel_create(k.tape, list, tsh_mesh_group(k.mesh, "data"), NULL, &dp));
    uint64_t sums = (uint64_t)(tsh_group_size(tsh_mesh_group(k.mesh, "data")) > 1 ? tsh_data_parallel_buckets(dp) : 0);
    for (int pass = 1; pass <= 2; pass++) {
        tsh_group_reset_stats(tsh_data_parallel_group(dp));
        tsh_tensor *a = loss_of(&k, 0), *b = loss_of(&k, 1);
        tsh_data_parallel_set_sync(dp, false);
        tshi_check_ok(r, tsh_backward(k.tape, a));
        tsh_tensor *c = loss_of(&k, 2);
        tshi_check_ok(r, tsh_backward(k.tape, b));
        tsh_data_parallel_set_sync(dp, true);
        tshi_check_ok(r, tsh_backward(k.tape, c));
        check_sums(&k, pass);
        uint64_t calls = tsh_group_stats(tsh_data_parallel_group(dp)).calls[TSH_COLLECTIVE_ALL_REDUCE];
        tshi_check(r, calls == sums, "%llu all-reduces, %llu wanted", (unsigned long long)calls,
                   (unsigned long long)sums);
        tshi_check_ok(r, tsh_tape_reset(k.tape));
    }
    tsh_data_parallel_destroy(dp);
    tsh_parameters_destroy(list);
    close_kit(&k);
}

Test(micro_batches, are_summed_over_data_once, .timeout = 120) {
    cr_assert_str_empty(tshi_test_run_each(1, 4, one_sum, NULL));
}

/* What the program shares between losses is freed with the first: the second says so, and adds nothing in silence. */
static void shared_by_the_program(tshi_rank *r, void *arg) {
    kit k = {.r = r};
    (void)arg;
    open_kit(&k);
    tsh_tensor *h = tsh_linear_forward(k.tape, k.layer, k.x[0]);
    tsh_tensor *one = tsh_sum(k.tape, h, TSH_ALL_DIMS), *two = tsh_sum(k.tape, tsh_mul(k.tape, h, h), TSH_ALL_DIMS);
    tshi_check_ok(r, tsh_backward(k.tape, one));
    tshi_check_status(r, tsh_backward(k.tape, two), TSH_ERR_STATE, "an earlier backward has freed");
    tshi_check_ok(r, tsh_tape_reset(k.tape));
    close_kit(&k);
}

Test(micro_batches, cannot_share_what_a_backward_has_freed, .timeout = 120) {
    cr_assert_str_empty(tshi_test_run_each(1, 2, shared_by_the_program, NULL));
}
