/* Parses, checks and writes the header of a safetensors file. */
#include "io/safetensors.h"

#include "base/hash.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

/* --- element types ------------------------------------------------------------------------------------------------ */

typedef struct element_type {
    const char *name;
    unsigned bits;
    tsh_dtype dtype;
} element_type;

/* The format's types; a dtype is written as the first type that has it. */
static const element_type types[] = {
    {"F32", 32, TSH_FLOAT32},
    {"F64", 64, TSH_FLOAT64},
    {"BF16", 16, TSH_BFLOAT16},
    {"F16", 16, TSH_FLOAT16},
    {"I32", 32, TSH_INT32},
    {"I64", 64, TSH_INT64},
    {"U8", 8, TSH_UINT8},
    {"C64", 64, TSH_COMPLEX64},
    {"BOOL", 8, TSH_UINT8},
    {"I8", 8, TSH_DTYPE_COUNT},
    {"I16", 16, TSH_DTYPE_COUNT},
    {"U16", 16, TSH_DTYPE_COUNT},
    {"U32", 32, TSH_DTYPE_COUNT},
    {"U64", 64, TSH_DTYPE_COUNT},
    {"F8_E5M2", 8, TSH_DTYPE_COUNT},
    {"F8_E4M3", 8, TSH_DTYPE_COUNT},
    {"F8_E8M0", 8, TSH_DTYPE_COUNT},
    {"F8_E4M3FNUZ", 8, TSH_DTYPE_COUNT},
    {"F8_E5M2FNUZ", 8, TSH_DTYPE_COUNT},
    {"F6_E2M3", 6, TSH_DTYPE_COUNT},
    {"F6_E3M2", 6, TSH_DTYPE_COUNT},
    {"F4", 4, TSH_DTYPE_COUNT},
};
enum { TYPES = sizeof types / sizeof types[0] };

static const element_type *type_of_word(const char *word) {
    for (int i = 0; word && i < TYPES; i++) {
        if (strcmp(types[i].name, word) == 0) return &types[i];
    }
    return NULL;
}

const char *tshi_safetensors_type_name(tsh_dtype dtype) {
    for (int i = 0; (unsigned)dtype < TSH_DTYPE_COUNT && i < TYPES; i++) {
        if (types[i].dtype == dtype) return types[i].name;
    }
    return NULL;
}

/* --- reading ------------------------------------------------------------------------------------------------------ */

/* What parse_shape, parse_place and parse_entry say of a tensor follows its name in the message. */
static tsh_status parse_shape(const json_t *shape, tshi_safetensors_entry *entry) {
    size_t n = json_array_size(shape);
    if (!json_is_array(shape)) return tshi_fail(TSH_ERR_IO, "has no shape");
    if (n > TSH_MAX_DIMS) return tshi_fail(TSH_ERR_IO, "has %zu dims; at most %d are possible", n, TSH_MAX_DIMS);
    entry->ndim = (int)n;
    for (size_t d = 0; d < n; d++) {
        const json_t *size = json_array_get(shape, d);
        entry->shape[d] = json_is_integer(size) ? (int64_t)json_integer_value(size) : -1;
        if (entry->shape[d] < 0) return tshi_fail(TSH_ERR_IO, "has a shape that is not a list of sizes");
    }
    return TSH_OK;
}

/* Reads data_offsets; their length must fit shape and type. */
static tsh_status parse_place(const tshi_safetensors *file, const json_t *place, unsigned bits,
                              tshi_safetensors_entry *entry) {
    uint64_t data = TSHI_SAFETENSORS_PREFIX + file->header_bytes, most = file->file_bytes - data;
    const json_t *begin = json_array_get(place, 0), *end = json_array_get(place, 1);
    int64_t numel;
    size_t total;
    if (json_array_size(place) != 2 || !json_is_integer(begin) || !json_is_integer(end) ||
        json_integer_value(begin) < 0 || json_integer_value(end) < json_integer_value(begin)) {
        return tshi_fail(TSH_ERR_IO, "has data_offsets that are not [begin, end]");
    }
    uint64_t from = (uint64_t)json_integer_value(begin), to = (uint64_t)json_integer_value(end);
    if (to > most) {
        return tshi_fail(TSH_ERR_IO, "ends at byte %llu of the data, but the file has only %llu",
                         (unsigned long long)to, (unsigned long long)most);
    }
    if (tshi_dims_product(entry->ndim, entry->shape, &numel) != TSH_OK ||
        tshi_size_mul((size_t)numel, bits, &total) != TSH_OK) {
        return tshi_fail(TSH_ERR_IO, "has more elements than a file can hold");
    }
    if (total % 8 != 0 || to - from != total / 8) {
        return tshi_fail(TSH_ERR_IO, "has %llu bytes, which do not fit %s of %s", (unsigned long long)(to - from),
                         TSHI_DIMS_TEXT(entry->ndim, entry->shape), entry->type);
    }
    entry->offset = data + from;
    entry->bytes = to - from;
    return TSH_OK;
}

