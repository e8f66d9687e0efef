/* Moving the data of a call between all pairs of members.
 *
 * In step k a member sends block k of its span for each peer, and receives block k of each peer's span for it. A
 * reduction receives into buffers of the group, and reduces a received block in the order of the ranks, so that all
 * members get the same bits. Up to a window of steps are in flight at once, so that the link is busy while the host
 * computes. A call on long data takes two halves:
 *
 *               first half                     second half
 *   all_reduce  a reduce-scatter of slices     an all-gather of them
 *   reduce      a reduce-scatter               a gather
 *   broadcast   a scatter                      an all-gather, without the root
 *
 * Invariant: a step uses the buffers of step - window only after that step has ended, and a step of the second half is
 * posted only after this member has its block of the first half (second_half_may). */
#include "dist/collectives/schedule.h"

/* Between machines without RDMA: blocks that a transport sends without a handshake, which needs the host on both sides.
 * Two machines of two ranks took 80 ms for a sum of 64 MiB over 10 Gbit/s with 16 of them in flight, 125 ms with two
 * blocks of 1 MiB, 95 ms with 64. A started call has enough of them to fill a socket's buffers, which the kernel
 * empties while the host computes. */
#define EAGER_BYTES          ((size_t)60 << 10)
#define EAGER_BLOCKS         16
#define EAGER_BLOCKS_STARTED 64
/* Else, of a reduction: blocks of all peers that stay in cache together, the next ones received while they are reduced.
 * Shorter blocks cost more handshakes: two ranks took 435 us for 2 MiB in blocks of 128 KiB, 220 us in blocks of
 * 1 MiB. */
#define CACHED_BYTES ((size_t)1 << 20)
#define CACHED_LEAST ((size_t)128 << 10)
#define LEAST_WINDOW 2
/* Bytes from which a reduce and a broadcast take two halves: below, the root's link is not what takes the time. */
#define HALVES_LEAST ((size_t)32 << 10)

/* Two ranks send the same number of bytes without halves, and then no step waits for another. */
static bool in_halves(const tshi_schedule *m) {
    const tshi_comm_call *call = &m->call;
    if (m->group->size == 2) return false;
    if (call->op == TSH_COLLECTIVE_ALL_REDUCE) return true;
    return (call->op == TSH_COLLECTIVE_REDUCE || call->op == TSH_COLLECTIVE_BROADCAST) &&
           (size_t)call->count >= HALVES_LEAST / tsh_dtype_size(call->dtype);
}

static bool is_second(const tshi_schedule *m, int64_t step) {
    return in_halves(m) && step >= m->steps.count / 2;
}

static bool reduces(const tshi_schedule *m, int64_t step) {
    return tshi_collectives[m->call.op].reduces && !is_second(m, step);
}

/* --- spans -------------------------------------------------------------------------------------------------------- */

/* The slice of a call in two halves that is a member's between them. */
static tshi_span slice_of(const tshi_schedule *m, int member) {
    tshi_span slice;
    tsh_split(m->call.count, m->group->size, member, &slice.start, &slice.count);
    return slice;
}

/* In that half, `from` sends a slice to `to`. */
static bool passes(const tshi_schedule *m, bool second, int from, int to) {
    const tshi_comm_call *call = &m->call;
    const tshi_collective *c = &tshi_collectives[call->op];
    if (!second) return c->contributes == TSHI_ALL || from == call->root;
    return call->op == TSH_COLLECTIVE_BROADCAST ? to != call->root : c->receives == TSHI_ALL || to == call->root;
}

static tshi_span span_to(const tshi_schedule *m, int64_t step, int to) {
    bool second = is_second(m, step);
    if (!in_halves(m)) return tshi_span_to(m->group, &m->call, to);
    return passes(m, second, m->group->rank, to) ? slice_of(m, second ? m->group->rank : to) : (tshi_span){0};
}

static tshi_span span_from(const tshi_schedule *m, int64_t step, int from) {
    bool second = is_second(m, step);
    if (!in_halves(m)) return tshi_span_from(m->group, &m->call, from);
    return passes(m, second, from, m->group->rank) ? slice_of(m, second ? from : m->group->rank) : (tshi_span){0};
}

static tshi_span block_of(const tshi_schedule *m, int64_t step, tshi_span span) {
    int64_t before = (is_second(m, step) ? step - m->steps.count / 2 : step) * m->elements;
    if (before >= span.count) return (tshi_span){span.start, 0};
    int64_t rest = span.count - before;
    return (tshi_span){span.start + before, rest < m->elements ? rest : m->elements};
}

static void *at(const tshi_schedule *m, const void *base, int64_t elements) {
    return (void *)((uintptr_t)base + (size_t)elements * tsh_dtype_size(m->call.dtype));
}

static size_t bytes_of(const tshi_schedule *m, tshi_span span) {
    return (size_t)span.count * tsh_dtype_size(m->call.dtype);
}

/* Where the reduced elements from `start` on lie: in the caller's memory, or, on a rank that gets no result, in the
 * group's. */
static void *reduced_at(const tshi_schedule *m, int64_t start) {
    if (tshi_elements_out(m->group, &m->call)) return at(m, m->call.out, start);
    return at(m, m->part, start - slice_of(m, m->group->rank).start);
}

/* The buffer for the block of the peer at that distance, to be reduced. */
static void *fold_at(const tshi_schedule *m, int64_t step, int distance) {
    return at(m, m->fold, (step % m->steps.window * (m->group->size - 1) + distance - 1) * m->elements);
}

