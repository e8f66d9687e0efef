/* A program of a user that has MPI of its own: mpi_host SCENARIO, as ranks of MPI. It sees the public headers alone,
 * and exits with 0 when all that it checked holds on this rank. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "tshard/mpi.h"
#include "tshard/tshard.h"

#include <mpi.h>
#include <netinet/in.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

static int rank, size; /* of MPI_COMM_WORLD */
static int failures;

static void check(bool holds, const char *format, ...) {
    va_list arguments;
    if (holds) return;
    failures++;
    fprintf(stderr, "rank %d of %d: ", rank, size);
    va_start(arguments, format);
    vfprintf(stderr, format, arguments);
    va_end(arguments);
    fprintf(stderr, " (%s)\n", tsh_error_message());
}

/* The status, and words in the message. */
static void expect(tsh_status status, tsh_status wanted, const char *words) {
    check(status == wanted && strstr(tsh_error_message(), words), "%s, not %s with \"%s\"", tsh_status_name(status),
          tsh_status_name(wanted), words);
}

static MPI_Comm part(int color) {
    MPI_Comm out;
    MPI_Comm_split(MPI_COMM_WORLD, color, rank, &out);
    return out;
}

static tsh_world *world_over(MPI_Comm comm) {
    const tsh_world_config config = {.heap_bytes = (size_t)64 << 20, .timeout = 30};
    tsh_world *world = NULL;
    check(tsh_world_init_mpi(comm, &config, &world) == TSH_OK && world, "no world");
    return world;
}

/* The sum of the numbers that the ranks of the world contribute, or the failure. */
static tsh_status sum_over(tsh_world *world, int64_t mine, int64_t *sum) {
    tsh_tensor *x = NULL;
    const tsh_tensor_config config = {.dtype = TSH_INT64, .ndim = 1, .shape = {1}, .layout = {TSH_LOCAL}};
    tsh_status status = tsh_tensor_create(tsh_world_mesh(world), &config, &x);
    if (status == TSH_OK) status = tsh_tensor_write(x, &mine, 1);
    if (status == TSH_OK) status = tsh_all_reduce(tsh_world_group(world), x, TSH_REDUCE_SUM);
    if (status == TSH_OK) status = tsh_tensor_read(x, sum, 1);
    tsh_tensor_release(x);
    return status;
}

static void check_sum(tsh_world *world, int64_t mine, int64_t wanted) {
    int64_t sum = -1;
    tsh_status status = world ? sum_over(world, mine, &sum) : TSH_ERR_STATE;
    check(status == TSH_OK && sum == wanted, "the sum is %lld, not %lld", (long long)sum, (long long)wanted);
}

static int64_t sum_below(int n) {
    return (int64_t)n * (n - 1) / 2;
}

/* --- worlds ------------------------------------------------------------------------------------------------------- */

