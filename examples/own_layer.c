/* A layer of a program's own: y = x sigmoid(slope x), with a slope for each feature, a parameter that is split as the
 * features are. The layer has an initialiser of its own; it is trained between two linear layers, saved, and loaded
 * again. The losses are the same at any number of ranks: tshard-run -n 4 own_layer */
#include "tshard/tshard.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ROWS = 6, FEATURES = 10, STEPS = 50 };

/* --- the function: x [rows, n], slope [n] ------------------------------------------------------------------------- */

/* If rows are split over ranks, each rank uses the slopes for its rows, and their gradient is summed over the ranks. */
static const tsh_rule swish_rules[] = {{{TSH_AS_R, TSH_AS_R}, TSH_AS_R},
                                       {{TSH_AS_LAST, TSH_AS_S0}, TSH_AS_LAST},
                                       {{TSH_AS_BATCH, TSH_AS_L}, TSH_AS_BATCH},
                                       {{TSH_ROW_END}, TSH_ROW_END}};

static tsh_status swish_shape(const tsh_call *call, tsh_dtype *dtype, tsh_shape *out) {
    const tsh_tensor *x = tsh_call_input(call, 0), *slope = tsh_call_input(call, 1);
    if (tsh_tensor_ndim(x) != 2 || tsh_tensor_ndim(slope) != 1 || tsh_tensor_shape(slope)[0] != tsh_tensor_shape(x)[1])
        return tsh_call_fail(call, TSH_ERR_SHAPE, "x [rows, n] and slope [n] are wanted");
    *dtype = tsh_tensor_dtype(x);
    out->ndim = 2;
    memcpy(out->global, tsh_tensor_shape(x), 2 * sizeof *out->global);
    return TSH_OK;
}

static float sigmoid(float x) {
    return 1 / (1 + expf(-x));
}

static tsh_status swish_forward(tsh_call *call) {
    const tsh_tensor *input = tsh_call_input(call, 0);
    int64_t n = tsh_tensor_local_numel(input), cols = tsh_tensor_local_shape(input)[1];
    const float *x = tsh_tensor_data(input), *slope = tsh_tensor_data(tsh_call_input(call, 1));
    float *y = tsh_tensor_data(tsh_call_output(call));
    if (!tsh_call_computes(call, 4 * (double)n, 8 * (double)n)) return TSH_OK;
    for (int64_t i = 0; i < n; i++) y[i] = x[i] * sigmoid(slope[i % cols] * x[i]);
    return TSH_OK;
}

/* With s = sigmoid(slope x): dx += dy (s + slope x s (1 - s)); dslope += dy x^2 s (1 - s). */
static tsh_status swish_backward(tsh_call *call) {
    const tsh_tensor *input = tsh_call_input(call, 0);
    int64_t n = tsh_tensor_local_numel(input), cols = tsh_tensor_local_shape(input)[1];
    const float *x = tsh_tensor_data(input), *slope = tsh_tensor_data(tsh_call_input(call, 1));
    const float *dy = tsh_tensor_data(tsh_call_grad_out(call));
    bool wants_x = tsh_call_wants_grad(call, 0), wants_slope = tsh_call_wants_grad(call, 1);
    tsh_tensor *gradient_x = wants_x ? tsh_call_grad(call, 0) : NULL;
    tsh_tensor *gradient_slope = wants_slope ? tsh_call_grad(call, 1) : NULL;
    if ((wants_x && !gradient_x) || (wants_slope && !gradient_slope)) return TSH_ERR_MEMORY;
    if (!tsh_call_computes(call, 12 * (double)n, 16 * (double)n)) return TSH_OK;
    float *dx = tsh_tensor_data(gradient_x), *dslope = tsh_tensor_data(gradient_slope);
    for (int64_t i = 0; i < n; i++) {
        float s = sigmoid(slope[i % cols] * x[i]), change = s * (1 - s);
        if (wants_x) dx[i] += dy[i] * (s + slope[i % cols] * x[i] * change);
        if (wants_slope) dslope[i % cols] += dy[i] * x[i] * x[i] * change;
    }
    return TSH_OK;
}

static const tsh_op swish_op = {
    "swish", swish_rules, swish_shape, swish_forward, swish_backward, .inputs = 2, .dtypes = 1u << TSH_FLOAT32};

/* --- the layer ---------------------------------------------------------------------------------------------------- */

typedef struct swish {
    tsh_tensor *slope; /* [features], SHARD(0) */
} swish;

/* The initialiser: slopes from 1 to 2, by the feature's global index. It is called only for this rank's box. */
static tsh_status slopes(void *user, const tsh_box *box, void *values) {
    const int64_t *features = user;
    for (int64_t i = 0; i < box->length[0]; i++)
        ((float *)values)[i] = 1 + (float)(box->start[0] + i) / (float)*features;
    return TSH_OK;
}

static tsh_status swish_create(const tsh_mesh *mesh, int64_t features, swish *out) {
    const tsh_tensor_config config = {.ndim = 1, .shape = {features}, .layout = {TSH_SHARD(0)}};
    tsh_status status = tsh_tensor_create(mesh, &config, &out->slope);
    if (status == TSH_OK) status = tsh_tensor_write_boxes(out->slope, slopes, &features);
    return status == TSH_OK ? tsh_tensor_require_grad(out->slope, true) : status;
}

static tsh_tensor *swish_apply(tsh_tape *tape, const swish *layer, tsh_tensor *x) {
    return tsh_apply(tape, &swish_op, 2, (tsh_tensor *[]){x, layer->slope}, NULL);
}

