#include "dist/bootstrap/memory_exchange.h"
#include "dist/bootstrap/acceptor.h"
#include "dist/bootstrap/connector.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

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

static tsh_status serve(tshi_rendezvous *r, const tshi_endpoint *endpoint, tshi_memory_make make, const void *user) {
    tshi_acceptor a;
    int listener = tshi_socket_listen(endpoint, false);
    const tshi_acceptor_plan plan = {.listeners = &listener, .n = 1, .same_user = true};
    tshi_memory_ranks ranks = {.user = user};
    if (listener < 0) {
        return tshi_fail_errno(errno, "rendezvous: rank 0 cannot listen at %s:%d; is another job there?",
                               r->settings->address, r->settings->port);
    }
    tsh_status status = tshi_acceptor_open(&a, r, &plan, NULL);
    if (status == TSH_OK) status = tshi_acceptor_verdict(&a);
    if (status == TSH_OK) status = make_and_send(&a, make, &ranks, r->memory);
    tshi_acceptor_close(&a);
    tshi_socket_close(&listener, 1);
    tshi_free(r->allocator, ranks.heap_bytes);
    tshi_free(r->allocator, ranks.process);
    return status;
}

tsh_status tshi_memory_exchange(const tshi_settings *settings, const tsh_log_sink *log, const tsh_allocator *allocator,
                                double deadline, tshi_memory_make make, const void *user, int *memory) {
    tshi_rendezvous r;
    tshi_roster none;
    tshi_endpoint endpoint;
    *memory = -1;
    tsh_status status = tshi_rendezvous_begin(settings, log, allocator, deadline, &r);
    if (status != TSH_OK) return status;
    r.memory = memory;
    tshi_unix_endpoint(settings, &endpoint);
    return settings->rank == 0 ? serve(&r, &endpoint, make, user) : tshi_connector_run(&r, &endpoint, 1, &none);
}
