/* Writing one rank's part of a checkpoint, and publishing the folder of all ranks' files. */
#include "io/checkpoint_save.h"
#include "base/clock.h"
#include "io/checksum.h"
#include "io/file.h"
#include "layers/layers.h"
#include "tensor/runs.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* Elements are written in chunks of so many bytes, small enough to be in the cache after the checksum. */
#define CHUNK     ((size_t)1 << 20)

#define NAME_SIZE 40

static const char *name_rank_file(int rank, const char *kind, char name[NAME_SIZE]) {
    snprintf(name, NAME_SIZE, "rank-%05d.%s", rank, kind);
    return name;
}

static tsh_status path_of_rank_file(const tshi_checkpoint_save *save, int rank, const char *kind,
                                    char path[TSHI_PATH]) {
    char name[NAME_SIZE];
    return tshi_path_join(path, save->folder, name_rank_file(rank, kind, name));
}

/* --- the list of what is written ---------------------------------------------------------------------------------- */

static tsh_status list_entries(tshi_checkpoint_save *save, const tsh_parameters *tensors) {
    const tsh_allocator *allocator = &save->world->allocator;
    tsh_status status = TSH_OK;
    save->entry = tshi_calloc(allocator, (size_t)tensors->count + 1, sizeof *save->entry);
    save->tensor = tshi_calloc(allocator, (size_t)tensors->count + 1, sizeof *save->tensor);
    if (!save->entry || !save->tensor) return TSH_ERR_MEMORY;
    for (int i = 0; i < tensors->count && status == TSH_OK; i++) {
        const tsh_tensor *t = tensors->items[i].tensor;
        tsh_box share = tsh_tensor_box(t);
        tshi_stored_tensor *stored = tshi_checkpoint_index_add_tensor(&save->part, tensors->items[i].name, t->dtype,
                                                                      t->shape.ndim, t->shape.global);
        if (!stored) return TSH_ERR_MEMORY;
        if (!tshi_box_share(t->mesh, t->layout, t->shape.ndim, &share)) continue;
        status = tshi_stored_tensor_add(stored, 0, &share);
        tshi_safetensors_entry *entry = &save->entry[save->entries];
        *entry = (tshi_safetensors_entry){.name = stored->name, .dtype = t->dtype, .ndim = t->shape.ndim};
        memcpy(entry->shape, share.length, sizeof entry->shape);
        save->tensor[save->entries++] = t;
    }
    return status;
}

/* The box of each tensor, for programs that read only this file: {"NAME": {"shape": [...], "start": [...]}}. NULL
 * without memory. */
static char *describe_boxes(const tshi_checkpoint_save *save) {
    json_t *all = json_object();
    for (int i = 0; i < save->part.tensors; i++) {
        const tshi_stored_tensor *t = &save->part.tensor[i];
        if (t->count == 0) continue;
        json_t *shape = json_array(), *start = json_array();
        for (int d = 0; d < t->ndim; d++) {
            json_array_append_new(shape, json_integer(t->shape[d]));
            json_array_append_new(start, json_integer(t->boxes[0].box.start[d]));
        }
        json_object_set_new(all, t->name, json_pack("{s:o, s:o}", "shape", shape, "start", start));
    }
    char *text = json_dumps(all, JSON_COMPACT);
    json_decref(all);
    return text;
}

static tsh_status make_header(tshi_checkpoint_save *save) {
    char *boxes = describe_boxes(save);
    if (!boxes) return tshi_fail(TSH_ERR_MEMORY, "checkpoint_save: no memory for the header of a file");
    const char *const metadata[] = {"format", "tshard checkpoint", "boxes", boxes, NULL};
    char name[NAME_SIZE];
    tsh_status status = tshi_safetensors_header(&save->world->allocator, save->entry, save->entries, metadata,
                                                &save->header, &save->header_bytes, &save->file_bytes);
    free(boxes);
    if (status != TSH_OK) return status;
    return tshi_checkpoint_index_add_file(&save->part, name_rank_file(save->rank, "safetensors", name),
                                          save->file_bytes);
}

/* --- elements ----------------------------------------------------------------------------------------------------- */

