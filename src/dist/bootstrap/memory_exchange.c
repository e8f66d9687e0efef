#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "dist/bootstrap/memory_exchange.h"
#include "dist/bootstrap/acceptor.h"
#include "dist/bootstrap/connector.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* --- rank 0 ------------------------------------------------------------------------------------------------------- */

static tsh_status listen_for_ranks(const tshi_settings *s, int *listener) {
    struct sockaddr_un address;
    socklen_t length = tshi_unix_address(s, &address);
    *listener = tshi_unix_socket();
    if (*listener < 0) return tshi_fail_errno(errno, "rendezvous: socket");
    if (bind(*listener, (struct sockaddr *)&address, length) != 0) {
        return tshi_fail_errno(errno, "rendezvous: rank 0 cannot listen at %s:%d; is another job there?", s->address,
                               s->port);
    }
    if (listen(*listener, SOMAXCONN) != 0) return tshi_fail_errno(errno, "rendezvous: listen");
    return TSH_OK;
}

static tsh_status answer_failure(tshi_acceptor *a, tsh_status status) {
    tshi_wire_answer answer = {.status = status};
    snprintf(answer.words, sizeof answer.words, "%s", tsh_error_message());
    tshi_acceptor_answer(a, &answer);
    return tshi_fail(status, "%s", answer.words);
}

/* A rank that has died meanwhile is missed at the first call. */
static bool has_died(int error) {
    return error == EPIPE || error == ECONNRESET || error == ENOTCONN;
}

/* Every rank has the memory before any goes on with it: one that cannot get it ends the exchange of all. */
static tsh_status send_memory(tshi_acceptor *a, int memory) {
    tshi_wire_answer answer = {.status = TSH_OK};
    for (int i = 0; i < a->n; i++) {
        tshi_peer *peer = &a->peers[i];
        if (tshi_acceptor_prepare(a, peer, &answer) != TSH_OK) return TSH_ERR_MEMORY;
        if (tshi_unix_send(peer->fd, peer->out, peer->size, memory) || has_died(errno)) continue;
        tshi_fail(TSH_ERR_SYSTEM, "rank 0 cannot send rank %d the memory of all: %s (errno %d)", peer->rank,
                  strerror(errno), errno);
        return answer_failure(a, TSH_ERR_SYSTEM);
    }
    return tshi_acceptor_answer(a, &answer);
}

static tsh_status make_and_send(tshi_acceptor *a, tshi_memory_make make, tshi_memory_ranks *ranks, int *memory) {
    const tshi_settings *s = a->rendezvous->settings;
    const tsh_allocator *allocator = a->rendezvous->allocator;
    ranks->size = s->size;
    ranks->heap_bytes = tshi_calloc(allocator, (size_t)s->size, sizeof *ranks->heap_bytes);
    ranks->process = tshi_calloc(allocator, (size_t)s->size, sizeof *ranks->process);
    if (!ranks->heap_bytes || !ranks->process) return TSH_ERR_MEMORY;
    ranks->heap_bytes[s->rank] = s->heap_bytes;
    ranks->process[s->rank] = getpid();
    for (int i = 0; i < a->n; i++) {
        ranks->heap_bytes[a->peers[i].rank] = (size_t)a->peers[i].hello.heap_bytes;
        ranks->process[a->peers[i].rank] = a->peers[i].process;
    }
    int made = make(ranks);
    tsh_status status = made < 0 ? answer_failure(a, (tsh_status)-made) : send_memory(a, made);
    if (status == TSH_OK)
        *memory = made;
    else if (made >= 0)
        close(made);
    return status;
}

static tsh_status serve(tshi_rendezvous *r, tshi_memory_make make, const void *user, int *memory) {
    tshi_acceptor a;
    int listener = -1;
    const tshi_acceptor_plan plan = {.listeners = &listener, .n = 1, .same_user = true};
    tshi_memory_ranks ranks = {.user = user};
    tsh_status status = listen_for_ranks(r->settings, &listener);
    if (status == TSH_OK) {
        status = tshi_acceptor_open(&a, r, &plan, NULL);
        if (status == TSH_OK) status = tshi_acceptor_verdict(&a);
        if (status == TSH_OK) status = make_and_send(&a, make, &ranks, memory);
        tshi_acceptor_close(&a);
    }
    tshi_socket_close(&listener, 1);
    tshi_free(r->allocator, ranks.heap_bytes);
    tshi_free(r->allocator, ranks.process);
    return status;
}

/* --- the other ranks ---------------------------------------------------------------------------------------------- */

