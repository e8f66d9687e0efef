/* Evaluation with marks: memory does not grow with depth, values are those without marks, and recording is not
 * disturbed. */
#include "support/ranks.h"
#include "tensor/tensor.h"
#include "tshard/autograd.h"
#include "tshard/functional.h"

#include <criterion/criterion.h>
#include <string.h>

enum { ROWS = 7, COLS = 5, NUMEL = ROWS * COLS };

typedef struct bench {
    tsh_tape *tape;
    tsh_tensor *x, *w; /* [ROWS, COLS], SHARD(0); [COLS, COLS], REPLICATED */
} bench;

static bench set_up(tshi_rank *r) {
    bench b = {NULL, NULL, NULL};
    tsh_tensor_config x = {.dtype = TSH_FLOAT64, .ndim = 2, .shape = {ROWS, COLS}, .layout = {TSH_SHARD(0)}};
    tsh_tensor_config w = {.dtype = TSH_FLOAT64, .ndim = 2, .shape = {COLS, COLS}};
    tshi_check_ok(r, tsh_tape_create(r->world, &b.tape));
    tshi_check_ok(r, tsh_tensor_create_arange(tsh_world_mesh(r->world), &x, -1, 0.0625, &b.x));
    tshi_check_ok(r, tsh_tensor_create_arange(tsh_world_mesh(r->world), &w, 1, -0.0625, &b.w));
    return b;
}

static void tear_down(tshi_rank *r, bench *b) {
    tsh_tensor_release(b->x);
    tsh_tensor_release(b->w);
    tsh_tape_destroy(b->tape);
    size_t left = tsh_device_stats(tsh_world_device(r->world)).bytes_in_use;
    tshi_check(r, left == 0, "%zu bytes are left", left);
}

/* A part with intermediates, and with one gathered tensor that two products share. */
static tsh_tensor *part(const bench *b, tsh_tensor *x) {
    tsh_tensor *whole = tsh_redistribute(b->tape, x, NULL, NULL);
    tsh_tensor *y = tsh_add(b->tape, tsh_gelu(b->tape, tsh_matmul(b->tape, whole, b->w)), whole);
    return tsh_redistribute(b->tape, tsh_scale(b->tape, y, 0.25), NULL, (tsh_layout[]){TSH_SHARD(0)});
}

/* `depth` parts; the sum of all values, and the peak. */
static double run(tshi_rank *r, const bench *b, int depth, bool marks, size_t *peak) {
    tsh_device *device = tsh_world_device(r->world);
    tsh_device_reset_peak(device);
    tsh_mark start = tsh_tape_mark(b->tape);
    tsh_tensor *x = b->x;
    for (int i = 0; i < depth; i++) {
        x = part(b, x);
        if (marks) x = tsh_tape_free_since(b->tape, start, x);
    }
    tsh_tensor *sum = tsh_full(b->tape, tsh_sum(b->tape, x, TSH_ALL_DIMS));
    double value = sum ? tsh_tensor_item(sum) : 0;
    *peak = tsh_device_stats(device).bytes_peak;
    tshi_check(r, sum != NULL, "%s", tsh_tape_message(b->tape));
    tshi_check_ok(r, tsh_tape_reset(b->tape));
    return value;
}

static void depth(tshi_rank *r, void *arg) {
    (void)arg;
    size_t shallow, deep, all;
    bench b = set_up(r);
    tsh_tape_set_recording(b.tape, false);
    run(r, &b, 2, true, &shallow);
    uint64_t before = tsh_device_stats(tsh_world_device(r->world)).allocations;
    double with = run(r, &b, 40, true, &deep);
    tshi_check(r, deep == shallow, "40 parts need %zu bytes, 2 parts %zu", deep, shallow);
    tshi_check(r, tsh_device_stats(tsh_world_device(r->world)).allocations == before, "memory was allocated");
    double without = run(r, &b, 40, false, &all);
    tshi_check(r, with == without, "%.17g with marks, %.17g without", with, without);
    tshi_check(r, all > 10 * deep, "%zu bytes without marks, %zu with", all, deep);
    tear_down(r, &b);
}

Test(mark, memory_does_not_grow_with_depth, .timeout = 120) {
    cr_assert_str_empty(tshi_test_run_each(1, 4, depth, NULL));
}

