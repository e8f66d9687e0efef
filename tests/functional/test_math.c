/* exp, log, tanh, sqrt, sigmoid, pow and clamp against PyTorch in float64 (tests/data/functions): values, gradients,
 * limits, infinities and NaNs, with the elements in uneven shards. */
#include "support/tensors.h"
#include "support/vectors.h"
#include "tshard/functional.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

TestSuite(math, .timeout = 120);

static tsh_tensor *apply(tsh_tape *tape, const char *name, tsh_tensor *x, const double *p) {
    if (strncmp(name, "exp", 3) == 0) return tsh_exp(tape, x);
    if (strncmp(name, "log", 3) == 0) return tsh_log(tape, x);
    if (strncmp(name, "tanh", 4) == 0) return tsh_tanh(tape, x);
    if (strncmp(name, "sqrt", 4) == 0) return tsh_sqrt(tape, x);
    if (strncmp(name, "sigmoid", 7) == 0) return tsh_sigmoid(tape, x);
    if (strncmp(name, "pow", 3) == 0) return tsh_pow(tape, x, p[0]);
    return strncmp(name, "clamp", 5) == 0 ? tsh_clamp(tape, x, p[0], p[1]) : NULL;
}

static const tshi_vector *find(tshi_rank *r, const tshi_vectors *v, const char *name, const char *of) {
    char full[TSHI_VECTOR_NAME + 4];
    snprintf(full, sizeof full, "%s%s", name, of);
    const tshi_vector *found = tshi_vectors_find(v, full);
    tshi_check(r, found, "there is no %s", full);
    return found;
}

static void check_function(tshi_rank *r, tsh_tape *tape, const tshi_vectors *v, const char *name) {
    const tshi_vector *x = find(r, v, "x", ""), *dy = find(r, v, "dy", "");
    const tshi_vector *y = find(r, v, name, ".y"), *dx = find(r, v, name, ".dx");
    char parameters[TSHI_VECTOR_NAME + 2];
    snprintf(parameters, sizeof parameters, "%s.p", name);
    const tshi_vector *p = tshi_vectors_find(v, parameters);
    if (r->failed) return;
    tsh_tensor_config config = {TSH_FLOAT64, 1, {x->count}, {TSH_SHARD(0)}};
    tsh_tensor *in = tshi_test_leaf(r, tsh_world_mesh(r->world), &config, x->values);
    tsh_tensor *upstream = tshi_test_tensor(r, tsh_world_mesh(r->world), &config, dy->values);
    tsh_tensor *out = apply(tape, name, in, p ? p->values : NULL);
    tshi_test_same(r, name, out, y->values, 1e-14);
    tshi_check_ok(r, tsh_backward_with(tape, out, &(tsh_backward_config){.gradient = upstream}));
    tshi_test_same_grad(r, name, in, dx->values, 1e-14);
    tsh_tape_reset(tape);
    tsh_tensor_release(upstream);
    tsh_tensor_release(in);
}

static void as_pytorch(tshi_rank *r, void *arg) {
    (void)arg;
    char error[200], name[TSHI_VECTOR_NAME];
    tshi_vectors v;
    tsh_tape *tape = NULL;
    int functions = 0;
    if (!tshi_check(r, tshi_vectors_read(TSHARD_TEST_DATA "/functions/math.txt", &v, error, sizeof error), "%s", error))
        return;
    tshi_check_ok(r, tsh_tape_create(r->world, &tape));
    for (int i = 0; i < v.count && !r->failed; i++) {
        size_t end = strlen(v.items[i].name);
        if (end < 2 || strcmp(v.items[i].name + end - 2, ".y") != 0) continue;
        snprintf(name, sizeof name, "%.*s", (int)end - 2, v.items[i].name);
        check_function(r, tape, &v, name);
        functions++;
    }
    tshi_check(r, functions == 20, "%d functions in the file", functions);
    tsh_tape_destroy(tape);
    tshi_vectors_free(&v);
}

Test(math, values_gradients_and_limits_are_pytorchs) {
    for (int ranks = 1; ranks <= 4; ranks++) cr_assert_str_empty(tshi_test_run(ranks, as_pytorch, NULL));
}

/* Parameters that are no numbers are refused in words. */
static void refused(tshi_rank *r, void *arg) {
    (void)arg;
    tsh_tape *tape = NULL;
    tsh_tensor_config config = {TSH_FLOAT64, 1, {3}, {TSH_REPLICATED}};
    tsh_tensor *x = tshi_test_tensor(r, tsh_world_mesh(r->world), &config, (double[]){1, 2, 3});
    tshi_check_ok(r, tsh_tape_create(r->world, &tape));
    tshi_check(r, !tsh_pow(tape, x, (double)NAN), "an exponent of NaN was taken");
    tshi_check(r, strstr(tsh_tape_message(tape), "pow: a parameter is not a number"), "%s", tsh_tape_message(tape));
    tsh_tape_reset(tape);
    tshi_check(r, !tsh_clamp(tape, x, 0, (double)NAN), "a bound of NaN was taken");
    tshi_check(r, strstr(tsh_tape_message(tape), "clamp: a parameter is not a number"), "%s", tsh_tape_message(tape));
    tsh_tape_destroy(tape);
    tsh_tensor_release(x);
}

Test(math, parameters_that_are_not_numbers_are_refused) {
    cr_assert_str_empty(tshi_test_run(1, refused, NULL));
}
