/* What is read: checkpoints and models, both as files of a checkpoint. */
#include "tool.h"

#include "base/base.h"
#include "tshard/checkpoint.h"

#include <string.h>
#include <sys/stat.h>

int tool_failed(void) {
    fprintf(stderr, "tshard-checkpoint: %s\n", tsh_error_message());
    return 1;
}

const char *tool_size(double bytes, char text[32]) {
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB"};
    int unit = 0;
    for (; bytes >= 1024 && unit < 4; unit++) bytes /= 1024;
    snprintf(text, 32, unit ? "%.1f %s" : "%.0f %s", bytes, units[unit]);
    return text;
}

double tool_bytes(const tshi_stored_tensor *t) {
    double bytes = (double)tsh_dtype_size(t->dtype);
    for (int d = 0; d < t->ndim; d++) bytes *= (double)t->shape[d];
    return bytes;
}

bool tool_is_state(const char *name) {
    return !strncmp(name, "optimizer.", 10);
}

static bool exists(const char *folder, const char *name) {
    char path[TSHI_PATH];
    struct stat info;
    return tshi_path_join(path, folder, name) == TSH_OK && stat(path, &info) == 0;
}

/* --- models ------------------------------------------------------------------------------------------------------- */

/* All tensors of a safetensors file join those of the source. */
static tsh_status add_file(source *s, const char *name) {
    char path[TSHI_PATH];
    tsh_status status = tshi_path_join(path, s->folder, name);
    if (status == TSH_OK) status = tshi_checkpoint_add_file(&s->files, path);
    if (status != TSH_OK) return status;
    const tshi_safetensors *file = s->files.file[s->files.count - 1].file;
    for (int i = 0; i < file->count; i++) {
        const tshi_safetensors_entry *e = &file->entries[i];
        if (e->dtype == TSH_DTYPE_COUNT)
            return tshi_fail(TSH_ERR_DTYPE, "%.220s: '%.100s' is %s, which is not a dtype of tshard", path, e->name,
                             e->type);
        if (tshi_checkpoint_find(&s->files, e->name, i))
            return tshi_fail(TSH_ERR_IO, "%.220s: '%.100s' is in another file too", path, e->name);
        tshi_stored_tensor *t = tshi_checkpoint_add_tensor(&s->files, e->name);
        if (!t) return TSH_ERR_MEMORY;
        t->dtype = e->dtype;
        t->ndim = e->ndim;
        memcpy(t->shape, e->shape, sizeof t->shape);
    }
    return TSH_OK;
}

static bool has_file(const source *s, const char *name) {
    char path[TSHI_PATH];
    bool has = tshi_path_join(path, s->folder, name) != TSH_OK;
    for (int i = 0; i < s->files.count && !has; i++) has = !strcmp(s->files.file[i].file->path, path);
    return has;
}

/* The files that model.safetensors.index.json names. */
static tsh_status add_files(source *s) {
    char path[TSHI_PATH];
    json_error_t error;
    const char *name;
    json_t *value;
    tsh_status status = tshi_path_join(path, s->folder, "model.safetensors.index.json");
    if (status != TSH_OK) return status;
    json_t *all = json_load_file(path, JSON_REJECT_DUPLICATES, &error);
    json_t *map = json_object_get(all, "weight_map");
    if (!all) status = tshi_fail(TSH_ERR_IO, "%.220s: line %d: %.150s", path, error.line, error.text);
    if (all && !json_is_object(map)) status = tshi_fail(TSH_ERR_IO, "%.220s: has no weight_map", path);
    json_object_foreach(map, name, value) {
        const char *file = json_string_value(value);
        if (status == TSH_OK && (!file || strchr(file, '/'))) {
            status = tshi_fail(TSH_ERR_IO, "%.220s: '%.100s' is in no file of this folder", path, name);
        }
        if (status == TSH_OK && !has_file(s, file)) status = add_file(s, file);
    }
    json_decref(all);
    return status;
}

static tsh_status open_model(const char *path, source *s) {
    struct stat info;
    if (stat(path, &info) == 0 && S_ISREG(info.st_mode)) {
        const char *slash = strrchr(path, '/');
        snprintf(s->folder, sizeof s->folder, "%.*s", slash ? (int)(slash - path) : 1, slash ? path : ".");
        return add_file(s, slash ? slash + 1 : path);
    }
    snprintf(s->folder, sizeof s->folder, "%s", path);
    return exists(path, "model.safetensors") ? add_file(s, "model.safetensors") : add_files(s);
}

/* --- both --------------------------------------------------------------------------------------------------------- */

static tsh_status open_checkpoint(const char *path, source *s) {
    const tsh_allocator allocator = tshi_allocator_resolve(NULL);
    char name[TSHI_STEP_NAME] = "";
    int64_t step = -1;
    tsh_status status = TSH_OK;
    if (!exists(path, TSHI_CHECKPOINT_JSON)) {
        status = tsh_checkpoint_latest(path, &step);
        if (status == TSH_OK && step < 0) {
            status = tshi_fail(TSH_ERR_IO, "%.300s: no complete checkpoint found", path);
        }
        tshi_step_name(step, name);
    }
    if (status == TSH_OK) status = tshi_path_join(s->folder, path, name);
    if (status == TSH_OK && !name[0]) s->folder[strlen(path)] = '\0';
    if (status == TSH_OK) status = tshi_checkpoint_open(&allocator, s->folder, &s->files);
    s->summed = true;
    return status;
}

tsh_status source_open(const char *path, bool models, source *out) {
    struct stat info;
    bool is_file = stat(path, &info) == 0 && S_ISREG(info.st_mode);
    bool is_model = is_file || exists(path, "model.safetensors") || exists(path, "model.safetensors.index.json");
    *out = (source){.files.allocator = tshi_allocator_resolve(NULL)};
    tsh_status status = models && is_model ? open_model(path, out) : open_checkpoint(path, out);
    if (status != TSH_OK) source_close(out);
    return status;
}

void source_close(source *s) {
    tshi_checkpoint_close(&s->files);
}
