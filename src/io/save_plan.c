/* Plans of saves: which tensors, of which shapes, in which files. */
#include "io/save_plan.h"

#include "io/weights.h"

#include <jansson.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

/* --- tensors ------------------------------------------------------------------------------------------------------ */

static int find_entry(const tshi_save_plan *plan, const char *name) {
    for (int e = 0; e < plan->count; e++) {
        if (strcmp(plan->entries[e].name, name) == 0) return e;
    }
    return -1;
}

/* The dim of the tensor that a slicing link slices. */
static int sliced_dim(const tshi_link *link) {
    return link->transpose ? 1 - link->dim : link->dim;
}

static tshi_safetensors_entry entry_of(const tshi_link *link, const tsh_tensor *t) {
    tshi_safetensors_entry e = {.name = link->tensor, .dtype = t->dtype, .ndim = t->shape.ndim};
    for (int d = 0; d < e.ndim; d++) e.shape[d] = t->shape.global[link->transpose ? 1 - d : d];
    if (link->length) e.shape[sliced_dim(link)] = 0;
    return e;
}

static tsh_status refuse(const char *name, const char *why) {
    return tshi_fail(TSH_ERR_ARGUMENT, "save: '%.100s' %s", name, why);
}

/* Adds what a link brings to its tensor. */
static tsh_status add_link(tshi_save_plan *plan, int number, const tsh_tensor *t) {
    const tshi_link *link = &plan->links.items[number];
    if (link->transpose && t->shape.ndim != 2) return refuse(link->tensor, "has no two dims to transpose");
    tshi_safetensors_entry wanted = entry_of(link, t);
    int e = find_entry(plan, link->tensor);
    plan->entry_of[number] = e;
    if (e < 0) {
        e = plan->entry_of[number] = plan->count++;
        plan->entries[e] = wanted;
    } else if (link->length == 0) {
        return refuse(link->tensor, "is the name of several parameters");
    }
    tshi_safetensors_entry *entry = &plan->entries[e];
    if (link->length == 0) return TSH_OK;
    int d = sliced_dim(link);
    entry->shape[d] += link->length; /* the sum of the lengths: check_slice sees whether they leave gaps */
    wanted.shape[d] = entry->shape[d];
    bool same = wanted.ndim == entry->ndim && wanted.dtype == entry->dtype &&
                memcmp(wanted.shape, entry->shape, sizeof wanted.shape) == 0;
    return same ? TSH_OK : refuse(link->tensor, "is made of parameters that do not fit together");
}

/* The slices of a tensor, which are as long as it is in sum, leave no gap when they do not overlap and end in it. */
static tsh_status check_slice(const tshi_save_plan *plan, int number) {
    const tshi_link *a = &plan->links.items[number];
    const tshi_safetensors_entry *e = &plan->entries[plan->entry_of[number]];
    if (a->length == 0) return TSH_OK;
    if (a->tensor_start + a->length > e->shape[sliced_dim(a)]) {
        return refuse(e->name, "has elements that no parameter fills");
    }
    for (int k = 0; k < plan->links.count; k++) {
        const tshi_link *b = &plan->links.items[k];
        if (k == number || plan->entry_of[k] != plan->entry_of[number]) continue;
        if (b->length == 0 || sliced_dim(b) != sliced_dim(a) ||
            (a->tensor_start < b->tensor_start + b->length && b->tensor_start < a->tensor_start + a->length)) {
            return refuse(e->name, "has elements that several parameters fill");
        }
    }
    return TSH_OK;
}

static tsh_status make_entries(tshi_save_plan *plan, const tsh_parameters *list) {
    tsh_status status = TSH_OK;
    plan->entry_of = tshi_calloc(&plan->allocator, (size_t)plan->links.count, sizeof *plan->entry_of);
    plan->entries = tshi_calloc(&plan->allocator, (size_t)plan->links.count, sizeof *plan->entries);
    if (!plan->entry_of || !plan->entries) return TSH_ERR_MEMORY;
    for (int i = 0, n; status == TSH_OK && i < plan->links.count; i += n) {
        const tshi_parameter *p = &list->items[plan->links.items[i].parameter];
        n = tshi_links_of(&plan->links, i);
        const char *wrong = tshi_links_check(&plan->links.items[i], n, p->tensor);
        if (wrong) status = refuse(p->name, wrong);
        for (int k = i; status == TSH_OK && k < i + n; k++) status = add_link(plan, k, p->tensor);
    }
    for (int i = 0; status == TSH_OK && i < plan->links.count; i++) status = check_slice(plan, i);
    return status;
}

/* --- files -------------------------------------------------------------------------------------------------------- */

static uint64_t bytes_of(const tshi_safetensors_entry *e) {
    int64_t numel = 0;
    tshi_dims_product(e->ndim, e->shape, &numel);
    return (uint64_t)numel * tsh_dtype_size(e->dtype);
}

