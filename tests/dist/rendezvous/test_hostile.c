/* Unknown connections to a rendezvous: garbage, half a greeting, silence, crowds. The job continues. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "dist/rendezvous/wire.h"
#include "support/clock.h"
#include "support/collectives.h"
#include "support/ports.h"

#include <arpa/inet.h>
#include <criterion/criterion.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define HEAP ((size_t)8 << 20)

typedef struct place {
    char text[64];
    int port;
} place;

static place make_place(void) {
    place p = {.port = tshi_test_port()};
    snprintf(p.text, sizeof p.text, "tcp://127.0.0.1:%d", p.port);
    return p;
}

/* A connection, or -1; with `wait` it waits until a rank listens. */
static int connect_to(int port, bool wait) {
    struct sockaddr_in to = {
        .sin_family = AF_INET, .sin_port = htons((uint16_t)port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    for (int tries = 0; tries < (wait ? 300 : 1); tries++) {
        int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        if (connect(fd, (const void *)&to, sizeof to) == 0) return fd;
        close(fd);
        tshi_nap(0.01);
    }
    return -1;
}

static size_t greeting(unsigned char out[TSHI_WIRE_MOST]) {
    static const unsigned char key[TSHI_KEY_SIZE] = "not the key";
    const tshi_seal seal = {key, NULL};
    tshi_frame hello = {.version = {TSH_VERSION_MAJOR, TSH_VERSION_MINOR}, .rank = 1, .size = 3};
    return tshi_wire_write(TSHI_HELLO, &hello, &seal, out);
}

/* Misbehaves in one of several ways; the connection stays open unless the case closes it. */
static void misbehave(int fd, int way) {
    unsigned char bytes[4096];
    size_t size = greeting(bytes);
    switch (way) {
    case 0: break; /* silence */
    case 1:
        memset(bytes, 'x', sizeof bytes);
        send(fd, bytes, sizeof bytes, MSG_NOSIGNAL);
        break;
    case 2: send(fd, bytes, size / 2, MSG_NOSIGNAL); break; /* half a greeting */
    case 3: send(fd, bytes, size, MSG_NOSIGNAL); break;     /* a whole one, by another key */
    case 4:                                                 /* a head that promises 4 GiB */
        memset(bytes + 8, 0xff, 4);
        send(fd, bytes, TSHI_WIRE_HEAD, MSG_NOSIGNAL);
        break;
    case 5:
        memset(bytes + 8, 0, 4); /* a greeting of no length */
        send(fd, bytes, TSHI_WIRE_HEAD, MSG_NOSIGNAL);
        break;
    case 6: send(fd, bytes, 1, MSG_NOSIGNAL); break;
    default: send(fd, "GET / HTTP/1.1\r\nHost: x\r\n\r\n", 27, MSG_NOSIGNAL); break;
    }
}

enum { WAYS = 8 };

static bool join(tshi_rank *r, const place *p) {
    tsh_world_config config = {.init_method = p->text, .heap_bytes = HEAP};
    if (!tshi_check_ok(r, tsh_world_init(&config, &r->world))) return false;
    tshi_try_all_reduce(r, tsh_world_group(r->world), TSH_FLOAT32, TSH_REDUCE_SUM, 10);
    tsh_world_destroy(r->world);
    r->world = NULL;
    return true;
}

/* Rank 2 first makes many connections that are no ranks, and leaves most of them open. */
static void unknown_connections(tshi_rank *r, void *arg) {
    enum { CROWD = 400 };
    const place *p = arg;
    if (r->rank == 2) {
        int fds[CROWD];
        for (int i = 0; i < CROWD; i++) {
            fds[i] = connect_to(p->port, i == 0);
            if (!tshi_check(r, fds[i] >= 0, "a connection is refused")) return;
            misbehave(fds[i], i % WAYS);
            if (i % 3 == 0) close(fds[i]);
        }
    }
    join(r, p);
}

Test(hostile, unknown_connections_do_no_harm, .timeout = 120) {
    place p = make_place();
    tshi_test_options options = {.ranks = 3, .bare = true};
    cr_assert_str_empty(tshi_test_run_with(&options, unknown_connections, &p, NULL, NULL));
}

/* Shared by all ranks. */
typedef struct siege {
    place place;
    atomic_long made;
    atomic_int over;
} siege;

/* Rank 3 connects again and again until its peers have their world; rank 2 comes after a while, when there are more
 * connections than the listener keeps. */
static void flood(tshi_rank *r, void *arg) {
    siege *s = arg;
    if (r->rank == 3) {
        while (!atomic_load(&s->over)) {
            int fd = connect_to(s->place.port, false);
            if (fd >= 0) misbehave(fd, (int)(atomic_fetch_add(&s->made, 1) % WAYS));
            if (fd >= 0) close(fd);
        }
        return;
    }
    setenv("WORLD_SIZE", "3", 1);
    setenv("LOCAL_WORLD_SIZE", "3", 1);
    while (r->rank == 2 && atomic_load(&s->made) < 500) tshi_nap(0.01);
    join(r, &s->place);
    atomic_store(&s->over, 1);
}

Test(hostile, flood, .timeout = 120) {
    siege *s = mmap(NULL, sizeof *s, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    cr_assert_neq(s, MAP_FAILED);
    s->place = make_place();
    tshi_test_options options = {.ranks = 4, .bare = true};
    cr_assert_str_empty(tshi_test_run_with(&options, flood, s, NULL, NULL));
    munmap(s, sizeof *s);
}

/* Another program listens at the address: it sends nothing, or something else. Then rank 0 comes. */
static void false_host(tshi_rank *r, void *arg) {
    const place *p = arg;
    if (r->rank == 0) {
        struct sockaddr_in at = {
            .sin_family = AF_INET, .sin_port = htons((uint16_t)p->port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
        const int on = 1;
        int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
        bool good = bind(fd, (const void *)&at, sizeof at) == 0 && listen(fd, 10) == 0;
        tshi_check(r, good, "cannot stand in for a host");
        for (int i = 0; i < 3 && good; i++) {
            int peer = accept4(fd, NULL, NULL, SOCK_CLOEXEC);
            misbehave(peer, i + 1);
            tshi_nap(0.05);
            close(peer);
        }
        close(fd);
    }
    join(r, p);
}

Test(hostile, something_else_listens_first, .timeout = 120) {
    place p = make_place();
    tshi_test_options options = {.ranks = 2, .bare = true};
    cr_assert_str_empty(tshi_test_run_with(&options, false_host, &p, NULL, NULL));
}

/* --- deaths ------------------------------------------------------------------------------------------------------- */

/* Shared by all ranks: rank 2, which would complete the world, comes when rank 1 has set the flag. */
typedef struct death {
    place place;
    bool stays; /* another process keeps the connection of the dying rank open */
    atomic_int joined, sign;
} death;

/* The log line of the rank that is to die when it waits for its peers: it has joined by then. */
static void take_joined(void *user, tsh_log_level level, const char *line) {
    death *d = user;
    (void)level;
    if (!strstr(line, "waits for all 3 ranks to join") || atomic_load(&d->joined)) return;
    if (d->stays && fork() == 0) {
        tshi_nap(3);
        _exit(0);
    }
    atomic_store(&d->joined, 1);
}

static pid_t start_and_join(death *d) {
    pid_t pid = fork();
    if (pid == 0) {
        tsh_world *world = NULL;
        setenv("TSHARD_WARN", "0.05", 1);
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        tsh_world_config config = {.init_method = d->place.text, .heap_bytes = HEAP, .log = {take_joined, d}};
        tsh_world_init(&config, &world);
        _exit(0);
    }
    while (!atomic_load(&d->joined)) tshi_nap(0.01);
    return pid;
}

static void end(pid_t pid) {
    kill(pid, SIGKILL);
    waitpid(pid, NULL, 0);
}

/* A rank that has joined and dies before all ranks are there may be replaced, even where its death does not show: when
 * another process has its connection open, rank 2 does not get a world with the dead rank. */
static void dies_while_waiting(tshi_rank *r, void *arg) {
    death *d = arg;
    if (r->rank == 1) {
        pid_t pid = start_and_join(d);
        tshi_check_status(r, tsh_world_init(&(tsh_world_config){.init_method = d->place.text}, &r->world),
                          TSH_ERR_ARGUMENT, "rank 1 has joined already");
        end(pid);
        atomic_store(&d->sign, 1);
        if (d->stays) tshi_nap(0.3);
    }
    while (r->rank == 2 && !atomic_load(&d->sign)) tshi_nap(0.01);
    join(r, &d->place);
}

static void run_death(bool stays) {
    death *d = mmap(NULL, sizeof *d, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    cr_assert_neq(d, MAP_FAILED);
    d->place = make_place();
    d->stays = stays;
    tshi_test_options options = {.ranks = 3, .bare = true};
    cr_assert_str_empty(tshi_test_run_with(&options, dies_while_waiting, d, NULL, NULL));
    munmap(d, sizeof *d);
}

Test(hostile, a_rank_dies_while_it_waits, .timeout = 120) {
    run_death(false);
}

Test(hostile, a_rank_dies_and_its_connection_stays, .timeout = 120) {
    run_death(true);
}

/* --- replays ------------------------------------------------------------------------------------------------------ */

/* Reads until the peer closes the connection or sends nothing for a while; returns the number of bytes. */
static size_t take_all(int fd, unsigned char *out, size_t room) {
    const struct timeval patience = {.tv_sec = 5};
    size_t used = 0;
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    for (ssize_t n = 1; n > 0 && used<room; used += n> 0 ? (size_t)n : 0) n = recv(fd, out + used, room - used, 0);
    return used;
}

static bool take_challenge(int fd, tshi_frame *out) {
    unsigned char bytes[TSHI_WIRE_MOST];
    if (recv(fd, bytes, TSHI_WIRE_HEAD, MSG_WAITALL) != TSHI_WIRE_HEAD) return false;
    int64_t body = tshi_wire_body(bytes, TSHI_CHALLENGE, sizeof bytes - TSHI_WIRE_HEAD);
    if (body < 0 || recv(fd, bytes + TSHI_WIRE_HEAD, (size_t)body, MSG_WAITALL) != body) return false;
    return tshi_wire_read(TSHI_CHALLENGE, bytes, TSHI_WIRE_HEAD + (size_t)body, NULL, out);
}

/* The port of the rank that has written itself into the file, or 0. */
static int port_in_file(const char *path) {
    unsigned char bytes[1024];
    tshi_frame leader = {.port = 0};
    for (int tries = 0; tries < 300 && leader.port == 0; tries++) {
        FILE *file = fopen(path, "r");
        size_t n = file ? fread(bytes, 1, sizeof bytes, file) : 0;
        if (file) fclose(file);
        if (!tshi_wire_read(TSHI_LEADER, bytes, n, NULL, &leader)) tshi_nap(0.01);
    }
    return leader.port;
}

/* Rank 1 first replays a good greeting of a connection that is closed, as a program that has overheard it would. */
static void replay(tshi_rank *r, void *arg) {
    const char *text = arg;
    tsh_world_config config = {.init_method = text, .heap_bytes = HEAP};
    unsetenv("RANK");
    unsetenv("LOCAL_RANK");
    unsetenv("LOCAL_WORLD_SIZE");
    if (r->rank == 0) {
        tshi_check_ok(r, tsh_world_init(&config, &r->world));
        tsh_world_destroy(r->world);
        return;
    }
    tshi_settings settings;
    tshi_frame first, second, hello = {.version = {TSH_VERSION_MAJOR, TSH_VERSION_MINOR}, .rank = -1, .size = 2};
    unsigned char bytes[TSHI_WIRE_MOST], came[4096];
    if (!tshi_check_ok(r, tshi_settings_read(&config, &settings))) return;
    int port = port_in_file(text + strlen("file://")), fd = connect_to(port, true);
    if (!tshi_check(r, port > 0 && fd >= 0 && take_challenge(fd, &first), "no rank leads")) return;
    hello.process.number = (uint32_t)getpid();
    tshi_seal seal = {settings.key, first.nonce};
    size_t size = tshi_wire_write(TSHI_HELLO, &hello, &seal, bytes);
    shutdown(fd, SHUT_RDWR);
    close(fd);
    fd = connect_to(port, true);
    if (!tshi_check(r, fd >= 0 && take_challenge(fd, &second), "no rank leads any more")) return;
    tshi_check(r, memcmp(first.nonce, second.nonce, sizeof first.nonce) != 0, "one nonce for two connections");
    tshi_check(r, !memcmp(first.leader, second.leader, sizeof first.leader), "the leader has changed");
    tshi_check(r, send(fd, bytes, size, MSG_NOSIGNAL) == (ssize_t)size, "cannot send");
    tshi_check(r, take_all(fd, came, sizeof came) == 0, "an overheard greeting is answered");
    close(fd);
    tshi_check_ok(r, tsh_world_init(&config, &r->world));
    tsh_world_destroy(r->world);
}

Test(hostile, an_overheard_greeting_is_refused, .timeout = 120) {
    char text[96];
    snprintf(text, sizeof text, "file:///tmp/tshard-test-replay-%d", (int)getpid());
    tshi_test_options options = {.ranks = 2, .bare = true};
    cr_assert_str_empty(tshi_test_run_with(&options, replay, text, NULL, NULL));
}

/* Noise at a multicast address. */
static void noisy_crowd(tshi_rank *r, void *arg) {
    const place *p = arg;
    char text[64];
    snprintf(text, sizeof text, "tcp://239.255.17.5:%d", p->port);
    if (r->rank == 0) {
        struct ip_mreqn lo = {.imr_ifindex = 1};
        struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons((uint16_t)p->port)};
        inet_pton(AF_INET, "239.255.17.5", &to.sin_addr);
        int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
        setsockopt(fd, IPPROTO_IP, IP_MULTICAST_IF, &lo, sizeof lo);
        unsigned char noise[1400] = "tSHm";
        for (int i = 0; i < 3000; i++) {
            noise[4 + i % 16] = (unsigned char)i;
            sendto(fd, noise, (size_t)(i % 1400), 0, (const void *)&to, sizeof to);
        }
        close(fd);
    }
    unsetenv("RANK");
    unsetenv("LOCAL_WORLD_SIZE");
    tsh_world_config config = {.init_method = text, .heap_bytes = HEAP};
    if (!tshi_check_ok(r, tsh_world_init(&config, &r->world))) return;
    tsh_world_destroy(r->world);
}

Test(hostile, noise_at_a_multicast_address, .timeout = 120) {
    place p = make_place();
    tshi_test_options options = {.ranks = 3, .bare = true};
    cr_assert_str_empty(tshi_test_run_with(&options, noisy_crowd, &p, NULL, NULL));
}

/* A process that keeps the file locked is waited for, but not for ever. */
static void locked_file(tshi_rank *r, void *arg) {
    const char *path = arg;
    char text[128];
    tsh_world *world = NULL;
    snprintf(text, sizeof text, "file://%s", path);
    unsetenv("RANK");
    tsh_world_config config = {.init_method = text, .heap_bytes = HEAP};
    tshi_check_status(r, tsh_world_init(&config, &world), TSH_ERR_TIMEOUT, "locked");
}

Test(hostile, file_that_stays_locked, .timeout = 120) {
    char path[64];
    snprintf(path, sizeof path, "/tmp/tshard-test-lock-%d", (int)getpid());
    int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    cr_assert(fd >= 0 && flock(fd, LOCK_EX) == 0);
    tshi_test_options options = {.ranks = 2, .bare = true, .world_timeout = "1"};
    cr_assert_str_empty(tshi_test_run_with(&options, locked_file, path, NULL, NULL));
    close(fd);
    unlink(path);
}
