#include "support/language.h"

#include "support/ranks.h"

#include <stdio.h>

enum { VOCABULARY = 13, BATCH = 5, CONTEXT = 3, FEATURES = 6, HIDDEN = 10 };

static tsh_status create_layers(tshi_language *l) {
    tsh_group *group = tsh_mesh_group(l->mesh, "model");
    tsh_embedding_create(
        group, &(tsh_embedding_config){.num_embeddings = VOCABULARY, .embedding_dim = FEATURES, .shard = TSH_ROW},
        &l->embedding);
    tsh_linear_create(group,
                      &(tsh_linear_config){.in_features = CONTEXT * FEATURES,
                                           .out_features = HIDDEN,
                                           .shard = TSH_COLUMN,
                                           .bias = true,
                                           .activation = TSH_ACTIVATION_GELU},
                      &l->up);
    tsh_linear_create(
        group, &(tsh_linear_config){.in_features = HIDDEN, .out_features = HIDDEN, .shard = TSH_ROW, .bias = true},
        &l->down);
    tsh_linear_create(
        group,
        &(tsh_linear_config){.in_features = HIDDEN, .out_features = VOCABULARY, .shard = TSH_COLUMN, .bias = true},
        &l->head);
    return l->embedding && l->up && l->down && l->head ? TSH_OK : TSH_ERR_MEMORY;
}

static tsh_status create_list(tshi_language *l) {
    tsh_status status = tsh_parameters_create(l->world, &l->parameters);
    if (status == TSH_OK) status = tsh_embedding_register(l->embedding, l->parameters, "embedding");
    if (status == TSH_OK) status = tsh_linear_register(l->up, l->parameters, "up");
    if (status == TSH_OK) status = tsh_linear_register(l->down, l->parameters, "down");
    if (status == TSH_OK) status = tsh_linear_register(l->head, l->parameters, "head");
    return status;
}

tsh_status tshi_language_share(tshi_language *l) {
    tsh_group *data = tsh_mesh_group(l->mesh, "data");
    const tsh_data_parallel_config several = {.bucket_bytes = 512, .first_bucket_bytes = 64, .level = l->level};
    return data ? tsh_data_parallel_create(l->tape, l->parameters, data, &several, &l->copies) : TSH_OK;
}

tsh_status tshi_language_optimize(tshi_language *l) {
    return tsh_adamw_create(l->parameters, &(tsh_adamw_config){.lr = 0.01, .weight_decay = 0.1}, &l->optimizer);
}

static tsh_status create_batch(tshi_language *l) {
    int64_t inputs[BATCH * CONTEXT], targets[BATCH];
    tsh_tensor_config ids = {.dtype = TSH_INT64, .ndim = 2, .shape = {BATCH, CONTEXT}, .layout = {TSH_SHARD(0)}};
    for (int i = 0; i < BATCH * CONTEXT; i++) inputs[i] = i * 7 % VOCABULARY;
    for (int i = 0; i < BATCH; i++) targets[i] = (i * 5 + 2) % VOCABULARY;
    tsh_status status = tsh_tensor_create(l->mesh, &ids, &l->inputs);
    ids.ndim = 1;
    if (status == TSH_OK) status = tsh_tensor_create(l->mesh, &ids, &l->targets);
    if (status == TSH_OK) status = tsh_tensor_write_whole(l->inputs, inputs);
    if (status == TSH_OK) status = tsh_tensor_write_whole(l->targets, targets);
    return status;
}

tsh_status tshi_language_create(tsh_world *world, const char *axes, tshi_language *out) {
    return tshi_language_create_sharded(world, axes, TSH_ZERO_NOTHING, out);
}

tsh_status tshi_language_create_sharded(tsh_world *world, const char *axes, tsh_zero_level level, tshi_language *out) {
    tsh_status status = tshi_language_create_bare(world, axes, level, out);
    if (status != TSH_OK) return status;
    status = tshi_language_share(out);
    if (status == TSH_OK) status = tshi_language_optimize(out);
    if (status != TSH_OK) tshi_language_destroy(out);
    return status;
}

tsh_status tshi_language_create_bare(tsh_world *world, const char *axes, tsh_zero_level level, tshi_language *out) {
    *out = (tshi_language){.world = world, .level = level};
    tsh_world_seed(world, 1);
    tsh_status status = tsh_mesh_create(world, axes, &out->mesh);
    if (status == TSH_OK) status = tsh_tape_create(world, &out->tape);
    if (status == TSH_OK) status = create_layers(out);
    if (status == TSH_OK) status = create_list(out);
    if (status == TSH_OK) status = create_batch(out);
    if (status != TSH_OK) tshi_language_destroy(out);
    return status;
}

void tshi_language_destroy(tshi_language *l) {
    tsh_tensor_release(l->targets);
    tsh_tensor_release(l->inputs);
    tsh_optimizer_destroy(l->optimizer);
    tsh_data_parallel_destroy(l->copies);
    tsh_parameters_destroy(l->parameters);
    tsh_linear_destroy(l->head);
    tsh_linear_destroy(l->down);
    tsh_linear_destroy(l->up);
    tsh_embedding_destroy(l->embedding);
    tsh_tape_destroy(l->tape);
    tsh_mesh_destroy(l->mesh);
    *l = (tshi_language){0};
}

tsh_tensor *tshi_language_loss(tshi_language *l) {
    tsh_mark start = tsh_tape_mark(l->tape);
    tsh_tensor *e = tsh_embedding_forward(l->tape, l->embedding, l->inputs);
    tsh_tensor *x = tsh_reshape(l->tape, e, 2, (int64_t[]){-1, CONTEXT * FEATURES});
    tsh_mark inner = tsh_tape_mark(l->tape);
    tsh_tensor *h = tsh_linear_forward(l->tape, l->up, x);
    tsh_tensor *y = tsh_gelu(l->tape, tsh_linear_forward(l->tape, l->down, h));
    if (l->recompute) y = tsh_tape_recompute_since_with(l->tape, inner, y, &(tsh_recompute_config){.offload = true});
    if (l->recompute) y = tsh_tape_recompute_since(l->tape, start, y);
    return tsh_cross_entropy(l->tape, tsh_linear_forward(l->tape, l->head, y), l->targets, NULL);
}

tsh_status tshi_language_gradients(tshi_language *l, double *loss, double *norm, char *words) {
    tsh_optimizer_zero_grad(l->optimizer);
    tsh_tensor *mean = tshi_language_loss(l);
    tsh_status status = tsh_backward(l->tape, mean), reset;
    if (status != TSH_OK) {
        if (words) snprintf(words, TSHI_TEST_WORDS, "%s", tsh_tape_message(l->tape));
        reset = tsh_tape_reset(l->tape);
        return reset == TSH_OK ? status : reset;
    }
    *loss = tsh_tensor_item(mean);
    status = tsh_clip_grad_norm(l->parameters, 0.5, norm);
    if (status != TSH_OK && words) snprintf(words, TSHI_TEST_WORDS, "%s", tsh_error_message());
    reset = tsh_tape_reset(l->tape);
    return reset == TSH_OK ? status : reset;
}

tsh_status tshi_language_update(tshi_language *l) {
    return tsh_optimizer_step(l->optimizer);
}