/* Connects once rank 0 listens. */
static tsh_status connect_to_rank_0(tshi_rendezvous *r, int *out) {
    const tshi_settings *s = r->settings;
    struct sockaddr_un address;
    socklen_t length = tshi_unix_address(s, &address);
    pid_t process;
    for (double pause = 0.001;; pause = pause < 0.05 ? pause * 2 : pause) {
        *out = tshi_unix_socket();
        if (*out < 0) return tshi_fail_errno(errno, "rendezvous: socket");
        if (connect(*out, (struct sockaddr *)&address, length) == 0) break;
        int error = errno;
        tshi_socket_close(out, 1);
        if (error != ECONNREFUSED && error != ENOENT && error != EINTR && error != EAGAIN) {
            return tshi_fail_errno(error, "rendezvous: connect");
        }
        if (tshi_clock() > r->deadline) {
            return tshi_fail(TSH_ERR_TIMEOUT, "rendezvous: rank %d found no rank 0 at %s:%d", s->rank, s->address,
                             s->port);
        }
        if (tshi_warning_due(&r->next_warning, s->warn_every)) {
            tshi_log(r->log, TSH_LOG_WARNING, "rendezvous: rank %d waits for rank 0 at %s:%d", s->rank, s->address,
                     s->port);
        }
        tshi_sleep(pause);
    }
    if (tshi_unix_same_user(*out, &process)) return TSH_OK;
    return tshi_fail(TSH_ERR_ARGUMENT, "rendezvous: another user's process listens at %s:%d", s->address, s->port);
}

/* One answer, and the descriptor that came with it or -1. *again: the listener went away without one, as that of an
 * earlier world does. */
static tsh_status receive_answer(tshi_rendezvous *r, int fd, const unsigned char *nonce, int *memory, bool *again) {
    const tshi_settings *s = r->settings;
    unsigned char bytes[TSHI_WIRE_HEAD + TSHI_MESSAGE_SIZE + 2 * TSHI_HASH_SIZE];
    tshi_wire_answer answer;
    tshi_seal seal = {s->key, nonce};
    if (!tshi_connector_wait(r, fd)) {
        return tshi_fail(TSH_ERR_TIMEOUT, "rendezvous: rank 0 has not all %d ranks together", s->size);
    }
    ssize_t n = tshi_unix_receive(fd, bytes, sizeof bytes, memory);
    *again = n == 0 || (n < 0 && (errno == ECONNRESET || errno == EPIPE || errno == EAGAIN));
    if (*again) return TSH_OK;
    if (n < 0) return tshi_fail_errno(errno, "rendezvous: rank %d receiving rank 0's answer", s->rank);
    tsh_status status = tshi_wire_read_answer(bytes, (size_t)n, 0, &seal, r->allocator, &answer);
    if (status != TSH_OK || answer.status == TSH_OK) return status;
    return tshi_fail(answer.status, "rendezvous: %s", answer.words);
}

/* The memory, then the answer that every rank has it. */
static tsh_status receive_memory(tshi_rendezvous *r, int fd, const unsigned char *nonce, int *memory, bool *again) {
    int unwanted = -1;
    tsh_status status = receive_answer(r, fd, nonce, memory, again);
    if (status == TSH_OK && !*again && *memory < 0) {
        status = tshi_fail(TSH_ERR_SYSTEM, "rendezvous: rank 0's memory did not come along: this process may have no "
                                           "more descriptors (ulimit -n)");
    }
    if (status == TSH_OK && !*again) status = receive_answer(r, fd, nonce, &unwanted, again);
    tshi_socket_close(&unwanted, 1);
    if (status != TSH_OK || *again) tshi_socket_close(memory, 1);
    return status;
}

static tsh_status fetch(tshi_rendezvous *r, int *memory) {
    unsigned char nonce[TSHI_NONCE_SIZE];
    char reason[TSHI_LINE] = "it hangs up";
    bool again = true;
    while (again) {
        int fd = -1;
        tsh_status status = connect_to_rank_0(r, &fd);
        if (status == TSH_OK &&
            tshi_connector_greet(r, fd, NULL, nonce, reason, sizeof reason) == TSHI_CONNECT_ANSWERED) {
            status = receive_memory(r, fd, nonce, memory, &again);
        }
        tshi_socket_close(&fd, 1);
        if (status != TSH_OK) return status;
        if (again && tshi_clock() > r->deadline) {
            return tshi_fail(TSH_ERR_TIMEOUT, "rendezvous: what listens at %s:%d is no rank 0 for rank %d (%s)",
                             r->settings->address, r->settings->port, r->settings->rank, reason);
        }
        if (again) tshi_sleep(0.005);
    }
    return TSH_OK;
}

tsh_status tshi_memory_exchange(const tshi_settings *settings, const tsh_log *log, const tsh_allocator *allocator,
                                double deadline, tshi_memory_make make, const void *user, int *memory) {
    tshi_rendezvous r;
    *memory = -1;
    tsh_status status = tshi_rendezvous_begin(settings, log, allocator, deadline, &r);
    if (status != TSH_OK) return status;
    return settings->rank == 0 ? serve(&r, make, user, memory) : fetch(&r, memory);
}
