#define _POSIX_C_SOURCE 200809L
#include "generate.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { WORDS = 32 << 20, AHEAD = 512, PASSES = 4 }; /* 256 MiB; words before its use one is asked for */

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

/* The sum of all words, read as so many streams side by side. Eight sums, so that no addition waits for the one before
 * it. */
static inline uint64_t sum_streams(const uint64_t *words, size_t streams, bool ahead) {
    uint64_t sums[8] = {0}, total = 0;
    for (size_t i = 0; i < WORDS / streams; i += 8) {
        for (size_t s = 0; s < streams; s++) {
            const uint64_t *at = words + s * (WORDS / streams) + i;
#if defined(__GNUC__)
            if (ahead) __builtin_prefetch(at + AHEAD);
#endif
            for (size_t j = 0; j < 8; j++) sums[j] += at[j];
        }
    }
    for (size_t j = 0; j < 8; j++) total += sums[j];
    return total;
}

/* Which way of reading is the fastest depends on the machine. */
enum { WAYS = 4 };

static uint64_t sum(const uint64_t *words, int way) {
    switch (way) {
    case 0: return sum_streams(words, 1, false);
    case 1: return sum_streams(words, 1, true);
    case 2: return sum_streams(words, 4, true);
    default: return sum_streams(words, 8, false);
    }
}

tsh_status sum_over_ranks(tsh_world *world, double *value) {
    tsh_tensor *t = NULL;
    tsh_tensor_config config = {.dtype = TSH_FLOAT64};
    tsh_status status = tsh_tensor_create(tsh_world_mesh(world), &config, &t);
    if (status == TSH_OK) status = tsh_tensor_write(t, value, 1);
    if (status == TSH_OK) status = tsh_all_reduce(tsh_world_group(world), t, TSH_SUM);
    if (status == TSH_OK) status = tsh_tensor_read(t, value, 1);
    tsh_tensor_release(t);
    return status;
}

tsh_status stream_read(tsh_world *world, double *bytes_per_s) {
    uint64_t *words = malloc(WORDS * sizeof *words);
    double best = INFINITY;
    if (words) memset(words, 1, WORDS * sizeof *words);
    tsh_status status = words ? TSH_OK : TSH_ERR_MEMORY;
    for (int i = 0; status == TSH_OK && i < PASSES * WAYS; i++) {
        status = tsh_barrier(tsh_world_group(world));
        double start = now();
        if (sum(words, i % WAYS) == 0)
            status = TSH_ERR_STATE; /* never, but for it no compiler leaves the reading out */
        best = fmin(best, now() - start);
    }
    free(words);
    *bytes_per_s = (double)WORDS * sizeof *words / best;
    return status == TSH_OK ? sum_over_ranks(world, bytes_per_s) : status;
}
