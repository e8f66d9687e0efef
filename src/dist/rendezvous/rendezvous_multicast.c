/* The rendezvous by a multicast address: ranks announce themselves until one leads.
 *
 * A rank leads when it has received no announcement with a lower nonce, once it knows of all ranks or after a
 * moment. It announces that, and its peers connect to it. Of two leaders the one with the higher nonce gives up. A
 * rank that knows of a lower nonce falls silent, so that many ranks send little; one that is silent for a while is
 * forgotten. A rank that receives another world size leads and follows no more; it announces its own for a moment,
 * so that all ranks that do not agree learn of it. */
#include "dist/rendezvous/acceptor.h"
#include "dist/rendezvous/connector.h"

#include <errno.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define ANNOUNCE_EVERY 0.1
#define FORGET_AFTER   1.5
/* How long no lower nonce may come before a rank leads that does not know of all ranks. */
#define MOMENT 0.3
/* So few ranks may all answer a new one at once. */
#define FEW        32
#define INTERFACES 32
#define PATHS      4
/* Datagrams taken in a row: a good one costs as much to check as a false one. */
#define AT_ONCE 1024

/* A rank whose announcements have come, and the addresses that they came from. */
typedef struct announcer {
    unsigned char nonce[TSHI_NONCE_SIZE];
    bool leads;
    double last;
    int port, paths;
    tshi_endpoint path[PATHS];
} announcer;

typedef struct multicast {
    tshi_rendezvous *r;
    tshi_endpoint endpoint;
    int socket, listener;
    unsigned interfaces[INTERFACES];
    int n_interfaces;
    tshi_frame mine;
    announcer *others; /* [n], of `room`, which grows up to `most` */
    int n, room, most;
    double start, next_announcement, deadline;
    bool announced; /* false: announces itself even where a lower nonce is known */
    char contradiction[TSHI_MESSAGE_SIZE];
    tshi_attempt last; /* to follow a leader */
} multicast;

/* --- the address -------------------------------------------------------------------------------------------------- */

/* Every interface that is up, the loopback too: ranks of one machine need no network. */
static void find_interfaces(multicast *m) {
    struct ifaddrs *all = NULL;
    int family = m->endpoint.address.ss_family;
    unsigned scope = family == AF_INET6 ? ((struct sockaddr_in6 *)(void *)&m->endpoint.address)->sin6_scope_id : 0;
    if (getifaddrs(&all) != 0) return;
    for (const struct ifaddrs *a = all; a && m->n_interfaces < INTERFACES; a = a->ifa_next) {
        if (!a->ifa_addr || a->ifa_addr->sa_family != family || !(a->ifa_flags & IFF_UP)) continue;
        unsigned index = if_nametoindex(a->ifa_name);
        bool known = index == 0 || (scope != 0 && scope != index);
        for (int i = 0; i < m->n_interfaces; i++) known = known || m->interfaces[i] == index;
        if (!known) m->interfaces[m->n_interfaces++] = index;
    }
    freeifaddrs(all);
}

static bool join_group(multicast *m, unsigned interface) {
    struct group_req request = {.gr_interface = interface};
    bool v6 = m->endpoint.address.ss_family == AF_INET6;
    memcpy(&request.gr_group, &m->endpoint.address, sizeof m->endpoint.address);
    return setsockopt(m->socket, v6 ? IPPROTO_IPV6 : IPPROTO_IP, MCAST_JOIN_GROUP, &request, sizeof request) == 0;
}

