/* The helpers of all machines: the hub has a connection to each of the others. Messages: a kind, the length of what
 * follows, and that. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "helper.h"

#include <endian.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

/* Longest that a message on its way may take. */
#define UNDER_WAY 20.0
#define LARGEST   ((uint64_t)1 << 30)

/* To the hub: a machine's part of a fence. From it: all parts. Both ways: what went wrong; that a machine is done. */
typedef enum kind { PART = 1, WHOLE, TROUBLE, DONE } kind;

typedef struct head {
    uint32_t kind, unused;
    uint64_t size;
} head;

/* --- meeting ------------------------------------------------------------------------------------------------------ */

/* A machine that is cut off shows after half a minute, even when nobody has anything to say. */
static void keep_alive(int fd) {
    const int on = 1, idle = 10, every = 5, count = 4;
    setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle, sizeof idle);
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &every, sizeof every);
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &count, sizeof count);
}

bool helper_star_open(helper *h) {
    tsh_allocator allocator = tshi_allocator_resolve(NULL);
    char words[TSHI_MESSAGE_SIZE];
    tshi_settings settings = h->order.settings;
    tshi_roster roster = {0};
    for (int i = 0; i < h->order.nodes; i++) h->spokes[i] = -1;
    if (h->order.nodes == 1) {
        h->hub = true;
        return true;
    }
    settings.rank = h->order.node;
    settings.size = h->order.nodes;
    settings.local_known = false;
    if (tshi_rendezvous_run(&settings, NULL, &allocator, h->deadline, h->spokes, &roster) != TSH_OK) {
        snprintf(words, sizeof words, "the machines, numbered like ranks: %.400s", tsh_error_message());
        helper_say(h, words);
        return false;
    }
    tshi_roster_free(&roster, &allocator);
    h->hub = h->spokes[h->order.node] < 0;
    for (int i = 0; i < h->order.nodes; i++) {
        if (h->spokes[i] >= 0) keep_alive(h->spokes[i]);
    }
    return true;
}

/* --- messages ----------------------------------------------------------------------------------------------------- */

static bool tell(int fd, kind k, const void *bytes, size_t size) {
    head out = {.kind = htole32((uint32_t)k), .size = htole64(size)};
    double deadline = tshi_clock() + UNDER_WAY;
    return tshi_socket_write(fd, &out, sizeof out, deadline) && tshi_socket_write(fd, bytes, size, deadline);
}

static bool take(int fd, kind *k, helper_blob *out) {
    head in;
    double deadline = tshi_clock() + UNDER_WAY;
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

static void tell_all(helper *h, kind k, const void *bytes, size_t size) {
    for (int i = 0; i < h->order.nodes; i++) {
        if (h->spokes[i] >= 0 && !tell(h->spokes[i], k, bytes, size)) helper_star_lose(h, i);
    }
}

void helper_star_trouble(helper *h, const char *words) {
    if (h->troubled) return;
    if (h->deadline < tshi_clock() + HELPER_RECOVERY) h->deadline = tshi_clock() + HELPER_RECOVERY;
    helper_say(h, words);
    tell_all(h, TROUBLE, words, strlen(words));
}

/* --- fences ------------------------------------------------------------------------------------------------------- */

/* The ranks here go on, with everything that there is. */
static void release(helper *h, helper_blob whole) {
    for (int i = 0; i < h->order.nodes; i++) {
        free(h->parts[i].bytes);
        h->parts[i] = (helper_blob){0};
        h->brought[i] = false;
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

/* At the hub: once all that are still connected have brought their part. Elsewhere: when the hub is gone. */
static void complete(helper *h) {
    bool missing = !h->fenced || (!h->hub && h->spokes[h->order.node] >= 0);
    for (int i = 0; i < h->order.nodes; i++) missing = missing || (h->spokes[i] >= 0 && !h->brought[i]);
    if (missing) return;
    helper_blob whole = join(h);
    h->fenced = false; /* also for who cannot be told: then this comes here again */
    tell_all(h, WHOLE, whole.bytes, whole.size);
    release(h, whole);
}

void helper_star_fence(helper *h, helper_blob part) {
    int me = h->order.node, spoke = h->spokes[me];
    h->fenced = true;
    h->brought[me] = true;
    h->parts[me] = part;
    if (!h->hub && spoke >= 0) {
        if (tell(spoke, PART, part.bytes, part.size)) return;
        helper_star_lose(h, me);
    } else {
        complete(h);
    }
}

void helper_star_lose(helper *h, int node) {
    tshi_socket_close(&h->spokes[node], 1);
    complete(h);
}

void helper_star_give_up(helper *h) {
    char ranks[TSHI_LINE], words[TSHI_MESSAGE_SIZE] = "";
    size_t used = 0;
    for (int i = 0; i < h->order.nodes && h->hub; i++) {
        if (h->spokes[i] < 0 || h->brought[i] || used + 400 > sizeof words) continue;
        used += (size_t)snprintf(words + used, sizeof words - used, "%s%s (%.200s)", used ? ", " : "", h->host[i],
                                 helper_ranks_of(h, i, ranks, sizeof ranks));
    }
    if (!h->hub) used += (size_t)snprintf(words, sizeof words, "another machine");
    snprintf(words + used, sizeof words - used, " did not come within %g s while MPI started", h->order.seconds);
    helper_star_trouble(h, words);
    for (int i = 0; i < h->order.nodes; i++) {
        if (h->spokes[i] >= 0 && !(h->hub && h->brought[i])) tshi_socket_close(&h->spokes[i], 1);
    }
    complete(h);
}

/* --- hearing ------------------------------------------------------------------------------------------------------ */

static void hear_loss(helper *h, int node) {
    char ranks[TSHI_LINE], words[TSHI_MESSAGE_SIZE];
    int error = errno;
    bool starting = false;
    for (int i = 0; i < h->order.here; i++) starting = starting || !h->here[i].started;
    tshi_socket_close(&h->spokes[node], 1);
    if (starting && h->hub) {
        snprintf(words, sizeof words, "%s (%s) was lost while MPI started: %s", h->host[node],
                 helper_ranks_of(h, node, ranks, sizeof ranks), error ? strerror(error) : "it hung up");
        helper_star_trouble(h, words);
    } else if (starting) {
        snprintf(words, sizeof words, "the machine that starts MPI was lost: %s",
                 error ? strerror(error) : "it hung up");
        helper_star_trouble(h, words);
    }
    complete(h);
}

void helper_star_hear(helper *h, int node) {
    kind k;
    helper_blob blob;
    if (!take(h->spokes[node], &k, &blob)) {
        hear_loss(h, node);
        return;
    }
    if (k == PART && h->hub && !h->brought[node]) {
        h->brought[node] = true;
        h->parts[node] = blob;
        complete(h);
        return;
    }
    if (k == WHOLE && !h->hub && h->fenced) {
        h->fenced = false;
        release(h, blob);
        return;
    }
    if (k == TROUBLE) helper_star_trouble(h, blob.bytes);
    free(blob.bytes);
    if (k == DONE) helper_star_lose(h, node);
}

void helper_star_close(helper *h) {
    tell_all(h, DONE, "", 0);
    tshi_socket_close(h->spokes, h->order.nodes);
}
