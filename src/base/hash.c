#include "base/hash.h"

#include <errno.h>
#include <string.h>
#include <sys/random.h>

/* The first 32 bits of the fractional parts of the cube roots of the first 64 primes. */
static const uint32_t constants[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

static uint32_t rotate_right(uint32_t x, int n) {
    return x >> n | x << (32 - n);
}

static void expand(const unsigned char block[64], uint32_t w[64]) {
    for (int i = 0; i < 16; i++) {
        const unsigned char *b = block + 4 * i;
        w[i] = (uint32_t)b[0] << 24 | (uint32_t)b[1] << 16 | (uint32_t)b[2] << 8 | b[3];
    }
    for (int i = 16; i < 64; i++) {
        uint32_t low = rotate_right(w[i - 15], 7) ^ rotate_right(w[i - 15], 18) ^ w[i - 15] >> 3;
        uint32_t high = rotate_right(w[i - 2], 17) ^ rotate_right(w[i - 2], 19) ^ w[i - 2] >> 10;
        w[i] = w[i - 16] + low + w[i - 7] + high;
    }
}

static void compress(uint32_t state[8], const unsigned char block[64]) {
    uint32_t w[64], s[8];
    expand(block, w);
    memcpy(s, state, sizeof s);
    for (int i = 0; i < 64; i++) {
        uint32_t big1 = rotate_right(s[4], 6) ^ rotate_right(s[4], 11) ^ rotate_right(s[4], 25);
        uint32_t choice = (s[4] & s[5]) ^ (~s[4] & s[6]);
        uint32_t one = s[7] + big1 + choice + constants[i] + w[i];
        uint32_t big0 = rotate_right(s[0], 2) ^ rotate_right(s[0], 13) ^ rotate_right(s[0], 22);
        uint32_t majority = (s[0] & s[1]) ^ (s[0] & s[2]) ^ (s[1] & s[2]);
        memmove(s + 1, s, 7 * sizeof *s);
        s[4] += one;
        s[0] = one + big0 + majority;
    }
    for (int i = 0; i < 8; i++) state[i] += s[i];
}

void tshi_sha256_begin(tshi_sha256 *hash) {
    /* The first 32 bits of the fractional parts of the square roots of the first eight primes. */
    static const uint32_t first[8] = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                      0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
    memcpy(hash->state, first, sizeof first);
    hash->bytes = 0;
}

void tshi_sha256_add(tshi_sha256 *hash, const void *data, size_t size) {
    const unsigned char *bytes = data;
    while (size > 0) {
        size_t at = hash->bytes % 64, n = 64 - at < size ? 64 - at : size;
        memcpy(hash->block + at, bytes, n);
        hash->bytes += n;
        bytes += n;
        size -= n;
        if (at + n == 64) compress(hash->state, hash->block);
    }
}

void tshi_sha256_end(tshi_sha256 *hash, unsigned char out[TSHI_HASH_SIZE]) {
    static const unsigned char padding[64] = {0x80};
    unsigned char length[8];
    uint64_t bits = hash->bytes * 8;
    for (int i = 0; i < 8; i++) length[i] = (unsigned char)(bits >> (56 - 8 * i));
    size_t at = hash->bytes % 64;
    tshi_sha256_add(hash, padding, at < 56 ? 56 - at : 120 - at);
    tshi_sha256_add(hash, length, sizeof length);
    for (int i = 0; i < 32; i++) out[i] = (unsigned char)(hash->state[i / 4] >> (24 - 8 * (i % 4)));
}

void tshi_hmac(const unsigned char *key, size_t key_size, const void *a, size_t a_size, const void *b, size_t b_size,
               unsigned char out[TSHI_HASH_SIZE]) {
    unsigned char inner[64] = {0}, outer[64] = {0}, digest[TSHI_HASH_SIZE];
    for (size_t i = 0; i < 64; i++) {
        unsigned char k = i < key_size ? key[i] : 0;
        inner[i] = k ^ 0x36;
        outer[i] = k ^ 0x5c;
    }
    tshi_sha256 hash;
    tshi_sha256_begin(&hash);
    tshi_sha256_add(&hash, inner, sizeof inner);
    tshi_sha256_add(&hash, a, a_size);
    tshi_sha256_add(&hash, b, b_size);
    tshi_sha256_end(&hash, digest);
    tshi_sha256_begin(&hash);
    tshi_sha256_add(&hash, outer, sizeof outer);
    tshi_sha256_add(&hash, digest, sizeof digest);
    tshi_sha256_end(&hash, out);
}

bool tshi_equal_secret(const unsigned char *a, const unsigned char *b, size_t size) {
    volatile unsigned char different = 0;
    for (size_t i = 0; i < size; i++) different = (unsigned char)(different | (a[i] ^ b[i]));
    return different == 0;
}

bool tshi_random_bytes(unsigned char *out, size_t size) {
    while (size > 0) {
        ssize_t n = getrandom(out, size, 0);
        if (n < 0 && errno != EINTR) return false;
        if (n > 0) {
            out += n;
            size -= (size_t)n;
        }
    }
    return true;
}

uint64_t tshi_fingerprint_text(uint64_t fingerprint, const char *text) {
    do fingerprint = tshi_fingerprint_add(fingerprint, (unsigned char)*text);
    while (*text++);
    return fingerprint;
}
