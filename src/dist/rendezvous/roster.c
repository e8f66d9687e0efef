/* The roster of a world: its ranks and their addresses. The listening rank makes it of the peers that have joined, and
 * sends it to each. */
#include "dist/rendezvous/roster.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void tshi_roster_free(tshi_roster *roster, const tsh_allocator *allocator) {
    tshi_free(allocator, roster->node);
    tshi_free(allocator, roster->host);
    *roster = (tshi_roster){0};
}

tsh_status tshi_roster_init(tshi_roster *roster, int size, int nodes, const tsh_allocator *allocator) {
    *roster = (tshi_roster){.size = size, .nodes = nodes};
    roster->node = tshi_calloc(allocator, (size_t)size, sizeof *roster->node);
    roster->host = tshi_calloc(allocator, (size_t)nodes, sizeof *roster->host);
    if (roster->node && roster->host) return TSH_OK;
    tshi_roster_free(roster, allocator);
    return TSH_ERR_MEMORY;
}

void tshi_roster_settings(const tshi_roster *roster, tshi_settings *settings) {
    /* What the launcher says of a machine of its own stands; else it is counted. */
    bool known = settings->local_known && settings->local_size == roster->size;
    int node = roster->node[roster->rank], before = 0, here = 0;
    for (int i = 0; i < roster->size; i++) {
        here += roster->node[i] == node;
        before += i < roster->rank && roster->node[i] == node;
    }
    settings->rank = roster->rank;
    if (!known) settings->local_rank = before;
    settings->local_size = here;
    memcpy(settings->key, roster->key, sizeof settings->key);
}

const char *tshi_roster_hosts(const tshi_roster *roster, char *text, size_t size) {
    text[0] = '\0';
    for (int node = 0; node < roster->nodes && strlen(text) + 1 < size; node++) {
        int here = 0;
        for (int i = 0; i < roster->size; i++) here += roster->node[i] == node;
        tshi_append(text, size, "%s%s: rank%s", node ? "; " : "", roster->host[node], here > 1 ? "s" : "");
        const char *comma = " ";
        for (int i = 0; i < roster->size; i++) {
            if (roster->node[i] != node) continue;
            tshi_append(text, size, "%s%d", comma, i);
            comma = ", ";
        }
    }
    return text;
}

/* --- assigning ranks ---------------------------------------------------------------------------------------------- */

typedef struct member {
    const tshi_process *process;
    const unsigned char *nonce;
    int rank;        /* -1: to be assigned */
    tshi_peer *peer; /* NULL: the listening rank itself */
} member;

/* An order that does not depend on which peer came first: machine, then age, then number. */
static int compare_members(const void *left, const void *right) {
    const member *a = left, *b = right;
    int order = strcmp(a->process->host, b->process->host);
    if (!order) order = memcmp(a->process->machine, b->process->machine, sizeof a->process->machine);
    if (!order) order = (a->process->start > b->process->start) - (a->process->start < b->process->start);
    if (!order) order = (a->process->number > b->process->number) - (a->process->number < b->process->number);
    return order ? order : memcmp(a->nonce, b->nonce, TSHI_NONCE_SIZE);
}

/* Members with a rank keep it; members without one get the free ranks, in order. by_rank[i] becomes the process of
 * rank i. Returns the rank of the listening member. */
static int assign_ranks(member *members, int size, const tshi_process **by_rank) {
    int mine = 0;
    qsort(members, (size_t)size, sizeof *members, compare_members);
    for (int i = 0; i < size; i++) {
        if (members[i].rank >= 0) by_rank[members[i].rank] = members[i].process;
    }
    for (int i = 0, next = 0; i < size; i++) {
        member *m = &members[i];
        if (m->rank < 0) {
            while (by_rank[next]) next++;
            by_rank[next] = m->process;
            m->rank = next;
        }
        if (m->peer)
            m->peer->rank = m->rank;
        else
            mine = m->rank;
    }
    return mine;
}

tsh_status tshi_roster_of(const tshi_process *const *process, int size, const tsh_allocator *allocator,
                          tshi_roster *out) {
    const tshi_process **first = tshi_calloc(allocator, (size_t)size, sizeof *first);
    tsh_status status = first ? tshi_roster_init(out, size, size, allocator) : TSH_ERR_MEMORY;
    out->nodes = 0;
    for (int i = 0; status == TSH_OK && i < size; i++) {
        int node = 0;
        while (node < out->nodes && !tshi_process_same_machine(first[node], process[i])) node++;
        out->node[i] = node;
        if (node < out->nodes) continue;
        first[out->nodes] = process[i];
        snprintf(out->host[out->nodes++], TSHI_HOST_SIZE, "%s", process[i]->host);
    }
    tshi_free(allocator, first);
    if (status == TSH_OK && !tshi_random_bytes(out->key, sizeof out->key)) {
        status = tshi_fail_errno(errno, "rendezvous: random numbers");
        tshi_roster_free(out, allocator);
    }
    return status;
}

static tsh_status make_roster(tshi_acceptor *a, tshi_roster *out) {
    static const unsigned char no_nonce[TSHI_NONCE_SIZE];
    const tshi_settings *s = a->rendezvous->settings;
    const tsh_allocator *allocator = a->rendezvous->allocator;
    member *members = tshi_calloc(allocator, (size_t)s->size, sizeof *members);
    const tshi_process **by_rank = tshi_calloc(allocator, (size_t)s->size, sizeof *by_rank);
    tsh_status status = members && by_rank ? TSH_OK : TSH_ERR_MEMORY;
    if (status == TSH_OK) {
        int n = 0;
        members[n++] = (member){&a->rendezvous->me, no_nonce, s->rank, NULL};
        for (int i = 0; i < a->n; i++) {
            tshi_peer *peer = &a->peers[i];
            members[n++] = (member){&peer->hello.process, peer->hello.nonce, peer->hello.rank, peer};
        }
        int mine = assign_ranks(members, s->size, by_rank);
        status = tshi_roster_of(by_rank, s->size, allocator, out);
        out->rank = mine;
    }
    tshi_free(allocator, members);
    tshi_free(allocator, by_rank);
    return status;
}

/* --- the listening rank ------------------------------------------------------------------------------------------- */

static tsh_status conclude(tshi_acceptor *a, tshi_roster *out) {
    tshi_rendezvous *r = a->rendezvous;
    tsh_status status = tshi_acceptor_verdict(a);
    if (status != TSH_OK) return status;
    status = make_roster(a, out);
    if (status != TSH_OK) return status;
    tshi_wire_answer answer = {.status = TSH_OK, .roster = *out};
    status = tshi_acceptor_answer(a, &answer);
    if (status != TSH_OK) tshi_roster_free(out, r->allocator);
    for (int i = 0; i < a->n && status == TSH_OK && r->connections; i++) {
        r->connections[a->peers[i].rank] = a->peers[i].fd;
        a->peers[i].fd = -1;
    }
    return status;
}

tsh_status tshi_roster_gather(tshi_rendezvous *r, const tshi_acceptor_plan *plan, bool *stopped, tshi_roster *out) {
    tshi_acceptor a;
    bool ended = false;
    tsh_status status = tshi_acceptor_open(&a, r, plan, &ended);
    if (stopped) *stopped = ended;
    if (status == TSH_OK && !ended) status = conclude(&a, out);
    tshi_acceptor_close(&a);
    return status;
}