static tsh_status parse_entry(const tshi_safetensors *file, const char *name, const json_t *value,
                              tshi_safetensors_entry *entry) {
    *entry = (tshi_safetensors_entry){.name = name};
    if (!json_is_object(value)) return tshi_fail(TSH_ERR_IO, "has no description");
    const json_t *word = json_object_get(value, "dtype");
    const element_type *type = type_of_word(json_string_value(word));
    if (!json_is_string(word)) return tshi_fail(TSH_ERR_IO, "has no dtype");
    if (!type)
        return tshi_fail(TSH_ERR_IO, "has the dtype '%.32s', which the format does not know", json_string_value(word));
    entry->type = type->name;
    entry->dtype = type->dtype;
    tsh_status status = parse_shape(json_object_get(value, "shape"), entry);
    return status == TSH_OK ? parse_place(file, json_object_get(value, "data_offsets"), type->bits, entry) : status;
}

static tsh_status refuse_entry(const tshi_safetensors *file, const char *name, const char *why) {
    return tshi_fail(TSH_ERR_IO, "%.220s: tensor '%.100s' %s", file->path, name, why);
}

static tsh_status check_metadata(const tshi_safetensors *file, const json_t *metadata) {
    const char *key;
    json_t *value;
    if (!json_is_object(metadata)) return tshi_fail(TSH_ERR_IO, "%.220s: __metadata__ is not an object", file->path);
    json_object_foreach((json_t *)metadata, key, value) {
        if (json_is_string(value)) continue;
        return tshi_fail(TSH_ERR_IO, "%.220s: '%.100s' in __metadata__ is not a string", file->path, key);
    }
    return TSH_OK;
}

static int entries_by_name(const void *left, const void *right) {
    const tshi_safetensors_entry *a = left, *b = right;
    return strcmp(a->name, b->name);
}

static int by_place(const void *left, const void *right) {
    const tshi_safetensors_entry *a = left, *b = right;
    if (a->offset != b->offset) return a->offset < b->offset ? -1 : 1;
    return a->bytes < b->bytes ? -1 : a->bytes > b->bytes;
}

/* Each tensor begins where the one before it ends, and the last one ends with the file. */
static tsh_status check_places(tshi_safetensors *file) {
    uint64_t at = TSHI_SAFETENSORS_PREFIX + file->header_bytes;
    if (file->count) qsort(file->entries, (size_t)file->count, sizeof *file->entries, by_place);
    for (int i = 0; i < file->count; i++) {
        const tshi_safetensors_entry *e = &file->entries[i];
        if (e->offset != at)
            return refuse_entry(file, e->name, e->offset < at ? "overlaps another tensor" : "comes after a gap");
        at += e->bytes;
    }
    if (at == file->file_bytes) return TSH_OK;
    return tshi_fail(TSH_ERR_IO, "%.220s: has %llu bytes after its last tensor", file->path,
                     (unsigned long long)(file->file_bytes - at));
}

static tsh_status parse_entries(tshi_safetensors *file, const json_t *json) {
    const char *name;
    json_t *value;
    json_object_foreach((json_t *)json, name, value) {
        tsh_status status;
        if (strcmp(name, "__metadata__") == 0) {
            status = check_metadata(file, value);
        } else {
            status = parse_entry(file, name, value, &file->entries[file->count++]);
            if (status != TSH_OK) return refuse_entry(file, name, tsh_error_message());
        }
        if (status != TSH_OK) return status;
    }
    return check_places(file);
}

