#include "model.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const model_kind *const kinds[] = {&model_gpt2,  &model_llama, &model_llama, &model_llama,
                                          &model_llama, &model_llama, &model_bert}; /* as model_family */

struct model_cache {
    int64_t count;
    tsh_kv_cache *blocks[];
};

/* --- the model ---------------------------------------------------------------------------------------------------- */

tsh_status model_create(tsh_group *group, const model_config *config, const model_options *options, model **out) {
    *out = NULL;
    model *m = calloc(1, sizeof *m);
    if (!m) return TSH_ERR_MEMORY;
    *m = (model){.config = *config, .options = *options, .group = group, .kind = kinds[config->family]};
    m->blocks = calloc((size_t)config->layers, sizeof(tsh_block *));
    tsh_status status = m->blocks ? TSH_OK : TSH_ERR_MEMORY;
    if (status == TSH_OK) status = tsh_parameters_create(tsh_group_world(group), &m->parameters);
    if (status == TSH_OK) status = m->kind->create(m);
    if (status != TSH_OK) {
        model_destroy(m);
        return status;
    }
    *out = m;
    return TSH_OK;
}

void model_destroy(model *m) {
    if (!m) return;
    for (int64_t i = 0; m->blocks && i < m->config.layers; i++) tsh_block_destroy(m->blocks[i]);
    free(m->blocks);
    free(m->rule_texts);
    tsh_linear_destroy(m->head);
    tsh_norm_destroy(m->norm);
    tsh_embedding_destroy(m->types);
    tsh_embedding_destroy(m->positions);
    tsh_embedding_destroy(m->words);
    tsh_parameters_destroy(m->parameters);
    free(m);
}

/* Whether the names in FOLDER's files begin with a prefix: so says the header of model.safetensors, or the index. */
static bool has_prefix(const char *folder, const char *prefix) {
    char path[4096], quoted[64];
    unsigned char size[8] = {0};
    snprintf(quoted, sizeof quoted, "\"%s", prefix);
    snprintf(path, sizeof path, "%s/model.safetensors", folder);
    FILE *file = fopen(path, "rb");
    size_t length = 100000000; /* the longest header */
    if (file && fread(size, 1, 8, file) == 8) {
        size_t header = (size_t)size[0] | (size_t)size[1] << 8 | (size_t)size[2] << 16 | (size_t)size[3] << 24;
        length = header < length ? header : length;
    } else if (!file) {
        snprintf(path, sizeof path, "%s/model.safetensors.index.json", folder);
        file = fopen(path, "rb");
    }
    char *text = file ? calloc(length + 1, 1) : NULL;
    bool found = text && fread(text, 1, length, file) > 0 && strstr(text, quoted);
    free(text);
    if (file) fclose(file);
    return found;
}

/* The rules for files whose names have another prefix than the parameters. */
static void set_prefix(model *m, const char *folder) {
    const char *prefix = m->kind->prefix;
    bool own = prefix && strncmp(tsh_parameters_name(m->parameters, 0), prefix, strlen(prefix)) == 0;
    if (!prefix || has_prefix(folder, prefix) == own) return;
    for (int i = 0; own && i < m->rule_count; i++) m->rules[i].tensor += strlen(prefix);
    m->rules[m->rule_count++] = own ? (tsh_name_rule){.parameter = m->kind->names, .tensor = "*"}
                                    : (tsh_name_rule){"*", m->kind->names, false, 0, 0, 0, 0, false};
}

tsh_status model_load(model *m, const char *folder) {
    set_prefix(m, folder);
    tsh_load_options options = {.rules = m->rules,
                                .rule_count = m->rule_count,
                                .allow_unexpected = m->kind->allow_unexpected,
                                .ignored = m->kind->ignored,
                                .keep_quantized = m->options.keep_quantized};
    return tsh_load(m->parameters, folder, &options);
}

/* True when the targets name this layer; without targets only the blocks are adapted. */
static bool names_layer(const tsh_lora_config *config, const char *layer) {
    const char *last = strrchr(layer, '.');
    for (const char *const *t = config->targets; t && *t; t++) {
        if (strcmp(*t, layer) == 0 || strcmp(*t, last ? last + 1 : layer) == 0) return true;
    }
    return false;
}

