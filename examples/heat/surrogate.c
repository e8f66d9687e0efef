/* The surrogate: a small network that learns, on two ranks, what the solver does. All ranks make all calls; on those
 * outside the mesh tensors are empty and functions do nothing. */
#include "heat.h"

#include <stdlib.h>
#define SCALE 30.0f /* increases are of the order of 1 after it */

tsh_status surrogate_create(surrogate *s, tsh_world *world, int64_t size) {
    static const int ranks[] = {0, 1};
    tsh_mesh *mesh = NULL;
    int64_t rows = 0;
    *s = (surrogate){.world = world, .size = size};
    tsh_status status = tsh_mesh_create_on(world, ranks, tsh_world_size(world) < 2 ? 1 : 2, "data=-1", &s->mesh);
    if (status != TSH_OK) return status;
    mesh = s->mesh;
    tsh_group *data = tsh_mesh_group(mesh, "data");
    const tsh_tensor_config field = {.dtype = TSH_FLOAT64, .ndim = 2, .shape = {size, size}, .layout = {TSH_SHARD(0)}};
    const tsh_tensor_config patches = {.ndim = 3, .shape = {size, size, PATCH}, .layout = {TSH_SHARD(0)}};
    const tsh_tensor_config increase = {.ndim = 3, .shape = {size, size, 1}, .layout = {TSH_SHARD(0)}};
    const tsh_linear_config first = {
        .in_features = PATCH, .out_features = HIDDEN, .bias = true, .activation = TSH_ACTIVATION_GELU};
    const tsh_linear_config second = {.in_features = HIDDEN, .out_features = 1, .bias = true};
    if (status == TSH_OK) status = tsh_tensor_create(mesh, &field, &s->field);
    if (status == TSH_OK) status = tsh_tensor_create(mesh, &patches, &s->patches);
    if (status == TSH_OK) status = tsh_tensor_create(mesh, &increase, &s->increase);
    if (status == TSH_OK) status = tsh_linear_create(data, &first, &s->first);
    if (status == TSH_OK) status = tsh_linear_create(data, &second, &s->second);
    if (status == TSH_OK) status = tsh_tape_create(world, &s->tape);
    if (status == TSH_OK) status = tsh_parameters_create(world, &s->parameters);
    if (status == TSH_OK) status = tsh_linear_register(s->first, s->parameters, "first");
    if (status == TSH_OK) status = tsh_linear_register(s->second, s->parameters, "second");
    if (status == TSH_OK) status = tsh_adamw_create(s->parameters, &(tsh_adamw_config){.lr = 2e-3}, &s->optimizer);
    if (status != TSH_OK) return status;
    rows = tsh_tensor_box(s->field).length[0];
    s->strip = calloc((size_t)(rows + 2 * RADIUS) * (size_t)size + 1, sizeof *s->strip);
    s->rows = calloc((size_t)rows * (size_t)size * PATCH + 1, sizeof *s->rows);
    return s->strip && s->rows ? TSH_OK : TSH_ERR_MEMORY;
}

void surrogate_destroy(surrogate *s) {
    tsh_optimizer_destroy(s->optimizer);
    tsh_parameters_destroy(s->parameters);
    tsh_tape_destroy(s->tape);
    tsh_linear_destroy(s->second);
    tsh_linear_destroy(s->first);
    tsh_tensor_release(s->increase);
    tsh_tensor_release(s->patches);
    tsh_tensor_release(s->field);
    tsh_mesh_destroy(s->mesh);
    free(s->strip);
    free(s->rows);
}

/* --- fields in and out -------------------------------------------------------------------------------------------- */

/* From the blocks of all ranks to strips of rows on two of them, and from there to strips with a halo: boxes of the
 * whole each time. *box is that of this rank's strip. */
static tsh_status read_strip(surrogate *s, const tsh_box *block_box, const double *block, tsh_box *box) {
    tsh_group *all = tsh_world_group(s->world);
    tsh_status status = tsh_tensor_write_parts(s->field, all, block_box, block);
    *box = tsh_tensor_box(s->field);
    if (box->length[0] > 0) {
        int64_t end = box->start[0] + box->length[0] + RADIUS;
        box->start[0] = box->start[0] > RADIUS ? box->start[0] - RADIUS : 0;
        box->length[0] = (end < s->size ? end : s->size) - box->start[0];
    }
    return status == TSH_OK ? tsh_tensor_read_parts(s->field, all, box, s->strip) : status;
}

