/* The GPT of train_gpt: its mesh, layers, optimizer, and a step. */
#include "resume.h"
#include "train_gpt.h"

#include <math.h>
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

    tsh_embedding *tokens,
        *positions; /* tokens: rows, the vocabulary, are split over the group; also the output head */
    tsh_block **blocks;
    tsh_norm *norm;
    tsh_parameters *parameters;
    tsh_optimizer *optimizer;
    tsh_loss_scale scale;    /* with --loss-scale */
    tsh_data_parallel *sums; /* of gradients, over the copies of the model, made while backward runs */

    tsh_tensor *inputs, *targets, *places; /* my part of a batch [batch, block]; places: the numbers of its positions */
    int64_t *order, *numbers;              /* with split tokens, their order [block], and a batch in this order */
    tsh_tensor *prompt, *prompt_places;    /* [1, block], the same on every rank */
};

/* Print what failed with the library's message, and return false. */
static bool fails(const char *what, const char *why) {
    fprintf(stderr, "train_gpt: %s: %s\n", what, why);
    return false;
}

/* As `fails`, for a call of the library; prints nothing where the program will go on after a death. Returns status. */
static tsh_status fails_with(const options *o, tsh_status status, const char *what, const char *why) {
    bool goes_on = o->survives && (status == TSH_ERR_PEER || status == TSH_ERR_TIMEOUT);
    if (!goes_on) fails(what, why);
    return status;
}

/* --- the model ---------------------------------------------------------------------------------------------------- */

static tsh_status create_blocks(model *m) {
    const options *o = m->o;
    /* GPT-2's 0.02 is for 768 features; scaled, outputs have the same variance at any number of features. */
    const double deviation = 0.02 * sqrt(768 / (double)o->embed);
    const tsh_init normal = {.kind = TSH_INIT_NORMAL, .b = deviation};
    const tsh_init residual = {.kind = TSH_INIT_NORMAL, .b = deviation / sqrt(2.0 * (double)o->layers)};
    const tsh_block_config config = {
        .embed = o->embed,
        .sequence_parallel = o->sequence_parallel,
        .recompute = o->recompute,
        .dtype = o->dtype,
        .attention = {.heads = o->heads,
                      .kv_heads = o->kv_heads,
                      .causal = true,
                      .context = o->exchange_heads     ? TSH_CONTEXT_EXCHANGE
                                 : o->ring             ? TSH_CONTEXT_RING
                                 : o->context_parallel ? TSH_CONTEXT_GATHER
                                                       : TSH_CONTEXT_IN_ORDER,
                      .weight_init = normal,
                      .out_init = residual},
        .mlp = {.hidden = 4 * o->embed,
                .activation = TSH_ACTIVATION_GELU,
                .weight_init = normal,
                .down_init = residual},
        .experts =
            {.hidden = 4 * o->embed,
             .experts = o->experts,
             .router = {.top_k = o->top_k, .score = TSH_ROUTER_SOFTMAX, .renormalize = true, .aux_loss = o->aux_loss},
             .capacity = o->capacity,
             .router_init = normal,
             .expert_group = o->expert_parallel ? tsh_mesh_group(m->mesh, "expert") : NULL,
             .weight_init = normal,
             .down_init = residual},
    };
    tsh_status status = TSH_OK;
    for (int64_t i = 0; i < o->layers && status == TSH_OK; i++) {
        status = tsh_block_create(m->group, &config, &m->blocks[i]);
    }
    return status;
}

static tsh_arithmetic arithmetic_in(tsh_dtype dtype) {
    switch (dtype) {
    case TSH_FLOAT32: return TSH_ARITHMETIC_FLOAT32;
    case TSH_BFLOAT16: return TSH_ARITHMETIC_BFLOAT16;
    case TSH_FLOAT16: return TSH_ARITHMETIC_FLOAT16;
    case TSH_DTYPE_COUNT: return TSH_ARITHMETIC_AS_STORED;
    default: return (tsh_arithmetic)-1; /* which tshard refuses */
    }
}

