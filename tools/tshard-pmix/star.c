/* A message: a kind, the length of what follows, and that. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "star.h"
#include "report.h"
#include "server.h"

#include <endian.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

/* Seconds that a message may take. */
#define MESSAGE_SECONDS 20.0
#define LARGEST         ((uint64_t)1 << 30)
/* Once a failure is known: how long a stand-in has to do what a rank has not. */
#define RECOVERY 5.0

/* To the hub: a machine's part of a fence. From it: all parts. Both ways: a failure; that a machine is done. */
typedef enum kind { PART = 1, WHOLE, FAILURE, DONE } kind;

typedef struct head {
    uint32_t kind, unused;
    uint64_t size;
} head;

/* --- connecting --------------------------------------------------------------------------------------------------- */

/* A machine that is cut off is noticed after half a minute, even when no message is due. */
static void keep_alive(int fd) {
    const int on = 1, idle = 10, every = 5, count = 4;
    setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle, sizeof idle);
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &every, sizeof every);
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &count, sizeof count);
}

bool helper_star_open(helper *h) {
    tsh_allocator allocator = tshi_allocator_resolve(NULL);
    char message[TSHI_MESSAGE_SIZE];
    tshi_settings settings = h->order.settings;
    tshi_roster roster = {0};
    for (int i = 0; i < h->order.nodes; i++) h->connections[i] = -1;
    if (h->order.nodes == 1) {
        h->hub = true;
        return true;
    }
    settings.rank = h->order.node;
    settings.size = h->order.nodes;
    settings.local_known = false;
    if (tshi_rendezvous_run(&settings, NULL, &allocator, h->deadline, h->connections, &roster) != TSH_OK) {
        snprintf(message, sizeof message, "the machines, numbered like ranks: %.400s", tsh_error_message());
        report_failure(h, message);
        return false;
    }
    tshi_roster_free(&roster, &allocator);
    h->hub = h->connections[h->order.node] < 0;
    for (int i = 0; i < h->order.nodes; i++) {
        if (h->connections[i] >= 0) keep_alive(h->connections[i]);
    }
    return true;
}

/* --- messages ----------------------------------------------------------------------------------------------------- */

static bool send_message(int fd, kind k, const void *bytes, size_t size) {
    head out = {.kind = htole32((uint32_t)k), .size = htole64(size)};
    double deadline = tshi_clock() + MESSAGE_SECONDS;
    return tshi_socket_write(fd, &out, sizeof out, deadline) && tshi_socket_write(fd, bytes, size, deadline);
}

static bool receive_message(int fd, kind *k, helper_blob *out) {
    head in;
    double deadline = tshi_clock() + MESSAGE_SECONDS;
    *out = (helper_blob){0};
    if (!tshi_socket_read(fd, &in, sizeof in, deadline)) return false;
    *k = (kind)le32toh(in.kind);
    out->size = (size_t)le64toh(in.size);
    if (out->size > LARGEST) return false;
    out->bytes = malloc(out->size + 1);
    if (!out->bytes || !tshi_socket_read(fd, out->bytes, out->size, deadline)) {
        free(out->bytes);
        return false;
    }
    out->bytes[out->size] = '\0';
    return true;
}

static void send_to_all(helper *h, kind k, const void *bytes, size_t size) {
    for (int i = 0; i < h->order.nodes; i++) {
        if (h->connections[i] >= 0 && !send_message(h->connections[i], k, bytes, size)) helper_star_lose(h, i);
    }
}

void helper_star_fail(helper *h, const char *message) {
    if (h->failed) return;
    if (h->deadline < tshi_clock() + RECOVERY) h->deadline = tshi_clock() + RECOVERY;
    report_failure(h, message);
    send_to_all(h, FAILURE, message, strlen(message));
}

/* --- fences ------------------------------------------------------------------------------------------------------- */

/* The ranks here leave their fence, with all parts that have come. */
static void release(helper *h, helper_blob whole) {
    for (int i = 0; i < h->order.nodes; i++) {
        free(h->parts[i].bytes);
        h->parts[i] = (helper_blob){0};
        h->came[i] = false;
    }
    helper_server_release(whole);
}

