/* The tape: accumulation, recording, retained and freed memory, shared gradients, failures. */
#include "support/ranks.h"
#include "tshard/autograd.h"
#include "tshard/functional.h"

#include <criterion/criterion.h>
#include <math.h>
#include <string.h>

typedef struct bench {
    tsh_tape *tape;
    tsh_tensor *x; /* [3], values 1, 2, 3, a leaf with a gradient */
} bench;

static bench set_up(tshi_rank *r) {
    bench b = {NULL, NULL};
    tsh_tensor_config config = {.dtype = TSH_FLOAT64, .ndim = 1, .shape = {3}};
    tshi_check_ok(r, tsh_tape_create(r->world, &b.tape));
    tshi_check_ok(r, tsh_tensor_create(tsh_world_mesh(r->world), &config, &b.x));
    tshi_check_ok(r, tsh_tensor_write(b.x, (double[]){1, 2, 3}, 3));
    tshi_check_ok(r, tsh_tensor_require_grad(b.x, true));
    return b;
}

static void tear_down(tshi_rank *r, bench *b) {
    tsh_tensor_release(b->x);
    tsh_tape_destroy(b->tape);
    size_t left = tsh_device_stats(tsh_world_device(r->world)).bytes_in_use;
    tshi_check(r, left == 0, "%zu bytes are left", left);
}

static tsh_tensor *square_sum(bench *b) {
    return tsh_sum(b->tape, tsh_mul(b->tape, b->x, b->x), TSH_ALL_DIMS);
}

static void check_grad(tshi_rank *r, const tsh_tensor *x, const char *when, double a, double b, double c) {
    const tsh_tensor *grad = tsh_tensor_grad(x);
    if (!tshi_check(r, grad != NULL, "%s: no gradient", when)) return;
    const double *g = tsh_tensor_data(grad);
    tshi_check(r, g[0] == a && g[1] == b && g[2] == c, "%s: the gradient is %g %g %g", when, g[0], g[1], g[2]);
}

static void failed_with(tshi_rank *r, bench *b, tsh_status status, const char *words) {
    tshi_check(r, tsh_tape_status(b->tape) == status, "%s: %s", tsh_status_name(tsh_tape_status(b->tape)),
               tsh_tape_message(b->tape));
    tshi_check(r, strstr(tsh_tape_message(b->tape), words), "\"%s\" is not in \"%s\"", words,
               tsh_tape_message(b->tape));
    tshi_check_ok(r, tsh_tape_reset(b->tape));
    tshi_check(r, tsh_tape_message(b->tape)[0] == '\0', "a message after the reset");
}

/* --- gradients ---------------------------------------------------------------------------------------------------- */

static void accumulates(tshi_rank *r, void *arg) {
    (void)arg;
    bench b = set_up(r);
    tshi_check(r, tsh_tensor_grad(b.x) == NULL, "a gradient before any backward");
    for (int pass = 1; pass <= 3; pass++) {
        tshi_check_ok(r, tsh_backward(b.tape, square_sum(&b)));
        tshi_check_ok(r, tsh_tape_reset(b.tape));
        check_grad(r, b.x, "sum", 2 * pass, 4 * pass, 6 * pass);
    }
    tsh_tensor_zero_grad(b.x);
    tshi_check(r, tsh_tensor_grad(b.x) == NULL, "a gradient after zero_grad");
    tshi_check_ok(r, tsh_backward(b.tape, square_sum(&b)));
    check_grad(r, b.x, "a second time", 2, 4, 6);
    /* Two losses of one step, of which the first shares nothing with the second but the leaf. */
    tshi_check_ok(r, tsh_backward(b.tape, tsh_sum(b.tape, b.x, TSH_ALL_DIMS)));
    check_grad(r, b.x, "two losses", 3, 5, 7);
    tear_down(r, &b);
}

Test(tape, gradients_accumulate, .timeout = 120) {
    cr_assert_str_empty(tshi_test_run(1, accumulates, NULL));
    cr_assert_str_empty(tshi_test_run(2, accumulates, NULL));
}