static tsh_status open_group(multicast *m) {
    const tshi_settings *s = m->r->settings;
    const int on = 1;
    bool v6 = m->endpoint.address.ss_family == AF_INET6;
    int joined = 0;
    m->socket = socket(m->endpoint.address.ss_family, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (m->socket < 0) return tshi_fail_errno(errno, "rendezvous: socket");
    setsockopt(m->socket, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    setsockopt(m->socket, v6 ? IPPROTO_IPV6 : IPPROTO_IP, v6 ? IPV6_MULTICAST_LOOP : IP_MULTICAST_LOOP, &on, sizeof on);
    if (bind(m->socket, (const void *)&m->endpoint.address, m->endpoint.length) != 0) {
        return tshi_fail_errno(errno, "rendezvous: listening at %s:%d", s->address, s->port);
    }
    find_interfaces(m);
    for (int i = 0; i < m->n_interfaces; i++) joined += join_group(m, m->interfaces[i]);
    if (joined > 0) return TSH_OK;
    return tshi_fail_errno(errno, "rendezvous: no network interface takes part in %s", s->address);
}

static tsh_status open_listener(multicast *m) {
    const tshi_endpoint endpoint = tshi_endpoint_any(m->endpoint.address.ss_family);
    m->listener = tshi_socket_listen(&endpoint, false);
    if (m->listener < 0) return tshi_fail_errno(errno, "rendezvous: listening");
    m->mine.port = tshi_tcp_port(m->listener);
    return TSH_OK;
}

/* --- announcing and receiving ------------------------------------------------------------------------------------- */

static bool is_lower(const announcer *v, const multicast *m) {
    return memcmp(v->nonce, m->mine.nonce, sizeof v->nonce) < 0;
}

static bool knows_lower(const multicast *m) {
    for (int i = 0; i < m->n; i++) {
        if (is_lower(&m->others[i], m)) return true;
    }
    return false;
}

static void announce(multicast *m) {
    unsigned char bytes[TSHI_WIRE_MOST];
    tshi_seal seal = {m->r->settings->key, NULL};
    if (tshi_clock() < m->next_announcement) return;
    m->next_announcement = tshi_clock() + ANNOUNCE_EVERY;
    if (m->announced && !m->mine.leads && knows_lower(m)) return;
    m->announced = true;
    size_t size = tshi_wire_write(TSHI_ANNOUNCEMENT, &m->mine, &seal, bytes);
    bool v6 = m->endpoint.address.ss_family == AF_INET6;
    for (int i = 0; i < m->n_interfaces; i++) {
        struct ip_mreqn v4 = {.imr_ifindex = (int)m->interfaces[i]};
        int index = (int)m->interfaces[i];
        if (v6)
            setsockopt(m->socket, IPPROTO_IPV6, IPV6_MULTICAST_IF, &index, sizeof index);
        else
            setsockopt(m->socket, IPPROTO_IP, IP_MULTICAST_IF, &v4, sizeof v4);
        tshi_endpoint to = m->endpoint;
        if (v6) ((struct sockaddr_in6 *)(void *)&to.address)->sin6_scope_id = m->interfaces[i];
        sendto(m->socket, bytes, size, MSG_NOSIGNAL, (const void *)&to.address, to.length);
    }
}

static void announce_at_once(multicast *m) {
    m->announced = false;
    m->next_announcement = 0;
}

static announcer *announcer_of(multicast *m, const unsigned char *nonce) {
    for (int i = 0; i < m->n; i++) {
        if (!memcmp(m->others[i].nonce, nonce, TSHI_NONCE_SIZE)) return &m->others[i];
    }
    void *others = m->others;
    bool full = m->n == m->most;
    if (!full) full = tshi_grow(m->r->allocator, &others, &m->room, m->n + 1, sizeof *m->others) != TSH_OK;
    m->others = others;
    if (full) return NULL;
    announcer *v = &m->others[m->n++];
    *v = (announcer){0};
    memcpy(v->nonce, nonce, TSHI_NONCE_SIZE);
    /* It may know of all ranks once it knows of this one. */
    if (m->r->settings->size <= FEW && is_lower(v, m)) announce_at_once(m);
    return v;
}

static void add_path(announcer *v, tshi_endpoint from, int port) {
    if (v->port != port) v->paths = 0; /* it leads again, at another port */
    v->port = port;
    tshi_endpoint_set_port(&from, port);
    for (int i = 0; i < v->paths; i++) {
        if (v->path[i].length == from.length && !memcmp(&v->path[i].address, &from.address, from.length)) return;
    }
    if (v->paths < PATHS) v->path[v->paths++] = from;
}

static void forget(multicast *m) {
    double now = tshi_clock();
    for (int i = m->n - 1; i >= 0; i--) {
        if (now - m->others[i].last > FORGET_AFTER) m->others[i] = m->others[--m->n];
    }
}

/* Takes the announcements that have come; not so many that an address full of noise would hold this rank up. */
static void receive(multicast *m) {
    tshi_seal seal = {m->r->settings->key, NULL};
    for (int i = 0; i < AT_ONCE; i++) {
        unsigned char bytes[TSHI_WIRE_MOST];
        tshi_endpoint from = {.length = sizeof from.address};
        tshi_frame frame;
        ssize_t n = recvfrom(m->socket, bytes, sizeof bytes, MSG_TRUNC, (void *)&from.address, &from.length);
        if (n < 0) break;
        if ((size_t)n > sizeof bytes || !tshi_wire_read(TSHI_ANNOUNCEMENT, bytes, (size_t)n, &seal, &frame)) continue;
        if (!memcmp(frame.nonce, m->mine.nonce, sizeof frame.nonce)) continue;
        if (frame.size != m->r->settings->size &&
            tshi_rendezvous_contradict(m->r, &frame, m->contradiction, &m->deadline))
            announce_at_once(m);
        announcer *v = frame.size == m->r->settings->size ? announcer_of(m, frame.nonce) : NULL;
        if (!v) continue;
        v->last = tshi_clock();
        v->leads = frame.leads;
        add_path(v, from, frame.port);
    }
    forget(m);
}

/* The leader with the lowest nonce; NULL: no rank leads. */
static const announcer *leader(const multicast *m) {
    const announcer *leading = NULL;
    for (int i = 0; i < m->n; i++) {
        const announcer *v = &m->others[i];
        if (v->leads && (!leading || memcmp(v->nonce, leading->nonce, sizeof v->nonce) < 0)) leading = v;
    }
    return leading;
}

static bool is_my_turn(const multicast *m) {
    bool knows_enough = m->n + 1 >= m->r->settings->size || tshi_clock() - m->start > MOMENT;
    return knows_enough && !knows_lower(m);
}

/* --- leading and following ---------------------------------------------------------------------------------------- */

/* While this rank leads it goes on announcing itself. A leader with a lower nonce has precedence. Peers that have
 * connected learn of a contradiction as this rank does, when it sends them no answer. */
static bool still_leads(void *user) {
    multicast *m = user;
    receive(m);
    if (m->contradiction[0]) return false;
    for (int i = 0; i < m->n; i++) {
        if (m->others[i].leads && is_lower(&m->others[i], m)) return false;
    }
    announce(m);
    return true;
}

static void wait_for_announcements(multicast *m) {
    struct pollfd p = {.fd = m->socket, .events = POLLIN};
    double left = m->next_announcement - tshi_clock();
    poll(&p, 1, left > 0 ? (int)(left * 1000) + 1 : 0);
    if (!tshi_warning_due(&m->r->next_warning, m->r->settings->warn_every)) return;
    tshi_log(m->r->log, TSH_LOG_WARNING, "rendezvous: process %u knows of %d/%d at %s:%d", m->r->me.number, m->n + 1,
             m->r->settings->size, m->r->settings->address, m->r->settings->port);
}

/* False: another rank has to lead; else *status is the result. */
static bool lead(multicast *m, tsh_status *status, tshi_roster *out) {
    bool stopped = false;
    tshi_acceptor_plan plan = {
        .listeners = &m->listener, .n = 1, .leader = m->mine.nonce, .tick = still_leads, .user = m};
    *status = open_listener(m);
    if (*status != TSH_OK) return true;
    m->mine.leads = true;
    m->next_announcement = 0;
    announce(m);
    *status = tshi_roster_gather(m->r, &plan, &stopped, out);
    tshi_socket_close(&m->listener, 1); /* no rank may wait there for an answer */
    m->mine.leads = false;
    return !stopped;
}

static tsh_status find_each_other(multicast *m, tshi_roster *out) {
    const tshi_settings *s = m->r->settings;
    tsh_status status = TSH_OK;
    m->start = tshi_clock();
    m->last = (tshi_attempt){.patience = 1.0, .out = out};
    for (m->deadline = m->r->deadline; tshi_clock() < m->deadline; wait_for_announcements(m)) {
        announce(m);
        receive(m);
        if (m->contradiction[0]) continue;
        const announcer *v = leader(m);
        if (!v && is_my_turn(m) && lead(m, &status, out)) return status;
        if (v) m->last.leader = v->nonce;
        if (v && tshi_connector_try(m->r, v->path, v->paths, &m->last) == TSHI_CONNECT_ANSWERED) return m->last.status;
    }
    if (m->contradiction[0]) return tshi_fail(TSH_ERR_ARGUMENT, "rendezvous: %s", m->contradiction);
    return tshi_fail(TSH_ERR_TIMEOUT, "rendezvous: %d/%d joined; process %u on %s knows of no more at %s:%d%s%s",
                     m->n + 1, s->size, m->r->me.number, m->r->me.host, s->address, s->port,
                     m->last.reasons[0] ? "; " : "", m->last.reasons);
}

tsh_status tshi_rendezvous_multicast(tshi_rendezvous *r, tshi_roster *out) {
    const tshi_settings *s = r->settings;
    multicast m = {.r = r, .socket = -1, .listener = -1, .most = 2 * s->size + 16};
    tshi_endpoint endpoints[TSHI_ENDPOINTS];
    int n = 0;
    tsh_status status = tshi_tcp_resolve(s->address, s->port, r->deadline, endpoints, &n);
    if (status != TSH_OK) return status;
    m.endpoint = endpoints[0];
    memcpy(m.mine.group, r->group, sizeof m.mine.group);
    m.mine.rank = s->rank;
    m.mine.size = s->size;
    m.mine.process = r->me;
    if (!tshi_random_bytes(m.mine.nonce, sizeof m.mine.nonce)) status = tshi_fail_errno(errno, "rendezvous: random");
    if (status == TSH_OK) status = open_group(&m);
    if (status == TSH_OK) status = find_each_other(&m, out);
    tshi_socket_close(&m.socket, 1);
    tshi_socket_close(&m.listener, 1);
    tshi_free(r->allocator, m.others);
    return status;
}