/* --- one step ----------------------------------------------------------------------------------------------------- */

static void copy_own(const tshi_schedule *m) {
    tsh_device *host = m->group->world->host;
    tshi_span own = tshi_span_to(m->group, &m->call, m->group->rank),
              to = tshi_span_from(m->group, &m->call, m->group->rank);
    const void *from = at(m, m->call.in, own.start);
    void *out = at(m, m->call.out, to.start);
    if (own.count && from != out) host->ops->copy.within(host, bytes_of(m, own), from, out);
}

static tsh_status post(tshi_schedule *m, int64_t step) {
    int p = m->group->size, me = m->group->rank;
    tsh_status status = TSH_OK;
    for (int d = 1; d < p && status == TSH_OK; d++) {
        int to = (me + d) % p, from = (me + p - d) % p;
        tshi_span in = block_of(m, step, span_from(m, step, from)), out = block_of(m, step, span_to(m, step, to));
        void *target = reduces(m, step) ? fold_at(m, step, d) : at(m, m->call.out, in.start);
        const void *source = is_second(m, step) ? reduced_at(m, out.start) : at(m, m->call.in, out.start);
        status = tshi_step_receive(m, step, from, target, bytes_of(m, in));
        if (status == TSH_OK) status = tshi_step_send(m, step, to, source, bytes_of(m, out));
    }
    if (step == 0 && !in_halves(m) && !reduces(m, step)) copy_own(m);
    return status;
}

/* Reduces the blocks received in that step with this rank's own, in the order of the ranks. */
static void finish(tshi_schedule *m, int64_t step) {
    int p = m->group->size, me = m->group->rank;
    tsh_device *host = m->group->world->host;
    tshi_span own = block_of(m, step, span_to(m, step, me)), to = block_of(m, step, span_from(m, step, me));
    if (!reduces(m, step) || !to.count) return;
    void *out = in_halves(m) ? reduced_at(m, to.start) : at(m, m->call.out, to.start);
    for (int d = 1; d < p; d++) m->terms[(me + p - d) % p] = fold_at(m, step, d);
    m->terms[me] = at(m, m->call.in, own.start);
    host->ops->reduce(host, m->call.dtype, (tshi_reduction)m->call.reduce, to.count, p, m->terms, 1, &out);
}

/* --- the call ----------------------------------------------------------------------------------------------------- */

/* A step of the second half sends this rank's block, and receives over blocks that the first half has sent. */
static bool second_half_may(const tshi_schedule *m, int64_t step) {
    return !is_second(m, step) || m->steps.done > step - m->steps.count / 2;
}

/* The most elements that this rank exchanges with one peer in a half. */
static int64_t longest_span(const tshi_schedule *m) {
    int64_t most = 0;
    if (in_halves(m)) return slice_of(m, 0).count;
    for (int i = 0; i < m->group->size; i++) {
        int64_t to = tshi_span_to(m->group, &m->call, i).count, from = tshi_span_from(m->group, &m->call, i).count;
        if (i == m->group->rank) continue;
        if (to > most) most = to;
        if (from > most) most = from;
    }
    return most;
}

/* Sets the window, and the elements of a block. Members that exchange data choose the same. */
static void choose_blocks(tshi_schedule *m, int64_t most) {
    int peers = m->group->size - 1;
    size_t bytes = SIZE_MAX, element = tsh_dtype_size(m->call.dtype);
    m->steps.window = LEAST_WINDOW;
    if (m->eager || (m->apart && m->async)) {
        int blocks = (m->async ? EAGER_BLOCKS_STARTED : EAGER_BLOCKS) / peers;
        bytes = EAGER_BYTES;
        if (m->steps.window < blocks) m->steps.window = blocks;
    } else if (tshi_collectives[m->call.op].reduces) {
        bytes = CACHED_BYTES / (size_t)peers;
        if (bytes < CACHED_LEAST) bytes = CACHED_LEAST;
    }
    if (bytes > (size_t)m->longest) bytes = (size_t)m->longest;
    m->elements = (int64_t)(bytes / element);
    if (m->elements < 1) m->elements = 1;
    if (m->elements > most && most > 0) m->elements = most;
}

tsh_status tshi_move_begin(tshi_schedule *m) {
    const tshi_collective *c = &tshi_collectives[m->call.op];
    int64_t most = longest_span(m);
    m->steps = (tshi_schedule_steps){.post = post, .finish = finish, .may_post = second_half_may};
    choose_blocks(m, most);
    int64_t blocks = most / m->elements + (most % m->elements != 0);
    m->steps.count = most ? blocks : tshi_span_to(m->group, &m->call, m->group->rank).count > 0;
    if (in_halves(m)) m->steps.count = 2 * blocks;
    size_t block = (size_t)m->elements * tsh_dtype_size(m->call.dtype),
           in_flight = (size_t)m->steps.window * (size_t)(m->group->size - 1);
    bool good = !c->reduces || tshi_steps_reserve(m, in_flight * block, &m->fold, &m->fold_room);
    if (in_halves(m) && c->reduces && c->receives == TSHI_ROOT) {
        size_t slice = bytes_of(m, slice_of(m, m->group->rank));
        good = good && (m->group->rank == m->call.root || tshi_steps_reserve(m, slice, &m->part, &m->part_room));
    }
    return good ? tshi_steps_begin(m) : TSH_ERR_MEMORY;
}
