/* Llama (Touvron et al., "LLaMA: open and efficient foundation language models", 2023): rotary positions, RMS norms
 * before each half of a block, gated MLPs, KV heads that query heads share. Qwen2 adds biases to query, key and value,
 * Qwen3 norms of query and key heads; Mixtral and Qwen3-MoE have experts in place of MLPs. */
#include "model.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The names of the experts' tensors in files: "EXPERTS.0.w1.weight". */
typedef struct expert_names {
    const char *half, *experts, *of[TSH_EXPERTS_PARTS];
} expert_names;

static const expert_names mixtral = {
    "block_sparse_moe",
    "model.layers.*.block_sparse_moe.experts",
    {[TSH_EXPERTS_GATE] = "experts.w1", [TSH_EXPERTS_UP] = "experts.w3", [TSH_EXPERTS_DOWN] = "experts.w2"}};
static const expert_names qwen3_moe = {"mlp",
                                       "model.layers.*.mlp.experts",
                                       {[TSH_EXPERTS_GATE] = "experts.gate_proj",
                                        [TSH_EXPERTS_UP] = "experts.up_proj",
                                        [TSH_EXPERTS_DOWN] = "experts.down_proj"}};

/* Files have a tensor for each expert, which one parameter stacks; output layers are transposed there. */
static tsh_status set_rules(model *m, const expert_names *names) {
    m->rule_texts = calloc(3 * ((size_t)m->config.experts + 1), sizeof *m->rule_texts);
    if (!m->rule_texts) return TSH_ERR_MEMORY;
    char(*text)[128] = m->rule_texts;
    for (int part = TSH_EXPERTS_GATE; part <= TSH_EXPERTS_DOWN; part++) {
        const char *name = strchr(names->of[part], '.') + 1, *parameter = *text;
        snprintf(*text++, sizeof *text, "%s.%s.weight", names->experts, name);
        for (int64_t e = 0; e < m->config.experts; e++, text++) {
            snprintf(*text, sizeof *text, "%s.%lld.%s.weight", names->experts, (long long)e, name);
            m->rules[m->rule_count++] = (tsh_name_rule){.parameter = parameter,
                                                        .tensor = *text,
                                                        .transpose = part == TSH_EXPERTS_DOWN,
                                                        .length = 1,
                                                        .parameter_start = e,
                                                        .squeeze = true};
        }
    }
    return TSH_OK;
}

/* A block whose MLP may be a mixture of experts. */
static tsh_status add_blocks(model *m) {
    const model_config *c = &m->config;
    const expert_names *names = c->family == MODEL_MIXTRAL ? &mixtral : &qwen3_moe;
    tsh_block_config block = model_block(m);
    if (c->experts == 0) return model_add_blocks(m, block, "model.layers");
    block.names[TSH_BLOCK_MLP] = names->half;
    block.experts =
        (tsh_experts_config){.hidden = c->expert_inner,
                             .experts = c->experts,
                             .router = {.top_k = c->top_k, .score = TSH_ROUTER_SOFTMAX, .renormalize = c->renormalize},
                             .expert_group = m->options.experts,
                             .router_init = block.mlp.weight_init,
                             .weight_init = block.mlp.weight_init,
                             .down_init = block.mlp.down_init};
    memcpy(block.experts.names, names->of, sizeof names->of);
    tsh_status status = set_rules(m, names);
    return status == TSH_OK ? model_add_blocks(m, block, "model.layers") : status;
}

static tsh_status create(model *m) {
    tsh_norm_config norm = {.kind = TSH_RMS_NORM, .eps = m->config.norm_eps};
    tsh_status status = model_add_words(m, "model.embed_tokens");
    if (status == TSH_OK) status = add_blocks(m);
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
