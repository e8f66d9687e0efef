#include "dist/rendezvous/acceptor.h"
#include "dist/rendezvous/sockets.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* How long a connection has to prove that it is of the job. */
#define HELLO_SECONDS 5.0
/* Connections that have not done so, beyond one for each rank. */
#define UNKNOWN_PEERS 64
/* Connections accepted in a row. */
#define AT_ONCE 64
#define TICK    0.1
/* Refusals that are logged one by one; later ones are only counted. */
#define REFUSALS_LOGGED 5

/* --- the table ---------------------------------------------------------------------------------------------------- */

static void drop_peer(tshi_acceptor *a, int index) {
    tshi_peer *peer = &a->peers[index];
    if (peer->fd >= 0) close(peer->fd);
    tshi_free(a->rendezvous->allocator, peer->out);
    a->joined -= peer->state == TSHI_PEER_JOINED;
    a->n--;
    if (index != a->n) *peer = a->peers[a->n];
}

/* The oldest peer that has not proved that it is of the job; -1 if every peer has. */
static int oldest_unknown(const tshi_acceptor *a) {
    int oldest = -1;
    for (int i = 0; i < a->n; i++) {
        if (a->peers[i].state == TSHI_PEER_JOINED) continue;
        if (oldest < 0 || a->peers[i].deadline < a->peers[oldest].deadline) oldest = i;
    }
    return oldest;
}

static void drop_oldest_unknown(tshi_acceptor *a) {
    int oldest = oldest_unknown(a);
    if (oldest >= 0) drop_peer(a, oldest);
}

/* The tables grow with the peers that come: a world size may be a mistake. */
static bool make_room(tshi_acceptor *a) {
    void *peers = a->peers, *polls = a->polls;
    const tsh_allocator *allocator = a->rendezvous->allocator;
    tsh_status status = tshi_grow(allocator, &peers, &a->room, a->n + 1, sizeof *a->peers);
    a->peers = peers;
    if (status != TSH_OK) return false;
    status = tshi_grow(allocator, &polls, &a->polls_room, a->plan->n + a->n + 1, sizeof *a->polls);
    a->polls = polls;
    return status == TSH_OK;
}

static void log_refusal(tshi_acceptor *a, const char *reason) {
    if (a->refused++ < REFUSALS_LOGGED) {
        tshi_log(a->rendezvous->log, TSH_LOG_WARNING, "rendezvous: refused a connection: %s", reason);
    }
}

/* --- accepting ---------------------------------------------------------------------------------------------------- */

bool tshi_acceptor_challenge(const tshi_rendezvous *r, int fd, const unsigned char *leader,
                             unsigned char nonce[TSHI_NONCE_SIZE]) {
    unsigned char bytes[TSHI_WIRE_MOST];
    tshi_frame frame = {0};
    if (!tshi_random_bytes(nonce, TSHI_NONCE_SIZE)) return false;
    if (leader) memcpy(frame.leader, leader, sizeof frame.leader);
    memcpy(frame.nonce, nonce, sizeof frame.nonce);
    memcpy(frame.group, r->group, sizeof frame.group);
    size_t size = tshi_wire_write(TSHI_CHALLENGE, &frame, NULL, bytes);
    /* The frame fits into the buffer of a new connection. */
    return send(fd, bytes, size, MSG_NOSIGNAL) == (ssize_t)size;
}

static void challenge(tshi_acceptor *a, int fd) {
    bool trusted = !a->plan->same_user || tshi_unix_same_user(fd);
    if (!trusted) log_refusal(a, "it is another user's");
    if (!trusted || !make_room(a)) {
        close(fd);
        return;
    }
    tshi_peer *peer = &a->peers[a->n++];
    *peer = (tshi_peer){.fd = fd, .rank = -1, .deadline = tshi_clock() + HELLO_SECONDS};
    if (!tshi_acceptor_challenge(a->rendezvous, fd, a->plan->leader, peer->nonce)) drop_peer(a, a->n - 1);
}

/* A bounded number at a time: however fast connections come and go, the deadline and the ranks are checked in
 * between. In a full table the oldest unproven peer gives way: only one, until all that have sent something are
 * read. */
static void accept_connections(tshi_acceptor *a, int listener) {
    bool room = true;
    for (int tries = 0, taken = 0; room && tries < AT_ONCE; tries++) {
        room = a->n < a->most;
        if (!room) drop_oldest_unknown(a);
        int fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
        if (fd >= 0) {
            taken++;
            challenge(a, fd);
        } else if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM) {
            /* Without a descriptor a connection cannot even be refused. */
            a->full = oldest_unknown(a) < 0;
            if (a->full)
                tshi_sleep(0.01);
            else if (taken == 0)
                drop_oldest_unknown(a);
            return;
        } else if (errno != ECONNABORTED && errno != EINTR) {
            return;
        }
    }
}