/* A gradient that two tensors take over unchanged is one memory; neither may write to it for the other. */
static void shared_gradients(tshi_rank *r, void *arg) {
    (void)arg;
    bench b = set_up(r);
    tsh_tensor *y = tsh_scale(b.tape, b.x, 2), *z = tsh_scale(b.tape, b.x, 3);
    tsh_tensor *s = tsh_add(b.tape, y, z), *t = tsh_add(b.tape, tsh_add(b.tape, s, y), y);
    tshi_check_ok(r, tsh_tensor_retain_grad(y));
    tshi_check_ok(r, tsh_tensor_retain_grad(z));
    tsh_tensor_retain(y);
    tsh_tensor_retain(z);
    tshi_check_ok(r, tsh_backward(b.tape, tsh_sum(b.tape, t, TSH_ALL_DIMS)));
    check_grad(r, y, "y", 3, 3, 3);
    check_grad(r, z, "z", 1, 1, 1);
    check_grad(r, b.x, "x", 9, 9, 9);
    tsh_tensor_release(y);
    tsh_tensor_release(z);
    tear_down(r, &b);
}

Test(tape, shared_gradients_are_not_written, .timeout = 120) {
    cr_assert_str_empty(tshi_test_run(1, shared_gradients, NULL));
}

/* A retained gradient adds up over the backwards of a step, as a leaf's does, and is no part of the next backward. */
static void retained_twice(tshi_rank *r, void *arg) {
    (void)arg;
    bench b = set_up(r);
    tsh_tensor *h = tsh_scale(b.tape, b.x, 2), *loss = tsh_sum(b.tape, h, TSH_ALL_DIMS);
    tsh_tensor *other = tsh_sum(b.tape, tsh_scale(b.tape, b.x, 3), TSH_ALL_DIMS);
    tsh_backward_config keep = {.retain_graph = true};
    tshi_check_ok(r, tsh_tensor_retain_grad(h));
    tshi_check_ok(r, tsh_tensor_retain_grad(loss));
    tshi_check_ok(r, tsh_backward_with(b.tape, loss, &keep));
    check_grad(r, b.x, "once", 2, 2, 2);
    check_grad(r, h, "the intermediate, once", 1, 1, 1);
    const tsh_tensor *first = tsh_tensor_grad(h);
    tshi_check_ok(r, tsh_backward_with(b.tape, loss, &keep));
    check_grad(r, b.x, "twice", 4, 4, 4);
    check_grad(r, h, "the intermediate, twice", 2, 2, 2);
    tshi_check(r, tsh_tensor_grad(h) == first, "the gradient is another tensor after the second backward");
    tshi_check(r, tsh_tensor_item(tsh_tensor_grad(loss)) == 2, "the loss has a gradient of 1 from each backward");
    tshi_check_ok(r, tsh_backward_with(b.tape, other, &keep));
    check_grad(r, b.x, "and an objective without it", 7, 7, 7);
    check_grad(r, h, "the intermediate, not used", 2, 2, 2);
    tsh_tensor_zero_grad(h);
    tshi_check(r, tsh_tensor_grad(h) == NULL, "a gradient after zero_grad");
    tshi_check_ok(r, tsh_backward(b.tape, loss));
    check_grad(r, h, "the intermediate, a second time", 1, 1, 1);
    tsh_tensor_retain(h);
    tshi_check_ok(r, tsh_tape_reset(b.tape));
    check_grad(r, h, "the intermediate, after its step", 1, 1, 1);
    tsh_tensor_release(h);
    tear_down(r, &b);
}

Test(tape, retained_gradients_do_not_leak_into_the_next_backward, .timeout = 120) {
    cr_assert_str_empty(tshi_test_run(1, retained_twice, NULL));
    cr_assert_str_empty(tshi_test_run(2, retained_twice, NULL));
}

/* Global shapes and layouts decide, on every rank, even where a rank's part has the right number of elements. */
static void refused_alike(tshi_rank *r, void *arg) {
    (void)arg;
    bench b = set_up(r);
    const tsh_group *group = tsh_world_group(r->world);
    tsh_tensor *part = tsh_scatter(b.tape, tsh_slice(b.tape, b.x, 0, 0, 2), group, 0);
    tshi_check(r, tsh_tensor_local_numel(part) == (r->rank < 2), "two elements over three ranks");
    tshi_check_status(r, tsh_backward(b.tape, part), TSH_ERR_SHAPE, "one element is wanted");
    failed_with(r, &b, TSH_ERR_SHAPE, "one element is wanted");
    part = tsh_scatter(b.tape, tsh_slice(b.tape, b.x, 0, 0, 1), group, 0);
    tshi_check_ok(r, tsh_backward(b.tape, part));
    check_grad(r, b.x, "one element on the first rank", 1, 0, 0);
    part = tsh_scatter(b.tape, b.x, group, 0);
    tsh_tensor *one = NULL;
    tsh_tensor_config config = {.dtype = TSH_FLOAT64, .ndim = 1, .shape = {1}};
    tshi_check_ok(r, tsh_tensor_create(tsh_world_mesh(r->world), &config, &one));
    tsh_backward_config with = {.gradient = one};
    tshi_check_status(r, tsh_backward_with(b.tape, part, &with), TSH_ERR_SHAPE, "layouts wanted");
    tshi_check_ok(r, tsh_tape_reset(b.tape));
    tsh_tensor_release(one);
    tear_down(r, &b);
}

