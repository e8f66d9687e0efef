/* Random calls on files: model files and checkpoints in one folder, which later calls read again. */
#include "fuzz.h"

#include <stdio.h>

const char *fuzz_folder;

/* One of a few files, seldom one in a folder that is not there, or none. */
static const char *some_path(fuzz *f, char path[256]) {
    static const char *const names[] = {"/a.safetensors", "/b", "/checkpoints", "/checkpoints/step-00000003"};
    if (fuzz_chance(f, 3)) return NULL;
    snprintf(path, 256, "%s%s%s", fuzz_folder, fuzz_chance(f, 5) ? "/nowhere" : "", names[fuzz_below(f, 4)]);
    return path;
}

static void save_and_load(fuzz *f, void (*function)(void)) {
    static const tsh_name_rule rules[] = {{.parameter = "*.weight", .tensor = "*.kernel", .transpose = true},
                                          {.parameter = "*", .tensor = "model.*"},
                                          {.parameter = "**", .tensor = "x"}};
    static const char *const ignored[] = {"x", "*.bias", "**", NULL};
    char path[256];
    const char *at = some_path(f, path);
    tsh_parameters *list = fuzz_pick(f, FUZZ_LIST);
    tsh_save_options save = {
        .rules = rules, .rule_count = fuzz_below(f, 4), .max_shard_bytes = fuzz_chance(f, 30) * 64};
    tsh_load_options load = {.rules = rules,
                             .rule_count = save.rule_count,
                             .allow_missing = fuzz_chance(f, 50),
                             .allow_unexpected = fuzz_chance(f, 50),
                             .keep_quantized = fuzz_chance(f, 50),
                             .ignored = fuzz_chance(f, 30) ? ignored + fuzz_below(f, 4) : NULL};
    (void)function;
    if (fuzz_chance(f, 60))
        fuzz_said(f, "save", tsh_save(list, at, fuzz_chance(f, 30) ? &save : NULL), NULL);
    else
        fuzz_said(f, "load", tsh_load(list, at, fuzz_chance(f, 70) ? &load : NULL), NULL);
}

static void adapters(fuzz *f, void (*function)(void)) {
    const tsh_lora_config config = {.rank = fuzz_index(f, 3)};
    char path[256];
    const char *at = some_path(f, path);
    tsh_parameters *list = fuzz_pick(f, FUZZ_LIST);
    tsh_lora_config *read = NULL;
    char json[64];
    (void)function;
    if (fuzz_chance(f, 60))
        fuzz_said(f, "adapter_save", tsh_adapter_save(list, at, fuzz_chance(f, 97) ? &config : NULL, NULL), NULL);
    else
        fuzz_said(f, "adapter_load", tsh_adapter_load(list, at), NULL);
    tsh_status status = tsh_adapter_config_read(f->world, at, &read);
    fuzz_said(f, "adapter_config_read", status, read);
    tsh_adapter_config_destroy(read);
    fuzz_said(f, "gguf_config", tsh_gguf_config(at, fuzz_chance(f, 90) ? json : NULL, sizeof json), NULL);
    fuzz_said(f, "gguf_text", tsh_gguf_text(at, fuzz_chance(f, 90) ? "key" : NULL, json, sizeof json), NULL);
}

static void checkpoint(fuzz *f, void (*function)(void)) {
    char path[256], word[8] = "word";
    const char *at = some_path(f, path);
    int64_t number = 1, latest;
    tsh_value values[] = {{"number", TSH_VALUE_INT64, &number, 0},
                          {"word", TSH_VALUE_STRING, word, fuzz_chance(f, 90) ? sizeof word : 1},
                          {fuzz_chance(f, 95) ? "bytes" : NULL, TSH_VALUE_BYTES, word, 4}};
    tsh_checkpoint c = {.parameters = fuzz_pick(f, FUZZ_LIST),
                        .optimizer = fuzz_chance(f, 50) ? NULL : fuzz_pick(f, FUZZ_OPTIMIZER),
                        .step = fuzz_index(f, 5),
                        .values = values,
                        .value_count = fuzz_below(f, 5) - 1,
                        .keep = fuzz_index(f, 3),
                        .background = fuzz_chance(f, 30)};
    tsh_world *world = tsh_tensor_mesh(tsh_parameters_tensor(c.parameters, 0))
                           ? tsh_mesh_world(tsh_tensor_mesh(tsh_parameters_tensor(c.parameters, 0)))
                           : f->world;
    (void)function;
    if (fuzz_chance(f, 50))
        fuzz_said(f, "checkpoint_save", tsh_checkpoint_save(at, fuzz_chance(f, 97) ? &c : NULL), NULL);
    else if (fuzz_chance(f, 70))
        fuzz_said(f, "checkpoint_load", tsh_checkpoint_load(at, fuzz_chance(f, 97) ? &c : NULL), NULL);
    else
        fuzz_said(f, "checkpoint_wait", tsh_checkpoint_wait(fuzz_chance(f, 97) ? world : NULL), NULL);
    tsh_checkpoint_latest(at, fuzz_chance(f, 97) ? &latest : NULL);
}

