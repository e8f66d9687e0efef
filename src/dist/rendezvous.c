/* Both sides of the meeting. Rank 0 takes in whoever proves to belong here, then sends everything to everybody. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "dist/rendezvous.h"
#include "dist/server.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define LONGEST_RENDEZVOUS 120.0
#define WORD_EVERY         5.0
#define GRACE              1.0

static void close_all(int *fds, int n) {
    for (int i = 0; fds && i < n; i++) {
        if (fds[i] >= 0) close(fds[i]);
        fds[i] = -1;
    }
}

void tshi_meeting_close(tshi_meeting *meeting, const tsh_allocator *allocator) {
    close_all(meeting->heap, meeting->size);
    close_all(meeting->process, meeting->size);
    close_all(&meeting->control, 1);
    tshi_free(allocator, meeting->heap);
    tshi_free(allocator, meeting->process);
    tshi_free(allocator, meeting->heap_bytes);
    *meeting = (tshi_meeting){.control = -1};
}

static tsh_status meeting_init(tshi_meeting *m, int size, const tsh_allocator *allocator) {
    *m = (tshi_meeting){.size = 0, .control = -1};
    m->heap = tshi_calloc(allocator, (size_t)size, sizeof *m->heap);
    m->process = tshi_calloc(allocator, (size_t)size, sizeof *m->process);
    m->heap_bytes = tshi_calloc(allocator, (size_t)size, sizeof *m->heap_bytes);
    if (!m->heap || !m->process || !m->heap_bytes) return TSH_ERR_MEMORY;
    for (int i = 0; i < size; i++) m->heap[i] = m->process[i] = -1;
    m->size = size;
    return TSH_OK;
}

static void nap(double seconds) {
    struct timespec t = {.tv_nsec = (long)(seconds * 1e9)};
    nanosleep(&t, NULL);
}

/* --- the other ranks' side ---------------------------------------------------------------------------------------- */

typedef struct client {
    const tshi_settings *settings;
    const tsh_log *log;
    double deadline, next_word;
    int socket;
} client;

static void say_waiting(client *c) {
    if (tshi_clock() < c->next_word) return;
    c->next_word += WORD_EVERY;
    tshi_log(c->log, TSH_LOG_INFO, "rendezvous: rank %d waits for rank 0 at %s:%d", c->settings->rank,
             c->settings->address, c->settings->port);
}

/* Connect until somebody listens. */
static tsh_status client_connect(client *c) {
    struct sockaddr_un address;
    socklen_t length = tshi_channel_address(c->settings, &address);
    for (double pause = 0.001;; pause = pause < 0.05 ? pause * 2 : pause) {
        c->socket = tshi_channel_socket();
        if (c->socket < 0) return tshi_fail_errno(errno, "rendezvous: socket");
        if (connect(c->socket, (struct sockaddr *)&address, length) == 0) return TSH_OK;
        int error = errno;
        close(c->socket);
        c->socket = -1;
        if (error != ECONNREFUSED && error != ENOENT && error != EINTR && error != EAGAIN) {
            return tshi_fail_errno(error, "rendezvous: connect");
        }
        if (tshi_clock() > c->deadline) {
            return tshi_fail(TSH_ERR_TIMEOUT, "rendezvous: rank %d found no rank 0 at %s:%d", c->settings->rank,
                             c->settings->address, c->settings->port);
        }
        say_waiting(c);
        nap(pause);
    }
}

static tsh_status client_greet(client *c, int heap) {
    pid_t pid;
    if (!tshi_channel_trusted(c->socket, &pid)) {
        return tshi_fail(TSH_ERR_ARGUMENT, "rendezvous: another user's process listens at %s:%d", c->settings->address,
                         c->settings->port);
    }
    tshi_hello hello = {.magic = TSHI_MAGIC,
                        .version = {TSH_VERSION_MAJOR, TSH_VERSION_MINOR, TSH_VERSION_PATCH},
                        .rank = c->settings->rank,
                        .size = c->settings->size,
                        .heap_bytes = c->settings->heap_bytes};
    memcpy(hello.token, c->settings->token, sizeof hello.token);
    if (tshi_channel_send(c->socket, &hello, sizeof hello, &heap, 1)) return TSH_OK;
    return tshi_fail_errno(errno, "rendezvous: send");
}

