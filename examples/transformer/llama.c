/* Llama (Touvron et al., "LLaMA: open and efficient foundation language models", 2023) and Qwen2, which adds biases to
 * query, key and value: rotary positions, RMS norms before each half of a block, gated MLPs, KV heads that query heads
 * share. */
#include "model.h"

static tsh_status create(model *m) {
    tsh_norm_config norm = {.kind = TSH_RMS_NORM, .eps = m->config.norm_eps};
    tsh_status status = model_add_words(m, "model.embed_tokens");
    if (status == TSH_OK) status = model_add_blocks(m, model_block(m), "model.layers");
    if (status == TSH_OK) status = model_add_norm(m, &norm, "model.norm");
    if (status == TSH_OK) status = model_add_head(m, "lm_head");
    return status;
}

static tsh_tensor *forward(model *m, tsh_tape *tape, const model_input *in) {
    tsh_tensor *x = model_blocks(m, tape, tsh_embedding_forward(tape, m->words, in->ids), in);
    return model_logits(m, tape, x, in);
}

/* What rotary positions follow from, and the head of a model whose head is its table of words. */
static const char *const ignored[] = {"*.rotary_emb.inv_freq", "lm_head.weight", NULL};

const model_kind model_llama = {.create = create, .forward = forward, .ignored = ignored};
