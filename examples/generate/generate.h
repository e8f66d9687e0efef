/* The parts of generate: options and prompts, the loop over tokens, and the bandwidth of memory. */
#ifndef GENERATE_H
#define GENERATE_H

#include "model.h"
#include "tokenizer.h"

typedef struct options {
    const char *model;                       /* a folder */
    const char *adapter;                     /* the folder of a low-rank adapter, or NULL */
    const char *prompt_ids, *text, *prompts; /* one of them, or none with prompt_tokens; prompts: a file */
    int64_t prompt_tokens, batch;            /* that many ids, drawn from the seed, in each of so many prompts */
    int64_t tokens, repeat;
    tsh_dtype dtype;
    bool keep_quantized; /* weights stay as a GGUF file quantizes them */
    double temperature, top_p;
    int64_t top_k, seed;
    bool random_weights, ignore_eos, json, chat;
    const char *system; /* what the system says first in a chat, or NULL */
} options;

/* -1 to go on, or the exit code. */
int options_parse(int argc, char **argv, bool speaks, options *out);

/* The prompts' ids, which id_lines_free frees, after a failure too. False, with words, on failure, for example if the
 * model has too few positions for the longest prompt and the tokens generated after it. Collective with --prompts. */
bool prompts_read(tsh_world *world, const options *o, const model_config *config, const tokenizer *t, id_lines *out,
                  char words[MODEL_WORDS]);

/* What was generated, and how fast. */
typedef struct outcome {
    int64_t *ids, *count;                 /* [prompts, tokens]; [prompts]: that many of each were generated */
    int64_t passes;                       /* of the model, the prompts' included: as many as the longest of these */
    double prompt_seconds, token_seconds; /* medians of the repetitions; of all passes but the prompts' */
    double stream_bytes_per_s;            /* of all ranks together; 0: not measured */
    double weight_bytes;                  /* that all ranks together read for a pass */
    bool printed;                         /* the text went to stdout, as it came */
    uint64_t allocations;                 /* of tensor memory on this rank, in the last repetition */
} outcome;

/* Generates options.tokens ids after each prompt, or fewer if one ends the text, the same on every rank. The caller
 * frees the outcome's arrays. A rank that `speaks` prints the text of a single prompt token by token, if t is the
 * library's, or shows its progress on a terminal; t may be NULL. False, with words, on failure. */
bool generate(model *m, const options *o, const id_lines *prompts, const tokenizer *t, bool speaks, outcome *out,
              char words[MODEL_WORDS]);

/* The sum of a number over all ranks. */
tsh_status sum_over_ranks(tsh_world *world, double *value);
/* The bytes per second that all ranks together read from memory, outside caches. */
tsh_status stream_read(tsh_world *world, double *bytes_per_s);

#endif
