/* NaNs and infinities are found and named: by calls, on the rank that has them, and by TSHARD_CHECK=nan. */
#include "support/tensors.h"
#include "tshard/layers.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

TestSuite(finite, .timeout = 120);

static tsh_tensor *make(tshi_rank *r, const double *values) {
    const tsh_tensor_config config = {TSH_FLOAT64, 1, {4}, {TSH_SHARD(0)}};
    return tshi_test_leaf(r, tsh_world_mesh(r->world), &config, values);
}

/* Fails with these words on the rank that holds the first element, and there only. */
static void expect(tshi_rank *r, tsh_status status, const char *words) {
    tsh_status wanted = words && r->rank == 0 ? TSH_ERR_RANGE : TSH_OK;
    tshi_check(r, status == wanted, "%s, not %s", tsh_status_name(status), tsh_status_name(wanted));
    if (wanted != TSH_OK) tshi_check(r, strstr(tsh_error_message(), words), "\"%s\"", tsh_error_message());
}

static void names(tshi_rank *r, void *arg) {
    (void)arg;
    tsh_tape *tape = NULL;
    tsh_parameters *list = NULL;
    tsh_tensor *x = make(r, (double[]){0, 1, 1e200, -1e-300}), *y = make(r, (double[]){(double)INFINITY, 1, 2, 3});
    tshi_check_ok(r, tsh_tape_create(r->world, &tape));
    tshi_check_ok(r, tsh_parameters_create(r->world, &list));
    tshi_check_ok(r, tsh_parameters_add(list, "layer.x", x));
    expect(r, tsh_tape_check_finite(tape), NULL);
    tsh_tensor *z = tsh_scale(tape, x, 2); /* whose squares overflow */
    expect(r, tsh_tape_check_finite(tape), NULL);
    tsh_tensor *reciprocals = tsh_pow(tape, tsh_abs(tape, z), -1);
    tsh_add(tape, reciprocals, y);
    expect(r, tsh_tape_check_finite(tape), "check_finite: the result of pow, float64 [");
    tshi_check_ok(r, tsh_tape_reset(tape));
    tsh_pow(tape, x, -1);
    expect(r, tsh_tape_check_finite(tape), "check_finite: the result of pow with layer.x, float64 [");
    tshi_check_ok(r, tsh_tape_reset(tape));
    tsh_add(tape, x, y);
    expect(r, tsh_tape_check_finite(tape), "check_finite: input 1 of add, layer.x, float64 [");
    tshi_check_ok(r, tsh_tape_reset(tape));
    expect(r, tsh_parameters_check_finite(list), NULL);
    tsh_backward(tape, tsh_sum(tape, tsh_mul(tape, x, y), TSH_ALL_DIMS));
    expect(r, tsh_parameters_check_finite(list), "the gradient of 'layer.x', float64 [");
    tsh_parameters_zero_grad(list);
    tshi_check_ok(r, tsh_parameters_add(list, "y", y));
    expect(r, tsh_parameters_check_finite(list), "the parameter 'y', float64 [");
    tshi_check(r, tsh_parameters_find(list, "y") == y && !tsh_parameters_find(list, "layer"), "find");
    tsh_parameters_destroy(list);
    tsh_tape_destroy(tape);
    tsh_tensor_release(x);
    tsh_tensor_release(y);
}

Test(finite, the_first_function_and_parameter_are_named) {
    for (int ranks = 1; ranks <= 6; ranks += 2) cr_assert_str_empty(tshi_test_run(ranks, names, NULL));
}

/* A failure on rank 0 ends the step on all ranks: the others learn of it when they gather x. */
static void expect_failure(tshi_rank *r, tsh_tape *tape, tsh_tensor *x, const char *words) {
    if (r->rank > 0) tsh_full(tape, x);
    tsh_status status = tsh_tape_status(tape), wanted = r->rank == 0 ? TSH_ERR_RANGE : TSH_ERR_PEER;
    tshi_check(r, status == wanted, "%s", tsh_status_name(status));
    tshi_check(r, strstr(tsh_tape_message(tape), words), "\"%s\"", tsh_tape_message(tape));
    tshi_check_ok(r, tsh_tape_reset(tape));
}

static void fails(tshi_rank *r, void *arg) {
    (void)arg;
    tsh_tape *tape = NULL;
    tsh_parameters *list = NULL;
    tsh_tensor *x = make(r, (double[]){0, 1, 2, 3}), *y = make(r, (double[]){-1, 1, 2, 3});
    tshi_check_ok(r, tsh_tape_create(r->world, &tape));
    tshi_check_ok(r, tsh_parameters_create(r->world, &list));
    tshi_check_ok(r, tsh_parameters_add(list, "layer.y", y));
    tshi_check(r, tsh_log(tape, x) != NULL, "an infinity failed: %s", tsh_tape_message(tape));
    tshi_check_ok(r, tsh_tape_reset(tape));
    tsh_log(tape, y);
    expect_failure(r, tape, x, "log: the result, float64 [");
    tsh_log(tape, y);
    expect_failure(r, tape, x, "the parameter used last is layer.y");
    tsh_backward(tape, tsh_sum(tape, tsh_scale(tape, tsh_sqrt(tape, x), 0), TSH_ALL_DIMS));
    expect_failure(r, tape, x, "backward of sqrt: a gradient of an input, float64 [");
    tsh_parameters_destroy(list);
    tsh_tape_destroy(tape);
    tsh_tensor_release(x);
    tsh_tensor_release(y);
}

Test(finite, a_nan_fails_with_a_check) {
    setenv("TSHARD_CHECK", "nan", 1);
    for (int ranks = 1; ranks <= 3; ranks++) cr_assert_str_empty(tshi_test_run(ranks, fails, NULL));
}
