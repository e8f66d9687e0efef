/* Reads boxes from the files of an index. */
#include "io/reader.h"
#include "io/checksum.h"
#include "io/step_folder.h"
#include "tensor/runs.h"
#include "tensor/tensor.h"

#include <string.h>
#include <sys/stat.h>

/* Bytes per read into the buffer, for elements that cannot be read in place. */
#define CHUNK ((size_t)1 << 20)
/* The most open files. */
#define MOST_OPEN 200

/* --- a checkpoint's folder ---------------------------------------------------------------------------------------- */

static tsh_status check_file(const char *folder, const tshi_stored_file *file) {
    char path[TSHI_PATH];
    struct stat info;
    if (strchr(file->name, '/'))
        return tshi_fail(TSH_ERR_IO, "%.220s: '%.100s' is not a file in this folder", folder, file->name);
    tsh_status status = tshi_path_join(path, folder, file->name);
    if (status != TSH_OK) return status;
    if (stat(path, &info) != 0 || !S_ISREG(info.st_mode)) {
        return tshi_fail(TSH_ERR_IO, "%.220s: the checkpoint has no file '%.100s'", folder, file->name);
    }
    if ((uint64_t)info.st_size == file->bytes) return TSH_OK;
    return tshi_fail(TSH_ERR_IO, "%.220s: has %lld bytes, but had %llu when it was saved", path,
                     (long long)info.st_size, (unsigned long long)file->bytes);
}

tsh_status tshi_checkpoint_index_read_whole(const char *folder, tshi_checkpoint_index *index) {
    char path[TSHI_PATH];
    *index = (tshi_checkpoint_index){0};
    tsh_status status = tshi_path_join(path, folder, TSHI_CHECKPOINT_INDEX);
    if (status == TSH_OK) status = tshi_checkpoint_index_read(path, index);
    if (status == TSH_OK) status = tshi_checkpoint_index_check(index, path);
    for (int i = 0; i < index->files && status == TSH_OK; i++) status = check_file(folder, &index->file[i]);
    if (status != TSH_OK) tshi_checkpoint_index_clear(index);
    return status;
}

/* --- boxes -------------------------------------------------------------------------------------------------------- */

/* A stored box of a tensor, and its file. */
typedef struct source {
    tshi_safetensors *file;
    const tshi_safetensors_entry *entry;
    const tsh_box *box;
} source;

static void close_files(tshi_reader *r) {
    for (int i = 0; r->file && i < r->index->files; i++) {
        tshi_safetensors_close(r->file[i]);
        r->file[i] = NULL;
    }
    r->open = 0;
}

static tsh_status find_source(tshi_reader *r, const tshi_stored_tensor *t, const tshi_stored_box *stored, source *out) {
    char path[TSHI_PATH];
    tshi_safetensors **file = &r->file[stored->file];
    if (!*file) {
        tsh_status status = tshi_path_join(path, r->folder, r->index->file[stored->file].name);
        if (r->open == MOST_OPEN) close_files(r);
        if (status == TSH_OK) status = tshi_safetensors_open(r->allocator, path, file);
        if (status != TSH_OK) return status;
        r->open++;
    }
    *out = (source){*file, tshi_safetensors_find(*file, t->name), &stored->box};
    if (out->entry && out->entry->dtype == t->dtype && out->entry->ndim == t->ndim &&
        !memcmp(out->entry->shape, stored->box.length, sizeof *out->entry->shape * (size_t)t->ndim)) {
        return TSH_OK;
    }
    return tshi_fail(TSH_ERR_IO, "%.220s: does not have the box of '%.120s' that %s names", (*file)->path, t->name,
                     TSHI_CHECKPOINT_INDEX);
}

/* Reads `part` of a stored box into memory that holds `box` of the tensor. */
static tsh_status read_part(tshi_reader *r, const tshi_stored_tensor *t, const source *s, const tsh_box *part,
                            char *memory, const tsh_box *box) {
    size_t size = tsh_dtype_size(t->dtype);
    tshi_runs whole = tshi_runs_of(t->ndim, part, part, box);
    bool direct = whole.count[0] == whole.numel;
    tsh_status status = TSH_OK;
    for (int64_t done = 0, n; status == TSH_OK && done < whole.numel; done += n) {
        tsh_box piece = tshi_box_cut(t->ndim, part, done, direct ? whole.numel : (int64_t)(CHUNK / size));
        n = tshi_box_numel(t->ndim, &piece);
        tsh_box within = piece;
        for (int d = 0; d < t->ndim; d++) within.start[d] -= s->box->start[d];
        char *to = direct ? memory + (size_t)whole.to_start * size : r->chunk;
        status = tshi_safetensors_read_box(s->file, s->entry, &within, to);
        if (!direct && status == TSH_OK) tshi_copy_box(t->ndim, size, &piece, r->chunk, &piece, memory, box);
    }
    return status;
}

uint64_t tshi_checksum_part(const tshi_stored_tensor *t, const tsh_box *part, const char *memory, const tsh_box *box) {
    size_t size = tsh_dtype_size(t->dtype);
    tsh_box whole = {{0}, {0}};
    uint64_t sum = 0;
    memcpy(whole.length, t->shape, sizeof whole.length);
    tshi_runs r = tshi_runs_of(t->ndim, part, &whole, box);
    for (int64_t i = 0; i < r.numel / r.count[0]; i++) {
        int64_t first, at;
        tshi_runs_at(&r, 1, i, &first, &at);
        sum += tshi_checksum(size, first, r.count[0], memory + (size_t)at * size);
    }
    return sum;
}

tsh_status tshi_reader_read(tshi_reader *r, const tshi_stored_tensor *t, const tsh_box *slab, void *memory) {
    tsh_status status = TSH_OK;
    for (int i = 0; i < t->count && status == TSH_OK; i++) {
        tsh_box part;
        source s;
        if (!tshi_box_intersect(t->ndim, slab, &t->boxes[i].box, &part)) continue;
        status = find_source(r, t, &t->boxes[i], &s);
        if (status == TSH_OK) status = read_part(r, t, &s, &part, memory, slab);
    }
    return status;
}

tsh_status tshi_reader_open(tshi_reader *r, const char *folder, const tshi_checkpoint_index *index,
                            const tsh_allocator *allocator) {
    *r = (tshi_reader){.folder = folder, .index = index, .allocator = allocator};
    r->file = tshi_calloc(allocator, (size_t)index->files + 1, sizeof *r->file);
    r->chunk = tshi_calloc(allocator, CHUNK, 1);
    return r->file && r->chunk ? TSH_OK : TSH_ERR_MEMORY;
}

void tshi_reader_close(tshi_reader *r) {
    close_files(r);
    tshi_free(r->allocator, r->file);
    tshi_free(r->allocator, r->chunk);
}
