#include "dist/rendezvous/memory_exchange.h"
#include "dist/rendezvous/acceptor.h"
#include "dist/rendezvous/connector.h"
#include "dist/rendezvous/sockets.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* Reading from its connection will report that the rank has ended. */
static bool has_died(int error) {
    return error == EPIPE || error == ECONNRESET || error == ENOTCONN;
}

static tsh_status send_memory(tshi_acceptor *a, int memory) {
    tshi_wire_answer answer = {.status = TSH_OK};
    for (int i = 0; i < a->n; i++) {
        tshi_peer *peer = &a->peers[i];
        if (tshi_acceptor_prepare(a, peer, &answer) != TSH_OK) return TSH_ERR_MEMORY;
        if (tshi_unix_send(peer->fd, peer->out, peer->size, memory) || has_died(errno)) continue;
        return tshi_fail(TSH_ERR_SYSTEM, "rank 0 cannot send rank %d the shared memory: %s (errno %d)", peer->rank,
                         strerror(errno), errno);
    }
    return TSH_OK;
}

/* TSH_OK when the rank, whose connection is readable, has joined. */
static tsh_status receive_outcome(const tshi_acceptor *a, const tshi_peer *peer) {
    tshi_rendezvous *r = a->rendezvous;
    tshi_seal seal = {r->settings->key, peer->hello.nonce};
    tshi_wire_answer answer;
    size_t size;
    int descriptor;
    unsigned char *bytes = tshi_connector_answer(r, peer->fd, &size, &descriptor);
    tshi_socket_close(&descriptor, 1);
    int rank = tshi_rendezvous_number(r, peer->rank);
    if (!bytes) return tshi_fail(TSH_ERR_PEER, "rank %d ended before it had joined the shared memory", rank);
    tsh_status status = tshi_wire_read_answer(bytes, size, 0, &seal, r->allocator, &answer);
    tshi_free(r->allocator, bytes);
    if (status != TSH_OK || answer.status == TSH_OK) return status;
    return tshi_fail(TSH_ERR_PEER, "rank %d: %.480s", rank, answer.message);
}

/* Warns of missing ranks when a warning is due, and fails at the deadline. */
static tsh_status check_clock(const tshi_acceptor *a) {
    tshi_rendezvous *r = a->rendezvous;
    char text[TSHI_LINE];
    bool over = tshi_clock() >= r->deadline;
    if (!over && !tshi_warning_due(&r->next_warning, r->settings->warn_every)) return TSH_OK;
    snprintf(text, sizeof text, "not all ranks have joined the shared memory, missing ");
    for (int i = 0, n = 0; i < a->n; i++) {
        if (a->polls[i].fd >= 0)
            tshi_append(text, sizeof text, "%s %d", n++ ? "," : "rank", tshi_rendezvous_number(r, a->peers[i].rank));
    }
    if (over) return tshi_fail(TSH_ERR_TIMEOUT, "%s", text);
    tshi_log(r->log, TSH_LOG_WARNING, "rendezvous: %s", text);
    return TSH_OK;
}

static tsh_status receive_outcomes(tshi_acceptor *a) {
    for (int i = 0; i < a->n; i++) a->polls[i] = (struct pollfd){.fd = a->peers[i].fd, .events = POLLIN};
    for (int left = a->n; left > 0;) {
        tsh_status late = check_clock(a);
        if (late != TSH_OK) return late;
        int ready = poll(a->polls, (nfds_t)a->n, 100);
        for (int i = 0; ready > 0 && i < a->n; i++) {
            if (a->polls[i].fd < 0 || !a->polls[i].revents) continue;
            tsh_status status = receive_outcome(a, &a->peers[i]);
            if (status != TSH_OK) return status;
            a->polls[i].fd = -1;
            left--;
        }
    }
    return TSH_OK;
}

static tsh_status make_memory(const tshi_acceptor *a, tshi_memory_ranks *ranks) {
    const tshi_rendezvous *r = a->rendezvous;
    const tshi_settings *s = r->settings;
    ranks->size = s->size;
    ranks->heap_bytes = tshi_calloc(r->allocator, (size_t)s->size, sizeof *ranks->heap_bytes);
    if (!ranks->heap_bytes) return TSH_ERR_MEMORY;
    ranks->heap_bytes[s->rank] = s->heap_bytes;
    for (int i = 0; i < a->n; i++) ranks->heap_bytes[a->peers[i].rank] = (size_t)a->peers[i].hello.heap_bytes;
    int made = r->memory->make(ranks);
    if (made < 0) return (tsh_status)-made;
    *r->memory->memory = made;
    return r->memory->join ? r->memory->join(r->memory->user) : TSH_OK;
}

/* No rank goes on before every rank has joined: a rank that fails to join ends the exchange for all. */
static tsh_status share(tshi_acceptor *a) {
    const tshi_rendezvous *r = a->rendezvous;
    tshi_memory_ranks ranks = {.user = r->memory->user};
    tshi_wire_answer answer = {.status = make_memory(a, &ranks)};
    tshi_free(r->allocator, ranks.heap_bytes);
    if (answer.status == TSH_OK) answer.status = send_memory(a, *r->memory->memory);
    if (answer.status == TSH_OK) answer.status = receive_outcomes(a);
    if (answer.status == TSH_OK) return tshi_acceptor_answer(a, &answer);
    snprintf(answer.message, sizeof answer.message, "%s", tsh_error_message());
    tshi_acceptor_answer(a, &answer);
    return tshi_fail(answer.status, "%s", answer.message);
}

static tsh_status serve(tshi_rendezvous *r, const tshi_endpoint *endpoint) {
    tshi_acceptor a;
    int listener = tshi_socket_listen(endpoint, false);
    const tshi_acceptor_plan plan = {.listeners = &listener, .n = 1, .same_user = true};
    if (listener < 0) {
        return tshi_fail_errno(errno, "rendezvous: rank 0 cannot listen at %s:%d; is another job there?",
                               r->settings->address, r->settings->port);
    }
    tsh_status status = tshi_acceptor_open(&a, r, &plan, NULL);
    if (status == TSH_OK) status = tshi_acceptor_verdict(&a);
    if (status == TSH_OK) status = share(&a);
    tshi_acceptor_close(&a);
    tshi_socket_close(&listener, 1);
    return status;
}

tsh_status tshi_memory_exchange(const tshi_settings *settings, const tsh_log_sink *log, const tsh_allocator *allocator,
                                double deadline, const tshi_memory_plan *plan) {
    tshi_rendezvous r;
    tshi_roster none;
    tshi_endpoint endpoint;
    *plan->memory = -1;
    tsh_status status = tshi_rendezvous_begin(settings, log, allocator, deadline, &r);
    if (status != TSH_OK) return status;
    r.memory = plan;
    r.numbers = plan->ranks;
    tshi_unix_endpoint(settings, &endpoint);
    return settings->rank == 0 ? serve(&r, &endpoint) : tshi_connector_run(&r, &endpoint, 1, &none);
}
