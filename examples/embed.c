/* embed: vectors of sentences, by a BERT model from a Hugging Face folder: the mean of the hidden features of a
 * sentence's tokens, scaled to length 1, as sentence-transformers computes it. */
#include "command_line.h"
#include "model.h"
#include "numbers.h"
#include "program.h"
#include "tokenizer.h"

#include <stdio.h>
#include <stdlib.h>

static const char help[] =
    "usage: [tshard-run -n RANKS] embed --model DIR --text FILE [options]\n"
    "\n"
    "Prints a vector of length 1 for each sentence, one per line: the normalized mean of its tokens' hidden features\n"
    "in a BERT model. DIR is a Hugging Face folder. Each rank holds its heads and its part of the MLPs.\n"
    "\n"
    "  --model DIR   the model's folder\n"
    "  --text FILE   one sentence per line, which the tokenizer of the model's folder turns into tokens\n"
    "  --ids FILE    instead of --text: the token ids of one sentence per line, including special tokens\n"
    "  --batch N     sentences that are computed at once (32)\n"
    "  --dtype TYPE  float32, float64, bfloat16 or float16, to which the weights are converted (float32)\n"
    "  --json        print one JSON object with the array \"vectors\"\n"
    "  --help        this text\n";

typedef struct settings {
    const char *model, *text, *ids; /* text or ids */
    int64_t batch;
    tsh_dtype dtype;
    bool json;
} settings;

typedef struct job {
    const settings *o;
    tsh_world *world;
    bool speaks; /* rank 0 */
    model_config config;
    id_lines sentences;
    int64_t printed;
    tsh_mesh *mesh;
    tsh_tape *tape;
    model *m;
} job;

static bool fails(const job *j, const char *words) {
    if (j->speaks) fprintf(stderr, "embed: %s\n", words);
    return false;
}

/* --- sentences ---------------------------------------------------------------------------------------------------- */

static bool read_sentences(job *j) {
    char words[MODEL_WORDS];
    tokenizer *t = NULL;
    const char *path = j->o->text ? j->o->text : j->o->ids;
    bool good = !j->o->text || tokenizer_open(j->o->model, &t, words);
    good = good && id_lines_read(j->world, path, t, j->config.vocabulary, &j->sentences, words);
    tokenizer_close(t);
    if (!good) return fails(j, words);
    for (int64_t i = 0; i < j->sentences.count; i++) {
        int64_t count = j->sentences.items[i].count;
        if (count <= j->config.positions) continue;
        snprintf(words, sizeof words,
                 "%.1000s:%lld: %lld tokens, and the model has %lld positions; a shorter sentence is wanted", path,
                 (long long)i + 1, (long long)count, (long long)j->config.positions);
        return fails(j, words);
    }
    return true;
}

/* --- vectors ------------------------------------------------------------------------------------------------------ */

static void print_vectors(job *j, const float *vectors, int64_t count) {
    int64_t width = j->config.width;
    for (int64_t i = 0; j->speaks && i < count; i++) {
        if (j->o->json) printf(j->printed++ ? ", [" : "[");
        for (int64_t k = 0; k < width; k++) {
            double x = vectors[i * width + k];
            if (j->o->json)
                printf("%s%s", k ? ", " : "", json_number(x).text);
            else
                printf("%s%.9g", k ? " " : "", x);
        }
        printf(j->o->json ? "]" : "\n");
    }
}

static tsh_status compute(job *j, const model_input *in, float *vectors) {
    tsh_tensor *hidden = model_forward(j->m, j->tape, in);
    tsh_tensor *pooled = tsh_cast(j->tape, model_pool(j->m, j->tape, hidden, in), TSH_FLOAT32);
    tsh_tensor *y = tsh_full(j->tape, pooled);
    return y ? tsh_tensor_read(y, vectors, in->batch * j->config.width) : tsh_tape_status(j->tape);
}

