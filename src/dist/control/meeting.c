#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "dist/control/meeting.h"
#include "base/clock.h"
#include "base/hash.h"
#include "dist/rendezvous/sockets.h"
#include "dist/rendezvous/wire.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* Seconds for one side of a conversation; a stranger that sends nothing costs as much. */
#define PATIENCE    0.5
#define LONGEST_ASK 1.0

/* What a rank sends. */
typedef struct question {
    unsigned char theirs[TSHI_NONCE_SIZE],
        mine[TSHI_NONCE_SIZE]; /* nonces of the listening rank and of the asking one */
    int32_t rank, change;
    uint32_t round, unused;
    int64_t step;
} question;

static void sign(const tsh_world *world, const question *q, const void *more, size_t bytes,
                 unsigned char mac[TSHI_HASH_SIZE]) {
    tshi_hmac(world->settings->key, TSHI_KEY_SIZE, q, sizeof *q, more, bytes, mac);
}

static bool is_signed(const tsh_world *world, const question *q, const void *more, size_t bytes,
                      const unsigned char mac[TSHI_HASH_SIZE]) {
    unsigned char wanted[TSHI_HASH_SIZE];
    sign(world, q, more, bytes, wanted);
    return tshi_equal_secret(wanted, mac, sizeof wanted);
}

/* --- the first machine -------------------------------------------------------------------------------------------- */

tsh_status tshi_meeting_open(const tsh_world *world, tshi_meeting *out) {
    tshi_endpoint endpoint[TSHI_ENDPOINTS];
    int n = 0;
    *out = (tshi_meeting){.n = 0};
    out->reply = tshi_calloc(&world->allocator, 1, tshi_standings_bytes(world->size));
    if (!out->reply) return TSH_ERR_MEMORY;
    tsh_status status = tshi_tcp_resolve(NULL, world->settings->port, tshi_clock() + 5, endpoint, &n);
    for (int i = 0; status == TSH_OK && i < n; i++) {
        int fd = tshi_socket_listen(&endpoint[i], true);
        if (fd >= 0) out->listener[out->n++] = fd;
    }
    if (status != TSH_OK || out->n) return status;
    return tshi_fail_errno(errno, "world_continue: listening for ranks of other machines at port %d",
                           world->settings->port);
}

void tshi_meeting_close(const tsh_world *world, tshi_meeting *m) {
    tshi_socket_close(m->listener, m->n);
    tshi_free(&world->allocator, m->reply);
    *m = (tshi_meeting){.n = 0};
}

static bool is_of_another_machine(const tsh_world *world, int rank) {
    return rank >= 0 && rank < world->size && world->machine.node[rank] != world->machine.node[world->rank];
}

static void obey(const tsh_world *world, const question *q, tshi_standings *reply) {
    tshi_page *page = world->machine.page;
    tshi_standings_change(page, q->rank, (tshi_standing_change)q->change, q->round, q->step);
    tshi_standings_read(page, reply);
}

/* Ranks of this machine serve one after another: a later turn is never replaced by an earlier one. */
static void note_heard(tshi_rank_record *r, uint32_t turn) {
    uint32_t before = atomic_load(&r->heard);
    while (before < turn && !atomic_compare_exchange_weak(&r->heard, &before, turn)) continue;
}

static void converse(const tsh_world *world, tshi_meeting *m, int fd) {
    unsigned char nonce[TSHI_NONCE_SIZE], mac[TSHI_HASH_SIZE];
    double deadline = tshi_clock() + PATIENCE;
    tshi_standings *reply = m->reply;
    size_t bytes = tshi_standings_bytes(world->size);
    question q;
    if (!tshi_random_bytes(nonce, sizeof nonce) || !tshi_socket_write(fd, nonce, sizeof nonce, deadline)) return;
    if (!tshi_socket_read(fd, &q, sizeof q, deadline) || !tshi_socket_read(fd, mac, sizeof mac, deadline)) return;
    bool fresh = !memcmp(q.theirs, nonce, sizeof nonce) && is_signed(world, &q, "", 0, mac);
    if (!fresh || !is_of_another_machine(world, q.rank)) return;
    obey(world, &q, reply);
    sign(world, &q, reply, bytes, mac);
    bool sent = tshi_socket_write(fd, reply, bytes, deadline) && tshi_socket_write(fd, mac, sizeof mac, deadline);
    if (sent) note_heard(&world->machine.page->record[q.rank], reply->turn);
}

void tshi_meeting_serve(const tsh_world *world, tshi_meeting *m) {
    for (int i = 0; i < m->n; i++) {
        int fd = accept4(m->listener[i], NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
        if (fd < 0) continue;
        converse(world, m, fd);
        close(fd);
    }
}

/* --- another machine ---------------------------------------------------------------------------------------------- */

static bool ask_once(const tsh_world *world, const tshi_endpoint *endpoint, question *q, tshi_standings *out) {
    unsigned char mac[TSHI_HASH_SIZE];
    size_t bytes = tshi_standings_bytes(world->size);
    double deadline = tshi_clock() + LONGEST_ASK;
    int fd = tshi_socket_connect(endpoint, deadline);
    if (fd < 0) return false;
    bool good =
        tshi_random_bytes(q->mine, sizeof q->mine) && tshi_socket_read(fd, q->theirs, sizeof q->theirs, deadline);
    if (good) sign(world, q, "", 0, mac);
    good = good && tshi_socket_write(fd, q, sizeof *q, deadline) && tshi_socket_write(fd, mac, sizeof mac, deadline);
    good = good && tshi_socket_read(fd, out, bytes, deadline) && tshi_socket_read(fd, mac, sizeof mac, deadline);
    close(fd);
    return good && is_signed(world, q, out, bytes, mac);
}

bool tshi_meeting_ask(const tsh_world *world, tshi_standing_change change, uint32_t round, int64_t step,
                      tshi_standings *out) {
    const tshi_settings *s = world->settings;
    question q = {.rank = world->rank, .change = (int32_t)change, .round = round, .step = step};
    tshi_endpoint endpoint[TSHI_ENDPOINTS];
    int n = 0;
    bool answered = false;
    if (tshi_tcp_resolve(s->address, s->port, tshi_clock() + LONGEST_ASK, endpoint, &n) != TSH_OK) return false;
    for (int i = 0; i < n && !answered; i++) answered = ask_once(world, &endpoint[i], &q, out);
    return answered;
}
