/* GGUF files: opening one, and reading boxes of its tensors. */
#include "io/file.h"
#include "io/elements.h"
#include "io/gguf/gguf.h"

#include <string.h>

/* Memory for groups that are dequantized together, and for rows of which others are made. */
#define SCRATCH ((size_t)256 << 10)
/* How many bytes are read for a header at first; a longer header is read again, with twice as many bytes each time. */
#define FIRST_BYTES ((uint64_t)1 << 20)

/* --- files -------------------------------------------------------------------------------------------------------- */

bool tshi_gguf_is(const char *path) {
    char magic[4];
    uint64_t bytes;
    int fd;
    if (tshi_file_open(path, &fd, &bytes) != TSH_OK) return false;
    bool is = bytes >= sizeof magic && tshi_file_read(fd, path, magic, sizeof magic, 0) == TSH_OK &&
              memcmp(magic, "GGUF", sizeof magic) == 0;
    tshi_file_close(&fd);
    return is;
}

static tsh_status read_header(tshi_gguf *file) {
    tsh_status status = tshi_file_open(file->path, &file->fd, &file->file_bytes);
    bool more = true;
    for (uint64_t bytes = FIRST_BYTES; status == TSH_OK && more; bytes *= 2) {
        if (bytes > file->file_bytes) bytes = file->file_bytes;
        tshi_gguf_drop(file);
        tshi_free(&file->allocator, file->header);
        file->header = tshi_calloc(&file->allocator, (size_t)bytes, 1);
        status = file->header ? tshi_file_read(file->fd, file->path, file->header, (size_t)bytes, 0) : TSH_ERR_MEMORY;
        if (status == TSH_OK) file->bytes_read += bytes;
        if (status == TSH_OK) status = tshi_gguf_parse(file, file->header, bytes, &more);
    }
    return status;
}

tsh_status tshi_gguf_open(const tsh_allocator *allocator, const char *path, tshi_gguf **out) {
    *out = NULL;
    tshi_gguf *file = tshi_calloc(allocator, 1, sizeof *file);
    if (!file) return TSH_ERR_MEMORY;
    file->allocator = *allocator;
    file->fd = -1;
    file->path = tshi_copy_text(allocator, path);
    tsh_status status = file->path ? read_header(file) : TSH_ERR_MEMORY;
    if (status == TSH_OK)
        *out = file;
    else
        tshi_gguf_close(file);
    return status;
}

void tshi_gguf_close(tshi_gguf *file) {
    if (!file) return;
    tsh_allocator allocator = file->allocator;
    tshi_file_close(&file->fd);
    tshi_gguf_drop(file);
    tshi_free(&allocator, file->header);
    tshi_free(&allocator, file->path);
    tshi_free(&allocator, file);
}

/* --- boxes of groups ---------------------------------------------------------------------------------------------- */

/* The array in the file: of elements, or of groups as its elements. */
static tshi_elements elements_of(const tshi_gguf *file, const tshi_gguf_tensor *t, int64_t shape[TSH_MAX_DIMS]) {
    const tshi_safetensors_entry *e = &t->entry;
    memcpy(shape, e->shape, sizeof e->shape);
    if (t->format && e->ndim) shape[e->ndim - 1] /= t->format->weights;
    return (tshi_elements){.fd = file->fd,
                           .path = file->path,
                           .offset = e->offset,
                           .size = t->format ? t->format->bytes : tsh_dtype_size(e->dtype),
                           .ndim = e->ndim,
                           .shape = shape};
}

/* Reads the groups that the box touches, and dequantizes the box's part of them. They fit into `raw` and `weights`. */
static tsh_status read_groups(tshi_gguf *file, const tshi_gguf_tensor *t, const tsh_box *box, char *raw, float *weights,
                              float *out) {
    int64_t shape[TSH_MAX_DIMS], n = t->format->weights, last = t->entry.ndim - 1;
    const tshi_elements groups = elements_of(file, t, shape);
    int64_t first = box->start[last] / n, end = (box->start[last] + box->length[last] + n - 1) / n;
    tsh_box cut = *box;
    cut.start[last] = first;
    cut.length[last] = end - first;
    tsh_status status = tshi_elements_read(&groups, &file->allocator, &cut, raw, &file->bytes_read);
    if (status != TSH_OK) return status;
    int64_t count = tshi_box_numel(t->entry.ndim, &cut), rows = count / (end - first), cols = (end - first) * n;
    t->format->dequantize(count, raw, weights);
    for (int64_t r = 0; r < rows; r++) {
        memcpy(out + r * box->length[last], weights + r * cols + (box->start[last] - first * n),
               (size_t)box->length[last] * sizeof *out);
    }
    return TSH_OK;
}