/* A transition that was made in the freed part is made again, one from before the mark is not. */
static void transitions(tshi_rank *r, void *arg) {
    (void)arg;
    bench b = set_up(r);
    tsh_group *group = tsh_world_group(r->world);
    tsh_tape_set_recording(b.tape, false);
    for (int round = 0; round < 3; round++) {
        tsh_tensor *before = round == 2 ? tsh_full(b.tape, b.x) : NULL;
        tsh_mark start = tsh_tape_mark(b.tape);
        tsh_group_reset_stats(group);
        tsh_tensor *a = tsh_full(b.tape, b.x), *again = tsh_full(b.tape, b.x);
        tshi_check(r, a && a == again, "made twice");
        tsh_tensor *y = tsh_tape_free_since(b.tape, start, round == 1 ? a : tsh_scale(b.tape, a, 2));
        a = tsh_full(b.tape, b.x);
        tshi_check(r, round != 1 || a == y, "what was kept is made again");
        tshi_check(r, round != 2 || a == before, "what was made before the mark is made again");
        uint64_t calls = tsh_group_stats(group).calls[TSH_COLLECTIVE_ALL_GATHER];
        uint64_t wanted = r->size == 1 || round == 2 ? 0 : round == 1 ? 1 : 2;
        tshi_check(r, calls == wanted, "round %d: %d all-gathers", round, (int)calls);
        double sum = tsh_tensor_item(tsh_sum(b.tape, a, TSH_ALL_DIMS));
        tshi_check(r, sum == 0.0625 * NUMEL * (NUMEL - 1) / 2 - NUMEL, "the sum is %.17g", sum);
        tshi_check_ok(r, tsh_tape_reset(b.tape));
    }
    tear_down(r, &b);
}

Test(mark, transitions_are_made_again_where_they_were_freed, .timeout = 120) {
    cr_assert_str_empty(tshi_test_run_each(1, 3, transitions, NULL));
}

/* An input that the program releases at once, before what was made of it. */
static void inputs_that_end_early(tshi_rank *r, void *arg) {
    (void)arg;
    bench b = set_up(r);
    tsh_tape_set_recording(b.tape, false);
    tsh_mark start = tsh_tape_mark(b.tape);
    tsh_tensor *copy = NULL;
    tshi_check_ok(r, tsh_tensor_clone(b.x, &copy));
    tsh_tensor *whole = tsh_full(b.tape, copy);
    tsh_tensor_release(copy);
    tsh_tensor *kept = tsh_tensor_retain(tsh_scale(b.tape, whole, 3));
    tsh_tensor *y = tsh_tape_free_since(b.tape, start, tsh_scale(b.tape, kept, 2));
    tshi_check(r,
               y && tsh_tensor_item(tsh_sum(b.tape, y, TSH_ALL_DIMS)) ==
                        2 * tsh_tensor_item(tsh_sum(b.tape, kept, TSH_ALL_DIMS)),
               "the retained tensor, or the result");
    tshi_check(r, tsh_tape_free_since(b.tape, start, b.x) == b.x, "a leaf is kept by its owner");
    tsh_tensor_release(kept);
    tear_down(r, &b);
}

Test(mark, retained_tensors_and_inputs_that_end_early, .timeout = 120) {
    cr_assert_str_empty(tshi_test_run_each(1, 3, inputs_that_end_early, NULL));
}

/* While recording is on nothing is freed; what was recorded stays when it is off for a while. */
static void recording(tshi_rank *r, void *arg) {
    (void)arg;
    double wanted[ROWS * COLS] = {0}, got[ROWS * COLS];
    bench b = set_up(r);
    tshi_check_ok(r, tsh_tensor_require_grad(b.x, true));
    for (int marks = 0; marks < 3; marks++) {
        tsh_mark start = tsh_tape_mark(b.tape);
        tsh_tensor *x = part(&b, b.x);
        if (marks == 1) x = tsh_tape_free_since(b.tape, start, x);
        tsh_tensor *loss = tsh_sum(b.tape, part(&b, x), TSH_ALL_DIMS);
        if (marks == 2) {
            tsh_tape_set_recording(b.tape, false);
            tsh_tensor *aside = part(&b, x);
            tshi_check(r, tsh_tape_free_since(b.tape, start, aside) == aside, "kept");
            tsh_tape_set_recording(b.tape, true);
        }
        tsh_tensor_zero_grad(b.x);
        tshi_check_ok(r, tsh_backward(b.tape, loss));
        tshi_check_ok(r, tsh_tensor_read(tsh_tensor_grad(b.x), got, tsh_tensor_local_numel(b.x)));
        if (marks == 0) memcpy(wanted, got, sizeof wanted);
        tshi_check(r, memcmp(got, wanted, sizeof(double) * (size_t)tsh_tensor_local_numel(b.x)) == 0, "gradients %d",
                   marks);
        tshi_check_ok(r, tsh_tape_reset(b.tape));
    }
    tear_down(r, &b);
}

Test(mark, recording_frees_nothing, .timeout = 120) {
    cr_assert_str_empty(tshi_test_run_each(1, 3, recording, NULL));
}

static void wrong_use(tshi_rank *r, void *arg) {
    (void)arg;
    bench b = set_up(r);
    tsh_mark start = tsh_tape_mark(b.tape);
    tshi_check_ok(r, tsh_tape_reset(b.tape));
    tshi_check(r, !tsh_tape_free_since(b.tape, start, b.x), "a mark of the step before");
    tshi_check(r, tsh_tape_status(b.tape) == TSH_ERR_STATE && strstr(tsh_tape_message(b.tape), "another step"), "%s",
               tsh_tape_message(b.tape));
    tshi_check(r, tsh_tape_mark(NULL).step == 0, "no tape");
    tsh_tape_reset(b.tape);
    tear_down(r, &b);
}

Test(mark, of_another_step_is_refused, .timeout = 60) {
    cr_assert_str_empty(tshi_test_run(1, wrong_use, NULL));
}
