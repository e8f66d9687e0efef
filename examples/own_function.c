/* A function of a program's own: rows scaled to length 1, y = x / sqrt(sum of x^2 + eps), where rows may be split over
 * ranks. Its gradients are checked for each way to split x: tshard-run -n 4 own_function */
#include "tshard/tshard.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* --- the function ------------------------------------------------------------------------------------------------- */

/* Along an axis of the mesh x is whole, split along a dim before the last, or split along the last dim; y has its
 * layout. */
static const tsh_rule unit_rules[] = {
    {{TSH_AS_R}, TSH_AS_R}, {{TSH_AS_BATCH}, TSH_AS_BATCH}, {{TSH_AS_LAST}, TSH_AS_LAST}, {{TSH_ROW_END}, TSH_ROW_END}};

/* sums[i] = sum of a b over row i, which may be split over ranks. */
static tsh_status row_sums(tsh_call *call, const tsh_tensor *a, const tsh_tensor *b, tsh_tensor *sums) {
    const int64_t *n = tsh_tensor_local_shape(a);
    const double *u = tsh_tensor_data(a), *v = tsh_tensor_data(b);
    double *sum = tsh_tensor_data(sums);
    memset(sum, 0, (size_t)n[0] * sizeof *sum);
    for (int64_t k = 0; k < n[0] * n[1]; k++) sum[k / n[1]] += u[k] * v[k];
    return tsh_call_reduce(call, a, 1, sums, TSH_REDUCE_SUM);
}

static tsh_status unit_forward(tsh_call *call) {
    const tsh_tensor *x = tsh_call_input(call, 0);
    const int64_t *n = tsh_tensor_local_shape(x);
    tsh_tensor *sums = tsh_call_save(call, 0, TSH_FLOAT64, n[0]); /* for backward */
    tsh_status status = sums ? row_sums(call, x, x, sums) : TSH_ERR_MEMORY;
    if (status != TSH_OK) return status;
    const double *in = tsh_tensor_data(x), *sum = tsh_tensor_data(sums), *eps = tsh_call_params(call);
    double *out = tsh_tensor_data(tsh_call_output(call));
    for (int64_t k = 0; k < n[0] * n[1]; k++) out[k] = in[k] / sqrt(sum[k / n[1]] + *eps);
    return TSH_OK;
}

/* With l = sqrt(sum of x^2 + eps): dx += dy / l - x (x . dy) / l^3. */
static tsh_status unit_backward(tsh_call *call) {
    const tsh_tensor *x = tsh_call_input(call, 0), *dy = tsh_call_grad_out(call), *sums = tsh_call_saved(call, 0);
    tsh_tensor *dots = tsh_call_scratch(call, TSH_FLOAT64, tsh_tensor_local_shape(x)[0]), *dx = tsh_call_grad(call, 0);
    tsh_status status = sums && dots && dx ? row_sums(call, x, dy, dots) : TSH_ERR_MEMORY;
    if (status != TSH_OK) return status;
    const double *in = tsh_tensor_data(x), *dout = tsh_tensor_data(dy), *eps = tsh_call_params(call);
    const double *sum = tsh_tensor_data(sums), *dot = tsh_tensor_data(dots);
    double *din = tsh_tensor_data(dx);
    for (int64_t k = 0, cols = tsh_tensor_local_shape(x)[1]; k < tsh_tensor_local_numel(x); k++) {
        double length = sqrt(sum[k / cols] + *eps);
        din[k] += dout[k] / length - in[k] * dot[k / cols] / (length * length * length);
    }
    return TSH_OK;
}

static const tsh_op unit_op = {"unit_rows",   unit_rules,
                               NULL,          unit_forward,
                               unit_backward, .params_size = sizeof(double),
                               .inputs = 1,   .dtypes = 1u << TSH_FLOAT64};

/* --- the check ---------------------------------------------------------------------------------------------------- */

/* The sum of c y, with c different for each element. */
static tsh_tensor *objective(tsh_tape *tape, tsh_tensor *const *inputs, void *c) {
    const double eps = 1e-3;
    tsh_tensor *y = tsh_apply(tape, &unit_op, 1, inputs, &eps);
    return tsh_sum(tape, tsh_mul(tape, y, c), TSH_ALL_DIMS);
}

static int fail(const char *message) {
    fprintf(stderr, "own_function: %s\n", message);
    return EXIT_FAILURE;
}

static int finish(void) {
    return fflush(stdout) == 0 && !ferror(stdout) ? EXIT_SUCCESS : fail("not all of the output could be written");
}

static tsh_status check(tsh_tape *tape, tsh_layout layout, double *worst) {
    const tsh_mesh *mesh = tsh_world_mesh(tsh_tape_world(tape));
    const tsh_tensor_config config = {.dtype = TSH_FLOAT64, .ndim = 2, .shape = {5, 3}, .layout = {layout}};
    tsh_tensor *x = NULL, *c = NULL;
    tsh_status status = tsh_tensor_create_normal(mesh, &config, 0, 1, &x);
    if (status == TSH_OK) status = tsh_tensor_create_arange(mesh, &config, 1, 0.5, &c);
    if (status == TSH_OK) status = tsh_tensor_require_grad(x, true);
    if (status == TSH_OK) status = tsh_gradient_check(tape, objective, &x, 1, 0, c, worst);
    tsh_tensor_release(c);
    tsh_tensor_release(x);
    return status;
}

int main(int argc, char **argv) {
    static const char usage[] = "usage: [tshard-run -n N] own_function";
    const tsh_layout layouts[] = {TSH_REPLICATED, TSH_SHARD(0), TSH_SHARD(1)};
    tsh_world *world = NULL;
    tsh_tape *tape = NULL;
    if (argc == 2 && strcmp(argv[1], "--help") == 0) return puts(usage) < 0 ? EXIT_FAILURE : finish();
    if (argc > 1) return fail(usage);
    if (tsh_world_init(NULL, &world) != TSH_OK || tsh_tape_create(world, &tape) != TSH_OK)
        return fail(tsh_error_message());
    for (int i = 0; i < 3; i++) {
        double worst = 0;
        if (check(tape, layouts[i], &worst) != TSH_OK) return fail(tsh_error_message());
        if (!(worst < 1e-7)) return fail("gradients differ from central differences");
    }
    if (tsh_world_rank(world) == 0) puts("gradients agree with central differences, whole and split along each dim");
    tsh_tape_destroy(tape);
    tsh_world_destroy(world);
    return finish();
}
