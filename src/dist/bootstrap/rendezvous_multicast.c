/* Meeting by a multicast address: everybody tells everybody that it is there, until somebody leads.
 *
 * That is who hears of nobody with a lower nonce, once it has heard of all or for a moment; it says so, and the others
 * go there as soon as they hear it. Of two leaders the higher gives up. Whoever hears of a lower one falls silent, so
 * that a crowd makes little noise; who is not heard of for a while is forgotten. Who hears of another world size leads
 * and follows no more; it goes on telling its own for a moment, and all who do not agree have heard of it. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "dist/bootstrap/rendezvous.h"

#include <errno.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define TELL_EVERY 0.1
#define FORGET     1.5
/* How long nobody lower is to be heard of before one leads who has not heard of all. */
#define MOMENT 0.3
/* How long those who contradict each other go on telling it. */
#define GRACE 2.0
/* So few may all answer a new voice at once. */
#define FEW        32
#define INTERFACES 32
#define PATHS      4
/* Datagrams taken in a row: a good one costs as much to check as a false one. */
#define AT_ONCE 1024

/* Somebody heard of, and the addresses that its words came from. */
typedef struct voice {
    unsigned char nonce[TSHI_NONCE_SIZE];
    bool leading;
    double heard;
    int port, paths;
    tshi_place_at path[PATHS];
} voice;

typedef struct crowd {
    tshi_meet *meet;
    tshi_place_at place;
    int socket, listener;
    unsigned interfaces[INTERFACES];
    int n_interfaces;
    tshi_frame mine;
    voice *voices; /* [n], of `room`, which grows up to `most`: others than this process */
    int n, room, most;
    double start, next_tell, deadline;
    bool told; /* else: even if a lower one is there */
    char contradiction[TSHI_MESSAGE_SIZE];
    char words[TSHI_LINE]; /* why the last leader could not be followed */
} crowd;

/* --- the address -------------------------------------------------------------------------------------------------- */

/* Every interface that is up, the loopback too: ranks of one machine meet without a network. */
static void find_interfaces(crowd *c) {
    struct ifaddrs *all = NULL;
    int family = c->place.address.ss_family;
    unsigned scope = family == AF_INET6 ? ((struct sockaddr_in6 *)(void *)&c->place.address)->sin6_scope_id : 0;
    if (getifaddrs(&all) != 0) return;
    for (const struct ifaddrs *a = all; a && c->n_interfaces < INTERFACES; a = a->ifa_next) {
        if (!a->ifa_addr || a->ifa_addr->sa_family != family || !(a->ifa_flags & IFF_UP)) continue;
        unsigned index = if_nametoindex(a->ifa_name);
        bool known = index == 0 || (scope != 0 && scope != index);
        for (int i = 0; i < c->n_interfaces; i++) known = known || c->interfaces[i] == index;
        if (!known) c->interfaces[c->n_interfaces++] = index;
    }
    freeifaddrs(all);
}

static bool join_group(crowd *c, unsigned interface) {
    struct group_req request = {.gr_interface = interface};
    bool v6 = c->place.address.ss_family == AF_INET6;
    memcpy(&request.gr_group, &c->place.address, sizeof c->place.address);
    return setsockopt(c->socket, v6 ? IPPROTO_IPV6 : IPPROTO_IP, MCAST_JOIN_GROUP, &request, sizeof request) == 0;
}

