#include "dist/control/links.h"
#include "dist/control/news.h"
#include "dist/rendezvous/acceptor.h"
#include "dist/rendezvous/connector.h"
#include "dist/rendezvous/sockets.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* --- the tree ----------------------------------------------------------------------------------------------------- */

/* Machines are numbered from the hub on. */
static int place_of(const tshi_machine_links *links, int node) {
    return (node - links->hub + links->nodes) % links->nodes;
}

static int at_place(const tshi_machine_links *links, int place) {
    return (links->hub + place) % links->nodes;
}

/* -1 for the hub. */
static int parent_of(const tshi_machine_links *links, int node) {
    int place = place_of(links, node);
    return place == 0 ? -1 : at_place(links, (place - 1) / links->fan_out);
}

static int children_of(const tshi_machine_links *links, int node, int child[TSHI_FAN_OUT]) {
    int first = place_of(links, node) * links->fan_out + 1, n = 0;
    while (n < links->fan_out && first + n < links->nodes) {
        child[n] = at_place(links, first + n);
        n++;
    }
    return n;
}

int tshi_links_toward(const tshi_machine_links *links, int node) {
    for (int at = node, below = node; at >= 0; below = at, at = parent_of(links, at)) {
        if (at == links->node) return below;
    }
    return parent_of(links, links->node);
}

/* --- every machine with the hub ----------------------------------------------------------------------------------- */

/* The log sink of the machines' rendezvous: the ranks' rendezvous has already warned, and these lines would call a
 * machine a rank. */
static void drop_line(void *user, tsh_log_level level, const char *line) {
    (void)user, (void)level, (void)line;
}

/* Settings of a rendezvous whose ranks are the machines. local_known is reset: the launcher set it for the world's
 * ranks. */
static tshi_settings settings_of_machines(const tshi_settings *settings, const tshi_machine_links *links) {
    static const unsigned char purpose[] = "control";
    tshi_settings s = *settings;
    s.rank = links->node;
    s.size = links->nodes;
    s.local_known = false;
    tshi_hmac(settings->key, TSHI_KEY_SIZE, purpose, sizeof purpose, "", 0, s.key);
    return s;
}

static tsh_status lost_hub(void) {
    return tshi_fail_errno(errno, "reading from the hub, the machine that connects the others");
}

/* The hub sends its machine number, which the rendezvous tells only the hub itself. The rendezvous has the connection
 * to the hub at this machine's own index. A write to a machine that is gone may fail here: the relay finds it. */
static tsh_status find_hub(tshi_machine_links *links, double deadline) {
    unsigned char bytes[TSHI_NEWS_MOST];
    tshi_news beat = {.kind = TSHI_NEWS_BEAT, .machine = links->node};
    size_t size = tshi_news_write(&beat, bytes);
    int hub = links->connection[links->node];
    for (int i = 0; i < links->nodes && hub < 0; i++) {
        if (links->connection[i] >= 0) tshi_socket_write(links->connection[i], bytes, size, deadline);
    }
    links->hub = links->node;
    if (hub < 0) return TSH_OK;
    if (!tshi_socket_read(hub, bytes, size, deadline)) return lost_hub();
    bool good = tshi_news_read(bytes, size, &beat) == (int)size && beat.machine >= 0 && beat.machine < links->nodes;
    if (!good || beat.machine == links->node) return tshi_fail(TSH_ERR_SYSTEM, "the hub sent an invalid message");
    links->hub = beat.machine;
    links->connection[links->node] = -1;
    links->connection[links->hub] = hub;
    return TSH_OK;
}

/* --- parents and children ----------------------------------------------------------------------------------------- */

enum { PORT_BYTES = 8 };

