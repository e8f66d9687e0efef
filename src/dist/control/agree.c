#include "dist/control/agree.h"
#include "dist/collectives/collectives.h"
#include "dist/control/channel.h"
#include "dist/control/control.h"

#include <stdalign.h>
#include <stdio.h>
#include <string.h>

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

/* What members pass and get beside their votes. In a gather `up` and `down` are one, the caller's, and in a reduction
 * also those of all members. */
typedef struct facts {
    size_t passes, gets; /* bytes of a member; a gather and a reduction: the same */
    char *up;            /* [group size] what the members pass: on member 0 of all, else of this one's subtree */
    char *down;          /* [group size] what the members get: of this one's subtree; a gather: of all */
    int parts;           /* of a fetch; else 0 */
    tshi_control_combine *combine; /* of a reduction; else NULL */
    char *theirs;                  /* of a reduction: those of a child */
} facts;

#define BARE_BYTES (sizeof(vote) + 1280) /* no memory is taken for the claims of tags (transport/mpi) */

/* A member's part in a call. */
typedef struct ballot {
    tshi_channel_call call;
    vote vote;
    facts facts;
    unsigned char *wire; /* [room] a message on its way in or out */
    size_t room;
    alignas(16) unsigned char bare[BARE_BYTES]; /* `wire`, and the facts of a call, where they are few */
} ballot;

static size_t head_of(const vote *v) {
    return 1 +
           (v->status == TSH_OK ? offsetof(vote, text) + strlen(v->text) : offsetof(vote, words) + strlen(v->words));
}

/* Sends the vote, and the facts behind it unless it is against. */
static tsh_status send_vote(ballot *b, int to, const char *behind, size_t bytes) {
    size_t head = head_of(&b->vote), more = b->vote.status == TSH_OK ? bytes : 0;
    memcpy(b->wire, &b->vote, head);
    if (more) memcpy(b->wire + head, behind, more);
    return tshi_channel_send(&b->call, to, b->wire, head + more);
}

/* Receives a vote, and the facts if there are as many as this member expects. */
static tsh_status receive_vote(ballot *b, int from, vote *out, char *behind, size_t bytes) {
    size_t got = 0;
    memset(b->wire, 0, sizeof *out);
    tsh_status status = tshi_channel_receive(&b->call, from, b->wire, b->room, &got);
    memcpy(out, b->wire, sizeof *out);
    out->text[sizeof out->text - 1] = out->words[sizeof out->words - 1] = '\0';
    size_t head = head_of(out);
    if (bytes && out->status == TSH_OK && got == head + bytes && got <= b->room) memcpy(behind, b->wire + head, bytes);
    return status;
}