static tsh_status open_group(crowd *c) {
    const tshi_settings *s = c->meet->settings;
    const int on = 1;
    bool v6 = c->place.address.ss_family == AF_INET6;
    int joined = 0;
    c->socket = socket(c->place.address.ss_family, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (c->socket < 0) return tshi_fail_errno(errno, "rendezvous: socket");
    setsockopt(c->socket, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    setsockopt(c->socket, v6 ? IPPROTO_IPV6 : IPPROTO_IP, v6 ? IPV6_MULTICAST_LOOP : IP_MULTICAST_LOOP, &on, sizeof on);
    if (bind(c->socket, (const void *)&c->place.address, c->place.length) != 0) {
        return tshi_fail_errno(errno, "rendezvous: listening at %s:%d", s->address, s->port);
    }
    find_interfaces(c);
    for (int i = 0; i < c->n_interfaces; i++) joined += join_group(c, c->interfaces[i]);
    if (joined > 0) return TSH_OK;
    return tshi_fail_errno(errno, "rendezvous: no network interface takes part in %s", s->address);
}

/* A port of our own, in the address's family. */
static tsh_status open_listener(crowd *c) {
    tshi_place_at place = {.length = sizeof(struct sockaddr_in)};
    *(struct sockaddr_in *)(void *)&place.address = (struct sockaddr_in){.sin_family = AF_INET};
    if (c->place.address.ss_family == AF_INET6) {
        place.length = sizeof(struct sockaddr_in6);
        *(struct sockaddr_in6 *)(void *)&place.address = (struct sockaddr_in6){.sin6_family = AF_INET6};
    }
    c->listener = tshi_dial_listen(&place, false);
    if (c->listener < 0) return tshi_fail_errno(errno, "rendezvous: listening");
    c->mine.port = tshi_dial_port(c->listener);
    return TSH_OK;
}

/* --- telling and hearing ------------------------------------------------------------------------------------------ */

static bool is_lower(const voice *v, const crowd *c) {
    return memcmp(v->nonce, c->mine.nonce, sizeof v->nonce) < 0;
}

static bool somebody_is_lower(const crowd *c) {
    for (int i = 0; i < c->n; i++) {
        if (is_lower(&c->voices[i], c)) return true;
    }
    return false;
}

static void tell(crowd *c) {
    unsigned char bytes[TSHI_WIRE_MOST];
    tshi_seal seal = {c->meet->settings->key, NULL};
    if (tshi_clock() < c->next_tell) return;
    c->next_tell = tshi_clock() + TELL_EVERY;
    if (c->told && !c->mine.leading && somebody_is_lower(c)) return;
    c->told = true;
    size_t size = tshi_wire_write(TSHI_NEWS, &c->mine, &seal, bytes);
    bool v6 = c->place.address.ss_family == AF_INET6;
    for (int i = 0; i < c->n_interfaces; i++) {
        struct ip_mreqn v4 = {.imr_ifindex = (int)c->interfaces[i]};
        int index = (int)c->interfaces[i];
        if (v6)
            setsockopt(c->socket, IPPROTO_IPV6, IPV6_MULTICAST_IF, &index, sizeof index);
        else
            setsockopt(c->socket, IPPROTO_IP, IP_MULTICAST_IF, &v4, sizeof v4);
        tshi_place_at to = c->place;
        if (v6) ((struct sockaddr_in6 *)(void *)&to.address)->sin6_scope_id = c->interfaces[i];
        sendto(c->socket, bytes, size, MSG_NOSIGNAL, (const void *)&to.address, to.length);
    }
}

static void tell_at_once(crowd *c) {
    c->told = false;
    c->next_tell = 0;
}

static voice *voice_of(crowd *c, const unsigned char *nonce) {
    for (int i = 0; i < c->n; i++) {
        if (!memcmp(c->voices[i].nonce, nonce, TSHI_NONCE_SIZE)) return &c->voices[i];
    }
    void *voices = c->voices;
    bool full = c->n == c->most;
    if (!full) full = tshi_grow(c->meet->allocator, &voices, &c->room, c->n + 1, sizeof *c->voices) != TSH_OK;
    c->voices = voices;
    if (full) return NULL;
    voice *v = &c->voices[c->n++];
    *v = (voice){0};
    memcpy(v->nonce, nonce, TSHI_NONCE_SIZE);
    /* It may have heard of all once it hears of me. */
    if (c->meet->settings->size <= FEW && is_lower(v, c)) tell_at_once(c);
    return v;
}

static void set_port(tshi_place_at *place, int port) {
    if (place->address.ss_family == AF_INET6)
        ((struct sockaddr_in6 *)(void *)&place->address)->sin6_port = htons((uint16_t)port);
    else
        ((struct sockaddr_in *)(void *)&place->address)->sin_port = htons((uint16_t)port);
}

static void add_path(voice *v, tshi_place_at from, int port) {
    if (v->port != port) v->paths = 0; /* it leads again, elsewhere */
    v->port = port;
    set_port(&from, port);
    for (int i = 0; i < v->paths; i++) {
        if (v->path[i].length == from.length && !memcmp(&v->path[i].address, &from.address, from.length)) return;
    }
    if (v->paths < PATHS) v->path[v->paths++] = from;
}

static void forget(crowd *c) {
    double now = tshi_clock();
    for (int i = c->n - 1; i >= 0; i--) {
        if (now - c->voices[i].heard > FORGET) c->voices[i] = c->voices[--c->n];
    }
}

static const char *name_of(int rank, const tshi_who *who, char *text, size_t size) {
    if (rank >= 0)
        snprintf(text, size, "rank %d on %s", rank, who->host);
    else
        snprintf(text, size, "process %u on %s", who->process, who->host);
    return text;
}

static void contradict(crowd *c, const tshi_frame *news) {
    char me[TSHI_HOST_SIZE + 32], other[TSHI_HOST_SIZE + 32];
    const tshi_settings *s = c->meet->settings;
    if (c->contradiction[0]) return;
    snprintf(c->contradiction, sizeof c->contradiction, "%s says WORLD_SIZE=%d, %s says WORLD_SIZE=%d",
             name_of(s->rank, &c->meet->me, me, sizeof me), s->size,
             name_of(news->rank, &news->who, other, sizeof other), news->size);
    double soon = tshi_clock() + GRACE;
    if (soon < c->deadline) c->deadline = soon;
    tell_at_once(c);
}

/* Everything that has come; at most so much that an address full of noise does not keep us. */
static void hear(crowd *c) {
    tshi_seal seal = {c->meet->settings->key, NULL};
    for (int i = 0; i < AT_ONCE; i++) {
        unsigned char bytes[TSHI_WIRE_MOST];
        tshi_place_at from = {.length = sizeof from.address};
        tshi_frame news;
        ssize_t n = recvfrom(c->socket, bytes, sizeof bytes, MSG_TRUNC, (void *)&from.address, &from.length);
        if (n < 0) break;
        if ((size_t)n > sizeof bytes || !tshi_wire_read(TSHI_NEWS, bytes, (size_t)n, &seal, &news)) continue;
        if (!memcmp(news.nonce, c->mine.nonce, sizeof news.nonce)) continue;
        if (news.size != c->meet->settings->size) contradict(c, &news);
        voice *v = news.size == c->meet->settings->size ? voice_of(c, news.nonce) : NULL;
        if (!v) continue;
        v->heard = tshi_clock();
        v->leading = news.leading;
        add_path(v, from, news.port);
    }
    forget(c);
}

/* The lowest of those that lead. */
static const voice *leader(const crowd *c) {
    const voice *leading = NULL;
    for (int i = 0; i < c->n; i++) {
        const voice *v = &c->voices[i];
        if (v->leading && (!leading || memcmp(v->nonce, leading->nonce, sizeof v->nonce) < 0)) leading = v;
    }
    return leading;
}

static bool is_my_turn(const crowd *c) {
    bool heard_enough = c->n + 1 >= c->meet->settings->size || tshi_clock() - c->start > MOMENT;
    return heard_enough && !somebody_is_lower(c);
}

/* --- meeting ------------------------------------------------------------------------------------------------------ */

/* While I lead: go on telling. A lower one who leads as well has precedence. Who has come hears of a contradiction as I
 * do, when I send nobody an answer. */
static bool still_leading(void *user) {
    crowd *c = user;
    hear(c);
    if (c->contradiction[0]) return false;
    for (int i = 0; i < c->n; i++) {
        if (c->voices[i].leading && is_lower(&c->voices[i], c)) return false;
    }
    tell(c);
    return true;
}

static void wait_for_news(crowd *c) {
    struct pollfd p = {.fd = c->socket, .events = POLLIN};
    double left = c->next_tell - tshi_clock();
    poll(&p, 1, left > 0 ? (int)(left * 1000) + 1 : 0);
    if (!tshi_warning_due(&c->meet->next_word, c->meet->settings->warn_every)) return;
    tshi_log(c->meet->log, TSH_LOG_WARNING, "rendezvous: process %u has heard of %d/%d at %s:%d", c->meet->me.process,
             c->n + 1, c->meet->settings->size, c->meet->settings->address, c->meet->settings->port);
}

static tshi_guest_end follow(crowd *c, const voice *v, tsh_status *status, tshi_roster *out) {
    tshi_guest_end end = TSHI_GUEST_NOBODY;
    size_t used = 0;
    for (int i = 0; i < v->paths && end != TSHI_GUEST_DONE; i++) {
        char why[160] = "", where[TSHI_PLACE_TEXT];
        end = tshi_guest_try(c->meet, &v->path[i], v->nonce, 1.0, status, out, why, sizeof why);
        if (used >= sizeof c->words) continue;
        used += (size_t)snprintf(c->words + used, sizeof c->words - used, "; %s: %s",
                                 tshi_dial_text(&v->path[i], where), why);
    }
    return end;
}

/* Whether it came to an end, which *status tells. */
static bool lead(crowd *c, tsh_status *status, tshi_roster *out) {
    bool again = false;
    tshi_host_plan plan = {
        .listeners = &c->listener, .n = 1, .leader = c->mine.nonce, .tick = still_leading, .user = c};
    *status = open_listener(c);
    if (*status != TSH_OK) return true;
    c->mine.leading = true;
    c->next_tell = 0;
    tell(c);
    *status = tshi_host_run(c->meet, &plan, &again, out);
    tshi_dial_close(&c->listener, 1); /* nobody is to wait there for an answer */
    c->mine.leading = false;
    return !again;
}

static tsh_status meet_by(crowd *c, tshi_roster *out) {
    const tshi_settings *s = c->meet->settings;
    tsh_status status = TSH_OK;
    c->start = tshi_clock();
    for (c->deadline = c->meet->deadline; tshi_clock() < c->deadline; wait_for_news(c)) {
        tell(c);
        hear(c);
        if (c->contradiction[0]) continue;
        const voice *v = leader(c);
        if (!v && is_my_turn(c) && lead(c, &status, out)) return status;
        if (v && follow(c, v, &status, out) == TSHI_GUEST_DONE) return status;
    }
    if (c->contradiction[0]) return tshi_fail(TSH_ERR_ARGUMENT, "rendezvous: %s", c->contradiction);
    return tshi_fail(TSH_ERR_TIMEOUT, "rendezvous: %d/%d joined; process %u on %s has heard of no more at %s:%d%s",
                     c->n + 1, s->size, c->meet->me.process, c->meet->me.host, s->address, s->port, c->words);
}

tsh_status tshi_meet_many(tshi_meet *meet, tshi_roster *out) {
    const tshi_settings *s = meet->settings;
    crowd c = {.meet = meet, .socket = -1, .listener = -1, .most = 2 * s->size + 16};
    tshi_place_at places[TSHI_PLACES];
    int n = 0;
    tsh_status status = tshi_dial_resolve(s->address, s->port, places, &n);
    if (status != TSH_OK) return status;
    c.place = places[0];
    memcpy(c.mine.group, meet->group, sizeof c.mine.group);
    c.mine.rank = s->rank;
    c.mine.size = s->size;
    c.mine.who = meet->me;
    if (!tshi_random_bytes(c.mine.nonce, sizeof c.mine.nonce)) status = tshi_fail_errno(errno, "rendezvous: random");
    if (status == TSH_OK) status = open_group(&c);
    if (status == TSH_OK) status = meet_by(&c, out);
    tshi_dial_close(&c.socket, 1);
    tshi_dial_close(&c.listener, 1);
    tshi_free(meet->allocator, c.voices);
    return status;
}
