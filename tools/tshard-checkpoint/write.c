/* merge and split: other files of the same tensors. */
#include "tool.h"

#include "base/base.h"
#include "base/hash.h"
#include "io/file.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* Bytes that are read and written at once. */
#define CHUNK ((int64_t)16 << 20)

typedef struct writer {
    source *from;
    tsh_allocator allocator;
    char folder[TSHI_PATH]; /* under the name that it has while it is written */
    char *memory;
} writer;

/* A tensor's box that becomes a tensor of a file. */
typedef struct piece {
    const tshi_stored_tensor *tensor;
    tsh_box box;
    uint64_t sum;
} piece;

static tsh_status writer_open(writer *w, source *from) {
    *w = (writer){.from = from, .allocator = tshi_allocator_resolve(NULL)};
    w->memory = malloc((size_t)CHUNK);
    return w->memory ? TSH_OK : tshi_fail(TSH_ERR_MEMORY, "no memory");
}

static tsh_status write_piece(writer *w, piece *p, const tshi_safetensors_entry *entry, int fd, const char *path) {
    const tshi_stored_tensor *t = p->tensor;
    int64_t most = CHUNK / (int64_t)tsh_dtype_size(t->dtype), whole = tshi_box_numel(t->ndim, &p->box), n;
    tsh_status status = TSH_OK;
    for (int64_t done = 0; status == TSH_OK && done < whole; done += n) {
        tsh_box part = tshi_box_cut(t->ndim, &p->box, done, most), within = part;
        n = tshi_box_numel(t->ndim, &part);
        for (int d = 0; d < t->ndim; d++) within.start[d] -= p->box.start[d];
        status = tshi_checkpoint_read(&w->from->files, t, &part, w->memory);
        if (status != TSH_OK) break;
        p->sum += tshi_checksum_box(tsh_dtype_size(t->dtype), t->ndim, t->shape, &part, w->memory, &part);
        status = tshi_safetensors_write_box(fd, path, entry, &within, w->memory);
    }
    return status;
}

/* One file of these pieces, in the writer's folder. */
static tsh_status write_file(writer *w, const char *name, piece *pieces, int count, const char *const *metadata,
                             uint64_t *bytes) {
    char path[TSHI_PATH], *header = NULL;
    size_t header_bytes = 0;
    int fd = -1;
    tshi_safetensors_entry *entries = calloc((size_t)count + 1, sizeof *entries);
    tsh_status status = entries ? TSH_OK : tshi_fail(TSH_ERR_MEMORY, "no memory");
    for (int i = 0; status == TSH_OK && i < count; i++) {
        const tshi_stored_tensor *t = pieces[i].tensor;
        entries[i] = (tshi_safetensors_entry){.name = t->name, .dtype = t->dtype, .ndim = t->ndim};
        memcpy(entries[i].shape, pieces[i].box.length, sizeof entries[i].shape);
    }
    if (status == TSH_OK) status = tshi_path_join(path, w->folder, name);
    if (status == TSH_OK) {
        status = tshi_safetensors_header(&w->allocator, entries, count, metadata, &header, &header_bytes, bytes);
    }
    if (status == TSH_OK) status = tshi_file_create(path, *bytes, &fd);
    if (status == TSH_OK) status = tshi_file_write(fd, path, header, header_bytes, 0);
    for (int i = 0; status == TSH_OK && i < count; i++) status = write_piece(w, &pieces[i], &entries[i], fd, path);
    if (status == TSH_OK) status = tshi_file_sync(fd, path);
    tshi_file_close(&fd);
    tshi_free(&w->allocator, header);
    free(entries);
    return status;
}

/* --- merge -------------------------------------------------------------------------------------------------------- */

/* What goes into the files of a model: whole tensors, first[f] the first one of file f. */
typedef struct plan {
    piece *pieces;
    int count, *first, files;
    double bytes;
} plan;

