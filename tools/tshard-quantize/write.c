/* Tensors of a folder, quantized, into a GGUF file. */
#include "tool.h"

#include "device/cpu/isa/elements.h"
#include "io/file.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ALIGNMENT = 32, ROWS_AT_ONCE_BYTES = 4 << 20 };

/* What is written, with memory for rows as they are read, as float32, and as they are written. */
typedef struct job {
    tsh_allocator allocator;
    model m;
    header keys;
    tshi_weights *weights;
    tensor *tensors;
    int count;
    int fd;
    const char *path;
    char *raw, *made;
    float *rows;
} job;

/* --- what is written ---------------------------------------------------------------------------------------------- */

static bool ends_with(const char *text, const char *end) {
    size_t length = strlen(text), more = strlen(end);
    return length >= more && strcmp(text + length - more, end) == 0;
}

/* What follows from the configuration. */
static bool is_left_out(const job *j, const char *name) {
    return ends_with(name, ".rotary_emb.inv_freq") || (j->m.tied && strcmp(name, "lm_head.weight") == 0);
}

static void choose_type(const job *j, tshi_quant quant, tensor *t, int *quantized, int *plain) {
    const char *output = j->m.tied ? "token_embd.weight" : "output.weight";
    if (t->weight->entry->ndim != 2) return;
    if (strcmp(t->name, output) == 0) quant = TSHI_Q8_0;
    const tshi_quant_format *format = tshi_quant_format_of(quant);
    t->half = t->cols % format->weights != 0;
    t->format = t->half ? NULL : format;
    *quantized += !t->half;
    *plain += t->half;
}

static size_t row_bytes(const tensor *t) {
    if (t->format) return (size_t)(t->cols / t->format->weights) * t->format->bytes;
    return (size_t)t->cols * (t->half ? 2 : 4);
}

static tsh_status add_tensor(job *j, const tshi_weight *w, tshi_quant quant, int *quantized, int *plain) {
    const tshi_safetensors_entry *e = w->entry;
    tensor *t = &j->tensors[j->count];
    const char *heads;
    if (is_left_out(j, e->name)) return TSH_OK;
    if (!tshi_gguf_name_of(j->m.architecture, e->name, t->name, &heads) || e->ndim < 1 || e->ndim > 2)
        return tshi_fail(TSH_ERR_UNSUPPORTED, "'%.100s' is no tensor of a %s model in a GGUF file", e->name,
                         j->m.architecture);
    t->weight = w;
    t->rows = e->ndim == 2 ? e->shape[0] : 1;
    t->cols = e->shape[e->ndim - 1];
    if (heads) {
        int64_t count = strstr(heads, "kv") ? j->m.kv_heads : j->m.heads, rows = e->shape[0];
        if (count < 1 || rows % count != 0 || rows / count % 2 != 0)
            return tshi_fail(TSH_ERR_IO, "'%.100s' has %lld rows for %lld heads", e->name, (long long)rows,
                             (long long)count);
        t->head = rows / count;
        if (e->ndim == 1) { /* a bias, whose elements are in the order of the matrix' rows */
            t->rows = t->cols;
            t->cols = 1;
        }
    }
    choose_type(j, quant, t, quantized, plain);
    j->count++;
    return TSH_OK;
}

