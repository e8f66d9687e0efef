/* A two-layer network, split over ranks as in Megatron: the first layer by columns, the second by rows. Run it as one
 * process, or as several: tshard-run -n 4 mlp, or with the batch split too: tshard-run -n 4 mlp data=2,model=2. The
 * losses are the same. */
#include "tshard/tshard.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { BATCH = 64, FEATURES = 32, HIDDEN = 128, CLASSES = 10, STEPS = 100 };

static int fail(const char *message) {
    fprintf(stderr, "mlp: %s\n", message);
    return EXIT_FAILURE; /* the other ranks see it and end too */
}

/* What was printed may not have arrived: a full disk, a pipe without its reader. */
static int finish(void) {
    return fflush(stdout) == 0 && !ferror(stdout) ? EXIT_SUCCESS : fail("not all of the output could be written");
}

/* A batch to learn by heart: random features; the class is the index of the largest among the first CLASSES. */
static void make_batch(float *features, int64_t *classes) {
    srand(1);
    for (int row = 0; row < BATCH; row++) {
        float *x = features + row * FEATURES;
        for (int i = 0; i < FEATURES; i++) x[i] = (float)rand() / (float)RAND_MAX - 0.5f;
        classes[row] = 0;
        for (int i = 1; i < CLASSES; i++) classes[row] = x[i] > x[classes[row]] ? i : classes[row];
    }
}

int main(int argc, char **argv) {
    static const char usage[] = "usage: [tshard-run -n N] mlp [data=D,model=M]";
    if (argc == 2 && strcmp(argv[1], "--help") == 0) return puts(usage) < 0 ? EXIT_FAILURE : finish();
    if (argc > 2) return fail(usage);
    tsh_world *world = NULL;
    tsh_mesh *mesh = NULL;
    if (tsh_world_init(NULL, &world) != TSH_OK || /* RANK, ... as tshard-run, torchrun, mpirun, srun set them */
        tsh_mesh_create(world, argc > 1 ? argv[1] : "data=1,model=-1", &mesh) != TSH_OK)
        return fail(tsh_error_message());
    tsh_group *model = tsh_mesh_group(mesh, "model");
    tsh_linear_config wide = {.in_features = FEATURES, .out_features = HIDDEN, .shard = TSH_COLUMN, .bias = true};
    tsh_linear_config narrow = {.in_features = HIDDEN, .out_features = CLASSES, .shard = TSH_ROW, .bias = true};
    wide.activation = TSH_ACTIVATION_GELU;
    tsh_linear *up = NULL, *down = NULL;
    if (tsh_linear_create(model, &wide, &up) != TSH_OK || tsh_linear_create(model, &narrow, &down) != TSH_OK)
        return fail(tsh_error_message());

    tsh_tensor_config batch = {.ndim = 2, .shape = {BATCH, FEATURES}, .layout = {TSH_SHARD(0)}}; /* over "data" */
    tsh_tensor_config answers = {.dtype = TSH_INT64, .ndim = 1, .shape = {BATCH}, .layout = {TSH_SHARD(0)}};
    tsh_tensor *x = NULL, *target = NULL;
    tsh_tape *tape = NULL;
    tsh_parameters *parameters = NULL;
    tsh_optimizer *optimizer = NULL;
    if (tsh_tensor_create(mesh, &batch, &x) != TSH_OK || tsh_tensor_create(mesh, &answers, &target) != TSH_OK ||
        tsh_tape_create(world, &tape) != TSH_OK || tsh_parameters_create(world, &parameters) != TSH_OK ||
        tsh_linear_register(up, parameters, "up") != TSH_OK ||
        tsh_linear_register(down, parameters, "down") != TSH_OK ||
        tsh_adamw_create(parameters, &(tsh_adamw_config){.lr = 3e-3}, &optimizer) != TSH_OK)
        return fail(tsh_error_message());

    float features[BATCH * FEATURES];
    int64_t classes[BATCH];
    make_batch(features, classes);
    if (tsh_tensor_write_whole(x, features) != TSH_OK || /* each rank takes its part */
        tsh_tensor_write_whole(target, classes) != TSH_OK)
        return fail(tsh_error_message());

    for (int step = 0; step < STEPS; step++) {
        tsh_tensor *h = tsh_linear_forward(tape, up, x);   /* SHARD(last): no communication */
        tsh_tensor *y = tsh_linear_forward(tape, down, h); /* one all-reduce, inserted */
        tsh_tensor *loss = tsh_cross_entropy(tape, y, target, NULL);
        if (tsh_backward(tape, loss) != TSH_OK) return fail(tsh_tape_message(tape)); /* first error of the step */
        if (step % 10 == 9 && tsh_world_rank(world) == 0) printf("step %d: %.6f\n", step + 1, tsh_tensor_item(loss));
        if (tsh_optimizer_step(optimizer) != TSH_OK) return fail(tsh_error_message());
        tsh_optimizer_zero_grad(optimizer);
        if (tsh_tape_reset(tape) != TSH_OK) return fail(tsh_error_message()); /* frees what the step made */
    }

    tsh_optimizer_destroy(optimizer);
    tsh_tensor_release(target);
    tsh_tensor_release(x);
    tsh_linear_destroy(down);
    tsh_linear_destroy(up);
    tsh_parameters_destroy(parameters);
    tsh_tape_destroy(tape);
    tsh_mesh_destroy(mesh);
    tsh_world_destroy(world);
    return finish();
}
