/* MPI's collectives as the programs here measure them: the calls, and what must come out of them. */
#ifndef MPI_CALLS_H
#define MPI_CALLS_H

#include "../tshard-bench/timing.h"

#include "base/number.h"
#include "common/output.h"

#include <mpi.h>
#include <stdbool.h>
#include <stdio.h>

enum {
    ALL_REDUCE,
    ALL_GATHER,
    REDUCE_SCATTER,
    BROADCAST,
    ALL_TO_ALL,
    SEND_RECV,
    REDUCE,
    GATHER,
    SCATTER,
    BARRIER,
    OPS
};
static const char *const names[OPS] = {"all_reduce", "all_gather", "reduce_scatter", "broadcast", "all_to_all",
                                       "send_recv",  "reduce",     "gather",         "scatter",   "barrier"};

typedef struct trial {
    int op, count, rank, ranks;
    float *in, *out;
    int (*call)(const struct trial *t); /* what is to be measured */
    void *user;
} trial;

static inline bool in_parts(const trial *t) {
    return t->op == ALL_GATHER || t->op == REDUCE_SCATTER || t->op == ALL_TO_ALL || t->op == GATHER || t->op == SCATTER;
}

/* Elements of the larger buffer of so many bytes; the ranks divide those that go in parts. */
static inline int count_of(const trial *t, long bytes) {
    int n = (int)(bytes / (long)sizeof(float)), least = in_parts(t) ? t->ranks : 1;
    if (t->op == BARRIER) return 0;
    return n < least ? least : n / least * least;
}

/* Elements of a rank's `in` and `out` when the larger of them has `count`. */
static inline int in_count(const trial *t) {
    return t->op == ALL_GATHER || t->op == GATHER ? t->count / t->ranks : t->count;
}

static inline int out_count(const trial *t) {
    return t->op == REDUCE_SCATTER || t->op == SCATTER ? t->count / t->ranks : t->count;
}