static helper_blob join(const helper *h) {
    helper_blob whole = {0};
    for (int i = 0; i < h->order.nodes; i++) whole.size += h->parts[i].size;
    whole.bytes = malloc(whole.size + 1);
    if (!whole.bytes) whole.size = 0;
    for (size_t i = 0, at = 0; i < (size_t)h->order.nodes && whole.size; i++) {
        if (h->parts[i].size) memcpy(whole.bytes + at, h->parts[i].bytes, h->parts[i].size);
        at += h->parts[i].size;
    }
    return whole;
}

/* At the hub: once the parts of all that are still connected have come. Elsewhere: when the hub is gone. */
static void complete(helper *h) {
    bool missing = !h->fenced || (!h->hub && h->connections[h->order.node] >= 0);
    for (int i = 0; i < h->order.nodes; i++) missing = missing || (h->connections[i] >= 0 && !h->came[i]);
    if (missing) return;
    helper_blob whole = join(h);
    h->fenced = false; /* a machine that cannot be reached is lost, and this function runs again */
    send_to_all(h, WHOLE, whole.bytes, whole.size);
    release(h, whole);
}

void helper_star_fence(helper *h, helper_blob part) {
    int me = h->order.node, hub = h->connections[me];
    h->fenced = true;
    h->came[me] = true;
    h->parts[me] = part;
    if (!h->hub && hub >= 0) {
        if (send_message(hub, PART, part.bytes, part.size)) return;
        helper_star_lose(h, me);
    } else {
        complete(h);
    }
}

void helper_star_lose(helper *h, int node) {
    tshi_socket_close(&h->connections[node], 1);
    complete(h);
}

void helper_star_give_up(helper *h) {
    char ranks[TSHI_LINE], message[TSHI_MESSAGE_SIZE] = "";
    size_t used = 0;
    for (int i = 0; i < h->order.nodes && h->hub; i++) {
        if (h->connections[i] < 0 || h->came[i] || used + 400 > sizeof message) continue;
        used += (size_t)snprintf(message + used, sizeof message - used, "%s%s (%.200s)", used ? ", " : "", h->host[i],
                                 report_ranks(h, i, ranks, sizeof ranks));
    }
    if (!h->hub) used += (size_t)snprintf(message, sizeof message, "another machine");
    snprintf(message + used, sizeof message - used, " did not come within %.3g s while MPI started", h->order.seconds);
    helper_star_fail(h, message);
    for (int i = 0; i < h->order.nodes; i++) {
        if (h->connections[i] >= 0 && !(h->hub && h->came[i])) tshi_socket_close(&h->connections[i], 1);
    }
    complete(h);
}

/* --- reading ------------------------------------------------------------------------------------------------------ */

static void report_loss(helper *h, int node) {
    char ranks[TSHI_LINE], message[TSHI_MESSAGE_SIZE];
    int error = errno;
    bool starting = false;
    for (int i = 0; i < h->order.here; i++) starting = starting || !h->here[i].started;
    tshi_socket_close(&h->connections[node], 1);
    if (starting && h->hub) {
        snprintf(message, sizeof message, "%s (%s) was lost while MPI started: %s", h->host[node],
                 report_ranks(h, node, ranks, sizeof ranks), error ? strerror(error) : "it hung up");
        helper_star_fail(h, message);
    } else if (starting) {
        snprintf(message, sizeof message, "the machine that starts MPI was lost: %s",
                 error ? strerror(error) : "it hung up");
        helper_star_fail(h, message);
    }
    complete(h);
}

void helper_star_read(helper *h, int node) {
    kind k;
    helper_blob blob;
    if (!receive_message(h->connections[node], &k, &blob)) {
        report_loss(h, node);
        return;
    }
    if (k == PART && h->hub && !h->came[node]) {
        h->came[node] = true;
        h->parts[node] = blob;
        complete(h);
        return;
    }
    if (k == WHOLE && !h->hub && h->fenced) {
        h->fenced = false;
        release(h, blob);
        return;
    }
    if (k == FAILURE) helper_star_fail(h, blob.bytes);
    free(blob.bytes);
    if (k == DONE) helper_star_lose(h, node);
}

void helper_star_close(helper *h) {
    send_to_all(h, DONE, "", 0);
    tshi_socket_close(h->connections, h->order.nodes);
}
