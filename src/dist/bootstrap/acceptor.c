/* The rank that listens. It waits for nobody in particular: a peer that says nothing, too little or nonsense costs it a
 * place in a bounded table for a bounded time. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "dist/bootstrap/rendezvous.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* How long a connection gets to say who it is. */
#define HEARING 5.0
/* How long the others get to come and hear that the ranks contradict each other, and all to take their answer. */
#define GRACE 2.0
/* Connections that have not said who they are, beyond one for each rank. */
#define STRANGERS 64
/* Connections taken in a row. */
#define AT_ONCE 64
#define TICK    0.1
/* Refusals told one by one; the rest is counted. */
#define TOLD 5

typedef struct guest {
    int fd, rank;
    bool joined; /* else: has yet to say who it is, or contradicts and waits for the verdict */
    bool heard;
    double deadline;
    unsigned char nonce[TSHI_NONCE_SIZE];
    size_t got, size, sent;
    unsigned char in[TSHI_WIRE_MOST];
    unsigned char *out; /* the answer */
    tshi_frame hello;
} guest;

typedef struct host {
    tshi_meet *meet;
    const tshi_host_plan *plan;
    guest *guests; /* [n], of `room`, which grows up to `most` */
    int n, room, most, strangers, joined, refused;
    bool full;            /* there was no descriptor for a connection */
    struct pollfd *polls; /* [polls_room]: listeners, then guests */
    int polls_room;
    double deadline;
    char contradiction[TSHI_MESSAGE_SIZE];
} host;

/* --- words -------------------------------------------------------------------------------------------------------- */

static bool is_here(const host *h, int rank) {
    if (h->meet->settings->rank == rank) return true;
    for (int i = 0; i < h->n; i++) {
        if (h->guests[i].joined && h->guests[i].hello.rank == rank) return true;
    }
    return false;
}

/* Somebody here has yet to be given a rank. */
static bool ranks_open(const host *h) {
    if (h->meet->settings->rank < 0) return true;
    for (int i = 0; i < h->n; i++) {
        if (h->guests[i].joined && h->guests[i].hello.rank < 0) return true;
    }
    return false;
}

/* "3/4 joined, missing rank 2"; nobody knows which while ranks are to be given out. */
static const char *progress(const host *h, char *text, size_t size) {
    const tshi_settings *s = h->meet->settings;
    size_t used = (size_t)snprintf(text, size, "%d/%d joined", h->joined + 1, s->size);
    if (ranks_open(h)) return text;
    used += (size_t)snprintf(text + used, size - used, ", missing rank ");
    size_t start = used;
    for (int i = 0; i < s->size && used + 24 < size; i++) {
        if (!is_here(h, i)) used += (size_t)snprintf(text + used, size - used, "%s%d", used > start ? ", " : "", i);
    }
    if (used + 24 >= size) snprintf(text + used, size - used, ", ...");
    return text;
}

/* Why those who are missing may be: behind the progress. */
static const char *hindrance(const host *h) {
    return h->full ? "; the one that listens has no descriptor left for them (ulimit -n)" : "";
}

static void say(host *h) {
    char text[TSHI_LINE];
    if (!tshi_warning_due(&h->meet->next_word, h->meet->settings->warn_every)) return;
    tshi_log(h->meet->log, TSH_LOG_WARNING, "rendezvous: %s%s", progress(h, text, sizeof text), hindrance(h));
    if (h->refused <= TOLD) return;
    tshi_log(h->meet->log, TSH_LOG_WARNING, "rendezvous: refused %d connections so far", h->refused);
}

static void tell_refusal(host *h, const char *words) {
    if (h->refused++ < TOLD) {
        tshi_log(h->meet->log, TSH_LOG_WARNING, "rendezvous: refused a connection: %s", words);
    }
}

/* --- guests ------------------------------------------------------------------------------------------------------- */

static void drop(host *h, int index) {
    guest *g = &h->guests[index];
    if (g->fd >= 0) close(g->fd);
    tshi_free(h->meet->allocator, g->out);
    if (g->joined)
        h->joined--;
    else
        h->strangers--;
    h->n--;
    if (index != h->n) *g = h->guests[h->n];
}

