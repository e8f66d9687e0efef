#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "stage.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#define WATCHED 256

static struct {
    void (*turn)(void *user);
    void *user;
    double now, waited;
    uint64_t random;
    int open;
} stage;

void stage_require(bool condition) {
    if (!condition) abort();
}

unsigned script_byte(script *s) {
    return s->at < s->end ? *s->at++ : 0;
}

size_t script_bytes(script *s, void *out, size_t most) {
    size_t n = (size_t)(s->end - s->at) < most ? (size_t)(s->end - s->at) : most;
    if (n > 0) memcpy(out, s->at, n);
    s->at += n;
    return n;
}

bool script_over(const script *s) {
    return s->at == s->end;
}

/* --- what the system would do ------------------------------------------------------------------------------------- */

double tshi_clock(void) {
    return stage.now;
}

double stage_waited(void) {
    return stage.waited;
}

static void wait_for(double seconds) {
    stage.now += seconds;
    stage.waited += seconds;
}

void stage_advance(double seconds) {
    stage.now += seconds;
}

/* Nothing but the script can make a descriptor ready while the code waits. */
int poll(struct pollfd *fds, nfds_t n, int timeout) {
    static const struct timespec at_once;
    if (stage.turn) stage.turn(stage.user);
    int ready = (int)syscall(SYS_ppoll, fds, n, &at_once, NULL, 0);
    if (ready == 0) wait_for(timeout > 0 ? timeout * 1e-3 : 1e-6);
    return ready;
}

void tshi_sleep(double seconds) {
    if (stage.turn) stage.turn(stage.user);
    wait_for(seconds);
}

ssize_t getrandom(void *out, size_t size, unsigned flags) {
    unsigned char *bytes = out;
    (void)flags;
    for (size_t i = 0; i < size; i++) {
        stage.random = stage.random * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
        bytes[i] = (unsigned char)(stage.random >> 56);
    }
    return (ssize_t)size;
}

static void take_line(void *user, tsh_log_level level, const char *line) {
    (void)user;
    (void)level;
    for (; *line; line++) stage_require((unsigned char)*line >= 32 && *line != 127);
}

const tsh_log_sink stage_log = {take_line, NULL};

/* --- begin and end ------------------------------------------------------------------------------------------------ */

static int count_open(void) {
    int n = 0;
    for (int fd = 0; fd < WATCHED; fd++) n += fcntl(fd, F_GETFD) >= 0;
    return n;
}

void stage_begin(void (*turn)(void *user), void *user) {
    stage.turn = turn;
    stage.user = user;
    stage.now = 1000;
    stage.waited = 0;
    stage.random = 1;
    stage.open = count_open();
}

void stage_end(void) {
    stage.turn = NULL;
    stage_require(count_open() == stage.open);
}

void stage_settings(tshi_settings *out, int rank, int size) {
    *out = (tshi_settings){.rank = rank, .size = size, .timeout = 60, .warn_every = 5, .heap_bytes = 4096};
    snprintf(out->address, sizeof out->address, "stage");
    /* Several fuzzers may run side by side. */
    out->port = 1 + (int)((unsigned)getpid() % 60000u);
    snprintf((char *)out->key, sizeof out->key, "the job that is played %d", (int)getpid());
}

void stage_meet(tshi_rendezvous *out, const tshi_settings *settings, const tsh_allocator *allocator) {
    *out = (tshi_rendezvous){.settings = settings, .log = &stage_log, .allocator = allocator};
    out->deadline = stage.now + settings->timeout;
    out->next_warning = stage.now + settings->warn_every;
    memset(out->group, 'g', sizeof out->group);
    out->me.number = 1;
    out->me.start = 1;
    memset(out->me.machine, 'h', sizeof out->me.machine);
    snprintf(out->me.host, sizeof out->me.host, "here");
}

/* --- connections -------------------------------------------------------------------------------------------------- */

static int unix_socket(void) {
    return socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
}

/* The system chooses a name. */
int stage_listen(void) {
    const struct sockaddr_un any = {.sun_family = AF_UNIX};
    int fd = unix_socket();
    stage_require(fd >= 0);
    stage_require(bind(fd, (const void *)&any, sizeof any.sun_family) == 0 && listen(fd, 64) == 0);
    return fd;
}

tshi_endpoint stage_place(int listener) {
    tshi_endpoint place = {.length = sizeof place.address};
    stage_require(getsockname(listener, (void *)&place.address, &place.length) == 0);
    return place;
}

int stage_connect(const tshi_endpoint *place) {
    int fd = unix_socket();
    stage_require(fd >= 0);
    if (connect(fd, (const void *)&place->address, place->length) == 0) return fd;
    close(fd);
    return -1;
}
