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
                             .ignored = fuzz_chance(f, 30) ? ignored + fuzz_below(f, 4) : NULL};
    (void)function;
    if (fuzz_chance(f, 60))
        fuzz_said(f, "save", tsh_save(list, at, fuzz_chance(f, 30) ? &save : NULL), NULL);
    else
        fuzz_said(f, "load", tsh_load(list, at, fuzz_chance(f, 70) ? &load : NULL), NULL);
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

const fuzz_call fuzz_io_calls[] = {
    {"tsh_save tsh_load", save_and_load, NULL, 2},
    {"tsh_checkpoint_save tsh_checkpoint_load tsh_checkpoint_wait tsh_checkpoint_latest", checkpoint, NULL, 2},
    {NULL, NULL, NULL, 0},
};