static void drop_oldest_stranger(host *h) {
    int oldest = -1;
    for (int i = 0; i < h->n; i++) {
        if (h->guests[i].joined) continue;
        if (oldest < 0 || h->guests[i].deadline < h->guests[oldest].deadline) oldest = i;
    }
    if (oldest >= 0) drop(h, oldest);
}

/* Tables grow with those that come: what a world size says may be a mistake. */
static bool make_room(host *h) {
    void *guests = h->guests, *polls = h->polls;
    const tsh_allocator *allocator = h->meet->allocator;
    tsh_status status = tshi_grow(allocator, &guests, &h->room, h->n + 1, sizeof *h->guests);
    h->guests = guests;
    if (status != TSH_OK) return false;
    status = tshi_grow(allocator, &polls, &h->polls_room, h->plan->n + h->n + 1, sizeof *h->polls);
    h->polls = polls;
    return status == TSH_OK;
}

static void challenge(host *h, int fd) {
    unsigned char bytes[TSHI_WIRE_MOST];
    tshi_frame frame = {0};
    if (!make_room(h)) {
        close(fd);
        return;
    }
    guest *g = &h->guests[h->n];
    *g = (guest){.fd = fd, .rank = -1, .deadline = tshi_clock() + HEARING};
    h->n++;
    h->strangers++;
    bool random = tshi_random_bytes(g->nonce, sizeof g->nonce);
    if (h->plan->leader) memcpy(frame.leader, h->plan->leader, sizeof frame.leader);
    memcpy(frame.nonce, g->nonce, sizeof g->nonce);
    memcpy(frame.group, h->meet->group, sizeof frame.group);
    size_t size = tshi_wire_write(TSHI_CHALLENGE, &frame, NULL, bytes);
    /* It fits into an empty buffer; a connection where it does not is none. */
    if (!random || send(fd, bytes, size, MSG_NOSIGNAL) != (ssize_t)size) drop(h, h->n - 1);
}

/* At most so many at a time: however fast connections come and go, the deadline and the ranks are looked at in between.
 * Where there is no room one that has said nothing gives way; no more than one, before all that have something to say
 * are heard. */
static void take_connections(host *h, int listener) {
    bool room = true;
    for (int tries = 0, taken = 0; room && tries < AT_ONCE; tries++) {
        room = h->n < h->most;
        if (!room) drop_oldest_stranger(h);
        int fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
        if (fd >= 0) {
            taken++;
            challenge(h, fd);
        } else if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM) {
            /* Without a descriptor there is no way to refuse it. */
            h->full = h->strangers == 0;
            if (h->full)
                tshi_sleep(10e-3);
            else if (taken == 0)
                drop_oldest_stranger(h);
            return;
        } else if (errno != ECONNABORTED && errno != EINTR) {
            return;
        }
    }
}

/* Who has proven to be of the job is told why it cannot join. */
static void refuse(host *h, int index, tsh_status status, const char *words) {
    guest *g = &h->guests[index];
    unsigned char bytes[TSHI_WIRE_HEAD + TSHI_MESSAGE_SIZE + TSHI_HASH_SIZE + 16];
    tshi_wire_answer answer = {.status = status};
    snprintf(answer.words, sizeof answer.words, "%s", words);
    tshi_seal seal = {h->meet->settings->key, g->hello.nonce};
    size_t size = tshi_wire_write_answer(&answer, &seal, bytes);
    ssize_t ignored = send(g->fd, bytes, size, MSG_NOSIGNAL);
    (void)ignored;
    tell_refusal(h, words);
    drop(h, index);
}