static tsh_status create_layers(model *m) {
    const options *o = m->o;
    tsh_embedding_config table = {.num_embeddings = m->vocabulary,
                                  .embedding_dim = o->embed,
                                  .shard = TSH_ROW,
                                  .sequence_parallel = o->sequence_parallel,
                                  .dtype = o->dtype,
                                  .init = {.kind = TSH_INIT_NORMAL, .b = 0.02}};
    tsh_status status = tsh_embedding_create(m->group, &table, &m->tokens);
    table.num_embeddings = o->block;
    table.shard = TSH_DENSE;
    table.sequence_parallel = false;
    if (status == TSH_OK) status = tsh_embedding_create(m->group, &table, &m->positions);
    if (status == TSH_OK) status = create_blocks(m);
    if (status != TSH_OK) return status;
    return tsh_norm_create(m->group, &(tsh_norm_config){.features = o->embed, .dtype = o->dtype}, &m->norm);
}

/* Freezes everything but the layers that --train-only names. */
static tsh_status freeze_others(const model *m) {
    char name[256];
    const char *names = m->o->train_only;
    tsh_status status = names ? tsh_parameters_freeze(m->parameters, "*") : TSH_OK;
    while (status == TSH_OK && names && *names) {
        size_t length = strcspn(names, ",");
        snprintf(name, sizeof name, "%.*s", (int)length, names);
        status = tsh_parameters_unfreeze(m->parameters, name);
        names += length + (names[length] == ',');
    }
    return status;
}

static tsh_status register_layers(model *m) {
    char name[32];
    tsh_status status = tsh_parameters_create(m->world, &m->parameters);
    if (status == TSH_OK) status = tsh_embedding_register(m->tokens, m->parameters, "tokens");
    if (status == TSH_OK) status = tsh_embedding_register(m->positions, m->parameters, "positions");
    for (int64_t i = 0; i < m->o->layers && status == TSH_OK; i++) {
        snprintf(name, sizeof name, "layers.%lld", (long long)i);
        status = tsh_block_register(m->blocks[i], m->parameters, name);
    }
    return status == TSH_OK ? tsh_norm_register(m->norm, m->parameters, "norm") : status;
}

/* Loads the weights of a checkpoint with as many heads, which no parameter's shape shows. False after printing why
 * not. */
static bool load_base(model *m) {
    int64_t heads = 0;
    tsh_value value = {.name = "heads", .data = &heads};
    tsh_checkpoint c = {.parameters = m->parameters, .values = &value, .value_count = 1};
    if (tsh_checkpoint_load(m->o->base, &c) != TSH_OK) return fails("the base", tsh_error_message());
    if (heads != m->o->heads) return fails("the base", "its layers have another number of heads");
    tsh_world_seed(m->world, m->o->seed);
    return true;
}

/* With --lora: freezes everything, and adds adapters to the blocks. */
static tsh_status adapt_layers(model *m) {
    char name[32];
    const tsh_lora_config config = {.rank = m->o->lora, .alpha = m->o->lora_alpha, .dropout = m->o->lora_dropout};
    if (!m->o->lora) return TSH_OK;
    tsh_status status = tsh_parameters_freeze(m->parameters, "*");
    for (int64_t i = 0; i < m->o->layers && status == TSH_OK; i++) {
        snprintf(name, sizeof name, "layers.%lld", (long long)i);
        status = tsh_block_adapt(m->blocks[i], &config, m->parameters, name);
    }
    return status;
}

/* What 16-bit parameters do with the bits that a step's result has beyond theirs. */
static tsh_low_bits low_bits(const options *o) {
    return o->master_weights ? TSH_MASTER_WEIGHTS : o->stochastic ? TSH_STOCHASTIC_ROUNDING : TSH_LOSE_LOW_BITS;
}

static tsh_status set_precision(const model *m) {
    static const char *const routers[] = {"layers.*.mlp.gate", NULL};
    const options *o = m->o;
    const tsh_precision precision = {.storage = o->dtype,
                                     .reduction = TSH_FLOAT32,
                                     .float32_layers = o->experts && o->dtype != TSH_FLOAT64 ? routers : NULL,
                                     .arithmetic = arithmetic_in(o->arithmetic)};
    bool mixed = o->dtype != TSH_FLOAT64 && (o->master_weights || o->stochastic);
    return mixed || precision.arithmetic ? tsh_parameters_set_precision(m->parameters, &precision) : TSH_OK;
}

