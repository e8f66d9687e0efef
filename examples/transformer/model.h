/* GPT-2, Llama, Qwen2, Qwen3, Mixtral, Qwen3-MoE and BERT from Hugging Face folders, each rank of a group with its
 * heads, its part of the MLPs and its part of the vocabulary. Functions return a tsh_status, or a tensor that the tape
 * owns, as the library does. */
#ifndef TRANSFORMER_MODEL_H
#define TRANSFORMER_MODEL_H

#include "config.h"

typedef struct model_options {
    tsh_dtype dtype;
    bool sequence_parallel; /* between blocks each rank has its part of the tokens */
    tsh_group *experts;     /* another axis of the mesh, which splits experts first; NULL: the model's axis does */
    bool random_weights;    /* drawn from the world's seed as for a training; otherwise zeros, for model_load */
    bool keep_quantized;    /* model_load keeps weights as a GGUF file quantizes them (tsh_load_options) */
    tsh_context context;    /* of inputs [batch, tokens], whose tokens ranks of another axis split */
} model_options;

typedef struct model model;

#define MODEL_RULES (9 + 3 * MODEL_EXPERTS)

/* What the families have in common. Only the files of this folder use the members. */
struct model {
    model_config config;
    model_options options;
    tsh_group *group;
    const struct model_kind *kind;
    tsh_parameters *parameters;
    tsh_embedding *words, *positions, *types; /* positions, types: NULL where the family has none */
    tsh_norm *norm;                           /* after the last block; BERT's is before the first */
    tsh_block **blocks;
    tsh_linear *head;                 /* NULL: tied, or none */
    tsh_name_rule rules[MODEL_RULES]; /* the parameters' names and places in the files, for tsh_load and tsh_save */
    int rule_count;
    char (*rule_texts)[128]; /* of the experts' rules, or NULL */
    const char *block_names; /* of blocks: "model.layers" */
    const char *words_name;  /* "model.embed_tokens" */
};

/* Sequences of as many tokens, one after another: the ids, their positions, and which keys are seen. */
typedef struct model_input {
    int64_t batch, tokens;
    tsh_tensor *ids, *places, *types; /* int64 [batch tokens] */
    tsh_tensor *positions;            /* int64 [tokens]; [batch, 1] of one token each */
    tsh_tensor *lengths;              /* int64 [batch], or NULL: all tokens are seen */
    tsh_tensor *query;                /* zeros [batch, 1, 1, width], for model_pool */
    int64_t *numbers;                 /* [batch tokens], for writing */
    tsh_tensor *ends;                 /* int64 [batch], the rows of the sequences' last tokens, with lengths */
    bool last;                        /* logits of each sequence's last token alone; of many tokens with lengths */
    struct model_cache *cache;        /* has the tokens before these, and gets these; NULL: none */
} model_input;

/* A model on one axis of a mesh. The caller destroys it. */
tsh_status model_create(tsh_group *group, const model_config *config, const model_options *options, model **out);
void model_destroy(model *m);
/* Fills the weights from FOLDER's safetensors files, or from a GGUF file; each rank reads only its own part. Names may
 * lack the prefix "transformer." of GPT-2's, and may have the prefix "bert.". */
tsh_status model_load(model *m, const char *folder);

/* Freezes the weights, and adds low-rank adapters to the layers that the configuration names: those of blocks, the
 * table of the words, and "lm_head", which may be that table too; their parameters are appended to the model's. Call it
 * after model_load. */
tsh_status model_adapt(model *m, const tsh_lora_config *config);
/* The same as FOLDER's adapter_config.json says, with the factors in its adapter_model.safetensors. */
tsh_status model_load_adapter(model *m, const char *folder);
/* Adds the adapters to the weights, or subtracts them again. */
tsh_status model_merge(model *m, bool merged);

/* Input of a fixed size, for many calls. lengths: whether sequences may be shorter than `tokens`. */
tsh_status model_input_create(const model *m, int64_t batch, int64_t tokens, bool lengths, model_input *out);
void model_input_release(model_input *in);
/* ids [batch tokens], lengths [batch], or NULL where the input has none. first [batch]: the positions of sequences of
 * one token each; NULL, and with more tokens: positions from 0 on. */
tsh_status model_input_write(model_input *in, const int64_t *ids, const int64_t *first, const int64_t *lengths);

/* Keys and values of all blocks, so that generation computes each token once. The caller destroys it. */
typedef struct model_cache model_cache;
tsh_status model_cache_create(const model *m, int64_t batch, int64_t positions, model_cache **out);
void model_cache_destroy(model_cache *c);
/* Drops all but the first `length` tokens of one sequence (-1: of all). */
tsh_status model_cache_truncate(model_cache *c, int64_t sequence, int64_t length);

/* The logits [batch tokens, vocabulary], split by vocabulary; [batch, vocabulary] if the input sets `last`. For BERT
 * the hidden features [batch tokens, width]. */
tsh_tensor *model_forward(model *m, tsh_tape *tape, const model_input *in);

/* A vector of length 1 for each sequence, [batch, width]: the direction of the mean of its tokens' hidden features. */
tsh_tensor *model_pool(model *m, tsh_tape *tape, tsh_tensor *hidden, const model_input *in);

/* --- for the families' files -------------------------------------------------------------------------------------- */

typedef struct model_kind {
    tsh_status (*create)(model *m);
    tsh_tensor *(*forward)(model *m, tsh_tape *tape, const model_input *in);
    const char *prefix;         /* of names in files, which not all files have; NULL: all files have the same names */
    const char *names;          /* the prefix and a '*' */
    bool allow_unexpected;      /* files have tensors that the model does not use */
    const char *const *ignored; /* names of tensors that some files have and the model does not use */
} model_kind;

extern const model_kind model_gpt2, model_llama, model_bert;

/* Create a part of the model and register its parameters under a name. */
tsh_status model_add_words(model *m, const char *name);
tsh_status model_add_table(model *m, int64_t rows, const char *name, tsh_embedding **out);
tsh_status model_add_norm(model *m, const tsh_norm_config *config, const char *name);
tsh_status model_add_head(model *m, const char *name);
/* All blocks, as block.names say within "PREFIX.0", "PREFIX.1", ... */
tsh_status model_add_blocks(model *m, tsh_block_config block, const char *prefix);
/* What config.json says of a block of any family. */
tsh_block_config model_block(const model *m);
/* x through all blocks. */
tsh_tensor *model_blocks(model *m, tsh_tape *tape, tsh_tensor *x, const model_input *in);
/* The last norm and the logits by vocabulary, with the output layer or the embedding's table. */
tsh_tensor *model_logits(model *m, tsh_tape *tape, tsh_tensor *x, const model_input *in);

#endif
