/* Opens the files of a checkpoint, and reads any box from the boxes in them. */
#include "io/checkpoint_files.h"

#include "io/file.h"
#include "io/step_folder.h"
#include "tensor/tensor.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define FORMAT  "tshard checkpoint"
#define VERSION 2
/* A larger file is not a checkpoint.json. */
#define MOST_BYTES ((uint64_t)1 << 30)
/* Bytes per read into the buffer, for elements that cannot be read in place. */
#define CHUNK ((size_t)1 << 20)

const char *tshi_rank_file_name(int rank, char name[TSHI_RANK_FILE]) {
    snprintf(name, TSHI_RANK_FILE, "rank-%05d.safetensors", rank);
    return name;
}

/* --- JSON --------------------------------------------------------------------------------------------------------- */

static json_t *make_numbers(int n, const int64_t *numbers) {
    json_t *array = json_array();
    for (int i = 0; i < n; i++) json_array_append_new(array, json_integer(numbers[i]));
    return array;
}

static bool read_numbers(const json_t *array, int n, int64_t *out) {
    if (!json_is_array(array) || json_array_size(array) != (size_t)n) return false;
    for (int i = 0; i < n; i++) {
        const json_t *number = json_array_get(array, (size_t)i);
        if (!json_is_integer(number) || json_integer_value(number) < 0) return false;
        out[i] = json_integer_value(number);
    }
    return true;
}

void tshi_checkpoint_describe_box(json_t *boxes, const tshi_stored_tensor *t, const tsh_box *box) {
    json_object_set_new(
        boxes, t->name,
        json_pack("{s:o, s:o}", "shape", make_numbers(t->ndim, t->shape), "start", make_numbers(t->ndim, box->start)));
}

tsh_status tshi_checkpoint_write_json(const char *folder, int64_t step, json_t *state, int files, int tensors,
                                      const tshi_stored_tensor *tensor) {
    char path[TSHI_PATH], sum[24];
    json_t *list = json_object();
    bool good = true;
    for (int i = 0; i < tensors && good; i++) {
        const tshi_stored_tensor *t = &tensor[i];
        snprintf(sum, sizeof sum, "%016" PRIx64, t->sum);
        good = json_object_set_new(list, t->name,
                                   json_pack("{s:s, s:o, s:s}", "dtype", tsh_dtype_name(t->dtype), "shape",
                                             make_numbers(t->ndim, t->shape), "checksum", sum)) == 0;
    }
    json_t *all = json_pack("{s:s, s:i, s:s, s:I, s:i, s:o, s:o}", "format", FORMAT, "version", VERSION, "tshard",
                            tsh_version(), "step", (json_int_t)step, "files", files, "state", state, "tensors", list);
    char *text = good && all ? json_dumps(all, 0) : NULL;
    json_decref(all);
    tsh_status status = text ? tshi_path_join(path, folder, TSHI_CHECKPOINT_JSON)
                             : tshi_fail(TSH_ERR_MEMORY, "%.220s: no memory, or a name that is no UTF-8", folder);
    if (status == TSH_OK) status = tshi_file_save(path, text, strlen(text));
    free(text);
    return status;
}

/* --- opening ------------------------------------------------------------------------------------------------------ */

tshi_stored_tensor *tshi_checkpoint_add_tensor(tshi_checkpoint_files *files, const char *name) {
    if (tshi_grow(&files->allocator, (void **)&files->tensor, &files->tensor_capacity, files->tensors + 1,
                  sizeof *files->tensor) != TSH_OK) {
        return NULL;
    }
    files->tensor[files->tensors] = (tshi_stored_tensor){.name = name};
    return &files->tensor[files->tensors++];
}

/* False for malformed JSON. */
static bool parse_tensor(tshi_stored_tensor *t, const json_t *from) {
    const char *dtype = json_string_value(json_object_get(from, "dtype"));
    const char *sum = json_string_value(json_object_get(from, "checksum"));
    const json_t *dims = json_object_get(from, "shape");
    int d = 0;
    while (d < TSH_DTYPE_COUNT && (!dtype || strcmp(dtype, tsh_dtype_name((tsh_dtype)d)) != 0)) d++;
    t->dtype = (tsh_dtype)d;
    t->ndim = (int)json_array_size(dims);
    if (d == TSH_DTYPE_COUNT || json_array_size(dims) > TSH_MAX_DIMS || !read_numbers(dims, t->ndim, t->shape))
        return false;
    t->sum = sum ? strtoull(sum, NULL, 16) : 0;
    return sum && strlen(sum) == 16 && strspn(sum, "0123456789abcdef") == 16;
}

