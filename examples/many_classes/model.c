/* The network of many_classes: replicated layers, then a classifier that is split by class. */
#include "many_classes.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct model {
    tsh_world *world;
    const options *o;
    tsh_mesh *mesh;
    tsh_group *group; /* all ranks */
    tsh_tape *tape;

    tsh_linear *hidden, *features; /* the network: whole on every rank, which runs it on its part of the batch */
    tsh_norm *norm;
    tsh_linear *classifier; /* column: each rank has its part of the classes */
    tsh_parameters *parameters;
    tsh_optimizer *optimizer;
    tsh_data_parallel *copies; /* sums the network's gradients over the ranks while backward runs */

    tsh_tensor *x, *labels; /* my part of a batch: [batch, inputs], [batch] */
    size_t peak;
};

/* Print what failed with the library's message, and return false. */
static bool fails(const char *what, const char *why) {
    fprintf(stderr, "many_classes: %s: %s\n", what, why);
    return false;
}

static bool is_adamw(const options *o) {
    return strcmp(o->optimizer, "adamw") == 0;
}

/* --- the model ---------------------------------------------------------------------------------------------------- */

static tsh_status create_layers(model *m) {
    const options *o = m->o;
    const tsh_linear_config hidden = {.in_features = o->inputs,
                                      .out_features = o->hidden,
                                      .bias = true,
                                      .activation = TSH_ACTIVATION_GELU,
                                      .dtype = o->dtype};
    const tsh_linear_config features = {
        .in_features = o->hidden, .out_features = o->features, .bias = true, .dtype = o->dtype};
    const tsh_linear_config classifier = {.in_features = o->features,
                                          .out_features = o->classes,
                                          .shard = TSH_COLUMN,
                                          .dtype = o->dtype,
                                          .weight_init = {.kind = TSH_INIT_NORMAL, .b = 0.01}};
    tsh_status status = tsh_linear_create(m->group, &hidden, &m->hidden);
    if (status == TSH_OK) status = tsh_linear_create(m->group, &features, &m->features);
    if (status == TSH_OK)
        status = tsh_norm_create(m->group, &(tsh_norm_config){.features = o->features, .dtype = o->dtype}, &m->norm);
    if (status == TSH_OK) status = tsh_linear_create(m->group, &classifier, &m->classifier);
    if (status != TSH_OK || o->sample == 0) return status;
    return tsh_tensor_set_sparse_grad(tsh_linear_weight(m->classifier));
}

static tsh_status create_optimizer(model *m) {
    const options *o = m->o;
    tsh_status status = tsh_parameters_create(m->world, &m->parameters);
    if (status == TSH_OK) status = tsh_linear_register(m->hidden, m->parameters, "hidden");
    if (status == TSH_OK) status = tsh_linear_register(m->features, m->parameters, "features");
    if (status == TSH_OK) status = tsh_norm_register(m->norm, m->parameters, "norm");
    if (status == TSH_OK) status = tsh_linear_register(m->classifier, m->parameters, "classifier");
    if (status != TSH_OK) return status;
    if (is_adamw(o)) {
        const tsh_adamw_config adamw = {.lr = o->lr, .weight_decay = o->weight_decay};
        status = tsh_adamw_create(m->parameters, &adamw, &m->optimizer);
    } else {
        const tsh_sgd_config sgd = {.lr = o->lr, .momentum = o->momentum, .weight_decay = o->weight_decay};
        status = tsh_sgd_create(m->parameters, &sgd, &m->optimizer);
    }
    if (status == TSH_OK && o->in_backward)
        status = tsh_optimizer_step_in_backward(m->optimizer, tsh_linear_weight(m->classifier));
    /* The classifier's gradient is not summed over ranks, and stays where it is. */
    return status == TSH_OK ? tsh_data_parallel_create(m->tape, m->parameters, m->group, NULL, &m->copies) : status;
}

static tsh_status create_tensors(model *m) {
    const options *o = m->o;
    const tsh_tensor_config x = {.ndim = 2, .shape = {o->batch, o->inputs}, .layout = {TSH_SHARD(0)}};
    const tsh_tensor_config labels = {.dtype = TSH_INT64, .ndim = 1, .shape = {o->batch}, .layout = {TSH_SHARD(0)}};
    tsh_status status = tsh_tensor_create(m->mesh, &x, &m->x);
    return status == TSH_OK ? tsh_tensor_create(m->mesh, &labels, &m->labels) : status;
}

model *model_create(tsh_world *world, const options *o) {
    model *m = calloc(1, sizeof *m);
    if (!m) {
        fails("the model", "no memory");
        return NULL;
    }
    *m = (model){.world = world, .o = o};
    tsh_world_seed(world, o->seed);
    tsh_status status = tsh_mesh_create(world, "ranks=-1", &m->mesh);
    if (status == TSH_OK) m->group = tsh_mesh_group(m->mesh, "ranks");
    if (status == TSH_OK && tsh_tape_create(world, &m->tape) == TSH_OK && create_layers(m) == TSH_OK &&
        create_optimizer(m) == TSH_OK && create_tensors(m) == TSH_OK) {
        return m;
    }
    fails("the model", tsh_error_message());
    model_destroy(m);
    return NULL;
}

void model_destroy(model *m) {
    if (!m) return;
    tsh_tensor_release(m->labels);
    tsh_tensor_release(m->x);
    tsh_data_parallel_destroy(m->copies);
    tsh_optimizer_destroy(m->optimizer);
    tsh_parameters_destroy(m->parameters);
    tsh_linear_destroy(m->classifier);
    tsh_norm_destroy(m->norm);
    tsh_linear_destroy(m->features);
    tsh_linear_destroy(m->hidden);
    tsh_tape_destroy(m->tape);
    tsh_mesh_destroy(m->mesh);
    free(m);
}