Test(tape, a_bad_loss_is_refused_on_every_rank, .timeout = 120) {
    cr_assert_str_empty(tshi_test_run(3, refused_alike, NULL));
}

static void upstream(tshi_rank *r, void *arg) {
    (void)arg;
    bench b = set_up(r);
    tsh_tensor *dy = NULL, *wrong = NULL;
    tshi_check_ok(r, tsh_tensor_clone(b.x, &dy));
    tsh_tensor_config config = {.dtype = TSH_FLOAT64, .ndim = 1, .shape = {4}};
    tshi_check_ok(r, tsh_tensor_create(tsh_world_mesh(r->world), &config, &wrong));
    tsh_backward_config with = {.gradient = dy};
    tshi_check_ok(r, tsh_backward_with(b.tape, tsh_mul(b.tape, b.x, b.x), &with));
    check_grad(r, b.x, "2 x dy", 2, 8, 18);
    tsh_tensor *y = tsh_mul(b.tape, b.x, b.x);
    tshi_check_status(r, tsh_backward(b.tape, y), TSH_ERR_SHAPE, "one element is wanted");
    failed_with(r, &b, TSH_ERR_SHAPE, "backward");
    with.gradient = wrong;
    tshi_check_status(r, tsh_backward_with(b.tape, tsh_mul(b.tape, b.x, b.x), &with), TSH_ERR_SHAPE, "[4]");
    failed_with(r, &b, TSH_ERR_SHAPE, "[4]");
    tsh_tensor_release(dy);
    tsh_tensor_release(wrong);
    tear_down(r, &b);
}

Test(tape, upstream_gradient, .timeout = 120) {
    cr_assert_str_empty(tshi_test_run(1, upstream, NULL));
}

/* --- what is kept and what is freed ------------------------------------------------------------------------------- */

static void memory(tshi_rank *r, void *arg) {
    (void)arg;
    bench b = set_up(r);
    tsh_tensor *y = tsh_mul(b.tape, b.x, b.x), *kept = tsh_tensor_retain(tsh_scale(b.tape, y, 2));
    tsh_tensor *loss = tsh_sum(b.tape, kept, TSH_ALL_DIMS);
    tshi_check_ok(r, tsh_backward(b.tape, loss));
    tshi_check(r, tsh_tensor_item(loss) == 28, "the loss is %g", tsh_tensor_item(loss));
    tshi_check(r, tsh_tensor_data(y) == NULL, "backward kept a tensor that was not retained");
    tshi_check(r, tsh_tensor_data(kept) && ((double *)tsh_tensor_data(kept))[2] == 18,
               "backward freed what was retained");
    tshi_check(r, tsh_scale(b.tape, y, 1) == NULL, "freed memory was read");
    failed_with(r, &b, TSH_ERR_STATE, "tsh_tensor_retain");
    /* Afterwards it is a leaf like any other. */
    tsh_tensor_zero_grad(kept);
    tshi_check_ok(r, tsh_backward(b.tape, tsh_sum(b.tape, kept, TSH_ALL_DIMS)));
    check_grad(r, kept, "retained", 1, 1, 1);
    check_grad(r, b.x, "the way back ends at the retained one", 4, 8, 12);
    tsh_tensor_release(kept);
    tear_down(r, &b);
}

Test(tape, backward_frees_what_is_not_retained, .timeout = 120) {
    cr_assert_str_empty(tshi_test_run(1, memory, NULL));
}