/* --- greetings ---------------------------------------------------------------------------------------------------- */

/* A peer may replace a joined one of the same rank that is dead but has not been dropped yet: its connection or its
 * process has ended. */
static void replace_dead(tshi_acceptor *a, const tshi_peer *newcomer) {
    char byte;
    for (int i = 0; i < a->n; i++) {
        tshi_peer *peer = &a->peers[i];
        if (peer == newcomer || peer->state != TSHI_PEER_JOINED || peer->hello.rank != newcomer->hello.rank) continue;
        bool silent = recv(peer->fd, &byte, 1, MSG_PEEK) < 0 && errno == EAGAIN;
        if (silent && !tshi_process_ended(&peer->hello.process, &a->rendezvous->me)) return;
        peer->state = TSHI_PEER_UNKNOWN;
        peer->deadline = 0; /* drop_late drops it */
        a->joined--;
        return;
    }
}

/* A HELLO with the right HMAC. */
static void greet(tshi_acceptor *a, int index) {
    tshi_peer *peer = &a->peers[index];
    const tshi_settings *s = a->rendezvous->settings;
    const tshi_frame *hello = &peer->hello;
    char reason[TSHI_LINE] = "";
    bool any = hello->rank == TSHI_ANY_RANK && s->ranks_assigned;
    if (hello->size == s->size && hello->rank >= 0) replace_dead(a, peer);
    if (hello->version[0] != TSH_VERSION_MAJOR || hello->version[1] != TSH_VERSION_MINOR) {
        snprintf(reason, sizeof reason, "rank %d runs tshard %d.%d, the listening rank runs %d.%d", hello->rank,
                 hello->version[0], hello->version[1], TSH_VERSION_MAJOR, TSH_VERSION_MINOR);
    } else if (hello->size != s->size) {
        peer->state = TSHI_PEER_CONTRADICTS;
        peer->deadline = a->deadline + TSHI_RENDEZVOUS_GRACE;
        tshi_rendezvous_contradict(a->rendezvous, hello, a->contradiction, &a->deadline);
        return;
    } else if (!any && (hello->rank < 0 || hello->rank >= s->size)) {
        snprintf(reason, sizeof reason, "there is no rank %d of %d", hello->rank, s->size);
    } else if (!any && tshi_acceptor_has(a, hello->rank)) {
        snprintf(reason, sizeof reason, "rank %d has joined already", hello->rank);
    } else if (a->joined + 1 == s->size) {
        snprintf(reason, sizeof reason, "all %d ranks have joined already", s->size);
    }
    if (reason[0]) {
        log_refusal(a, reason);
        tshi_acceptor_refuse(a, peer, reason);
        drop_peer(a, index);
    } else {
        peer->state = TSHI_PEER_JOINED;
        peer->rank = hello->rank;
        a->joined++;
    }
}

static void lose(tshi_acceptor *a, int index) {
    const tshi_peer *peer = &a->peers[index];
    if (peer->state == TSHI_PEER_JOINED && tshi_warning_due(&a->next_loss, a->rendezvous->settings->warn_every)) {
        tshi_log(a->rendezvous->log, TSH_LOG_WARNING, "rendezvous: rank %d of %s came and went", peer->hello.rank,
                 peer->hello.process.host);
    }
    drop_peer(a, index);
}

/* Reads what a peer has sent; the peer may be dropped, and the last of the table takes its slot. A HELLO is all that it
 * sends before its answer, so what comes behind one is a hang-up, and a read may take more than one message. */
static void read_peer(tshi_acceptor *a, int index) {
    tshi_peer *peer = &a->peers[index];
    if (peer->state != TSHI_PEER_UNKNOWN) {
        lose(a, index);
        return;
    }
    ssize_t n = recv(peer->fd, peer->in + peer->received, sizeof peer->in - peer->received, 0);
    if (n < 0 && (errno == EAGAIN || errno == EINTR)) return;
    if (n <= 0) {
        drop_peer(a, index);
        return;
    }
    peer->received += (size_t)n;
    if (peer->received < TSHI_WIRE_HEAD) return;
    int64_t body = tshi_wire_body(peer->in, TSHI_HELLO, sizeof peer->in - TSHI_WIRE_HEAD);
    tshi_seal seal = {a->rendezvous->settings->key, peer->nonce};
    if (body >= 0 && peer->received < TSHI_WIRE_HEAD + (size_t)body) return;
    if (body >= 0 && tshi_wire_read(TSHI_HELLO, peer->in, peer->received, &seal, &peer->hello)) {
        greet(a, index);
        return;
    }
    log_refusal(a, body < 0 ? "the peer is not a rank of a tshard world"
                            : "its token is not this job's, or its greeting was made for another connection");
    drop_peer(a, index);
}