/* A world over all ranks, which MPI's own calls surround. */
static void whole(void) {
    int finalized = 1, mpi_sum = 0;
    const char *asked = getenv("TSHARD_BACKEND");
    tsh_world *world = world_over(MPI_COMM_WORLD);
    check(tsh_world_rank(world) == rank && tsh_world_size(world) == size, "rank %d of %d", tsh_world_rank(world),
          tsh_world_size(world));
    const char *backend = tsh_group_backend(tsh_world_group(world)), *wanted = size == 1 ? "self" : "local";
    check(!strcmp(backend, asked && size > 1 ? asked : wanted), "the backend is %s", backend);
    check_sum(world, rank, sum_below(size));
    MPI_Allreduce(&rank, &mpi_sum, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
    check(mpi_sum == sum_below(size), "MPI's sum is %d", mpi_sum);
    tsh_world_destroy(world);
    MPI_Finalized(&finalized);
    check(!finalized, "MPI has been finalised");
}

/* Both halves of MPI_COMM_WORLD at a time, ranks of the second in reverse order; the communicator is freed before the
 * world is used. */
static void half(void) {
    MPI_Comm comm;
    bool second = rank >= size / 2;
    MPI_Comm_split(MPI_COMM_WORLD, second, second ? -rank : rank, &comm);
    tsh_world *world = world_over(comm);
    MPI_Comm_free(&comm);
    int mine = second ? size - 1 - rank : rank, n = second ? size - size / 2 : size / 2;
    check(tsh_world_rank(world) == mine && tsh_world_size(world) == n, "rank %d of %d", tsh_world_rank(world),
          tsh_world_size(world));
    check(tsh_world_local_rank(world) == mine, "local rank %d", tsh_world_local_rank(world));
    check_sum(world, rank, second ? sum_below(size) - sum_below(size / 2) : sum_below(size / 2));
    MPI_Barrier(MPI_COMM_WORLD);
    tsh_world_destroy(world);
}

/* All ranks but the last, and all but the first: most are ranks of two worlds at a time, and of a third over all. */
static void overlap(void) {
    MPI_Comm low = part(rank < size - 1 ? 0 : MPI_UNDEFINED), high = part(rank > 0 ? 0 : MPI_UNDEFINED);
    tsh_world *a = low != MPI_COMM_NULL ? world_over(low) : NULL, *b = high != MPI_COMM_NULL ? world_over(high) : NULL;
    tsh_world *all = world_over(MPI_COMM_WORLD);
    for (int i = 0; i < 3; i++) {
        if (a) check_sum(a, rank, sum_below(size) - (size - 1));
        check_sum(all, 1, size);
        if (b) check_sum(b, rank, sum_below(size));
    }
    tsh_world_destroy(a);
    check_sum(all, 2, 2 * size);
    if (b) check_sum(b, 1, size - 1);
    tsh_world_destroy(all);
    tsh_world_destroy(b);
    if (low != MPI_COMM_NULL) MPI_Comm_free(&low);
    if (high != MPI_COMM_NULL) MPI_Comm_free(&high);
}

/* A world that is destroyed and made anew, over all ranks and over parts of them: the notices of ranks that leave late
 * reach no later world. */
static void anew(void) {
    MPI_Comm comm = part(rank % 2);
    for (int i = 0; i < 3; i++) {
        tsh_world *all = world_over(MPI_COMM_WORLD);
        check_sum(all, i, i * size);
        if (rank % 2) usleep(50000); /* odd ranks leave when even ones are in their next world */
        tsh_world_destroy(all);
        tsh_world *some = world_over(comm);
        int n = rank % 2 ? size / 2 : size - size / 2;
        for (int k = 0; k < 100; k++) check_sum(some, k, k * n);
        tsh_world_destroy(some);
    }
    MPI_Comm_free(&comm);
}

/* Receives of the program for any message of any rank are open while tshard works. */
static void traffic(void) {
    enum { OPEN = 4 };
    int got[OPEN] = {0}, sent = 100 + rank, sum = 0;
    MPI_Request open[OPEN], request[OPEN];
    MPI_Status done[OPEN];
    for (int i = 0; i < OPEN; i++)
        MPI_Irecv(&got[i], 1, MPI_INT, MPI_ANY_SOURCE, MPI_ANY_TAG, MPI_COMM_WORLD, &open[i]);
    tsh_world *world = world_over(MPI_COMM_WORLD);
    for (int i = 0; i < 20; i++) check_sum(world, rank, sum_below(size));
    for (int i = 0; i < OPEN; i++) {
        MPI_Isend(&sent, 1, MPI_INT, (rank + 1) % size, i, MPI_COMM_WORLD, &request[i]);
        check_sum(world, i, i * size);
    }
    tsh_world_destroy(world);
    MPI_Waitall(OPEN, open, done);
    MPI_Waitall(OPEN, request, done);
    for (int i = 0; i < OPEN; i++) sum += got[i];
    check(sum == OPEN * (100 + (rank + size - 1) % size), "the program's messages add up to %d", sum);
}

/* --- what is refused ---------------------------------------------------------------------------------------------- */

static tsh_status init(MPI_Comm comm, const tsh_world_config *config) {
    tsh_world *world = (tsh_world *)(void *)&failures;
    tsh_status status = tsh_world_init_mpi(comm, config, &world);
    check((status == TSH_OK) == (world != NULL), "*out is %p", (void *)world);
    tsh_world_destroy(world);
    return status;
}

/* A thread that did not start MPI, which was started for the calls of one. */
static void *other_thread(void *unused) {
    (void)unused;
    expect(init(MPI_COMM_WORLD, NULL), TSH_ERR_STATE,
           "initialized for its main thread only, and this is another thread");
    return NULL;
}

/* An error of one rank is one of all ranks, and MPI works on. */
static void misuse(void) {
    pthread_t thread;
    if (pthread_create(&thread, NULL, other_thread, NULL) == 0) pthread_join(thread, NULL);
    tsh_world_config config = {.heap_bytes = 1 << 20, .timeout = rank == 1 ? -1 : 20};
    expect(tsh_world_init_mpi(MPI_COMM_WORLD, NULL, NULL), TSH_ERR_ARGUMENT, "out is NULL");
    expect(init(MPI_COMM_NULL, NULL), TSH_ERR_ARGUMENT, "MPI_COMM_NULL");
    expect(init(MPI_COMM_WORLD, &config), rank == 1 ? TSH_ERR_ARGUMENT : TSH_ERR_PEER,
           rank == 1 ? "the timeout is -1 seconds" : "rank 1: world_init: the timeout is -1 seconds");
    config = (tsh_world_config){.heap_bytes = 1 << 20, .rank = size - 1 - rank, .world_size = size + 1};
    expect(init(MPI_COMM_WORLD, &config), TSH_ERR_ARGUMENT, "the communicator rank");
    config = (tsh_world_config){.heap_bytes = 1 << 20, .init_method = "env://"};
    expect(init(MPI_COMM_WORLD, &config), TSH_ERR_ARGUMENT, "init_method stay unset");
    config = (tsh_world_config){.heap_bytes = 1 << 20, .rank = rank, .world_size = size};
    check(init(MPI_COMM_WORLD, &config) == TSH_OK, "no world of the ranks that MPI has too");
    MPI_Comm half_of = part(rank % 2), between;
    MPI_Intercomm_create(half_of, 0, MPI_COMM_WORLD, 1 - rank % 2, 7, &between);
    expect(init(between, NULL), TSH_ERR_ARGUMENT, "intercommunicator");
    MPI_Comm_free(&between);
    MPI_Comm_free(&half_of);
}

/* This rank ends without MPI_Finalize, which would wait for one that has not come. */
static void survive(void) {
    if (!failures) printf("survived: rank %d\n", rank);
    fflush(NULL);
    usleep(500000); /* the launcher ends the others when one ends like this */
    _exit(failures != 0);
}

/* One rank does not come. */
static void missing(void) {
    const tsh_world_config config = {.heap_bytes = 1 << 20, .timeout = 0.5};
    if (rank > 0) {
        expect(init(MPI_COMM_WORLD, &config), TSH_ERR_TIMEOUT, "not all ranks of MPI_COMM_WORLD came within 0.5 s");
        survive();
    }
    usleep(1500000);
    _exit(0);
}

/* MPI_Finalize before the world is destroyed: on `local` the world goes on, over MPI it says what has happened. */
static void finalized(void) {
    tsh_world *world = world_over(MPI_COMM_WORLD);
    bool local = strcmp(tsh_group_backend(tsh_world_group(world)), "mpi") != 0;
    int64_t sum = 0;
    check_sum(world, 1, size);
    MPI_Finalize();
    tsh_status status = sum_over(world, 1, &sum);
    if (local)
        check(status == TSH_OK && sum == size, "the sum is %lld", (long long)sum);
    else
        expect(status, TSH_ERR_STATE, "MPI has been finalised, and this world runs over it");
    tsh_world_destroy(world);
    expect(init(MPI_COMM_WORLD, NULL), TSH_ERR_STATE, "MPI has been finalised");
}

/* --- ranks that die ----------------------------------------------------------------------------------------------- */

/* Rank 1 of the first half dies: the ranks of its world are told, those of the other half know nothing of it. */
static void dies(void) {
    int64_t sum = 0;
    MPI_Comm comm = part(rank < size / 2 ? 0 : 1);
    tsh_world *world = world_over(comm);
    MPI_Barrier(MPI_COMM_WORLD);
    if (rank == 1) raise(SIGKILL);
    tsh_status status = sum_over(world, 1, &sum);
    if (rank < size / 2)
        check(status == TSH_ERR_PEER && strstr(tsh_error_message(), "rank 1") && strstr(tsh_error_message(), "died"),
              "%s", tsh_status_name(status));
    else
        check(status == TSH_OK && sum == size - size / 2, "the sum is %lld", (long long)sum);
    tsh_world_destroy(world);
    survive();
}

/* --- the environment ---------------------------------------------------------------------------------------------- */

static void check_explicit(const char *method, int mine, int n, int64_t wanted) {
    const tsh_world_config config = {
        .rank = mine, .world_size = n, .init_method = method, .heap_bytes = 1 << 24, .timeout = 30};
    tsh_world *world = NULL;
    check(tsh_world_init(&config, &world) == TSH_OK, "%s: no world of rank %d of %d", method, mine, n);
    check(tsh_world_rank(world) == mine && tsh_world_size(world) == n, "%s: rank %d of %d", method,
          tsh_world_rank(world), tsh_world_size(world));
    if (world) check_sum(world, rank, wanted);
    tsh_world_destroy(world);
    MPI_Barrier(MPI_COMM_WORLD);
}

static void set_number(const char *name, int value) {
    char text[16];
    snprintf(text, sizeof text, "%d", value);
    setenv(name, text, 1);
}

/* Where all ranks meet, at a port that the kernel has chosen for rank `first`, which has left it. */
static const char *meeting(int first, char text[64]) {
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t bytes = sizeof at;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), port = 0;
    bool bound = bind(fd, (const void *)&at, sizeof at) == 0 && getsockname(fd, (void *)&at, &bytes) == 0;
    if (bound) port = ntohs(at.sin_port);
    close(fd);
    MPI_Bcast(&port, 1, MPI_INT, first, MPI_COMM_WORLD);
    snprintf(text, 64, "tcp://127.0.0.1:%d", port);
    return text;
}