/* --- training with it --------------------------------------------------------------------------------------------- */

static int fail(const char *message) {
    fprintf(stderr, "own_layer: %s\n", message);
    return EXIT_FAILURE;
}

static int finish(void) {
    return fflush(stdout) == 0 && !ferror(stdout) ? EXIT_SUCCESS : fail("not all of the output could be written");
}

typedef struct model {
    tsh_linear *up, *down;
    swish act;
    tsh_tensor *x;
    tsh_parameters *list;
    tsh_optimizer *optimizer;
    tsh_tape *tape;
} model;

static tsh_status create(tsh_world *world, model *m) {
    tsh_group *group = tsh_world_group(world);
    const tsh_tensor_config rows = {.ndim = 2, .shape = {ROWS, 2}};
    tsh_linear_config up = {.in_features = 2, .out_features = FEATURES, .shard = TSH_COLUMN, .bias = true};
    tsh_linear_config down = {.in_features = FEATURES, .out_features = 1, .shard = TSH_ROW};
    tsh_status status = tsh_linear_create(group, &up, &m->up);
    if (status == TSH_OK) status = swish_create(tsh_world_mesh(world), FEATURES, &m->act);
    if (status == TSH_OK) status = tsh_linear_create(group, &down, &m->down);
    if (status == TSH_OK) status = tsh_tensor_create_arange(tsh_world_mesh(world), &rows, -1, 0.2, &m->x);
    if (status == TSH_OK) status = tsh_parameters_create(world, &m->list);
    if (status == TSH_OK) status = tsh_linear_register(m->up, m->list, "up");
    if (status == TSH_OK) status = tsh_parameters_add(m->list, "act.slope", m->act.slope);
    if (status == TSH_OK) status = tsh_linear_register(m->down, m->list, "down");
    if (status == TSH_OK) status = tsh_adamw_create(m->list, &(tsh_adamw_config){.lr = 0.05}, &m->optimizer);
    return status == TSH_OK ? tsh_tape_create(world, &m->tape) : status;
}

/* The mean over rows of (f(x) - x[0] x[1])^2. */
static tsh_tensor *loss_of(const model *m) {
    tsh_tensor *y = tsh_linear_forward(m->tape, m->up, m->x);
    y = tsh_linear_forward(m->tape, m->down, swish_apply(m->tape, &m->act, y));
    tsh_tensor *wanted = tsh_mul(m->tape, tsh_slice(m->tape, m->x, 1, 0, 1), tsh_slice(m->tape, m->x, 1, 1, 1));
    return tsh_mse_loss(m->tape, y, wanted, TSH_REDUCTION_MEAN);
}

static tsh_status train(const model *m, double *first, double *last) {
    tsh_status status = TSH_OK;
    for (int step = 0; step < STEPS && status == TSH_OK; step++) {
        tsh_tensor *loss = loss_of(m);
        status = tsh_backward(m->tape, loss);
        if (status != TSH_OK) return status;
        *last = tsh_tensor_item(loss);
        if (step == 0) *first = *last;
        status = tsh_optimizer_step(m->optimizer);
        tsh_optimizer_zero_grad(m->optimizer);
        if (status == TSH_OK) status = tsh_tape_reset(m->tape);
    }
    return status;
}

/* The layer's slopes come back from the file, at this number of ranks as at any other. */
static tsh_status save_and_load(const model *m, const char *path, bool *same) {
    tsh_tensor *before = NULL;
    tsh_status status = tsh_tensor_clone(m->act.slope, &before);
    if (status == TSH_OK) status = tsh_save(m->list, path, NULL);
    if (status == TSH_OK) status = tsh_tensor_fill(m->act.slope, 0);
    if (status == TSH_OK) status = tsh_load(m->list, path, NULL);
    *same = status == TSH_OK &&
            memcmp(tsh_tensor_data(before), tsh_tensor_data(m->act.slope), tsh_tensor_local_nbytes(before)) == 0;
    tsh_tensor_release(before);
    return status;
}

static void destroy(model *m) {
    tsh_tape_destroy(m->tape);
    tsh_optimizer_destroy(m->optimizer);
    tsh_parameters_destroy(m->list);
    tsh_tensor_release(m->x);
    tsh_linear_destroy(m->down);
    tsh_tensor_release(m->act.slope);
    tsh_linear_destroy(m->up);
}

int main(int argc, char **argv) {
    static const char usage[] = "usage: [tshard-run -n N] own_layer FILE\n"
                                "Trains a small model, writes it to FILE (safetensors) and reads it again.";
    tsh_world *world = NULL;
    model m = {0};
    double first = 0, last = 0;
    bool same = false;
    if (argc == 2 && strcmp(argv[1], "--help") == 0) return puts(usage) < 0 ? EXIT_FAILURE : finish();
    if (argc != 2) return fail(usage);
    if (tsh_world_init(NULL, &world) != TSH_OK || create(world, &m) != TSH_OK) return fail(tsh_error_message());
    if (train(&m, &first, &last) != TSH_OK) return fail(tsh_tape_message(m.tape));
    if (save_and_load(&m, argv[1], &same) != TSH_OK) return fail(tsh_error_message());
    if (!same) return fail("the slopes that were read are not those that were written");
    if (tsh_world_rank(world) == 0) printf("loss %.4f, after %d steps %.4f\n", first, STEPS, last);
    destroy(&m);
    tsh_world_destroy(world);
    return finish();
}
