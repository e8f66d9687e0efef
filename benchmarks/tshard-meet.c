/* tshard-meet [METHOD...]: how long ranks take to meet, and how that grows.
 *
 * Forks 2, 4, ... 512 light ranks (a heap of 1 MiB each) on this machine, which meet, cross one barrier and leave. A
 * row for each method (env, tcp, file, many: tcp with a multicast address) and number: seconds until the slowest rank
 * has its world, until it has crossed the barrier, and the first divided by the number of ranks. --most N changes
 * 512. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "base/number.h"
#include "common/output.h"
#include "tshard/dist.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { METHODS = 4 };

typedef struct times {
    double met, crossed; /* of a rank, seconds since the first was started; 0: it failed */
} times;

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void set_number(const char *name, int value) {
    char text[16];
    snprintf(text, sizeof text, "%d", value);
    setenv(name, text, 1);
}

static int run_rank(const char *method, int rank, int ranks, double start, times *out) {
    tsh_world_config config = {.init_method = method, .heap_bytes = (size_t)1 << 20, .blas_threads = 1};
    tsh_world *world = NULL;
    set_number("RANK", rank);
    set_number("WORLD_SIZE", ranks);
    tsh_status status = tsh_world_init(&config, &world);
    double met = now() - start;
    if (status == TSH_OK) status = tsh_barrier(tsh_world_group(world));
    if (status == TSH_OK) *out = (times){met, now() - start};
    if (status != TSH_OK) fprintf(stderr, "rank %d: %s\n", rank, tsh_error_message());
    tsh_world_destroy(world);
    return status == TSH_OK ? 0 : 1;
}

/* The slowest rank's times; false when one failed. */
static bool measure(const char *method, int ranks, times *all, times *slowest) {
    double start = now();
    int failed = 0, status;
    pid_t parent = getpid();
    memset(all, 0, (size_t)ranks * sizeof *all);
    fflush(NULL);
    for (int i = 0; i < ranks; i++) {
        pid_t pid = fork();
        if (pid < 0 && failed++ == 0) perror("tshard-meet: fork");
        if (pid != 0) continue;
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        _exit(getppid() != parent ? 1 : run_rank(method, i, ranks, start, &all[i]));
    }
    while (wait(&status) > 0) failed += status != 0;
    *slowest = (times){0};
    for (int i = 0; i < ranks; i++) {
        if (all[i].met > slowest->met) slowest->met = all[i].met;
        if (all[i].crossed > slowest->crossed) slowest->crossed = all[i].crossed;
    }
    return failed == 0;
}

static const char *full_method(const char *name, int port, char *text, size_t size) {
    if (!strcmp(name, "tcp"))
        snprintf(text, size, "tcp://127.0.0.1:%d", port);
    else if (!strcmp(name, "file"))
        snprintf(text, size, "file:///tmp/tshard-meet-%d", (int)getpid());
    else if (!strcmp(name, "many"))
        snprintf(text, size, "tcp://239.255.17.6:%d", port);
    else
        snprintf(text, size, "env://");
    return text;
}

static bool sweep(const char *name, int most, times *all) {
    bool good = true;
    for (int ranks = 2; ranks <= most; ranks *= 2) {
        char method[64];
        times slowest;
        /* Below the ports that the system gives out by itself. */
        int port = 10000 + (int)((unsigned)getpid() * 16u + (unsigned)ranks) % 20000;
        set_number("MASTER_PORT", port);
        if (!measure(full_method(name, port, method, sizeof method), ranks, all, &slowest)) good = false;
        printf("%-5s %6d %10.4f %12.4f %14.6f\n", name, ranks, slowest.met, slowest.crossed, slowest.met / ranks);
        fflush(stdout);
    }
    return good;
}

static const char usage[] = "usage: tshard-meet [--most N] [env] [tcp] [file] [many]\n"
                            "\n"
                            "Measures how long ranks of this machine take to meet: 2, 4, ... N of them, 2 to 4096 "
                            "(default: 512).\n";

static int wrong_use(const char *format, const char *word) {
    fputs("tshard-meet: ", stderr);
    fprintf(stderr, format, word);
    fprintf(stderr, "\n%s", usage);
    return 2;
}

static int run(int argc, char **argv) {
    static const char *const names[METHODS] = {"env", "tcp", "file", "many"};
    bool wanted[METHODS] = {false}, good = true, some = false;
    int most = 512;
    for (int a = 1; a < argc; a++) {
        size_t i = 0;
        if (!strcmp(argv[a], "--help") || !strcmp(argv[a], "-h")) return fputs(usage, stdout) < 0;
        if (!strcmp(argv[a], "--most")) {
            if (a + 1 == argc) return wrong_use("%s wants a value", argv[a]);
            if (!tshi_parse_int(argv[++a], 2, 4096, &most))
                return wrong_use("--most wants 2 to 4096, not '%s'", argv[a]);
            continue;
        }
        while (i < METHODS && strcmp(argv[a], names[i]) != 0) i++;
        if (i == METHODS) return wrong_use("'%s' is no option and no method", argv[a]);
        wanted[i] = some = true;
    }
    times *all = mmap(NULL, (size_t)most * sizeof *all, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (all == MAP_FAILED) {
        perror("tshard-meet: mmap");
        return 1;
    }
    printf("%-5s %6s %10s %12s %14s\n", "by", "ranks", "met [s]", "crossed [s]", "met/rank [s]");
    for (size_t i = 0; i < METHODS; i++) {
        if (wanted[i] || !some) good = sweep(names[i], most, all) && good;
    }
    return good ? 0 : 1;
}

int main(int argc, char **argv) {
    output_begin();
    return output_end("tshard-meet", run(argc, argv));
}
