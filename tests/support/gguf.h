/* GGUF files made byte by byte, for tests. */
#ifndef TSHI_TEST_GGUF_H
#define TSHI_TEST_GGUF_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The bytes of a file; zeros to begin with. tshi_test_gguf_write frees them. */
typedef struct tshi_test_gguf {
    unsigned char *at;
    size_t count, capacity;
} tshi_test_gguf;

void tshi_test_gguf_add(tshi_test_gguf *b, const void *bytes, size_t count);
/* A little-endian number. */
void tshi_test_gguf_number(tshi_test_gguf *b, uint64_t value, unsigned bytes);
void tshi_test_gguf_string(tshi_test_gguf *b, const char *text);
/* "GGUF", the version, and the numbers of tensors and keys. */
void tshi_test_gguf_begin(tshi_test_gguf *b, uint32_t version, uint64_t tensors, uint64_t keys);
/* A key with a value: of 4 bytes, a text, a truth, or the head of an array of items of a type. */
void tshi_test_gguf_key_u32(tshi_test_gguf *b, const char *key, uint32_t value);
void tshi_test_gguf_key_text(tshi_test_gguf *b, const char *key, const char *value);
void tshi_test_gguf_key_bool(tshi_test_gguf *b, const char *key, bool value);
void tshi_test_gguf_key_array(tshi_test_gguf *b, const char *key, uint32_t type, uint64_t count);
/* A tensor's description; its dims are as in the file, the last one of a row-major array first. */
void tshi_test_gguf_tensor(tshi_test_gguf *b, const char *name, int ndim, const uint64_t *dims, uint32_t type,
                           uint64_t offset);
/* Zeros up to a multiple of `alignment`. */
void tshi_test_gguf_align(tshi_test_gguf *b, size_t alignment);
/* Writes a file, and frees the bytes. Aborts where it cannot be written. */
void tshi_test_gguf_write(tshi_test_gguf *b, const char *path);

#endif