/* The point of the whole, 0 beyond its edges; in this rank's strip with its halo. */
static float point(const surrogate *s, const tsh_box *strip, int64_t row, int64_t column) {
    if (row < 0 || row >= s->size || column < 0 || column >= s->size) return 0;
    return (float)s->strip[(row - strip->start[0]) * s->size + column];
}

tsh_status surrogate_look(surrogate *s, const tsh_box *box, const double *block) {
    tsh_box strip, own = tsh_tensor_box(s->field);
    tsh_status status = read_strip(s, box, block, &strip);
    float *out = s->rows;
    if (status != TSH_OK) return status;
    for (int64_t row = own.start[0]; row < own.start[0] + own.length[0]; row++) {
        for (int64_t column = 0; column < s->size; column++) {
            for (int64_t i = -RADIUS; i <= RADIUS; i++) {
                for (int64_t k = -RADIUS; k <= RADIUS; k++) *out++ = point(s, &strip, row + i, column + k);
            }
        }
    }
    return tsh_tensor_write(s->patches, s->rows, tsh_tensor_local_numel(s->patches));
}

/* --- learning ----------------------------------------------------------------------------------------------------- */

/* How much each point has grown since the patches were taken. */
static tsh_status write_increase(surrogate *s, const tsh_box *box, const double *block) {
    tsh_box strip, own = tsh_tensor_box(s->field);
    tsh_status status = read_strip(s, box, block, &strip);
    float *grown = malloc((size_t)(own.length[0] * s->size + 1) * sizeof *grown), *out = grown;
    if (!grown) return TSH_ERR_MEMORY;
    const float *before = s->rows + PATCH / 2;
    for (int64_t row = own.start[0]; row < own.start[0] + own.length[0]; row++) {
        for (int64_t column = 0; column < s->size; column++, before += PATCH) {
            *out++ = SCALE * (point(s, &strip, row, column) - *before);
        }
    }
    if (status == TSH_OK) status = tsh_tensor_write(s->increase, grown, out - grown);
    free(grown);
    return status;
}

static tsh_tensor *forward(surrogate *s) {
    return tsh_linear_forward(s->tape, s->second, tsh_linear_forward(s->tape, s->first, s->patches));
}

tsh_status surrogate_learn(surrogate *s, const tsh_box *box, const double *block, int64_t steps) {
    tsh_status status = write_increase(s, box, block);
    for (int64_t step = 0; status == TSH_OK && step < steps; step++) {
        tsh_tensor *loss = tsh_mse_loss(s->tape, forward(s), s->increase, TSH_REDUCTION_MEAN);
        status = tsh_backward(s->tape, loss); /* gradients are sums over the two ranks */
        if (status == TSH_OK) status = tsh_optimizer_step(s->optimizer);
        tsh_optimizer_zero_grad(s->optimizer);
        tsh_status ended = tsh_tape_reset(s->tape);
        if (status == TSH_OK) status = ended;
    }
    return status;
}

tsh_status surrogate_predict(surrogate *s, const tsh_box *box, const double *block, double *out) {
    tsh_box flat = *box;
    int64_t n = box->length[0] * box->length[1];
    float *grown = malloc((size_t)n * sizeof *grown);
    if (!grown) return TSH_ERR_MEMORY;
    flat.length[2] = 1;
    bool recording = tsh_tape_set_recording(s->tape, false);
    tsh_tensor *y = forward(s);
    tsh_tape_set_recording(s->tape, recording);
    tsh_status status = y ? TSH_OK : tsh_tape_status(s->tape);
    if (y) status = tsh_tensor_read_parts(y, tsh_world_group(s->world), &flat, grown); /* back to the solver's blocks */
    for (int64_t i = 0; status == TSH_OK && i < n; i++) out[i] = block[i] + (double)(grown[i] / SCALE);
    free(grown);
    tsh_tape_reset(s->tape);
    return status;
}
