#include "dist/control/liveness.h"
#include "dist/control/agree.h"
#include "dist/control/control.h"
#include "dist/control/links.h"
#include "dist/rendezvous/rendezvous.h"
#include "dist/rendezvous/sockets.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <string.h>
#include <unistd.h>

/* Seconds that a machine has to answer before the ranks connect, unless TSHARD_SILENCE is less. */
#define LONGEST_REACH 10.0
#define LOOK_EVERY    1e-3

/* Where a rank listens, as all ranks get it. */
typedef struct tshi_liveness_address {
    unsigned char machine[TSHI_GROUP_SIZE];
    uint32_t length; /* of the address in bytes; 0: the rank does not listen */
    union {
        struct sockaddr any;
        struct sockaddr_in v4;
        struct sockaddr_in6 v6;
    } address;
} tshi_liveness_address;

/* --- this rank's port --------------------------------------------------------------------------------------------- */

/* A listener, or -1. */
static int open_port(const tsh_world *world, tshi_liveness_address *out) {
    const tshi_settings *s = world->settings;
    tshi_endpoint there[TSHI_ENDPOINTS], here;
    int n = 0, fd = -1;
    if (tshi_tcp_resolve(s->address, s->port, tshi_clock() + world->timeout, there, &n) != TSH_OK) return -1;
    for (int i = 0; i < n && fd < 0; i++) {
        if (!tshi_endpoint_source(&there[i], &here) || tshi_is_loopback((void *)&here.address)) continue;
        tshi_endpoint_set_port(&here, 0);
        fd = tshi_socket_listen(&here, false);
    }
    if (fd < 0) return fd;
    tshi_endpoint_set_port(&here, tshi_tcp_port(fd));
    memcpy(&out->address, &here.address, here.length);
    out->length = here.length;
    return fd;
}

tsh_status tshi_liveness_open(tsh_world *world) {
    tshi_machine *m = &world->machine;
    tshi_liveness_address mine = {0};
    tshi_process self;
    m->liveness_addresses = tshi_calloc(&world->allocator, (size_t)world->size, sizeof *m->liveness_addresses);
    if (m->liveness_addresses) m->liveness_socket = open_port(world, &mine);
    if (tshi_process_self(&self) == TSH_OK) memcpy(mine.machine, self.machine, sizeof mine.machine);
    return tshi_control_gather(world->group, "world_init: liveness", m->liveness_addresses ? TSH_OK : TSH_ERR_MEMORY,
                               &mine, sizeof mine, m->liveness_addresses);
}

void tshi_liveness_close(tsh_world *world) {
    tshi_machine *m = &world->machine;
    if (m->liveness_addresses && m->liveness_socket >= 0) close(m->liveness_socket);
    tshi_free(&world->allocator, m->liveness_addresses);
    m->liveness_addresses = NULL;
}

int tshi_liveness_node(const tsh_world *world, const unsigned char machine[TSHI_GROUP_SIZE]) {
    const tshi_machine *m = &world->machine;
    for (int i = 0; m->liveness_addresses && i < world->size; i++) {
        if (!memcmp(m->liveness_addresses[i].machine, machine, TSHI_GROUP_SIZE)) return m->node[i];
    }
    return -1;
}

/* --- another rank's ----------------------------------------------------------------------------------------------- */

/* Once the connection is made, an idle one is tested each second; without an answer for the silence it ends. */
static void set_patience(int fd, double silence) {
    const int on = 1;
    const unsigned milliseconds = (unsigned)(1e3 * silence) + 1;
    setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &on, sizeof on);
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &on, sizeof on);
    setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &milliseconds, sizeof milliseconds);
}

/* Without a way to the machine at this moment there is no connection, and the next look tries again. */
static void begin_probe(const tshi_liveness_address *at, double silence, tshi_probe *k) {
    int fd = socket(at->address.any.sa_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0) return;
    set_patience(fd, silence);
    if (connect(fd, &at->address.any, at->length) == 0 || errno == EINPROGRESS || errno == EINTR) {
        k->connection = fd;
        return;
    }
    if (errno == ECONNREFUSED) k->state = TSHI_PROBE_ENDED;
    close(fd);
}

static tshi_probe_state state_after(int error) {
    return error == 0 || error == ECONNREFUSED || error == ECONNRESET ? TSHI_PROBE_ENDED : TSHI_PROBE_SILENT;
}