static inline int round_trip(const trial *t) {
    if (t->rank > 1) return MPI_SUCCESS;
    int peer = 1 - t->rank, error;
    if (t->rank == 0) {
        error = MPI_Send(t->in, t->count, MPI_FLOAT, peer, 0, MPI_COMM_WORLD);
        return error ? error : MPI_Recv(t->out, t->count, MPI_FLOAT, peer, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    }
    error = MPI_Recv(t->out, t->count, MPI_FLOAT, peer, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    return error ? error : MPI_Send(t->out, t->count, MPI_FLOAT, peer, 0, MPI_COMM_WORLD);
}

static inline int call_mpi(const trial *t) {
    int n = t->count, part = n / t->ranks;
    MPI_Comm all = MPI_COMM_WORLD;
    switch (t->op) {
    case ALL_REDUCE: return MPI_Allreduce(MPI_IN_PLACE, t->out, n, MPI_FLOAT, MPI_SUM, all);
    case ALL_GATHER: return MPI_Allgather(t->in, part, MPI_FLOAT, t->out, part, MPI_FLOAT, all);
    case REDUCE_SCATTER: return MPI_Reduce_scatter_block(t->in, t->out, part, MPI_FLOAT, MPI_SUM, all);
    case BROADCAST: return MPI_Bcast(t->out, n, MPI_FLOAT, 0, all);
    case ALL_TO_ALL: return MPI_Alltoall(t->in, part, MPI_FLOAT, t->out, part, MPI_FLOAT, all);
    case REDUCE:
        return t->rank == 0 ? MPI_Reduce(MPI_IN_PLACE, t->out, n, MPI_FLOAT, MPI_SUM, 0, all)
                            : MPI_Reduce(t->out, NULL, n, MPI_FLOAT, MPI_SUM, 0, all);
    case GATHER: return MPI_Gather(t->in, part, MPI_FLOAT, t->out, part, MPI_FLOAT, 0, all);
    case SCATTER: return MPI_Scatter(t->in, part, MPI_FLOAT, t->out, part, MPI_FLOAT, 0, all);
    case BARRIER: return MPI_Barrier(all);
    default: return round_trip(t);
    }
}

static inline int repeat(void *context, int calls) {
    const trial *t = context;
    for (int i = 0; i < calls; i++) {
        int error = t->call(t);
        if (error) return error;
    }
    return 0;
}

/* Whole numbers, which add up exactly. */
static inline float value_at(int rank, int i) {
    return (float)((i % 17 + 3 * rank) % 16);
}

static inline float sum_at(int ranks, int i) {
    float sum = 0;
    for (int rank = 0; rank < ranks; rank++) sum += value_at(rank, i);
    return sum;
}

static inline float expected(const trial *t, int i) {
    int part = t->count / t->ranks;
    switch (t->op) {
    case ALL_REDUCE: return sum_at(t->ranks, i);
    case GATHER:
    case ALL_GATHER: return value_at(i / part, i % part);
    case REDUCE_SCATTER: return sum_at(t->ranks, t->rank * part + i);
    case ALL_TO_ALL: return value_at(i / part, t->rank * part + i % part);
    case REDUCE: return t->rank == 0 ? sum_at(t->ranks, i) : value_at(t->rank, i);
    case SCATTER: return value_at(0, t->rank * part + i);
    default: return value_at(0, i);
    }
}

/* The number of elements of `out` that the call writes. */
static inline int result_count(const trial *t) {
    if ((t->op == SEND_RECV && t->rank > 1) || (t->op == GATHER && t->rank > 0)) return 0;
    return out_count(t);
}

static inline int meet(void *user) {
    (void)user;
    return MPI_Barrier(MPI_COMM_WORLD);
}

static inline int slowest(void *user, double *samples, int n) {
    (void)user;
    return MPI_Allreduce(MPI_IN_PLACE, samples, n, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
}

/* Wrong elements on all ranks. */
static inline long check(trial *t) {
    long wrong = 0, all = 0;
    bool in_place = t->op == ALL_REDUCE || t->op == BROADCAST || t->op == REDUCE;
    int n = result_count(t);
    for (int i = 0; i < in_count(t); i++) t->in[i] = value_at(t->rank, i);
    for (int i = 0; i < out_count(t); i++) t->out[i] = in_place ? value_at(t->rank, i) : -1;
    repeat(t, 1);
    for (int i = 0; i < n; i++) wrong += t->out[i] != expected(t, i);
    MPI_Allreduce(&wrong, &all, 1, MPI_LONG, MPI_SUM, MPI_COMM_WORLD);
    return all;
}

/* Sums of zeros stay zeros, however often they are taken. */
static inline void clear(const trial *t) {
    memset(t->in, 0, (size_t)in_count(t) * sizeof(float));
    memset(t->out, 0, (size_t)out_count(t) * sizeof(float));
}

/* OP [MIN_BYTES [MAX_BYTES [FACTOR [SECONDS]]]]: the op, OPS for all, -1 when that is not what was given. */
static inline int read_arguments(int argc, char **argv, long numbers[3], double *seconds) {
    static const int64_t least[3] = {4, 4, 2}, most = INT64_C(1) << 32;
    int64_t read[3] = {4096, 64 << 20, 4};
    int op = 0;
    bool good = argc > 1 && argc <= 6;
    *seconds = 0.25;
    for (int i = 0; i < 3; i++) {
        good = good && (i + 2 >= argc || tshi_parse_int64(argv[i + 2], least[i], most, &read[i]));
        numbers[i] = (long)read[i];
    }
    good = good && (argc < 6 || tshi_parse_real(argv[5], 1e-9, 1e6, seconds));
    while (good && op < OPS && strcmp(argv[1], names[op]) != 0) op++;
    return good && (op < OPS || !strcmp(argv[1], "all")) ? op : -1;
}

#endif
