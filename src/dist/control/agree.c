#include "dist/control/agree.h"
#include "dist/collectives/collectives.h"
#include "dist/control/channel.h"
#include "dist/control/control.h"

#include <stdio.h>
#include <string.h>

/* Numbers of a call's messages. */
enum { VOTE, FACTS, NUMBERS };

/* What goes up the tree is of the members of a subtree; down the tree it is the verdict on all.
 *
 *   status              `words`, which travel only if the status is not TSH_OK
 *   TSH_OK              all signatures are equal
 *   TSH_ERR_MISMATCH    up: the text of member `unlike`, the first whose signature is not `first`; down: the message
 *   TSH_ERR_PEER        the message of the first member that has failed */
typedef struct vote {
    tshi_signature first, other; /* of the subtree's first member, and of `unlike` */
    uint64_t bytes;              /* of facts of each member */
    int32_t status, unlike;
    char text[TSHI_SIDE]; /* of the first member */
    char words[TSHI_MESSAGE_SIZE];
} vote;

/* A member's part in a call. */
typedef struct ballot {
    tshi_channel_call call;
    vote vote;
    const void *mine;
    char *all; /* facts, of `vote.bytes` for each member */
} ballot;

static tsh_status send_vote(ballot *b, int to) {
    const vote *v = &b->vote;
    size_t head =
        v->status == TSH_OK ? offsetof(vote, text) + strlen(v->text) : offsetof(vote, words) + strlen(v->words);
    return tshi_channel_send(&b->call, to, VOTE, v, head + 1);
}

static tsh_status receive_vote(ballot *b, int from, vote *out) {
    memset(out, 0, sizeof *out);
    tsh_status status = tshi_channel_receive(&b->call, from, VOTE, out, sizeof *out, NULL);
    out->text[sizeof out->text - 1] = out->words[sizeof out->words - 1] = '\0';
    return status;
}

/* Combines the votes of two adjacent subtrees. `mine` is of the lower ranks, whose failure comes first. */
static void combine(vote *mine, int child, const vote *theirs) {
    if (mine->status == TSH_ERR_PEER || (mine->status != TSH_OK && theirs->status != TSH_ERR_PEER)) return;
    bool same = tshi_signatures_equal(&mine->first, &theirs->first) && mine->bytes == theirs->bytes;
    if (theirs->status == TSH_ERR_PEER || same) {
        mine->status = theirs->status;
        mine->other = theirs->other;
        mine->unlike = theirs->unlike;
        memcpy(mine->words, theirs->words, sizeof mine->words);
    } else {
        mine->status = TSH_ERR_MISMATCH;
        mine->other = theirs->first;
        mine->unlike = child;
        snprintf(mine->words, sizeof mine->words, "%s", theirs->text);
    }
}

/* On member 0: what all members return. */
static void reach_verdict(const tsh_group *group, vote *v) {
    char text[TSHI_MESSAGE_SIZE];
    if (v->status != TSH_ERR_MISMATCH || v->unlike <= 0 || v->unlike >= group->size) return;
    memcpy(text, v->words, sizeof text);
    tshi_signature_mismatch(group, 0, &v->first, v->text, v->unlike, &v->other, text);
    snprintf(v->words, sizeof v->words, "%s", tsh_error_message());
}

/* True if this rank did not receive because the member has left: the others fail with its words too. */
static bool has_left(ballot *b, tsh_status status) {
    if (status == TSH_OK || !b->call.peer_left) return false;
    b->vote.status = TSH_ERR_PEER;
    snprintf(b->vote.words, sizeof b->vote.words, "%s", tsh_error_message());
    return true;
}

/* Members [member, member + n) of the subtree of that child. */
static int subtree(const tsh_group *group, int child, int bit) {
    return bit < group->size - child ? bit : group->size - child;
}

/* A child sends its facts unless its own vote is against; they are received even if the verdict will be against, so
 * that it can send them. */
static tsh_status collect(ballot *b, int child, int bit) {
    const tsh_group *group = b->call.group;
    vote theirs;
    tsh_status status = receive_vote(b, child, &theirs);
    if (has_left(b, status)) return TSH_OK;
    if (status != TSH_OK) return status;
    combine(&b->vote, child, &theirs);
    if (theirs.status != TSH_OK || !theirs.bytes) return TSH_OK;
    size_t room = b->all ? (size_t)subtree(group, child, bit) * b->vote.bytes : 0;
    return tshi_channel_receive(&b->call, child, FACTS, room ? b->all + (size_t)child * b->vote.bytes : NULL, room,
                                NULL);
}

static tsh_status send_up(ballot *b, int parent, int bit) {
    const tsh_group *group = b->call.group;
    size_t bytes = b->vote.bytes;
    tsh_status status = send_vote(b, parent);
    if (status != TSH_OK || b->vote.status != TSH_OK || !bytes) return status;
    return tshi_channel_send(&b->call, parent, FACTS, b->all + (size_t)group->rank * bytes,
                             (size_t)subtree(group, group->rank, bit) * bytes);
}

static tsh_status receive_down(ballot *b, int parent) {
    vote verdict;
    size_t bytes = b->vote.bytes;
    tsh_status status = receive_vote(b, parent, &verdict);
    if (has_left(b, status)) return TSH_OK;
    if (status != TSH_OK) return status;
    b->vote.status = verdict.status;
    memcpy(b->vote.words, verdict.words, sizeof verdict.words);
    if (verdict.status != TSH_OK || !bytes) return TSH_OK;
    return tshi_channel_receive(&b->call, parent, FACTS, b->all, (size_t)b->call.group->size * bytes, NULL);
}