/* Cuts the tensors into files of at most `most` bytes of elements; a longer tensor has a file of its own. 0: one. */
static tsh_status cut_files(tshi_save_plan *plan, uint64_t most) {
    uint64_t used = 0;
    plan->files = tshi_calloc(&plan->allocator, most ? (size_t)plan->count + 1 : 1, sizeof *plan->files);
    if (!plan->files) return TSH_ERR_MEMORY;
    plan->files_count = 1;
    for (int e = 0; e < plan->count; e++) {
        uint64_t bytes = bytes_of(&plan->entries[e]);
        tshi_save_file *file = &plan->files[plan->files_count - 1];
        if (most && file->count && (used > most || bytes > most - used)) {
            file = &plan->files[plan->files_count++];
            file->first = e;
            used = 0;
        }
        file->count++;
        used += bytes;
    }
    return TSH_OK;
}

static tsh_status name_file(tshi_save_plan *plan, int number, const char *path) {
    char name[64] = TSHI_WEIGHTS_FILE;
    tshi_save_file *file = &plan->files[number];
    tsh_status status = TSH_OK;
    if (plan->files_count > 1) {
        snprintf(name, sizeof name, "model-%05d-of-%05d.safetensors", number + 1, plan->files_count);
    }
    if (plan->folder[0])
        status = tshi_path_join(file->path, plan->folder, name);
    else
        snprintf(file->path, sizeof file->path, "%s", path);
    if (status != TSH_OK) return status;
    int n = snprintf(file->partial, sizeof file->partial, "%.4000s.partial", file->path);
    bool fits = n == (int)(strlen(file->path) + sizeof ".partial" - 1);
    return fits ? TSH_OK : tshi_fail(TSH_ERR_ARGUMENT, "save: '%.200s' is too long a path", path);
}

static tsh_status make_files(tshi_save_plan *plan, const char *path, const tsh_save_options *options) {
    static const char *const usual[] = {"format", "pt", NULL};
    const char *const *metadata = options->metadata ? options->metadata : usual;
    tsh_status status = cut_files(plan, options->max_shard_bytes);
    for (int i = 0; status == TSH_OK && i < plan->files_count; i++) {
        tshi_save_file *f = &plan->files[i];
        status = name_file(plan, i, path);
        if (status == TSH_OK) {
            status = tshi_safetensors_header(&plan->allocator, plan->entries + f->first, f->count, metadata, &f->header,
                                             &f->header_bytes, &f->bytes);
        }
    }
    return status;
}

tsh_status tshi_save_plan_make(const tsh_parameters *list, const char *path, const tsh_save_options *options,
                               tshi_save_plan *plan) {
    struct stat info;
    *plan = (tshi_save_plan){.allocator = list->world->allocator};
    if (strlen(path) >= TSHI_PATH - 64) return tshi_fail(TSH_ERR_ARGUMENT, "save: '%.200s' is too long a path", path);
    if (stat(path, &info) == 0 && S_ISDIR(info.st_mode)) {
        snprintf(plan->folder, sizeof plan->folder, "%s", path);
    } else if (options->max_shard_bytes) {
        return tshi_fail(TSH_ERR_IO, "save: %.200s: is no folder, which max_shard_bytes needs", path);
    }
    tsh_status status = tshi_links_make(list, options->rules, options->rule_count, &plan->links);
    if (status == TSH_OK) status = make_entries(plan, list);
    if (status == TSH_OK) status = make_files(plan, path, options);
    return status;
}

void tshi_save_plan_free(tshi_save_plan *plan) {
    for (int i = 0; i < plan->files_count; i++) tshi_free(&plan->allocator, plan->files[i].header);
    tshi_free(&plan->allocator, plan->files);
    tshi_free(&plan->allocator, plan->entries);
    tshi_free(&plan->allocator, plan->entry_of);
    tshi_links_free(&plan->links);
}

char *tshi_save_plan_index(const tshi_save_plan *plan) {
    json_t *map = json_object();
    uint64_t total = 0;
    bool fine = map;
    for (int i = 0; i < plan->files_count; i++) {
        const tshi_save_file *f = &plan->files[i];
        for (int e = f->first; fine && e < f->first + f->count; e++) {
            fine = json_object_set_new(map, plan->entries[e].name, json_string(strrchr(f->path, '/') + 1)) == 0;
            total += plan->entries[e].bytes;
        }
    }
    json_t *index = json_pack("{s:{s:I},s:O}", "metadata", "total_size", (json_int_t)total, "weight_map", map);
    char *text = fine && index ? json_dumps(index, JSON_INDENT(2) | JSON_SORT_KEYS) : NULL;
    json_decref(map);
    json_decref(index);
    return text;
}
