/* The model of train_text: embedding, hidden layer and output head, each of them split over the ranks. */
#include "resume.h"
#include "train_text.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct model {
    tsh_world *world;
    const options *o;
    int64_t vocabulary;
    tsh_mesh *mesh;
    tsh_group *group; /* the ranks that share my copy of the model */
    tsh_tape *tape;

    tsh_embedding *embedding; /* its rows, the vocabulary, are split over the group */
    tsh_linear *up;           /* column: each rank computes its hidden features */
    tsh_linear *down;         /* row: takes them as they are split, sums over ranks */
    tsh_linear *head;         /* column: each rank scores its part of the vocabulary */
    tsh_parameters *parameters;
    tsh_optimizer *optimizer;
    tsh_data_parallel *copies; /* sums gradients over the copies of the model while backward runs */

    tsh_tensor *inputs, *targets; /* my part of a batch */
    tsh_tensor *prompt;
    float *probabilities;
};

/* Print what failed with the library's message, and return false. */
static bool fails(const char *what, const char *why) {
    fprintf(stderr, "train_text: %s: %s\n", what, why);
    return false;
}

static tsh_status create_layers(model *m) {
    const options *o = m->o;
    tsh_embedding_config embedding = {.num_embeddings = m->vocabulary, .embedding_dim = o->embed, .shard = TSH_ROW};
    tsh_linear_config up = {.in_features = o->context * o->embed,
                            .out_features = o->hidden,
                            .shard = TSH_COLUMN,
                            .bias = true,
                            .activation = TSH_ACTIVATION_GELU};
    tsh_linear_config down = {.in_features = o->hidden,
                              .out_features = o->hidden,
                              .shard = TSH_ROW,
                              .bias = true,
                              .activation = TSH_ACTIVATION_GELU};
    tsh_linear_config head = {
        .in_features = o->hidden, .out_features = m->vocabulary, .shard = TSH_COLUMN, .bias = true};
    tsh_status status = tsh_embedding_create(m->group, &embedding, &m->embedding);
    if (status == TSH_OK) status = tsh_linear_create(m->group, &up, &m->up);
    if (status == TSH_OK) status = tsh_linear_create(m->group, &down, &m->down);
    if (status == TSH_OK) status = tsh_linear_create(m->group, &head, &m->head);
    return status;
}

static tsh_status create_optimizer(model *m, tsh_world *world) {
    tsh_status status = tsh_parameters_create(world, &m->parameters);
    if (status == TSH_OK) status = tsh_embedding_register(m->embedding, m->parameters, "embedding");
    if (status == TSH_OK) status = tsh_linear_register(m->up, m->parameters, "up");
    if (status == TSH_OK) status = tsh_linear_register(m->down, m->parameters, "down");
    if (status == TSH_OK) status = tsh_linear_register(m->head, m->parameters, "head");
    if (status != TSH_OK) return status;
    status = tsh_adamw_create(m->parameters, &(tsh_adamw_config){.lr = m->o->lr, .weight_decay = 0.01}, &m->optimizer);
    if (status != TSH_OK) return status;
    return tsh_data_parallel_create(m->tape, m->parameters, tsh_mesh_group(m->mesh, "data"), NULL, &m->copies);
}

/* Batches are split over the copies of the model, the first axis; the prompt is the same everywhere. */
static tsh_status create_tensors(model *m) {
    const options *o = m->o;
    tsh_tensor_config ids = {.dtype = TSH_INT64, .ndim = 2, .shape = {o->batch, o->context}, .layout = {TSH_SHARD(0)}};
    tsh_status status = tsh_tensor_create(m->mesh, &ids, &m->inputs);
    ids.ndim = 1;
    if (status == TSH_OK) status = tsh_tensor_create(m->mesh, &ids, &m->targets);
    ids = (tsh_tensor_config){.dtype = TSH_INT64, .ndim = 2, .shape = {1, o->context}};
    if (status == TSH_OK) status = tsh_tensor_create(m->mesh, &ids, &m->prompt);
    return status;
}

static tsh_status create_mesh(model *m, tsh_world *world) {
    char axes[1024];
    const char *share = m->o->model_parallel;
    bool all = !share || strcmp(share, "auto") == 0;
    snprintf(axes, sizeof axes, "data=%s,model=%s", all ? "1" : "-1", share ? share : "-1");
    tsh_status status = tsh_mesh_create(world, axes, &m->mesh);
    if (status == TSH_OK) m->group = tsh_mesh_group(m->mesh, "model");
    return status;
}

