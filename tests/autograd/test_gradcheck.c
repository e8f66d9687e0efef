/* The gradient check finds a wrong backward, and every rank hears of it, whichever rank's gradient is wrong. */
#include "support/ranks.h"
#include "tshard/tshard.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>

TestSuite(gradcheck, .timeout = 120);

enum { N = 3 };

static tsh_status double_forward(tsh_call *call) {
    const double *x = tsh_tensor_data(tsh_call_input(call, 0));
    double *y = tsh_tensor_data(tsh_call_output(call));
    for (int i = 0; i < N; i++) y[i] = 2 * x[i];
    return TSH_OK;
}

/* The last rank adds 3 dy in place of 2 dy. */
static tsh_status double_backward(tsh_call *call) {
    const double *dy = tsh_tensor_data(tsh_call_grad_out(call));
    tsh_tensor *grad = tsh_call_grad(call, 0);
    const tsh_world *world = tsh_mesh_world(tsh_tensor_mesh(tsh_call_input(call, 0)));
    bool wrong = tsh_world_rank(world) == tsh_world_size(world) - 1;
    if (!grad) return TSH_ERR_MEMORY;
    for (int i = 0; i < N; i++) ((double *)tsh_tensor_data(grad))[i] += (wrong ? 3 : 2) * dy[i];
    return TSH_OK;
}

static const tsh_rule double_rules[] = {{{TSH_AS_R}, TSH_AS_R}, {{TSH_AS_L}, TSH_AS_L}, {{TSH_ROW_END}, TSH_ROW_END}};
static const tsh_op double_op = {
    .name = "double", .rules = double_rules, .forward = double_forward, .backward = double_backward, .inputs = 1};

static tsh_tensor *objective(tsh_tape *tape, tsh_tensor *const *inputs, void *user) {
    (void)user;
    return tsh_sum(tape, tsh_apply(tape, &double_op, 1, inputs, NULL), TSH_ALL_DIMS);
}

/* The ranks differ along the last of five axes. */
static void wrong_backward(tshi_rank *r, void *arg) {
    char axes[64];
    tsh_mesh *mesh = NULL;
    tsh_tape *tape = NULL;
    tsh_tensor *x = NULL;
    double worst = 0;
    const tsh_tensor_config config = {
        TSH_FLOAT64, 1, {N}, {TSH_REPLICATED, TSH_REPLICATED, TSH_REPLICATED, TSH_REPLICATED, TSH_LOCAL}};
    (void)arg;
    snprintf(axes, sizeof axes, "a=1,b=1,c=1,d=1,e=%d", r->size);
    tshi_check_ok(r, tsh_mesh_create(r->world, axes, &mesh));
    tshi_check_ok(r, tsh_tape_create(r->world, &tape));
    tshi_check_ok(r, tsh_tensor_create_arange(mesh, &config, 1, 0.5, &x));
    tshi_check_ok(r, tsh_tensor_require_grad(x, true));
    tshi_check_ok(r, tsh_gradient_check(tape, objective, &x, 1, 0, NULL, &worst));
    tshi_check(r, fabs(worst - 0.5) < 1e-6, "the worst error is %g, not 0.5", worst); /* |3 - 2| / 2 */
    tsh_tensor_release(x);
    tsh_tape_destroy(tape);
    tsh_mesh_destroy(mesh);
}

Test(gradcheck, every_rank_gets_the_error_of_the_worst_rank) {
    cr_assert_str_empty(tshi_test_run_each(1, 3, wrong_backward, NULL));
}
