/* What all members of a group send to all: the blocks with which a call begins, and an all-gather.
 *
 *   members                         the blocks travel
 *   up to TSHI_MOST_DIRECT          from each member to each, all at once
 *   more                            in ceil(log2 p) steps (Bruck): in step k a member sends the 2^k blocks that it has
 *                                   to the member 2^k before it, and appends those of the member 2^k after it
 *   several on each of up to        each member shows its block to its machine, and joins those that it sees into
 *   TSHI_MOST_DIRECT machines       one, which it sends to the member with its index on each other machine
 *
 * A block is an entry_head with the member's whole contribution to the call behind it if that is small: then the call
 * needs no other message, and each member computes its result in the order of the ranks. A joined block has the flags
 * of all blocks of its machine, and their contributions: one behind the other, or already reduced.
 *
 * Two machines of two ranks exchange 4 messages for a sum of 4 KiB. Blocks between all members would be 12, and 4 more
 * for the data. */
#include "dist/collectives/schedule.h"

#include <string.h>

/* Bytes of a contribution that travels with the block: of few members, of all members together, and of two, where no
 * other way sends fewer bytes and this one saves a round trip. */
#define SMALL      ((size_t)2048)
#define SMALL_ALL  ((size_t)16384)
#define SMALL_PAIR ((size_t)32768)
/* Bytes of the data of a joined block, and, above SMALL for each member, of those that a machine sends to another. */
#define SMALL_JOINED ((size_t)16384)
#define SMALL_LINK   ((size_t)32768)
/* Blocks and their data are aligned to this. */
#define ALIGN ((size_t)16)

typedef struct entry_head {
    uint64_t hash;
    uint32_t flags, bytes; /* bytes: behind it */
} entry_head;

_Static_assert(sizeof(entry_head) == ALIGN, "data follows the entry");
_Static_assert(sizeof(entry_head) + SMALL_JOINED <= TSHI_SHOW_BYTES, "a member shows its contribution");

static size_t aligned(size_t bytes) {
    return (bytes + ALIGN - 1) / ALIGN * ALIGN;
}

/* shares: each member needs another part of the contribution. */
static size_t small(int size, bool shares) {
    size_t each = SMALL_ALL / (size_t)size / ALIGN * ALIGN;
    if (size == 2 && !shares) return SMALL_PAIR;
    return size <= TSHI_MOST_DIRECT ? SMALL : each;
}

/* --- who exchanges blocks ----------------------------------------------------------------------------------------- */

/* All members, or those with this rank's index on each machine. */
static int senders(const tshi_schedule *m) {
    return m->near ? m->group->far->size : m->group->size;
}

static int own_sender(const tshi_schedule *m) {
    return m->near ? m->group->far->rank : m->group->rank;
}

static int member_of(const tshi_schedule *m, int sender) {
    return m->near ? sender * m->group->near->size + m->group->near->rank : sender;
}

static bool joins(const tsh_group *group) {
    return group->near && group->near->ops->show && group->far->size <= TSHI_MOST_DIRECT;
}

static size_t room_of(int size, bool near) {
    return sizeof(entry_head) + (near ? SMALL_JOINED : small(size, false));
}

/* The group's levels are opened after it. */
size_t tshi_entry_bytes(const tshi_schedule *m) {
    int size = m->group->size, machines = size / 2 < TSHI_MOST_DIRECT ? size / 2 : TSHI_MOST_DIRECT;
    size_t each = (size_t)size * room_of(size, false), joined = (size_t)machines * room_of(size, true);
    return m->apart && joined > each ? joined : each;
}

static entry_head *entry_of(const tshi_schedule *m, int sender) {
    return (entry_head *)(void *)(m->blocks + m->block[sender]);
}

static size_t bytes_of(const tshi_comm_call *call, int64_t elements) {
    return (size_t)elements * tsh_dtype_size(call->dtype);
}

/* --- the data of a small call ------------------------------------------------------------------------------------- */

