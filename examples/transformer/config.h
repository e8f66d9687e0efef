/* What a model's config.json says, in one struct for all families. */
#ifndef TRANSFORMER_CONFIG_H
#define TRANSFORMER_CONFIG_H

#include "tshard/tshard.h"

#define MODEL_WORDS 2048
#define MODEL_ENDS  16
/* The most layers and experts. */
#define MODEL_LAYERS  10000
#define MODEL_EXPERTS 256

typedef enum model_family {
    MODEL_GPT2,
    MODEL_LLAMA,
    MODEL_QWEN2,
    MODEL_QWEN3,
    MODEL_MIXTRAL,
    MODEL_QWEN3_MOE,
    MODEL_BERT
} model_family;

typedef struct model_config {
    model_family family;
    int64_t vocabulary, positions, token_types; /* token_types: only of BERT */
    int64_t layers, width, inner;               /* inner: the features between the two halves of a block's MLP */
    int64_t heads, kv_heads, head_dim;          /* heads is a multiple of kv_heads */
    tsh_activation activation;
    double norm_eps;
    double rope_theta; /* 0: positions are embedded */
    tsh_rotary_scaling rope_scaling;
    bool tied; /* the output layer's weight is the embedding's */
    bool qkv_bias, output_bias, mlp_bias;
    bool qk_norm;                   /* RMS norms of query and key heads */
    int64_t experts, top_k;         /* in blocks that have experts in place of an MLP; experts 0: none has */
    int64_t expert_inner;           /* inner, of an expert */
    bool renormalize;               /* the weights of a token's experts are divided by their sum */
    bool has_experts[MODEL_LAYERS]; /* whether a block has */
    int64_t ends[MODEL_ENDS];       /* tokens after which a text ends */
    int end_count;
} model_config;

/* "gpt2", "llama", "qwen2", "qwen3", "mixtral", "qwen3_moe" or "bert": config.json's model_type. */
const char *model_family_name(model_family family);

/* Reads FOLDER/config.json and, if it exists, FOLDER/generation_config.json, whose eos_token_id takes precedence; of a
 * GGUF file its keys. On
 * failure false, and words says which key is wrong, its value, and what is allowed. Features that the models here lack,
 * such as sliding windows, are refused; dropout is ignored. */
bool model_config_read(const char *folder, model_config *out, char words[MODEL_WORDS]);

#endif