/* Returns what is wrong with the JSON, or NULL. */
static const char *parse_numbers(tshi_checkpoint_files *files, int64_t *count) {
    const char *format = json_string_value(json_object_get(files->json, "format"));
    const json_t *step = json_object_get(files->json, "step"), *ranks = json_object_get(files->json, "files");
    if (!format || strcmp(format, FORMAT) != 0) return "is not a tshard checkpoint";
    if (json_integer_value(json_object_get(files->json, "version")) != VERSION)
        return "has another format version than 2, the one that this library reads";
    files->step = json_integer_value(step);
    *count = json_integer_value(ranks);
    files->state = json_object_get(files->json, "state");
    if (!json_is_integer(step) || files->step < 0) return "has no step";
    if (*count < 1 || *count > 100000) return "has no number of files";
    return json_is_object(json_object_get(files->json, "tensors")) ? NULL : "has no tensors";
}

static tsh_status parse_tensors(tshi_checkpoint_files *files, const char *path) {
    const char *name;
    json_t *tensor;
    json_object_foreach(json_object_get(files->json, "tensors"), name, tensor) {
        tshi_stored_tensor *t = tshi_checkpoint_add_tensor(files, name);
        if (!t) return TSH_ERR_MEMORY;
        if (!parse_tensor(t, tensor)) return tshi_fail(TSH_ERR_IO, "%.220s: '%.100s' cannot be read", path, name);
    }
    return TSH_OK;
}

static tsh_status read_json(tshi_checkpoint_files *files, const char *path, int64_t *count) {
    char *text;
    size_t bytes;
    json_error_t error;
    tsh_status status = tshi_file_load(&files->allocator, path, "a description", MOST_BYTES, &text, &bytes);
    if (status != TSH_OK) return status;
    files->json = json_loadb(text, bytes, JSON_REJECT_DUPLICATES, &error);
    tshi_free(&files->allocator, text);
    if (!files->json) return tshi_fail(TSH_ERR_IO, "%.220s: line %d: %.150s", path, error.line, error.text);
    const char *wrong = parse_numbers(files, count);
    return wrong ? tshi_fail(TSH_ERR_IO, "%.220s: %s", path, wrong) : parse_tensors(files, path);
}

tsh_status tshi_checkpoint_add_file(tshi_checkpoint_files *files, const char *path) {
    tsh_status status =
        tshi_grow(&files->allocator, (void **)&files->file, &files->capacity, files->count + 1, sizeof *files->file);
    if (status != TSH_OK) return status;
    tshi_stored_file *f = &files->file[files->count];
    *f = (tshi_stored_file){.file = NULL};
    status = tshi_safetensors_open(&files->allocator, path, &f->file);
    if (status != TSH_OK) return status;
    files->count++;
    tshi_file_close(&f->file->fd);
    const char *boxes = tshi_safetensors_metadata(f->file, "boxes");
    f->boxes = boxes ? json_loads(boxes, 0, NULL) : NULL;
    return boxes && !f->boxes ? tshi_fail(TSH_ERR_IO, "%.220s: its boxes are not JSON", path) : TSH_OK;
}

bool tshi_checkpoint_box(const tshi_checkpoint_files *files, const tshi_stored_tensor *t, int i, tsh_box *box) {
    const tshi_safetensors_entry *e = tshi_safetensors_find(files->file[i].file, t->name);
    const json_t *place = json_object_get(files->file[i].boxes, t->name);
    *box = (tsh_box){{0}, {0}};
    if (!e || e->dtype != t->dtype || e->ndim != t->ndim) return false;
    memcpy(box->length, e->shape, sizeof box->length);
    return !files->file[i].boxes || read_numbers(json_object_get(place, "start"), t->ndim, box->start);
}

/* Checks that the boxes lie in the tensor, and together have as many elements. */
static tsh_status check_file_boxes(const tshi_checkpoint_files *files, const tshi_stored_tensor *t,
                                   const char *folder) {
    int64_t whole, stored = 0;
    tsh_box box;
    bool good = tshi_dims_product(t->ndim, t->shape, &whole) == TSH_OK && whole <= INT64_MAX / 16;
    for (int i = 0; i < files->count && good; i++) {
        if (!tshi_checkpoint_box(files, t, i, &box)) continue;
        for (int d = 0; d < t->ndim; d++) good = good && box.start[d] <= t->shape[d] - box.length[d];
        if (good) stored += tshi_box_numel(t->ndim, &box);
        good = good && stored <= whole;
    }
    if (good && stored == whole) return TSH_OK;
    return tshi_fail(TSH_ERR_IO, "%.220s: the boxes of '%.120s' do not have each of its elements once", folder,
                     t->name);
}

