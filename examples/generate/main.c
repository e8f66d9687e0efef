/* generate: continues prompts with a model from a Hugging Face folder. */
#include "chat.h"
#include "command_line.h"
#include "program.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* What main holds on one rank. */
typedef struct job {
    const options *o;
    tsh_world *world;
    bool speaks; /* rank 0 */
    model_config config;
    tsh_mesh *mesh;
    model *m;
    tokenizer *words;
    id_lines prompts;
    outcome result;
} job;

static bool fails(const job *j, const char *words) {
    if (j->speaks) fprintf(stderr, "generate: %s\n", words);
    return false;
}

/* --- the model ---------------------------------------------------------------------------------------------------- */

static bool read_config(job *j) {
    char words[MODEL_WORDS];
    if (!model_config_read(j->o->model, &j->config, words)) return fails(j, words);
    if (j->config.family == MODEL_BERT)
        return fails(j, "a bert model has no next token; embed computes the vectors of sentences with it");
    if (!j->o->text && !j->o->chat) {
        tokenizer_open(j->o->model, &j->words, words); /* to print the text, where there is one */
        return true;
    }
    return tokenizer_open(j->o->model, &j->words, words) || fails(j, words);
}

static bool open_model(job *j) {
    model_options wanted = {
        .dtype = j->o->dtype, .random_weights = j->o->random_weights, .keep_quantized = j->o->keep_quantized};
    tsh_world_seed(j->world, (uint64_t)j->o->seed);
    tsh_status status = tsh_mesh_create(j->world, "model=-1", &j->mesh);
    if (status == TSH_OK) status = model_create(tsh_mesh_group(j->mesh, "model"), &j->config, &wanted, &j->m);
    if (status == TSH_OK && !j->o->random_weights) status = model_load(j->m, j->o->model);
    if (status == TSH_OK && j->o->adapter) status = model_load_adapter(j->m, j->o->adapter);
    if (status == TSH_OK) status = model_merge(j->m, true);
    return status == TSH_OK || fails(j, tsh_error_message());
}

/* --- what is said ------------------------------------------------------------------------------------------------- */

static const int64_t *ids_of(const job *j, int64_t b) {
    return j->result.ids + b * j->o->tokens;
}

static void print_ids(const job *j, int64_t b, const char *between) {
    for (int64_t i = 0; i < j->result.count[b]; i++) printf("%s%lld", i ? between : "", (long long)ids_of(j, b)[i]);
}

/* The length in bytes of the UTF-8 character that begins here; 0 if none does. */
static size_t character_bytes(const unsigned char *s, size_t length) {
    static const unsigned least[] = {0, 0, 0x80, 0x800, 0x10000}; /* the smallest code point of so many bytes */
    size_t n = s[0] < 0x80 ? 1 : s[0] >> 5 == 6 ? 2 : s[0] >> 4 == 14 ? 3 : s[0] >> 3 == 30 ? 4 : 0;
    unsigned code = s[0] & (n == 1 ? 0x7fU : 0xffU >> (n + 1));
    if (n == 0 || n > length) return 0;
    for (size_t i = 1; i < n; code = code << 6 | (s[i++] & 0x3f)) {
        if (s[i] >> 6 != 2) return 0;
    }
    return code < least[n] || code > 0x10ffff || code >> 11 == 27 ? 0 : n;
}

/* A byte that belongs to no character becomes U+FFFD: tokens of bytes may come in any order. */
static void print_json_text(const unsigned char *s, size_t length) {
    for (size_t i = 0, n; i < length; i += n ? n : 1) {
        n = character_bytes(s + i, length - i);
        if (n == 0 || s[i] < 32 || s[i] == '"' || s[i] == '\\')
            printf("\\u%04x", n ? s[i] : 0xfffd);
        else
            fwrite(s + i, 1, n, stdout);
    }
}

static void print_text(const job *j, int64_t b) {
    size_t length;
    char *text = tokenizer_text(j->words, ids_of(j, b), j->result.count[b], &length);
    if (text && j->o->json)
        print_json_text((const unsigned char *)text, length);
    else if (text)
        fwrite(text, 1, length, stdout);
    free(text);
}

