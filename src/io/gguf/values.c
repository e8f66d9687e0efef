/* Reads the values of a GGUF file's keys. */
#include "io/gguf/gguf.h"

#include <string.h>

const unsigned char tshi_gguf_type_bytes[TSHI_GGUF_TYPES] = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};

/* Numbers of the types of values. */
enum { INT8 = 1, INT16 = 3, INT32 = 5, FLOAT32 = 6, UINT64 = 10, FLOAT64 = 12 };

static bool is_float(uint32_t type) {
    return type == FLOAT32 || type == FLOAT64;
}

uint64_t tshi_gguf_load_le(const unsigned char *at, unsigned bytes) {
    uint64_t value = 0;
    for (unsigned i = 0; at && i < bytes; i++) value |= (uint64_t)at[i] << (8 * i);
    return value;
}

const tshi_gguf_value *tshi_gguf_find(const tshi_gguf *file, const char *key) {
    size_t length = strlen(key);
    for (int i = 0; i < file->values_count; i++) {
        const tshi_gguf_value *v = &file->values[i];
        if (v->key_length == length && memcmp(v->key, key, length) == 0) return v;
    }
    return NULL;
}

/* The bytes of the next item. */
static const unsigned char *next_item(tshi_gguf_value *left, uint64_t bytes) {
    const unsigned char *at = left->at;
    if (bytes > left->length) return NULL;
    left->at += bytes;
    left->length -= bytes;
    return at;
}

bool tshi_gguf_next_text(tshi_gguf_value *left, tshi_gguf_text *out) {
    if (left->type != TSHI_GGUF_TEXT || left->count == 0) return false;
    left->count--;
    out->length = (size_t)tshi_gguf_load_le(next_item(left, 8), 8);
    out->at = (const char *)next_item(left, out->length);
    return out->at;
}

bool tshi_gguf_next_integer(tshi_gguf_value *left, int64_t *out) {
    if (left->type >= TSHI_GGUF_TYPES || tshi_gguf_type_bytes[left->type] == 0 || is_float(left->type) ||
        left->count == 0)
        return false;
    unsigned bytes = tshi_gguf_type_bytes[left->type];
    left->count--;
    uint64_t value = tshi_gguf_load_le(next_item(left, bytes), bytes);
    bool has_sign = left->type == INT8 || left->type == INT16 || left->type == INT32;
    if (has_sign && value >> (8 * bytes - 1)) value |= UINT64_MAX << (8 * bytes - 1);
    if (left->type == UINT64 && value > INT64_MAX) return false;
    *out = (int64_t)value;
    return true;
}

bool tshi_gguf_next_number(tshi_gguf_value *left, double *out) {
    int64_t whole;
    if (!is_float(left->type)) {
        bool found = tshi_gguf_next_integer(left, &whole);
        if (found) *out = (double)whole;
        return found;
    }
    if (left->count == 0) return false;
    left->count--;
    unsigned bytes = tshi_gguf_type_bytes[left->type];
    uint64_t bits = tshi_gguf_load_le(next_item(left, bytes), bytes);
    uint32_t low = (uint32_t)bits;
    float narrow;
    memcpy(&narrow, &low, sizeof narrow);
    memcpy(out, &bits, sizeof *out);
    if (left->type == FLOAT32) *out = (double)narrow;
    return true;
}

/* A copy of a key's single value; an empty text if the key is missing. */
static tshi_gguf_value single(const tshi_gguf *file, const char *key) {
    const tshi_gguf_value *v = tshi_gguf_find(file, key);
    return v && !v->array ? *v : (tshi_gguf_value){.count = 0};
}

bool tshi_gguf_text_of(const tshi_gguf *file, const char *key, char *out, size_t size) {
    tshi_gguf_value v = single(file, key);
    tshi_gguf_text text;
    if (!tshi_gguf_next_text(&v, &text) || text.length >= size || memchr(text.at, 0, text.length)) return false;
    memcpy(out, text.at, text.length);
    out[text.length] = '\0';
    return true;
}

bool tshi_gguf_integer_of(const tshi_gguf *file, const char *key, int64_t *out) {
    tshi_gguf_value v = single(file, key);
    return tshi_gguf_next_integer(&v, out);
}

bool tshi_gguf_number_of(const tshi_gguf *file, const char *key, double *out) {
    tshi_gguf_value v = single(file, key);
    return tshi_gguf_next_number(&v, out);
}

bool tshi_gguf_flag_of(const tshi_gguf *file, const char *key, bool otherwise) {
    int64_t value;
    return tshi_gguf_integer_of(file, key, &value) ? value != 0 : otherwise;
}