memory model_memory(const model *m) {
    const options *o = m->o;
    size_t states = is_adamw(o) ? 2 : o->momentum > 0, size = tsh_dtype_size(o->dtype);
    size_t state = size < 4 ? 4 : size; /* bytes: float32 beside 16-bit parameters */
    memory out = {.peak = m->peak};
    for (int i = 0; i < tsh_parameters_count(m->parameters); i++) {
        size_t bytes = tsh_tensor_local_nbytes(tsh_parameters_tensor(m->parameters, i));
        out.parameters += bytes;
        out.with_states += 2 * bytes + states * (bytes / size) * state;
    }
    return out;
}

/* --- a step ------------------------------------------------------------------------------------------------------- */

/* The features of my part of the batch, SHARD(0). */
static tsh_tensor *features(model *m) {
    tsh_tensor *x = tsh_cast(m->tape, m->x, m->o->dtype);
    tsh_tensor *h = tsh_linear_forward(m->tape, m->hidden, x);
    return tsh_norm_forward(m->tape, m->norm, tsh_linear_forward(m->tape, m->features, h));
}

static bool write_batch(model *m, const float *x, const int64_t *labels) {
    tsh_status status = tsh_tensor_write_whole(m->x, x);
    if (status == TSH_OK) status = tsh_tensor_write_whole(m->labels, labels);
    return status == TSH_OK || fails("the batch", tsh_error_message());
}

/* The mean loss of the batch. The features are gathered by the column layer, the labels by the loss or by the
 * sampling. */
static tsh_tensor *batch_loss(model *m) {
    const options *o = m->o;
    int64_t count = (int64_t)ceil(o->sample * (double)o->classes);
    tsh_tensor *y = features(m), *places = NULL;
    if (o->sample == 0 && !o->in_backward)
        return tsh_linear_cross_entropy(m->tape, y, tsh_linear_weight(m->classifier), m->labels, NULL);
    if (o->sample == 0) /* pieces of the classifier's gradient need the gradient of all logits */
        return tsh_cross_entropy(m->tape, tsh_linear_forward(m->tape, m->classifier, y), m->labels, NULL);
    tsh_tensor *rows = tsh_sample_classes(m->tape, tsh_linear_weight(m->classifier), m->labels, count, &places);
    return tsh_cross_entropy(m->tape, tsh_linear_forward_rows(m->tape, m->classifier, y, rows), places, NULL);
}

bool model_step(model *m, const float *x, const int64_t *labels, double lr, double *loss) {
    tsh_device *device = tsh_world_device(m->world);
    tsh_device_reset_peak(device);
    if (!write_batch(m, x, labels)) return false;
    tsh_status status = tsh_optimizer_set_lr(m->optimizer, lr); /* a backward may step the classifier */
    tsh_tensor *mean = batch_loss(m);
    if (tsh_backward(m->tape, mean) != TSH_OK) return fails("a step", tsh_tape_message(m->tape));
    *loss = tsh_tensor_item(mean);
    if (status == TSH_OK) status = tsh_optimizer_step(m->optimizer);
    if (status != TSH_OK) return fails("a step", tsh_error_message());
    tsh_optimizer_zero_grad(m->optimizer);
    status = tsh_tape_reset(m->tape);
    size_t peak = tsh_device_stats(device).bytes_peak;
    if (peak > m->peak) m->peak = peak;
    return status == TSH_OK || fails("a step", tsh_error_message());
}

bool model_products(model *m) {
    const options *o = m->o;
    tsh_tape *t = m->tape;
    bool recording = tsh_tape_set_recording(t, false);
    tsh_tensor *x = NULL, *weight = tsh_linear_weight(m->classifier);
    const tsh_tensor_config config = {.dtype = o->dtype, .ndim = 2, .shape = {o->batch, o->features}};
    tsh_status status = tsh_tensor_create(m->mesh, &config, &x);
    if (status == TSH_OK) status = tsh_tensor_fill(x, 0.5);
    tsh_tensor *y = tsh_affine(t, x, weight, NULL);
    tsh_matmul(t, y, weight); /* dx, for a dy that is y: each rank's term of the sum */
    tsh_mark start = tsh_tape_mark(t);
    tsh_tape_free_since(t, start, tsh_matmul(t, tsh_transpose(t, x, 0, 1), y)); /* dW, transposed */
    tsh_tape_set_recording(t, recording);
    if (status == TSH_OK) status = tsh_tape_status(t);
    if (status != TSH_OK) fails("the products", tsh_error_message());
    tsh_tensor_release(x);
    return tsh_tape_reset(t) == TSH_OK && status == TSH_OK;
}

bool model_evaluate(model *m, const float *x, const int64_t *labels, int64_t *right) {
    int64_t *found = calloc((size_t)m->o->batch, sizeof *found);
    if (!found) return fails("an evaluation", "no memory");
    if (!write_batch(m, x, labels)) {
        free(found);
        return false;
    }
    bool recording = tsh_tape_set_recording(m->tape, false);
    tsh_tensor *classes = tsh_argmax(m->tape, tsh_linear_forward(m->tape, m->classifier, features(m)), -1);
    tsh_tape_set_recording(m->tape, recording);
    tsh_status status = tsh_tape_status(m->tape);
    if (status == TSH_OK) status = tsh_tensor_read(classes, found, m->o->batch);
    for (int64_t b = 0; b < m->o->batch; b++) *right += found[b] == labels[b];
    free(found);
    if (status != TSH_OK) fails("an evaluation", tsh_error_message());
    return tsh_tape_reset(m->tape) == TSH_OK && status == TSH_OK;
}