static bool embed_batch(job *j, const id_line *s, int64_t count) {
    model_input in = {0};
    int64_t longest = 0;
    for (int64_t b = 0; b < count; b++) longest = s[b].count > longest ? s[b].count : longest;
    int64_t *ids = calloc((size_t)(count * longest), sizeof *ids);
    int64_t *lengths = calloc((size_t)count, sizeof *lengths);
    float *vectors = calloc((size_t)(count * j->config.width), sizeof *vectors);
    tsh_status status =
        ids && lengths && vectors ? model_input_create(j->m, count, longest, true, &in) : TSH_ERR_MEMORY;
    if (status == TSH_OK) {
        id_lines_fill(s, count, longest, ids, lengths);
        status = model_input_write(&in, ids, NULL, lengths);
    }
    if (status == TSH_OK) status = compute(j, &in, vectors);
    if (status == TSH_OK) print_vectors(j, vectors, count);
    bool step = tsh_tape_status(j->tape) != TSH_OK;
    if (status != TSH_OK) fprintf(stderr, "embed: %s\n", step ? tsh_tape_message(j->tape) : tsh_error_message());
    if (status == TSH_OK) status = tsh_tape_reset(j->tape);
    model_input_release(&in);
    free(vectors);
    free(lengths);
    free(ids);
    return status == TSH_OK;
}

static bool open_model(job *j) {
    char words[MODEL_WORDS];
    model_options options = {.dtype = j->o->dtype};
    if (!model_config_read(j->o->model, &j->config, words)) return fails(j, words);
    if (j->config.family != MODEL_BERT) {
        snprintf(words, sizeof words, "%s is a %s model; generate runs it, and embed takes bert", j->o->model,
                 model_family_name(j->config.family));
        return fails(j, words);
    }
    if (!read_sentences(j)) return false;
    tsh_status status = tsh_mesh_create(j->world, "model=-1", &j->mesh);
    if (status == TSH_OK) status = tsh_tape_create(j->world, &j->tape);
    if (status == TSH_OK) status = model_create(tsh_mesh_group(j->mesh, "model"), &j->config, &options, &j->m);
    if (status == TSH_OK) status = model_load(j->m, j->o->model);
    tsh_tape_set_recording(j->tape, false);
    return status == TSH_OK || fails(j, tsh_error_message());
}

static bool run(job *j) {
    bool good = open_model(j);
    if (good && j->speaks && j->o->json) printf("{\"vectors\": [");
    for (int64_t i = 0; good && i < j->sentences.count; i += j->o->batch) {
        int64_t rest = j->sentences.count - i;
        good = embed_batch(j, j->sentences.items + i, rest < j->o->batch ? rest : j->o->batch);
    }
    if (good && j->speaks && j->o->json) printf("]}\n");
    return good;
}

static int parse(int argc, char **argv, bool speaks, settings *o) {
    *o = (settings){.batch = 32, .dtype = TSH_FLOAT32};
    const option_row rows[] = {{"model", OPTION_TEXT, &o->model, 0, 0},  {"text", OPTION_TEXT, &o->text, 0, 0},
                               {"ids", OPTION_TEXT, &o->ids, 0, 0},      {"batch", OPTION_COUNT, &o->batch, 1, 1e6},
                               {"dtype", OPTION_DTYPE, &o->dtype, 0, 0}, {"json", OPTION_FLAG, &o->json, 0, 0},
                               {NULL, OPTION_FLAG, NULL, 0, 0}};
    int code = command_line_parse("embed", help, rows, argc, argv, speaks);
    if (code >= 0) return code;
    const char *wrong = !o->model             ? "--model DIR is missing"
                        : !o->text && !o->ids ? "--text FILE or --ids FILE is missing"
                        : o->text && o->ids   ? "--text and --ids exclude each other"
                                              : NULL;
    if (wrong && speaks) fprintf(stderr, "embed: %s\n", wrong);
    return wrong ? 2 : -1;
}

int main(int argc, char **argv) {
    settings o;
    job j = {.o = &o};
    j.world = program_begin("embed");
    if (!j.world) return 1;
    j.speaks = tsh_world_rank(j.world) == 0;
    int code = parse(argc, argv, j.speaks, &o);
    if (code < 0) code = run(&j) ? 0 : 1;
    id_lines_free(&j.sentences);
    model_destroy(j.m);
    tsh_tape_destroy(j.tape);
    tsh_mesh_destroy(j.mesh);
    return program_end("embed", j.world, code);
}
