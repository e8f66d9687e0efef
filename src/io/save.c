/* Saving: rank 0 creates the files with their headers, every rank writes its boxes, and rank 0 renames the files when
 * all are complete. */
#include "io/load.h"
#include "io/model_files.h"

#include "base/hash.h"
#include "dist/world.h"
#include "io/file.h"
#include "io/weights.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* A call of tsh_save. */
typedef struct model_save {
    tsh_parameters *list;
    tsh_world *world;
    tsh_save_options options;
    tshi_model_files model;
    char *gathered, *transposed; /* tshi_io_elements elements each */
} model_save;

/* --- boxes -------------------------------------------------------------------------------------------------------- */

/* Writes the part of a link's elements that a piece of this rank's share has. */
static tsh_status write_link_part(model_save *s, int number, const tsh_box *part, const tsh_box *box,
                                  const void *values, int fd, const char *path) {
    const tshi_link *link = &s->model.links.items[number];
    const tsh_tensor *t = s->list->items[link->parameter].tensor;
    size_t size = tsh_dtype_size(t->dtype);
    tsh_box piece, place;
    if (!tshi_link_box(link, t->shape.ndim, part, &piece, &place)) return TSH_OK;
    const void *memory = tshi_gather_box(t->shape.ndim, size, &piece, values, box, s->gathered);
    if (link->transpose) {
        tshi_transpose(size, place.length[1], place.length[0], memory, s->transposed, place.length[1]);
        memory = s->transposed;
    }
    return tshi_safetensors_write_box(fd, path, &s->model.entries[s->model.entry_of[number]], &place, memory);
}

/* Writes a link's part of this rank's share of a parameter. */
static tsh_status write_link(model_save *s, int number, int fd, const char *path) {
    const tsh_tensor *t = s->list->items[s->model.links.items[number].parameter].tensor;
    tsh_box share = tsh_tensor_box(t), part;
    if (!tshi_box_share(t->mesh, t->layout, t->shape.ndim, &share)) return TSH_OK;
    tshi_pieces p = tshi_pieces_to_read(t, &share);
    while (tshi_pieces_next(&p)) {
        tshi_box_intersect(t->shape.ndim, &p.box, &share, &part);
        p.status = write_link_part(s, number, &part, &p.box, p.values, fd, path);
    }
    return p.status;
}

/* --- files -------------------------------------------------------------------------------------------------------- */

/* Rank 0: creates a file with its header. */
static tsh_status begin_file(const tshi_model_file *file) {
    int fd;
    tsh_status status = tshi_file_create(file->partial, file->bytes, &fd);
    if (status == TSH_OK) status = tshi_file_write(fd, file->partial, file->header, file->header_bytes, 0);
    tshi_file_close(&fd);
    return status;
}

/* Rank 0: creates the files with their headers. */
static tsh_status begin_files(const model_save *s) {
    tsh_status status = TSH_OK;
    char model[TSHI_PATH];
    if (s->world->rank > 0) return TSH_OK;
    if (s->model.files_count > 1) {
        status = tshi_path_join(model, s->model.folder, TSHI_WEIGHTS_FILE);
        if (status == TSH_OK && access(model, F_OK) == 0) {
            status = tshi_fail(TSH_ERR_IO, "%.220s: exists, and readers would prefer it to the index: remove it first",
                               model);
        }
    }
    for (int i = 0; status == TSH_OK && i < s->model.files_count; i++) status = begin_file(&s->model.files[i]);
    return status;
}

static tsh_status write_file(model_save *s, const tshi_model_file *file) {
    int fd;
    tsh_status status = tshi_file_open_for_writing(file->partial, file->bytes, &fd);
    for (int i = 0; status == TSH_OK && i < s->model.links.count; i++) {
        int e = s->model.entry_of[i];
        if (e >= file->first && e < file->first + file->count) status = write_link(s, i, fd, file->partial);
    }
    if (status == TSH_OK) status = tshi_file_sync(fd, file->partial);
    tshi_file_close(&fd);
    return status;
}

/* Rank 0: writes the index of several files, which appears complete or not at all. */
static tsh_status write_index(const model_save *s, const char *path) {
    char *text = tshi_model_files_index(&s->model);
    if (!text) return tshi_fail(TSH_ERR_MEMORY, "save: no memory for an index");
    tsh_status status = tshi_file_save(path, text, strlen(text));
    free(text);
    return status;
}