/* A tokenizer of this rank's own file, which sometimes lacks something; random texts and ids. */
static void tokenizer(fuzz *f, void (*function)(void)) {
    static const char *const merges[] = {"\"a b\"", "\"ab b\"", "", "1"}, *const tokens[] = {"a", "<s>", "none", NULL};
    char path[300], text[16];
    const int64_t *ids, some[] = {fuzz_index(f, 5), fuzz_index(f, 5)};
    int64_t count;
    const char *words;
    tsh_tokenizer *t = NULL;
    tsh_text_stream *stream = NULL;
    (void)function;
    snprintf(path, sizeof path, "%s/tokenizer-%d.json", fuzz_folder, f->rank->rank);
    FILE *file = fopen(path, "w");
    if (!file) return;
    fprintf(file,
            "{\"added_tokens\": [{\"id\": %d, \"content\": \"<s>\", \"special\": true}], \"model\": {\"type\": "
            "\"BPE\", \"merges\": [%s], \"vocab\": {\"a\": 0, \"b\": 1, \"ab\": 2}}}",
            fuzz_index(f, 5), merges[fuzz_below(f, 4)]);
    fclose(file);
    tsh_status status = tsh_tokenizer_load(fuzz_chance(f, 95) ? path : NULL, &t);
    if (status == TSH_ERR_UNSUPPORTED) return; /* this build has none */
    fuzz_said(f, "tokenizer_load", status, t);
    for (size_t i = 0; i < sizeof text; i++)
        text[i] = (char)(fuzz_chance(f, 3) ? fuzz_below(f, 256) : 'a' + fuzz_below(f, 3));
    status = tsh_tokenizer_encode(t, text, sizeof text, fuzz_chance(f, 50), &ids, &count);
    fuzz_said(f, "tokenizer_encode", status, ids);
    status = tsh_tokenizer_decode(t, some, 2, fuzz_chance(f, 50), &words, NULL);
    fuzz_said(f, "tokenizer_decode", status, words);
    if (tsh_tokenizer_id(t, tokens[fuzz_below(f, 4)]) >= tsh_tokenizer_size(t) && t)
        fuzz_wrong(f, "an id past the size");
    status = tsh_text_stream_create(t, fuzz_chance(f, 50), &stream);
    fuzz_said(f, "text_stream_create", status, stream);
    status = tsh_text_stream_add(stream, some[0], &words, NULL);
    fuzz_said(f, "text_stream_add", status, words);
    status = tsh_text_stream_end(stream, &words, NULL);
    fuzz_said(f, "text_stream_end", status, words);
    tsh_text_stream_destroy(stream);
    tsh_tokenizer_destroy(t);
}

const fuzz_call fuzz_io_calls[] = {
    {"tsh_tokenizer_load tsh_tokenizer_destroy tsh_tokenizer_size tsh_tokenizer_id tsh_tokenizer_encode "
     "tsh_tokenizer_decode tsh_text_stream_create tsh_text_stream_destroy tsh_text_stream_add tsh_text_stream_end",
     tokenizer, NULL, 1},
    {"tsh_save tsh_load", save_and_load, NULL, 2},
    {"tsh_adapter_save tsh_adapter_load tsh_adapter_config_read tsh_adapter_config_destroy tsh_gguf_config "
     "tsh_gguf_text",
     adapters, NULL, 1},
    {"tsh_checkpoint_save tsh_checkpoint_load tsh_checkpoint_wait tsh_checkpoint_latest", checkpoint, NULL, 2},
    {NULL, NULL, NULL, 0},
};
