#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "dist/control/entrance.h"
#include "dist/control/liveness.h"
#include "dist/rendezvous/acceptor.h"
#include "dist/rendezvous/sockets.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* The most connections besides those of ranks that have proved that they have the job's token. */
#define UNKNOWN 16
#define SLOTS   (TSHI_MOST_JOINERS + UNKNOWN)
/* Seconds that a connection has for its HELLO; for a rank to say that a round has failed; and for sending. */
#define HELLO_SECONDS  5.0
#define REPORT_SECONDS 1.0
#define SEND_SECONDS   1.0
#define LISTENERS      16

typedef enum guest_state {
    GUEST_UNKNOWN = 0,
    GUEST_WAITS,
    GUEST_PLACED, /* has a place in a round, and has not said how it went */
    GUEST_BUILT
} guest_state;

typedef struct guest {
    int fd, place; /* place: its index among the newcomers of the round, or -1 */
    guest_state state;
    double deadline;                      /* of UNKNOWN */
    unsigned char nonce[TSHI_NONCE_SIZE]; /* of this rank's CHALLENGE */
    tshi_frame hello;
    size_t received;
    unsigned char in[TSHI_WIRE_MOST + TSHI_MESSAGE_SIZE];
} guest;

struct tshi_entrance {
    int listener[LISTENERS], listeners;
    tshi_rendezvous r; /* its settings are `settings` */
    tshi_settings settings;
    tsh_allocator allocator; /* the entrance outlives the world that has opened it */
    guest guests[SLOTS];
    int n;
};

/* --- opening ------------------------------------------------------------------------------------------------------ */

static tsh_status listen_for_guests(const tsh_world *world, tshi_entrance *e) {
    const tshi_settings *s = &e->settings;
    const char *host = tshi_address_is_loopback(s->join_address) ? s->join_address : NULL;
    tshi_endpoint at[TSHI_ENDPOINTS];
    int n = 0;
    tsh_status status = tshi_tcp_resolve(host, s->join_port, tshi_clock() + world->timeout, at, &n);
    for (int i = 0; status == TSH_OK && i < n && e->listeners < LISTENERS; i++) {
        int fd = tshi_socket_listen(&at[i], true);
        if (fd >= 0) e->listener[e->listeners++] = fd;
    }
    if (status != TSH_OK || e->listeners > 0) return status;
    return tshi_fail_errno(errno, "world_joiners: rank 0 cannot listen at %s:%d", s->join_address, s->join_port);
}

static void warn_of_token(const tsh_world *world) {
    size_t length = strlen(world->settings->token);
    if (length >= TSHI_TOKEN_LENGTH) return;
    tshi_log(
        &world->log, TSH_LOG_WARNING,
        "world_joiners: TSHARD_TOKEN has %zu characters: any program that reaches %s:%d can join the job, or guess "
        "them; take at least %d random ones (openssl rand -hex 16)",
        length, world->settings->join_address, world->settings->join_port, TSHI_TOKEN_LENGTH);
}

tsh_status tshi_entrance_open(const tsh_world *world, tshi_entrance **out) {
    tshi_entrance *e = *out = tshi_calloc(&world->allocator, 1, sizeof *e);
    if (!e) return TSH_ERR_MEMORY;
    e->settings = *world->settings;
    e->allocator = world->allocator;
    memcpy(e->settings.key, world->settings->join_key, sizeof e->settings.key);
    tsh_status status = tshi_rendezvous_begin(&e->settings, NULL, &e->allocator, 0, &e->r);
    if (status == TSH_OK) status = listen_for_guests(world, e);
    if (status == TSH_OK) {
        warn_of_token(world);
        return TSH_OK;
    }
    tshi_free(&world->allocator, e);
    *out = NULL;
    return status;
}

tsh_status tshi_entrance_reopen(const tsh_world *world, tshi_entrance *e) {
    return e->listeners > 0 ? TSH_OK : listen_for_guests(world, e);
}

void tshi_entrance_pause(tshi_entrance *e) {
    tshi_socket_close(e->listener, e->listeners);
    e->listeners = 0;
}

static void drop(tshi_entrance *e, int i) {
    close(e->guests[i].fd);
    e->n--;
    if (i != e->n) e->guests[i] = e->guests[e->n];
}

/* --- frames ------------------------------------------------------------------------------------------------------- */

static bool send_answer(const tshi_entrance *e, const guest *g, const tshi_wire_answer *answer) {
    tshi_seal seal = {e->settings.key, g->hello.nonce};
    unsigned char *bytes = tshi_calloc(e->r.allocator, tshi_wire_answer_room(answer->roster.size), 1);
    if (!bytes) return false;
    size_t size = tshi_wire_write_answer(answer, &seal, bytes);
    bool sent = tshi_socket_write(g->fd, bytes, size, tshi_clock() + SEND_SECONDS);
    tshi_free(e->r.allocator, bytes);
    return sent;
}

