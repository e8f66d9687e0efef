/* Models in one file or in several. */
#include "io/weights.h"

#include "base/hash.h"
#include "io/file.h"
#include "io/step_folder.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

/* --- the index ---------------------------------------------------------------------------------------------------- */

/* True for the name of a file in the index's own folder. */
static bool is_plain(const char *name) {
    return name && name[0] && !strchr(name, '/') && strcmp(name, ".") != 0 && strcmp(name, "..") != 0;
}

tsh_status tshi_weights_parse(const char *path, const char *text, size_t length, void **json) {
    json_error_t error;
    const char *name;
    json_t *file, *index = json_loadb(text, length, JSON_REJECT_DUPLICATES, &error);
    *json = NULL;
    if (!index) return tshi_fail(TSH_ERR_IO, "%.220s: is not JSON: %.160s", path, error.text);
    json_t *map = json_object_get(index, "weight_map");
    tsh_status status = TSH_OK;
    if (!json_is_object(map)) status = tshi_fail(TSH_ERR_IO, "%.220s: has no weight_map", path);
    json_object_foreach(map, name, file) {
        if (status != TSH_OK || is_plain(json_string_value(file))) continue;
        status = tshi_fail(TSH_ERR_IO, "%.220s: the file of '%.100s' is not in this folder", path, name);
    }
    if (status == TSH_OK)
        *json = index;
    else
        json_decref(index);
    return status;
}

static tsh_status read_index(const tsh_allocator *allocator, const char *path, json_t **index) {
    size_t bytes;
    char *text;
    void *json = NULL;
    tsh_status status = tshi_file_load(allocator, path, "an index", TSHI_SAFETENSORS_MAX_HEADER, &text, &bytes);
    if (status == TSH_OK) status = tshi_weights_parse(path, text, bytes, &json);
    *index = json;
    tshi_free(allocator, text);
    return status;
}

/* --- files and their tensors -------------------------------------------------------------------------------------- */

static tsh_status add_file(tshi_weights *weights, const char *path, tshi_safetensors **file) {
    tsh_status status = tshi_grow(&weights->allocator, (void **)&weights->files, &weights->files_capacity,
                                  weights->files_count + 1, sizeof *weights->files);
    if (status == TSH_OK) status = tshi_safetensors_open(&weights->allocator, path, file);
    if (status == TSH_OK) weights->files[weights->files_count++] = *file;
    return status;
}

static tsh_status open_one(tshi_weights *weights, const char *path) {
    tshi_safetensors *file;
    tsh_status status = add_file(weights, path, &file);
    if (status != TSH_OK) return status;
    weights->items = tshi_calloc(&weights->allocator, (size_t)file->count, sizeof *weights->items);
    if (!weights->items) return TSH_ERR_MEMORY;
    for (int i = 0; i < file->count; i++) weights->items[i] = (tshi_weight){&file->entries[i], file, NULL};
    weights->count = file->count;
    return TSH_OK;
}

/* The scales of rotary positions in a GGUF file are those of the model's configuration, not a tensor of a folder. */
static bool is_weight(const tshi_gguf_tensor *tensor) {
    return strcmp(tensor->name, TSHI_GGUF_ROPE) != 0;
}

static tsh_status open_gguf(tshi_weights *weights, const char *path) {
    tsh_status status = tshi_gguf_open(&weights->allocator, path, &weights->gguf);
    if (status != TSH_OK) return status;
    const tshi_gguf *file = weights->gguf;
    weights->items = tshi_calloc(&weights->allocator, (size_t)file->count, sizeof *weights->items);
    if (!weights->items) return TSH_ERR_MEMORY;
    for (int i = 0; i < file->count; i++) {
        const tshi_gguf_tensor *t = &file->tensors[i];
        if (is_weight(t)) weights->items[weights->count++] = (tshi_weight){&t->entry, NULL, t};
    }
    return TSH_OK;
}

/* The open file with that path; opens a new one. */
static tsh_status find_file(tshi_weights *weights, const char *path, tshi_safetensors **file) {
    for (int i = weights->files_count - 1; i >= 0; i--) {
        *file = weights->files[i];
        if (strcmp((*file)->path, path) == 0) return TSH_OK;
    }
    return add_file(weights, path, file);
}

static int weights_by_name(const void *left, const void *right) {
    const tshi_weight *a = left, *b = right;
    return strcmp(a->entry->name, b->entry->name);
}