/* *again: the listener went away without an answer (that of an earlier world, say). */
static tsh_status client_answer(client *c, bool *again) {
    tshi_answer answer = {0};
    int unexpected, n;
    /* Rank 0 knows better who is missing: let it speak first. */
    double deadline = c->deadline + GRACE;
    while (!tshi_channel_wait(c->socket, c->next_word < deadline ? c->next_word : deadline)) {
        if (tshi_clock() >= deadline) {
            return tshi_fail(TSH_ERR_TIMEOUT, "rendezvous: rank 0 has not all %d ranks together", c->settings->size);
        }
        c->next_word += WORD_EVERY;
        tshi_log(c->log, TSH_LOG_INFO, "rendezvous: rank %d waits for rank 0 to have all %d ranks", c->settings->rank,
                 c->settings->size);
    }
    ssize_t got = tshi_channel_receive(c->socket, &answer, sizeof answer, &unexpected, 0, &n);
    *again = got == 0 || (got < 0 && (errno == ECONNRESET || errno == EPIPE));
    if (*again) return TSH_OK;
    if (got != sizeof answer || answer.magic != TSHI_MAGIC) {
        return tshi_fail(TSH_ERR_SYSTEM, "rendezvous: what listens at %s:%d is no rank 0", c->settings->address,
                         c->settings->port);
    }
    answer.words[sizeof answer.words - 1] = '\0';
    if (answer.status == TSH_OK) return TSH_OK;
    return tshi_fail((tsh_status)answer.status, "rendezvous: %s", answer.words);
}

static tsh_status part_store(const tshi_part *part, int *fds, int n, tshi_meeting *m) {
    int next = 0;
    bool fits = part->magic == TSHI_MAGIC && part->first >= 0 && part->count >= 0 &&
                part->count <= TSHI_CHANNEL_FDS / 2 && part->first <= m->size - part->count;
    if (fits && part->count == 0 && n == 1) {
        m->control = fds[next++];
    } else if (fits && n >= part->count) {
        for (int i = 0; i < part->count; i++) {
            m->heap[part->first + i] = fds[next++];
            m->heap_bytes[part->first + i] = (size_t)part->heap_bytes[i];
        }
        for (int i = 0; i < part->count; i++) {
            if (part->has_process[i] && next < n) m->process[part->first + i] = fds[next++];
        }
    }
    close_all(fds + next, n - next);
    return next > 0 ? TSH_OK : tshi_fail(TSH_ERR_SYSTEM, "rendezvous: rank 0 sent a part that makes no sense");
}

static tsh_status client_take_parts(client *c, tshi_meeting *m) {
    int per_part = TSHI_CHANNEL_FDS / 2;
    int parts = 1 + (m->size + per_part - 1) / per_part;
    for (int i = 0; i < parts; i++) {
        tshi_part part = {0};
        int fds[TSHI_CHANNEL_FDS], n = 0;
        bool came = tshi_channel_wait(c->socket, c->deadline + WORD_EVERY);
        ssize_t got = came ? tshi_channel_receive(c->socket, &part, sizeof part, fds, TSHI_CHANNEL_FDS, &n) : -1;
        if (got != sizeof part) {
            close_all(fds, n);
            return tshi_fail(TSH_ERR_PEER, "rendezvous: rank 0 went away while it sent what the ranks share");
        }
        tsh_status status = part_store(&part, fds, n, m);
        if (status != TSH_OK) return status;
    }
    for (int i = 0; i < m->size; i++) {
        if (m->heap[i] < 0) return tshi_fail(TSH_ERR_SYSTEM, "rendezvous: nothing came of rank %d", i);
    }
    return TSH_OK;
}

static tsh_status client_run(client *c, int heap, tshi_meeting *m) {
    bool again;
    do {
        tsh_status status = client_connect(c);
        again = false;
        if (status == TSH_OK) status = client_greet(c, heap);
        if (status == TSH_OK) status = client_answer(c, &again);
        if (status == TSH_OK && !again) status = client_take_parts(c, m);
        if (c->socket >= 0) close(c->socket);
        if (status != TSH_OK) return status;
        if (again) nap(0.005);
    } while (again);
    return TSH_OK;
}

tsh_status tshi_rendezvous(const tshi_settings *settings, const tsh_log *log, const tsh_allocator *allocator, int heap,
                           int control, tshi_meeting *out) {
    double now = tshi_clock();
    double patience = settings->timeout < LONGEST_RENDEZVOUS ? settings->timeout : LONGEST_RENDEZVOUS;
    tsh_status status = meeting_init(out, settings->size, allocator);
    if (status == TSH_OK && settings->rank == 0) {
        status = tshi_server_run(settings, log, allocator, now + patience, heap, control, out);
    } else if (status == TSH_OK) {
        client c = {settings, log, now + patience, now + WORD_EVERY, -1};
        status = client_run(&c, heap, out);
    }
    if (status != TSH_OK) tshi_meeting_close(out, allocator);
    return status;
}