/* Elements of the longest contribution, which all members know if their calls do not differ and are regular. */
static int64_t longest_contribution(const tshi_schedule *m) {
    const tshi_comm_call *call = &m->call;
    int64_t most = 0;
    switch (tshi_collectives[call->op].in) {
    case TSHI_WHOLE: return call->count;
    case TSHI_LISTED: return call->in_counts[0] * m->group->size;
    case TSHI_PART:
        for (int i = 0; i < m->group->size; i++) most = call->counts[i] > most ? call->counts[i] : most;
        return most;
    default: return 0;
    }
}

/* Bytes that the data of a block needs for contributions of that many. */
static size_t joined_bytes(const tshi_schedule *m, size_t each) {
    const tshi_collective *c = &tshi_collectives[m->call.op];
    return c->reduces || c->contributes == TSHI_ROOT ? each : each * (size_t)m->group->near->size;
}

bool tshi_entry_has_data(const tshi_schedule *m) {
    const tshi_collective *c = &tshi_collectives[m->call.op];
    bool shares = c->in == TSHI_LISTED || (c->in == TSHI_WHOLE && c->out == TSHI_PART);
    int64_t most = longest_contribution(m);
    if (most > INT64_C(1) << 20) return false;
    size_t bytes = bytes_of(&m->call, most);
    if (!m->near) return bytes <= small(m->group->size, shares);
    size_t joined = joined_bytes(m, bytes);
    return joined <= SMALL_JOINED && (bytes <= SMALL || joined * (size_t)m->group->near->size <= SMALL_LINK);
}

static int64_t share_start(const tshi_schedule *m) {
    const tshi_comm_call *call = &m->call;
    const tshi_collective *c = &tshi_collectives[call->op];
    if (c->in == TSHI_LISTED) return call->in_counts[0] * m->group->rank;
    return c->in == TSHI_WHOLE && c->out == TSHI_PART ? tshi_sum(call->counts, m->group->rank) : 0;
}

/* Elements of the contributions of the members from `first` on, up to that one. */
static int64_t contributions(const tshi_schedule *m, int first, int member) {
    switch (tshi_collectives[m->call.op].in) {
    case TSHI_PART: return tshi_sum(m->call.counts + first, member - first);
    case TSHI_LISTED: return (member - first) * longest_contribution(m);
    default: return 0; /* only one of them has any */
    }
}

/* A member's contribution, among those of its machine in a joined block. */
static const char *contribution_of(const tshi_schedule *m, int member) {
    if (!m->near) return (const char *)(entry_of(m, member) + 1);
    int machine = member / m->group->near->size, first = machine * m->group->near->size;
    return (const char *)(entry_of(m, machine) + 1) + bytes_of(&m->call, contributions(m, first, member));
}

static void reduce_terms(tshi_schedule *m, int64_t count, int terms, void *out) {
    tsh_device *host = m->group->world->host;
    if (count) host->ops->reduce(host, m->call.dtype, (tshi_reduction)m->call.reduce, count, terms, m->terms, 1, &out);
}

static void finish_reduction(tshi_schedule *m) {
    const tshi_comm_call *call = &m->call;
    tshi_span to = tshi_span_from(m->group, call, m->group->rank);
    size_t start = bytes_of(call, share_start(m));
    for (int i = 0; i < senders(m); i++) m->terms[i] = (const char *)(entry_of(m, i) + 1) + start;
    reduce_terms(m, to.count, senders(m), (char *)call->out + bytes_of(call, to.start));
}

void tshi_entry_finish(tshi_schedule *m) {
    const tsh_group *group = m->group;
    const tshi_comm_call *call = &m->call;
    tsh_device *host = group->world->host;
    size_t start = bytes_of(call, share_start(m));
    if (tshi_collectives[call->op].reduces) {
        finish_reduction(m);
        return;
    }
    for (int i = 0; i < group->size; i++) {
        tshi_span to = tshi_span_from(group, call, i);
        if (!to.count) continue;
        const char *share = contribution_of(m, i) + start;
        host->ops->copy.within(host, bytes_of(call, to.count), share, (char *)call->out + bytes_of(call, to.start));
    }
}

