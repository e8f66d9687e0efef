/* The loop of generate over tokens, with a cache of keys and values. */
#define _POSIX_C_SOURCE 200809L
#include "generate.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

/* A model with two inputs: the prompts, and one token after each. */
typedef struct session {
    model *m;
    const options *o;
    const id_lines *prompts;
    tsh_tape *tape;
    model_cache *cache;
    model_input prompt, token;
    int64_t *ids, *lengths; /* [prompts, longest]; [prompts] */
    int64_t *last, *places; /* [prompts]: the token generated last, and its position */
    bool terminal;          /* progress is shown */
    tsh_text_stream *words; /* NULL: the text is not printed as it comes */
} session;

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

static tsh_status open_session(session *s) {
    int64_t count = s->prompts->count, longest = s->prompts->longest;
    size_t rows = (size_t)count;
    s->ids = calloc(rows * (size_t)longest, sizeof *s->ids);
    s->lengths = calloc(rows * 3, sizeof *s->lengths);
    if (!s->ids || !s->lengths) return TSH_ERR_MEMORY;
    s->last = s->lengths + count;
    s->places = s->last + count;
    id_lines_fill(s->prompts->items, count, longest, s->ids, s->lengths);
    tsh_status status = tsh_tape_create(tsh_group_world(s->m->group), &s->tape);
    if (status == TSH_OK) status = model_cache_create(s->m, count, longest + s->o->tokens, &s->cache);
    if (status == TSH_OK) status = model_input_create(s->m, count, longest, true, &s->prompt);
    if (status == TSH_OK) status = model_input_create(s->m, count, 1, false, &s->token);
    if (status != TSH_OK) return status;
    s->prompt.last = true;
    s->prompt.cache = s->token.cache = s->cache;
    tsh_tape_set_recording(s->tape, false);
    return TSH_OK;
}

static void close_session(session *s) {
    model_input_release(&s->token);
    model_input_release(&s->prompt);
    tsh_text_stream_destroy(s->words);
    model_cache_destroy(s->cache);
    tsh_tape_destroy(s->tape);
    free(s->lengths);
    free(s->ids);
}

/* s->last becomes token `number` after the input of each sequence. The input has been written. */
static tsh_status next(session *s, model_input *in, int64_t number) {
    tsh_sample_config config = {.temperature = s->o->temperature,
                                .top_k = s->o->top_k,
                                .top_p = s->o->top_p,
                                .seed = (uint64_t)s->o->seed,
                                .position = number};
    tsh_tensor *id = tsh_sample(s->tape, model_forward(s->m, s->tape, in), &config);
    if (!id) return tsh_tape_status(s->tape);
    tsh_status status = tsh_tensor_read(id, s->last, s->prompts->count);
    return status == TSH_OK ? tsh_tape_reset(s->tape) : status;
}

/* The padding of a shorter prompt is after its tokens, which do not attend to it; then the cache drops it. */
static tsh_status read_prompts(session *s) {
    tsh_status status = model_cache_truncate(s->cache, -1, 0);
    if (status == TSH_OK) status = model_input_write(&s->prompt, s->ids, NULL, s->lengths);
    if (status == TSH_OK) status = next(s, &s->prompt, 0);
    for (int64_t b = 0; status == TSH_OK && b < s->prompts->count; b++) {
        s->places[b] = s->lengths[b];
        status = model_cache_truncate(s->cache, b, s->lengths[b]);
    }
    return status;
}

static tsh_status read_tokens(session *s, int64_t number) {
    tsh_status status = model_input_write(&s->token, s->last, s->places, NULL);
    if (status == TSH_OK) status = next(s, &s->token, number);
    for (int64_t b = 0; b < s->prompts->count; b++) s->places[b]++;
    return status;
}

static void show_progress(const session *s, int64_t done, double seconds) {
    if (!s->terminal) return;
    fprintf(stderr, "\r\033[K");
    if (done < s->o->tokens)
        fprintf(stderr, "token %lld of %lld, %.1f a second", (long long)done, (long long)s->o->tokens,
                (double)done / fmax(seconds, 1e-9));
    fflush(stderr);
}

/* The text ends with this token, unless the weights are random. */
static bool is_end(const session *s, int64_t id) {
    const model_config *c = &s->m->config;
    bool found = false;
    for (int i = 0; i < c->end_count; i++) found = found || c->ends[i] == id;
    return found && !s->o->ignore_eos && !s->o->random_weights;
}

/* Adds a token to each sequence that has no end yet. False when all have one. */
static bool take(const session *s, outcome *out) {
    bool more = false;
    for (int64_t b = 0; b < s->prompts->count; b++) {
        int64_t *ids = out->ids + b * s->o->tokens, n = out->count[b];
        if (n < out->passes || (n > 0 && is_end(s, ids[n - 1]))) continue;
        ids[out->count[b]++] = s->last[b];
        more = more || !is_end(s, s->last[b]);
    }
    out->passes++;
    return more && out->passes < s->o->tokens;
}