/* Gradients are summed over all axes that split a batch, over one of them in buckets. */
static tsh_status sum_gradients(model *m) {
    const options *o = m->o;
    const tsh_data_parallel_config sums = {
        .level = (tsh_zero_level)o->zero, .model = m->group, .sequence_parallel = o->sequence_parallel};
    tsh_group *data = tsh_mesh_group(m->mesh, "data");
    tsh_group *context = o->context_parallel ? tsh_mesh_group(m->mesh, "context") : NULL;
    if (context && tsh_group_size(context) > tsh_group_size(data)) data = context;
    return tsh_data_parallel_create(m->tape, m->parameters, data, &sums, &m->sums);
}

static bool has_muon(const options *o) {
    return o->optimizer && strcmp(o->optimizer, "muon") == 0;
}

static tsh_status create_adamw(model *m) {
    const tsh_adamw_config adamw = {.lr = m->o->lr,
                                    .beta1 = 0.9,
                                    .beta2 = 0.99,
                                    .weight_decay = m->o->weight_decay,
                                    .decay_matrices = true,
                                    .low_bits = low_bits(m->o)};
    return tsh_adamw_create(m->parameters, &adamw, &m->optimizer);
}

/* Muon steps the matrices of the blocks; AdamW steps vectors, stacks of experts, and these two tables. The output head
 * is the table of tokens. */
static tsh_status create_muon(model *m) {
    const char *const others[] = {"tokens", "positions", NULL};
    const tsh_muon_config muon = {.lr = m->o->muon_lr,
                                  .weight_decay = m->o->weight_decay,
                                  .adamw = others,
                                  .adamw_lr_factor = m->o->lr / m->o->muon_lr,
                                  .beta1 = 0.9,
                                  .beta2 = 0.99,
                                  .decay_matrices = true,
                                  .low_bits = low_bits(m->o)};
    return tsh_muon_create(m->parameters, &muon, &m->optimizer);
}

static tsh_status create_optimizer(model *m) {
    tsh_status status = adapt_layers(m);
    if (status == TSH_OK) status = set_precision(m);
    if (status == TSH_OK) status = freeze_others(m);
    if (status == TSH_OK) status = sum_gradients(m);
    if (status != TSH_OK) return status;
    return has_muon(m->o) ? create_muon(m) : create_adamw(m);
}

/* The optimizer's own rate when AdamW steps at `lr`. */
static double optimizer_rate(const options *o, double lr) {
    return has_muon(o) ? lr * o->muon_lr / o->lr : lr;
}

/* The positions of a batch, or of the prompt: 0 to block - 1 in each sequence, of a batch in the order of the tokens.
 * Batches are split over the copies of the model, the first axis, over the experts' axis if there is one, and by tokens
 * over the context's; the prompt is the same everywhere. */
static tsh_status create_places(const model *m, bool prompt, tsh_tensor **out) {
    int64_t block = m->o->block, batch = prompt ? 1 : m->o->batch, *places = calloc((size_t)(batch * block), 8);
    tsh_tensor_config config = {.dtype = TSH_INT64, .ndim = 2, .shape = {batch, block}};
    if (!prompt) config.layout[0] = TSH_SHARD(0);
    if (!prompt && m->o->expert_parallel) config.layout[1] = TSH_SHARD(0);
    if (!prompt && m->order) config.layout[m->o->expert_parallel ? 2 : 1] = TSH_SHARD(1);
    tsh_status status = tsh_tensor_create(m->mesh, &config, out);
    for (int64_t i = 0; places && i < batch * block; i++)
        places[i] = m->order && !prompt ? m->order[i % block] : i % block;
    if (status == TSH_OK) status = places ? tsh_tensor_write_whole(*out, places) : TSH_ERR_MEMORY;
    free(places);
    return status;
}

static tsh_status create_tensors(model *m) {
    tsh_status status = create_places(m, false, &m->places);
    if (status == TSH_OK) status = create_places(m, false, &m->inputs);
    if (status == TSH_OK) status = create_places(m, false, &m->targets);
    if (status == TSH_OK) status = create_places(m, true, &m->prompt_places);
    return status == TSH_OK ? create_places(m, true, &m->prompt) : status;
}

/* The size of the axis that an option leaves open: what `other` leaves, unless that takes all ranks itself. */
static const char *open_size(const char *other) {
    return strcmp(other, "auto") == 0 ? "1" : "-1";
}