/* --- the blocks --------------------------------------------------------------------------------------------------- */

static tsh_status receive_blocks(tshi_schedule *m, int64_t step) {
    int n = senders(m), me = own_sender(m);
    tsh_status status = TSH_OK;
    for (int d = 1; d < n && status == TSH_OK; d++) {
        int from = (me + n - d) % n;
        status = tshi_step_receive(m, step, member_of(m, from), entry_of(m, from), room_of(m->group->size, m->near));
    }
    return status;
}

static tsh_status send_block(tshi_schedule *m, int64_t step) {
    int n = senders(m), me = own_sender(m);
    const entry_head *mine = entry_of(m, me);
    tsh_status status = TSH_OK;
    for (int d = 1; d < n && status == TSH_OK; d++)
        status = tshi_step_send(m, step, member_of(m, (me + d) % n), mine, sizeof *mine + mine->bytes);
    return status;
}

static tsh_status post_direct(tshi_schedule *m, int64_t step) {
    tsh_status status = receive_blocks(m, step);
    return status == TSH_OK ? send_block(m, step) : status;
}

/* Blocks that travel in step `step` of Bruck's algorithm. */
static int blocks_in(const tshi_schedule *m, int64_t step) {
    int have = 1 << step, lack = m->group->size - have;
    return have < lack ? have : lack;
}

static tsh_status post_bruck(tshi_schedule *m, int64_t step) {
    int p = m->group->size, me = m->group->rank, have = 1 << step, n = blocks_in(m, step);
    size_t bytes = n == have ? m->blocks_end : m->block[(me + n) % p];
    tsh_status status =
        tshi_step_receive(m, step, (me + have) % p, m->blocks + m->blocks_end, (size_t)n * room_of(p, false));
    return status == TSH_OK ? tshi_step_send(m, step, (me + p - have) % p, m->blocks, bytes) : status;
}

static void finish_bruck(tshi_schedule *m, int64_t step) {
    int p = m->group->size, first = m->group->rank + (1 << step);
    for (int i = 0; i < blocks_in(m, step); i++) {
        m->block[(first + i) % p] = m->blocks_end;
        m->blocks_end += sizeof(entry_head) + aligned(entry_of(m, (first + i) % p)->bytes);
    }
}

/* Writes this rank's contribution, if blocks have the call's data, behind the head. */
static void put_contribution(const tshi_schedule *m, entry_head *block) {
    const tshi_comm_call *call = &m->call;
    tsh_device *host = m->group->world->host;
    if (call->failed != TSH_OK || !m->regular || !tshi_entry_has_data(m)) return;
    block->bytes = (uint32_t)bytes_of(call, tshi_elements_in(m->group, call));
    if (block->bytes) host->ops->copy.within(host, block->bytes, call->in, block + 1);
}

/* --- joined blocks ------------------------------------------------------------------------------------------------ */

/* The steps: the receives come first, so that the transport does not have to keep what arrives. */
enum { RECEIVE, SHOW, SEND, STEPS };

static const entry_head *shown_by(const tshi_schedule *m, int member) {
    return m->group->near->ops->shown(m->group->near, member);
}

static void join_flags(const tshi_schedule *m, entry_head *joined) {
    for (int j = 0; j < m->group->near->size; j++) {
        const entry_head *shown = shown_by(m, j);
        joined->flags |= shown->flags | (shown->hash != joined->hash ? TSHI_ENTRY_DIFFER : 0u);
    }
}

static void join_data(tshi_schedule *m, entry_head *joined) {
    tsh_device *host = m->group->world->host;
    char *data = (char *)(joined + 1);
    if (tshi_collectives[m->call.op].reduces) {
        for (int j = 0; j < m->group->near->size; j++) m->terms[j] = shown_by(m, j) + 1;
        joined->bytes = (uint32_t)bytes_of(&m->call, m->call.count);
        reduce_terms(m, m->call.count, m->group->near->size, data);
        return;
    }
    for (int j = 0; j < m->group->near->size; j++) {
        const entry_head *shown = shown_by(m, j);
        if (shown->bytes) host->ops->copy.within(host, shown->bytes, shown + 1, data + joined->bytes);
        joined->bytes += shown->bytes;
    }
}

