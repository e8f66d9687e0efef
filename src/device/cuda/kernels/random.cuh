// Random words by global element, with the generator of device/kernels.h.
#pragma once

#include "device/cuda/kernels/common.cuh"

namespace tshi {

struct word_source {
    uint32_t seed[2], stream[2];
    const int64_t *replays; // of the graph under capture, else NULL: each replay draws 2^32 streams further
};

inline word_source source_of(tsh_device *device, uint64_t seed, uint64_t stream) {
    return {{(uint32_t)seed, (uint32_t)(seed >> 32)},
            {(uint32_t)stream, (uint32_t)(stream >> 32)},
            tshi_cuda(device)->replays};
}

// The source advanced by the graph's replays; called at the start of a kernel.
__device__ inline word_source now(word_source source) {
    if (source.replays) source.stream[1] += (uint32_t)*source.replays;
    return source;
}

// A block of the generator, see device/kernels.h.
__device__ inline void make_words(const word_source &source, uint64_t block, uint32_t *word) {
    uint32_t c0 = (uint32_t)block, c1 = (uint32_t)(block >> 32), c2 = source.stream[0], c3 = source.stream[1];
#pragma unroll
    for (uint32_t round = 0; round < 10; round++) {
        uint64_t p0 = (uint64_t)c0 * 0xD2511F53u, p1 = (uint64_t)c2 * 0xCD9E8D57u;
        c0 = (uint32_t)(p1 >> 32) ^ c1 ^ (source.seed[0] + round * 0x9E3779B9u);
        c2 = (uint32_t)(p0 >> 32) ^ c3 ^ (source.seed[1] + round * 0xBB67AE85u);
        c1 = (uint32_t)p1;
        c3 = (uint32_t)p0;
    }
    word[0] = c0;
    word[1] = c1;
    word[2] = c2;
    word[3] = c3;
}

// word[i] of a block's four, without an index: an array indexed at run time would be in local memory.
__device__ inline uint32_t pick_word(const uint32_t *word, unsigned i) {
    const uint32_t low = i & 1 ? word[1] : word[0], high = i & 1 ? word[3] : word[2];
    return i & 2 ? high : low;
}

} // namespace tshi
