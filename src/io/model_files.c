/* The tensors, shapes and files that a save writes. */
#include "io/model_files.h"

#include "io/weights.h"

#include <jansson.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

/* --- tensors ------------------------------------------------------------------------------------------------------ */

static int find_entry(const tshi_model_files *model, const char *name) {
    for (int e = 0; e < model->count; e++) {
        if (strcmp(model->entries[e].name, name) == 0) return e;
    }
    return -1;
}

/* The dim of the tensor that a slicing link slices. */
static int sliced_dim(const tshi_link *link) {
    return link->transpose ? 1 - link->dim : link->dim;
}

/* The parameter's elements are only a part of the tensor's. */
static bool is_slice(const tshi_link *link) {
    return link->length && !link->squeeze;
}

static tshi_safetensors_entry entry_of(const tshi_link *link, const tsh_tensor *t) {
    tshi_safetensors_entry e = {.name = link->tensor, .dtype = t->dtype, .ndim = tshi_link_ndim(link, t->shape.ndim)};
    for (int d = 0; d < e.ndim; d++) e.shape[d] = t->shape.global[tshi_link_dim(link, d)];
    if (is_slice(link)) e.shape[sliced_dim(link)] = 0;
    return e;
}

static tsh_status bad_map(const char *name, const char *why) {
    return tshi_fail(TSH_ERR_ARGUMENT, "save: '%.100s' %s", name, why);
}

/* Adds a link's elements to its tensor. */
static tsh_status add_link(tshi_model_files *model, int number, const tsh_tensor *t) {
    const tshi_link *link = &model->links.items[number];
    if (link->transpose && tshi_link_ndim(link, t->shape.ndim) != 2)
        return bad_map(link->tensor, "cannot be transposed: it does not have two dims");
    tshi_safetensors_entry wanted = entry_of(link, t);
    int e = find_entry(model, link->tensor);
    model->entry_of[number] = e;
    if (e < 0) {
        e = model->entry_of[number] = model->count++;
        model->entries[e] = wanted;
    } else if (!is_slice(link)) {
        return bad_map(link->tensor, "is the name of several parameters");
    }
    tshi_safetensors_entry *entry = &model->entries[e];
    if (!is_slice(link)) return TSH_OK;
    int d = sliced_dim(link);
    entry->shape[d] += link->length; /* the sum of the lengths: check_slice finds gaps */
    wanted.shape[d] = entry->shape[d];
    bool same = wanted.ndim == entry->ndim && wanted.dtype == entry->dtype &&
                memcmp(wanted.shape, entry->shape, sizeof wanted.shape) == 0;
    return same ? TSH_OK : bad_map(link->tensor, "is made of parameters that do not fit together");
}

/* The slices' lengths add up to the tensor's, so that slices inside it that do not overlap leave no gap. */
static tsh_status check_slice(const tshi_model_files *model, int number) {
    const tshi_link *a = &model->links.items[number];
    const tshi_safetensors_entry *e = &model->entries[model->entry_of[number]];
    if (!is_slice(a)) return TSH_OK;
    if (a->tensor_start + a->length > e->shape[sliced_dim(a)]) {
        return bad_map(e->name, "has elements that no parameter fills");
    }
    for (int k = 0; k < model->links.count; k++) {
        const tshi_link *b = &model->links.items[k];
        if (k == number || model->entry_of[k] != model->entry_of[number]) continue;
        if (!is_slice(b) || sliced_dim(b) != sliced_dim(a) ||
            (a->tensor_start < b->tensor_start + b->length && b->tensor_start < a->tensor_start + a->length)) {
            return bad_map(e->name, "has elements that several parameters fill");
        }
    }
    return TSH_OK;
}

static tsh_status make_entries(tshi_model_files *model, const tsh_parameters *list) {
    tsh_status status = TSH_OK;
    model->entry_of = tshi_calloc(&model->allocator, (size_t)model->links.count, sizeof *model->entry_of);
    model->entries = tshi_calloc(&model->allocator, (size_t)model->links.count, sizeof *model->entries);
    if (!model->entry_of || !model->entries) return TSH_ERR_MEMORY;
    for (int i = 0, n; status == TSH_OK && i < model->links.count; i += n) {
        const tshi_parameter *p = &list->items[model->links.items[i].parameter];
        n = tshi_links_of(&model->links, i);
        const char *wrong = tshi_links_check(&model->links.items[i], n, p->tensor);
        if (wrong) status = bad_map(p->name, wrong);
        for (int k = i; status == TSH_OK && k < i + n; k++) status = add_link(model, k, p->tensor);
    }
    for (int i = 0; status == TSH_OK && i < model->links.count; i++) status = check_slice(model, i);
    return status;
}

/* --- files -------------------------------------------------------------------------------------------------------- */