/* Rank 0: renames the files to their final names. */
static tsh_status name_files(const model_save *s) {
    char index[TSHI_PATH];
    tsh_status status = TSH_OK;
    bool several = s->model.files_count > 1;
    if (s->world->rank > 0) return TSH_OK;
    if (several) {
        /* Removes the old index first, so that no reader mixes old and new files. */
        status = tshi_path_join(index, s->model.folder, TSHI_WEIGHTS_INDEX);
        if (status == TSH_OK && unlink(index) == 0) status = tshi_file_sync_folder(index);
    }
    for (int i = 0; status == TSH_OK && i < s->model.files_count; i++) {
        status = tshi_file_rename(s->model.files[i].partial, s->model.files[i].path);
    }
    return several && status == TSH_OK ? write_index(s, index) : status;
}

/* --- the call ----------------------------------------------------------------------------------------------------- */

static tsh_status prepare_save(model_save *s, const char *path) {
    const tsh_allocator *allocator = &s->world->allocator;
    tsh_status status = path && path[0] ? TSH_OK : tshi_fail(TSH_ERR_ARGUMENT, "save: a path is required");
    for (int i = 0; status == TSH_OK && i < s->list->count; i++) {
        const tshi_parameter *p = &s->list->items[i];
        status = tshi_check_parameter("save", p->name, p->tensor);
        if (status == TSH_OK && p->tensor->quant)
            status = tshi_fail(TSH_ERR_STATE,
                               "save: '%.80s' is quantized in memory: such files are copies of the GGUF file", p->name);
    }
    if (status == TSH_OK) status = tshi_model_files_make(s->list, path, &s->options, &s->model);
    if (status != TSH_OK) return status;
    size_t most = tshi_io_elements(s->list);
    s->gathered = tshi_calloc(allocator, most, 8);
    s->transposed = tshi_calloc(allocator, most, 8);
    return s->gathered && s->transposed ? TSH_OK : TSH_ERR_MEMORY;
}

/* The text that ranks compare: the files' headers, which have all names, shapes and offsets, and the parameters. */
static void describe_save(const model_save *s, char *text, size_t size) {
    uint64_t files = tshi_parameters_fingerprint(s->list, TSHI_FINGERPRINT);
    for (int i = 0; i < s->model.files_count; i++) {
        const tshi_model_file *f = &s->model.files[i];
        if (f->header) files = tshi_fingerprint_add(files, tshi_safetensors_fingerprint(f->header, f->header_bytes));
    }
    snprintf(text, size, "save of %d parameters to %d files%s (%08x)", s->list->count, s->model.files_count,
             s->model.folder[0] ? " in a folder" : "", (unsigned)files);
}

/* Runs the steps; each begins when every rank has finished the previous one. */
static tsh_status write_all(model_save *s) {
    tsh_group *group = s->world->group;
    tsh_status status = tshi_group_agree(group, "save: files", begin_files(s));
    if (status == TSH_OK) {
        for (int i = 0; status == TSH_OK && i < s->model.files_count; i++) status = write_file(s, &s->model.files[i]);
        status = tshi_group_agree(group, "save: elements", status);
    }
    if (status == TSH_OK) status = tshi_group_agree(group, "save: names", name_files(s));
    for (int i = 0; status != TSH_OK && s->world->rank == 0 && i < s->model.files_count; i++) {
        unlink(s->model.files[i].partial);
    }
    return status;
}

tsh_status tsh_save(tsh_parameters *list, const char *path, const tsh_save_options *options) {
    char text[TSHI_LINE];
    if (!list) return tshi_fail(TSH_ERR_ARGUMENT, "save: a list of parameters is required");
    model_save s = {.list = list, .world = list->world};
    const tsh_allocator *allocator = &list->world->allocator;
    s.model.allocator = s.model.links.allocator = *allocator;
    if (options) s.options = *options;
    tsh_status status = prepare_save(&s, path);
    describe_save(&s, text, sizeof text);
    status = tshi_group_agree(s.world->group, text, status);
    if (status == TSH_OK) status = write_all(&s);
    tshi_model_files_free(&s.model);
    tshi_free(allocator, s.gathered);
    tshi_free(allocator, s.transposed);
    return status;
}
