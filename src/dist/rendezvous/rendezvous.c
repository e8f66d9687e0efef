/* Which method applies, and the two by which rank 0 listens at an address that all ranks know. */
#include "dist/rendezvous/acceptor.h"
#include "dist/rendezvous/connector.h"

#include <errno.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>

#define LONGEST_RENDEZVOUS 120.0
/* How long an address that is in use without a listener may take to become free: a connection that is being closed has
 * it, or one to which the system gave this very port. */
#define RELEASE_SECONDS 5.0
#define PROBE_SECONDS   0.5

/* --- ranks of one machine ----------------------------------------------------------------------------------------- */

/* The launcher says that all ranks are on this machine, or other machines cannot reach the address. */
static bool is_one_machine(const tshi_settings *s) {
    if (s->method != TSHI_INIT_ENV) return false;
    if (s->local_known && s->local_size == s->size && s->address_known) return true;
    return tshi_address_is_loopback(s->address);
}

static tsh_status roster_of_one_machine(const tshi_rendezvous *r, tshi_roster *out) {
    const tshi_settings *s = r->settings;
    tsh_status status = tshi_roster_init(out, s->size, 1, r->allocator);
    if (status != TSH_OK) return status;
    out->rank = s->rank;
    memcpy(out->host[0], r->me.host, sizeof r->me.host);
    memcpy(out->key, s->key, sizeof out->key);
    return TSH_OK;
}

/* --- rank 0 listens ----------------------------------------------------------------------------------------------- */

/* A name that is this machine's loopback here (as /etc/hosts has it for the own name) is another address on other
 * machines: rank 0 then listens at all of its addresses. */
static bool hides_address(const char *name, const tshi_endpoint *endpoints, int n) {
    bool found = false;
    for (int i = 0; i < n; i++) found = found || tshi_is_loopback((const void *)&endpoints[i].address);
    return found && !tshi_address_is_loopback(name);
}

typedef enum occupant { OCCUPANT_NONE, OCCUPANT_OTHER, OCCUPANT_SAME_JOB } occupant;

/* What listens at an endpoint already; a second rank 0 would split its job in two. */
static occupant occupant_of(tshi_rendezvous *r, const tshi_endpoint *endpoint) {
    unsigned char bytes[TSHI_WIRE_MOST];
    tshi_frame frame;
    int fd = tshi_socket_connect(endpoint, tshi_clock() + PROBE_SECONDS);
    if (fd < 0) return OCCUPANT_NONE;
    size_t size = tshi_connector_receive(fd, TSHI_CHALLENGE, bytes, tshi_clock() + PROBE_SECONDS);
    bool same = size && tshi_wire_read(TSHI_CHALLENGE, bytes, size, NULL, &frame) &&
                !memcmp(frame.group, r->group, sizeof frame.group);
    tshi_socket_close(&fd, 1);
    return same ? OCCUPANT_SAME_JOB : OCCUPANT_OTHER;
}

/* A listener, or -1 with the reason. */
static int listen_at_one(tshi_rendezvous *r, const tshi_endpoint *endpoint, char *reason, size_t size) {
    double patience = tshi_clock() + RELEASE_SECONDS;
    if (patience > r->deadline) patience = r->deadline;
    for (;;) {
        occupant other = occupant_of(r, endpoint);
        int fd = other == OCCUPANT_SAME_JOB ? -1 : tshi_socket_listen(endpoint, true);
        if (fd >= 0) return fd;
        int error = errno;
        bool passes = other == OCCUPANT_NONE && error == EADDRINUSE && tshi_clock() < patience;
        snprintf(reason, size, "%s",
                 other == OCCUPANT_SAME_JOB ? "a rank 0 of this job listens there already" : strerror(error));
        if (!passes) return fd;
        tshi_sleep(0.02);
    }
}