static void twice(tshi_rank *r, void *arg) {
    (void)arg;
    bench b = set_up(r);
    tsh_backward_config keep = {.retain_graph = true};
    tsh_tensor *y = tsh_mul(b.tape, b.x, b.x), *loss = tsh_sum(b.tape, y, TSH_ALL_DIMS);
    tsh_tensor *other = tsh_sum(b.tape, tsh_scale(b.tape, y, 2), TSH_ALL_DIMS);
    tshi_check_ok(r, tsh_backward_with(b.tape, loss, &keep));
    tshi_check_ok(r, tsh_backward_with(b.tape, loss, &keep));
    check_grad(r, b.x, "twice", 4, 8, 12);
    tshi_check_ok(r, tsh_backward(b.tape, loss));
    check_grad(r, b.x, "three times", 6, 12, 18);
    tshi_check_status(r, tsh_backward(b.tape, loss), TSH_ERR_STATE, "a second time");
    failed_with(r, &b, TSH_ERR_STATE, "retain_graph");
    y = tsh_mul(b.tape, b.x, b.x);
    loss = tsh_sum(b.tape, y, TSH_ALL_DIMS);
    other = tsh_sum(b.tape, tsh_scale(b.tape, y, 2), TSH_ALL_DIMS);
    tshi_check_ok(r, tsh_backward(b.tape, loss));
    tshi_check_status(r, tsh_backward(b.tape, other), TSH_ERR_STATE, "an earlier backward has freed");
    failed_with(r, &b, TSH_ERR_STATE, "backward");
    tear_down(r, &b);
}

Test(tape, a_second_backward_wants_the_step_kept, .timeout = 120) {
    cr_assert_str_empty(tshi_test_run(1, twice, NULL));
}

static void no_recording(tshi_rank *r, void *arg) {
    (void)arg;
    bench b = set_up(r);
    tshi_check(r, tsh_tape_set_recording(b.tape, false), "a new tape records");
    tsh_tensor *loss = square_sum(&b);
    tshi_check(r, loss && tsh_tensor_item(loss) == 14, "%s", tsh_tape_message(b.tape));
    tshi_check(r, tsh_dropout(b.tape, b.x, 0.5) == b.x, "dropout while not recording");
    tshi_check(r, !tsh_tape_set_recording(b.tape, true), "it was off");
    tshi_check_status(r, tsh_backward(b.tape, loss), TSH_ERR_STATE, "requires a gradient");
    failed_with(r, &b, TSH_ERR_STATE, "requires a gradient");
    tshi_check_status(r, tsh_backward(b.tape, NULL), TSH_ERR_STATE, "NULL");
    failed_with(r, &b, TSH_ERR_STATE, "NULL");
    tear_down(r, &b);
}

Test(tape, recording_can_be_off, .timeout = 120) {
    cr_assert_str_empty(tshi_test_run(1, no_recording, NULL));
}

/* --- failures ----------------------------------------------------------------------------------------------------- */

/* What a transition made without recording is not taken for one that leads to a gradient. */
static void transition_without_recording(tshi_rank *r, void *arg) {
    (void)arg;
    bench b = set_up(r);
    const tsh_group *group = tsh_world_group(r->world);
    tsh_tape_set_recording(b.tape, false);
    tshi_check(r, tsh_copy(b.tape, b.x, group) != NULL, "%s", tsh_tape_message(b.tape));
    tsh_tape_set_recording(b.tape, true);
    tsh_tensor *recorded = tsh_copy(b.tape, b.x, group);
    tsh_tape_set_recording(b.tape, false);
    tshi_check(r, tsh_copy(b.tape, b.x, group) != recorded, "a recorded transition stands for one that is not");
    tsh_tape_set_recording(b.tape, true);
    tsh_tensor *loss = tsh_sum(b.tape, tsh_copy(b.tape, b.x, group), TSH_ALL_DIMS);
    tshi_check(r, tsh_backward(b.tape, loss) == TSH_OK, "%s", tsh_tape_message(b.tape));
    check_grad(r, b.x, "a sum over ranks", r->size, r->size, r->size);
    tear_down(r, &b);
}

Test(tape, evaluation_within_a_step_leaves_gradients_alone, .timeout = 120) {
    cr_assert_str_empty(tshi_test_run(2, transition_without_recording, NULL));
}

