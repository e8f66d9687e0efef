/* Parses the header of a GGUF file. */
#include "io/gguf/gguf.h"

#include <stdlib.h>
#include <string.h>

enum { VERSION = 3, MAX_KEYS = 4096, MAX_TENSORS = 1 << 20, MAX_DIMS = 4 };

/* The bytes of the header that have been read but not yet parsed. */
typedef struct cursor {
    const tshi_gguf *file;
    const unsigned char *at;
    uint64_t left;
    uint64_t unread; /* bytes of the file behind them */
    bool ended;      /* more was wanted than is left */
    bool past_end;   /* more than the file has */
} cursor;

static const unsigned char *next_bytes(cursor *c, uint64_t bytes) {
    const unsigned char *at = c->at;
    c->past_end = c->past_end || (!c->ended && bytes > c->left && bytes - c->left > c->unread);
    c->ended = c->ended || bytes > c->left;
    if (c->ended) return NULL;
    c->at += bytes;
    c->left -= bytes;
    return at;
}

static uint32_t next_u32(cursor *c) {
    return (uint32_t)tshi_gguf_load_le(next_bytes(c, 4), 4);
}

static uint64_t next_u64(cursor *c) {
    return tshi_gguf_load_le(next_bytes(c, 8), 8);
}

/* --- values ------------------------------------------------------------------------------------------------------- */

static tsh_status refuse(const tshi_gguf *file, const char *what) {
    return tshi_fail(TSH_ERR_IO, "%.220s: is not a GGUF file of version 3: %s", file->path, what);
}

/* Skips `count` texts. */
static void skip_texts(cursor *c, uint64_t count) {
    for (uint64_t i = 0; i < count && !c->ended; i++) next_bytes(c, next_u64(c));
}

static tsh_status parse_value(cursor *c, tshi_gguf_value *out) {
    size_t bytes;
    *out = (tshi_gguf_value){.count = 1};
    out->key_length = next_u64(c);
    out->key = next_bytes(c, out->key_length);
    out->type = next_u32(c);
    out->array = !c->ended && out->type == TSHI_GGUF_ARRAY;
    if (out->array) {
        out->type = next_u32(c);
        out->count = next_u64(c);
    }
    if (c->ended) return TSH_OK;
    if (out->type >= TSHI_GGUF_TYPES || out->type == TSHI_GGUF_ARRAY)
        return tshi_fail(TSH_ERR_IO, "%.220s: the key '%.*s' has a value of the type %u%s", c->file->path,
                         (int)(out->key_length < 60 ? out->key_length : 60), (const char *)out->key, out->type,
                         out->array ? " in an array" : "");
    out->at = c->at;
    if (out->type == TSHI_GGUF_TEXT)
        skip_texts(c, out->count);
    else if (tshi_size_mul((size_t)out->count, tshi_gguf_type_bytes[out->type], &bytes) == TSH_OK)
        next_bytes(c, bytes);
    else
        return refuse(c->file, "an array has more bytes than a file can hold");
    out->length = (uint64_t)(c->at - out->at);
    return TSH_OK;
}

static tsh_status parse_values(cursor *c, tshi_gguf *file, uint64_t count) {
    if (count > MAX_KEYS) return refuse(file, "it would have more than 4096 keys");
    for (uint64_t i = 0; i < count && !c->ended; i++) {
        tsh_status status = tshi_grow(&file->allocator, (void **)&file->values, &file->values_capacity,
                                      file->values_count + 1, sizeof *file->values);
        tshi_gguf_value v;
        if (status == TSH_OK) status = parse_value(c, &v);
        if (status != TSH_OK || c->ended) return status;
        for (int k = 0; k < file->values_count; k++) {
            const tshi_gguf_value *other = &file->values[k];
            if (other->key_length == v.key_length && memcmp(other->key, v.key, (size_t)v.key_length) == 0)
                return refuse(file, "a key occurs twice");
        }
        file->values[file->values_count++] = v;
    }
    return TSH_OK;
}

/* --- tensors ------------------------------------------------------------------------------------------------------ */

/* ggml's types of tensors. */
static const struct {
    uint32_t number;
    const char *name;
    tsh_dtype dtype;
    int quant; /* -1: elements of the dtype */
} types[] = {
    {0, "F32", TSH_FLOAT32, -1},          {1, "F16", TSH_FLOAT16, -1},          {2, "Q4_0", TSH_FLOAT32, TSHI_Q4_0},
    {8, "Q8_0", TSH_FLOAT32, TSHI_Q8_0},  {12, "Q4_K", TSH_FLOAT32, TSHI_Q4_K}, {13, "Q5_K", TSH_FLOAT32, TSHI_Q5_K},
    {14, "Q6_K", TSH_FLOAT32, TSHI_Q6_K}, {26, "I32", TSH_INT32, -1},           {27, "I64", TSH_INT64, -1},
    {28, "F64", TSH_FLOAT64, -1},         {30, "BF16", TSH_BFLOAT16, -1},
};
enum { TYPES = sizeof types / sizeof types[0] };

