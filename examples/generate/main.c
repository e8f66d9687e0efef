/* generate: continues a prompt with a model of a Hugging Face folder. */
#include "command_line.h"
#include "generate.h"
#include "program.h"
#include "tokenizer.h"

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
    int64_t *prompt, prompt_count;
    outcome result;
} job;

static bool fails(const job *j, const char *words) {
    if (j->speaks) fprintf(stderr, "generate: %s\n", words);
    return false;
}

/* --- the prompt --------------------------------------------------------------------------------------------------- */

static bool draw_prompt(job *j) {
    uint64_t state = (uint64_t)j->o->seed;
    j->prompt_count = j->o->prompt_tokens;
    j->prompt = calloc((size_t)j->prompt_count, sizeof *j->prompt);
    for (int64_t i = 0; j->prompt && i < j->prompt_count; i++) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        j->prompt[i] = (int64_t)((state >> 33) % (uint64_t)j->config.vocabulary);
    }
    return j->prompt || fails(j, "no memory for the prompt");
}

static bool read_prompt(job *j) {
    char words[MODEL_WORDS], line[MODEL_WORDS + 32];
    if (!j->o->prompt_ids && !j->o->text) return draw_prompt(j);
    bool good = j->o->text ? tokenizer_encode(j->words, j->o->text, &j->prompt, &j->prompt_count, words)
                           : ids_parse(j->o->prompt_ids, j->config.vocabulary, &j->prompt, &j->prompt_count, words);
    if (good) return true;
    snprintf(line, sizeof line, "%s: %s", j->o->text ? "--prompt" : "--prompt-ids", words);
    return fails(j, line);
}

static bool check_lengths(const job *j) {
    char words[MODEL_WORDS];
    long long prompt = j->prompt_count, tokens = j->o->tokens, positions = j->config.positions;
    if (prompt + tokens <= positions) return true;
    if (prompt >= positions) {
        snprintf(
            words, sizeof words,
            "a prompt of %lld tokens, and the model has %lld positions: at most %lld tokens leave room for one more",
            prompt, positions, positions - 1);
    } else {
        snprintf(
            words, sizeof words,
            "a prompt of %lld tokens and %lld to generate, and the model has %lld positions: --tokens %lld would fill "
            "the cache",
            prompt, tokens, positions, positions - prompt);
    }
    return fails(j, words);
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

static void print_ids(const job *j, const char *between) {
    for (int64_t i = 0; i < j->result.count; i++) printf("%s%lld", i ? between : "", (long long)j->result.ids[i]);
}

static void print_text(const job *j, void (*put)(const char *bytes, size_t length)) {
    for (int64_t i = 0; i < j->result.count; i++) {
        size_t length;
        const char *bytes = tokenizer_decode(j->words, j->result.ids[i], &length);
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

static void report(const job *j) {
    const outcome *r = &j->result;
    double prompt_rate = (double)j->prompt_count / r->prompt_seconds;
    double rate = r->count > 1 ? (double)(r->count - 1) / r->token_seconds : 0;
    double read = rate * r->weight_bytes;
    if (j->o->json) {
        printf("{\"ids\": [");
        print_ids(j, ", ");
        printf("], ");
        if (j->words) {
            printf("\"text\": \"");
            print_text(j, put_json);
            printf("\", ");
        }
        printf("\"ranks\": %d, \"dtype\": \"%s\", \"prompt_tokens\": %lld, \"prompt_tokens_per_s\": %.1f, "
               "\"tokens_per_s\": %.2f, \"weight_bytes\": %.0f, \"weight_bytes_per_s\": %.4g, "
               "\"stream_bytes_per_s\": %.4g, \"allocations\": %llu}\n",
               tsh_world_size(j->world), tsh_dtype_name(j->o->dtype), (long long)j->prompt_count, prompt_rate, rate,
               r->weight_bytes, read, r->stream_bytes_per_s, (unsigned long long)r->allocations);
        return;
    }
    if (j->words) print_text(j, put_plain);
    if (!j->words) print_ids(j, ",");
    printf("\n");
    fprintf(stderr, "prompt: %lld tokens, %.1f a second; then %.1f a second", (long long)j->prompt_count, prompt_rate,
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
    if (!read_config(j) || !read_prompt(j) || !check_lengths(j) || !open_model(j)) return false;
    if (!generate(j->m, j->o, j->prompt, j->prompt_count, j->speaks, &j->result, words)) {
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
    free(j.prompt);
    tokenizer_close(j.words);
    model_destroy(j.m);
    tsh_mesh_destroy(j.mesh);
    return program_end("generate", j.world, code);
}