/* Combines the votes of two adjacent subtrees. `mine` is of the lower ranks, whose failure comes first. */
static void combine_votes(vote *mine, int child, const vote *theirs) {
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

/* Members [member, member + n) are the subtree of that one, whose parent is `member - bit`. */
static size_t subtree(const tsh_group *group, int member, int bit) {
    return (size_t)(bit < group->size - member ? bit : group->size - member);
}

static char *up_from(const ballot *b, int member, int bit, size_t *bytes) {
    const facts *f = &b->facts;
    *bytes = f->passes * (f->combine ? 1 : subtree(b->call.group, member, bit));
    return f->up + (f->combine ? 0 : (size_t)member * f->passes);
}

static char *down_to(const ballot *b, int member, int bit, size_t *bytes) {
    const facts *f = &b->facts;
    size_t gathered = f->combine ? 1 : (size_t)b->call.group->size;
    *bytes = f->gets * (f->parts ? subtree(b->call.group, member, bit) : gathered);
    return f->down + (f->parts ? (size_t)member * f->gets : 0);
}

static tsh_status collect(ballot *b, int child, int bit) {
    const facts *f = &b->facts;
    size_t bytes;
    char *to = up_from(b, child, bit, &bytes);
    vote theirs;
    tsh_status status = receive_vote(b, child, &theirs, f->combine ? f->theirs : to, bytes);
    if (has_left(b, status)) return TSH_OK;
    if (status != TSH_OK) return status;
    combine_votes(&b->vote, child, &theirs);
    if (f->combine && b->vote.status == TSH_OK) f->combine(f->up, f->theirs, f->passes);
    return TSH_OK;
}

static tsh_status send_up(ballot *b, int parent, int bit) {
    size_t bytes;
    const char *mine = up_from(b, b->call.group->rank, bit, &bytes);
    return send_vote(b, parent, mine, bytes);
}

static tsh_status receive_down(ballot *b, int parent, int bit) {
    vote verdict;
    size_t bytes;
    char *mine = down_to(b, b->call.group->rank, bit, &bytes);
    tsh_status status = receive_vote(b, parent, &verdict, mine, bytes);
    if (has_left(b, status)) return TSH_OK;
    if (status != TSH_OK) return status;
    b->vote.status = verdict.status;
    memcpy(b->vote.words, verdict.words, sizeof verdict.words);
    return TSH_OK;
}

static tsh_status send_down(ballot *b, int child, int bit) {
    size_t bytes;
    const char *theirs = down_to(b, child, bit, &bytes);
    return send_vote(b, child, theirs, bytes);
}

/* On member 0: finds what each member fetches. A member passes its parts, then the members from which it fetches. */
static void deal(const ballot *b) {
    const facts *f = &b->facts;
    int size = b->call.group->size;
    size_t part = f->parts ? f->gets / (size_t)f->parts : 0;
    for (int i = 0; i < size * f->parts; i++) {
        int32_t from;
        size_t member = (size_t)(i / f->parts), k = (size_t)(i % f->parts);
        memcpy(&from, f->up + member * f->passes + f->gets + k * sizeof from, sizeof from);
        if (from < 0 || from >= size) continue;
        memcpy(f->down + member * f->gets + k * part, f->up + (size_t)from * f->passes + k * part, part);
    }
}

static tsh_status walk_tree(ballot *b) {
    const tsh_group *group = b->call.group;
    int me = group->rank, bit = 1;
    tsh_status status = TSH_OK;
    for (; status == TSH_OK && bit < group->size && !(me & bit); bit *= 2) {
        if (me + bit < group->size) status = collect(b, me + bit, bit);
    }
    if (status == TSH_OK && me == 0) reach_verdict(group, &b->vote);
    if (status == TSH_OK && me == 0 && b->vote.status == TSH_OK) deal(b);
    if (status == TSH_OK && me > 0) status = send_up(b, me - bit, bit);
    if (status == TSH_OK && me > 0) status = receive_down(b, me - bit, bit);
    for (bit /= 2; status == TSH_OK && bit > 0; bit /= 2) {
        if (me + bit < group->size) status = send_down(b, me + bit, bit);
    }
    return status;
}

/* Votes of a text, with facts for which this may take memory. Returns this member's status. */
static tsh_status begin_ballot(ballot *b, tsh_group *group, const char *text, tsh_status failed, facts f) {
    size_t size = (size_t)group->size, most = f.passes > f.gets ? f.passes : f.gets, bytes = 0, more = 0;
    memset(&b->vote, 0, sizeof b->vote);
    tshi_signature_of_text(&b->vote.first, text, ++group->calls);
    snprintf(b->vote.text, sizeof b->vote.text, "%s", text);
    b->vote.bytes = f.passes;
    b->wire = b->bare;
    b->room = sizeof b->bare;
    b->facts = (facts){.up = (char *)b->bare, .down = (char *)b->bare};
    if (failed != TSH_OK || !f.passes) return failed;
    failed = tshi_size_mul(f.combine ? 1 : size, most, &bytes);
    if (failed == TSH_OK) failed = tshi_size_mul(f.parts ? size : f.combine ? 1 : 0, f.passes + f.gets, &more);
    if (failed != TSH_OK) return failed;
    size_t room = tshi_round_up(sizeof(vote) + bytes, 16);
    unsigned char *wire =
        room + more <= sizeof b->bare ? b->bare : tshi_calloc(&group->world->allocator, 1, room + more);
    if (!wire) return TSH_ERR_MEMORY;
    b->wire = wire;
    b->room = room;
    b->facts = f;
    if (f.combine) b->facts.theirs = (char *)wire + room;
    if (f.parts) b->facts.up = (char *)wire + room;
    if (f.parts) b->facts.down = b->facts.up + size * f.passes;
    return TSH_OK;
}

static void end_ballot(ballot *b, const tsh_group *group) {
    if (b->wire != b->bare) tshi_free(&group->world->allocator, b->wire);
}

static tsh_status decide(ballot *b, tsh_group *group, const char *name, tsh_status failed) {
    tshi_failure own;
    tshi_failure_keep(&own, failed);
    if (failed != TSH_OK) {
        b->vote.first.kind = TSHI_KIND_FAILED;
        b->vote.status = TSH_ERR_PEER;
        snprintf(b->vote.words, sizeof b->vote.words, "rank %d: %.480s", group->world->rank, own.words);
    }
    tsh_status status = tshi_channel_begin(&b->call, group, name);
    if (status == TSH_OK) status = walk_tree(b);
    tshi_channel_end(&b->call);
    if (status == TSH_OK && b->call.peer_left)
        status = tshi_control_break(group->world, TSH_ERR_PEER, "%s", b->vote.words);
    if (status != TSH_OK) return status;
    if (failed != TSH_OK) return tshi_failure_report(&own);
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
    failed = begin_ballot(&b, group, text, failed, (facts){.passes = bytes, .gets = bytes, .up = all, .down = all});
    if (failed == TSH_OK && bytes) memcpy((char *)all + (size_t)group->rank * bytes, mine, bytes);
    tsh_status status = decide(&b, group, text, failed);
    end_ballot(&b, group);
    return status;
}

tsh_status tshi_control_fetch(tsh_group *group, const char *text, tsh_status failed, const int32_t *from, int n,
                              void *parts, size_t bytes) {
    ballot b;
    size_t all = (size_t)n * bytes, indices = (size_t)n * sizeof *from;
    if (is_alone(group)) return failed;
    failed = begin_ballot(&b, group, text, failed, (facts){.passes = all + indices, .gets = all, .parts = n});
    char *mine = b.facts.up + (size_t)group->rank * b.facts.passes;
    if (failed == TSH_OK) memcpy(mine, parts, all);
    if (failed == TSH_OK) memcpy(mine + all, from, indices);
    tsh_status status = decide(&b, group, text, failed);
    if (status == TSH_OK) memcpy(parts, b.facts.down + (size_t)group->rank * all, all);
    end_ballot(&b, group);
    return status;
}

tsh_status tshi_control_reduce(tsh_group *group, const char *text, tsh_status failed, void *mine, size_t bytes,
                               tshi_control_combine *combine) {
    ballot b;
    if (is_alone(group)) return failed;
    const facts f = {.passes = bytes, .gets = bytes, .up = mine, .down = mine, .combine = combine};
    failed = begin_ballot(&b, group, text, failed, f);
    tsh_status status = decide(&b, group, text, failed);
    end_ballot(&b, group);
    return status;
}

tsh_status tshi_control_agree(tsh_group *group, const char *text, tsh_status failed) {
    return tshi_control_gather(group, text, failed, NULL, 0, NULL);
}

/* The counts of an all_to_all, of all members: what each member sends to each, then what it expects. */
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
    begin_ballot(&b, group, "", TSH_OK, (facts){0});
    tshi_signature_of_call(&b.vote.first, group, call, group->calls);
    tsh_status status = decide(&b, group, tsh_collective_name(call->op), call->failed);
    return status == TSH_OK && call->in_counts ? compare_counts(group, call) : status;
}

uint64_t tshi_control_group_id(const tsh_group *parent, int place) {
    uint64_t id = tshi_fingerprint_add(TSHI_FINGERPRINT, parent->id);
    id = tshi_fingerprint_add(id, parent->epoch);
    id = tshi_fingerprint_add(id, (uint64_t)place);
    return tshi_fingerprint_add(id, parent->messages_made);
}