static tsh_status create_mesh(model *m) {
    char axes[1024];
    const char *share = m->o->model_parallel, *copies = m->o->data_parallel, *context = m->o->context_parallel;
    const char *experts = m->o->expert_parallel;
    snprintf(axes, sizeof axes, "data=%s,%s%s%s%s%s%smodel=%s",
             copies  ? copies
             : share ? open_size(share)
                     : "1",
             experts ? "expert=" : "", experts ? experts : "", experts ? "," : "", context ? "context=" : "",
             context ? context : "", context ? "," : "",
             share    ? share
             : copies ? open_size(copies)
                      : "-1");
    tsh_status status = tsh_mesh_create(m->world, axes, &m->mesh);
    if (status == TSH_OK) m->group = tsh_mesh_group(m->mesh, "model");
    return status;
}

/* With split tokens: the order in which a causal mask gives the ranks equal work. */
static tsh_status create_order(model *m) {
    if (!m->o->context_parallel) return TSH_OK;
    tsh_group *context = tsh_mesh_group(m->mesh, "context");
    m->order = calloc((size_t)m->o->block, sizeof *m->order);
    m->numbers = calloc((size_t)(m->o->batch * m->o->block), sizeof *m->numbers);
    if (!m->order || !m->numbers) return TSH_ERR_MEMORY;
    tsh_zigzag(m->o->block, tsh_group_size(context), m->order);
    return TSH_OK;
}

tsh_status model_create(tsh_world *world, const options *o, int64_t vocabulary, model **out) {
    model *m = calloc(1, sizeof *m);
    tsh_block **blocks = calloc((size_t)o->layers, sizeof(tsh_block *));
    *out = NULL;
    if (!m || !blocks) {
        fails("the model", "no memory");
        free(blocks);
        free(m);
        return TSH_ERR_MEMORY;
    }
    *m = (model){.world = world, .o = o, .vocabulary = vocabulary, .blocks = blocks};
    tsh_world_seed(world, o->seed);
    tsh_status status = create_mesh(m);
    if (status == TSH_OK) status = tsh_tape_create(world, &m->tape);
    if (status == TSH_OK) status = create_layers(m);
    if (status == TSH_OK) status = register_layers(m);
    if (status == TSH_OK && o->base && !load_base(m)) {
        model_destroy(m);
        return TSH_ERR_IO;
    }
    if (status == TSH_OK) status = create_optimizer(m);
    if (status == TSH_OK) status = create_order(m);
    if (status == TSH_OK) status = create_tensors(m);
    if (status == TSH_OK) {
        *out = m;
        return TSH_OK;
    }
    fails_with(o, status, "the model", tsh_error_message());
    model_destroy(m);
    return status;
}

void model_destroy(model *m) {
    if (!m) return;
    tsh_tensor_release(m->prompt_places);
    tsh_tensor_release(m->prompt);
    tsh_tensor_release(m->places);
    tsh_tensor_release(m->targets);
    tsh_tensor_release(m->inputs);
    free(m->numbers);
    free(m->order);
    tsh_optimizer_destroy(m->optimizer);
    tsh_data_parallel_destroy(m->sums);
    tsh_parameters_destroy(m->parameters);
    tsh_norm_destroy(m->norm);
    for (int64_t i = 0; i < m->o->layers; i++) tsh_block_destroy(m->blocks[i]);
    tsh_embedding_destroy(m->positions);
    tsh_embedding_destroy(m->tokens);
    tsh_tape_destroy(m->tape);
    tsh_mesh_destroy(m->mesh);
    free(m->blocks);
    free(m);
}

int64_t model_parameters(const model *m) {
    int64_t count = 0;
    for (int i = 0; i < tsh_parameters_count(m->parameters); i++) {
        const tsh_tensor *p = tsh_parameters_tensor(m->parameters, i);
        int64_t numel = 1;
        for (int d = 0; d < tsh_tensor_ndim(p); d++) numel *= tsh_tensor_shape(p)[d];
        count += numel;
    }
    return count;
}

tsh_parameters *model_list(const model *m) {
    return m->parameters;
}

tsh_optimizer *model_optimizer(const model *m) {
    return m->optimizer;
}

