/* The prompts of generate: one, or the lines of a file, or random ones. */
#include "generate.h"

#include <stdio.h>
#include <stdlib.h>

static bool has_no_memory(char words[MODEL_WORDS]) {
    snprintf(words, MODEL_WORDS, "no memory for the prompts");
    return false;
}

static bool draw(const options *o, int64_t vocabulary, id_lines *out, char words[MODEL_WORDS]) {
    uint64_t state = (uint64_t)o->seed;
    out->items = calloc((size_t)o->batch, sizeof *out->items);
    if (!out->items) return has_no_memory(words);
    out->longest = o->prompt_tokens;
    for (; out->count < o->batch; out->count++) {
        int64_t *ids = calloc((size_t)o->prompt_tokens, sizeof *ids);
        if (!ids) return has_no_memory(words);
        for (int64_t i = 0; i < o->prompt_tokens; i++) {
            state = state * 6364136223846793005u + 1442695040888963407u;
            ids[i] = (int64_t)((state >> 33) % (uint64_t)vocabulary);
        }
        out->items[out->count] = (id_line){ids, o->prompt_tokens};
    }
    return true;
}

/* --prompt or --prompt-ids. */
static bool take_one(const options *o, int64_t vocabulary, const tokenizer *t, id_lines *out, char words[MODEL_WORDS]) {
    char why[MODEL_WORDS];
    out->items = calloc(1, sizeof *out->items);
    if (!out->items) return has_no_memory(words);
    id_line *line = &out->items[out->count++];
    bool good = id_line_read(o->text ? t : NULL, o->text ? o->text : o->prompt_ids, vocabulary, line, why);
    out->longest = line->count;
    if (!good) snprintf(words, MODEL_WORDS, "%s: %.1900s", o->text ? "--prompt" : "--prompt-ids", why);
    return good;
}

/* The model has enough positions for a prompt and the tokens generated after it. */
static bool has_room(const options *o, const model_config *config, int64_t longest, char words[MODEL_WORDS]) {
    long long prompt = longest, tokens = o->tokens, positions = config->positions;
    if (prompt + tokens <= positions) return true;
    if (prompt >= positions) {
        snprintf(
            words, MODEL_WORDS,
            "a prompt of %lld tokens, and the model has %lld positions: at most %lld tokens leave room for one more",
            prompt, positions, positions - 1);
    } else {
        snprintf(
            words, MODEL_WORDS,
            "a prompt of %lld tokens and %lld to generate, and the model has %lld positions: --tokens %lld would fill "
            "the cache",
            prompt, tokens, positions, positions - prompt);
    }
    return false;
}

bool prompts_read(tsh_world *world, const options *o, const model_config *config, const tokenizer *t, id_lines *out,
                  char words[MODEL_WORDS]) {
    bool good;
    *out = (id_lines){0};
    if (o->prompt_tokens)
        return has_room(o, config, o->prompt_tokens, words) && draw(o, config->vocabulary, out, words);
    good = o->prompts ? id_lines_read(world, o->prompts, NULL, config->vocabulary, out, words)
                      : take_one(o, config->vocabulary, t, out, words);
    return good && has_room(o, config, out->longest, words);
}
