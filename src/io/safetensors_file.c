/* Safetensors files: opening one, and reading and writing boxes of its tensors. */
#include "io/safetensors.h"

#include "io/file.h"
#include "tensor/runs.h"

#include <jansson.h>
#include <string.h>

/* Runs are read together across gaps of at most so many bytes: copying more takes longer than a system call. Gaps are
 * at most as long as the runs, so that a read takes at most twice the box's bytes. */
#define GAP_MOST 512
/* Memory for runs that are read together. */
#define SCRATCH ((size_t)256 << 10)

/* --- files -------------------------------------------------------------------------------------------------------- */

static tsh_status read_length(tshi_safetensors *file) {
    unsigned char bytes[TSHI_SAFETENSORS_PREFIX];
    uint64_t length = 0;
    if (file->file_bytes < sizeof bytes) {
        return tshi_fail(TSH_ERR_IO, "%.220s: is not a safetensors file: it has only %llu bytes", file->path,
                         (unsigned long long)file->file_bytes);
    }
    tsh_status status = tshi_file_read(file->fd, file->path, bytes, sizeof bytes, 0);
    if (status != TSH_OK) return status;
    for (int i = 0; i < TSHI_SAFETENSORS_PREFIX; i++) length |= (uint64_t)bytes[i] << (8 * i);
    if (length > TSHI_SAFETENSORS_HEADER_MOST) {
        return tshi_fail(TSH_ERR_IO,
                         "%.220s: is not a safetensors file: its header would have %llu bytes, at most %d are allowed",
                         file->path, (unsigned long long)length, TSHI_SAFETENSORS_HEADER_MOST);
    }
    if (length > file->file_bytes - sizeof bytes) {
        return tshi_fail(TSH_ERR_IO, "%.220s: is truncated: a header of %llu bytes in a file of %llu", file->path,
                         (unsigned long long)length, (unsigned long long)file->file_bytes);
    }
    file->header_bytes = length;
    return TSH_OK;
}

static tsh_status read_header(tshi_safetensors *file) {
    tsh_status status = tshi_file_open(file->path, &file->fd, &file->file_bytes);
    if (status == TSH_OK) status = read_length(file);
    if (status != TSH_OK) return status;
    char *header = tshi_calloc(&file->allocator, (size_t)file->header_bytes, 1);
    if (!header) return TSH_ERR_MEMORY;
    status = tshi_file_read(file->fd, file->path, header, (size_t)file->header_bytes, TSHI_SAFETENSORS_PREFIX);
    if (status == TSH_OK) status = tshi_safetensors_parse(file, header);
    file->bytes_read = TSHI_SAFETENSORS_PREFIX + file->header_bytes;
    tshi_free(&file->allocator, header);
    return status;
}

tsh_status tshi_safetensors_open(const tsh_allocator *allocator, const char *path, tshi_safetensors **out) {
    *out = NULL;
    tshi_safetensors *file = tshi_calloc(allocator, 1, sizeof *file);
    if (!file) return TSH_ERR_MEMORY;
    file->allocator = *allocator;
    file->fd = -1;
    file->path = tshi_copy_text(allocator, path);
    tsh_status status = file->path ? read_header(file) : TSH_ERR_MEMORY;
    if (status == TSH_OK)
        *out = file;
    else
        tshi_safetensors_close(file);
    return status;
}

void tshi_safetensors_close(tshi_safetensors *file) {
    if (!file) return;
    tsh_allocator allocator = file->allocator;
    tshi_file_close(&file->fd);
    json_decref(file->json);
    tshi_free(&allocator, file->entries);
    tshi_free(&allocator, file->path);
    tshi_free(&allocator, file);
}

/* --- boxes -------------------------------------------------------------------------------------------------------- */

