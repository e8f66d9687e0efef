/* Least squares with data parallelism: every rank has its own batch and loss, and gradients are averaged over ranks.
 * The model is y = x w, and training finds w = (2, 3): tshard-run -n 2 data_parallel */
#include "tshard/tshard.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ROWS = 2, FEATURES = 2, STEPS = 500 };

static const float inputs[2][ROWS * FEATURES] = {{1, 2, 2, 3}, {4, 6, 3, 1}};
static const float answers[2][ROWS] = {{8, 13}, {26, 9}};

static int fail(const char *message) {
    fprintf(stderr, "data_parallel: %s\n", message);
    return EXIT_FAILURE; /* the other ranks see it and end too */
}

/* What was printed may not have arrived: a full disk, a pipe without its reader. */
static int finish(void) {
    return fflush(stdout) == 0 && !ferror(stdout) ? EXIT_SUCCESS : fail("not all of the output could be written");
}

int main(int argc, char **argv) {
    static const char usage[] = "usage: [tshard-run -n N] data_parallel";
    if (argc == 2 && strcmp(argv[1], "--help") == 0) return puts(usage) < 0 ? EXIT_FAILURE : finish();
    if (argc > 1) return fail(usage);
    tsh_world *world = NULL;
    if (tsh_world_init(NULL, &world) != TSH_OK) return fail(tsh_error_message());
    tsh_group *data = tsh_world_group(world);
    const tsh_mesh *mesh = tsh_world_mesh(world);
    int rank = tsh_world_rank(world);

    tsh_tensor_config batch = {.ndim = 2, .shape = {ROWS, FEATURES}, .layout = {TSH_LOCAL}}; /* each rank its own */
    tsh_tensor_config column = {.ndim = 2, .shape = {ROWS, 1}, .layout = {TSH_LOCAL}};
    tsh_linear_config config = {.in_features = FEATURES, .out_features = 1, .weight_init = {.kind = TSH_INIT_CONSTANT}};
    tsh_linear *layer = NULL;
    tsh_tensor *x = NULL, *y = NULL;
    tsh_tape *tape = NULL;
    tsh_parameters *parameters = NULL;
    tsh_optimizer *optimizer = NULL;
    tsh_data_parallel *dp = NULL;
    if (tsh_linear_create(data, &config, &layer) != TSH_OK || tsh_tensor_create(mesh, &batch, &x) != TSH_OK ||
        tsh_tensor_create(mesh, &column, &y) != TSH_OK || tsh_tape_create(world, &tape) != TSH_OK ||
        tsh_parameters_create(world, &parameters) != TSH_OK || tsh_linear_register(layer, parameters, "w") != TSH_OK ||
        tsh_sgd_create(parameters, &(tsh_sgd_config){.lr = 0.01}, &optimizer) != TSH_OK ||
        tsh_data_parallel_create(tape, parameters, data, &(tsh_data_parallel_config){.average = true}, &dp) != TSH_OK) {
        return fail(tsh_error_message());
    }
    if (tsh_tensor_write(x, inputs[rank % 2], ROWS * FEATURES) != TSH_OK ||
        tsh_tensor_write(y, answers[rank % 2], ROWS) != TSH_OK)
        return fail(tsh_error_message());

    for (int step = 0; step < STEPS; step++) {
        tsh_tensor *error = tsh_sub(tape, tsh_linear_forward(tape, layer, x), y);
        tsh_tensor *loss = tsh_sum(tape, tsh_mul(tape, error, error), TSH_ALL_DIMS);
        if (tsh_backward(tape, loss) != TSH_OK) return fail(tsh_tape_message(tape)); /* waits for the sums */
        if (step == 0 && rank == 0) {
            const float *g = tsh_tensor_data(tsh_tensor_grad(tsh_linear_weight(layer)));
            printf("first gradient %g, %g\n", (double)g[0], (double)g[1]);
        }
        if (tsh_optimizer_step(optimizer) != TSH_OK) return fail(tsh_error_message());
        tsh_optimizer_zero_grad(optimizer);
        if (tsh_tape_reset(tape) != TSH_OK) return fail(tsh_error_message());
    }
    const float *w = tsh_tensor_data(tsh_linear_weight(layer));
    if (rank == 0) printf("w = (%.4f, %.4f)\n", (double)w[0], (double)w[1]);

    tsh_data_parallel_destroy(dp);
    tsh_optimizer_destroy(optimizer);
    tsh_parameters_destroy(parameters);
    tsh_tape_destroy(tape);
    tsh_tensor_release(y);
    tsh_tensor_release(x);
    tsh_linear_destroy(layer);
    tsh_world_destroy(world);
    return finish();
}