static tsh_status set_type(const tshi_gguf *file, uint32_t number, tshi_gguf_tensor *t) {
    for (int i = 0; i < TYPES; i++) {
        if (types[i].number != number) continue;
        t->entry.type = types[i].name;
        t->entry.dtype = types[i].dtype;
        t->format = types[i].quant >= 0 ? tshi_quant_format_of((tshi_quant)types[i].quant) : NULL;
        return TSH_OK;
    }
    return tshi_fail(TSH_ERR_UNSUPPORTED,
                     "%.220s: tensor '%.100s' has the type %u; F64, F32, F16, BF16, I64, I32, Q8_0, Q4_0, Q4_K, Q5_K "
                     "and Q6_K are read",
                     file->path, t->name, number);
}

static tsh_status refuse_tensor(const tshi_gguf *file, const tshi_gguf_tensor *t, const char *why) {
    return tshi_fail(TSH_ERR_IO, "%.220s: tensor '%.100s' %s", file->path, t->name, why);
}

static tsh_status set_bytes(const tshi_gguf *file, tshi_gguf_tensor *t) {
    tshi_safetensors_entry *e = &t->entry;
    int64_t numel, last = e->ndim ? e->shape[e->ndim - 1] : 1, weights = t->format ? t->format->weights : 1;
    size_t size = t->format ? t->format->bytes : tsh_dtype_size(e->dtype), bytes;
    if (last % weights != 0)
        return tshi_fail(TSH_ERR_IO,
                         "%.220s: tensor '%.100s' has rows of %lld weights, which are not whole groups of %lld (%s)",
                         file->path, t->name, (long long)last, (long long)weights, e->type);
    if (tshi_dims_product(e->ndim, e->shape, &numel) != TSH_OK ||
        tshi_size_mul((size_t)(numel / weights), size, &bytes) != TSH_OK)
        return refuse_tensor(file, t, "has more elements than a file can hold");
    e->bytes = bytes;
    return TSH_OK;
}

/* The file has the dims of a row-major array in reverse order, the last one first. */
static tsh_status parse_tensor(cursor *c, tshi_gguf *file, tshi_gguf_tensor *t) {
    uint64_t length = next_u64(c);
    const unsigned char *name = next_bytes(c, length);
    uint32_t ndim = next_u32(c), type;
    if (c->ended) return TSH_OK;
    if (length >= TSHI_GGUF_NAME || memchr(name, 0, (size_t)length))
        return refuse(file, "the name of a tensor has a zero or more than 191 bytes");
    t->name = tshi_calloc(&file->allocator, TSHI_GGUF_NAME, 1);
    if (!t->name) return TSH_ERR_MEMORY;
    memcpy(t->name, name, (size_t)length);
    if (ndim > MAX_DIMS) return refuse_tensor(file, t, "has more than 4 dims");
    t->entry = (tshi_safetensors_entry){.name = t->name, .ndim = (int)ndim};
    for (uint32_t d = 0; d < ndim; d++) {
        uint64_t size = next_u64(c);
        if (size > INT64_MAX) return refuse_tensor(file, t, "has a dim of more than 2^63");
        t->entry.shape[ndim - 1 - d] = (int64_t)size;
    }
    type = next_u32(c);
    t->entry.offset = next_u64(c);
    if (c->ended) return TSH_OK;
    tsh_status status = set_type(file, type, t);
    return status == TSH_OK ? set_bytes(file, t) : status;
}

static tsh_status parse_tensors(cursor *c, tshi_gguf *file, uint64_t count) {
    if (count > MAX_TENSORS) return refuse(file, "it would have more than a million tensors");
    for (uint64_t i = 0; i < count && !c->ended; i++) {
        tsh_status status = tshi_grow(&file->allocator, (void **)&file->tensors, &file->capacity, file->count + 1,
                                      sizeof *file->tensors);
        if (status != TSH_OK) return status;
        tshi_gguf_tensor *t = &file->tensors[file->count++];
        *t = (tshi_gguf_tensor){.name = NULL};
        status = parse_tensor(c, file, t);
        if (status != TSH_OK) return status;
    }
    return TSH_OK;
}

static int by_offset(const void *left, const void *right) {
    const tshi_gguf_tensor *a = left, *b = right;
    if (a->entry.offset != b->entry.offset) return a->entry.offset < b->entry.offset ? -1 : 1;
    return a->entry.bytes < b->entry.bytes ? -1 : a->entry.bytes > b->entry.bytes;
}