/* Where the children of a machine join it. */
static tsh_status listen_for_children(const tshi_machine_links *links, double deadline, int *listener) {
    char text[PORT_BYTES] = "";
    tshi_endpoint here = {.length = sizeof here.address};
    int hub = links->connection[links->hub];
    if (getsockname(hub, (void *)&here.address, &here.length) != 0)
        return tshi_fail_errno(errno, "the address of this machine");
    tshi_endpoint_set_port(&here, 0);
    *listener = tshi_socket_listen(&here, false);
    if (*listener < 0) return tshi_fail_errno(errno, "listening for other machines");
    snprintf(text, sizeof text, "%d", tshi_tcp_port(*listener));
    return tshi_socket_write(hub, text, sizeof text, deadline) ? TSH_OK : lost_hub();
}

/* At the hub: tells the machines whose parent is that one where it listens. */
static tsh_status introduce(const tshi_machine_links *links, int parent, double deadline) {
    int child[TSHI_FAN_OUT], n = children_of(links, parent, child);
    char port[PORT_BYTES] = "", text[TSHI_ENDPOINT_TEXT] = "";
    tshi_endpoint there = {.length = sizeof there.address};
    if (n == 0) return TSH_OK;
    if (!tshi_socket_read(links->connection[parent], port, sizeof port, deadline) ||
        getpeername(links->connection[parent], (void *)&there.address, &there.length) != 0)
        return tshi_fail_errno(errno, "where machine %d listens", parent);
    port[sizeof port - 1] = '\0';
    tshi_endpoint_set_port(&there, atoi(port));
    tshi_endpoint_text(&there, text);
    for (int i = 0; i < n; i++) tshi_socket_write(links->connection[child[i]], text, sizeof text, deadline);
    return TSH_OK;
}

/* A machine and its children, in a rendezvous of their own in which the parent has number 0. */
typedef struct family {
    tshi_settings settings;
    tsh_log_sink quiet;
    tshi_rendezvous r;
    int machine[TSHI_FAN_OUT + 1], connection[TSHI_FAN_OUT + 1];
    tshi_roster roster;
} family;

static tsh_status family_begin(family *f, const tshi_machine_links *links, const tshi_rendezvous *machines,
                               int parent) {
    static const unsigned char purpose[] = "family";
    const tshi_settings *s = machines->settings;
    *f = (family){.settings = *s, .quiet = *machines->log, .machine = {parent}};
    f->settings.size = 1 + children_of(links, parent, f->machine + 1);
    for (f->settings.rank = 0; f->machine[f->settings.rank] != links->node;) f->settings.rank++;
    for (int i = 0; i <= TSHI_FAN_OUT; i++) f->connection[i] = -1;
    tshi_hmac(s->key, TSHI_KEY_SIZE, purpose, sizeof purpose, &parent, sizeof parent, f->settings.key);
    tsh_status status = tshi_rendezvous_begin(&f->settings, &f->quiet, machines->allocator, machines->deadline, &f->r);
    f->r.connections = f->connection;
    f->r.numbers = f->machine;
    return status;
}

/* `where` the parent listens. */
static tsh_status join_parent(tshi_machine_links *links, const tshi_rendezvous *machines, int parent,
                              const char *where) {
    tshi_endpoint endpoint[TSHI_ENDPOINTS];
    int n = 0;
    family f;
    tsh_status status = family_begin(&f, links, machines, parent);
    tshi_settings *s = &f.settings;
    if (status == TSH_OK && !tshi_address_split(where, s->address, &s->port))
        status = tshi_fail(TSH_ERR_SYSTEM, "the hub sent an invalid message");
    if (status == TSH_OK) status = tshi_tcp_resolve(s->address, s->port, machines->deadline, endpoint, &n);
    if (status == TSH_OK) status = tshi_connector_run(&f.r, endpoint, n, &f.roster);
    links->connection[parent] = f.connection[s->rank];
    tshi_roster_free(&f.roster, machines->allocator);
    return status;
}

static tsh_status take_children(tshi_machine_links *links, const tshi_rendezvous *machines, int *listener) {
    const tshi_acceptor_plan plan = {.listeners = listener, .n = 1};
    family f;
    tsh_status status = family_begin(&f, links, machines, links->node);
    if (status == TSH_OK) status = tshi_roster_gather(&f.r, &plan, NULL, &f.roster);
    for (int i = 1; i < f.settings.size; i++) links->connection[f.machine[i]] = f.connection[i];
    tshi_roster_free(&f.roster, machines->allocator);
    return status;
}

