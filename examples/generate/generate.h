/* The parts of generate: what is asked for, the loop over tokens, and what is said of it. */
#ifndef GENERATE_H
#define GENERATE_H

#include "model.h"

typedef struct options {
    const char *model;             /* a folder */
    const char *prompt_ids, *text; /* one of them, or neither with prompt_tokens */
    int64_t prompt_tokens;         /* that many ids, drawn from the seed */
    int64_t tokens, repeat;
    tsh_dtype dtype;
    double temperature, top_p;
    int64_t top_k, seed;
    bool random_weights, ignore_eos, json;
} options;

/* -1 to go on, or the exit code. */
int options_parse(int argc, char **argv, bool speaks, options *out);

/* What was generated, and how fast. */
typedef struct outcome {
    int64_t *ids, count;                  /* [tokens], of which the first `count` were generated */
    double prompt_seconds, token_seconds; /* medians of the repetitions; of all tokens but the first */
    double stream_bytes_per_s;            /* of all ranks together; 0: not measured */
    double weight_bytes;                  /* that all ranks together read for a token */
    uint64_t allocations;                 /* of tensor memory on this rank, in the last repetition */
} outcome;

/* Generates options.tokens ids, or up to one that ends a text, the same on every rank. A rank that `speaks` shows its progress on a terminal. False,
 * with words, on failure. */
bool generate(model *m, const options *o, const int64_t *prompt, int64_t prompt_count, bool speaks, outcome *out,
              char words[MODEL_WORDS]);

/* The sum of a number over all ranks. */
tsh_status sum_over_ranks(tsh_world *world, double *value);
/* The bytes a second at which all ranks together read memory that no cache holds. */
tsh_status stream_read(tsh_world *world, double *bytes_per_s);

#endif