static tsh_status send_down(ballot *b, int child) {
    size_t bytes = b->vote.bytes;
    tsh_status status = send_vote(b, child);
    if (status != TSH_OK || b->vote.status != TSH_OK || !bytes) return status;
    return tshi_channel_send(&b->call, child, FACTS, b->all, (size_t)b->call.group->size * bytes);
}

static tsh_status walk_tree(ballot *b) {
    const tsh_group *group = b->call.group;
    int me = group->rank, bit = 1;
    tsh_status status = TSH_OK;
    for (; status == TSH_OK && bit < group->size && !(me & bit); bit *= 2) {
        if (me + bit < group->size) status = collect(b, me + bit, bit);
    }
    if (status == TSH_OK && me == 0) reach_verdict(group, &b->vote);
    if (status == TSH_OK && me > 0) status = send_up(b, me - bit, bit);
    if (status == TSH_OK && me > 0) status = receive_down(b, me - bit);
    for (bit /= 2; status == TSH_OK && bit > 0; bit /= 2) {
        if (me + bit < group->size) status = send_down(b, me + bit);
    }
    return status;
}

/* The ballot has this member's signature, text and facts. */
static tsh_status decide(ballot *b, tsh_group *group, const char *name, tsh_status failed) {
    char own[TSHI_MESSAGE_SIZE];
    if (failed != TSH_OK) {
        snprintf(own, sizeof own, "%s", tsh_error_message());
        b->vote.first.kind = TSHI_KIND_FAILED;
        b->vote.status = TSH_ERR_PEER;
        snprintf(b->vote.words, sizeof b->vote.words, "rank %d: %.480s", group->world->rank, own);
    }
    tsh_status status = tshi_channel_begin(&b->call, group, name);
    if (status == TSH_OK) status = walk_tree(b);
    tshi_channel_end(&b->call, NUMBERS);
    if (status == TSH_OK && b->call.peer_left) status = tshi_control_break(group->world, TSH_ERR_PEER, b->vote.words);
    if (status != TSH_OK) return status;
    if (failed != TSH_OK) return tshi_fail(failed, "%s", own);
    return b->vote.status == TSH_OK ? TSH_OK : tshi_fail((tsh_status)b->vote.status, "%s", b->vote.words);
}

/* Without peers there is nothing to agree on, whatever other ranks of the world do. The peers of a dry run are not
 * there, and share no memory. */
static bool is_alone(const tsh_group *group) {
    return group->rank < 0 || group->size == 1 || !group->world->machine.page;
}

/* In a dry run every rank is like this one. */
static void gather_alone(const tsh_group *group, const void *mine, size_t bytes, char *all) {
    for (int i = 0; bytes && i < group->size; i++) memcpy(all + (size_t)i * bytes, mine, bytes);
}

tsh_status tshi_control_gather(tsh_group *group, const char *text, tsh_status failed, const void *mine, size_t bytes,
                               void *all) {
    ballot b;
    if (is_alone(group)) {
        if (failed == TSH_OK) gather_alone(group, mine, bytes, all);
        return failed;
    }
    if (failed == TSH_OK && bytes) memcpy((char *)all + (size_t)group->rank * bytes, mine, bytes);
    memset(&b.vote, 0, sizeof b.vote);
    b.all = failed == TSH_OK ? all : NULL;
    b.vote.bytes = bytes;
    tshi_signature_of_text(&b.vote.first, text, ++group->calls);
    snprintf(b.vote.text, sizeof b.vote.text, "%s", text);
    return decide(&b, group, text, failed);
}

tsh_status tshi_control_agree(tsh_group *group, const char *text, tsh_status failed) {
    return tshi_control_gather(group, text, failed, NULL, 0, NULL);
}

/* The counts of an all_to_all, of all members, that of each member being what it sends to each, then what it expects. */
static tsh_status compare_counts(tsh_group *group, const tshi_comm_call *call) {
    size_t n = (size_t)group->size, bytes = 2 * n * sizeof(int64_t);
    const tsh_allocator *allocator = &group->world->allocator;
    int64_t *mine = tshi_calloc(allocator, 2 * n, sizeof *mine), *all = tshi_calloc(allocator, n, bytes);
    if (mine) memcpy(mine, call->in_counts, bytes / 2);
    if (mine) memcpy(mine + n, call->out_counts, bytes / 2);
    tsh_status status =
        tshi_control_gather(group, "all_to_all", mine && all ? TSH_OK : TSH_ERR_MEMORY, mine, bytes, all);
    if (status == TSH_OK) status = tshi_compare_counts(group, all, bytes);
    tshi_free(allocator, mine);
    tshi_free(allocator, all);
    return status;
}

tsh_status tshi_control_compare(tsh_group *group, const tshi_comm_call *call) {
    ballot b;
    if (is_alone(group)) return call->failed;
    memset(&b.vote, 0, sizeof b.vote);
    b.all = NULL;
    tshi_signature_of_call(&b.vote.first, group, call, ++group->calls);
    tsh_status status = decide(&b, group, tsh_collective_name(call->op), call->failed);
    return status == TSH_OK && call->in_counts ? compare_counts(group, call) : status;
}

uint64_t tshi_control_group_id(const tsh_group *parent, int place) {
    uint64_t id = tshi_fingerprint_add(TSHI_FINGERPRINT, parent->id);
    id = tshi_fingerprint_add(id, parent->epoch);
    id = tshi_fingerprint_add(id, (uint64_t)place);
    return tshi_fingerprint_add(id, parent->messages_made);
}
