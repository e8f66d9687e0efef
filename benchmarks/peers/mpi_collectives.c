/* MPI's collectives called directly, measured and reported as tshard-bench collectives does:
 *   mpirun -n 2 mpi_collectives OP [MIN_BYTES [MAX_BYTES [FACTOR [SECONDS]]]]        defaults: 4096 67108864 4 0.25
 * OP: all_reduce, all_gather, reduce_scatter, broadcast, all_to_all, reduce, gather, scatter, barrier (one line),
 * send_recv (a round trip of rank 0 and 1), all. float32; sizes are those of a rank's larger buffer, roots are rank 0.
 * One JSON object a line. */
#include "mpi_calls.h"

static void run_size(trial *t, const char *backend, double seconds_to_spend) {
    const timing_ranks ranks = {meet, slowest, NULL};
    double seconds = 0, bytes = (double)t->count * sizeof(float);
    long wrong = check(t);
    clear(t);
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
        t->count = count_of(t, bytes);
        size_t room = ((size_t)t->count * sizeof(float) + 64) / 64 * 64;
        t->in = aligned_alloc(64, room);
        t->out = aligned_alloc(64, room);
        if (!t->in || !t->out) {
            fprintf(stderr, "mpi_collectives: no memory for %ld bytes\n", bytes);
            return 1;
        }
        run_size(t, backend_name(), seconds);
        free(t->in);
        free(t->out);
        if (t->op == BARRIER) break;
    }
    return 0;
}

static int run(int argc, char **argv) {
    MPI_Init(&argc, &argv);
    trial t = {.call = call_mpi};
    long numbers[3];
    double seconds;
    int op = read_arguments(argc, argv, numbers, &seconds), code = 0;
    MPI_Comm_rank(MPI_COMM_WORLD, &t.rank);
    MPI_Comm_size(MPI_COMM_WORLD, &t.ranks);
    if (op < 0) {
        if (t.rank == 0) fputs("usage: mpi_collectives OP [MIN_BYTES [MAX_BYTES [FACTOR [SECONDS]]]]\n", stderr);
        MPI_Finalize();
        return 2;
    }
    if (op == SEND_RECV && t.ranks < 2) {
        fputs("mpi_collectives: send_recv wants 2 ranks or more\n", stderr);
        code = 1;
    }
    for (t.op = 0; t.op < OPS && code == 0; t.op++) {
        if (op == OPS ? t.op != SEND_RECV || t.ranks > 1 : t.op == op) code = run_op(&t, numbers, seconds);
    }
    if (code) MPI_Abort(MPI_COMM_WORLD, 1);
    MPI_Finalize();
    return code;
}

int main(int argc, char **argv) {
    output_begin();
    return output_end("mpi_collectives", run(argc, argv));
}
