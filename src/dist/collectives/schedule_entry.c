/* What all members of a group send to all: the blocks with which a call begins, and an all-gather.
 *
 *   members                  the blocks travel
 *   up to TSHI_MOST_DIRECT   from each member to each, all at once
 *   more                     in ceil(log2 p) steps (Bruck): in step k a member sends the 2^k blocks that it has to the
 *                            member 2^k before it, and appends those of the member 2^k after it
 *
 * A block is an entry_head with the member's whole contribution to the call behind it if that is small: then the call
 * needs no other message, and each member computes its result in the order of the ranks. */
#include "dist/collectives/schedule.h"

#include <string.h>

/* Bytes of a contribution that travels with the block: of few members, of all members together, and of two, where no
 * other way sends fewer bytes and this one saves a round trip. */
#define SMALL      ((size_t)2048)
#define SMALL_ALL  ((size_t)16384)
#define SMALL_PAIR ((size_t)32768)
/* Blocks and their data are aligned to this. */
#define ALIGN ((size_t)16)

typedef struct entry_head {
    uint64_t hash;
    uint32_t flags, bytes; /* bytes: behind it */
} entry_head;

_Static_assert(sizeof(entry_head) == ALIGN, "data follows the entry");

static size_t aligned(size_t bytes) {
    return (bytes + ALIGN - 1) / ALIGN * ALIGN;
}

/* shares: each member needs another part of the contribution. */
static size_t small(int size, bool shares) {
    size_t each = SMALL_ALL / (size_t)size / ALIGN * ALIGN;
    if (size == 2 && !shares) return SMALL_PAIR;
    return size <= TSHI_MOST_DIRECT ? SMALL : each;
}

size_t tshi_entry_room(int size) {
    return sizeof(entry_head) + small(size, false);
}

static entry_head *entry_of(const tshi_schedule *m, int member) {
    return (entry_head *)(void *)(m->blocks + m->block[member]);
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

bool tshi_entry_has_data(const tshi_schedule *m) {
    const tshi_collective *c = &tshi_collectives[m->call.op];
    bool shares = c->in == TSHI_LISTED || (c->in == TSHI_WHOLE && c->out == TSHI_PART);
    int64_t most = longest_contribution(m);
    return most <= INT64_C(1) << 20 && bytes_of(&m->call, most) <= small(m->group->size, shares);
}

static int64_t share_start(const tshi_schedule *m) {
    const tshi_comm_call *call = &m->call;
    const tshi_collective *c = &tshi_collectives[call->op];
    if (c->in == TSHI_LISTED) return call->in_counts[0] * m->group->rank;
    return c->in == TSHI_WHOLE && c->out == TSHI_PART ? tshi_sum(call->counts, m->group->rank) : 0;
}

void tshi_entry_finish(tshi_schedule *m) {
    const tsh_group *group = m->group;
    const tshi_comm_call *call = &m->call;
    tsh_device *host = group->world->host;
    size_t start = bytes_of(call, share_start(m));
    bool reduces = tshi_collectives[call->op].reduces;
    tshi_span to = {0};
    for (int i = 0; i < group->size; i++) {
        const char *share = (char *)(entry_of(m, i) + 1) + start;
        to = tshi_span_from(group, call, i);
        m->terms[i] = share;
        if (to.count && !reduces)
            host->ops->copy.within(host, bytes_of(call, to.count), share, (char *)call->out + bytes_of(call, to.start));
    }
    if (!reduces || !to.count) return;
    void *out = (char *)call->out + bytes_of(call, to.start);
    host->ops->reduce(host, call->dtype, (tshi_reduction)call->reduce, to.count, group->size, m->terms, 1, &out);
}

/* --- the blocks --------------------------------------------------------------------------------------------------- */

static tsh_status post_direct(tshi_schedule *m, int64_t step) {
    int p = m->group->size, me = m->group->rank;
    tsh_status status = TSH_OK;
    for (int d = 1; d < p && status == TSH_OK; d++) {
        int from = (me + p - d) % p;
        status = tshi_step_receive(m, step, from, entry_of(m, from), tshi_entry_room(p));
    }
    for (int d = 1; d < p && status == TSH_OK; d++) {
        entry_head *mine = entry_of(m, me);
        status = tshi_step_send(m, step, (me + d) % p, mine, sizeof *mine + mine->bytes);
    }
    return status;
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
        tshi_step_receive(m, step, (me + have) % p, m->blocks + m->blocks_end, (size_t)n * tshi_entry_room(p));
    return status == TSH_OK ? tshi_step_send(m, step, (me + p - have) % p, m->blocks, bytes) : status;
}

static void finish_bruck(tshi_schedule *m, int64_t step) {
    int p = m->group->size, first = m->group->rank + (1 << step);
    for (int i = 0; i < blocks_in(m, step); i++) {
        m->block[(first + i) % p] = m->blocks_end;
        m->blocks_end += sizeof(entry_head) + aligned(entry_of(m, (first + i) % p)->bytes);
    }
}

tsh_status tshi_entry_begin(tshi_schedule *m, uint64_t hash, uint32_t flags) {
    const tsh_group *group = m->group;
    const tshi_comm_call *call = &m->call;
    bool direct = group->size <= TSHI_MOST_DIRECT;
    m->steps = (tshi_schedule_steps){.count = 1, .window = 1, .post = post_direct};
    for (int i = 0; i < group->size; i++) m->block[i] = direct ? (size_t)i * tshi_entry_room(group->size) : 0;
    if (!direct) {
        m->steps = (tshi_schedule_steps){.window = 1, .post = post_bruck, .finish = finish_bruck};
        while (1 << m->steps.count < group->size) m->steps.count++;
    }
    entry_head *mine = entry_of(m, group->rank);
    *mine = (entry_head){.hash = hash, .flags = flags};
    if (call->failed == TSH_OK && m->regular && tshi_entry_has_data(m)) {
        mine->bytes = (uint32_t)bytes_of(call, tshi_elements_in(group, call));
        if (mine->bytes) group->world->host->ops->copy.within(group->world->host, mine->bytes, call->in, mine + 1);
    }
    m->blocks_end = m->block[group->rank] + sizeof *mine + aligned(mine->bytes);
    return tshi_steps_begin(m);
}

uint32_t tshi_entry_flags(const tshi_schedule *m) {
    const entry_head *mine = entry_of(m, m->group->rank);
    uint32_t flags = 0;
    for (int i = 0; i < m->group->size; i++) {
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