/* The rank and size of the configuration are taken, whatever the variables of launchers say, mpirun's and others. */
static void variables(void) {
    char file[256], tcp[64];
    const char *folder = getenv("TEST_FOLDER");
    int first = size / 2, last = size - first;
    for (int round = 0; round < 3; round++) {
        if (round == 1) { /* a launcher that has numbered other ranks */
            set_number("RANK", (rank + 1) % (size + 3));
            set_number("WORLD_SIZE", size + 3);
            setenv("LOCAL_RANK", "0", 1);
        } else if (round == 2) { /* numbers that cannot be */
            set_number("RANK", rank + 7);
            setenv("WORLD_SIZE", "2", 1);
            setenv("SLURM_PROCID", "x", 1);
            setenv("PMIX_RANK", "99", 1);
        }
        check_explicit("env://", size - 1 - rank, size, sum_below(size));
        if (rank < first) check_explicit("env://", rank, first, sum_below(first));
        if (rank >= first) MPI_Barrier(MPI_COMM_WORLD);
        snprintf(file, sizeof file, "file://%s/rendezvous-%d", folder ? folder : "/tmp", rank < first);
        check_explicit(file, rank < first ? rank : rank - first, rank < first ? first : last,
                       rank < first ? sum_below(first) : sum_below(size) - sum_below(first));
        check_explicit(meeting(size - 1, tcp), size - 1 - rank, size, sum_below(size));
        check_explicit("env://", 0, 1, rank);
        tsh_world *world = world_over(MPI_COMM_WORLD);
        check_sum(world, rank, sum_below(size));
        tsh_world_destroy(world);
    }
}

