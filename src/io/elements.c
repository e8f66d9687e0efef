/* Boxes of arrays in files: their runs, and which of these are read together. */
#include "io/elements.h"

#include "io/file.h"
#include "tensor/runs.h"

#include <string.h>

/* Runs are read together across gaps of at most so many bytes: copying more takes longer than a system call. Gaps are
 * at most as long as the runs, so that a read takes at most twice the box's bytes. */
#define MAX_GAP 512
/* Memory for runs that are read together. */
#define SCRATCH ((size_t)256 << 10)

static int64_t runs_count(const tshi_runs *r) {
    return r->numel ? r->numel / r->count[0] : 0;
}

/* The offset of run i in the file; in the box's memory the runs are contiguous. */
static uint64_t run_place(const tshi_elements *e, const tshi_runs *r, int64_t i) {
    int64_t from, to;
    tshi_runs_at(r, 1, i, &from, &to);
    return e->offset + (uint64_t)from * e->size;
}

/* How many runs of `bytes` from run i on are read together; *span is the number of bytes from the first to the end of
 * the last. */
static int64_t contiguous_runs(const tshi_elements *e, const tshi_runs *r, size_t bytes, int64_t i, size_t *span) {
    uint64_t begin = run_place(e, r, i), end = begin + bytes;
    size_t most = bytes < MAX_GAP ? bytes : MAX_GAP;
    int64_t n = 1;
    for (int64_t count = runs_count(r); i + n < count; n++) {
        uint64_t next = run_place(e, r, i + n);
        if (next - end > most || next + bytes - begin > SCRATCH) break;
        end = next + bytes;
    }
    *span = (size_t)(end - begin);
    return n;
}

static tsh_status read_runs(const tshi_elements *e, const tshi_runs *r, char *scratch, char *out,
                            uint64_t *bytes_read) {
    size_t bytes = (size_t)r->count[0] * e->size;
    for (int64_t i = 0, n, count = runs_count(r); i < count; i += n) {
        size_t span;
        n = contiguous_runs(e, r, bytes, i, &span);
        uint64_t begin = run_place(e, r, i);
        tsh_status status = tshi_file_read(e->fd, e->path, n == 1 ? out : scratch, span, begin);
        if (status != TSH_OK) return status;
        *bytes_read += span;
        for (int64_t k = 0; n > 1 && k < n; k++) {
            memcpy(out + (size_t)k * bytes, scratch + (run_place(e, r, i + k) - begin), bytes);
        }
        out += (size_t)n * bytes;
    }
    return TSH_OK;
}

static tshi_runs runs_in_file(const tshi_elements *e, const tsh_box *box) {
    tsh_box whole = {0};
    for (int d = 0; d < e->ndim; d++) whole.length[d] = e->shape[d];
    return tshi_runs_of(e->ndim, box, &whole, box);
}

tsh_status tshi_elements_read(const tshi_elements *e, const tsh_allocator *allocator, const tsh_box *box, void *out,
                              uint64_t *bytes_read) {
    tshi_runs r = runs_in_file(e, box);
    char *scratch = NULL;
    if (runs_count(&r) > 1) {
        scratch = tshi_calloc(allocator, SCRATCH, 1);
        if (!scratch) return TSH_ERR_MEMORY;
    }
    tsh_status status = read_runs(e, &r, scratch, out, bytes_read);
    tshi_free(allocator, scratch);
    return status;
}

tsh_status tshi_elements_write(const tshi_elements *e, const tsh_box *box, const void *in) {
    tshi_runs r = runs_in_file(e, box);
    size_t bytes = (size_t)r.count[0] * e->size;
    tsh_status status = TSH_OK;
    for (int64_t i = 0, count = runs_count(&r); status == TSH_OK && i < count; i++) {
        status = tshi_file_write(e->fd, e->path, (const char *)in + (size_t)i * bytes, bytes, run_place(e, &r, i));
    }
    return status;
}