static tsh_status post_joined(tshi_schedule *m, int64_t step) {
    entry_head *joined = entry_of(m, own_sender(m));
    if (step == RECEIVE) return receive_blocks(m, step);
    if (step == SHOW) {
        entry_head *mine = m->group->near->ops->show_room(m->group->near);
        *mine = *joined;
        put_contribution(m, mine);
        m->group->near->ops->show(m->group->near);
        return TSH_OK;
    }
    join_flags(m, joined);
    bool data = !(joined->flags & (TSHI_ENTRY_DIFFER | TSHI_ENTRY_IRREGULAR)) && tshi_entry_has_data(m);
    if (data) join_data(m, joined);
    return send_block(m, step);
}

static bool may_post_joined(const tshi_schedule *m, int64_t step) {
    const tsh_group *near = m->group->near;
    if (step == SHOW) return near->ops->show_room(near) != NULL;
    return step == RECEIVE || near->ops->all_shown(near);
}

/* --- the entry ---------------------------------------------------------------------------------------------------- */

tsh_status tshi_entry_begin(tshi_schedule *m, uint64_t hash, uint32_t flags) {
    const tsh_group *group = m->group;
    m->near = joins(group);
    bool direct = m->near || group->size <= TSHI_MOST_DIRECT;
    m->steps = (tshi_schedule_steps){.count = 1, .window = 1, .post = post_direct};
    for (int i = 0; i < senders(m); i++) m->block[i] = direct ? (size_t)i * room_of(group->size, m->near) : 0;
    if (m->near) {
        m->steps =
            (tshi_schedule_steps){.count = STEPS, .window = STEPS, .post = post_joined, .may_post = may_post_joined};
    } else if (!direct) {
        m->steps = (tshi_schedule_steps){.window = 1, .post = post_bruck, .finish = finish_bruck};
        while (1 << m->steps.count < group->size) m->steps.count++;
    }
    entry_head *mine = entry_of(m, own_sender(m));
    *mine = (entry_head){.hash = hash, .flags = flags};
    if (!m->near) put_contribution(m, mine);
    m->blocks_end = m->block[own_sender(m)] + sizeof *mine + aligned(mine->bytes);
    return tshi_steps_begin(m);
}

uint32_t tshi_entry_flags(const tshi_schedule *m) {
    const entry_head *mine = entry_of(m, own_sender(m));
    uint32_t flags = 0;
    for (int i = 0; i < senders(m); i++) {
        const entry_head *entry = entry_of(m, i);
        flags |= entry->flags | (entry->hash != mine->hash ? TSHI_ENTRY_DIFFER : 0u);
    }
    return flags;
}

/* --- an all-gather ------------------------------------------------------------------------------------------------ */

static tsh_status post_gather(tshi_schedule *m, int64_t step) {
    int p = m->group->size, me = m->group->rank;
    tsh_status status = TSH_OK;
    for (int d = 1; d < p && status == TSH_OK; d++) {
        int from = (me + p - d) % p;
        status = tshi_step_receive(m, step, from, m->gathered + (size_t)from * m->gathered_bytes, m->gathered_bytes);
        if (status != TSH_OK) break;
        status = tshi_step_send(m, step, (me + d) % p, m->gathered + (size_t)me * m->gathered_bytes, m->gathered_bytes);
    }
    return status;
}

tsh_status tshi_gather_begin(tshi_schedule *m, void *all, size_t bytes) {
    m->gathered = all;
    m->gathered_bytes = bytes;
    m->steps = (tshi_schedule_steps){.count = 1, .window = 1, .post = post_gather};
    return tshi_steps_begin(m);
}