tsh_status tshi_checkpoint_open(const tsh_allocator *allocator, const char *folder, tshi_checkpoint_files *out) {
    char path[TSHI_PATH], name[TSHI_RANK_FILE];
    int64_t count = 0;
    *out = (tshi_checkpoint_files){.allocator = *allocator};
    tsh_status status = tshi_path_join(path, folder, TSHI_CHECKPOINT_JSON);
    if (status == TSH_OK) status = read_json(out, path, &count);
    for (int i = 0; i < count && status == TSH_OK; i++) {
        status = tshi_path_join(path, folder, tshi_rank_file_name(i, name));
        if (status == TSH_OK) status = tshi_checkpoint_add_file(out, path);
    }
    for (int i = 0; i < out->tensors && status == TSH_OK; i++) status = check_file_boxes(out, &out->tensor[i], folder);
    return status;
}

void tshi_checkpoint_close(tshi_checkpoint_files *files) {
    for (int i = 0; i < files->count; i++) {
        tshi_safetensors_close(files->file[i].file);
        json_decref(files->file[i].boxes);
    }
    if (files->file) tshi_free(&files->allocator, files->file);
    if (files->tensor) tshi_free(&files->allocator, files->tensor);
    if (files->chunk) tshi_free(&files->allocator, files->chunk);
    json_decref(files->json);
    *files = (tshi_checkpoint_files){.json = NULL};
}

const tshi_stored_tensor *tshi_checkpoint_find(const tshi_checkpoint_files *files, const char *name, int hint) {
    if (hint >= 0 && hint < files->tensors && !strcmp(files->tensor[hint].name, name)) return &files->tensor[hint];
    for (int i = 0; i < files->tensors; i++) {
        if (!strcmp(files->tensor[i].name, name)) return &files->tensor[i];
    }
    return NULL;
}

/* --- reading ------------------------------------------------------------------------------------------------------ */

/* Reads `part`, of the box `stored` that a file has, into memory that holds `box`: chunk by chunk where that is not one
 * run. */
static tsh_status read_part(tshi_checkpoint_files *files, const tshi_stored_tensor *t, tshi_safetensors *file,
                            const tsh_box *stored, const tsh_box *part, char *memory, const tsh_box *box) {
    const tshi_safetensors_entry *entry = tshi_safetensors_find(file, t->name);
    size_t size = tsh_dtype_size(t->dtype);
    int64_t all = tshi_box_numel(t->ndim, part), n;
    char *place = tshi_box_place(t->ndim, size, part, memory, box);
    tsh_status status = TSH_OK;
    for (int64_t done = 0; status == TSH_OK && done < all; done += n) {
        tsh_box piece = tshi_box_cut(t->ndim, part, done, place ? all : (int64_t)(CHUNK / size)), within = piece;
        n = tshi_box_numel(t->ndim, &piece);
        for (int d = 0; d < t->ndim; d++) within.start[d] -= stored->start[d];
        status = tshi_safetensors_read_box(file, entry, &within, place ? place : files->chunk);
        if (!place && status == TSH_OK) tshi_copy_box(t->ndim, size, &piece, files->chunk, &piece, memory, box);
    }
    return status;
}

tsh_status tshi_checkpoint_read(tshi_checkpoint_files *files, const tshi_stored_tensor *t, const tsh_box *box,
                                void *memory) {
    tsh_status status = TSH_OK;
    if (!files->chunk) files->chunk = tshi_calloc(&files->allocator, CHUNK, 1);
    if (!files->chunk) return TSH_ERR_MEMORY;
    for (int i = 0; i < files->count && status == TSH_OK; i++) {
        tshi_safetensors *file = files->file[i].file;
        tsh_box stored, part;
        uint64_t bytes;
        if (!tshi_checkpoint_box(files, t, i, &stored) || !tshi_box_intersect(t->ndim, box, &stored, &part)) continue;
        status = tshi_file_open(file->path, &file->fd, &bytes);
        if (status == TSH_OK) status = read_part(files, t, file, &stored, &part, memory, box);
        tshi_file_close(&file->fd);
    }
    return status;
}
