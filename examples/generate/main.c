/* generate: continues prompts with a model of a Hugging Face folder. */
#include "command_line.h"
#include "generate.h"
#include "program.h"

#include <stdio.h>
#include <stdlib.h>

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
    if (!j->o->text) {
        tokenizer_open(j->o->model, &j->words, words); /* to print the text, where there is one */
        return true;
    }
    return tokenizer_open(j->o->model, &j->words, words) || fails(j, words);
}

static bool open_model(job *j) {
    model_options wanted = {.dtype = j->o->dtype, .random_weights = j->o->random_weights};
    tsh_world_seed(j->world, (uint64_t)j->o->seed);
    tsh_status status = tsh_mesh_create(j->world, "model=-1", &j->mesh);
    if (status == TSH_OK) status = model_create(tsh_mesh_group(j->mesh, "model"), &j->config, &wanted, &j->m);
    if (status == TSH_OK && !j->o->random_weights) status = model_load(j->m, j->o->model);
    return status == TSH_OK || fails(j, tsh_error_message());
}

/* --- what is said ------------------------------------------------------------------------------------------------- */

static const int64_t *ids_of(const job *j, int64_t b) {
    return j->result.ids + b * j->o->tokens;
}

static void print_ids(const job *j, int64_t b, const char *between) {
    for (int64_t i = 0; i < j->result.count[b]; i++) printf("%s%lld", i ? between : "", (long long)ids_of(j, b)[i]);
}

static void print_text(const job *j, int64_t b, void (*put)(const char *bytes, size_t length)) {
    for (int64_t i = 0; i < j->result.count[b]; i++) {
        size_t length;
        const char *bytes = tokenizer_decode(j->words, ids_of(j, b)[i], &length);
        put(bytes, length);
    }
}

static void put_plain(const char *bytes, size_t length) {
    fwrite(bytes, 1, length, stdout);
}

static void put_json(const char *bytes, size_t length) {
    for (size_t i = 0; i < length; i++) {
        unsigned char c = (unsigned char)bytes[i];
        if (c < 32 || c == '"' || c == '\\') {
            printf("\\u%04x", c);
        } else {
            putchar(c);
        }
    }
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
        print_text(j, b, put_json);
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
        if (j->words) print_text(j, b, put_plain);
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

static bool run(job *j) {
    char words[MODEL_WORDS];
    if (!read_config(j)) return false;
    if (!prompts_read(j->o, &j->config, j->words, &j->prompts, words) ||
        !prompts_check(j->o, &j->config, &j->prompts, words))
        return fails(j, words);
    if (!open_model(j)) return false;
    if (!generate(j->m, j->o, &j->prompts, j->speaks, &j->result, words)) {
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
