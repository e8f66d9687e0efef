/* GPT-2 (Radford et al., "Language models are unsupervised multitask learners", 2019): embedded positions, layer norms
 * before each half of a block, an output layer that is the embedding's table. */
#include "model.h"

#include <string.h>

/* Linear weights are [in, out] in the files, and query, key and value lie in one tensor. */
static void set_rules(model *m) {
    int64_t n = m->config.width;
    const tsh_name_rule rules[] = {
        {"transformer.h.*.attn.q_proj.weight", "transformer.h.*.attn.c_attn.weight", true, 0, n, 0, 0, false},
        {"transformer.h.*.attn.k_proj.weight", "transformer.h.*.attn.c_attn.weight", true, 0, n, 0, n, false},
        {"transformer.h.*.attn.v_proj.weight", "transformer.h.*.attn.c_attn.weight", true, 0, n, 0, 2 * n, false},
        {"transformer.h.*.attn.q_proj.bias", "transformer.h.*.attn.c_attn.bias", false, 0, n, 0, 0, false},
        {"transformer.h.*.attn.k_proj.bias", "transformer.h.*.attn.c_attn.bias", false, 0, n, 0, n, false},
        {"transformer.h.*.attn.v_proj.bias", "transformer.h.*.attn.c_attn.bias", false, 0, n, 0, 2 * n, false},
        {"transformer.h.*.c_proj.weight", "transformer.h.*.c_proj.weight", true, 0, 0, 0, 0, false},
        {"transformer.h.*.c_fc.weight", "transformer.h.*.c_fc.weight", true, 0, 0, 0, 0, false}};
    m->rule_count = sizeof rules / sizeof *rules;
    memcpy(m->rules, rules, sizeof rules);
}

static tsh_status create(model *m) {
    set_rules(m);
    tsh_norm_config norm = {.kind = TSH_LAYER_NORM, .eps = m->config.norm_eps, .bias = true};
    tsh_block_config block = model_block(m);
    block.names[TSH_BLOCK_ATTENTION_NORM] = "ln_1";
    block.names[TSH_BLOCK_ATTENTION] = "attn";
    block.names[TSH_BLOCK_MLP_NORM] = "ln_2";
    block.attention.names[TSH_ATTENTION_OUT] = "c_proj";
    block.mlp.names[TSH_MLP_UP] = "c_fc";
    block.mlp.names[TSH_MLP_DOWN] = "c_proj";

    tsh_status status = model_add_words(m, "transformer.wte");
    if (status == TSH_OK) status = model_add_table(m, m->config.positions, "transformer.wpe", &m->positions);
    if (status == TSH_OK) status = model_add_blocks(m, block, "transformer.h");
    if (status == TSH_OK) status = model_add_norm(m, &norm, "transformer.ln_f");
    if (status == TSH_OK) status = model_add_head(m, "lm_head");
    return status;
}

static tsh_tensor *forward(model *m, tsh_tape *tape, const model_input *in) {
    tsh_tensor *words = tsh_embedding_forward(tape, m->words, in->ids);
    tsh_tensor *x = tsh_add(tape, words, tsh_embedding_forward(tape, m->positions, in->places));
    x = model_blocks(m, tape, x, in);
    return model_logits(m, tape, x, in);
}

/* Masks of attention, and the head of a model whose head is its table of words. */
static const char *const ignored[] = {"*.attn.bias", "*.attn.masked_bias", "lm_head.weight", NULL};

const model_kind model_gpt2 = {
    .create = create, .forward = forward, .prefix = "transformer.", .names = "transformer.*", .ignored = ignored};