/* An array of arrays and of texts for a file of prompts. */
static void print_json_ids(const job *j) {
    bool many = j->o->prompts || j->prompts.count > 1;
    printf("{\"ids\": %s", many ? "[" : "");
    for (int64_t b = 0; b < j->prompts.count; b++) {
        printf("%s[", b ? ", " : "");
        print_ids(j, b, ", ");
        printf("]");
    }
    printf(many ? "], " : ", ");
    if (!j->words) return;
    printf("\"text\": %s", many ? "[" : "");
    for (int64_t b = 0; b < j->prompts.count; b++) {
        printf("%s\"", b ? ", " : "");
        print_text(j, b);
        printf("\"");
    }
    printf(many ? "], " : ", ");
}

static void report(const job *j) {
    const outcome *r = &j->result;
    int64_t prompt_tokens = 0, tokens = 0;
    for (int64_t b = 0; b < j->prompts.count; b++) {
        prompt_tokens += j->prompts.items[b].count;
        tokens += r->count[b] - 1; /* the first one is the prompt's */
    }
    double prompt_rate = (double)prompt_tokens / r->prompt_seconds;
    double rate = tokens > 0 ? (double)tokens / r->token_seconds : 0;
    double read = r->passes > 1 ? (double)(r->passes - 1) / r->token_seconds * r->weight_bytes : 0;
    if (j->o->json) {
        print_json_ids(j);
        printf("\"ranks\": %d, \"dtype\": \"%s\", \"prompt_tokens\": %lld, \"prompt_tokens_per_s\": %.1f, "
               "\"tokens_per_s\": %.2f, \"weight_bytes\": %.0f, \"weight_bytes_per_s\": %.4g, "
               "\"stream_bytes_per_s\": %.4g, \"allocations\": %llu}\n",
               tsh_world_size(j->world), tsh_dtype_name(j->o->dtype), (long long)prompt_tokens, prompt_rate, rate,
               r->weight_bytes, read, r->stream_bytes_per_s, (unsigned long long)r->allocations);
        return;
    }
    for (int64_t b = 0; b < j->prompts.count; b++) {
        if (j->words && !j->result.printed) print_text(j, b);
        if (!j->words) print_ids(j, b, ",");
        printf("\n");
    }
    fprintf(stderr, "prompt: %lld tokens, %.1f a second; then %.1f a second", (long long)prompt_tokens, prompt_rate,
            rate);
    if (r->stream_bytes_per_s > 0)
        fprintf(stderr, ", %.2f GB of weights read a second, %.2f of what %s reaches (%.2f GB/s)", 1e-9 * read,
                read / r->stream_bytes_per_s,
                tsh_device_kind_of(tsh_world_device(j->world)) == TSH_CPU ? "a stream read" : "a copy",
                1e-9 * r->stream_bytes_per_s);
    fputc('\n', stderr);
}

static bool run_chat(job *j) {
    char words[MODEL_WORDS];
    if (!tokenizer_library(j->words)) return fails(j, "--chat wants a tokenizer.json with special tokens");
    if (!open_model(j)) return false;
    if (chat_run(j->m, j->o, j->words, j->world, STDIN_FILENO, words)) return true;
    fprintf(stderr, "generate: %s\n", words); /* each rank has its own */
    return false;
}

static bool run(job *j) {
    char words[MODEL_WORDS];
    if (!read_config(j)) return false;
    if (j->o->chat) return run_chat(j);
    if (!prompts_read(j->world, j->o, &j->config, j->words, &j->prompts, words)) return fails(j, words);
    if (!open_model(j)) return false;
    if (!generate(j->m, j->o, &j->prompts, j->words, j->speaks, &j->result, words)) {
        fprintf(stderr, "generate: %s\n", words); /* each rank has its own */
        return false;
    }
    if (j->speaks) report(j);
    return true;
}

int main(int argc, char **argv) {
    options o;
    job j = {.o = &o};
    j.world = program_begin("generate");
    if (!j.world) return 1;
    j.speaks = tsh_world_rank(j.world) == 0;
    int code = options_parse(argc, argv, j.speaks, &o);
    if (code < 0) code = run(&j) ? 0 : 1;
    free(j.result.ids);
    free(j.result.count);
    id_lines_free(&j.prompts);
    tokenizer_close(j.words);
    model_destroy(j.m);
    tsh_mesh_destroy(j.mesh);
    return program_end("generate", j.world, code);
}
