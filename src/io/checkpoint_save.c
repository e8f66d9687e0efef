/* Writing one rank's part of a checkpoint, and publishing the folder of all ranks' files. */
#include "io/checkpoint_save.h"
#include "base/clock.h"
#include "io/checksum.h"
#include "io/file.h"
#include "layers/layers.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* Elements are written in chunks of so many bytes, small enough to be in the cache after the checksum. */
#define CHUNK ((size_t)1 << 20)

/* The path of a rank's file: "safetensors"; "sums", which exists when that is complete; or "failed". */
static tsh_status path_of_rank_file(const tshi_checkpoint_save *save, int rank, const char *kind,
                                    char path[TSHI_PATH]) {
    char name[40];
    snprintf(name, sizeof name, "rank-%05d.%s", rank, kind);
    return tshi_path_join(path, save->folder, name);
}

/* --- the list of what is written ---------------------------------------------------------------------------------- */

static tsh_status list_tensors(tshi_checkpoint_save *save, const tsh_parameters *tensors) {
    const tsh_allocator *allocator = &save->world->allocator;
    size_t count = (size_t)tensors->count + 1;
    save->tensor = tshi_calloc(allocator, count, sizeof *save->tensor);
    save->share = tshi_calloc(allocator, count, sizeof *save->share);
    save->entry = tshi_calloc(allocator, count, sizeof *save->entry);
    save->sums = tshi_calloc(allocator, count, sizeof *save->sums);
    save->buffer = tshi_calloc(allocator, CHUNK, 1);
    if (!save->tensor || !save->share || !save->entry || !save->sums || !save->buffer) return TSH_ERR_MEMORY;
    for (; save->tensors < tensors->count; save->tensors++) {
        const tsh_tensor *t = tensors->items[save->tensors].tensor;
        tshi_stored_tensor *stored = &save->tensor[save->tensors];
        tshi_saved_share *share = &save->share[save->tensors];
        *stored = (tshi_stored_tensor){.dtype = t->dtype, .ndim = t->shape.ndim};
        stored->name = tshi_copy_text(allocator, tensors->items[save->tensors].name);
        if (!stored->name) return TSH_ERR_MEMORY;
        memcpy(stored->shape, t->shape.global, sizeof stored->shape);
        share->box = tsh_tensor_box(t);
        if (!tshi_box_share(t->mesh, t->layout, t->shape.ndim, &share->box)) continue;
        share->tensor = t;
        share->entry = save->entries++;
        tshi_safetensors_entry *entry = &save->entry[share->entry];
        *entry = (tshi_safetensors_entry){.name = stored->name, .dtype = t->dtype, .ndim = t->shape.ndim};
        memcpy(entry->shape, share->box.length, sizeof entry->shape);
    }
    return TSH_OK;
}

static tsh_status make_header(tshi_checkpoint_save *save) {
    json_t *boxes = json_object();
    for (int i = 0; i < save->tensors; i++) {
        if (save->share[i].tensor) tshi_checkpoint_describe_box(boxes, &save->tensor[i], &save->share[i].box);
    }
    char *text = json_dumps(boxes, JSON_COMPACT);
    json_decref(boxes);
    if (!text) return tshi_fail(TSH_ERR_MEMORY, "checkpoint_save: no memory for the header of a file");
    const char *const metadata[] = {"format", "tshard checkpoint", "boxes", text, NULL};
    tsh_status status = tshi_safetensors_header(&save->world->allocator, save->entry, save->entries, metadata,
                                                &save->header, &save->header_bytes, &save->file_bytes);
    free(text);
    return status;
}

static tsh_status copy_share(const tshi_saved_share *share, char *to) {
    const tsh_tensor *t = share->tensor;
    tsh_box part;
    tshi_pieces p = tshi_pieces_to_read(t, &share->box);
    while (tshi_pieces_next(&p)) {
        tshi_box_intersect(t->shape.ndim, &p.box, &share->box, &part);
        tshi_copy_box(t->shape.ndim, tsh_dtype_size(t->dtype), &part, p.values, &p.box, to, &share->box);
    }
    return p.status;
}

/* Copies have the order of the file, after the header. */
static tsh_status copy_elements(tshi_checkpoint_save *save) {
    const tsh_allocator *allocator = &save->world->allocator;
    size_t bytes = (size_t)(save->file_bytes - save->header_bytes);
    tsh_status status = TSH_OK;
    save->copy = allocator->alloc(allocator->user, bytes ? bytes : 1);
    if (!save->copy) return tshi_fail(TSH_ERR_MEMORY, "checkpoint_save: no memory for a copy of %zu bytes", bytes);
    for (int i = 0; i < save->tensors && status == TSH_OK; i++) {
        tshi_saved_share *share = &save->share[i];
        if (!share->tensor) continue;
        char *to = save->copy + (save->entry[share->entry].offset - save->header_bytes);
        status = copy_share(share, to);
        share->copy = to;
    }
    return status;
}