/* A background save sleeps for three times the CPU time that it has used since *since, so that it takes only a quarter
 * of a core from training. */
static void rest_beside_training(const tshi_checkpoint_save *save, double *since) {
    struct timespec now;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    double used = (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
    if (*since > 0 && !atomic_load(&save->awaited)) tshi_sleep(3 * (used - *since));
    *since = used;
}

/* The destination of an entry's elements: a file, through a buffer, or memory. */
typedef struct sink {
    int fd;
    const char *path;
    uint64_t at; /* in the file */
    char *buffer;
    size_t used;
    char *memory;                       /* the destination; NULL: the file */
    const tshi_checkpoint_save *beside; /* a background save; else NULL */
    double since;                       /* of rest_beside_training */
    tsh_status status;
} sink;

static void sink_flush(sink *s) {
    if (s->beside && s->used) rest_beside_training(s->beside, &s->since);
    if (s->status == TSH_OK && s->used) s->status = tshi_file_write(s->fd, s->path, s->buffer, s->used, s->at);
    s->at += s->used;
    s->used = 0;
}

static void sink_add(sink *s, const char *from, size_t bytes) {
    if (s->memory) {
        memcpy(s->memory, from, bytes);
        s->memory += bytes;
    } else if (bytes >= CHUNK / 4) {
        sink_flush(s);
        if (s->status == TSH_OK) s->status = tshi_file_write(s->fd, s->path, from, bytes, s->at);
        s->at += bytes;
    } else {
        if (s->used + bytes > CHUNK) sink_flush(s);
        memcpy(s->buffer + s->used, from, bytes);
        s->used += bytes;
    }
}

/* Adds the elements of `part` of a tensor from memory that holds `box` of it, and their checksum to *sum unless it is
 * NULL. */
static void sink_add_part(sink *s, const tshi_stored_tensor *t, const tsh_box *part, const char *memory,
                          const tsh_box *box, uint64_t *sum) {
    size_t size = tsh_dtype_size(t->dtype);
    tsh_box whole = {{0}, {0}};
    memcpy(whole.length, t->shape, sizeof whole.length);
    tshi_runs r = tshi_runs_of(t->ndim, part, &whole, box);
    for (int64_t i = 0, runs = r.numel ? r.numel / r.count[0] : 0; i < runs; i++) {
        int64_t first, at;
        tshi_runs_at(&r, 1, i, &first, &at);
        for (int64_t done = 0, n; done < r.count[0]; done += n) {
            n = (int64_t)(CHUNK / size) < r.count[0] - done ? (int64_t)(CHUNK / size) : r.count[0] - done;
            const char *from = memory + (size_t)(at + done) * size;
            if (sum) *sum += tshi_checksum(size, first + done, n, from);
            sink_add(s, from, (size_t)n * size);
            if (s->beside && (size_t)n * size >= CHUNK / 4) rest_beside_training(s->beside, &s->since);
        }
    }
}

/* A tensor whose share a sink gets. */
typedef struct stored_share {
    sink *to;
    const tshi_stored_tensor *stored;
    uint64_t *sum;
} stored_share;

static tsh_status sink_add_piece(void *user, const tsh_box *piece, void *values) {
    const stored_share *s = user;
    tsh_box part;
    if (tshi_box_intersect(s->stored->ndim, piece, &s->stored->boxes[0].box, &part))
        sink_add_part(s->to, s->stored, &part, values, piece, s->sum);
    return s->to->status;
}

/* Adds this rank's share of a tensor. */
static void sink_add_tensor(sink *s, const tshi_stored_tensor *t, const tsh_tensor *tensor, uint64_t *sum) {
    tsh_status status = tshi_tensor_read_pieces(tensor, &t->boxes[0].box, sink_add_piece, &(stored_share){s, t, sum});
    if (s->status == TSH_OK) s->status = status;
}

/* The tensor of entry e. e must increase from call to call; *at is initially 0. */
static tshi_stored_tensor *tensor_of(tshi_checkpoint_save *save, int e, int *at) {
    while (save->part.tensor[*at].name != save->entry[e].name) ++*at;
    return &save->part.tensor[*at];
}

static tsh_status copy_elements(tshi_checkpoint_save *save) {
    const tsh_allocator *allocator = &save->world->allocator;
    sink s = {.fd = -1, .status = TSH_OK};
    size_t bytes = (size_t)(save->file_bytes - save->header_bytes);
    save->copy = allocator->alloc(allocator->user, bytes ? bytes : 1);
    if (!save->copy) return tshi_fail(TSH_ERR_MEMORY, "checkpoint_save: no memory for a copy of %zu bytes", bytes);
    for (int e = 0, at = 0; e < save->entries && s.status == TSH_OK; e++) {
        s.memory = save->copy + (save->entry[e].offset - save->header_bytes);
        sink_add_tensor(&s, tensor_of(save, e, &at), save->tensor[e], NULL);
    }
    return s.status;
}

tsh_status tshi_checkpoint_save_prepare(tshi_checkpoint_save *save, const tsh_checkpoint *what,
                                        const tsh_parameters *tensors, bool copy) {
    const tsh_allocator *allocator = &save->world->allocator;
    tsh_status status = list_entries(save, tensors);
    save->part.step = what->step;
    save->buffer = tshi_calloc(allocator, CHUNK, 1);
    if (!save->buffer) return TSH_ERR_MEMORY;
    if (status == TSH_OK && save->rank == 0) {
        save->part.state = tshi_checkpoint_pack(what);
        if (!save->part.state) status = TSH_ERR_ARGUMENT;
    }
    if (status == TSH_OK) status = make_header(save);
    if (status == TSH_OK && copy) status = copy_elements(save);
    return status;
}

void tshi_checkpoint_save_clear(tshi_checkpoint_save *save) {
    const tsh_allocator *allocator = &save->world->allocator;
    tshi_free(allocator, save->entry);
    tshi_free(allocator, save->tensor);
    tshi_free(allocator, save->header);
    tshi_free(allocator, save->copy);
    tshi_free(allocator, save->buffer);
    tshi_free(allocator, save->background);
    tshi_checkpoint_index_clear(&save->part);
}

/* --- this rank's files -------------------------------------------------------------------------------------------- */

static tsh_status write_elements(tshi_checkpoint_save *save, int fd, const char *path) {
    sink s = {.fd = fd, .path = path, .buffer = save->buffer, .beside = save->copy ? save : NULL};
    s.status = tshi_file_write(fd, path, save->header, save->header_bytes, 0);
    for (int e = 0, at = 0; e < save->entries && s.status == TSH_OK; e++) {
        tshi_stored_tensor *t = tensor_of(save, e, &at);
        const tsh_box *box = &t->boxes[0].box;
        t->sum = 0;
        s.at = save->entry[e].offset;
        if (save->copy) {
            sink_add_part(&s, t, box, save->copy + (s.at - save->header_bytes), box, &t->sum);
        } else {
            sink_add_tensor(&s, t, save->tensor[e], &t->sum);
        }
        sink_flush(&s);
    }
    return s.status;
}

/* Writes the index of this rank's part once the rank's file is on the disk. From then on rank 0 may rename the folder
 * at any time. */
static tsh_status write_part(tshi_checkpoint_save *save) {
    char unfinished[TSHI_PATH], path[TSHI_PATH];
    tsh_status status = path_of_rank_file(save, save->rank, "unfinished", unfinished);
    if (status == TSH_OK) status = path_of_rank_file(save, save->rank, "json", path);
    if (status == TSH_OK) status = tshi_checkpoint_index_write(&save->part, unfinished);
    if (status == TSH_OK) status = tshi_file_sync_folder(path);
    if (status != TSH_OK || rename(unfinished, path) == 0) return status;
    return tshi_file_fail(errno, path, "cannot be renamed");
}

/* Tells rank 0, which may be waiting for this rank's part, why the part will not come. */
static void write_failure(tshi_checkpoint_save *save, tsh_status status) {
    char path[TSHI_PATH];
    tshi_failure own;
    tshi_failure_keep(&own, status);
    if (path_of_rank_file(save, save->rank, "safetensors", path) == TSH_OK) unlink(path);
    if (path_of_rank_file(save, save->rank, "failed", path) != TSH_OK) return;
    FILE *file = fopen(path, "we");
    if (file) {
        fputs(own.words, file);
        fclose(file);
    }
    tshi_failure_report(&own);
}

tsh_status tshi_checkpoint_save_write(tshi_checkpoint_save *save) {
    char path[TSHI_PATH];
    int fd = -1;
    tsh_status status = path_of_rank_file(save, save->rank, "safetensors", path);
    if (status == TSH_OK) status = tshi_file_create(path, save->file_bytes, &fd);
    if (status == TSH_OK) status = write_elements(save, fd, path);
    if (status == TSH_OK) status = tshi_file_sync(fd, path);
    tshi_file_close(&fd);
    if (status == TSH_OK) status = write_part(save);
    if (status != TSH_OK) write_failure(save, status);
    return status;
}

/* --- all ranks' files --------------------------------------------------------------------------------------------- */

static tsh_status read_failure(int rank, const char *path) {
    char words[TSHI_MESSAGE_SIZE] = "";
    FILE *file = fopen(path, "re");
    if (file) {
        if (!fgets(words, sizeof words, file)) words[0] = '\0';
        fclose(file);
    }
    return tshi_fail(TSH_ERR_PEER, "rank %d: %.400s", rank, words);
}

/* Waits for a rank's part, at most until the deadline. */
static tsh_status await_part(tshi_checkpoint_save *save, int rank, double deadline, char path[TSHI_PATH]) {
    char failed[TSHI_PATH];
    tsh_status status = path_of_rank_file(save, rank, "json", path);
    if (status == TSH_OK) status = path_of_rank_file(save, rank, "failed", failed);
    while (status == TSH_OK) {
        bool last = atomic_load(&save->cancelled) || tshi_clock() > deadline;
        if (access(path, F_OK) == 0) return TSH_OK;
        if (errno != ENOENT) return tshi_file_fail(errno, path, "cannot be examined");
        if (access(failed, F_OK) == 0) return read_failure(rank, failed);
        if (access(save->folder, F_OK) != 0) return tshi_file_fail(errno, save->folder, "has disappeared");
        if (last) {
            return tshi_fail(TSH_ERR_TIMEOUT, "checkpoint_save: %.220s: rank %d has not written its part", save->folder,
                             rank);
        }
        tshi_sleep(0.002);
    }
    return status;
}

static tsh_status merge_part(tshi_checkpoint_save *save, int rank, double deadline, tshi_checkpoint_index *all) {
    char path[TSHI_PATH];
    tshi_checkpoint_index part = {0};
    tsh_status status = await_part(save, rank, deadline, path);
    if (status == TSH_OK) status = tshi_checkpoint_index_read(path, &part);
    if (status == TSH_OK) status = tshi_checkpoint_index_merge(all, &part);
    tshi_checkpoint_index_clear(&part);
    if (status == TSH_OK && unlink(path) != 0) status = tshi_file_fail(errno, path, "cannot be removed");
    return status;
}

tsh_status tshi_checkpoint_save_commit(tshi_checkpoint_save *save) {
    char path[TSHI_PATH];
    tshi_checkpoint_index all = {.step = save->step};
    double deadline = tshi_clock() + save->timeout;
    tsh_status status = tshi_path_join(path, save->folder, TSHI_CHECKPOINT_INDEX);
    for (int rank = 0; rank < save->size && status == TSH_OK; rank++) {
        status = merge_part(save, rank, deadline, &all);
    }
    if (status == TSH_OK) status = tshi_checkpoint_index_check(&all, path);
    if (status == TSH_OK) status = tshi_checkpoint_index_write(&all, path);
    if (status == TSH_OK) status = tshi_file_sync_folder(path);
    tshi_checkpoint_index_clear(&all);
    if (status == TSH_OK) status = tshi_step_rename(save->path, save->step, save->folder);
    if (status == TSH_OK) tshi_step_prune(save->path, save->step, save->keep);
    return status;
}
