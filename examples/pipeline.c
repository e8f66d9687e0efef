/* A pipeline: blocks of layers in stages, split over the ranks of a stage as in mlp.c, and the batch split into
 * micro-batches, scheduled one forward, one backward (1F1B). Run it as one process, or as several: tshard-run -n 4
 * pipeline, or on another mesh: tshard-run -n 4 pipeline stage=2,data=2,model=1. The losses are the same. */
#include "tshard/tshard.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { BATCH = 50, FEATURES = 18, HIDDEN = 70, BLOCKS = 3, STEPS = 100 };

typedef struct pipeline {
    tsh_mesh *mesh, *on[BLOCKS];           /* of all ranks; of each stage */
    int stages, stage;                     /* their number; this rank's */
    tsh_linear *up[BLOCKS], *down[BLOCKS]; /* every rank has all layers; those of other stages are empty */
    int micro_batches;
    tsh_tensor *x[BATCH], *target[BATCH], *loss[BATCH]; /* of each micro-batch */
    tsh_tape *tape;
    tsh_parameters *parameters;
    tsh_optimizer *optimizer;
    tsh_data_parallel *sums;
} pipeline;

static int fail(const char *message) {
    fprintf(stderr, "pipeline: %s\n", message);
    return EXIT_FAILURE; /* the other ranks see it and end too */
}

/* What was printed may not have arrived: a full disk, a pipe without its reader. */
static int finish(void) {
    return fflush(stdout) == 0 && !ferror(stdout) ? EXIT_SUCCESS : fail("not all of the output could be written");
}

/* --- a step ------------------------------------------------------------------------------------------------------- */

static const tsh_layout rows[] = {TSH_SHARD_INIT(0), TSH_REPLICATED_INIT}; /* of a batch, along data and model */

static int stage_of(const pipeline *p, int block) {
    int64_t start = 0, length = 0;
    int s = 0;
    for (tsh_split(BLOCKS, p->stages, s, &start, &length); block >= start + length; s++) {
        tsh_split(BLOCKS, p->stages, s + 1, &start, &length);
    }
    return s;
}

/* Every rank makes all calls. Those on the mesh of another stage do nothing; a redistribution to the next stage's mesh
 * sends on one stage and receives on the next, and in backward the gradient comes back. */
static void forward(pipeline *p, int m) {
    tsh_tensor *h = p->x[m];
    for (int b = 0; b < BLOCKS; b++) {
        h = tsh_redistribute(p->tape, h, p->on[stage_of(p, b)], rows);
        tsh_tensor *wide = tsh_linear_forward(p->tape, p->up[b], h);
        h = tsh_add(p->tape, h, tsh_linear_forward(p->tape, p->down[b], wide));
    }
    tsh_cross_entropy_config sum = {.reduction = TSH_REDUCTION_SUM};
    p->loss[m] = tsh_scale(p->tape, tsh_cross_entropy(p->tape, h, p->target[m], &sum), 1.0 / BATCH);
}

/* One forward, one backward. A stage has at most as many micro-batches in memory as there are stages from it to the
 * last: the backward of one frees its tensors before the forward of the next. */
static tsh_status forward_and_backward(pipeline *p) {
    int n = p->micro_batches, in_flight = p->stages - p->stage;
    for (int begun = 0, ended = 0; ended < n;) {
        if (begun < n && begun - ended < in_flight) {
            forward(p, begun++);
            continue;
        }
        tsh_data_parallel_set_sync(p->sums, ended == n - 1); /* gradients are summed over data once */
        tsh_status status = tsh_backward(p->tape, p->loss[ended++]);
        if (status != TSH_OK) return status;
    }
    return TSH_OK;
}

static double loss_of(const pipeline *p) {
    double loss = 0;
    for (int m = 0; m < p->micro_batches; m++) loss += tsh_tensor_item(p->loss[m]);
    return loss;
}

static int train(pipeline *p) {
    tsh_group *last = tsh_mesh_members(p->on[p->stages - 1]);
    for (int step = 0; step < STEPS; step++) {
        if (forward_and_backward(p) != TSH_OK) return fail(tsh_tape_message(p->tape)); /* first error of the step */
        if (step % 10 == 9 && tsh_group_rank(last) == 0) printf("step %d: %.6f\n", step + 1, loss_of(p));
        if (tsh_clip_grad_norm(p->parameters, 1, NULL) != TSH_OK || tsh_optimizer_step(p->optimizer) != TSH_OK)
            return fail(tsh_error_message());
        tsh_optimizer_zero_grad(p->optimizer);
        if (tsh_tape_reset(p->tape) != TSH_OK) return fail(tsh_error_message());
    }
    return EXIT_SUCCESS;
}

/* --- what it needs ------------------------------------------------------------------------------------------------ */

static tsh_status make_meshes(pipeline *p, tsh_world *world, const char *axes) {
    tsh_status status = tsh_mesh_create(world, axes, &p->mesh);
    tsh_group *stages = status == TSH_OK ? tsh_mesh_group(p->mesh, "stage") : NULL;
    if (!stages || !tsh_mesh_group(p->mesh, "data") || !tsh_mesh_group(p->mesh, "model")) return TSH_ERR_ARGUMENT;
    p->stages = tsh_group_size(stages);
    p->stage = tsh_group_rank(stages);
    for (int s = 0; s < p->stages && s < BLOCKS && status == TSH_OK; s++)
        status = tsh_mesh_fix(p->mesh, "stage", s, &p->on[s]);
    return status;
}

