/* list, show and verify. */
#include "tool.h"

#include "base/base.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

/* Bytes that are read at once. */
#define CHUNK ((int64_t)16 << 20)

static double total_bytes(const tshi_checkpoint_files *files) {
    double bytes = 0;
    for (int i = 0; i < files->tensors; i++) bytes += tool_bytes(&files->tensor[i]);
    return bytes;
}

/* Files that have a box of it. */
static int count_boxes(const tshi_checkpoint_files *files, const tshi_stored_tensor *t) {
    int count = 0;
    tsh_box box;
    for (int i = 0; i < files->count; i++) count += tshi_checkpoint_box(files, t, i, &box);
    return count;
}

/* --- list --------------------------------------------------------------------------------------------------------- */

static void list_step(const char *path, int64_t step) {
    const tsh_allocator allocator = tshi_allocator_resolve(NULL);
    char name[TSHI_STEP_NAME], folder[TSHI_PATH], size[32], when[32] = "";
    tshi_checkpoint_files files = {.json = NULL};
    struct stat info;
    tshi_step_name(step, name);
    if (tshi_path_join(folder, path, name) != TSH_OK || tshi_checkpoint_open(&allocator, folder, &files) != TSH_OK) {
        printf("%10" PRId64 "  not whole: %s\n", step, tsh_error_message());
        tshi_checkpoint_close(&files);
        return;
    }
    if (stat(folder, &info) == 0) strftime(when, sizeof when, "%Y-%m-%d %H:%M:%S", localtime(&info.st_mtime));
    printf("%10" PRId64 "  %10s  %7d  %5d  %s\n", step, tool_size(total_bytes(&files), size), files.tensors,
           files.count, when);
    tshi_checkpoint_close(&files);
}

int tool_list(const char *path) {
    int64_t *steps;
    int count;
    if (tshi_step_list(path, &steps, &count) != TSH_OK) return tool_failed();
    if (count == 0) {
        fprintf(stderr, "tshard-checkpoint: %s: there is no checkpoint\n", path);
        return 1;
    }
    printf("%10s  %10s  %7s  %5s  %s\n", "step", "size", "tensors", "files", "saved");
    for (int i = 0; i < count; i++) list_step(path, steps[i]);
    free(steps);
    return 0;
}

/* --- show --------------------------------------------------------------------------------------------------------- */

static void show_state(const json_t *state) {
    const json_t *random = json_object_get(state, "random"), *optimizer = json_object_get(state, "optimizer");
    const char *name, *kind, *seed = json_string_value(json_object_get(random, "seed"));
    const char *stream = json_string_value(json_object_get(random, "next_stream"));
    json_t *value, *inner;
    printf("random      seed %s, next stream %s\n", seed ? seed : "?", stream ? stream : "?");
    if (optimizer) {
        const char *which = json_string_value(json_object_get(optimizer, "kind"));
        printf("optimizer   %s, learning rate %g\n", which ? which : "?",
               json_real_value(json_object_get(optimizer, "lr")));
    }
    json_object_foreach(json_object_get(state, "values"), name, value) {
        json_object_foreach(value, kind, inner) {
            char *text = json_dumps(inner, JSON_ENCODE_ANY);
            size_t length = text ? strlen(text) : 0;
            printf("value       %s (%s) %.60s%s\n", name, kind, text ? text : "?", length > 60 ? "..." : "");
            free(text);
        }
    }
}

static void show_tensors(const tshi_checkpoint_files *files) {
    int width = 4;
    char shape[160], size[32];
    for (int i = 0; i < files->tensors; i++) {
        int length = (int)strlen(files->tensor[i].name);
        if (length > width) width = length < 60 ? length : 60;
    }
    printf("\n%-*s  %-9s  %-18s  %10s  %5s  %s\n", width, "name", "dtype", "shape", "size", "boxes", "checksum");
    for (int i = 0; i < files->tensors; i++) {
        const tshi_stored_tensor *t = &files->tensor[i];
        printf("%-*s  %-9s  %-18s  %10s  %5d  %016" PRIx64 "\n", width, t->name, tsh_dtype_name(t->dtype),
               tshi_dims_name(t->ndim, t->shape, shape, sizeof shape), tool_size(tool_bytes(t), size),
               count_boxes(files, t), t->sum);
    }
}

int tool_show(const char *path) {
    source s;
    char size[32];
    if (source_open(path, false, &s) != TSH_OK) return tool_failed();
    printf("checkpoint  %s\nstep        %" PRId64 "\nsize        %s in %d tensors and %d files\n", s.folder,
           s.files.step, tool_size(total_bytes(&s.files), size), s.files.tensors, s.files.count);
    show_state(s.files.state);
    show_tensors(&s.files);
    source_close(&s);
    return 0;
}

/* --- verify ------------------------------------------------------------------------------------------------------- */

static tsh_status sum_tensor(tshi_checkpoint_files *files, const tshi_stored_tensor *t, char *memory, uint64_t *sum) {
    int64_t most = CHUNK / (int64_t)tsh_dtype_size(t->dtype), whole, n;
    tsh_box box = {{0}, {0}};
    memcpy(box.length, t->shape, sizeof box.length);
    tsh_status status = tshi_dims_product(t->ndim, t->shape, &whole);
    *sum = 0;
    for (int64_t done = 0; status == TSH_OK && done < whole; done += n) {
        tsh_box piece = tshi_box_cut(t->ndim, &box, done, most);
        n = tshi_box_numel(t->ndim, &piece);
        status = tshi_checkpoint_read(files, t, &piece, memory);
        if (status == TSH_OK)
            *sum += tshi_checksum_box(tsh_dtype_size(t->dtype), t->ndim, t->shape, &piece, memory, &piece);
    }
    return status;
}

int tool_verify(const char *path) {
    source s;
    char size[32];
    int bad = 0;
    if (source_open(path, false, &s) != TSH_OK) return tool_failed();
    char *memory = malloc((size_t)CHUNK);
    tsh_status status = memory ? TSH_OK : tshi_fail(TSH_ERR_MEMORY, "no memory");
    for (int i = 0; i < s.files.tensors && status == TSH_OK; i++) {
        uint64_t sum;
        status = sum_tensor(&s.files, &s.files.tensor[i], memory, &sum);
        if (status != TSH_OK || sum == s.files.tensor[i].sum) continue;
        printf("%s: checksum %016" PRIx64 ", saved with %016" PRIx64 "\n", s.files.tensor[i].name, sum,
               s.files.tensor[i].sum);
        bad++;
    }
    free(memory);
    int code = status != TSH_OK ? tool_failed() : bad > 0;
    if (code == 0) {
        printf("%s: %d tensors, %s: all checksums fit\n", s.folder, s.files.tensors,
               tool_size(total_bytes(&s.files), size));
    } else if (bad) {
        fprintf(stderr, "tshard-checkpoint: %s: %d of %d tensors have changed\n", s.folder, bad, s.files.tensors);
    }
    source_close(&s);
    return code;
}