/* The head may be a layer of its own, or the table of the words. */
static tsh_status adapt_words(model *m, const tsh_lora_config *config) {
    bool words = m->words && names_layer(config, m->words_name), head = names_layer(config, "lm_head");
    tsh_status status = TSH_OK;
    if (words) status = tsh_embedding_adapt(m->words, TSH_EMBEDDING_LOOKUP, config, m->parameters, m->words_name);
    if (!head || status != TSH_OK) return status;
    if (m->head) return tsh_linear_adapt(m->head, config, m->parameters, "lm_head");
    return m->config.tied ? tsh_embedding_adapt(m->words, TSH_EMBEDDING_HEAD, config, m->parameters, "lm_head")
                          : TSH_OK;
}

tsh_status model_adapt(model *m, const tsh_lora_config *config) {
    char name[64];
    tsh_status status = tsh_parameters_freeze(m->parameters, "*");
    for (int64_t i = 0; status == TSH_OK && i < m->config.layers; i++) {
        snprintf(name, sizeof name, "%s.%lld", m->block_names, (long long)i);
        status = tsh_block_adapt(m->blocks[i], config, m->parameters, name);
    }
    return status == TSH_OK ? adapt_words(m, config) : status;
}

tsh_status model_load_adapter(model *m, const char *folder) {
    tsh_lora_config *config;
    tsh_status status = tsh_adapter_config_read(tsh_group_world(m->group), folder, &config);
    if (status != TSH_OK) return status;
    status = model_adapt(m, config);
    tsh_adapter_config_destroy(config);
    return status == TSH_OK ? tsh_adapter_load(m->parameters, folder) : status;
}

tsh_status model_merge(model *m, bool merged) {
    tsh_status status = m->head ? tsh_linear_merge(m->head, merged) : TSH_OK;
    for (int64_t i = 0; status == TSH_OK && i < m->config.layers; i++) status = tsh_block_merge(m->blocks[i], merged);
    return status;
}

tsh_tensor *model_forward(model *m, tsh_tape *tape, const model_input *in) {
    return m->kind->forward(m, tape, in);
}

/* --- parts -------------------------------------------------------------------------------------------------------- */

/* Random initial values, or zeros. */
static tsh_init weights_of(const model *m) {
    if (!m->options.random_weights) return (tsh_init){.kind = TSH_INIT_CONSTANT};
    return (tsh_init){.kind = TSH_INIT_NORMAL, .b = 0.02};
}

tsh_status model_add_words(model *m, const char *name) {
    tsh_embedding_config config = {.num_embeddings = m->config.vocabulary,
                                   .embedding_dim = m->config.width,
                                   .shard = TSH_ROW,
                                   .sequence_parallel = m->options.sequence_parallel,
                                   .dtype = m->options.dtype,
                                   .init = weights_of(m)};
    tsh_status status = tsh_embedding_create(m->group, &config, &m->words);
    m->words_name = name;
    return status == TSH_OK ? tsh_embedding_register(m->words, m->parameters, name) : status;
}

tsh_status model_add_table(model *m, int64_t rows, const char *name, tsh_embedding **out) {
    tsh_embedding_config config = {
        .num_embeddings = rows, .embedding_dim = m->config.width, .dtype = m->options.dtype, .init = weights_of(m)};
    tsh_status status = tsh_embedding_create(m->group, &config, out);
    return status == TSH_OK ? tsh_embedding_register(*out, m->parameters, name) : status;
}

tsh_status model_add_norm(model *m, const tsh_norm_config *config, const char *name) {
    tsh_norm_config filled = *config;
    filled.features = m->config.width;
    filled.dtype = m->options.dtype;
    tsh_status status = tsh_norm_create(m->group, &filled, &m->norm);
    return status == TSH_OK ? tsh_norm_register(m->norm, m->parameters, name) : status;
}

tsh_status model_add_head(model *m, const char *name) {
    if (m->config.tied) return TSH_OK;
    tsh_linear_config config = {.in_features = m->config.width,
                                .out_features = m->config.vocabulary,
                                .shard = TSH_COLUMN,
                                .dtype = m->options.dtype,
                                .weight_init = weights_of(m)};
    tsh_status status = tsh_linear_create(m->group, &config, &m->head);
    return status == TSH_OK ? tsh_linear_register(m->head, m->parameters, name) : status;
}