uint64_t tshi_safetensors_fingerprint(const char *header, size_t length) {
    uint64_t fingerprint = TSHI_FINGERPRINT;
    for (size_t i = 0; i < length; i += 8) {
        uint64_t word = 0;
        memcpy(&word, header + i, length - i < 8 ? length - i : 8);
        fingerprint = tshi_fingerprint_add(fingerprint, word);
    }
    return fingerprint;
}

tsh_status tshi_safetensors_parse(tshi_safetensors *file, const char *header) {
    json_error_t error;
    size_t length = (size_t)file->header_bytes, end;
    if (length == 0 || header[0] != '{') {
        return tshi_fail(TSH_ERR_IO, "%.220s: is not a safetensors file: its header does not begin with '{'",
                         file->path);
    }
    json_t *json = json_loadb(header, length, JSON_REJECT_DUPLICATES | JSON_DISABLE_EOF_CHECK, &error);
    if (!json) return tshi_fail(TSH_ERR_IO, "%.220s: its header is not JSON: %.160s", file->path, error.text);
    file->json = json;
    for (end = (size_t)error.position; end < length && header[end] == ' ';) end++;
    if (end < length)
        return tshi_fail(TSH_ERR_IO, "%.220s: its header is padded with something other than spaces", file->path);
    file->fingerprint = tshi_safetensors_fingerprint(header, length);
    file->entries = tshi_calloc(&file->allocator, json_object_size(json), sizeof *file->entries);
    if (!file->entries) return TSH_ERR_MEMORY;
    tsh_status status = parse_entries(file, json);
    if (status == TSH_OK && file->count)
        qsort(file->entries, (size_t)file->count, sizeof *file->entries, entries_by_name);
    return status;
}

const tshi_safetensors_entry *tshi_safetensors_find(const tshi_safetensors *file, const char *name) {
    const tshi_safetensors_entry key = {.name = name};
    if (file->count == 0) return NULL;
    return bsearch(&key, file->entries, (size_t)file->count, sizeof *file->entries, entries_by_name);
}

const char *tshi_safetensors_metadata(const tshi_safetensors *file, const char *key) {
    return json_string_value(json_object_get(json_object_get(file->json, "__metadata__"), key));
}

/* --- writing ------------------------------------------------------------------------------------------------------ */

/* Larger elements first, then by name, so that each tensor begins at a multiple of its element size. */
static int by_alignment(const void *left, const void *right) {
    const tshi_safetensors_entry *a = *(tshi_safetensors_entry *const *)left;
    const tshi_safetensors_entry *b = *(tshi_safetensors_entry *const *)right;
    size_t a_size = tsh_dtype_size(a->dtype), b_size = tsh_dtype_size(b->dtype);
    if (a_size != b_size) return a_size > b_size ? -1 : 1;
    return strcmp(a->name, b->name);
}

/* Sets each entry's offset, relative to the end of the header; *total is the end of the last. */
static tsh_status place_entries(tshi_safetensors_entry **sorted, int count, uint64_t *total) {
    size_t at = 0;
    for (int i = 0; i < count; i++) {
        tshi_safetensors_entry *e = sorted[i];
        int64_t numel;
        size_t bytes = 0;
        e->type = tshi_safetensors_type_name(e->dtype);
        if (!e->type) {
            return tshi_fail(TSH_ERR_DTYPE, "safetensors: the format has no %s, which '%.100s' is",
                             tsh_dtype_name(e->dtype), e->name);
        }
        tsh_status status = tshi_dims_product(e->ndim, e->shape, &numel);
        if (status == TSH_OK) status = tshi_size_mul((size_t)numel, tsh_dtype_size(e->dtype), &bytes);
        e->offset = at;
        e->bytes = bytes;
        if (status == TSH_OK) status = tshi_size_add(at, bytes, &at);
        if (status != TSH_OK) return status;
    }
    *total = at;
    return TSH_OK;
}

/* NULL without memory. */
static json_t *describe_entry(const tshi_safetensors_entry *e) {
    json_t *shape = json_array();
    for (int d = 0; d < e->ndim; d++) {
        if (json_array_append_new(shape, json_integer(e->shape[d])) == 0) continue;
        json_decref(shape);
        return NULL;
    }
    return json_pack("{s:s, s:o, s:[I, I]}", "dtype", e->type, "shape", shape, "data_offsets", (json_int_t)e->offset,
                     (json_int_t)(e->offset + e->bytes));
}

