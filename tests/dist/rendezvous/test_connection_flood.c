/* Connections without end during a rendezvous: the ranks find each other, and the listening rank stays small.
 *
 * TSHARD_TEST_FLOOD=1000000 makes as many connections before the last rank comes (a few thousand otherwise) and prints
 * what they cost; they continue until the rendezvous has ended. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "dist/rendezvous/sockets.h"
#include "dist/rendezvous/wire.h"
#include "support/collectives.h"
#include "support/ports.h"

#include <criterion/criterion.h>
#include <dirent.h>
#include <errno.h>
#include <netinet/in.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#define HEAP   ((size_t)8 << 20)
#define USUAL  4000
#define RANKS  3
#define FLOODS 2
#define HELD   200 /* connections that each keeps open */
/* Descriptors that the listening rank may have: for unknown connections, for ranks, and a few of its own. */
#define DESCRIPTORS 120
#define GROWTH      4096 /* KiB */

typedef struct flood {
    char method[64];
    int port; /* 0: the local socket */
    long wanted;
    atomic_long made;
    atomic_int done, listener; /* the process of rank 0 */
    atomic_int descriptors;
    atomic_long memory, memory_before; /* KiB */
    double late,
        began; /* seconds from the start of the last rank until it has its world; seconds of the flood before */
} flood;

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void nap(double seconds) {
    struct timespec t = {.tv_nsec = (long)(seconds * 1e9)};
    nanosleep(&t, NULL);
}

/* --- what the listening rank has ---------------------------------------------------------------------------------- */

static int descriptors_of(int process) {
    char path[64];
    int n = 0;
    snprintf(path, sizeof path, "/proc/%d/fd", process);
    DIR *folder = opendir(path);
    while (folder && readdir(folder)) n++;
    if (folder) closedir(folder);
    return n;
}

static long memory_of(int process) {
    char path[64], line[256];
    long kib = 0;
    snprintf(path, sizeof path, "/proc/%d/status", process);
    FILE *file = fopen(path, "r");
    while (file && fgets(line, sizeof line, file)) {
        if (sscanf(line, "VmRSS: %ld", &kib) == 1) break;
    }
    if (file) fclose(file);
    return kib;
}

static void look(flood *f) {
    int process = atomic_load(&f->listener), fds = descriptors_of(process);
    long kib = memory_of(process);
    if (fds > atomic_load(&f->descriptors)) atomic_store(&f->descriptors, fds);
    if (kib > atomic_load(&f->memory)) atomic_store(&f->memory, kib);
}

/* --- connections that are no ranks -------------------------------------------------------------------------------- */