static void contradict(host *h, const tshi_frame *hello) {
    if (h->contradiction[0]) return;
    char who[TSHI_HOST_SIZE + 64];
    if (hello->rank >= 0)
        snprintf(who, sizeof who, "rank %d", hello->rank);
    else
        snprintf(who, sizeof who, "process %u on %s", hello->who.process, hello->who.host);
    if (h->meet->settings->ranks_given) {
        snprintf(h->contradiction, sizeof h->contradiction,
                 "process %u on %s says WORLD_SIZE=%d, %s says WORLD_SIZE=%d", h->meet->me.process, h->meet->me.host,
                 h->meet->settings->size, who, hello->size);
    } else {
        snprintf(h->contradiction, sizeof h->contradiction, "rank 0 says WORLD_SIZE=%d, %s says WORLD_SIZE=%d",
                 h->meet->settings->size, who, hello->size);
    }
    double soon = tshi_clock() + GRACE;
    if (soon < h->deadline) h->deadline = soon;
}

/* Who says to be a rank that is here may come in its place when that one is dead, and its end has not yet come through:
 * it hung up, or its process is no more. */
static void make_way(host *h, guest *newcomer) {
    char byte;
    for (int i = 0; i < h->n; i++) {
        guest *g = &h->guests[i];
        if (g == newcomer || !g->joined || g->hello.rank != newcomer->hello.rank) continue;
        bool silent = recv(g->fd, &byte, 1, MSG_PEEK) < 0 && errno == EAGAIN;
        if (silent && !tshi_who_gone(&g->hello.who, &h->meet->me)) return;
        g->joined = false;
        g->deadline = 0; /* drop_silent's */
        h->joined--;
        h->strangers++;
        return;
    }
}

/* A greeting that is proven. */
static void greet(host *h, int index) {
    guest *g = &h->guests[index];
    const tshi_settings *s = h->meet->settings;
    const tshi_frame *hello = &g->hello;
    char words[TSHI_LINE];
    bool any = hello->rank == TSHI_ANY_PLACE && s->ranks_given;
    if (hello->size == s->size && hello->rank >= 0) make_way(h, g);
    if (hello->version[0] != TSH_VERSION_MAJOR || hello->version[1] != TSH_VERSION_MINOR) {
        snprintf(words, sizeof words, "rank %d runs tshard %d.%d, the one that listens runs %d.%d", hello->rank,
                 hello->version[0], hello->version[1], TSH_VERSION_MAJOR, TSH_VERSION_MINOR);
        refuse(h, index, TSH_ERR_ARGUMENT, words);
    } else if (hello->size != s->size) {
        g->heard = true;
        g->deadline = h->deadline + GRACE;
        contradict(h, hello);
    } else if (!any && (hello->rank < 0 || hello->rank >= s->size)) {
        snprintf(words, sizeof words, "there is no rank %d of %d", hello->rank, s->size);
        refuse(h, index, TSH_ERR_ARGUMENT, words);
    } else if (!any && is_here(h, hello->rank)) {
        snprintf(words, sizeof words, "rank %d is here already", hello->rank);
        refuse(h, index, TSH_ERR_ARGUMENT, words);
    } else if (h->joined + 1 == s->size) {
        snprintf(words, sizeof words, "all %d ranks are here already", s->size);
        refuse(h, index, TSH_ERR_ARGUMENT, words);
    } else {
        g->joined = true;
        h->strangers--;
        h->joined++;
    }
}

static void lose(host *h, int index) {
    const guest *g = &h->guests[index];
    if (g->joined) {
        tshi_log(h->meet->log, TSH_LOG_WARNING, "rendezvous: rank %d of %s came and went", g->hello.rank,
                 g->hello.who.host);
    }
    drop(h, index);
}

