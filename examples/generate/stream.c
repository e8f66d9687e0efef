/* How fast this machine's cores, or the GPU, read memory, which bounds the time of a token. */
#define _POSIX_C_SOURCE 200809L
#include "generate.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#if defined(__GNUC__)
typedef uint64_t word __attribute__((vector_size(16))); /* a vector in any compiler settings */
#define ASK_FOR(at) __builtin_prefetch(at)
#else
typedef uint64_t word;
#define ASK_FOR(at) (void)(at)
#endif

/* Words that a cache takes at once, and how many before its use a word is asked for. */
enum {
    BYTES = 256 << 20,
    WORDS = BYTES / sizeof(word),
    LINE = 4,
    NEAR = 1024 / sizeof(word),
    FAR = 4096 / sizeof(word),
    PASSES = 4,
    COPIES = 16
};

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

/* Adds up all words, read as this many parallel streams, so that no addition waits for the one before it. */
static inline void add_streams(const word *words, size_t streams, size_t ahead, word *sum) {
    const size_t length = WORDS / streams;
    word a = words[0], b = a, c = a, d = a;
    for (const word *line = words; line < words + length; line += LINE) {
        for (size_t s = 0; s < streams; s++) {
            const word *at = line + s * length;
            if (ahead) ASK_FOR(at + ahead);
            a += at[0];
            b += at[1];
            c += at[2];
            d += at[3];
        }
    }
    *sum = a + b + c + d;
}

/* Which way of reading is the fastest depends on the machine. */
enum { WAYS = 5 };

static bool read_words(const word *words, int way) {
    word sum = words[0];
    uint64_t first;
    switch (way) {
    case 0: add_streams(words, 1, 0, &sum); break;
    case 1: add_streams(words, 1, FAR, &sum); break;
    case 2: add_streams(words, 4, FAR, &sum); break;
    case 3: add_streams(words, 8, NEAR, &sum); break;
    default: add_streams(words, 8, 0, &sum); break;
    }
    memcpy(&first, &sum, sizeof first);
    return first != 0;
}

tsh_status sum_over_ranks(tsh_world *world, double *value) {
    tsh_tensor *t = NULL;
    tsh_tensor_config config = {.dtype = TSH_FLOAT64};
    tsh_status status = tsh_tensor_create(tsh_world_mesh(world), &config, &t);
    if (status == TSH_OK) status = tsh_tensor_write(t, value, 1);
    if (status == TSH_OK) status = tsh_all_reduce(tsh_world_group(world), t, TSH_REDUCE_SUM);
    if (status == TSH_OK) status = tsh_tensor_read(t, value, 1);
    tsh_tensor_release(t);
    return status;
}

/* On a GPU, the bytes that copies read and write: a kernel that only reads is no faster. */
static tsh_status copy_tensor(tsh_world *world, double *bytes_per_s) {
    tsh_device *device = tsh_world_device(world);
    tsh_tensor *from = NULL, *to = NULL;
    double best = INFINITY;
    const tsh_tensor_config config = {.ndim = 1, .shape = {BYTES / sizeof(float)}};
    tsh_status status = tsh_tensor_create(tsh_world_mesh(world), &config, &from);
    for (int i = 0; status == TSH_OK && i < PASSES; i++) {
        double start = now();
        for (int c = 0; status == TSH_OK && c < COPIES; c++) {
            status = tsh_tensor_clone(from, &to);
            tsh_tensor_release(to);
        }
        if (status == TSH_OK) status = tsh_device_synchronize(device);
        if (i > 0) best = fmin(best, now() - start); /* the first pass allocates */
    }
    tsh_tensor_release(from);
    *bytes_per_s = 2.0 * BYTES * COPIES / best;
    return status == TSH_OK ? sum_over_ranks(world, bytes_per_s) : status;
}

tsh_status stream_read(tsh_world *world, double *bytes_per_s) {
    if (tsh_device_kind_of(tsh_world_device(world)) != TSH_CPU) return copy_tensor(world, bytes_per_s);
    word *words = malloc(BYTES);
    double best = INFINITY;
    if (words) memset(words, 1, BYTES);
    tsh_status status = words ? TSH_OK : TSH_ERR_MEMORY;
    for (int i = 0; status == TSH_OK && i < PASSES * WAYS; i++) {
        status = tsh_barrier(tsh_world_group(world));
        double start = now();
        if (!read_words(words, i % WAYS)) status = TSH_ERR_STATE; /* never true, but the compiler must keep the reads */
        best = fmin(best, now() - start);
    }
    free(words);
    *bytes_per_s = BYTES / best;
    return status == TSH_OK ? sum_over_ranks(world, bytes_per_s) : status;
}
