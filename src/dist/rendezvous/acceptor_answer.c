/* The listening rank's answers to the peers of its job. */
#include "dist/rendezvous/acceptor.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>

bool tshi_acceptor_has(const tshi_acceptor *a, int rank) {
    if (a->rendezvous->settings->rank == rank) return true;
    for (int i = 0; i < a->n; i++) {
        if (a->peers[i].state == TSHI_PEER_JOINED && a->peers[i].hello.rank == rank) return true;
    }
    return false;
}

/* True when a rank here has yet to be assigned, so that the missing ranks are not known. */
static bool has_unassigned(const tshi_acceptor *a) {
    bool found = a->rendezvous->settings->rank < 0;
    for (int i = 0; i < a->n && !found; i++) {
        found = a->peers[i].state == TSHI_PEER_JOINED && a->peers[i].hello.rank < 0;
    }
    return found;
}

const char *tshi_acceptor_progress(const tshi_acceptor *a, char *text, size_t size) {
    const int ranks = a->rendezvous->settings->size;
    const char *reason = a->full ? "; the listening rank has no descriptor left for them (ulimit -n)" : "";
    const char *before = ", missing rank ";
    snprintf(text, size, "%d/%d joined", a->joined + 1, ranks);
    for (int i = 0; i < ranks && !has_unassigned(a); i++) {
        if (tshi_acceptor_has(a, i)) continue;
        tshi_append(text, size - strlen(reason), "%s%d", before, tshi_rendezvous_number(a->rendezvous, i));
        before = ", ";
    }
    return tshi_append(text, size, "%s", reason);
}

tsh_status tshi_acceptor_prepare(tshi_acceptor *a, tshi_peer *peer, tshi_wire_answer *answer) {
    const tsh_allocator *allocator = a->rendezvous->allocator;
    tshi_seal seal = {a->rendezvous->settings->key, peer->hello.nonce};
    int size = answer->status == TSH_OK ? answer->roster.nodes + answer->roster.size / 8 + 1 : 0;
    tshi_free(allocator, peer->out);
    peer->out = tshi_calloc(allocator, tshi_wire_answer_room(size), 1);
    if (!peer->out) return TSH_ERR_MEMORY;
    answer->roster.rank = peer->rank;
    peer->size = tshi_wire_write_answer(answer, &seal, peer->out);
    peer->sent = 0;
    return TSH_OK;
}

/* Sends what can be sent now. False when the connection is gone. */
static bool push(tshi_peer *peer) {
    while (peer->sent < peer->size) {
        ssize_t n = send(peer->fd, peer->out + peer->sent, peer->size - peer->sent, MSG_NOSIGNAL);
        if (n < 0 && errno == EAGAIN) return true;
        if (n < 0 && errno != EINTR) return false;
        if (n > 0) peer->sent += (size_t)n;
    }
    return true;
}

void tshi_acceptor_refuse(tshi_acceptor *a, tshi_peer *peer, const char *reason) {
    tshi_wire_answer answer = {.status = TSH_ERR_ARGUMENT};
    snprintf(answer.message, sizeof answer.message, "%s", reason);
    if (tshi_acceptor_prepare(a, peer, &answer) == TSH_OK) push(peer);
}

tsh_status tshi_acceptor_answer(tshi_acceptor *a, tshi_wire_answer *answer) {
    double deadline = tshi_clock() + TSHI_RENDEZVOUS_GRACE;
    for (int i = 0; i < a->n; i++) {
        if (tshi_acceptor_prepare(a, &a->peers[i], answer) != TSH_OK) return TSH_ERR_MEMORY;
    }
    for (bool left = true; left && tshi_clock() < deadline;) {
        left = false;
        for (int i = 0; i < a->n; i++) {
            tshi_peer *peer = &a->peers[i];
            if (!push(peer)) peer->sent = peer->size;
            bool more = peer->sent < peer->size;
            a->polls[i] = (struct pollfd){.fd = more ? peer->fd : -1, .events = POLLOUT};
            left = left || more;
        }
        if (left) poll(a->polls, (nfds_t)a->n, 100);
    }
    return TSH_OK;
}

/* A rank of another program, or with another seed, is most often a mistake: the first of each is warned of. Ranks of
 * the listening rank's machine are compared when they exchange their memory. */
static void warn_of_differences(const tshi_acceptor *a) {
    const tshi_rendezvous *r = a->rendezvous;
    bool seed = false, program = false;
    uint64_t mine = tshi_program_fingerprint();
    for (int i = 0; i < a->n; i++) {
        const tshi_frame *hello = &a->peers[i].hello;
        char name[TSHI_LINE];
        if (!r->memory && tshi_process_same_machine(&r->me, &hello->process)) continue;
        tshi_rank_name(hello->rank, &hello->process, name, sizeof name);
        if (!seed && hello->seed != r->settings->seed) {
            tshi_log(
                r->log, TSH_LOG_WARNING,
                "rendezvous: %s has the seed %llu, the listening rank %llu: initial values and dropout will differ",
                name, (unsigned long long)hello->seed, (unsigned long long)r->settings->seed);
            seed = true;
        }
        if (!program && hello->program && mine && hello->program != mine) {
            tshi_log(r->log, TSH_LOG_WARNING,
                     "rendezvous: %s runs another program than the listening rank, or another build of it", name);
            program = true;
        }
    }
}

tsh_status tshi_acceptor_verdict(tshi_acceptor *a) {
    tshi_wire_answer answer = {.status = TSH_ERR_TIMEOUT};
    if (a->contradiction[0]) {
        answer.status = TSH_ERR_ARGUMENT;
        snprintf(answer.message, sizeof answer.message, "%s", a->contradiction);
    } else if (a->joined + 1 < a->rendezvous->settings->size) {
        tshi_acceptor_progress(a, answer.message, TSHI_LINE);
    } else {
        warn_of_differences(a);
        return TSH_OK;
    }
    tshi_acceptor_answer(a, &answer);
    return tshi_fail(answer.status, "rendezvous: %s", answer.message);
}