static tsh_status make_plan(source *s, int64_t file_bytes, bool optimizer, plan *p) {
    double used = 0;
    *p = (plan){.pieces = calloc((size_t)s->files.tensors + 1, sizeof *p->pieces),
                .first = calloc((size_t)s->files.tensors + 2, sizeof *p->first)};
    if (!p->pieces || !p->first) return tshi_fail(TSH_ERR_MEMORY, "no memory");
    for (int i = 0; i < s->files.tensors; i++) {
        const tshi_stored_tensor *t = &s->files.tensor[i];
        if (tool_is_state(t->name) && !optimizer) continue;
        double bytes = tool_bytes(t);
        if (p->files == 0 || (file_bytes && used > 0 && used + bytes > (double)file_bytes)) {
            p->first[p->files++] = p->count;
            used = 0;
        }
        used += bytes;
        p->bytes += bytes;
        p->pieces[p->count].tensor = t;
        memcpy(p->pieces[p->count++].box.length, t->shape, sizeof t->shape);
    }
    if (p->files == 0) p->files = 1;
    p->first[p->files] = p->count;
    return TSH_OK;
}

static const char *name_model(const plan *p, int file, char name[48]) {
    if (p->files == 1) return "model.safetensors";
    snprintf(name, 48, "model-%05d-of-%05d.safetensors", file + 1, p->files);
    return name;
}

static tsh_status write_weight_map(const writer *w, const plan *p) {
    char path[TSHI_PATH], name[48];
    json_t *map = json_object();
    for (int f = 0; f < p->files; f++) {
        for (int i = p->first[f]; i < p->first[f + 1]; i++) {
            json_object_set_new(map, p->pieces[i].tensor->name, json_string(name_model(p, f, name)));
        }
    }
    json_t *all = json_pack("{s:{s:I}, s:o}", "metadata", "total_size", (json_int_t)p->bytes, "weight_map", map);
    char *text = all ? json_dumps(all, JSON_INDENT(2)) : NULL;
    tsh_status status = text ? TSH_OK : tshi_fail(TSH_ERR_MEMORY, "no memory");
    if (status == TSH_OK) status = tshi_path_join(path, w->folder, "model.safetensors.index.json");
    if (status == TSH_OK) status = tshi_file_save(path, text, strlen(text));
    free(text);
    json_decref(all);
    return status;
}

static tsh_status merge(writer *w, const char *folder, plan *p) {
    static const char *const metadata[] = {"format", "pt", NULL};
    char name[48];
    uint64_t bytes;
    struct stat info;
    if (stat(folder, &info) == 0) return tshi_fail(TSH_ERR_IO, "%.300s: is there already", folder);
    if (snprintf(w->folder, sizeof w->folder, "%s.partial", folder) >= (int)sizeof w->folder) {
        return tshi_fail(TSH_ERR_ARGUMENT, "the folder's path is too long");
    }
    tshi_folder_remove(w->folder);
    if (mkdir(w->folder, 0777) != 0) return tshi_file_fail(errno, w->folder, "cannot be created");
    tsh_status status = TSH_OK;
    for (int f = 0; f < p->files && status == TSH_OK; f++) {
        status = write_file(w, name_model(p, f, name), p->pieces + p->first[f], p->first[f + 1] - p->first[f], metadata,
                            &bytes);
    }
    if (status == TSH_OK && p->files > 1) status = write_weight_map(w, p);
    if (status == TSH_OK) status = tshi_file_rename(w->folder, folder);
    if (status != TSH_OK) tshi_folder_remove(w->folder);
    return status;
}

/* The tensors that were read are those that were saved. */
static tsh_status check_sums(const source *s, const plan *p) {
    for (int i = 0; i < p->count && s->summed; i++) {
        if (p->pieces[i].sum == p->pieces[i].tensor->sum) continue;
        return tshi_fail(TSH_ERR_IO,
                         "%.220s: '%.120s' has a wrong checksum: the files have changed since they were saved",
                         s->folder, p->pieces[i].tensor->name);
    }
    return TSH_OK;
}

int tool_merge(const char *path, const char *folder, int64_t file_bytes, bool optimizer) {
    source s;
    writer w;
    plan p = {.files = 0};
    char size[32];
    if (source_open(path, false, &s) != TSH_OK) return tool_failed();
    tsh_status status = writer_open(&w, &s);
    if (status == TSH_OK) status = make_plan(&s, file_bytes, optimizer, &p);
    if (status == TSH_OK) status = merge(&w, folder, &p);
    if (status == TSH_OK) {
        status = check_sums(&s, &p);
        if (status != TSH_OK) tshi_folder_remove(folder);
    }
    if (status == TSH_OK) {
        printf("%s: %d tensors, %s in %d file%s\n", folder, p.count, tool_size(p.bytes, size), p.files,
               p.files > 1 ? "s" : "");
    }
    free(p.pieces);
    free(p.first);
    free(w.memory);
    source_close(&s);
    return status == TSH_OK ? 0 : tool_failed();
}