static void refuse(const tshi_entrance *e, const guest *g, tsh_status status, const char *words) {
    tshi_wire_answer answer = {.status = status};
    snprintf(answer.message, sizeof answer.message, "%s", words);
    send_answer(e, g, &answer);
}

static bool send_place(const tshi_entrance *e, const guest *g, const tshi_frame *place) {
    unsigned char bytes[TSHI_WIRE_MOST];
    tshi_seal seal = {e->settings.key, g->hello.nonce};
    size_t size = tshi_wire_write(TSHI_PLACE, place, &seal, bytes);
    return tshi_socket_write(g->fd, bytes, size, tshi_clock() + SEND_SECONDS);
}

/* --- what comes --------------------------------------------------------------------------------------------------- */

static bool greet(const tsh_world *world, const tshi_entrance *e, guest *g) {
    tshi_seal seal = {e->settings.key, g->nonce};
    char words[TSHI_LINE];
    if (!tshi_wire_read(TSHI_HELLO, g->in, g->received, &seal, &g->hello)) return false;
    const tshi_frame *h = &g->hello;
    if (h->version[0] != TSH_VERSION_MAJOR || h->version[1] != TSH_VERSION_MINOR) {
        snprintf(words, sizeof words, "the rank runs tshard %d.%d, the job %d.%d", h->version[0], h->version[1],
                 TSH_VERSION_MAJOR, TSH_VERSION_MINOR);
        refuse(e, g, TSH_ERR_ARGUMENT, words);
        return false;
    }
    if (h->program != tshi_program_fingerprint())
        tshi_log(&world->log, TSH_LOG_WARNING,
                 "a rank of %s that joins runs another program than rank 0, or another build of it", h->process.host);
    g->state = GUEST_WAITS;
    g->place = -1;
    return true;
}

/* A newcomer's answer: whether it has built the world of the round. */
static bool take_report(const tshi_entrance *e, guest *g) {
    tshi_seal seal = {e->settings.key, g->nonce};
    tshi_wire_answer answer;
    if (tshi_wire_read_answer(g->in, g->received, 0, &seal, e->r.allocator, &answer) != TSH_OK) return false;
    g->state = answer.status == TSH_OK ? GUEST_BUILT : GUEST_WAITS;
    return true;
}

/* The bytes of the guest's frame, as far as they are known: of its head, or of all of it. 0 for a head that is not
 * due. */
static size_t frame_bytes(const guest *g, tshi_wire_type due) {
    if (g->received < TSHI_WIRE_HEAD) return TSHI_WIRE_HEAD;
    int64_t body = tshi_wire_body(g->in, due, sizeof g->in - TSHI_WIRE_HEAD);
    return body < 0 ? 0 : TSHI_WIRE_HEAD + (size_t)body;
}

/* Handles at most one frame, whose first bytes may have been received before. False: the guest is dropped. */
static bool read_guest(const tsh_world *world, const tshi_entrance *e, guest *g) {
    tshi_wire_type due = g->state == GUEST_UNKNOWN ? TSHI_HELLO : TSHI_ANSWER;
    for (size_t wanted; (wanted = frame_bytes(g, due)) != g->received;) {
        if (wanted == 0) return false;
        ssize_t n = recv(g->fd, g->in + g->received, wanted - g->received, 0);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0 && errno == EAGAIN) return g->state != GUEST_UNKNOWN || tshi_clock() < g->deadline;
        if (n <= 0) return false;
        g->received += (size_t)n;
    }
    bool good = due == TSHI_HELLO ? greet(world, e, g) : g->state == GUEST_PLACED && take_report(e, g);
    g->received = 0;
    return good;
}

static void accept_guest(tshi_entrance *e, int fd) {
    guest *g = &e->guests[e->n++];
    *g = (guest){.fd = fd, .place = -1, .deadline = tshi_clock() + HELLO_SECONDS};
    if (!tshi_acceptor_challenge(&e->r, fd, NULL, g->nonce)) drop(e, e->n - 1);
}

static int count_proven(const tshi_entrance *e) {
    int n = 0;
    for (int i = 0; i < e->n; i++) n += e->guests[i].state != GUEST_UNKNOWN;
    return n;
}

