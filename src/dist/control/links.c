#include "dist/control/links.h"
#include "dist/control/news.h"
#include "dist/rendezvous/sockets.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <string.h>

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

static void without_delay(int fd) {
    const int on = 1;
    if (fd >= 0) setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
}

/* The hub sends its machine number, which the rendezvous tells only the hub itself. A write to a machine that is gone
 * may fail here: the relay finds it. */
static tsh_status find_hub(tshi_machine_links *links, double deadline) {
    unsigned char bytes[TSHI_NEWS_MOST];
    tshi_news beat = {.kind = TSHI_NEWS_BEAT, .machine = links->node};
    size_t size = tshi_news_write(&beat, bytes);
    int hub = links->connection[links->node];
    for (int i = 0; i < links->nodes; i++) {
        without_delay(links->connection[i]);
        if (hub < 0 && links->connection[i] >= 0) tshi_socket_write(links->connection[i], bytes, size, deadline);
    }
    links->hub = links->node;
    if (hub < 0) return TSH_OK;
    if (!tshi_socket_read(hub, bytes, size, deadline)) {
        return tshi_fail_errno(errno, "world_init: reading from the hub, the machine that connects the others");
    }
    bool good = tshi_news_read(bytes, size, &beat) == (int)size && beat.machine >= 0 && beat.machine < links->nodes;
    links->hub = beat.machine;
    return good ? TSH_OK : tshi_fail(TSH_ERR_SYSTEM, "world_init: the hub sent an invalid message");
}

tsh_status tshi_links_open(const tshi_settings *settings, const tshi_roster *roster, const tsh_allocator *allocator,
                           double deadline, tshi_machine_links *out) {
    tshi_roster machines = {0};
    *out = (tshi_machine_links){.node = roster->node[roster->rank], .nodes = roster->nodes};
    out->connection = tshi_calloc(allocator, (size_t)out->nodes, sizeof *out->connection);
    if (!out->connection) return TSH_ERR_MEMORY;
    for (int i = 0; i < out->nodes; i++) out->connection[i] = -1;
    const tsh_log_sink quiet = {.fn = drop_line};
    const tshi_settings s = settings_of_machines(settings, out);
    tsh_status status = tshi_rendezvous_run(&s, &quiet, allocator, deadline, out->connection, &machines);
    tshi_roster_free(&machines, allocator);
    if (status != TSH_OK) {
        char words[TSHI_MESSAGE_SIZE];
        snprintf(words, sizeof words, "%s", tsh_error_message());
        tshi_links_close(out, allocator);
        return tshi_fail(status, "world_init: the machines, numbered as ranks are: %.440s", words);
    }
    status = find_hub(out, deadline);
    if (status != TSH_OK) tshi_links_close(out, allocator);
    return status;
}

void tshi_links_close(tshi_machine_links *links, const tsh_allocator *allocator) {
    if (links->connection) tshi_socket_close(links->connection, links->nodes);
    tshi_free(allocator, links->connection);
    *links = (tshi_machine_links){0};
}

const char *tshi_machine_name(const tshi_roster *roster, int node, char *text, size_t size) {
    int here = 0;
    for (int i = 0; i < roster->size; i++) here += roster->node[i] == node;
    snprintf(text, size, "machine %s (rank%s", roster->host[node], here > 1 ? "s" : "");
    const char *comma = " ";
    for (int i = 0; i < roster->size; i++) {
        if (roster->node[i] != node) continue;
        tshi_append(text, size - 1, "%s%d", comma, i);
        comma = ", ";
    }
    return tshi_append(text, size, ")");
}