static tsh_status open_mapped(tshi_weights *weights, const char *folder, const json_t *map) {
    const char *name;
    json_t *value;
    char path[TSHI_PATH];
    weights->items = tshi_calloc(&weights->allocator, json_object_size(map), sizeof *weights->items);
    if (!weights->items) return TSH_ERR_MEMORY;
    json_object_foreach((json_t *)map, name, value) {
        tshi_safetensors *file = NULL;
        tsh_status status = tshi_path_join(path, folder, json_string_value(value));
        if (status == TSH_OK) status = find_file(weights, path, &file);
        if (status != TSH_OK) return status;
        const tshi_safetensors_entry *entry = tshi_safetensors_find(file, name);
        if (!entry) return tshi_fail(TSH_ERR_IO, "%.220s: lacks '%.100s', which the index assigns to it", path, name);
        weights->items[weights->count++] = (tshi_weight){entry, file, NULL};
    }
    if (weights->count) qsort(weights->items, (size_t)weights->count, sizeof *weights->items, weights_by_name);
    return TSH_OK;
}

static tsh_status open_folder(tshi_weights *weights, const char *folder) {
    struct stat info;
    char path[TSHI_PATH];
    json_t *index = NULL;
    tsh_status status = tshi_path_join(path, folder, TSHI_WEIGHTS_FILE);
    if (status == TSH_OK && stat(path, &info) == 0) return open_one(weights, path);
    if (status == TSH_OK) status = tshi_path_join(path, folder, TSHI_WEIGHTS_INDEX);
    if (status == TSH_OK && stat(path, &info) != 0) {
        return tshi_fail(TSH_ERR_IO, "%.220s: has neither " TSHI_WEIGHTS_FILE " nor " TSHI_WEIGHTS_INDEX, folder);
    }
    if (status == TSH_OK) status = read_index(&weights->allocator, path, &index);
    if (status == TSH_OK) status = open_mapped(weights, folder, json_object_get(index, "weight_map"));
    json_decref(index);
    return status;
}

tsh_status tshi_weights_open(const tsh_allocator *allocator, const char *path, tshi_weights **out) {
    struct stat info;
    *out = NULL;
    tshi_weights *weights = tshi_calloc(allocator, 1, sizeof *weights);
    if (!weights) return TSH_ERR_MEMORY;
    weights->allocator = *allocator;
    bool folder = stat(path, &info) == 0 && S_ISDIR(info.st_mode);
    tsh_status status = folder               ? open_folder(weights, path)
                        : tshi_gguf_is(path) ? open_gguf(weights, path)
                                             : open_one(weights, path);
    if (status == TSH_OK)
        *out = weights;
    else
        tshi_weights_close(weights);
    return status;
}

void tshi_weights_close(tshi_weights *weights) {
    if (!weights) return;
    tsh_allocator allocator = weights->allocator;
    for (int i = 0; i < weights->files_count; i++) tshi_safetensors_close(weights->files[i]);
    tshi_gguf_close(weights->gguf);
    tshi_free(&allocator, weights->files);
    tshi_free(&allocator, weights->items);
    tshi_free(&allocator, weights);
}

const tshi_weight *tshi_weights_find(const tshi_weights *weights, const char *name) {
    const tshi_safetensors_entry entry = {.name = name};
    const tshi_weight key = {&entry, NULL, NULL};
    if (weights->count == 0) return NULL;
    return bsearch(&key, weights->items, (size_t)weights->count, sizeof *weights->items, weights_by_name);
}

tsh_status tshi_weights_read_box(tshi_weights *weights, const tshi_weight *weight, const tsh_box *box, void *out) {
    if (weight->file) return tshi_safetensors_read_box(weight->file, weight->entry, box, out);
    return tshi_gguf_read_box(weights->gguf, weight->tensor, box, out);
}

uint64_t tshi_weights_bytes_read(const tshi_weights *weights) {
    uint64_t bytes = weights->gguf ? weights->gguf->bytes_read : 0;
    for (int i = 0; i < weights->files_count; i++) bytes += weights->files[i]->bytes_read;
    return bytes;
}

uint64_t tshi_weights_fingerprint(const tshi_weights *weights) {
    uint64_t fingerprint = TSHI_FINGERPRINT;
    if (weights->gguf) fingerprint = tshi_fingerprint_add(fingerprint, weights->gguf->fingerprint);
    for (int i = 0; i < weights->files_count; i++)
        fingerprint = tshi_fingerprint_add(fingerprint, weights->files[i]->fingerprint);
    return fingerprint;
}
