/* Checkpoints: the public calls, and the agreement of the ranks in them. */
#include "base/hash.h"
#include "io/checkpoint_background.h"
#include "io/checksum.h"
#include "io/load.h"
#include "layers/layers.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

/* The text that ranks compare. `tensors` may be NULL. */
static void describe_call(const char *call, const char *path, int64_t step, const tsh_parameters *tensors,
                          char text[TSHI_LINE]) {
    uint64_t fingerprint = tshi_fingerprint_text(TSHI_FINGERPRINT, path ? path : "");
    if (tensors) fingerprint = tshi_parameters_fingerprint(tensors, fingerprint);
    snprintf(text, TSHI_LINE, "%s %.120s, step %" PRId64 ", %d tensors #%016" PRIx64, call, path ? path : "", step,
             tsh_parameters_count(tensors), fingerprint);
}

/* --- save --------------------------------------------------------------------------------------------------------- */

/* Everything that can fail before the first byte is written. */
static tsh_status save_begin(tshi_checkpoint_save *save, const char *path, const tsh_checkpoint *what) {
    tsh_world *world = what->parameters->world;
    tsh_parameters *tensors = NULL;
    uint64_t token = 0;
    char text[TSHI_LINE];
    bool made = false;
    tsh_status status = save ? tshi_checkpoint_check("checkpoint_save", path, what) : TSH_ERR_MEMORY;
    if (status == TSH_OK) status = tshi_path_join(save->path, path, "");
    if (status == TSH_OK) status = tshi_checkpoint_tensors(what, NULL, &tensors);
    if (status == TSH_OK) {
        save->path[strlen(path)] = '\0';
        status = tshi_checkpoint_save_prepare(save, what, tensors);
    }
    if (status == TSH_OK && what->background && !(save->background = tshi_background_save_new(world)))
        status = TSH_ERR_MEMORY;
    if (status == TSH_OK && world->rank == 0) {
        if (!tshi_random_bytes((unsigned char *)&token, sizeof token)) token = (uint64_t)(tshi_clock() * 1e9);
        status = tshi_step_begin(path, what->step, token, save->folder);
        made = status == TSH_OK;
    }
    describe_call("checkpoint_save", path, what->step, tensors, text);
    status = tshi_group_fetch(world->group, text, &(const int32_t){0}, 1, &token, sizeof token, status);
    if (status == TSH_OK)
        tshi_step_hidden(path, what->step, token, save->folder); /* as long as that of rank 0, which fits */
    else if (made)
        tshi_folder_remove(save->folder);
    /* Without a copy, the save reads the caller's tensors. */
    tsh_parameters_destroy(tensors);
    return status;
}

static tsh_status save_here(tshi_checkpoint_save *save) {
    tsh_group *all = save->world->group;
    tsh_status status = tshi_group_agree(all, "checkpoint_save: files", tshi_checkpoint_save_write(save));
    if (status == TSH_OK) {
        status = tshi_group_agree(all, "checkpoint_save: folder",
                                  save->world->rank == 0 ? tshi_checkpoint_save_commit(save) : TSH_OK);
    }
    if (status != TSH_OK && save->world->rank == 0) tshi_folder_remove(save->folder);
    return status;
}

tsh_status tsh_checkpoint_save(const char *path, const tsh_checkpoint *what) {
    if (!what || !what->parameters) {
        return tshi_fail(TSH_ERR_ARGUMENT, "checkpoint_save: what and its parameters are required");
    }
    tsh_world *world = what->parameters->world;
    tsh_status status = tshi_background_save_finish(world);
    if (status != TSH_OK) return status;
    tshi_checkpoint_save *save = tshi_calloc(&world->allocator, 1, sizeof *save);
    if (save) {
        save->world = world;
        save->step = what->step;
        save->keep = what->keep;
    }
    status = save_begin(save, path, what);
    if (status == TSH_OK && what->background) {
        tshi_background_save_start(save);
        return TSH_OK;
    }
    if (status == TSH_OK) status = save_here(save);
    if (save) tshi_checkpoint_save_clear(save);
    tshi_free(&world->allocator, save);
    return status;
}

