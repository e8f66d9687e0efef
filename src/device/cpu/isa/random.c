/* Random fills and dropout, keyed by global element. */
#include "device/cpu/isa/pieces.h"
#include "device/cpu/isa/vector_math.h"

#define TILE   256        /* words generated at a time */
#define BLOCKS (TILE / 4) /* Philox blocks in a tile */
#define TWO_PI 6.283185307179586476925286766559

typedef struct word_source {
    uint64_t seed, stream;
} word_source;

/* Blocks are generated in whole vectors. */
#define BLOCK_STEP 16

/* A part of a run: `count` elements, which start at word `skip` of `blocks` blocks from `first` on. */
typedef struct span {
    int64_t first, skip, count, blocks;
} span;

/* The first part of `left` elements from `element` on, with `per_block` elements in a block. */
static span next_span(int64_t element, int64_t left, int64_t per_block) {
    span s = {.first = element / per_block, .skip = element % per_block};
    int64_t left_in_piece = BLOCKS * per_block - s.skip;
    s.count = left < left_in_piece ? left : left_in_piece;
    int64_t needed = (s.skip + s.count + per_block - 1) / per_block;
    s.blocks = (needed + BLOCK_STEP - 1) / BLOCK_STEP * BLOCK_STEP;
    return s;
}

/* Philox 4x32-10 (device/kernels.h) for blocks [first, first + blocks), vectorised across blocks. */
static void make_words(const word_source *source, int64_t first, int64_t blocks, uint32_t *word) {
    const uint32_t seed_low = (uint32_t)source->seed, seed_high = (uint32_t)(source->seed >> 32);
    const uint32_t stream_low = (uint32_t)source->stream, stream_high = (uint32_t)(source->stream >> 32);
    TSHI_INDEPENDENT
    for (int64_t j = 0; j < blocks; j++) {
        uint64_t block = (uint64_t)first + (uint64_t)j;
        uint32_t c0 = (uint32_t)block, c1 = (uint32_t)(block >> 32), c2 = stream_low, c3 = stream_high;
        for (uint32_t round = 0; round < 10; round++) {
            uint64_t p0 = (uint64_t)c0 * 0xD2511F53u;
            uint64_t p1 = (uint64_t)c2 * 0xCD9E8D57u;
            c0 = (uint32_t)(p1 >> 32) ^ c1 ^ (seed_low + round * 0x9E3779B9u);
            c2 = (uint32_t)(p0 >> 32) ^ c3 ^ (seed_high + round * 0xBB67AE85u);
            c1 = (uint32_t)p1;
            c3 = (uint32_t)p0;
        }
        word[4 * j] = c0;
        word[4 * j + 1] = c1;
        word[4 * j + 2] = c2;
        word[4 * j + 3] = c3;
    }
}

/* The first global element of a local row [n, inner] of the block; a row is one run of global elements. */
static int64_t first_element(const tshi_block *b, int64_t o) {
    return ((o + b->outer_start) * b->global_n + b->start) * b->inner;
}

void TSHI_ISA(tshi_cpu_words)(uint64_t seed, uint64_t stream, int64_t element, int64_t n, uint32_t *words) {
    const word_source source = {seed, stream};
    uint32_t word[TILE];
    for (int64_t i = 0; i < n;) {
        span s = next_span(element + i, n - i, 4);
        make_words(&source, s.first, s.blocks, word);
        memcpy(words + i, word + s.skip, (size_t)s.count * sizeof *words);
        i += s.count;
    }
}

#define KERNELS "device/cpu/isa/random_loops.inc"
#include "device/cpu/isa/each_real.inc"

#define KERNELS "device/cpu/isa/random.inc"
#include "device/cpu/isa/each_dtype.inc"

const tshi_random_ops TSHI_ISA(tshi_cpu_random)[TSH_DTYPE_COUNT] = {
    [TSH_FLOAT32] = {.dropout = dropout_f32, .uniform = uniform_f32, .normal = normal_f32},
    [TSH_FLOAT64] = {.dropout = dropout_f64, .uniform = uniform_f64, .normal = normal_f64},
    [TSH_BFLOAT16] = {.dropout = dropout_bf16, .uniform = uniform_bf16, .normal = normal_bf16},
    [TSH_FLOAT16] = {.dropout = dropout_f16, .uniform = uniform_f16, .normal = normal_f16},
};