tsh_block_config model_block(const model *m) {
    const model_config *c = &m->config;
    tsh_init weights = weights_of(m), zeros = {.kind = TSH_INIT_CONSTANT};
    bool rotary = c->rope_theta > 0;
    return (tsh_block_config){
        .embed = c->width,
        .sequence_parallel = m->options.sequence_parallel,
        .dtype = m->options.dtype,
        .norm = {.eps = c->norm_eps, .bias = !rotary, .kind = rotary ? TSH_RMS_NORM : TSH_LAYER_NORM},
        .attention = {.heads = c->heads,
                      .kv_heads = c->kv_heads,
                      .head_dim = c->head_dim,
                      .causal = c->family != MODEL_BERT,
                      .context = m->options.context,
                      .rotary = rotary,
                      .rotary_config = {.theta = c->rope_theta, .scaling = c->rope_scaling},
                      .bias = c->qkv_bias,
                      .qk_norm = c->qk_norm,
                      .qk_norm_eps = c->norm_eps,
                      .out_bias = c->output_bias,
                      .weight_init = weights,
                      .bias_init = zeros,
                      .out_init = weights},
        .mlp = {.hidden = c->inner,
                .gated = rotary,
                .activation = c->activation,
                .bias = c->mlp_bias,
                .weight_init = weights,
                .bias_init = zeros,
                .down_init = weights}};
}

tsh_status model_add_blocks(model *m, tsh_block_config block, const char *prefix) {
    tsh_status status = TSH_OK;
    const tsh_experts_config experts = block.experts;
    m->block_names = prefix;
    for (int64_t i = 0; status == TSH_OK && i < m->config.layers; i++) {
        char name[64];
        snprintf(name, sizeof name, "%s.%lld", prefix, (long long)i);
        block.experts = m->config.has_experts[i] ? experts : (tsh_experts_config){.experts = 0};
        status = tsh_block_create(m->group, &block, &m->blocks[i]);
        if (status == TSH_OK) status = tsh_block_register(m->blocks[i], m->parameters, name);
    }
    return status;
}

tsh_tensor *model_blocks(model *m, tsh_tape *tape, tsh_tensor *x, const model_input *in) {
    tsh_sequences sequences = {.batch = in->batch, .positions = in->positions, .lengths = in->lengths};
    tsh_mark start = tsh_tape_mark(tape);
    for (int64_t i = 0; i < m->config.layers; i++) {
        if (in->cache) sequences.cache = in->cache->blocks[i];
        x = tsh_tape_free_since(tape, start, tsh_block_forward(tape, m->blocks[i], x, &sequences));
    }
    return x;
}

tsh_tensor *model_logits(model *m, tsh_tape *tape, tsh_tensor *x, const model_input *in) {
    if (in->last && in->tokens > 1) x = tsh_take_rows(tape, x, in->ends);
    x = tsh_norm_forward(tape, m->norm, x);
    return m->head ? tsh_linear_forward(tape, m->head, x) : tsh_embedding_project(tape, m->words, x);
}

/* --- the cache ---------------------------------------------------------------------------------------------------- */

tsh_status model_cache_create(const model *m, int64_t batch, int64_t positions, model_cache **out) {
    model_cache *c = *out = calloc(1, sizeof *c + (size_t)m->config.layers * sizeof *c->blocks);
    tsh_status status = c ? TSH_OK : TSH_ERR_MEMORY;
    for (; status == TSH_OK && c->count < m->config.layers; c->count++) {
        const tsh_self_attention *attention = tsh_block_attention(m->blocks[c->count]);
        tsh_kv_cache_config config = tsh_self_attention_cache(attention, batch, positions);
        status = tsh_kv_cache_create(tsh_group_mesh(m->group), &config, &c->blocks[c->count]);
    }
    if (status == TSH_OK) return status;
    model_cache_destroy(c);
    *out = NULL;
    return status;
}

void model_cache_destroy(model_cache *c) {
    for (int64_t i = 0; c && i < c->count; i++) tsh_kv_cache_destroy(c->blocks[i]);
    free(c);
}

tsh_status model_cache_truncate(model_cache *c, int64_t sequence, int64_t length) {
    tsh_status status = TSH_OK;
    for (int64_t i = 0; status == TSH_OK && i < c->count; i++)
        status = tsh_kv_cache_truncate(c->blocks[i], sequence, length);
    return status;
}
