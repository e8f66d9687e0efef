/* Both sides of the rendezvous: rank 0 takes in the ranks that prove to be of the job, then sends each the memory. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "dist/bootstrap/memory_exchange.h"
#include "dist/bootstrap/memory_server.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

#define GRACE 1.0

/* --- the other ranks' side ---------------------------------------------------------------------------------------- */

typedef struct client {
    const tshi_settings *settings;
    const tsh_log *log;
    double deadline, next_word;
    int socket;
} client;

static void say_waiting(client *c) {
    if (!tshi_warning_due(&c->next_word, c->settings->warn_every)) return;
    tshi_log(c->log, TSH_LOG_WARNING, "rendezvous: rank %d waits for rank 0 at %s:%d", c->settings->rank,
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
        tshi_sleep(pause);
    }
}

static tsh_status client_greet(client *c) {
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
    tshi_channel_prove(c->settings, &hello);
    /* A listener that has just gone shows in the answer that does not come. */
    if (tshi_channel_send(c->socket, &hello, sizeof hello, -1) || errno == EPIPE || errno == ECONNRESET) return TSH_OK;
    return tshi_fail_errno(errno, "rendezvous: send");
}

/* Until something has come from rank 0, which knows better which ranks are missing: it speaks first. */
static tsh_status client_wait(client *c) {
    double deadline = c->deadline + GRACE;
    while (!tshi_channel_wait(c->socket, c->next_word < deadline ? c->next_word : deadline)) {
        if (tshi_clock() >= deadline) {
            return tshi_fail(TSH_ERR_TIMEOUT, "rendezvous: rank 0 has not all %d ranks together", c->settings->size);
        }
        if (!tshi_warning_due(&c->next_word, c->settings->warn_every)) continue;
        tshi_log(c->log, TSH_LOG_INFO, "rendezvous: rank %d waits for rank 0 to have all %d ranks", c->settings->rank,
                 c->settings->size);
    }
    return TSH_OK;
}

/* One answer, and the descriptor that came with it or -1. *again: the listener went away without one (that of an
 * earlier world, say). */
static tsh_status client_take(client *c, int *came, bool *again) {
    tshi_answer answer = {0};
    ssize_t got = tshi_channel_receive(c->socket, &answer, sizeof answer, came);
    *again = got == 0 || (got < 0 && (errno == ECONNRESET || errno == EPIPE || errno == EAGAIN));
    if (*again) return TSH_OK;
    if (got < 0) return tshi_fail_errno(errno, "rendezvous: rank %d receiving rank 0's answer", c->settings->rank);
    if (got != sizeof answer || answer.magic != TSHI_MAGIC || answer.status < TSH_OK ||
        answer.status > (int32_t)TSH_ERR_PEER) {
        return tshi_fail(TSH_ERR_SYSTEM, "rendezvous: what listens at %s:%d is no rank 0", c->settings->address,
                         c->settings->port);
    }
    answer.words[sizeof answer.words - 1] = '\0';
    if (answer.status == TSH_OK) return TSH_OK;
    return tshi_fail((tsh_status)answer.status, "rendezvous: %s", answer.words);
}

/* The memory, then the word that every rank has it. */
static tsh_status client_answer(client *c, int *memory, bool *again) {
    tsh_status status = TSH_OK;
    *again = false;
    for (int i = 0; i < 2 && status == TSH_OK && !*again; i++) {
        int came = -1;
        status = client_wait(c);
        if (status == TSH_OK) status = client_take(c, &came, again);
        if (status == TSH_OK && i == 0 && came < 0 && !*again) {
            status = tshi_fail(TSH_ERR_SYSTEM, "rendezvous: rank 0's memory did not come along: this process may have "
                                               "no more descriptors (ulimit -n)");
        }
        if (status == TSH_OK && i == 0 && !*again) {
            *memory = came;
        } else if (came >= 0) {
            close(came);
        }
    }
    if (*memory >= 0 && (status != TSH_OK || *again)) {
        close(*memory);
        *memory = -1;
    }
    return status;
}

static tsh_status client_run(client *c, int *memory) {
    bool again;
    do {
        tsh_status status = client_connect(c);
        again = false;
        if (status == TSH_OK) status = client_greet(c);
        if (status == TSH_OK) status = client_answer(c, memory, &again);
        if (c->socket >= 0) close(c->socket);
        if (status != TSH_OK) return status;
        if (again) tshi_sleep(0.005);
    } while (again && tshi_clock() <= c->deadline);
    if (!again) return TSH_OK;
    return tshi_fail(TSH_ERR_TIMEOUT, "rendezvous: what listens at %s:%d hangs up on rank %d", c->settings->address,
                     c->settings->port, c->settings->rank);
}

/* --- both --------------------------------------------------------------------------------------------------------- */

static tsh_status meeting_init(tshi_meeting *m, int size, const tsh_allocator *allocator) {
    m->size = size;
    m->heap_bytes = tshi_calloc(allocator, (size_t)size, sizeof *m->heap_bytes);
    m->process = tshi_calloc(allocator, (size_t)size, sizeof *m->process);
    return m->heap_bytes && m->process ? TSH_OK : TSH_ERR_MEMORY;
}

tsh_status tshi_rendezvous(const tshi_settings *settings, const tsh_log *log, const tsh_allocator *allocator,
                           double deadline, int (*make)(const tshi_meeting *meeting), const void *user, int *memory) {
    *memory = -1;
    if (settings->rank != 0) {
        client c = {settings, log, deadline, tshi_clock() + settings->warn_every, -1};
        return client_run(&c, memory);
    }
    tshi_meeting meeting = {.make = make, .user = user};
    tsh_status status = meeting_init(&meeting, settings->size, allocator);
    if (status == TSH_OK) status = tshi_server_run(settings, log, allocator, deadline, &meeting, memory);
    tshi_free(allocator, meeting.heap_bytes);
    tshi_free(allocator, meeting.process);
    return status;
}