tsh_status tshi_checkpoint_save_prepare(tshi_checkpoint_save *save, const tsh_checkpoint *what,
                                        const tsh_parameters *tensors) {
    tsh_status status = list_tensors(save, tensors);
    if (status == TSH_OK && save->world->rank == 0) {
        save->state = tshi_checkpoint_pack(what);
        if (!save->state) status = TSH_ERR_ARGUMENT;
    }
    if (status == TSH_OK) status = make_header(save);
    return status == TSH_OK && what->background ? copy_elements(save) : status;
}

void tshi_checkpoint_save_clear(tshi_checkpoint_save *save) {
    const tsh_allocator *allocator = &save->world->allocator;
    for (int i = 0; i < save->tensors; i++) tshi_free(allocator, (char *)(uintptr_t)save->tensor[i].name);
    tshi_free(allocator, save->tensor);
    tshi_free(allocator, save->share);
    tshi_free(allocator, save->entry);
    tshi_free(allocator, save->sums);
    tshi_free(allocator, save->header);
    tshi_free(allocator, save->copy);
    tshi_free(allocator, save->buffer);
    tshi_free(allocator, save->background);
    json_decref(save->state);
}

/* --- this rank's shares ------------------------------------------------------------------------------------------- */

/* A background save sleeps for three times the CPU time that it has used since *since, so that it takes only a quarter
 * of a core from training. */