tsh_status tsh_checkpoint_wait(tsh_world *world) {
    if (!world) return tshi_fail(TSH_ERR_ARGUMENT, "checkpoint_wait: world is NULL");
    return tshi_background_save_finish(world);
}

/* --- the newest step ---------------------------------------------------------------------------------------------- */

static bool is_whole(const char *folder) {
    const tsh_allocator allocator = tshi_allocator_resolve(NULL);
    tshi_checkpoint_files files;
    bool whole = tshi_checkpoint_open(&allocator, folder, &files) == TSH_OK;
    tshi_checkpoint_close(&files);
    return whole;
}

/* The newest step with a complete folder, or -1. Newer, incomplete folders are logged to `log` (may be NULL). */
static tsh_status find_latest(const char *path, const tsh_log_sink *log, int64_t *step) {
    int64_t *steps;
    int count;
    struct stat info;
    *step = -1;
    if (stat(path, &info) != 0 && errno == ENOENT) return TSH_OK;
    tsh_status status = tshi_step_list(path, &steps, &count);
    for (int i = 0; i < count && status == TSH_OK && *step < 0; i++) {
        char name[TSHI_STEP_NAME], folder[TSHI_PATH];
        tshi_step_name(steps[i], name);
        status = tshi_path_join(folder, path, name);
        if (status == TSH_OK && is_whole(folder)) {
            *step = steps[i];
        } else if (log) {
            tshi_log(log, TSH_LOG_WARNING, "skipped an incomplete checkpoint: %s", tsh_error_message());
        }
    }
    free(steps);
    return status;
}

tsh_status tsh_checkpoint_latest(const char *path, int64_t *step) {
    if (step) *step = -1;
    if (!path || !path[0] || !step) {
        return tshi_fail(TSH_ERR_ARGUMENT, "checkpoint_latest: path and step are required");
    }
    return find_latest(path, NULL, step);
}

/* --- load --------------------------------------------------------------------------------------------------------- */

/* On rank 0: *step = -1 if path is itself a step's folder, else the newest step in it. */
static tsh_status choose_step(const char *path, const tsh_log_sink *log, int64_t *step) {
    char json[TSHI_PATH];
    struct stat info;
    *step = -1;
    tsh_status status = tshi_path_join(json, path, TSHI_CHECKPOINT_JSON);
    if (status != TSH_OK || stat(json, &info) == 0) return status;
    status = find_latest(path, log, step);
    if (status != TSH_OK || *step >= 0) return status;
    return tshi_fail(TSH_ERR_IO, "checkpoint_load: %.300s: no complete checkpoint found", path);
}

/* Gives every rank the folder that rank 0 has chosen. */
static tsh_status agree_on_folder(tsh_world *world, const char *path, const tsh_checkpoint *what,
                                  char folder[TSHI_PATH]) {
    int64_t step = -1;
    char text[TSHI_LINE], name[TSHI_STEP_NAME];
    tsh_status status = tshi_checkpoint_check("checkpoint_load", path, what);
    if (status == TSH_OK && world->rank == 0) status = choose_step(path, &world->log, &step);
    describe_call("checkpoint_load", path, 0, NULL, text);
    status = tshi_group_fetch(world->group, text, &(const int32_t){0}, 1, &step, sizeof step, status);
    if (status != TSH_OK) return status;
    tshi_step_name(step, name);
    return tshi_path_join(folder, path, step < 0 ? "" : name);
}