/* Ids as layers take them: of all tokens, or with split tokens, which are a part of each sequence, [batch, block]. */
static tsh_tensor *flatten(const model *m, tsh_tensor *ids) {
    return m->order ? ids : tsh_reshape(m->tape, ids, 1, (const int64_t[]){-1});
}

/* ids and places [batch, block] -> features [batch block, embed], or with split tokens [batch, block, embed], which the
 * table of tokens turns into logits. */
static tsh_tensor *forward(model *m, tsh_tensor *ids, tsh_tensor *places, int64_t batch) {
    tsh_tape *t = m->tape;
    const tsh_sequences sequences = {.batch = batch, .positions = m->order ? places : NULL};
    tsh_tensor *at = flatten(m, places);
    if (m->o->sequence_parallel) at = tsh_scatter(t, at, m->group, 0);
    tsh_tensor *x = tsh_embedding_forward(t, m->tokens, flatten(m, ids));
    x = tsh_add(t, x, tsh_embedding_forward(t, m->positions, at));
    tsh_mark start = tsh_tape_mark(t); /* in an evaluation a block's output is freed when the next one has used it */
    for (int64_t i = 0; i < m->o->layers; i++)
        x = tsh_tape_free_since(t, start, tsh_block_forward(t, m->blocks[i], x, &sequences));
    return tsh_norm_forward(t, m->norm, x);
}

/* Writes a batch, in the order of the tokens. */
static tsh_status write_batch(model *m, const int64_t *ids, tsh_tensor *to) {
    const int64_t block = m->o->block;
    for (int64_t i = 0; m->order && i < m->o->batch * block; i++)
        m->numbers[i] = ids[i / block * block + m->order[i % block]];
    return tsh_tensor_write_whole(to, m->order ? m->numbers : ids);
}

/* The mean loss of the batch, a tensor of the step. */
static tsh_status batch_loss(model *m, const int64_t *inputs, const int64_t *targets, tsh_tensor **loss) {
    tsh_status status = write_batch(m, inputs, m->inputs);
    *loss = NULL;
    if (status == TSH_OK) status = write_batch(m, targets, m->targets);
    if (status != TSH_OK) return fails_with(m->o, status, "the batch", tsh_error_message());
    tsh_tensor *wanted = flatten(m, m->targets);
    tsh_tensor *features = forward(m, m->inputs, m->places, m->o->batch);
    *loss = tsh_linear_cross_entropy(m->tape, features, tsh_embedding_weight(m->tokens), wanted, NULL);
    return *loss ? TSH_OK : fails_with(m->o, tsh_tape_status(m->tape), "a step", tsh_tape_message(m->tape));
}

/* Clips the gradients and steps, unless a gradient of the scaled loss has overflowed. */
static tsh_status update(model *m) {
    tsh_status status = TSH_OK;
    bool finite = true;
    if (m->o->scales_loss) {
        status = tsh_loss_scale_unscale(&m->scale, m->parameters, m->o->clip, NULL, &finite);
        if (status == TSH_OK) status = tsh_loss_scale_update(&m->scale, finite);
    } else {
        status = tsh_clip_grad_norm(m->parameters, m->o->clip, NULL);
    }
    return status == TSH_OK && finite ? tsh_optimizer_step(m->optimizer) : status;
}

/* With the losses of the experts' balance. */
static tsh_tensor *add_balance(const model *m, tsh_tensor *loss) {
    for (int64_t i = 0; i < m->o->layers; i++) {
        tsh_tensor *balance = tsh_experts_loss(tsh_block_experts(m->blocks[i]));
        if (balance) loss = tsh_add(m->tape, loss, tsh_cast(m->tape, balance, tsh_tensor_dtype(loss)));
        if (!loss) return NULL;
    }
    return loss;
}

static tsh_status learn(model *m, tsh_tensor *mean, double lr) {
    tsh_tensor *all = add_balance(m, mean);
    tsh_tensor *scaled = m->o->scales_loss ? tsh_loss_scale_apply(m->tape, &m->scale, all) : all;
    tsh_status status = tsh_backward(m->tape, scaled);
    if (status != TSH_OK) return fails_with(m->o, status, "a step", tsh_tape_message(m->tape));
    status = tsh_optimizer_set_lr(m->optimizer, optimizer_rate(m->o, lr));
    if (status == TSH_OK) status = update(m);
    if (status != TSH_OK) return fails_with(m->o, status, "a step", tsh_error_message());
    tsh_optimizer_zero_grad(m->optimizer);
    return TSH_OK;
}