static int by_name(const void *left, const void *right) {
    const tshi_gguf_tensor *a = left, *b = right;
    return strcmp(a->name, b->name);
}

/* Turns offsets into the data into offsets into the file. Each tensor must be aligned, and begin where the one before
 * it ends. */
static tsh_status place_tensors(tshi_gguf *file) {
    int64_t alignment = 32;
    tshi_gguf_integer_of(file, "general.alignment", &alignment);
    if (alignment < 1 || alignment > 1 << 20 || (alignment & (alignment - 1)) != 0)
        return refuse(file, "general.alignment is not a power of two up to 1048576");
    uint64_t mask = (uint64_t)alignment - 1, data = (file->header_bytes + mask) & ~mask, at = 0;
    if (file->count) qsort(file->tensors, (size_t)file->count, sizeof *file->tensors, by_offset);
    for (int i = 0; i < file->count; i++) {
        const tshi_gguf_tensor *t = &file->tensors[i];
        tshi_safetensors_entry *e = &file->tensors[i].entry;
        if (e->offset & mask) return refuse_tensor(file, t, "is not aligned");
        if (e->offset < at) return refuse_tensor(file, t, "overlaps another tensor");
        if (data > file->file_bytes || e->offset > file->file_bytes - data ||
            e->bytes > file->file_bytes - data - e->offset)
            return tshi_fail(TSH_ERR_IO, "%.220s: is truncated: tensor '%.100s' ends past its %llu bytes", file->path,
                             t->name, (unsigned long long)file->file_bytes);
        at = e->offset + e->bytes;
        e->offset += data;
    }
    return TSH_OK;
}

/* Names may have changed. */
static tsh_status sort_tensors(tshi_gguf *file) {
    if (file->count) qsort(file->tensors, (size_t)file->count, sizeof *file->tensors, by_name);
    for (int i = 1; i < file->count; i++) {
        if (strcmp(file->tensors[i - 1].name, file->tensors[i].name) == 0)
            return refuse_tensor(file, &file->tensors[i], "occurs twice");
    }
    return TSH_OK;
}

const tshi_gguf_tensor *tshi_gguf_tensor_of(const tshi_gguf *file, const char *name) {
    const tshi_gguf_tensor key = {.name = (char *)name};
    if (file->count == 0) return NULL;
    return bsearch(&key, file->tensors, (size_t)file->count, sizeof *file->tensors, by_name);
}

/* --- the header --------------------------------------------------------------------------------------------------- */

void tshi_gguf_drop(tshi_gguf *file) {
    for (int i = 0; i < file->count; i++) tshi_free(&file->allocator, file->tensors[i].name);
    tshi_free(&file->allocator, file->tensors);
    tshi_free(&file->allocator, file->values);
    file->tensors = NULL;
    file->values = NULL;
    file->count = file->capacity = file->values_count = file->values_capacity = 0;
}

static tsh_status parse_start(cursor *c, const tshi_gguf *file, uint64_t *tensors, uint64_t *values) {
    const unsigned char *magic = next_bytes(c, 4);
    uint32_t version = next_u32(c);
    *tensors = next_u64(c);
    *values = next_u64(c);
    if (magic && memcmp(magic, "GGUF", 4) != 0) return refuse(file, "it does not begin with 'GGUF'");
    if (c->ended || version == VERSION) return TSH_OK;
    return tshi_fail(TSH_ERR_UNSUPPORTED,
                     "%.220s: is a GGUF file of version %u; only version 3, little-endian, is supported", file->path,
                     version);
}

tsh_status tshi_gguf_parse(tshi_gguf *file, const unsigned char *bytes, uint64_t length, bool *more) {
    cursor c = {.file = file, .at = bytes, .left = length, .unread = file->file_bytes - length};
    uint64_t tensors, values;
    tsh_status status = parse_start(&c, file, &tensors, &values);
    if (status == TSH_OK) status = parse_values(&c, file, values);
    if (status == TSH_OK) status = parse_tensors(&c, file, tensors);
    *more = status == TSH_OK && c.ended && !c.past_end;
    if (status != TSH_OK || *more) return status;
    if (c.ended) return tshi_fail(TSH_ERR_IO, "%.220s: is truncated: it ends within its header", file->path);
    file->header_bytes = length - c.left;
    file->fingerprint = tshi_safetensors_fingerprint((const char *)bytes, (size_t)file->header_bytes);
    status = place_tensors(file);
    if (status == TSH_OK) status = tshi_gguf_rename(file);
    return status == TSH_OK ? sort_tensors(file) : status;
}
