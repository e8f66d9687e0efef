/* The listening rank assigns ranks, makes the roster of the peers that have joined, and sends it to each. */
#include "dist/rendezvous/acceptor.h"

#include <stdlib.h>
#include <string.h>

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