/* At the hub: afterwards it has only the connections to its children. */
static tsh_status introduce_all(tshi_machine_links *links, double deadline) {
    tsh_status status = TSH_OK;
    for (int place = 1; status == TSH_OK && place < links->nodes; place++)
        status = introduce(links, at_place(links, place), deadline);
    for (int i = 0; i < links->nodes; i++) {
        if (parent_of(links, i) != links->hub) tshi_socket_close(&links->connection[i], 1);
    }
    return status;
}

static tsh_status leave_star(tshi_machine_links *links, const tshi_rendezvous *machines, int parent) {
    char where[TSHI_ENDPOINT_TEXT] = "";
    bool told = tshi_socket_read(links->connection[links->hub], where, sizeof where, machines->deadline);
    tsh_status status = told ? TSH_OK : lost_hub();
    where[sizeof where - 1] = '\0';
    tshi_socket_close(&links->connection[links->hub], 1);
    return status == TSH_OK ? join_parent(links, machines, parent, where) : status;
}

static tsh_status grow_tree(tshi_machine_links *links, const tshi_rendezvous *machines) {
    int child[TSHI_FAN_OUT], listener = -1, parent = parent_of(links, links->node);
    if (parent < 0) return introduce_all(links, machines->deadline);
    bool has_children = children_of(links, links->node, child) > 0;
    tsh_status status = has_children ? listen_for_children(links, machines->deadline, &listener) : TSH_OK;
    if (status == TSH_OK && parent != links->hub) status = leave_star(links, machines, parent);
    if (status == TSH_OK && has_children) status = take_children(links, machines, &listener);
    tshi_socket_close(&listener, 1);
    return status;
}

static void without_delay(const tshi_machine_links *links) {
    const int on = 1;
    for (int i = 0; i < links->nodes; i++) {
        if (links->connection[i] >= 0) setsockopt(links->connection[i], IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    }
}

tsh_status tshi_links_open(const tshi_settings *settings, const tshi_roster *roster, const tsh_allocator *allocator,
                           int fan_out, double deadline, tshi_machine_links *out) {
    tshi_roster machines = {0};
    *out = (tshi_machine_links){.node = roster->node[roster->rank], .nodes = roster->nodes, .fan_out = fan_out};
    out->connection = tshi_calloc(allocator, (size_t)out->nodes, sizeof *out->connection);
    if (!out->connection) return TSH_ERR_MEMORY;
    for (int i = 0; i < out->nodes; i++) out->connection[i] = -1;
    const tsh_log_sink quiet = {.fn = drop_line};
    const tshi_settings s = settings_of_machines(settings, out);
    tsh_status status = tshi_rendezvous_run(&s, &quiet, allocator, deadline, out->connection, &machines);
    tshi_roster_free(&machines, allocator);
    if (status == TSH_OK) status = find_hub(out, deadline);
    const tshi_rendezvous r = {.settings = &s, .log = &quiet, .allocator = allocator, .deadline = deadline};
    if (status == TSH_OK) status = grow_tree(out, &r);
    if (status == TSH_OK) {
        without_delay(out);
    } else {
        tshi_failure why;
        tshi_failure_keep(&why, status);
        tshi_links_close(out, allocator);
        tshi_fail(status, "world_init: the machines, numbered as ranks are: %.440s", why.words);
    }
    return status;
}

void tshi_links_close(tshi_machine_links *links, const tsh_allocator *allocator) {
    if (links->connection) tshi_socket_close(links->connection, links->nodes);
    tshi_free(allocator, links->connection);
    *links = (tshi_machine_links){0};
}

const char *tshi_machine_name(const tshi_roster *roster, int node, char *text, size_t size) {
    snprintf(text, size, "machine %s (", roster->host[node]);
    tshi_roster_append(roster, node, text, size - 1);
    return tshi_append(text, size, ")");
}
