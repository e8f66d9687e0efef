/* The index of a checkpoint, as a file. */
#include "io/checkpoint_index.h"
#include "io/file.h"
#include "io/step_folder.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define FORMAT  "tshard checkpoint"
#define VERSION 1
/* A larger file is not an index. */
#define MOST_BYTES ((uint64_t)1 << 30)

/* --- writing ------------------------------------------------------------------------------------------------------ */

static json_t *make_numbers(int n, const int64_t *numbers) {
    json_t *array = json_array();
    for (int i = 0; i < n; i++) json_array_append_new(array, json_integer(numbers[i]));
    return array;
}

static json_t *make_tensor(const tshi_stored_tensor *t) {
    char sum[24];
    json_t *boxes = json_array();
    for (int b = 0; b < t->count; b++) {
        json_array_append_new(boxes, json_pack("{s:i, s:o, s:o}", "file", t->boxes[b].file, "start",
                                               make_numbers(t->ndim, t->boxes[b].box.start), "length",
                                               make_numbers(t->ndim, t->boxes[b].box.length)));
    }
    snprintf(sum, sizeof sum, "%016" PRIx64, t->sum);
    return json_pack("{s:s, s:o, s:s, s:o}", "dtype", tsh_dtype_name(t->dtype), "shape",
                     make_numbers(t->ndim, t->shape), "checksum", sum, "boxes", boxes);
}

/* NULL without memory, or for a name that is not UTF-8. */
static json_t *make_index(const tshi_checkpoint_index *index) {
    json_t *files = json_array(), *tensors = json_object();
    json_t *all =
        json_pack("{s:s, s:i, s:s, s:I, s:O*, s:o, s:o}", "format", FORMAT, "version", VERSION, "tshard", tsh_version(),
                  "step", (json_int_t)index->step, "state", index->state, "files", files, "tensors", tensors);
    bool good = all != NULL;
    for (int i = 0; i < index->files && good; i++) {
        good = json_array_append_new(files, json_pack("{s:s, s:I}", "name", index->file[i].name, "bytes",
                                                      (json_int_t)index->file[i].bytes)) == 0;
    }
    for (int i = 0; i < index->tensors && good; i++) {
        good = json_object_set_new(tensors, index->tensor[i].name, make_tensor(&index->tensor[i])) == 0;
    }
    if (good) return all;
    json_decref(all);
    return NULL;
}

tsh_status tshi_checkpoint_index_write(const tshi_checkpoint_index *index, const char *path) {
    json_t *all = make_index(index);
    char *text = all ? json_dumps(all, 0) : NULL;
    json_decref(all);
    if (!text) return tshi_fail(TSH_ERR_MEMORY, "%.220s: out of memory, or a name that is not UTF-8", path);
    tsh_status status = tshi_file_save(path, text);
    free(text);
    return status;
}

/* --- reading ------------------------------------------------------------------------------------------------------ */

static bool read_numbers(const json_t *array, int n, int64_t *out) {
    if (!json_is_array(array) || json_array_size(array) != (size_t)n) return false;
    for (int i = 0; i < n; i++) {
        const json_t *number = json_array_get(array, (size_t)i);
        if (!json_is_integer(number) || json_integer_value(number) < 0) return false;
        out[i] = json_integer_value(number);
    }
    return true;
}

static bool read_dtype(const char *name, tsh_dtype *out) {
    for (int d = 0; d < TSH_DTYPE_COUNT; d++) {
        *out = (tsh_dtype)d;
        if (name && !strcmp(name, tsh_dtype_name(*out))) return true;
    }
    return false;
}

static bool read_sum(const char *text, uint64_t *out) {
    char *end;
    if (!text || strlen(text) != 16 || strspn(text, "0123456789abcdef") != 16) return false;
    *out = strtoull(text, &end, 16);
    return *end == '\0';
}