static tsh_status describe_metadata(json_t *json, const char *const *metadata) {
    json_t *object = json_object();
    for (int i = 0; object && metadata[i]; i += 2) {
        if (json_object_set_new(object, metadata[i], json_string(metadata[i + 1])) == 0) continue;
        json_decref(object);
        return tshi_fail(TSH_ERR_ARGUMENT, "safetensors: the metadata '%.100s' is not UTF-8", metadata[i]);
    }
    return json_object_set_new(json, "__metadata__", object) == 0
               ? TSH_OK
               : tshi_fail(TSH_ERR_MEMORY, "safetensors: no memory for a header");
}

static tsh_status describe_entries(tshi_safetensors_entry **sorted, int count, const char *const *metadata,
                                   json_t *json) {
    tsh_status status = metadata ? describe_metadata(json, metadata) : TSH_OK;
    for (int i = 0; status == TSH_OK && i < count; i++) {
        const char *name = sorted[i]->name;
        if (strcmp(name, "__metadata__") == 0 || json_object_get(json, name)) {
            status = tshi_fail(TSH_ERR_ARGUMENT, "safetensors: the name '%.100s' occurs twice or is reserved", name);
        } else if (json_object_set_new(json, name, describe_entry(sorted[i])) != 0) {
            status = tshi_fail(TSH_ERR_ARGUMENT, "safetensors: the name '%.100s' is not UTF-8, or memory is exhausted",
                               name);
        }
    }
    return status;
}

/* The length, the text, and spaces up to a multiple of 8. */
static tsh_status write_header(const tsh_allocator *allocator, const json_t *json, char **bytes, size_t *size) {
    size_t text = json_dumpb(json, NULL, 0, JSON_COMPACT), padded = (text + 7) / 8 * 8;
    if (text == 0) return tshi_fail(TSH_ERR_MEMORY, "safetensors: no memory for a header");
    if (padded > TSHI_SAFETENSORS_MAX_HEADER) {
        return tshi_fail(TSH_ERR_OVERFLOW, "safetensors: a header of %zu bytes; at most %d are allowed", padded,
                         TSHI_SAFETENSORS_MAX_HEADER);
    }
    *size = TSHI_SAFETENSORS_PREFIX + padded;
    *bytes = tshi_calloc(allocator, *size, 1);
    if (!*bytes) return TSH_ERR_MEMORY;
    for (int i = 0; i < TSHI_SAFETENSORS_PREFIX; i++) (*bytes)[i] = (char)(padded >> (8 * i) & 0xff);
    memset(*bytes + TSHI_SAFETENSORS_PREFIX, ' ', padded);
    json_dumpb(json, *bytes + TSHI_SAFETENSORS_PREFIX, padded, JSON_COMPACT);
    return TSH_OK;
}

tsh_status tshi_safetensors_header(const tsh_allocator *allocator, tshi_safetensors_entry *entries, int count,
                                   const char *const *metadata, char **bytes, size_t *size, uint64_t *file_bytes) {
    *bytes = NULL;
    *file_bytes = 0;
    tshi_safetensors_entry **sorted = tshi_calloc(allocator, (size_t)count, sizeof(void *));
    json_t *json = json_object();
    tsh_status status = sorted && json ? TSH_OK : tshi_fail(TSH_ERR_MEMORY, "safetensors: no memory for a header");
    for (int i = 0; sorted && i < count; i++) sorted[i] = &entries[i];
    if (status == TSH_OK && count) qsort(sorted, (size_t)count, sizeof *sorted, by_alignment);
    if (status == TSH_OK) status = place_entries(sorted, count, file_bytes);
    if (status == TSH_OK) status = describe_entries(sorted, count, metadata, json);
    if (status == TSH_OK) status = write_header(allocator, json, bytes, size);
    if (status == TSH_OK && *file_bytes > INT64_MAX - *size) {
        status = tshi_fail(TSH_ERR_OVERFLOW, "safetensors: a file of more than 2^63 bytes");
    }
    for (int i = 0; status == TSH_OK && i < count; i++) entries[i].offset += *size;
    *file_bytes += *size;
    if (status != TSH_OK) {
        tshi_free(allocator, *bytes);
        *bytes = NULL;
    }
    tshi_free(allocator, sorted);
    json_decref(json);
    return status;
}
