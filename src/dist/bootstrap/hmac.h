/* Proving to be of a job without telling its token: SHA-256 (FIPS 180-4) and HMAC over it (RFC 2104). */
#ifndef TSHI_PROOF_H
#define TSHI_PROOF_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define TSHI_PROOF_SIZE 32

typedef struct tshi_sha256 {
    uint32_t state[8];
    uint64_t bytes;
    unsigned char block[64];
} tshi_sha256;

void tshi_sha256_begin(tshi_sha256 *hash);
void tshi_sha256_add(tshi_sha256 *hash, const void *data, size_t size);
void tshi_sha256_end(tshi_sha256 *hash, unsigned char out[TSHI_PROOF_SIZE]);

/* HMAC-SHA-256 of `a` followed by `b`. Keys of up to 64 bytes. */
void tshi_hmac(const unsigned char *key, size_t key_size, const void *a, size_t a_size, const void *b, size_t b_size,
               unsigned char out[TSHI_PROOF_SIZE]);
/* Takes the same time wherever the first difference is. */
bool tshi_equal_secret(const unsigned char *a, const unsigned char *b, size_t size);
/* Bytes that nobody can guess; false with errno set. */
bool tshi_random_bytes(unsigned char *out, size_t size);

#endif