/* --- gathering ---------------------------------------------------------------------------------------------------- */

static void log_progress(tshi_acceptor *a) {
    char text[TSHI_LINE];
    const tsh_log_sink *log = a->rendezvous->log;
    if (!tshi_warning_due(&a->rendezvous->next_warning, a->rendezvous->settings->warn_every)) return;
    tshi_log(log, TSH_LOG_WARNING, "rendezvous: %s", tshi_acceptor_progress(a, text, sizeof text));
    if (a->refused <= REFUSALS_LOGGED) return;
    tshi_log(log, TSH_LOG_WARNING, "rendezvous: refused %d connections so far", a->refused);
}

/* The missing ranks have no entry: poll takes no more than the process may have descriptors. */
static int wait_for_any(tshi_acceptor *a) {
    int n = 0;
    for (int i = 0; i < a->plan->n; i++) a->polls[n++] = (struct pollfd){.fd = a->plan->listeners[i], .events = POLLIN};
    for (int i = 0; i < a->n; i++) a->polls[n++] = (struct pollfd){.fd = a->peers[i].fd, .events = POLLIN};
    double next = a->rendezvous->next_warning < a->deadline ? a->rendezvous->next_warning : a->deadline;
    double left = next - tshi_clock();
    if (a->n > a->joined && left > 0.5) left = 0.5; /* deadlines of unproven peers */
    if (a->plan->tick && left > TICK) left = TICK;
    return poll(a->polls, (nfds_t)n, left > 0 ? (int)(left * 1000) + 1 : 0);
}

static void drop_late(tshi_acceptor *a) {
    double now = tshi_clock();
    for (int i = a->n - 1; i >= 0; i--) {
        if (a->peers[i].state != TSHI_PEER_JOINED && a->peers[i].deadline < now) drop_peer(a, i);
    }
}

/* The world does not start with a rank whose process has ended, although its connection stays. */
static bool all_are_here(tshi_acceptor *a) {
    if (a->joined + 1 < a->rendezvous->settings->size) return false;
    for (int i = a->n - 1; i >= 0; i--) {
        const tshi_peer *peer = &a->peers[i];
        bool joined = peer->state == TSHI_PEER_JOINED;
        if (joined && tshi_process_ended(&peer->hello.process, &a->rendezvous->me)) lose(a, i);
    }
    return a->joined + 1 == a->rendezvous->settings->size;
}

/* False: the tick has ended it. */
static bool gather(tshi_acceptor *a) {
    const tshi_acceptor_plan *plan = a->plan;
    double next_tick = tshi_clock();
    while (!all_are_here(a) && tshi_clock() < a->deadline) {
        int ready = wait_for_any(a), polled = a->n;
        log_progress(a);
        if (plan->tick && tshi_clock() >= next_tick) {
            next_tick = tshi_clock() + TICK;
            if (!plan->tick(plan->user)) return false;
        }
        /* Backwards: a dropped peer is replaced by the last one, which has been read already. */
        for (int i = polled - 1; ready > 0 && i >= 0; i--) {
            if (a->polls[plan->n + i].revents) read_peer(a, i);
        }
        drop_late(a);
        for (int i = 0; ready > 0 && i < plan->n; i++) {
            if (a->polls[i].revents) accept_connections(a, plan->listeners[i]);
        }
    }
    return true;
}

tsh_status tshi_acceptor_open(tshi_acceptor *a, tshi_rendezvous *rendezvous, const tshi_acceptor_plan *plan,
                              bool *stopped) {
    *a = (tshi_acceptor){.rendezvous = rendezvous,
                         .plan = plan,
                         .most = 2 * rendezvous->settings->size + UNKNOWN_PEERS,
                         .deadline = rendezvous->deadline};
    if (!make_room(a)) return TSH_ERR_MEMORY;
    bool ended = !gather(a);
    if (stopped) *stopped = ended;
    if (ended) return TSH_OK;
    /* Before any peer goes on: one that makes its next world at once must not find these listeners. */
    tshi_socket_close(plan->listeners, plan->n);
    if (plan->closing) plan->closing(plan->user);
    for (int i = a->n - 1; i >= 0; i--) {
        if (a->peers[i].state == TSHI_PEER_UNKNOWN) drop_peer(a, i);
    }
    return TSH_OK;
}

void tshi_acceptor_close(tshi_acceptor *a) {
    while (a->n > 0) drop_peer(a, a->n - 1);
    tshi_free(a->rendezvous->allocator, a->peers);
    tshi_free(a->rendezvous->allocator, a->polls);
}
