/* Checksums of tensors. */
#include "io/checksum.h"
#include "tensor/runs.h"

#include <string.h>

#define STEP UINT64_C(0x9e3779b97f4a7c15)

#define SUM(name, type)                                                                                                \
    static uint64_t name(uint64_t first, int64_t n, const char *data) {                                                \
        uint64_t sum = 0;                                                                                              \
        for (int64_t i = 0; i < n; i++) {                                                                              \
            uint64_t h = (first + (uint64_t)i) * STEP;                                                                 \
            type value;                                                                                                \
            memcpy(&value, data + (size_t)i * sizeof value, sizeof value);                                             \
            sum += value * ((h ^ h >> 32) | 1);                                                                        \
        }                                                                                                              \
        return sum;                                                                                                    \
    }
SUM(sum8, uint8_t)
SUM(sum16, uint16_t)
SUM(sum32, uint32_t)
SUM(sum64, uint64_t)

/* The sum of n elements whose indices are first, first + 1, ... */
static uint64_t checksum_run(size_t size, int64_t first, int64_t n, const void *data) {
    switch (size) {
    case 1: return sum8((uint64_t)first, n, data);
    case 2: return sum16((uint64_t)first, n, data);
    case 4: return sum32((uint64_t)first, n, data);
    case 8: return sum64((uint64_t)first, n, data);
    default: return sum64(2 * (uint64_t)first, 2 * n, data);
    }
}

uint64_t tshi_checksum_box(size_t size, int ndim, const int64_t *shape, const tsh_box *part, const void *memory,
                           const tsh_box *box) {
    tsh_box whole = {{0}, {0}};
    uint64_t sum = 0;
    memcpy(whole.length, shape, sizeof whole.length);
    tshi_runs r = tshi_runs_of(ndim, part, &whole, box);
    for (int64_t i = 0; i < r.numel / r.count[0]; i++) {
        int64_t first, at;
        tshi_runs_at(&r, 1, i, &first, &at);
        sum += checksum_run(size, first, r.count[0], (const char *)memory + (size_t)at * size);
    }
    return sum;
}
