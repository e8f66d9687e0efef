#include "support/gguf.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void tshi_test_gguf_add(tshi_test_gguf *b, const void *bytes, size_t count) {
    if (b->count + count > b->capacity) {
        b->capacity = 2 * (b->count + count);
        b->at = realloc(b->at, b->capacity);
        if (!b->at) abort();
    }
    if (count) memcpy(b->at + b->count, bytes, count);
    b->count += count;
}

void tshi_test_gguf_number(tshi_test_gguf *b, uint64_t value, unsigned bytes) {
    unsigned char little[8];
    for (unsigned i = 0; i < bytes; i++) little[i] = (unsigned char)(value >> (8 * i) & 0xff);
    tshi_test_gguf_add(b, little, bytes);
}

void tshi_test_gguf_string(tshi_test_gguf *b, const char *text) {
    tshi_test_gguf_number(b, strlen(text), 8);
    tshi_test_gguf_add(b, text, strlen(text));
}

void tshi_test_gguf_begin(tshi_test_gguf *b, uint32_t version, uint64_t tensors, uint64_t keys) {
    tshi_test_gguf_add(b, "GGUF", 4);
    tshi_test_gguf_number(b, version, 4);
    tshi_test_gguf_number(b, tensors, 8);
    tshi_test_gguf_number(b, keys, 8);
}

static void key_of_type(tshi_test_gguf *b, const char *key, uint32_t type) {
    tshi_test_gguf_string(b, key);
    tshi_test_gguf_number(b, type, 4);
}

void tshi_test_gguf_key_u32(tshi_test_gguf *b, const char *key, uint32_t value) {
    key_of_type(b, key, 4);
    tshi_test_gguf_number(b, value, 4);
}

void tshi_test_gguf_key_text(tshi_test_gguf *b, const char *key, const char *value) {
    key_of_type(b, key, 8);
    tshi_test_gguf_string(b, value);
}

void tshi_test_gguf_key_bool(tshi_test_gguf *b, const char *key, bool value) {
    key_of_type(b, key, 7);
    tshi_test_gguf_number(b, value, 1);
}

void tshi_test_gguf_key_array(tshi_test_gguf *b, const char *key, uint32_t type, uint64_t count) {
    key_of_type(b, key, 9);
    tshi_test_gguf_number(b, type, 4);
    tshi_test_gguf_number(b, count, 8);
}

void tshi_test_gguf_tensor(tshi_test_gguf *b, const char *name, int ndim, const uint64_t *dims, uint32_t type,
                           uint64_t offset) {
    tshi_test_gguf_string(b, name);
    tshi_test_gguf_number(b, (uint64_t)ndim, 4);
    for (int d = 0; d < ndim; d++) tshi_test_gguf_number(b, dims[d], 8);
    tshi_test_gguf_number(b, type, 4);
    tshi_test_gguf_number(b, offset, 8);
}

void tshi_test_gguf_align(tshi_test_gguf *b, size_t alignment) {
    while (b->count % alignment) tshi_test_gguf_number(b, 0, 1);
}

void tshi_test_gguf_write(tshi_test_gguf *b, const char *path) {
    FILE *f = fopen(path, "wb");
    if (!f || (b->count && fwrite(b->at, 1, b->count, f) != b->count) || fclose(f) != 0) abort();
    free(b->at);
    *b = (tshi_test_gguf){0};
}
