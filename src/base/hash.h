/* Hashes: SHA-256 (FIPS 180-4), HMAC-SHA-256 (RFC 2104) and random bytes for security; a fast fingerprint for
 * comparisons between ranks. */
#ifndef TSHI_HASH_H
#define TSHI_HASH_H

#include "base/base.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define TSHI_HASH_SIZE 32

typedef struct tshi_sha256 {
    uint32_t state[8];
    uint64_t bytes;
    unsigned char block[64];
} tshi_sha256;

void tshi_sha256_begin(tshi_sha256 *hash);
void tshi_sha256_add(tshi_sha256 *hash, const void *data, size_t size);
void tshi_sha256_end(tshi_sha256 *hash, unsigned char out[TSHI_HASH_SIZE]);

/* HMAC-SHA-256 of `a` followed by `b`, under a key of at most 64 bytes. */
TSHI_TOOLS void tshi_hmac(const unsigned char *key, size_t key_size, const void *a, size_t a_size, const void *b,
                          size_t b_size, unsigned char out[TSHI_HASH_SIZE]);
/* Compares secrets in a time that does not depend on where they differ. */
bool tshi_equal_secret(const unsigned char *a, const unsigned char *b, size_t size);
/* Cryptographically secure random bytes; false with errno set. */
TSHI_TOOLS bool tshi_random_bytes(unsigned char *out, size_t size);

#define TSHI_FINGERPRINT UINT64_C(14695981039346656037)

/* Adds a word to a fingerprint that starts as TSHI_FINGERPRINT. */
static inline uint64_t tshi_fingerprint_add(uint64_t fingerprint, uint64_t word) {
    fingerprint = (fingerprint ^ word) * UINT64_C(0x9e3779b97f4a7c15);
    return fingerprint ^ fingerprint >> 32;
}

/* Adds a text with its terminating 0. */
uint64_t tshi_fingerprint_text(uint64_t fingerprint, const char *text);

#endif