tsh_status model_step(model *m, const int64_t *inputs, const int64_t *targets, double lr, double *loss) {
    tsh_tensor *mean;
    tsh_status status = batch_loss(m, inputs, targets, &mean);
    tsh_tensor_retain(mean); /* backward frees the unscaled loss unless it is retained */
    if (status == TSH_OK) status = learn(m, mean, lr);
    if (status == TSH_OK) *loss = tsh_tensor_item(mean);
    tsh_tensor_release(mean);
    if (status != TSH_OK) return status;
    status = tsh_tape_reset(m->tape);
    return status == TSH_OK ? status : fails_with(m->o, status, "a step", tsh_error_message());
}

bool model_loss(model *m, const int64_t *inputs, const int64_t *targets, double *loss) {
    bool recording = tsh_tape_set_recording(m->tape, false);
    tsh_tensor *mean;
    tsh_status status = batch_loss(m, inputs, targets, &mean);
    tsh_tape_set_recording(m->tape, recording);
    if (status != TSH_OK) return false;
    *loss = tsh_tensor_item(mean);
    return tsh_tape_reset(m->tape) == TSH_OK || fails("an evaluation", tsh_error_message());
}

float *model_predict(model *m, const int64_t *window, int64_t length) {
    float *probabilities = calloc((size_t)m->vocabulary, sizeof *probabilities);
    bool recording = tsh_tape_set_recording(m->tape, false);
    tsh_status status = tsh_tensor_write_whole(m->prompt, window);
    /* Tokens after the window's end do not affect its last prediction. */
    tsh_tensor *features = forward(m, m->prompt, m->prompt_places, 1);
    features = tsh_reshape(m->tape, features, 2, (const int64_t[]){-1, m->o->embed});
    tsh_tensor *logits = tsh_embedding_project(m->tape, m->tokens, features);
    logits = tsh_slice(m->tape, logits, 0, length - 1, 1);
    logits = tsh_gather(m->tape, logits, m->group, -1);
    tsh_tensor *y = tsh_softmax(m->tape, tsh_scale(m->tape, logits, 1 / 0.8), -1); /* temperature 0.8 */
    y = tsh_cast(m->tape, y, TSH_FLOAT32);
    tsh_tape_set_recording(m->tape, recording);
    if (status == TSH_OK) status = tsh_tape_status(m->tape);
    if (status == TSH_OK) status = probabilities ? tsh_tensor_read(y, probabilities, m->vocabulary) : TSH_ERR_MEMORY;
    if (status == TSH_OK) status = tsh_tape_reset(m->tape);
    if (status == TSH_OK) return probabilities;
    fails("a prediction", tsh_error_message());
    free(probabilities);
    return NULL;
}

/* --- checkpoints -------------------------------------------------------------------------------------------------- */

/* A run can be resumed only with the same batches, so a checkpoint has the numbers on which they depend; and the number
 * of heads, which no parameter's shape shows. */
static saved_run describe_run(model *m, const text *t, run_number numbers[RUN_NUMBERS]) {
    numbers[0] = (run_number){"seed", (int64_t)m->o->seed};
    numbers[1] = (run_number){"batch", m->o->batch};
    numbers[2] = (run_number){"block", m->o->block};
    numbers[3] = (run_number){"text_bytes", t->length};
    numbers[4] = (run_number){"heads", m->o->heads};
    return (saved_run){
        "train_gpt", m->world, m->parameters,           m->optimizer, m->o->scales_loss ? &m->scale : NULL,
        numbers,     5,        m->o->train_only != NULL};
}

bool model_save(model *m, const text *t, int64_t steps) {
    run_number numbers[RUN_NUMBERS];
    const saved_run r = describe_run(m, t, numbers);
    return run_save(&r, m->o->save, steps);
}

bool model_finish_save(model *m) {
    return run_finish_save("train_gpt", m->world);
}

bool model_load(model *m, const text *t, int64_t *steps) {
    run_number numbers[RUN_NUMBERS];
    const saved_run r = describe_run(m, t, numbers);
    return run_load(&r, m->o->resume, steps);
}