model *model_create(tsh_world *world, const options *o, int64_t vocabulary) {
    model *m = calloc(1, sizeof *m);
    float *probabilities = calloc((size_t)vocabulary, sizeof *probabilities);
    if (m && probabilities) {
        *m = (model){.world = world, .o = o, .vocabulary = vocabulary, .probabilities = probabilities};
        tsh_world_seed(world, o->seed);
        if (create_mesh(m, world) == TSH_OK && tsh_tape_create(world, &m->tape) == TSH_OK &&
            create_layers(m) == TSH_OK && create_optimizer(m, world) == TSH_OK && create_tensors(m) == TSH_OK) {
            return m;
        }
        fails("the model", tsh_error_message());
        model_destroy(m);
        return NULL;
    }
    fails("the model", "no memory");
    free(probabilities);
    free(m);
    return NULL;
}

void model_destroy(model *m) {
    if (!m) return;
    tsh_tensor_release(m->prompt);
    tsh_tensor_release(m->targets);
    tsh_tensor_release(m->inputs);
    tsh_data_parallel_destroy(m->copies);
    tsh_optimizer_destroy(m->optimizer);
    tsh_parameters_destroy(m->parameters);
    tsh_linear_destroy(m->head);
    tsh_linear_destroy(m->down);
    tsh_linear_destroy(m->up);
    tsh_embedding_destroy(m->embedding);
    tsh_tape_destroy(m->tape);
    tsh_mesh_destroy(m->mesh);
    free(m->probabilities);
    free(m);
}

/* ids [n, context] -> logits [n, vocabulary], each rank of the group with its part of the vocabulary. */
static tsh_tensor *forward(model *m, tsh_tensor *ids) {
    const int64_t joined[] = {-1, m->o->context * m->o->embed};
    tsh_tensor *bytes = tsh_embedding_forward(m->tape, m->embedding, ids);
    tsh_tensor *x = tsh_reshape(m->tape, bytes, 2, joined);
    tsh_tensor *h = tsh_linear_forward(m->tape, m->up, x);
    tsh_tensor *y = tsh_linear_forward(m->tape, m->down, h);
    return tsh_linear_forward(m->tape, m->head, y);
}

bool model_step(model *m, const int64_t *inputs, const int64_t *targets, double lr, double *loss) {
    tsh_status status = tsh_tensor_write_whole(m->inputs, inputs);
    if (status == TSH_OK) status = tsh_tensor_write_whole(m->targets, targets);
    if (status != TSH_OK) return fails("the batch", tsh_error_message());

    tsh_tensor *mean = tsh_cross_entropy(m->tape, forward(m, m->inputs), m->targets, NULL);
    if (tsh_backward(m->tape, mean) != TSH_OK) return fails("a step", tsh_tape_message(m->tape));
    *loss = tsh_tensor_item(mean);

    status = tsh_optimizer_set_lr(m->optimizer, lr);
    if (status == TSH_OK) status = tsh_clip_grad_norm(m->parameters, 1, NULL);
    if (status == TSH_OK) status = tsh_optimizer_step(m->optimizer);
    if (status != TSH_OK) return fails("a step", tsh_error_message());
    tsh_optimizer_zero_grad(m->optimizer);
    return tsh_tape_reset(m->tape) == TSH_OK || fails("a step", tsh_error_message());
}

/* A run can be resumed only with the same batches, so a checkpoint has the numbers on which they depend. */
static saved_run describe_run(const model *m, const text *t, run_number numbers[RUN_NUMBERS]) {
    numbers[0] = (run_number){"seed", (int64_t)m->o->seed};
    numbers[1] = (run_number){"batch", m->o->batch};
    numbers[2] = (run_number){"text_bytes", t->length};
    return (saved_run){"train_text", m->world, m->parameters, m->optimizer, NULL, numbers, 3, false};
}

bool model_save(model *m, const text *t, int64_t steps) {
    run_number numbers[RUN_NUMBERS];
    const saved_run r = describe_run(m, t, numbers);
    return run_save(&r, m->o->save, steps);
}

bool model_finish_save(model *m) {
    return run_finish_save("train_text", m->world);
}

bool model_load(model *m, const text *t, int64_t *steps) {
    run_number numbers[RUN_NUMBERS];
    const saved_run r = describe_run(m, t, numbers);
    return run_load(&r, m->o->resume, steps);
}

const float *model_predict(model *m, const int64_t *inputs) {
    tsh_status status = tsh_tensor_write_whole(m->prompt, inputs);
    bool recording = tsh_tape_set_recording(m->tape, false);
    tsh_tensor *logits = tsh_gather(m->tape, forward(m, m->prompt), m->group, -1);
    tsh_tensor *sharper = tsh_scale(m->tape, logits, 1 / 0.7); /* temperature 0.7 */
    tsh_tensor *probabilities = tsh_softmax(m->tape, sharper, -1);
    tsh_tape_set_recording(m->tape, recording);
    if (status == TSH_OK) status = tsh_tape_status(m->tape);
    if (status == TSH_OK) status = tsh_tensor_read(probabilities, m->probabilities, m->vocabulary);
    if (status == TSH_OK) status = tsh_tape_reset(m->tape);
    if (status == TSH_OK) return m->probabilities;
    fails("a prediction", tsh_error_message());
    return NULL;
}