/* What has come from a connection. False when it was dropped: another stands in its place. */
static bool hear(host *h, int index) {
    guest *g = &h->guests[index];
    int before = h->n;
    if (g->joined || g->heard) { /* it has nothing to say: it hung up */
        lose(h, index);
        return false;
    }
    size_t wanted = TSHI_WIRE_HEAD;
    if (g->got >= wanted) wanted += (size_t)tshi_wire_body(g->in, TSHI_HELLO, sizeof g->in - TSHI_WIRE_HEAD);
    ssize_t n = recv(g->fd, g->in + g->got, wanted - g->got, 0);
    if (n < 0 && (errno == EAGAIN || errno == EINTR)) return true;
    if (n <= 0) {
        drop(h, index);
        return false;
    }
    g->got += (size_t)n;
    if (g->got < TSHI_WIRE_HEAD) return true;
    int64_t body = tshi_wire_body(g->in, TSHI_HELLO, sizeof g->in - TSHI_WIRE_HEAD);
    if (body < 0) {
        tell_refusal(h, "that is no rank of a tshard world");
        drop(h, index);
        return false;
    }
    if (g->got < TSHI_WIRE_HEAD + (size_t)body || body == 0) {
        if (body == 0) drop(h, index);
        return h->n == before;
    }
    tshi_seal seal = {h->meet->settings->key, g->nonce};
    if (tshi_wire_read(TSHI_HELLO, g->in, g->got, &seal, &g->hello)) {
        greet(h, index);
    } else {
        tell_refusal(h, "its token is not this job's, or its greeting was made for another connection");
        drop(h, index);
    }
    return h->n == before;
}

/* --- gathering ---------------------------------------------------------------------------------------------------- */

static int wait_for_any(host *h) {
    int n = 0;
    for (int i = 0; i < h->plan->n; i++) h->polls[n++] = (struct pollfd){.fd = h->plan->listeners[i], .events = POLLIN};
    for (int i = 0; i < h->n; i++) h->polls[n++] = (struct pollfd){.fd = h->guests[i].fd, .events = POLLIN};
    double next = h->meet->next_word < h->deadline ? h->meet->next_word : h->deadline;
    double left = next - tshi_clock();
    if (h->strangers > 0 && left > 0.5) left = 0.5; /* their deadlines */
    if (h->plan->tick && left > TICK) left = TICK;
    return poll(h->polls, (nfds_t)n, left > 0 ? (int)(left * 1000) + 1 : 0);
}

static void drop_silent(host *h) {
    double now = tshi_clock();
    for (int i = h->n - 1; i >= 0; i--) {
        if (!h->guests[i].joined && h->guests[i].deadline < now) drop(h, i);
    }
}

/* Nobody is let go with one whose process is no more, although its connection stays. */
static bool all_are_here(host *h) {
    if (h->joined + 1 < h->meet->settings->size) return false;
    for (int i = h->n - 1; i >= 0; i--) {
        if (h->guests[i].joined && tshi_who_gone(&h->guests[i].hello.who, &h->meet->me)) lose(h, i);
    }
    return h->joined + 1 == h->meet->settings->size;
}

/* False: the tick has ended it. */
static bool gather(host *h) {
    double next_tick = tshi_clock();
    while (!all_are_here(h) && tshi_clock() < h->deadline) {
        int ready = wait_for_any(h), polled = h->n;
        say(h);
        if (h->plan->tick && tshi_clock() >= next_tick) {
            next_tick = tshi_clock() + TICK;
            if (!h->plan->tick(h->plan->user)) return false;
        }
        /* Backwards: what is dropped is replaced by the last, which has been looked at. */
        for (int i = polled - 1; ready > 0 && i >= 0; i--) {
            if (h->polls[h->plan->n + i].revents) hear(h, i);
        }
        drop_silent(h);
        for (int i = 0; ready > 0 && i < h->plan->n; i++) {
            if (h->polls[i].revents) take_connections(h, h->plan->listeners[i]);
        }
    }
    return true;
}

/* --- giving out ranks --------------------------------------------------------------------------------------------- */

typedef struct member {
    const tshi_who *who;
    const unsigned char *nonce;
    int wanted, rank;
    guest *guest; /* NULL: this rank itself */
} member;

/* By what does not depend on who came first: machine, then age, then number. */
static int compare_members(const void *left, const void *right) {
    const member *a = left, *b = right;
    int order = strcmp(a->who->host, b->who->host);
    if (!order) order = memcmp(a->who->host_id, b->who->host_id, sizeof a->who->host_id);
    if (!order) order = (a->who->start > b->who->start) - (a->who->start < b->who->start);
    if (!order) order = (a->who->process > b->who->process) - (a->who->process < b->who->process);
    return order ? order : memcmp(a->nonce, b->nonce, TSHI_NONCE_SIZE);
}

