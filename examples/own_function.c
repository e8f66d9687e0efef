/* A function of a program's own: rows scaled to length 1, y = x / sqrt(sum of x^2 + eps), where ranks may hold parts of a
 * row. Its gradients are checked under each way to split x: tshard-run -n 4 own_function */
#include "tshard/tshard.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* --- the function ------------------------------------------------------------------------------------------------- */

/* Along an axis of the mesh x is whole, split before its last dim, split along that, or each rank's own. So is y. */
static const tsh_rule unit_rules[] = {{{TSH_AS_R}, TSH_AS_R},
                                      {{TSH_AS_BATCH}, TSH_AS_BATCH},
                                      {{TSH_AS_LAST}, TSH_AS_LAST},
                                      {{TSH_AS_L}, TSH_AS_L},
                                      {{TSH_ROW_END}, TSH_ROW_END}};

static tsh_status unit_shape(const tsh_call *call, tsh_dtype *dtype, tsh_shape *out) {
    const tsh_tensor *x = tsh_call_input(call, 0);
    if (tsh_tensor_ndim(x) != 2) return tsh_call_fail(call, TSH_ERR_SHAPE, "x [rows, cols] is wanted");
    *dtype = tsh_tensor_dtype(x);
    out->ndim = 2;
    memcpy(out->global, tsh_tensor_shape(x), 2 * sizeof *out->global);
    return TSH_OK;
}

/* sums[i] = sum of a b over row i, of which other ranks may hold parts. */
static tsh_status row_sums(tsh_call *call, const tsh_tensor *a, const tsh_tensor *b, tsh_tensor *sums) {
    const int64_t *n = tsh_tensor_local_shape(a);
    const double *u = tsh_tensor_data(a), *v = tsh_tensor_data(b);
    double *sum = tsh_tensor_data(sums), elements = (double)(n[0] * n[1]);
    if (tsh_call_computes(call, 2 * elements, 16 * elements)) {
        for (int64_t i = 0; i < n[0]; i++) {
            sum[i] = 0;
            for (int64_t j = 0; j < n[1]; j++) sum[i] += u[i * n[1] + j] * v[i * n[1] + j];
        }
    }
    return tsh_call_reduce(call, a, 1, sums, TSH_SUM);
}

static tsh_status unit_forward(tsh_call *call) {
    const tsh_tensor *x = tsh_call_input(call, 0);
    const int64_t *n = tsh_tensor_local_shape(x);
    double *out = tsh_tensor_data(tsh_call_output(call)), elements = (double)(n[0] * n[1]);
    const double *in = tsh_tensor_data(x), *eps = tsh_call_params(call);
    tsh_tensor *sums = tsh_call_save(call, 0, TSH_FLOAT64, n[0]); /* for backward */
    tsh_status status = sums ? row_sums(call, x, x, sums) : TSH_ERR_MEMORY;
    if (status != TSH_OK || !tsh_call_computes(call, elements, 16 * elements)) return status;
    double *length = tsh_tensor_data(sums);
    for (int64_t i = 0; i < n[0]; i++) {
        length[i] = sqrt(length[i] + *eps);
        for (int64_t j = 0; j < n[1]; j++) out[i * n[1] + j] = in[i * n[1] + j] / length[i];
    }
    return TSH_OK;
}

/* dx += (dy - y (y . dy)) / length */
static tsh_status unit_backward(tsh_call *call) {
    const tsh_tensor *y = tsh_call_output(call), *dy = tsh_call_grad_out(call), *lengths = tsh_call_saved(call, 0);
    const int64_t *n = tsh_tensor_local_shape(y);
    double elements = (double)(n[0] * n[1]);
    tsh_tensor *dots = tsh_call_scratch(call, TSH_FLOAT64, n[0]), *dx = tsh_call_grad(call, 0);
    if (!lengths || !dots || !dx) return TSH_ERR_STATE;
    tsh_status status = row_sums(call, y, dy, dots);
    if (status != TSH_OK || !tsh_call_computes(call, 4 * elements, 32 * elements)) return status;
    const double *out = tsh_tensor_data(y), *dout = tsh_tensor_data(dy), *dot = tsh_tensor_data(dots);
    const double *length = tsh_tensor_data(lengths);
    double *din = tsh_tensor_data(dx);
    for (int64_t i = 0; i < n[0]; i++) {
        for (int64_t k = i * n[1]; k < (i + 1) * n[1]; k++) din[k] += (dout[k] - out[k] * dot[i]) / length[i];
    }
    return TSH_OK;
}

static const tsh_op unit_op = {.name = "unit_rows",
                               .rules = unit_rules,
                               .shape = unit_shape,
                               .forward = unit_forward,
                               .backward = unit_backward,
                               .params_size = sizeof(double), /* eps */
                               .reads_output = true,
                               .reads_no_input = true,
                               .inputs = 1,
                               .dtypes = 1u << TSH_FLOAT64};

static tsh_tensor *unit_rows(tsh_tape *tape, tsh_tensor *x, double eps) {
    return tsh_apply(tape, &unit_op, 1, &x, &eps);
}

/* --- the check ---------------------------------------------------------------------------------------------------- */

/* The sum of c y, with c different for each element. */
static tsh_tensor *objective(tsh_tape *tape, tsh_tensor *const *inputs, void *c) {
    return tsh_sum(tape, tsh_mul(tape, unit_rows(tape, inputs[0], 1e-3), c), TSH_ALL_DIMS);
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
    if (status == TSH_OK) status = tsh_tensor_require_grad(x);
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