static void first_failure_stays(tshi_rank *r, void *arg) {
    (void)arg;
    bench b = set_up(r);
    tsh_tensor *bad = tsh_matmul(b.tape, b.x, b.x);
    tsh_tensor *then = tsh_gelu(b.tape, tsh_add(b.tape, bad, tsh_slice(b.tape, b.x, 5, 0, 1)));
    tshi_check(r, !bad && !then, "something came of it");
    tshi_check_status(r, tsh_backward(b.tape, then), TSH_ERR_SHAPE, "");
    tshi_check(r, strncmp(tsh_tape_message(b.tape), "rank ", 5) == 0, "%s", tsh_tape_message(b.tape));
    failed_with(r, &b, TSH_ERR_SHAPE, "matmul: float64 [3]");
    tshi_check(r, tsh_add(b.tape, b.x, NULL) == NULL, "NULL");
    failed_with(r, &b, TSH_ERR_ARGUMENT, "add: input 1 is NULL");
    tshi_check(r, tsh_gelu(NULL, b.x) == NULL, "no tape");
    tshi_check_ok(r, tsh_backward(b.tape, square_sum(&b)));
    check_grad(r, b.x, "after failures", 2, 4, 6);
    tear_down(r, &b);
}

Test(tape, the_first_failure_stays_until_the_reset, .timeout = 120) {
    cr_assert_str_empty(tshi_test_run(1, first_failure_stays, NULL));
    cr_assert_str_empty(tshi_test_run(3, first_failure_stays, NULL));
}

static void two_tapes(tshi_rank *r, void *arg) {
    (void)arg;
    bench b = set_up(r);
    tsh_tape *other = NULL;
    tshi_check_ok(r, tsh_tape_create(r->world, &other));
    tsh_tensor *y = tsh_scale(b.tape, b.x, 2);
    tshi_check(r, tsh_scale(other, y, 2) == NULL, "a step of another tape was taken up");
    tshi_check(r, strstr(tsh_tape_message(other), "another tape"), "%s", tsh_tape_message(other));
    tshi_check_ok(r, tsh_tape_reset(other));
    /* Several functions may use one leaf, each through a transition. */
    tsh_group *group = tsh_world_group(r->world);
    tsh_tensor *first = tsh_copy(b.tape, b.x, group), *second = tsh_copy(other, b.x, group);
    tsh_tensor *loss = tsh_sum(b.tape, tsh_mul(b.tape, first, tsh_copy(b.tape, b.x, group)), TSH_ALL_DIMS);
    tshi_check_ok(r, tsh_backward(other, tsh_sum(other, second, TSH_ALL_DIMS)));
    tshi_check_ok(r, tsh_backward(b.tape, loss));
    check_grad(r, b.x, "of both", 3.0 * r->size, 5.0 * r->size, 7.0 * r->size);
    tsh_tape_destroy(other);
    tear_down(r, &b);
}

Test(tape, two_tapes_of_one_world, .timeout = 120) {
    cr_assert_str_empty(tshi_test_run(1, two_tapes, NULL));
    cr_assert_str_empty(tshi_test_run(2, two_tapes, NULL));
}

/* --- the gradient check itself can fail --------------------------------------------------------------------------- */

/* Its backward adds nothing to what the value depends on: the input is read around the tape. */
static tsh_tensor *cheat(tsh_tape *tape, tsh_tensor *const *inputs, void *user) {
    (void)user;
    double value = ((double *)tsh_tensor_data(inputs[0]))[0];
    return tsh_sum(tape, tsh_scale(tape, inputs[0], value), TSH_ALL_DIMS);
}

static tsh_tensor *vector_objective(tsh_tape *tape, tsh_tensor *const *inputs, void *user) {
    (void)user;
    return tsh_scale(tape, inputs[0], 2);
}

static void gradient_check(tshi_rank *r, void *arg) {
    (void)arg;
    bench b = set_up(r);
    double worst = 0;
    tshi_check_ok(r, tsh_gradient_check(b.tape, cheat, &b.x, 1, 0, NULL, &worst));
    tshi_check(r, fabs(worst - 6.0 / 7) < 1e-6, "worst is %g", worst); /* d/dx0 of x0 (x0 + x1 + x2) is 7, not 1 */
    tshi_check_status(r, tsh_gradient_check(b.tape, vector_objective, &b.x, 1, 0, NULL, &worst), TSH_ERR_SHAPE,
                      "one element");
    tshi_check(r, isnan(worst), "worst after a failure is %g", worst);
    tshi_check_status(r, tsh_gradient_check(b.tape, cheat, &b.x, 0, 0, NULL, &worst), TSH_ERR_ARGUMENT, "inputs");
    tear_down(r, &b);
}

Test(tape, gradient_check_finds_a_wrong_gradient, .timeout = 120) {
    cr_assert_str_empty(tshi_test_run(1, gradient_check, NULL));
    cr_assert_str_empty(tshi_test_run(2, gradient_check, NULL));
}