/* Who wants a rank has it; the others get what is left, in order. by_rank[i] becomes the member of rank i. */
static void give_ranks(member *members, int size, const member **by_rank) {
    qsort(members, (size_t)size, sizeof *members, compare_members);
    for (int i = 0; i < size; i++) {
        if (members[i].wanted >= 0) by_rank[members[i].wanted] = &members[i];
    }
    for (int i = 0, next = 0; i < size; i++) {
        member *m = &members[i];
        if (m->wanted < 0) {
            while (by_rank[next]) next++;
            by_rank[next] = m;
            m->wanted = next;
        }
        m->rank = m->wanted;
        if (m->guest) m->guest->rank = m->rank;
    }
}

static int node_of(const tshi_roster *roster, const tshi_who *const *first, const tshi_who *who) {
    for (int i = 0; i < roster->nodes; i++) {
        if (tshi_who_same_host(first[i], who)) return i;
    }
    return roster->nodes;
}

/* Machines are numbered by their lowest rank. */
static tsh_status fill_roster(host *h, const member *const *by_rank, tshi_roster *out) {
    int size = h->meet->settings->size;
    const tshi_who **first = tshi_calloc(h->meet->allocator, (size_t)size, sizeof *first);
    if (!first) return TSH_ERR_MEMORY;
    tsh_status status = tshi_roster_init(out, size, size, h->meet->allocator);
    out->nodes = 0;
    for (int i = 0; status == TSH_OK && i < size; i++) {
        const member *m = by_rank[i];
        int node = node_of(out, first, m->who);
        out->node[i] = node;
        if (!m->guest) out->rank = i;
        if (node < out->nodes) continue;
        first[out->nodes] = m->who;
        snprintf(out->host[out->nodes++], TSHI_HOST_SIZE, "%s", m->who->host);
    }
    tshi_free(h->meet->allocator, first);
    if (status == TSH_OK && !tshi_random_bytes(out->key, sizeof out->key)) {
        status = tshi_fail_errno(errno, "rendezvous: random numbers");
        tshi_roster_free(out, h->meet->allocator);
    }
    return status;
}

static tsh_status make_roster(host *h, tshi_roster *out) {
    const tshi_settings *s = h->meet->settings;
    static const unsigned char no_nonce[TSHI_NONCE_SIZE];
    member *members = tshi_calloc(h->meet->allocator, (size_t)s->size, sizeof *members);
    const member **by_rank = tshi_calloc(h->meet->allocator, (size_t)s->size, sizeof *by_rank);
    tsh_status status = members && by_rank ? TSH_OK : TSH_ERR_MEMORY;
    if (status == TSH_OK) {
        int n = 0;
        members[n++] = (member){&h->meet->me, no_nonce, s->rank, 0, NULL};
        for (int i = 0; i < h->n; i++) {
            guest *g = &h->guests[i];
            if (g->joined) members[n++] = (member){&g->hello.who, g->hello.nonce, g->hello.rank, 0, g};
        }
        give_ranks(members, s->size, by_rank);
        status = fill_roster(h, by_rank, out);
    }
    tshi_free(h->meet->allocator, members);
    tshi_free(h->meet->allocator, by_rank);
    return status;
}

/* --- answering ---------------------------------------------------------------------------------------------------- */

static tsh_status prepare_answer(host *h, guest *g, tshi_wire_answer *answer) {
    tshi_seal seal = {h->meet->settings->key, g->hello.nonce};
    int size = answer->status == TSH_OK ? answer->roster.nodes + answer->roster.size / 8 + 1 : 0;
    g->out = tshi_calloc(h->meet->allocator, tshi_wire_answer_room(size), 1);
    if (!g->out) return TSH_ERR_MEMORY;
    answer->roster.rank = g->rank;
    g->size = tshi_wire_write_answer(answer, &seal, g->out);
    g->sent = 0;
    return TSH_OK;
}

/* All of it, or all that may be written now. False when the connection is gone. */
static bool push(guest *g) {
    while (g->sent < g->size) {
        ssize_t n = send(g->fd, g->out + g->sent, g->size - g->sent, MSG_NOSIGNAL);
        if (n < 0 && errno == EAGAIN) return true;
        if (n < 0 && errno != EINTR) return false;
        if (n > 0) g->sent += (size_t)n;
    }
    return true;
}