static tsh_status make_layers(pipeline *p) {
    tsh_linear_config wide = {.in_features = FEATURES,
                              .out_features = HIDDEN,
                              .shard = TSH_COLUMN,
                              .bias = true,
                              .activation = TSH_ACTIVATION_GELU};
    tsh_linear_config narrow = {.in_features = HIDDEN, .out_features = FEATURES, .shard = TSH_ROW, .bias = true};
    char name[32];
    tsh_status status = TSH_OK;
    for (int b = 0; b < BLOCKS && status == TSH_OK; b++) {
        tsh_group *model = tsh_mesh_group(p->on[stage_of(p, b)], "model");
        status = tsh_linear_create(model, &wide, &p->up[b]);
        if (status == TSH_OK) status = tsh_linear_create(model, &narrow, &p->down[b]);
        snprintf(name, sizeof name, "up.%d", b);
        if (status == TSH_OK) status = tsh_linear_register(p->up[b], p->parameters, name);
        snprintf(name, sizeof name, "down.%d", b);
        if (status == TSH_OK) status = tsh_linear_register(p->down[b], p->parameters, name);
    }
    return status;
}

/* A batch to learn by heart: random features; the class is the index of the largest. The first stage gets the features
 * of each micro-batch, the last stage the classes. */
static tsh_status make_batch(pipeline *p) {
    float features[BATCH * FEATURES];
    int64_t classes[BATCH], start, n;
    tsh_status status = TSH_OK;
    srand(1);
    for (int row = 0; row < BATCH; row++) {
        float *x = features + row * FEATURES;
        for (int i = 0; i < FEATURES; i++) x[i] = (float)rand() / (float)RAND_MAX - 0.5f;
        classes[row] = 0;
        for (int i = 1; i < FEATURES; i++) classes[row] = x[i] > x[classes[row]] ? i : classes[row];
    }
    for (int m = 0; m < p->micro_batches && status == TSH_OK; m++) {
        tsh_split(BATCH, p->micro_batches, m, &start, &n);
        tsh_tensor_config x = {.ndim = 2, .shape = {n, FEATURES}, .layout = {rows[0], rows[1]}};
        tsh_tensor_config target = {.dtype = TSH_INT64, .ndim = 1, .shape = {n}, .layout = {rows[0], rows[1]}};
        status = tsh_tensor_create(p->on[0], &x, &p->x[m]);
        if (status == TSH_OK) status = tsh_tensor_create(p->on[p->stages - 1], &target, &p->target[m]);
        if (status == TSH_OK) status = tsh_tensor_write_whole(p->x[m], features + start * FEATURES);
        if (status == TSH_OK) status = tsh_tensor_write_whole(p->target[m], classes + start);
    }
    return status;
}

static void release(pipeline *p) {
    tsh_data_parallel_destroy(p->sums);
    tsh_optimizer_destroy(p->optimizer);
    tsh_parameters_destroy(p->parameters);
    tsh_tape_destroy(p->tape);
    for (int m = 0; m < p->micro_batches; m++) {
        tsh_tensor_release(p->x[m]);
        tsh_tensor_release(p->target[m]);
    }
    for (int b = 0; b < BLOCKS; b++) {
        tsh_linear_destroy(p->up[b]);
        tsh_linear_destroy(p->down[b]);
    }
    for (int s = 0; s < BLOCKS; s++) tsh_mesh_destroy(p->on[s]);
    tsh_mesh_destroy(p->mesh);
}

/* 0 unless the text is a number of micro-batches. */
static int parse(const char *text) {
    char *end;
    long n = strtol(text, &end, 10);
    return *end == '\0' && n >= 1 && n <= BATCH ? (int)n : 0;
}

int main(int argc, char **argv) {
    static const char usage[] = "usage: [tshard-run -n N] pipeline [stage=S,data=D,model=M [MICRO_BATCHES]]";
    pipeline p = {.micro_batches = argc > 2 ? parse(argv[2]) : 4};
    tsh_world *world = NULL;
    if (argc == 2 && strcmp(argv[1], "--help") == 0) return puts(usage) < 0 ? EXIT_FAILURE : finish();
    if (argc > 3) return fail(usage);
    if (p.micro_batches == 0) return fail("1 to 50 micro-batches are wanted");
    if (tsh_world_init(NULL, &world) != TSH_OK) return fail(tsh_error_message());
    const char *axes = tsh_world_size(world) == 1 ? "stage=1,data=1,model=1" : "stage=2,data=1,model=-1";
    if (make_meshes(&p, world, argc > 1 ? argv[1] : axes) != TSH_OK) return fail(tsh_error_message());
    if (p.stages > BLOCKS) return fail("there are 3 blocks of layers: at most 3 stages");
    if (tsh_tape_create(world, &p.tape) != TSH_OK || tsh_parameters_create(world, &p.parameters) != TSH_OK ||
        make_layers(&p) != TSH_OK || make_batch(&p) != TSH_OK ||
        tsh_adamw_create(p.parameters, &(tsh_adamw_config){.lr = 3e-3}, &p.optimizer) != TSH_OK ||
        tsh_data_parallel_create(p.tape, p.parameters, tsh_mesh_group(p.on[p.stage], "data"), NULL, &p.sums) != TSH_OK)
        return fail(tsh_error_message());
    int code = train(&p);
    if (code != EXIT_SUCCESS) return code;
    release(&p);
    tsh_world_destroy(world);
    return finish();
}
