/* MPI's collectives called directly, measured and reported as tshard-bench collectives does:
 *   mpirun -n 2 mpi_collectives OP [MIN_BYTES [MAX_BYTES [FACTOR [SECONDS]]]]        defaults: 4096 67108864 4 0.25
 * OP: all_reduce, all_gather, reduce_scatter, broadcast, all_to_all, send_recv (a round trip of rank 0 and 1), all.
 * float32; sizes are those of a rank's larger buffer. One JSON object a line. */
#include "../tshard-bench/timing.h"

#include <mpi.h>
#include <stdbool.h>
#include <stdio.h>

enum { ALL_REDUCE, ALL_GATHER, REDUCE_SCATTER, BROADCAST, ALL_TO_ALL, SEND_RECV, OPS };
static const char *const names[OPS] = {"all_reduce", "all_gather", "reduce_scatter",
                                       "broadcast",  "all_to_all", "send_recv"};

typedef struct trial {
    int op, count, rank, ranks;
    float *in, *out;
} trial;

static int meet(void *user) {
    (void)user;
    return MPI_Barrier(MPI_COMM_WORLD);
}

static int slowest(void *user, double *samples, int n) {
    (void)user;
    return MPI_Allreduce(MPI_IN_PLACE, samples, n, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
}

static int round_trip(const trial *t) {
    if (t->rank > 1) return MPI_SUCCESS;
    int peer = 1 - t->rank, error;
    if (t->rank == 0) {
        error = MPI_Send(t->in, t->count, MPI_FLOAT, peer, 0, MPI_COMM_WORLD);
        return error ? error : MPI_Recv(t->out, t->count, MPI_FLOAT, peer, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    }
    error = MPI_Recv(t->out, t->count, MPI_FLOAT, peer, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    return error ? error : MPI_Send(t->out, t->count, MPI_FLOAT, peer, 0, MPI_COMM_WORLD);
}

static int call(const trial *t) {
    int n = t->count, part = n / t->ranks;
    MPI_Comm all = MPI_COMM_WORLD;
    switch (t->op) {
    case ALL_REDUCE: return MPI_Allreduce(MPI_IN_PLACE, t->out, n, MPI_FLOAT, MPI_SUM, all);
    case ALL_GATHER: return MPI_Allgather(t->in, part, MPI_FLOAT, t->out, part, MPI_FLOAT, all);
    case REDUCE_SCATTER: return MPI_Reduce_scatter_block(t->in, t->out, part, MPI_FLOAT, MPI_SUM, all);
    case BROADCAST: return MPI_Bcast(t->out, n, MPI_FLOAT, 0, all);
    case ALL_TO_ALL: return MPI_Alltoall(t->in, part, MPI_FLOAT, t->out, part, MPI_FLOAT, all);
    default: return round_trip(t);
    }
}

static int repeat(void *context, int calls) {
    const trial *t = context;
    for (int i = 0; i < calls; i++) {
        int error = call(t);
        if (error) return error;
    }
    return 0;
}

/* Whole numbers, which add up exactly. */
static float value_at(int rank, int i) {
    return (float)((i % 17 + 3 * rank) % 16);
}

static float sum_at(int ranks, int i) {
    float sum = 0;
    for (int rank = 0; rank < ranks; rank++) sum += value_at(rank, i);
    return sum;
}

static float expected(const trial *t, int i) {
    int part = t->count / t->ranks;
    switch (t->op) {
    case ALL_REDUCE: return sum_at(t->ranks, i);
    case ALL_GATHER: return value_at(i / part, i % part);
    case REDUCE_SCATTER: return sum_at(t->ranks, t->rank * part + i);
    case ALL_TO_ALL: return value_at(i / part, t->rank * part + i % part);
    default: return value_at(0, i);
    }
}

/* Wrong elements on all ranks. */
static long check(trial *t) {
    long wrong = 0, all = 0;
    bool in_place = t->op == ALL_REDUCE || t->op == BROADCAST;
    for (int i = 0; i < t->count; i++) {
        t->in[i] = value_at(t->rank, i);
        t->out[i] = in_place ? t->in[i] : -1;
    }
    repeat(t, 1);
    int n = t->op == REDUCE_SCATTER ? t->count / t->ranks : t->count;
    if (t->op == SEND_RECV && t->rank > 1) n = 0;
    for (int i = 0; i < n; i++) wrong += t->out[i] != expected(t, i);
    MPI_Allreduce(&wrong, &all, 1, MPI_LONG, MPI_SUM, MPI_COMM_WORLD);
    return all;
}

static void run_size(trial *t, const char *backend, double seconds_to_spend) {
    const timing_ranks ranks = {meet, slowest, NULL};
    double seconds = 0, bytes = (double)t->count * sizeof(float);
    long wrong = check(t);
    memset(t->in, 0, (size_t)t->count * sizeof(float)); /* sums of zeros stay zeros */
    memset(t->out, 0, (size_t)t->count * sizeof(float));
    timing_measure(&ranks, repeat, t, seconds_to_spend, &seconds);
    if (t->rank != 0) return;
    printf("{\"bench\": \"collectives\", \"op\": \"%s\", \"backend\": \"%s\", \"ranks\": %d, \"dtype\": \"float32\", "
           "\"bytes\": %.0f, \"time_us\": %.6g, \"algbw_gbps\": %.6g, \"wrong\": %ld}\n",
           names[t->op], backend, t->ranks, bytes, 1e6 * seconds, bytes / seconds * 1e-9, wrong);
    fflush(stdout);
}

static const char *backend_name(void) {
    char text[MPI_MAX_LIBRARY_VERSION_STRING] = "";
    int length = 0;
    MPI_Get_library_version(text, &length);
    if (!strncmp(text, "Open MPI", 8)) return "openmpi";
    return !strncmp(text, "MPICH", 5) ? "mpich" : "mpi";
}

static int run_op(trial *t, const long *numbers, double seconds) {
    for (long bytes = numbers[0]; bytes <= numbers[1]; bytes *= numbers[2]) {
        t->count = (int)(bytes / 4) / t->ranks * t->ranks;
        if (t->count == 0) t->count = t->ranks;
        size_t room = ((size_t)t->count * sizeof(float) + 63) / 64 * 64;
        t->in = aligned_alloc(64, room);
        t->out = aligned_alloc(64, room);
        if (!t->in || !t->out) return 1;
        run_size(t, backend_name(), seconds);
        free(t->in);
        free(t->out);
    }
    return 0;
}

int main(int argc, char **argv) {
    MPI_Init(&argc, &argv);
    long numbers[3] = {4096, 64L << 20, 4};
    int code = 0, op = 0;
    trial t = {0};
    for (int i = 0; i < 3 && i + 2 < argc; i++) numbers[i] = strtol(argv[i + 2], NULL, 10);
    double seconds = argc > 5 ? strtod(argv[5], NULL) : 0.25;
    MPI_Comm_rank(MPI_COMM_WORLD, &t.rank);
    MPI_Comm_size(MPI_COMM_WORLD, &t.ranks);
    bool all = argc > 1 && !strcmp(argv[1], "all");
    while (argc > 1 && op < OPS && strcmp(argv[1], names[op]) != 0) op++;
    if ((op == OPS && !all) || argc < 2 || numbers[0] < 4 || numbers[1] > 1L << 32 || numbers[2] < 2) {
        if (t.rank == 0) fputs("usage: mpi_collectives OP [MIN_BYTES [MAX_BYTES [FACTOR [SECONDS]]]]\n", stderr);
        MPI_Finalize();
        return 2;
    }
    for (t.op = 0; t.op < OPS && code == 0; t.op++) {
        if (all || t.op == op) code = run_op(&t, numbers, seconds);
    }
    if (code) MPI_Abort(MPI_COMM_WORLD, 1);
    MPI_Finalize();
    return code;
}