static tsh_status listen_at(tshi_rendezvous *r, const tshi_endpoint *endpoints, int n, int *listeners, int *count) {
    const tshi_settings *s = r->settings;
    char reasons[TSHI_LINE] = "";
    *count = 0;
    for (int i = 0; i < n; i++) {
        char where[TSHI_ENDPOINT_TEXT], reason[128];
        int fd = listen_at_one(r, &endpoints[i], reason, sizeof reason);
        if (fd >= 0)
            listeners[(*count)++] = fd;
        else
            tshi_append(reasons, sizeof reasons, "%s%s: %s", reasons[0] ? "; " : "",
                        tshi_endpoint_text(&endpoints[i], where), reason);
    }
    if (*count > 0) return TSH_OK;
    return tshi_fail(TSH_ERR_SYSTEM, "rendezvous: rank 0 cannot listen at %s:%d (%s)", s->address, s->port, reasons);
}

static tsh_status rendezvous_at_address(tshi_rendezvous *r, tshi_roster *out) {
    const tshi_settings *s = r->settings;
    tshi_endpoint endpoints[TSHI_ENDPOINTS];
    int n = 0, listeners[TSHI_ENDPOINTS], count = 0;
    tsh_status status = tshi_tcp_resolve(s->address, s->port, r->deadline, endpoints, &n);
    if (status != TSH_OK) return status;
    if (s->rank != 0) return tshi_connector_run(r, endpoints, n, out);
    if (hides_address(s->address, endpoints, n)) status = tshi_tcp_resolve(NULL, s->port, r->deadline, endpoints, &n);
    if (status == TSH_OK) status = listen_at(r, endpoints, n, listeners, &count);
    if (status != TSH_OK) return status;
    const tshi_acceptor_plan plan = {.listeners = listeners, .n = count};
    status = tshi_roster_gather(r, &plan, NULL, out);
    tshi_socket_close(listeners, count);
    return status;
}

/* --- all methods -------------------------------------------------------------------------------------------------- */

double tshi_rendezvous_patience(const tshi_settings *settings) {
    return settings->timeout < LONGEST_RENDEZVOUS ? settings->timeout : LONGEST_RENDEZVOUS;
}

/* mpirun and srun start ranks on several machines without saying where rank 0 is. */
static tsh_status check_address(const tshi_settings *s) {
    if (s->method != TSHI_INIT_ENV || s->address_known || !s->local_known || s->local_size == s->size) return TSH_OK;
    return tshi_fail(TSH_ERR_UNSUPPORTED,
                     "world_init: %d of %d ranks are on this machine, and MASTER_ADDR does not say where rank 0 is",
                     s->local_size, s->size);
}

void tshi_rendezvous_warn(const tshi_settings *s, const tshi_roster *roster, const tsh_log_sink *log) {
    size_t length = strlen(s->token);
    if (roster->rank != 0 || length >= TSHI_TOKEN_LENGTH || is_one_machine(s)) return;
    if (length > 0) {
        tshi_log(log, TSH_LOG_WARNING,
                 "rendezvous: TSHARD_TOKEN has %zu characters, which any program that connects can guess offline: "
                 "take at least %d random ones (openssl rand -hex 16)",
                 length, TSHI_TOKEN_LENGTH);
    } else if (roster->nodes > 1) {
        tshi_log(log, TSH_LOG_WARNING,
                 "rendezvous: TSHARD_TOKEN is not set: any program that reaches these machines can join; set it to one "
                 "secret on all of them (openssl rand -hex 16)");
    }
}

tsh_status tshi_rendezvous_run(const tshi_settings *settings, const tsh_log_sink *log, const tsh_allocator *allocator,
                               double deadline, int *connections, tshi_roster *out) {
    tshi_rendezvous r;
    *out = (tshi_roster){0};
    tsh_status status = tshi_rendezvous_begin(settings, log, allocator, deadline, &r);
    r.connections = connections;
    if (status == TSH_OK) status = check_address(settings);
    if (status != TSH_OK) return status;
    if (is_one_machine(settings)) {
        status = tshi_address_is_here(settings->address, deadline);
        return status == TSH_OK ? roster_of_one_machine(&r, out) : status;
    }
    if (settings->method == TSHI_INIT_FILE) return tshi_rendezvous_file(&r, out);
    return settings->ranks_assigned ? tshi_rendezvous_multicast(&r, out) : rendezvous_at_address(&r, out);
}