/* Prints what the last token adds to the text, or at the end what is left of it. */
static tsh_status print_words(session *s, bool end) {
    const char *text;
    size_t length;
    if (!s->words) return TSH_OK;
    tsh_status status =
        end ? tsh_text_stream_end(s->words, &text, &length) : tsh_text_stream_add(s->words, s->last[0], &text, &length);
    if (status != TSH_OK) return status;
    fwrite(text, 1, length, stdout);
    fflush(stdout);
    return TSH_OK;
}

static tsh_status generate_once(session *s, outcome *out, double seconds[2]) {
    double start = now(), shown = start;
    out->passes = 0;
    for (int64_t b = 0; b < s->prompts->count; b++) out->count[b] = 0;
    tsh_status status = read_prompts(s);
    double prompt_end = now();
    if (status == TSH_OK) status = print_words(s, false);
    for (int64_t i = 1; status == TSH_OK && take(s, out); i++) {
        status = read_tokens(s, i);
        if (status == TSH_OK) status = print_words(s, false);
        if (now() - shown > 0.2) show_progress(s, i, (shown = now()) - start);
    }
    if (status == TSH_OK) status = print_words(s, true);
    show_progress(s, s->o->tokens, 0);
    seconds[0] = prompt_end - start;
    seconds[1] = now() - prompt_end;
    return status;
}

/* --- measuring ---------------------------------------------------------------------------------------------------- */

static int compare_numbers(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *values, int64_t count) {
    qsort(values, (size_t)count, sizeof *values, compare_numbers);
    return values[count / 2];
}

/* The bytes of weights that this rank reads for a pass: all, except tables of embeddings that are not also the output
 * layer, and reads a row of it. */
static double weight_bytes(const model *m) {
    double bytes = 0;
    for (int i = 0; i < tsh_parameters_count(m->parameters); i++) {
        const tsh_tensor *t = tsh_parameters_tensor(m->parameters, i);
        bool looked_up = (m->head && t == tsh_embedding_weight(m->words)) ||
                         (m->positions && t == tsh_embedding_weight(m->positions));
        if (!looked_up) bytes += (double)tsh_tensor_local_nbytes(t);
    }
    return bytes;
}

static uint64_t allocations(const session *s) {
    return tsh_device_stats(tsh_world_device(tsh_group_world(s->m->group))).allocations;
}

static tsh_status run(session *s, outcome *out) {
    double *prompt_seconds = calloc((size_t)s->o->repeat, sizeof *prompt_seconds);
    double *token_seconds = calloc((size_t)s->o->repeat, sizeof *token_seconds);
    tsh_status status = prompt_seconds && token_seconds ? open_session(s) : TSH_ERR_MEMORY;
    for (int64_t i = 0; status == TSH_OK && i < s->o->repeat; i++) {
        double seconds[2];
        uint64_t before = allocations(s);
        status = generate_once(s, out, seconds);
        out->allocations = allocations(s) - before;
        prompt_seconds[i] = seconds[0];
        token_seconds[i] = seconds[1];
    }
    out->weight_bytes = weight_bytes(s->m);
    tsh_world *world = tsh_group_world(s->m->group);
    if (status == TSH_OK) status = sum_over_ranks(world, &out->weight_bytes);
    if (status == TSH_OK && s->o->repeat > 1) status = stream_read(world, &out->stream_bytes_per_s);
    if (status == TSH_OK) {
        out->prompt_seconds = median(prompt_seconds, s->o->repeat);
        out->token_seconds = median(token_seconds, s->o->repeat);
    }
    free(prompt_seconds);
    free(token_seconds);
    return status;
}

bool generate(model *m, const options *o, const id_lines *prompts, const tokenizer *t, bool speaks, outcome *out,
              char words[MODEL_WORDS]) {
    bool prints = speaks && tokenizer_library(t) && prompts->count == 1 && o->repeat == 1 && !o->json;
    session s = {.m = m, .o = o, .prompts = prompts, .terminal = speaks && !prints && isatty(STDERR_FILENO)};
    size_t count = (size_t)prompts->count;
    *out = (outcome){.ids = calloc(count * (size_t)o->tokens, sizeof *out->ids),
                     .count = calloc(count, sizeof *out->count)};
    tsh_status status = out->ids && out->count ? TSH_OK : TSH_ERR_MEMORY;
    if (status == TSH_OK && prints) status = tsh_text_stream_create(tokenizer_library(t), false, &s.words);
    if (status == TSH_OK) status = run(&s, out);
    out->printed = prints;
    if (status != TSH_OK) {
        bool step = s.tape && tsh_tape_status(s.tape) != TSH_OK;
        snprintf(words, MODEL_WORDS, "%s", step ? tsh_tape_message(s.tape) : tsh_error_message());
    }
    close_session(&s);
    return status == TSH_OK;
}
