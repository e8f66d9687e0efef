/* In-place MPI_Allreduce of float32, measured and reported as tshard-bench collectives does its all_reduce:
 *   mpirun -n 2 mpi_allreduce [MIN_BYTES [MAX_BYTES [FACTOR [SECONDS]]]]        defaults: 4 67108864 4 0.25
 * One JSON object a line. */
#include "../tshard-bench/timing.h"

#include <mpi.h>
#include <stdio.h>

typedef struct trial {
    float *data;
    int count, rank, ranks;
} trial;

static int meet(void *user) {
    (void)user;
    return MPI_Barrier(MPI_COMM_WORLD);
}

static int slowest(void *user, double *samples, int n) {
    (void)user;
    return MPI_Allreduce(MPI_IN_PLACE, samples, n, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
}

static int repeat(void *context, int calls) {
    trial *work = context;
    for (int i = 0; i < calls; i++) {
        int error = MPI_Allreduce(MPI_IN_PLACE, work->data, work->count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
        if (error) return error;
    }
    return 0;
}

/* Whole numbers, which add up exactly. */
static float value_at(int rank, int i) {
    return (float)((i % 17 + 3 * rank) % 16);
}

/* Wrong elements on all ranks. */
static long check(trial *work) {
    long wrong = 0, all = 0;
    for (int i = 0; i < work->count; i++) work->data[i] = value_at(work->rank, i);
    repeat(work, 1);
    for (int i = 0; i < work->count; i++) {
        float expected = 0;
        for (int rank = 0; rank < work->ranks; rank++) expected += value_at(rank, i);
        wrong += work->data[i] != expected;
    }
    MPI_Allreduce(&wrong, &all, 1, MPI_LONG, MPI_SUM, MPI_COMM_WORLD);
    return all;
}

/* "openmpi", "mpich", "intel mpi": the words before the first digit or comma, in small letters. */
static void backend_name(char name[64]) {
    char text[MPI_MAX_LIBRARY_VERSION_STRING] = "";
    int length = 0, used = 0;
    MPI_Get_library_version(text, &length);
    if (strncmp(text, "Open MPI", 8) == 0) {
        strcpy(name, "openmpi");
        return;
    }
    for (; used < 63 && text[used] && !strchr("0123456789,:(\n\"\\", text[used]); used++) {
        name[used] = (char)(text[used] >= 'A' && text[used] <= 'Z' ? text[used] + 32 : text[used]);
    }
    while (used > 0 && (name[used - 1] == ' ' || name[used - 1] == '\t')) used--;
    name[used] = '\0';
}

static void run_size(trial *work, const char *backend, double seconds_to_spend) {
    const timing_ranks ranks = {meet, slowest, NULL};
    double seconds = 0, bytes = (double)work->count * sizeof(float);
    long wrong = check(work);
    memset(work->data, 0, (size_t)work->count * sizeof(float)); /* sums of zeros stay zeros */
    timing_measure(&ranks, repeat, work, seconds_to_spend, &seconds);
    double algbw = bytes / seconds * 1e-9;
    if (work->rank != 0) return;
    printf("{\"bench\": \"collectives\", \"op\": \"all_reduce\", \"backend\": \"%s\", \"ranks\": %d, \"dtype\": "
           "\"float32\", \"bytes\": %.0f, \"time_us\": %.6g, \"algbw_gbps\": %.6g, \"busbw_gbps\": %.6g, \"wrong\": "
           "%ld}\n",
           backend, work->ranks, bytes, 1e6 * seconds, algbw, algbw * 2 * (work->ranks - 1) / work->ranks, wrong);
    fflush(stdout);
}

int main(int argc, char **argv) {
    MPI_Init(&argc, &argv);
    long numbers[3] = {4, 64L << 20, 4};
    for (int i = 0; i < 3 && i + 1 < argc; i++) numbers[i] = strtol(argv[i + 1], NULL, 10);
    double seconds = argc > 4 ? strtod(argv[4], NULL) : 0.25;
    int code = 0;
    trial work = {0};
    char backend[64] = "";
    MPI_Comm_rank(MPI_COMM_WORLD, &work.rank);
    MPI_Comm_size(MPI_COMM_WORLD, &work.ranks);
    backend_name(backend);
    if (numbers[0] < 4 || numbers[1] < numbers[0] || numbers[1] > 1L << 32 || numbers[2] < 2 || !(seconds > 0)) {
        if (work.rank == 0) fputs("usage: mpi_allreduce [MIN_BYTES [MAX_BYTES [FACTOR [SECONDS]]]]\n", stderr);
        code = 2;
    }
    for (long bytes = numbers[0]; bytes <= numbers[1] && code == 0; bytes *= numbers[2]) {
        work.count = (int)(bytes / 4);
        work.data = aligned_alloc(64, ((size_t)bytes + 63) / 64 * 64);
        if (!work.data) code = 1;
        if (work.data) run_size(&work, backend, seconds);
        free(work.data);
    }
    if (code == 1) MPI_Abort(MPI_COMM_WORLD, 1);
    MPI_Finalize();
    return code;
}