static void rest_beside_training(const tshi_checkpoint_save *save, double *since) {
    struct timespec now;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    double used = (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
    if (*since > 0 && !atomic_load(&save->awaited)) tshi_sleep(3 * (used - *since));
    *since = used;
}

/* Writes the part of a share that a piece of the tensor has, and adds it to the checksum. */
static tsh_status write_share_part(tshi_checkpoint_save *save, int i, const tsh_box *piece, const void *values, int fd,
                                   const char *path, double *since) {
    tshi_stored_tensor *t = &save->tensor[i];
    const tshi_saved_share *share = &save->share[i];
    size_t size = tsh_dtype_size(t->dtype);
    tsh_box part;
    tsh_status status = TSH_OK;
    if (!tshi_box_intersect(t->ndim, piece, &share->box, &part)) return TSH_OK;
    for (int64_t done = 0, all = tshi_box_numel(t->ndim, &part); done < all && status == TSH_OK;) {
        tsh_box chunk = tshi_box_cut(t->ndim, &part, done, (int64_t)(CHUNK / size)), within = chunk;
        for (int d = 0; d < t->ndim; d++) within.start[d] -= share->box.start[d];
        const void *from = tshi_gather_box(t->ndim, size, &chunk, values, piece, save->buffer);
        t->sum += tshi_checksum_box(size, t->ndim, t->shape, &chunk, from, &chunk);
        status = tshi_safetensors_write_box(fd, path, &save->entry[share->entry], &within, from);
        if (save->background) rest_beside_training(save, since);
        done += tshi_box_numel(t->ndim, &chunk);
    }
    return status;
}

static tsh_status write_elements(tshi_checkpoint_save *save, int fd, const char *path) {
    double since = 0; /* of rest_beside_training */
    tsh_status status = tshi_file_write(fd, path, save->header, save->header_bytes, 0);
    for (int i = 0; i < save->tensors && status == TSH_OK; i++) {
        const tshi_saved_share *share = &save->share[i];
        if (share->copy) status = write_share_part(save, i, &share->box, share->copy, fd, path, &since);
        if (share->copy || !share->tensor) continue;
        tshi_pieces p = tshi_pieces_to_read(share->tensor, &share->box);
        while (tshi_pieces_next(&p)) p.status = write_share_part(save, i, &p.box, p.values, fd, path, &since);
        status = p.status;
    }
    return status;
}

/* Writes the sums of this rank's shares once the rank's file is on the disk. From then on rank 0 may rename the folder
 * at any time. */
static tsh_status write_sums(tshi_checkpoint_save *save) {
    char unfinished[TSHI_PATH], path[TSHI_PATH];
    tsh_status status = path_of_rank_file(save, save->world->rank, "unfinished", unfinished);
    if (status == TSH_OK) status = path_of_rank_file(save, save->world->rank, "sums", path);
    for (int i = 0; i < save->tensors; i++) save->sums[i] = save->tensor[i].sum;
    if (status == TSH_OK) status = tshi_file_save(unfinished, save->sums, (size_t)save->tensors * sizeof *save->sums);
    if (status != TSH_OK || rename(unfinished, path) == 0) return status;
    return tshi_file_fail(errno, path, "cannot be renamed");
}

/* Tells rank 0, which may be waiting for this rank's sums, that they will not come. */
static void write_failure(const tshi_checkpoint_save *save) {
    char path[TSHI_PATH];
    if (path_of_rank_file(save, save->world->rank, "safetensors", path) == TSH_OK) unlink(path);
    if (path_of_rank_file(save, save->world->rank, "failed", path) != TSH_OK) return;
    int fd = open(path, O_CREAT | O_WRONLY | O_CLOEXEC, 0666);
    tshi_file_close(&fd);
}

tsh_status tshi_checkpoint_save_write(tshi_checkpoint_save *save) {
    char path[TSHI_PATH];
    int fd = -1;
    tsh_status status = path_of_rank_file(save, save->world->rank, "safetensors", path);
    if (status == TSH_OK) status = tshi_file_create(path, save->file_bytes, &fd);
    if (status == TSH_OK) status = write_elements(save, fd, path);
    if (status == TSH_OK) status = tshi_file_sync(fd, path);
    tshi_file_close(&fd);
    if (status == TSH_OK) status = write_sums(save);
    if (status != TSH_OK) write_failure(save);
    return status;
}

/* --- all ranks' files --------------------------------------------------------------------------------------------- */

/* Waits for a rank's sums, at most until the deadline. */
static tsh_status await_sums(tshi_checkpoint_save *save, int rank, double deadline, char path[TSHI_PATH]) {
    char failed[TSHI_PATH];
    tsh_status status = path_of_rank_file(save, rank, "sums", path);
    if (status == TSH_OK) status = path_of_rank_file(save, rank, "failed", failed);
    while (status == TSH_OK) {
        bool last = atomic_load(&save->cancelled) || tshi_clock() > deadline;
        if (access(path, F_OK) == 0) return TSH_OK;
        if (errno != ENOENT) return tshi_file_fail(errno, path, "cannot be examined");
        if (access(failed, F_OK) == 0) return tshi_fail(TSH_ERR_PEER, "rank %d could not write its part", rank);
        if (access(save->folder, F_OK) != 0) return tshi_file_fail(errno, save->folder, "has disappeared");
        if (last) {
            return tshi_fail(TSH_ERR_TIMEOUT, "checkpoint_save: %.220s: rank %d has not written its part", save->folder,
                             rank);
        }
        tshi_sleep(0.002);
    }
    return status;
}

/* Adds a peer's sums to those of rank 0. */
static tsh_status add_sums(tshi_checkpoint_save *save, int rank, double deadline) {
    const tsh_allocator allocator = tshi_allocator_resolve(NULL); /* also called by the background thread */
    char path[TSHI_PATH], *text = NULL;
    size_t bytes, wanted = (size_t)save->tensors * sizeof(uint64_t);
    tsh_status status = await_sums(save, rank, deadline, path);
    if (status == TSH_OK) status = tshi_file_load(&allocator, path, "a rank's sums", wanted, &text, &bytes);
    if (status == TSH_OK && bytes != wanted)
        status = tshi_fail(TSH_ERR_IO, "%.220s: has %zu bytes, not %zu", path, bytes, wanted);
    for (int i = 0; i < save->tensors && rank > 0 && status == TSH_OK; i++) {
        uint64_t sum;
        memcpy(&sum, text + (size_t)i * sizeof sum, sizeof sum);
        save->tensor[i].sum += sum;
    }
    tshi_free(&allocator, text);
    if (status == TSH_OK && unlink(path) != 0) status = tshi_file_fail(errno, path, "cannot be removed");
    return status;
}

tsh_status tshi_checkpoint_save_commit(tshi_checkpoint_save *save) {
    double deadline = tshi_clock() + save->world->timeout;
    tsh_status status = TSH_OK;
    for (int rank = 0; rank < save->world->size && status == TSH_OK; rank++) status = add_sums(save, rank, deadline);
    if (status == TSH_OK) {
        status = tshi_checkpoint_write_json(save->folder, save->step, json_incref(save->state), save->world->size,
                                            save->tensors, save->tensor);
    }
    if (status == TSH_OK) status = tshi_step_rename(save->path, save->step, save->folder);
    if (status == TSH_OK) tshi_step_prune(save->path, save->step, save->keep);
    return status;
}