/* Everybody who greeted hears the verdict; nobody who does not listen keeps it from the others. */
static tsh_status answer_all(host *h, tshi_wire_answer *answer) {
    double deadline = tshi_clock() + GRACE;
    for (int i = h->n - 1; i >= 0; i--) {
        guest *g = &h->guests[i];
        if (!g->joined && !g->heard) {
            drop(h, i);
        } else if (prepare_answer(h, g, answer) != TSH_OK) {
            return TSH_ERR_MEMORY;
        }
    }
    for (bool left = true; left && tshi_clock() < deadline;) {
        left = false;
        for (int i = 0; i < h->n; i++) {
            guest *g = &h->guests[i];
            bool gone = g->sent < g->size && !push(g);
            if (gone) g->sent = g->size;
            h->polls[i] = (struct pollfd){.fd = g->sent < g->size ? g->fd : -1, .events = POLLOUT};
            left = left || g->sent < g->size;
        }
        if (left) poll(h->polls, (nfds_t)h->n, 100);
    }
    return TSH_OK;
}

static tsh_status give_up(host *h) {
    tshi_wire_answer answer = {.status = TSH_ERR_ARGUMENT};
    if (h->contradiction[0]) {
        snprintf(answer.words, sizeof answer.words, "%s", h->contradiction);
    } else {
        answer.status = TSH_ERR_TIMEOUT;
        char text[TSHI_LINE];
        snprintf(answer.words, sizeof answer.words, "%s%s", progress(h, text, sizeof text), hindrance(h));
    }
    answer_all(h, &answer);
    return tshi_fail(answer.status, "rendezvous: %s", answer.words);
}

/* A greeting that was overheard allows tokens to be guessed offline, as fast as they can be hashed. */
static void warn_of_short_token(const host *h) {
    size_t length = strlen(h->meet->settings->token);
    if (length == 0 || length >= TSHI_TOKEN_LENGTH) return;
    tshi_log(h->meet->log, TSH_LOG_WARNING,
             "rendezvous: TSHARD_TOKEN has %zu characters, which can be guessed from what is sent: take at least %d "
             "random ones (openssl rand -hex 16)",
             length, TSHI_TOKEN_LENGTH);
}

static tsh_status conclude(host *h, tshi_roster *out) {
    if (h->contradiction[0] || h->joined + 1 < h->meet->settings->size) return give_up(h);
    warn_of_short_token(h);
    tsh_status status = make_roster(h, out);
    if (status != TSH_OK) return status;
    tshi_wire_answer answer = {.status = TSH_OK, .roster = *out};
    status = answer_all(h, &answer);
    if (status != TSH_OK) tshi_roster_free(out, h->meet->allocator);
    return status;
}

static void keep_connections(host *h) {
    for (int i = 0; i < h->n; i++) {
        guest *g = &h->guests[i];
        h->meet->spokes[g->rank] = g->fd;
        g->fd = -1;
    }
}

tsh_status tshi_host_run(tshi_meet *meet, const tshi_host_plan *plan, bool *again, tshi_roster *out) {
    int size = meet->settings->size;
    host h = {.meet = meet, .plan = plan, .most = 2 * size + STRANGERS, .deadline = meet->deadline};
    tsh_status status = make_room(&h) ? TSH_OK : TSH_ERR_MEMORY;
    if (again) *again = false;
    if (status == TSH_OK && !gather(&h)) {
        *again = true;
    } else if (status == TSH_OK) {
        /* Before anybody is let go: who makes his next world at once must not find these listeners. */
        tshi_dial_close(plan->listeners, plan->n);
        if (plan->closing) plan->closing(plan->user);
        status = conclude(&h, out);
        if (status == TSH_OK && meet->spokes) keep_connections(&h);
    }
    while (h.n > 0) drop(&h, h.n - 1);
    tshi_free(meet->allocator, h.guests);
    tshi_free(meet->allocator, h.polls);
    return status;
}
