#include "support/philox.h"

#include <math.h>

void tshi_philox(const uint32_t counter[4], const uint32_t key[2], uint32_t out[4]) {
    uint32_t c0 = counter[0], c1 = counter[1], c2 = counter[2], c3 = counter[3];
    uint32_t k0 = key[0], k1 = key[1];
    for (int round = 0; round < 10; round++) {
        uint64_t p0 = (uint64_t)c0 * 0xD2511F53u;
        uint64_t p1 = (uint64_t)c2 * 0xCD9E8D57u;
        c0 = (uint32_t)(p1 >> 32) ^ c1 ^ k0;
        c2 = (uint32_t)(p0 >> 32) ^ c3 ^ k1;
        c1 = (uint32_t)p1;
        c3 = (uint32_t)p0;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    out[0] = c0;
    out[1] = c1;
    out[2] = c2;
    out[3] = c3;
}

void tshi_philox_block(uint64_t seed, uint64_t stream, uint64_t block, uint32_t out[4]) {
    const uint32_t counter[4] = {(uint32_t)block, (uint32_t)(block >> 32), (uint32_t)stream, (uint32_t)(stream >> 32)};
    const uint32_t key[2] = {(uint32_t)seed, (uint32_t)(seed >> 32)};
    tshi_philox(counter, key, out);
}

double tshi_uniform(uint32_t word) {
    return (double)(word >> 8) * 0x1p-24;
}

double tshi_normal(uint32_t a, uint32_t b) {
    const double two_pi = 6.283185307179586476925286766559;
    return sqrt(-2.0 * log(((double)(a >> 8) + 1.0) * 0x1p-24)) * cos(two_pi * tshi_uniform(b));
}