/* The runs of a box in a file. Fails for an element type that is not a dtype, and for a box outside the tensor. */
static tsh_status runs_in_file(const tshi_safetensors_entry *entry, const tsh_box *box, const char *path,
                               tshi_runs *out) {
    tsh_box whole = {0};
    if (entry->dtype == TSH_DTYPE_COUNT) {
        return tshi_fail(TSH_ERR_DTYPE, "%.220s: '%.100s' is %s, which is not a dtype of tshard", path, entry->name,
                         entry->type);
    }
    for (int d = 0; d < entry->ndim; d++) {
        whole.length[d] = entry->shape[d];
        if (box->start[d] >= 0 && box->length[d] >= 0 && box->start[d] <= entry->shape[d] - box->length[d]) continue;
        return tshi_fail(TSH_ERR_RANGE, "%.220s: '%.100s': a box of %lld from %lld on in dim %d of %lld", path,
                         entry->name, (long long)box->length[d], (long long)box->start[d], d,
                         (long long)entry->shape[d]);
    }
    *out = tshi_runs_of(entry->ndim, box, &whole, box);
    return TSH_OK;
}

static int64_t runs_count(const tshi_runs *r) {
    return r->numel ? r->numel / r->count[0] : 0;
}

/* The offset of run i in the file; in the box's memory the runs are contiguous. */
static uint64_t run_place(const tshi_safetensors_entry *entry, const tshi_runs *r, int64_t i) {
    int64_t from, to;
    tshi_runs_at(r, 1, i, &from, &to);
    return entry->offset + (uint64_t)from * tsh_dtype_size(entry->dtype);
}

/* How many runs of `bytes` from run i on are read together; *span is the number of bytes from the first to the end of
 * the last. */
static int64_t contiguous_runs(const tshi_safetensors_entry *entry, const tshi_runs *r, size_t bytes, int64_t i,
                               size_t *span) {
    uint64_t begin = run_place(entry, r, i), end = begin + bytes;
    size_t most = bytes < GAP_MOST ? bytes : GAP_MOST;
    int64_t n = 1;
    for (int64_t count = runs_count(r); i + n < count; n++) {
        uint64_t next = run_place(entry, r, i + n);
        if (next - end > most || next + bytes - begin > SCRATCH) break;
        end = next + bytes;
    }
    *span = (size_t)(end - begin);
    return n;
}

static tsh_status read_runs(tshi_safetensors *file, const tshi_safetensors_entry *entry, const tshi_runs *r,
                            char *scratch, char *out) {
    size_t bytes = (size_t)r->count[0] * tsh_dtype_size(entry->dtype);
    for (int64_t i = 0, n, count = runs_count(r); i < count; i += n) {
        size_t span;
        n = contiguous_runs(entry, r, bytes, i, &span);
        uint64_t begin = run_place(entry, r, i);
        tsh_status status = tshi_file_read(file->fd, file->path, n == 1 ? out : scratch, span, begin);
        if (status != TSH_OK) return status;
        file->bytes_read += span;
        for (int64_t k = 0; n > 1 && k < n; k++) {
            memcpy(out + (size_t)k * bytes, scratch + (run_place(entry, r, i + k) - begin), bytes);
        }
        out += (size_t)n * bytes;
    }
    return TSH_OK;
}

tsh_status tshi_safetensors_read_box(tshi_safetensors *file, const tshi_safetensors_entry *entry, const tsh_box *box,
                                     void *out) {
    tshi_runs r;
    char *scratch = NULL;
    tsh_status status = runs_in_file(entry, box, file->path, &r);
    if (status != TSH_OK) return status;
    if (runs_count(&r) > 1) {
        scratch = tshi_calloc(&file->allocator, SCRATCH, 1);
        if (!scratch) return TSH_ERR_MEMORY;
    }
    status = read_runs(file, entry, &r, scratch, out);
    tshi_free(&file->allocator, scratch);
    return status;
}

tsh_status tshi_safetensors_write_box(int fd, const char *path, const tshi_safetensors_entry *entry, const tsh_box *box,
                                      const void *in) {
    tshi_runs r;
    tsh_status status = runs_in_file(entry, box, path, &r);
    if (status != TSH_OK) return status;
    size_t bytes = (size_t)r.count[0] * tsh_dtype_size(entry->dtype);
    for (int64_t i = 0, count = runs_count(&r); status == TSH_OK && i < count; i++) {
        status = tshi_file_write(fd, path, (const char *)in + (size_t)i * bytes, bytes, run_place(entry, &r, i));
    }
    return status;
}