/* --- split -------------------------------------------------------------------------------------------------------- */

/* File number `file` of a checkpoint; `out` gets the sums. */
static tsh_status split_file(writer *w, int files, int file, tshi_stored_tensor *out) {
    const tshi_checkpoint_files *in = &w->from->files;
    char name[TSHI_RANK_FILE];
    uint64_t bytes;
    int count = 0;
    json_t *boxes = json_object();
    piece *pieces = calloc((size_t)in->tensors + 1, sizeof *pieces);
    for (int i = 0; i < in->tensors && pieces; i++) {
        pieces[count] = (piece){.tensor = &in->tensor[i]};
        memcpy(pieces[count].box.length, in->tensor[i].shape, sizeof in->tensor[i].shape);
        if (!tshi_box_split(in->tensor[i].ndim, &pieces[count].box, files, file)) continue;
        tshi_checkpoint_describe_box(boxes, &in->tensor[i], &pieces[count].box);
        count++;
    }
    char *text = json_dumps(boxes, JSON_COMPACT);
    const char *const metadata[] = {"format", "tshard checkpoint", "boxes", text, NULL};
    tsh_status status = pieces && text ? TSH_OK : tshi_fail(TSH_ERR_MEMORY, "no memory");
    if (status == TSH_OK) status = write_file(w, tshi_rank_file_name(file, name), pieces, count, metadata, &bytes);
    for (int i = 0; i < count; i++) out[pieces[i].tensor - in->tensor].sum += pieces[i].sum;
    json_decref(boxes);
    free(text);
    free(pieces);
    return status;
}

/* A model has neither random streams nor values. */
static json_t *state_of(const source *s) {
    if (s->files.state) return json_incref(s->files.state);
    return json_pack("{s:{s:s, s:s}, s:{}}", "random", "seed", "0", "next_stream", "0", "values");
}

static tsh_status split(writer *w, const char *folder, int files, int64_t step, tshi_stored_tensor *out) {
    const tshi_checkpoint_files *in = &w->from->files;
    uint64_t token = 0;
    tshi_random_bytes((unsigned char *)&token, sizeof token);
    tsh_status status = tshi_step_begin(folder, step, token, w->folder);
    if (status != TSH_OK) return status;
    for (int i = 0; i < in->tensors; i++) {
        out[i] = in->tensor[i];
        out[i].sum = 0;
    }
    for (int f = 0; f < files && status == TSH_OK; f++) status = split_file(w, files, f, out);
    for (int i = 0; i < in->tensors && status == TSH_OK && w->from->summed; i++) {
        if (out[i].sum == in->tensor[i].sum) continue;
        status =
            tshi_fail(TSH_ERR_IO, "%.220s: '%.120s' has a wrong checksum: the files have changed since they were saved",
                      w->from->folder, in->tensor[i].name);
    }
    if (status == TSH_OK)
        status = tshi_checkpoint_write_json(w->folder, step, state_of(w->from), files, in->tensors, out);
    if (status == TSH_OK) status = tshi_step_rename(folder, step, w->folder);
    if (status != TSH_OK) tshi_folder_remove(w->folder);
    return status;
}

int tool_split(const char *path, const char *folder, int files, int64_t step) {
    source s;
    writer w;
    char name[TSHI_STEP_NAME];
    if (source_open(path, true, &s) != TSH_OK) return tool_failed();
    if (step < 0) step = s.files.step;
    tshi_stored_tensor *out = calloc((size_t)s.files.tensors + 1, sizeof *out);
    tsh_status status = writer_open(&w, &s);
    if (!out) status = tshi_fail(TSH_ERR_MEMORY, "no memory");
    if (status == TSH_OK) status = split(&w, folder, files, step, out);
    if (status == TSH_OK) {
        tshi_step_name(step, name);
        printf("%s/%s: %d tensors in %d file%s\n", folder, name, s.files.tensors, files, files > 1 ? "s" : "");
    }
    free(w.memory);
    free(out);
    source_close(&s);
    return status == TSH_OK ? 0 : tool_failed();
}