/* Reads the box in parts that fit into the memory: whole rows, or pieces of a row. */
static tsh_status read_quantized(tshi_gguf *file, const tshi_gguf_tensor *t, const tsh_box *box, float *out) {
    const int64_t most = (int64_t)(SCRATCH / sizeof(float)), numel = tshi_box_numel(t->entry.ndim, box);
    const int64_t margin = 2 * TSHI_QUANT_MAX_WEIGHTS, cols = t->entry.ndim ? box->length[t->entry.ndim - 1] : 1;
    /* A row of a part may have up to `margin` weights more than its box. */
    int64_t rows = most / (cols + margin), step = rows > 0 ? rows * cols : most - margin;
    char *raw = tshi_calloc(&file->allocator, SCRATCH, 1);
    float *weights = tshi_calloc(&file->allocator, (size_t)most, sizeof *weights);
    tsh_status status = raw && weights ? TSH_OK : TSH_ERR_MEMORY;
    for (int64_t at = 0, n; status == TSH_OK && at < numel; at += n) {
        tsh_box part = tshi_box_cut(t->entry.ndim, box, at, step);
        n = tshi_box_numel(t->entry.ndim, &part);
        status = read_groups(file, t, &part, raw, weights, out + at);
    }
    tshi_free(&file->allocator, weights);
    tshi_free(&file->allocator, raw);
    return status;
}

static tsh_status read_in_order(tshi_gguf *file, const tshi_gguf_tensor *t, const tsh_box *box, void *out) {
    int64_t shape[TSH_MAX_DIMS];
    if (t->format && t->entry.ndim) return read_quantized(file, t, box, out);
    const tshi_elements elements = elements_of(file, t, shape);
    return tshi_elements_read(&elements, &file->allocator, box, out, &file->bytes_read);
}

/* --- rotary pairs ------------------------------------------------------------------------------------------------- */

/* The row in the file of row `row` in the folder: of a head's rows, row i of the first half is row 2i in the file, and
 * row i of the second half is row 2i + 1. */
static int64_t row_in_file(int64_t head, int64_t row) {
    int64_t begin = row / head * head, i = row - begin, half = head / 2;
    return begin + (i < half ? 2 * i : 2 * (i - half) + 1);
}

/* Reads one head at a time, whole even if the box has only a part of it. */
static tsh_status read_heads(tshi_gguf *file, const tshi_gguf_tensor *t, const tsh_box *box, char *out) {
    size_t size = tsh_dtype_size(t->entry.dtype);
    tsh_box inner = *box, head;
    inner.start[0] = 0;
    inner.length[0] = 1;
    size_t row_bytes = (size_t)tshi_box_numel(t->entry.ndim, &inner) * size;
    char *rows = tshi_calloc(&file->allocator, (size_t)t->head, row_bytes);
    tsh_status status = rows ? TSH_OK : TSH_ERR_MEMORY;
    int64_t end = box->start[0] + box->length[0];
    for (int64_t row = box->start[0]; status == TSH_OK && row < end;) {
        int64_t begin = row / t->head * t->head;
        head = inner;
        head.start[0] = begin;
        head.length[0] = t->head;
        status = read_in_order(file, t, &head, rows);
        for (; status == TSH_OK && row < end && row < begin + t->head; row++, out += row_bytes)
            memcpy(out, rows + (size_t)(row_in_file(t->head, row) - begin) * row_bytes, row_bytes);
    }
    tshi_free(&file->allocator, rows);
    return status;
}

tsh_status tshi_gguf_read_box(tshi_gguf *file, const tshi_gguf_tensor *tensor, const tsh_box *box, void *out) {
    tsh_status status = tshi_safetensors_check_box(file->path, &tensor->entry, box);
    if (status != TSH_OK || tshi_box_numel(tensor->entry.ndim, box) == 0) return status;
    return tensor->head ? read_heads(file, tensor, box, out) : read_in_order(file, tensor, box, out);
}