static bool read_boxes(tshi_stored_tensor *tensor, const json_t *boxes) {
    size_t i;
    json_t *item;
    if (!json_is_array(boxes)) return false;
    json_array_foreach(boxes, i, item) {
        tsh_box box = {{0}, {0}};
        const json_t *file = json_object_get(item, "file");
        if (!json_is_integer(file) || json_integer_value(file) < 0 || json_integer_value(file) > INT32_MAX ||
            !read_numbers(json_object_get(item, "start"), tensor->ndim, box.start) ||
            !read_numbers(json_object_get(item, "length"), tensor->ndim, box.length) ||
            tshi_stored_tensor_add(tensor, (int)json_integer_value(file), &box) != TSH_OK) {
            return false;
        }
    }
    return true;
}

static bool read_tensor(tshi_checkpoint_index *index, const char *name, const json_t *from) {
    int64_t shape[TSH_MAX_DIMS] = {0};
    tsh_dtype dtype;
    uint64_t sum;
    const json_t *dims = json_object_get(from, "shape");
    size_t ndim = json_array_size(dims);
    if (ndim > TSH_MAX_DIMS || !read_numbers(dims, (int)ndim, shape) ||
        !read_dtype(json_string_value(json_object_get(from, "dtype")), &dtype) ||
        !read_sum(json_string_value(json_object_get(from, "checksum")), &sum)) {
        return false;
    }
    tshi_stored_tensor *tensor = tshi_checkpoint_index_add_tensor(index, name, dtype, (int)ndim, shape);
    if (!tensor) return false;
    tensor->sum = sum;
    return read_boxes(tensor, json_object_get(from, "boxes"));
}

static bool read_files(tshi_checkpoint_index *index, const json_t *files) {
    size_t i;
    json_t *item;
    if (!json_is_array(files)) return false;
    json_array_foreach(files, i, item) {
        const char *name = json_string_value(json_object_get(item, "name"));
        const json_t *bytes = json_object_get(item, "bytes");
        if (!name || !json_is_integer(bytes) || json_integer_value(bytes) < 0 ||
            tshi_checkpoint_index_add_file(index, name, (uint64_t)json_integer_value(bytes)) != TSH_OK) {
            return false;
        }
    }
    return true;
}

/* Returns what is wrong with the index, or NULL. */
static const char *read_index(tshi_checkpoint_index *index, const json_t *all) {
    const char *format = json_string_value(json_object_get(all, "format")), *name;
    const json_t *step = json_object_get(all, "step");
    json_t *tensors = json_object_get(all, "tensors"), *tensor;
    if (!format || strcmp(format, FORMAT) != 0) return "is not the index of a tshard checkpoint";
    if (json_integer_value(json_object_get(all, "version")) != VERSION) {
        return "has another format version than 1, the one that this library reads";
    }
    if (!json_is_integer(step) || json_integer_value(step) < 0) return "has no step";
    index->step = json_integer_value(step);
    if (!read_files(index, json_object_get(all, "files"))) return "has a list of files that cannot be read";
    if (!json_is_object(tensors)) return "has no tensors";
    json_object_foreach(tensors, name, tensor) {
        if (!read_tensor(index, name, tensor)) return "has a tensor that cannot be read";
    }
    index->state = json_incref(json_object_get(all, "state"));
    return NULL;
}

tsh_status tshi_checkpoint_index_read(const char *path, tshi_checkpoint_index *index) {
    const tsh_allocator allocator = tshi_allocator_resolve(NULL);
    char *text;
    size_t bytes;
    *index = (tshi_checkpoint_index){0};
    tsh_status status = tshi_file_load(&allocator, path, "an index", MOST_BYTES, &text, &bytes);
    if (status == TSH_OK) {
        json_error_t error;
        json_t *all = json_loadb(text, bytes, JSON_REJECT_DUPLICATES, &error);
        const char *wrong = all ? read_index(index, all) : NULL;
        if (!all) status = tshi_fail(TSH_ERR_IO, "%.220s: line %d: %.150s", path, error.line, error.text);
        if (wrong) status = tshi_fail(TSH_ERR_IO, "%.220s: %s", path, wrong);
        json_decref(all);
    }
    tshi_free(&allocator, text);
    if (status != TSH_OK) tshi_checkpoint_index_clear(index);
    return status;
}
