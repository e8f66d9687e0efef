/* Files that are not there, or not what they should be. Every row works in a folder of its own. */
#include "misuse.h"

#include <stdio.h>

static tsh_parameters *one_parameter(const job *j, const char *name, int64_t rows) {
    tsh_parameters *list = NULL;
    say(tsh_parameters_create(j->world, &list));
    say(tsh_parameters_add(list, name, leaf(j, rows, 3)));
    return list;
}

static void write_file(const job *j, const char *text) {
    FILE *to = j->rank ? NULL : fopen("model.safetensors", "w");
    if (to) {
        fputs(text, to);
        fclose(to);
    }
    say(tsh_barrier(j->group));
}

static void no_file(job *j) {
    say(tsh_load(one_parameter(j, "w", 2), "nowhere.safetensors", NULL));
}

static void other_file(job *j) {
    write_file(j, "This is a letter, and no model: it has no tensors.");
    say(tsh_load(one_parameter(j, "w", 2), "model.safetensors", NULL));
}

static void empty_file(job *j) {
    write_file(j, "");
    say(tsh_load(one_parameter(j, "w", 2), "model.safetensors", NULL));
}

static void other_names(job *j) {
    say(tsh_save(one_parameter(j, "w", 2), "model.safetensors", NULL));
    say(tsh_load(one_parameter(j, "v", 2), "model.safetensors", NULL));
}

static void other_shape(job *j) {
    say(tsh_save(one_parameter(j, "w", 2), "model.safetensors", NULL));
    say(tsh_load(one_parameter(j, "w", 4), "model.safetensors", NULL));
}

static void no_checkpoint(job *j) {
    tsh_checkpoint what = {.parameters = one_parameter(j, "w", 2)};
    say(tsh_checkpoint_load(".", &what));
}

static void save_nowhere(job *j) {
    say(tsh_save(one_parameter(j, "w", 2), "no/such/folder/model.safetensors", NULL));
}

const misuse file_rows[] = {
    {"no_file", BOTH, "", "nowhere.safetensors", no_file, false},
    {"other_file", BOTH, "", "model.safetensors: is not a safetensors file: its header would have", other_file, false},
    {"empty_file", BOTH, "", "model.safetensors: is not a safetensors file: it has only 0 bytes", empty_file, false},
    {"other_names", BOTH, "", "load 'model.safetensors': 'v' is missing; 'w' is unexpected", other_names, false},
    {"other_shape", BOTH, "", "'w' has another shape: float32 [4,3] here, F32 [2,3] there", other_shape, false},
    {"no_checkpoint", BOTH, "", "checkpoint_load: .: no complete checkpoint found", no_checkpoint, false},
    {"save_nowhere", BOTH, "", "no/such/folder", save_nowhere, false},
    {0}};
