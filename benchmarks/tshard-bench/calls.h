/* The collectives as they are measured: which buffers a rank has, the call, and what must come out of it. */
#ifndef CALLS_H
#define CALLS_H

#include "tshard/dist.h"

/* One size of one collective, on this rank. */
typedef struct bench_trial {
    tsh_group *group;
    int rank, ranks;
    tsh_dtype dtype;
    int64_t count; /* elements of the larger of in and out: nccl-tests' size */
    tsh_tensor *in, *out;
} bench_trial;

/* How much of `count` elements a buffer has: of the last two, some ranks have none, or no elements. */
typedef enum bench_extent { BENCH_WHOLE, BENCH_PART, BENCH_WHOLE_AT_ROOT, BENCH_WHOLE_IN_PAIR } bench_extent;

typedef struct bench_collective {
    const char *name;
    bench_extent in, out;
    bool in_place;
    bool whole_parts; /* count is made a multiple of the ranks */
    bool sizeless;    /* no elements at all: one row */
    int least_ranks;
    tsh_status (*call)(bench_trial *trial);
    int (*expected)(const bench_trial *trial, int64_t i); /* of component i of out */
    double (*bus_factor)(double ranks);                   /* busbw / algbw */
} bench_collective;

enum { BENCH_CALLS = 10 };
extern const bench_collective bench_calls[BENCH_CALLS];

/* Elements of a trial of about so many bytes. */
int64_t bench_trial_count(const bench_collective *collective, const tsh_group *group, tsh_dtype dtype, int64_t bytes);
/* The trial's buffers, once its other members are set. */
tsh_status bench_trial_create(const bench_collective *collective, bench_trial *trial);
void bench_trial_release(bench_trial *trial);

#endif