static tsh_status list_tensors(job *j, tshi_quant quant, int *quantized, int *plain) {
    tsh_status status = TSH_OK;
    j->tensors = calloc((size_t)j->weights->count + 1, sizeof *j->tensors);
    if (!j->tensors) return tshi_fail(TSH_ERR_MEMORY, "no memory for a list of tensors");
    if (j->m.pairs) {
        tensor *t = &j->tensors[j->count++];
        *t = (tensor){.rows = 1, .cols = j->m.pairs};
        snprintf(t->name, sizeof t->name, TSHI_GGUF_ROPE);
    }
    for (int i = 0; status == TSH_OK && i < j->weights->count; i++)
        status = add_tensor(j, &j->weights->items[i], quant, quantized, plain);
    uint64_t at = 0;
    for (int i = 0; i < j->count; i++) {
        tensor *t = &j->tensors[i];
        t->offset = at;
        t->bytes = (uint64_t)t->rows * row_bytes(t);
        at += (t->bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    }
    return status;
}

/* --- the header --------------------------------------------------------------------------------------------------- */

static uint32_t type_number(const tensor *t) {
    if (!t->format) return t->half ? 1 : 0;
    return t->format == tshi_quant_format_of(TSHI_Q8_0) ? 8 : 2;
}

static void describe(header *h, const tensor *t) {
    int ndim = t->weight ? t->weight->entry->ndim : 1;
    header_string(h, t->name, strlen(t->name));
    header_number(h, (uint64_t)ndim, 4);
    header_number(h, (uint64_t)(ndim == 2 ? t->cols : t->rows * t->cols), 8);
    if (ndim == 2) header_number(h, (uint64_t)t->rows, 8);
    header_number(h, type_number(t), 4);
    header_number(h, t->offset, 8);
}

/* The whole header, up to the data. */
static void make_header(const job *j, header *out) {
    header_add(out, "GGUF", 4);
    header_number(out, 3, 4);
    header_number(out, (uint64_t)j->count, 8);
    header_number(out, j->keys.keys, 8);
    header_add(out, j->keys.bytes, j->keys.count);
    for (int i = 0; i < j->count; i++) describe(out, &j->tensors[i]);
    while (out->count % ALIGNMENT && !out->failed) header_number(out, 0, 1);
}

/* --- the data ----------------------------------------------------------------------------------------------------- */

static tsh_status widen(const tshi_safetensors_entry *e, int64_t n, const char *raw, float *to) {
    for (int64_t i = 0; i < n; i++) {
        const char *at = raw + (size_t)i * tsh_dtype_size(e->dtype);
        uint16_t half;
        double wide;
        memcpy(&half, at, sizeof half);
        switch (e->dtype) {
        case TSH_FLOAT32: memcpy(&to[i], at, sizeof *to); break;
        case TSH_BFLOAT16: to[i] = tshi_widen_bf16((tshi_bfloat16){half}); break;
        case TSH_FLOAT16: to[i] = tshi_widen_f16((tshi_float16){half}); break;
        case TSH_FLOAT64:
            memcpy(&wide, at, sizeof wide);
            to[i] = (float)wide;
            break;
        default: return tshi_fail(TSH_ERR_DTYPE, "'%.100s' is %s, not of a float type", e->name, e->type);
        }
        if (!(to[i] - to[i] == 0)) return tshi_fail(TSH_ERR_IO, "'%.100s' has a weight that is not finite", e->name);
    }
    return TSH_OK;
}

/* Rows of the file from rows of the folder: row i of a head's first half becomes row 2i, and row i of its second half
 * row 2i + 1. */
static void make_rows(const tensor *t, int64_t first, int64_t count, const float *rows, char *to) {
    for (int64_t r = first; r < first + count; r++) {
        int64_t begin = t->head ? r / t->head * t->head : r, i = r - begin;
        int64_t from = begin + (i % 2) * (t->head / 2) + i / 2 - first;
        const float *row = rows + from * t->cols;
        if (t->format)
            t->format->quantize(t->cols / t->format->weights, row, to);
        else if (!t->half)
            memcpy(to, row, (size_t)t->cols * sizeof *row);
        for (int64_t c = 0; t->half && c < t->cols; c++)
            memcpy(to + 2 * c, &(uint16_t){tshi_narrow_f16(row[c]).bits}, 2);
        to += row_bytes(t);
    }
}

/* Reads rows of whole heads at a time. */
static tsh_status write_tensor(job *j, const tensor *t, uint64_t data) {
    const tshi_safetensors_entry *e = t->weight->entry;
    int64_t unit = t->head ? t->head : 1, step = ROWS_AT_ONCE_BYTES / 8 / (t->cols + 1) / unit * unit;
    if (step < unit) step = unit;
    size_t most = (size_t)(step < t->rows ? step : t->rows) * (size_t)t->cols;
    j->raw = malloc(most * 8 + 1);
    j->rows = malloc(most * sizeof *j->rows + 1);
    j->made = malloc(most * 4 + 64);
    tsh_status status = j->raw && j->rows && j->made ? TSH_OK : tshi_fail(TSH_ERR_MEMORY, "no memory for rows");
    for (int64_t r = 0; status == TSH_OK && r < t->rows; r += step) {
        int64_t count = r + step < t->rows ? step : t->rows - r;
        tsh_box box = e->ndim == 2 ? (tsh_box){{r, 0}, {count, t->cols}} : (tsh_box){{r * t->cols}, {count * t->cols}};
        status = tshi_weights_read_box(j->weights, t->weight, &box, j->raw);
        if (status == TSH_OK) status = widen(e, count * t->cols, j->raw, j->rows);
        if (status != TSH_OK) break;
        make_rows(t, r, count, j->rows, j->made);
        status = tshi_file_write(j->fd, j->path, j->made, (size_t)count * row_bytes(t),
                                 data + t->offset + (uint64_t)r * row_bytes(t));
    }
    free(j->raw);
    free(j->rows);
    free(j->made);
    return status;
}

static tsh_status write_file(job *j, const char *partial) {
    header h = {0};
    make_header(j, &h);
    const tensor *last = &j->tensors[j->count - 1];
    uint64_t data = h.count, bytes = data + (last->offset + last->bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    tsh_status status = h.failed || j->keys.failed ? tshi_fail(TSH_ERR_MEMORY, "no memory for a header") : TSH_OK;
    if (status == TSH_OK) status = tshi_file_create(partial, bytes, &j->fd);
    if (status == TSH_OK) status = tshi_file_write(j->fd, partial, h.bytes, h.count, 0);
    for (int i = 0; status == TSH_OK && i < j->count; i++) {
        const tensor *t = &j->tensors[i];
        status = t->weight ? write_tensor(j, t, data)
                           : tshi_file_write(j->fd, partial, j->m.divisors, (size_t)t->bytes, data + t->offset);
    }
    if (status == TSH_OK) status = tshi_file_sync(j->fd, partial);
    tshi_file_close(&j->fd);
    free(h.bytes);
    return status;
}

tsh_status write_model(const char *folder, const char *path, tshi_quant quant, int *quantized, int *plain) {
    static job j;
    char partial[4096];
    int length = snprintf(partial, sizeof partial, "%s.partial", path);
    if (length >= (int)sizeof partial) return tshi_fail(TSH_ERR_ARGUMENT, "the path '%.200s' is too long", path);
    j = (job){.allocator = tshi_allocator_resolve(NULL), .fd = -1, .path = partial};
    header_u32(&j.keys, "general.file_type", quant == TSHI_Q8_0 ? 7 : 2);
    tsh_status status = model_read(folder, &j.m, &j.keys);
    if (status == TSH_OK) status = tshi_weights_open(&j.allocator, folder, &j.weights);
    if (status == TSH_OK) status = list_tensors(&j, quant, quantized, plain);
    if (status == TSH_OK && j.count == 0) status = tshi_fail(TSH_ERR_IO, "%.200s: has no tensors", folder);
    if (status == TSH_OK) {
        status = write_file(&j, partial);
        if (status == TSH_OK) status = tshi_file_rename(partial, path);
        if (status != TSH_OK) remove(partial);
    }
    tshi_weights_close(j.weights);
    free(j.tensors);
    free(j.keys.bytes);
    return status;
}