static uint64_t entry_bytes(const tshi_safetensors_entry *e) {
    int64_t numel = 0;
    tshi_dims_product(e->ndim, e->shape, &numel);
    return (uint64_t)numel * tsh_dtype_size(e->dtype);
}

/* Distributes the tensors to files of at most `most` bytes of elements; a larger tensor gets its own file. 0: one
 * file. */
static tsh_status cut_files(tshi_model_files *model, uint64_t most) {
    uint64_t used = 0;
    model->files = tshi_calloc(&model->allocator, most ? (size_t)model->count + 1 : 1, sizeof *model->files);
    if (!model->files) return TSH_ERR_MEMORY;
    model->files_count = 1;
    for (int e = 0; e < model->count; e++) {
        uint64_t bytes = entry_bytes(&model->entries[e]);
        tshi_model_file *file = &model->files[model->files_count - 1];
        if (most && file->count && (used > most || bytes > most - used)) {
            file = &model->files[model->files_count++];
            file->first = e;
            used = 0;
        }
        file->count++;
        used += bytes;
    }
    return TSH_OK;
}

static tsh_status name_model_file(tshi_model_files *model, int number, const char *path) {
    char name[64] = TSHI_WEIGHTS_FILE;
    tshi_model_file *file = &model->files[number];
    tsh_status status = TSH_OK;
    if (model->files_count > 1) {
        snprintf(name, sizeof name, "model-%05d-of-%05d.safetensors", number + 1, model->files_count);
    }
    if (model->folder[0])
        status = tshi_path_join(file->path, model->folder, name);
    else
        snprintf(file->path, sizeof file->path, "%s", path);
    if (status != TSH_OK) return status;
    int n = snprintf(file->partial, sizeof file->partial, "%.4000s.partial", file->path);
    bool fits = n == (int)(strlen(file->path) + sizeof ".partial" - 1);
    return fits ? TSH_OK : tshi_fail(TSH_ERR_ARGUMENT, "save: the path '%.200s' is too long", path);
}

static tsh_status make_files(tshi_model_files *model, const char *path, const tsh_save_options *options) {
    static const char *const usual[] = {"format", "pt", NULL};
    const char *const *metadata = options->metadata ? options->metadata : usual;
    tsh_status status = cut_files(model, options->max_shard_bytes);
    for (int i = 0; status == TSH_OK && i < model->files_count; i++) {
        tshi_model_file *f = &model->files[i];
        status = name_model_file(model, i, path);
        if (status == TSH_OK) {
            status = tshi_safetensors_header(&model->allocator, model->entries + f->first, f->count, metadata,
                                             &f->header, &f->header_bytes, &f->bytes);
        }
    }
    return status;
}

tsh_status tshi_model_files_make(const tsh_parameters *list, const char *path, const tsh_save_options *options,
                                 tshi_model_files *model) {
    struct stat info;
    *model = (tshi_model_files){.allocator = list->world->allocator};
    if (strlen(path) >= TSHI_PATH - 64) return tshi_fail(TSH_ERR_ARGUMENT, "save: the path '%.200s' is too long", path);
    if (stat(path, &info) == 0 && S_ISDIR(info.st_mode)) {
        snprintf(model->folder, sizeof model->folder, "%s", path);
    } else if (options->max_shard_bytes) {
        return tshi_fail(TSH_ERR_IO, "save: %.200s: is not a folder, which max_shard_bytes needs", path);
    }
    tsh_status status = tshi_links_make(list, options->rules, options->rule_count, &model->links);
    if (status == TSH_OK) status = make_entries(model, list);
    if (status == TSH_OK) status = make_files(model, path, options);
    return status;
}

void tshi_model_files_free(tshi_model_files *model) {
    for (int i = 0; i < model->files_count; i++) tshi_free(&model->allocator, model->files[i].header);
    tshi_free(&model->allocator, model->files);
    tshi_free(&model->allocator, model->entries);
    tshi_free(&model->allocator, model->entry_of);
    tshi_links_free(&model->links);
}

char *tshi_model_files_index(const tshi_model_files *model) {
    json_t *map = json_object();
    uint64_t total = 0;
    bool fine = map;
    for (int i = 0; i < model->files_count; i++) {
        const tshi_model_file *f = &model->files[i];
        for (int e = f->first; fine && e < f->first + f->count; e++) {
            fine = json_object_set_new(map, model->entries[e].name, json_string(strrchr(f->path, '/') + 1)) == 0;
            total += model->entries[e].bytes;
        }
    }
    json_t *index = json_pack("{s:{s:I},s:O}", "metadata", "total_size", (json_int_t)total, "weight_map", map);
    char *text = fine && index ? json_dumps(index, JSON_INDENT(2) | JSON_SORT_KEYS) : NULL;
    json_decref(map);
    json_decref(index);
    return text;
}