/* A rank for which there is no room waits in the listener's queue. */
static void accept_guests(tshi_entrance *e) {
    for (int i = 0; i < e->listeners; i++) {
        while (e->n < SLOTS && count_proven(e) < TSHI_MOST_JOINERS) {
            int fd = accept4(e->listener[i], NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
            if (fd < 0) break;
            accept_guest(e, fd);
        }
    }
}

static void read_guests(const tsh_world *world, tshi_entrance *e) {
    for (int i = e->n - 1; i >= 0; i--) {
        if (!read_guest(world, e, &e->guests[i])) drop(e, i);
    }
}

void tshi_entrance_poll(const tsh_world *world, tshi_entrance *e) {
    read_guests(world, e);
    accept_guests(e);
}

static int count_in(const tshi_entrance *e, guest_state state) {
    int n = 0;
    for (int i = 0; i < e->n; i++) n += e->guests[i].state == state;
    return n;
}

int tshi_entrance_count(const tshi_entrance *e) {
    int n = count_in(e, GUEST_WAITS) + count_in(e, GUEST_BUILT);
    return n < TSHI_MOST_JOINERS ? n : TSHI_MOST_JOINERS;
}

/* --- a round ------------------------------------------------------------------------------------------------------ */

/* The number of the guest's machine in the world, or -1 - i for that of newcomer i. */
static int32_t node_of(const tsh_world *world, const tshi_entrance *e, const guest *g, const tshi_newcomers *so_far) {
    const tshi_process *p = &g->hello.process;
    if (tshi_process_same_machine(p, &e->r.me)) return 0;
    int node = tshi_liveness_node(world, p->machine);
    if (node >= 0) return node;
    for (int i = 0; i < so_far->count; i++) {
        for (int k = 0; k < e->n; k++) {
            const guest *other = &e->guests[k];
            if (other->place == i && tshi_process_same_machine(&other->hello.process, p)) return so_far->rank[i].node;
        }
    }
    return -1 - so_far->count;
}

void tshi_entrance_list(const tsh_world *world, tshi_entrance *e, tshi_newcomers *out) {
    double end = tshi_clock() + REPORT_SECONDS;
    *out = (tshi_newcomers){.count = 0};
    tshi_entrance_poll(world, e);
    while (count_in(e, GUEST_PLACED) > 0 && tshi_clock() < end) {
        tshi_sleep(1e-3);
        read_guests(world, e);
    }
    for (int i = 0; i < e->n; i++) e->guests[i].place = -1;
    for (int i = 0; i < e->n && out->count < TSHI_MOST_JOINERS; i++) {
        guest *g = &e->guests[i];
        if (g->state != GUEST_WAITS && g->state != GUEST_BUILT) continue;
        tshi_newcomer *to = &out->rank[out->count];
        to->node = node_of(world, e, g, out);
        memcpy(to->host, g->hello.process.host, sizeof to->host);
        g->place = out->count++;
    }
}

void tshi_entrance_place(const tsh_world *world, tshi_entrance *e, const tshi_roster *roster, int first, int port,
                         double patience) {
    const tshi_frame place = {
        .seed = world->seed, .size = roster->size, .patience = (int)(1e3 * patience), .port = port};
    tshi_wire_answer answer = {.status = TSH_OK, .roster = *roster};
    for (int i = 0; i < e->n; i++) {
        guest *g = &e->guests[i];
        if (g->place < 0) continue;
        answer.roster.rank = first + g->place;
        g->state = GUEST_PLACED;
        if (send_place(e, g, &place)) send_answer(e, g, &answer);
    }
}

bool tshi_entrance_built(const tsh_world *world, tshi_entrance *e, double deadline) {
    int wanted = 0;
    for (int i = 0; i < e->n; i++) wanted += e->guests[i].place >= 0;
    for (;;) {
        read_guests(world, e);
        int built = 0, waiting = 0;
        for (int i = 0; i < e->n; i++) {
            built += e->guests[i].place >= 0 && e->guests[i].state == GUEST_BUILT;
            waiting += e->guests[i].place >= 0 && e->guests[i].state == GUEST_PLACED;
        }
        if (built == wanted) return true;
        if (built + waiting < wanted || tshi_clock() >= deadline) return false;
        tshi_sleep(1e-3);
    }
}

void tshi_entrance_confirm(tshi_entrance *e) {
    static const tshi_frame confirmed = {.size = 0};
    for (int i = e->n - 1; i >= 0; i--) {
        if (e->guests[i].place < 0) continue;
        send_place(e, &e->guests[i], &confirmed);
        drop(e, i);
    }
}

/* ------------------------------------------------------------------------------------------------------------------ */

void tshi_entrance_close(const tsh_world *world, tshi_entrance *e, bool ended) {
    if (!e) return;
    for (int i = e->n - 1; i >= 0; i--) {
        bool told = ended && e->guests[i].state == GUEST_WAITS;
        if (told) refuse(e, &e->guests[i], TSH_ERR_PEER, "the job has ended");
        drop(e, i);
    }
    tshi_socket_close(e->listener, e->listeners);
    tshi_free(&world->allocator, e);
}
