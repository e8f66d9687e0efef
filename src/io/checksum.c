/* Checksums of tensors, in vector code. */
#include "io/checksum.h"
#include "device/cpu/kernels/clones.h"

#include <string.h>

#define STEP UINT64_C(0x9e3779b97f4a7c15)

#define SUM(name, type)                                                                                                \
    TSHI_CLONES                                                                                                        \
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

uint64_t tshi_checksum(size_t size, int64_t first, int64_t n, const void *data) {
    switch (size) {
    case 1: return sum8((uint64_t)first, n, data);
    case 2: return sum16((uint64_t)first, n, data);
    case 4: return sum32((uint64_t)first, n, data);
    case 8: return sum64((uint64_t)first, n, data);
    default: return sum64(2 * (uint64_t)first, 2 * n, data);
    }
}