static void listen_for_answer(tshi_probe *k) {
    struct pollfd p = {.fd = k->connection, .events = POLLIN | POLLOUT | POLLRDHUP};
    int error = 0;
    socklen_t size = sizeof error;
    if (poll(&p, 1, 0) <= 0) return;
    if (!(p.revents & (POLLERR | POLLHUP | POLLRDHUP))) {
        k->state = TSHI_PROBE_ALIVE;
        return;
    }
    if (getsockopt(k->connection, SOL_SOCKET, SO_ERROR, &error, &size) != 0) error = errno;
    k->state = state_after(error);
    tshi_socket_close(&k->connection, 1);
}

tshi_probe_state tshi_probe_poll(const tsh_world *world, int rank, double silence, tshi_probe *k) {
    const tshi_liveness_address *at = &world->machine.liveness_addresses[rank];
    bool has_port = at->length > 0 && at->length <= sizeof at->address;
    if (k->since == 0) *k = (tshi_probe){.since = tshi_clock(), .connection = -1};
    if (has_port && k->connection < 0 && k->state == TSHI_PROBE_UNKNOWN) begin_probe(at, silence, k);
    if (k->connection >= 0) listen_for_answer(k);
    bool late = has_port && k->state == TSHI_PROBE_UNKNOWN && tshi_clock() - k->since > silence;
    if (late) k->state = TSHI_PROBE_SILENT;
    return k->state;
}

void tshi_probe_end(tshi_probe *k) {
    if (k->since != 0) tshi_socket_close(&k->connection, 1);
    *k = (tshi_probe){0};
}

/* --- all machines ------------------------------------------------------------------------------------------------- */

static tsh_status fail_to_reach(const tsh_world *world, int node, double silence) {
    const tshi_machine *m = &world->machine;
    const tshi_roster roster = {.size = world->size, .nodes = m->nodes, .node = m->node, .host = world->hosts};
    char there[TSHI_LINE];
    return tshi_fail(TSH_ERR_SYSTEM,
                     "world_init: %.200s has not answered a connection from machine %s for %.3g s: a firewall, or no "
                     "route between the two",
                     tshi_machine_name(&roster, node, there, sizeof there), world->hosts[m->node[world->rank]],
                     silence);
}

/* Probes the machine by its first rank. A machine without a port passes for one that has answered. */
static tshi_probe_state probe_machine(const tsh_world *world, int node, double silence, tshi_probe *probe) {
    const tshi_machine *m = &world->machine;
    int rank = 0;
    while (m->node[rank] != node) rank++;
    if (node == m->node[world->rank] || m->liveness_addresses[rank].length == 0) return TSHI_PROBE_ALIVE;
    return tshi_probe_poll(world, rank, silence, probe);
}

static tsh_status reach_machines(tsh_world *world, double silence, tshi_probe *probes) {
    int nodes = world->machine.nodes;
    tsh_status status = TSH_OK;
    for (int i = 0; i < nodes; i++) probe_machine(world, i, silence, &probes[i]);
    for (int i = 0; status == TSH_OK && i < nodes;) {
        tshi_probe_state state = probe_machine(world, i, silence, &probes[i]);
        if (state == TSHI_PROBE_SILENT) return fail_to_reach(world, i, silence);
        if (state != TSHI_PROBE_UNKNOWN) {
            i++;
            continue;
        }
        tshi_machine_poll(world);
        if (tshi_control_has_failed(world)) status = tshi_control_failure(world);
        tshi_sleep(LOOK_EVERY);
    }
    return status;
}

tsh_status tshi_liveness_reach(tsh_world *world) {
    tshi_machine *m = &world->machine;
    double silence = world->settings->silence < LONGEST_REACH ? world->settings->silence : LONGEST_REACH;
    tsh_status status = TSH_OK;
    if (m->ranks[0] == world->rank) {
        tshi_probe *probes = tshi_calloc(&world->allocator, (size_t)m->nodes, sizeof *probes);
        status = probes ? reach_machines(world, silence, probes) : TSH_ERR_MEMORY;
        for (int i = 0; probes && i < m->nodes; i++) tshi_probe_end(&probes[i]);
        tshi_free(&world->allocator, probes);
    }
    return tshi_control_agree(world->group, "world_init: machines", status);
}