/* Reads this rank's box of a tensor. *sum becomes the checksum of this rank's share of it. */
static tsh_status read_tensor(tshi_checkpoint_files *files, const tshi_stored_tensor *stored, tsh_tensor *t,
                              uint64_t *sum) {
    int ndim = stored->ndim;
    tsh_box share = tsh_tensor_box(t), part;
    bool shares = tshi_box_share(t->mesh, t->layout, ndim, &share);
    tshi_pieces p = tshi_pieces_to_write(t);
    while (tshi_pieces_next(&p)) {
        p.status = tshi_checkpoint_read(files, stored, &p.box, p.values);
        if (p.status == TSH_OK && shares && tshi_box_intersect(ndim, &p.box, &share, &part))
            *sum += tshi_checksum_box(tsh_dtype_size(t->dtype), ndim, stored->shape, &part, p.values, &p.box);
    }
    return p.status;
}

static tsh_status read_tensors(tshi_checkpoint_files *files, const tsh_parameters *tensors, uint64_t *sums) {
    tsh_status status = TSH_OK;
    for (int i = 0; i < tensors->count && status == TSH_OK; i++) {
        const tshi_parameter *item = &tensors->items[i];
        status = read_tensor(files, tshi_checkpoint_find(files, item->name, i), item->tensor, &sums[i]);
    }
    return status;
}

/* Checks that the sums of all ranks' shares are the checksums of the checkpoint. Collective. */
static tsh_status compare_sums(tsh_world *world, const char *folder, const tshi_checkpoint_files *files,
                               const tsh_parameters *tensors, uint64_t *sums, tsh_status status) {
    size_t count = (size_t)tensors->count;
    uint64_t *all =
        tshi_group_gather(world->group, "checkpoint_load: checksums", sums, (count + 1) * sizeof *sums, &status);
    if (status != TSH_OK) return status;
    for (size_t i = 0; i < count && status == TSH_OK; i++) {
        uint64_t sum = 0;
        for (int rank = 0; rank < world->size; rank++) sum += all[(size_t)rank * (count + 1) + i];
        if (sum == tshi_checkpoint_find(files, tensors->items[i].name, (int)i)->sum) continue;
        status = tshi_fail(
            TSH_ERR_IO,
            "checkpoint_load: %.250s: '%.120s' has a wrong checksum: the files have changed since they were saved",
            folder, tensors->items[i].name);
    }
    world->host->ops->memory.release(world->host, all);
    return status;
}

tsh_status tsh_checkpoint_load(const char *path, tsh_checkpoint *what) {
    if (!what || !what->parameters) {
        return tshi_fail(TSH_ERR_ARGUMENT, "checkpoint_load: what and its parameters are required");
    }
    tsh_world *world = what->parameters->world;
    char folder[TSHI_PATH];
    tsh_parameters *tensors = NULL;
    tshi_checkpoint_files files = {.json = NULL};
    uint64_t *sums = NULL;
    tsh_status status = tshi_background_save_finish(world);
    if (status == TSH_OK) status = agree_on_folder(world, path, what, folder);
    if (status != TSH_OK) return status;
    status = tshi_checkpoint_open(&world->allocator, folder, &files);
    if (status == TSH_OK) status = tshi_checkpoint_tensors(what, &files, &tensors);
    if (status == TSH_OK) status = tshi_checkpoint_compare(&files, what, tensors, folder);
    if (status == TSH_OK) {
        sums = tshi_calloc(&world->allocator, (size_t)tensors->count + 1, sizeof *sums);
        if (!sums) status = TSH_ERR_MEMORY;
    }
    status = tshi_group_agree(world->group, "checkpoint_load: contents", status);
    if (status == TSH_OK) {
        status = read_tensors(&files, tensors, sums);
        status = compare_sums(world, folder, &files, tensors, sums, status);
    }
    if (status == TSH_OK && what->optimizer && what->other_states) tshi_checkpoint_report_states(&files, what);
    if (status == TSH_OK) status = tshi_checkpoint_unpack(&files, what);
    tshi_free(&world->allocator, sums);
    tshi_checkpoint_close(&files);
    tsh_parameters_destroy(tensors);
    return status;
}
