/* tshard-rendezvous [--most N] [METHOD...]: how long the rendezvous takes, and how that grows with the number of ranks.
 *
 * Forks 2, 4, ... N ranks (512 by default) on this machine, each with a heap of 1 MiB; they join a world, pass one
 * barrier and leave. Prints a row for each method (env, tcp, file, multicast) and number of ranks: seconds until the
 * slowest rank has its world, seconds until it has passed the barrier, and the former divided by the number of
 * ranks. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "base/clock.h"
#include "base/number.h"
#include "common/output.h"
#include "tshard/dist.h"

#include <netinet/in.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

enum { METHODS = 4 };

typedef struct times {
    double joined,
        passed; /* seconds from the start until a rank has its world, and has passed the barrier; 0: it failed */
} times;

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
    double joined = tshi_clock() - start;
    if (status == TSH_OK) status = tsh_barrier(tsh_world_group(world));
    if (status == TSH_OK) *out = (times){joined, tshi_clock() - start};
    if (status != TSH_OK) fprintf(stderr, "rank %d: %s\n", rank, tsh_error_message());
    tsh_world_destroy(world);
    return status == TSH_OK ? 0 : 1;
}

/* Writes the slowest rank's times; returns false when a rank failed. */
static bool measure(const char *method, int ranks, times *all, times *slowest) {
    double start = tshi_clock();
    int failed = 0, status;
    pid_t parent = getpid();
    memset(all, 0, (size_t)ranks * sizeof *all);
    fflush(NULL);
    for (int i = 0; i < ranks; i++) {
        pid_t pid = fork();
        if (pid < 0 && failed++ == 0) perror("tshard-rendezvous: fork");
        if (pid != 0) continue;
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        _exit(getppid() != parent ? 1 : run_rank(method, i, ranks, start, &all[i]));
    }
    while (wait(&status) > 0) failed += status != 0;
    *slowest = (times){0};
    for (int i = 0; i < ranks; i++) {
        if (all[i].joined > slowest->joined) slowest->joined = all[i].joined;
        if (all[i].passed > slowest->passed) slowest->passed = all[i].passed;
    }
    return failed == 0;
}

static const char *full_method(const char *name, int port, char *text, size_t size) {
    if (!strcmp(name, "tcp"))
        snprintf(text, size, "tcp://127.0.0.1:%d", port);
    else if (!strcmp(name, "file"))
        snprintf(text, size, "file:///tmp/tshard-rendezvous-%d", (int)getpid());
    else if (!strcmp(name, "multicast"))
        snprintf(text, size, "tcp://239.255.17.6:%d", port);
    else
        snprintf(text, size, "env://");
    return text;
}

/* One that the kernel has chosen, and that nobody else has taken since. */
static int free_port(void) {
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof at;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0 || bind(fd, (const void *)&at, sizeof at) != 0 || getsockname(fd, (void *)&at, &size) != 0) return 0;
    close(fd);
    return ntohs(at.sin_port);
}

static bool sweep(const char *name, int most, times *all) {
    bool good = true;
    for (int ranks = 2; ranks <= most; ranks *= 2) {
        char method[64];
        times slowest;
        int port = free_port();
        set_number("MASTER_PORT", port);
        if (!measure(full_method(name, port, method, sizeof method), ranks, all, &slowest)) good = false;
        printf("%-9s %6d %10.4f %12.4f %16.6f\n", name, ranks, slowest.joined, slowest.passed, slowest.joined / ranks);
        fflush(stdout);
    }
    return good;
}

static const char help[] =
    "usage: tshard-rendezvous [--most N] [env] [tcp] [file] [multicast]\n"
    "\n"
    "Measures how long 2, 4, ... N ranks of this machine take to find each other. N is 2 to 4096 "
    "(default: 512).\n";

static int wrong_use(const char *format, const char *word) {
    return output_usage_error("tshard-rendezvous", help, format, word);
}

static int run(int argc, char **argv) {
    static const char *const names[METHODS] = {"env", "tcp", "file", "multicast"};
    bool wanted[METHODS] = {false}, good = true, some = false;
    int most = 512;
    for (int a = 1; a < argc; a++) {
        size_t i = 0;
        if (!strcmp(argv[a], "--help") || !strcmp(argv[a], "-h")) return fputs(help, stdout) < 0;
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
        perror("tshard-rendezvous: mmap");
        return 1;
    }
    printf("%-9s %6s %10s %12s %16s\n", "method", "ranks", "joined [s]", "passed [s]", "joined/rank [s]");
    for (size_t i = 0; i < METHODS; i++) {
        if (wanted[i] || !some) good = sweep(names[i], most, all) && good;
    }
    return good ? 0 : 1;
}

int main(int argc, char **argv) {
    output_begin();
    return output_end("tshard-rendezvous", run(argc, argv));
}