/* Connects from another address each time, because one address has too few ports. Closing leaves nothing behind. */
static int tcp_connection(int port, long number) {
    const struct linger none = {.l_onoff = 1};
    struct sockaddr_in from = {.sin_family = AF_INET,
                               .sin_addr.s_addr = htonl(0x7f000100u + (uint32_t)number % 50000u)};
    struct sockaddr_in to = {
        .sin_family = AF_INET, .sin_port = htons((uint16_t)port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    setsockopt(fd, SOL_SOCKET, SO_LINGER, &none, sizeof none);
    if (bind(fd, (const void *)&from, sizeof from) == 0 && connect(fd, (const void *)&to, sizeof to) == 0) return fd;
    close(fd);
    return -1;
}

/* A HELLO under the key of another job. */
static size_t greeting(unsigned char out[TSHI_WIRE_MOST]) {
    static const unsigned char key[TSHI_KEY_SIZE] = "not the key";
    const tshi_seal seal = {key, NULL};
    const tshi_frame hello = {.version = {TSH_VERSION_MAJOR, TSH_VERSION_MINOR}, .rank = 1, .size = 3};
    return tshi_wire_write(TSHI_HELLO, &hello, &seal, out);
}

static void misbehave(int fd, long way) {
    unsigned char bytes[1024];
    size_t size = greeting(bytes);
    switch (way) {
    case 0:
        memset(bytes, 'x', sizeof bytes);
        size = sizeof bytes;
        break;
    case 1: size /= 2; break;
    case 2: break; /* whole, by another key */
    case 3: size = 1; break;
    case 4:
        memset(bytes + 8, 0xff, 4); /* promises 4 GiB */
        size = TSHI_WIRE_HEAD;
        break;
    default: return; /* silence */
    }
    (void)!send(fd, bytes, size, MSG_NOSIGNAL | MSG_DONTWAIT);
}

/* Connects until the rendezvous has ended. The last HELD connections of each kind stay open, none of every third
 * kind. */
static void pour(tshi_rank *r, flood *f) {
    int held[HELD];
    tsh_world_config config = {0};
    tshi_settings settings;
    tshi_endpoint endpoint;
    for (int i = 0; i < HELD; i++) held[i] = -1;
    if (!tshi_check_ok(r, tshi_settings_read(&config, &settings))) return;
    tshi_unix_endpoint(&settings, &endpoint);
    for (long i = 0; !atomic_load(&f->done); i++) {
        int fd = f->port ? tcp_connection(f->port, i) : tshi_socket_connect(&endpoint, tshi_clock() + 1);
        if (fd < 0) {
            nap(0.0005);
            continue;
        }
        long count = atomic_fetch_add(&f->made, 1);
        misbehave(fd, i % 7);
        int *place = &held[i % HELD];
        if (*place >= 0) close(*place);
        *place = fd;
        if (i % 3 == 0) close(fd), *place = -1;
        if (count % 500 == 0) look(f);
    }
    for (int i = 0; i < HELD; i++) {
        if (held[i] >= 0) close(held[i]);
    }
}

/* --- the job ------------------------------------------------------------------------------------------------------ */

static void take_nothing(void *user, tsh_log_level level, const char *line) {
    (void)user;
    (void)level;
    (void)line;
}

static void job(tshi_rank *r, flood *f) {
    tsh_world_config config = {.init_method = f->method, .heap_bytes = HEAP, .log = {take_nothing, NULL}};
    if (r->rank == 0) {
        atomic_store(&f->memory_before, memory_of(getpid()));
        atomic_store(&f->listener, getpid());
    }
    double start = now();
    while (r->rank == RANKS - 1 && atomic_load(&f->made) < f->wanted) nap(0.01);
    if (r->rank == RANKS - 1) f->began = now() - start;
    start = now();
    tsh_status status = tsh_world_init(&config, &r->world);
    if (r->rank == RANKS - 1) f->late = now() - start;
    atomic_store(&f->done, 1);
    if (!tshi_check_ok(r, status)) return;
    tshi_try_all_reduce(r, tsh_world_group(r->world), TSH_FLOAT32, TSH_REDUCE_SUM, 10);
    tsh_world_destroy(r->world);
    r->world = NULL;
}

static void flooded(tshi_rank *r, void *arg) {
    flood *f = arg;
    char ranks[16];
    snprintf(ranks, sizeof ranks, "%d", RANKS);
    setenv("WORLD_SIZE", ranks, 1);
    setenv("LOCAL_WORLD_SIZE", ranks, 1);
    if (r->rank < RANKS) {
        job(r, f);
    } else {
        setenv("RANK", "0", 1);
        setenv("LOCAL_RANK", "0", 1);
        pour(r, f);
    }
}

static void run_flood(bool local) {
    const char *text = getenv("TSHARD_TEST_FLOOD");
    flood *f = mmap(NULL, sizeof *f, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    cr_assert_neq(f, MAP_FAILED);
    f->port = local ? 0 : tshi_test_port();
    f->wanted = text ? atol(text) : USUAL;
    if (local)
        snprintf(f->method, sizeof f->method, "env://");
    else
        snprintf(f->method, sizeof f->method, "tcp://127.0.0.1:%d", f->port);
    tshi_test_options options = {
        .ranks = RANKS + FLOODS, .bare = true, .timeout = text ? 280 : 30, .world_timeout = text ? "120" : "25"};
    cr_assert_str_empty(tshi_test_run_with(&options, flooded, f, NULL, NULL));
    long growth = atomic_load(&f->memory) - atomic_load(&f->memory_before);
    int fds = atomic_load(&f->descriptors);
    if (text) {
        fprintf(stderr,
                "%s: %ld connections in %.1f s; then the last rank came and had its world after %.3f s; "
                "the one that listens: at most %d descriptors, %ld KiB more\n",
                f->method, atomic_load(&f->made), f->began, f->late, fds, growth);
    }
    cr_assert(fds > 0 && fds < DESCRIPTORS, "%d descriptors", fds);
#if !defined(__SANITIZE_ADDRESS__)
    cr_assert_lt(growth, GROWTH, "%ld KiB", growth);
#endif
    munmap(f, sizeof *f);
}

Test(flood, tcp, .timeout = 300) {
    run_flood(false);
}

Test(flood, local_socket, .timeout = 300) {
    run_flood(true);
}
