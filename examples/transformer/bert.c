/* BERT (Devlin et al., "BERT: pre-training of deep bidirectional transformers", 2018): the sum of three embeddings,
 * layer norms after each half of a block, no causal mask. The pooler and heads for classification are left out. */
#include "model.h"

#include <math.h>

static tsh_status create(model *m) {
    tsh_norm_config norm = {.kind = TSH_LAYER_NORM, .eps = m->config.norm_eps, .bias = true};
    tsh_block_config block = model_block(m);
    block.post_norm = true;
    block.names[TSH_BLOCK_ATTENTION_NORM] = "attention.output.LayerNorm";
    block.names[TSH_BLOCK_ATTENTION] = "attention";
    block.names[TSH_BLOCK_MLP_NORM] = "output.LayerNorm";
    block.names[TSH_BLOCK_MLP] = "";
    block.attention.names[TSH_ATTENTION_QUERY] = "self.query";
    block.attention.names[TSH_ATTENTION_KEY] = "self.key";
    block.attention.names[TSH_ATTENTION_VALUE] = "self.value";
    block.attention.names[TSH_ATTENTION_OUT] = "output.dense";
    block.mlp.names[TSH_MLP_UP] = "intermediate.dense";
    block.mlp.names[TSH_MLP_DOWN] = "output.dense";

    tsh_status status = model_add_words(m, "embeddings.word_embeddings");
    if (status == TSH_OK)
        status = model_add_table(m, m->config.positions, "embeddings.position_embeddings", &m->positions);
    if (status == TSH_OK)
        status = model_add_table(m, m->config.token_types, "embeddings.token_type_embeddings", &m->types);
    if (status == TSH_OK) status = model_add_norm(m, &norm, "embeddings.LayerNorm");
    if (status == TSH_OK) status = model_add_blocks(m, block, "encoder.layer");
    return status;
}

static tsh_tensor *forward(model *m, tsh_tape *tape, const model_input *in) {
    tsh_tensor *x = tsh_embedding_forward(tape, m->words, in->ids);
    x = tsh_add(tape, x, tsh_embedding_forward(tape, m->positions, in->places));
    x = tsh_add(tape, x, tsh_embedding_forward(tape, m->types, in->types));
    return model_blocks(m, tape, tsh_norm_forward(tape, m->norm, x), in);
}

/* Attention with a query of zeros is the mean of the values. */
tsh_tensor *model_pool(model *m, tsh_tape *tape, tsh_tensor *hidden, const model_input *in) {
    int64_t width = m->config.width;
    tsh_tensor *x = tsh_reshape(tape, hidden, 4, (const int64_t[]){in->batch, in->tokens, 1, width});
    tsh_tensor *mean = tsh_attention(tape, in->query, x, x, &(tsh_attention_config){.lengths = in->lengths});
    tsh_tensor *y = tsh_rms_norm(tape, tsh_reshape(tape, mean, 2, (const int64_t[]){in->batch, width}), NULL, 0);
    return tsh_scale(tape, y, 1 / sqrt((double)width));
}

const model_kind model_bert = {
    .create = create, .forward = forward, .prefix = "bert.", .names = "bert.*", .allow_unexpected = true};