/* ------------------------------------------------------------------------------------------------------------------ */

static const struct {
    const char *name;
    void (*run)(void);
    int level; /* MPI_Init_thread asks for it */
} scenarios[] = {
    {"single", whole, MPI_THREAD_SINGLE},
    {"multiple", whole, MPI_THREAD_MULTIPLE},
    {"half", half, MPI_THREAD_SINGLE},
    {"overlap", overlap, MPI_THREAD_SINGLE},
    {"anew", anew, MPI_THREAD_SINGLE},
    {"traffic", traffic, MPI_THREAD_FUNNELED},
    {"misuse", misuse, MPI_THREAD_FUNNELED},
    {"missing", missing, MPI_THREAD_SINGLE},
    {"dies", dies, MPI_THREAD_SINGLE},
    {"finalized", finalized, MPI_THREAD_SINGLE},
    {"variables", variables, MPI_THREAD_SERIALIZED},
};

int main(int argc, char **argv) {
    size_t i = 0, n = sizeof scenarios / sizeof *scenarios;
    int level, over = 0;
    while (argc > 1 && i < n && strcmp(argv[1], scenarios[i].name) != 0) i++;
    if (argc < 2 || i == n) return 2;
    expect(init(MPI_COMM_WORLD, NULL), TSH_ERR_STATE, "MPI_Init has not been called");
    MPI_Init_thread(&argc, &argv, scenarios[i].level, &level);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    scenarios[i].run();
    fflush(NULL);
    MPI_Finalized(&over);
    if (!over) MPI_Finalize();
    return failures != 0;
}
