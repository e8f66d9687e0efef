/* Point to point. Each member has an inbox in the group's block: a ring of envelopes that all peers write to, so memory
 * grows with the members, not with the pairs. Envelopes that no receive matches yet are kept in order as unexpected
 * messages.
 *
 *   way          size                        data                        the send is done
 *   BY_ENVELOPE  up to TSHI_INLINE_BYTES     in the envelope             when the envelope is written
 *   BY_BUFFER    up to EAGER_BYTES           in an eager buffer          when the envelope is written
 *   BY_HEAP      larger, or no free buffer   in the sender's memory      when the completion is TAKEN or REFUSED
 *
 *   completion   set by      when
 *   SENT         sender      before the envelope is published
 *   READ         receiver    from SENT, before it copies from the sender's memory
 *   TAKEN        receiver    the data is copied
 *   REFUSED      receiver    the message does not match the receive
 *   WITHDRAWN    sender      from SENT, after a failure
 *
 * Invariant: a receiver reads the tensor of a send BY_HEAP only while the send has not returned. READ and WITHDRAWN are
 * set by compare-and-swap from SENT, so only one of them succeeds; a sender that finds READ waits for the receiver.
 * Messages of a pair do not overtake each other: the sender takes envelopes in order, the receiver reads the ring in
 * order, and unexpected messages are matched first. */
#include "dist/transport/shm/shm.h"

#include <string.h>

#define EAGER_BUFFER_BYTES 4096
#define EAGER_BUFFERS      16 /* of EAGER_BUFFER_BYTES; bounds the data buffered for late receivers */
#define EAGER_BYTES        (EAGER_BUFFER_BYTES - sizeof(tshi_completion))
#define COMPLETIONS        64   /* without a buffer, allocated at a time */
#define MOST_KEPT          1024 /* unexpected messages, beyond which senders wait for their receivers */

enum { SEND_FREE, SEND_SENT, SEND_READ, SEND_TAKEN, SEND_REFUSED, SEND_WITHDRAWN };
enum { BY_ENVELOPE, BY_BUFFER, BY_HEAP };

/* The state of a send, in the sender's heap. An eager buffer is a completion and the data behind it. */
typedef struct tshi_completion {
    alignas(64) _Atomic uint32_t state;
    _Atomic uint32_t sleepers;
    uint32_t kind; /* kind and count of the receive that REFUSED */
    int64_t count;
    struct tshi_completion *next; /* in the sender's list of free completions */
} tshi_completion;

typedef struct unexpected_message {
    tshi_envelope envelope;
    struct unexpected_message *next;
} unexpected_message;

struct tshi_mailbox {
    uint64_t next_in;    /* number of the next envelope in this rank's inbox */
    char *eager_buffers; /* [EAGER_BUFFERS] of EAGER_BUFFER_BYTES, allocated when first needed */
    int next_buffer;
    tshi_completion *free_completions;
    void *completions[64]; /* blocks of COMPLETIONS */
    int completion_blocks;
    unexpected_message *unexpected, *unexpected_end;
    int unexpected_count;
    tshi_pool spare;           /* of unexpected_message */
    struct tshi_mailbox *next; /* in the world's list of mailboxes of closed groups */
};

static tshi_inbox *inbox_at(const tsh_group *group, int member) {
    const tshi_shm_group *lg = group->state;
    return (tshi_inbox *)(void *)((char *)tshi_member_at(lg, member) + lg->inbox_at);
}

static tshi_mailbox *mailbox_of(tsh_group *group) {
    tshi_shm_group *lg = group->state;
    if (!lg->mailbox) lg->mailbox = tshi_calloc(&group->world->allocator, 1, sizeof *lg->mailbox);
    return lg->mailbox;
}

/* Its data lies behind it. */
static tshi_completion *eager_buffer(const tshi_mailbox *box, int i) {
    return (tshi_completion *)(void *)(box->eager_buffers + (size_t)i * EAGER_BUFFER_BYTES);
}

/* --- sending ------------------------------------------------------------------------------------------------------ */

/* A free eager buffer; NULL: all are in flight, or there is no memory. */
static tshi_completion *eager_buffer_take(tsh_group *group, tshi_mailbox *box) {
    tsh_device *device = group->world->host;
    if (!box->eager_buffers) {
        box->eager_buffers = device->ops->memory.alloc(device, (size_t)EAGER_BUFFERS * EAGER_BUFFER_BYTES);
        if (!box->eager_buffers) return NULL;
        device->ops->copy.zero(device, (size_t)EAGER_BUFFERS * EAGER_BUFFER_BYTES, box->eager_buffers);
    }
    tshi_completion *completion = eager_buffer(box, box->next_buffer);
    if (atomic_load_explicit(&completion->state, memory_order_acquire) == SEND_SENT) return NULL;
    box->next_buffer = (box->next_buffer + 1) % EAGER_BUFFERS;
    return completion;
}

static tshi_completion *completion_take(tsh_group *group, tshi_mailbox *box) {
    tsh_device *device = group->world->host;
    if (!box->free_completions && box->completion_blocks < 64) {
        tshi_completion *block = device->ops->memory.alloc(device, COMPLETIONS * sizeof *block);
        if (!block) return NULL;
        device->ops->copy.zero(device, COMPLETIONS * sizeof *block, block);
        box->completions[box->completion_blocks++] = block;
        for (int i = 0; i < COMPLETIONS; i++) {
            block[i].next = box->free_completions;
            box->free_completions = &block[i];
        }
    }
    tshi_completion *completion = box->free_completions;
    if (completion) box->free_completions = completion->next;
    return completion;
}

static void completion_give(tshi_mailbox *box, tshi_completion *completion) {
    completion->next = box->free_completions;
    box->free_completions = completion;
}

size_t tshi_shm_message_bytes(const tshi_comm_call *send) {
    size_t bytes = tshi_message_bytes(tshi_kind_of(send), send->count);
    if (bytes <= TSHI_INLINE_BYTES) return 0;
    return bytes <= EAGER_BYTES ? (size_t)EAGER_BUFFERS * EAGER_BUFFER_BYTES : COMPLETIONS * sizeof(tshi_completion);
}

static uint32_t turn_of(uint64_t number) {
    return tshi_ring_turn(number, TSHI_ENVELOPES);
}

/* Chooses the way of a message, and takes the completion that it needs. */
static uint32_t choose_way(tsh_group *group, tshi_mailbox *box, const tsh_work *work, bool congested,
                           tshi_completion **completion) {
    size_t bytes = tshi_message_bytes(tshi_kind_of(&work->call), work->call.count);
    *completion = NULL;
    if (bytes <= TSHI_INLINE_BYTES && !congested) return BY_ENVELOPE;
    if (bytes <= EAGER_BYTES) {
        *completion = eager_buffer_take(group, box);
        if (*completion) return BY_BUFFER;
    }
    *completion = completion_take(group, box);
    return BY_HEAP;
}

/* False while the ring is full, or there is no completion. */
static bool send_envelope(tsh_work *work) {
    tsh_group *group = work->group;
    tshi_mailbox *box = ((tshi_shm_group *)group->state)->mailbox;
    const tshi_comm_call *call = &work->call;
    tshi_inbox *inbox = inbox_at(group, call->root);
    bool congested = atomic_load_explicit(&inbox->congested, memory_order_relaxed) != 0;
    size_t bytes = tshi_message_bytes(tshi_kind_of(call), call->count);
    tshi_completion *completion;
    uint64_t number;
    uint32_t way = choose_way(group, box, work, congested, &completion);
    if (way == BY_HEAP && !completion) return false;
    if (!tshi_ring_claim(&inbox->tail, inbox->envelope, TSHI_ENVELOPES, sizeof *inbox->envelope, &number)) {
        if (way == BY_HEAP) completion_give(box, completion);
        return false;
    }
    tshi_envelope *envelope = &inbox->envelope[number % TSHI_ENVELOPES];
    envelope->kind = tshi_kind_of(call);
    envelope->way = (uint16_t)way;
    envelope->from = (uint16_t)group->rank;
    envelope->count = call->count;
    if (completion) {
        envelope->completion = tshi_shm_heap_offset(group->world, completion);
        envelope->at = tshi_shm_heap_offset(group->world, way == BY_BUFFER ? (const void *)(completion + 1) : call->in);
        atomic_store_explicit(&completion->state, SEND_SENT, memory_order_relaxed);
    }
    if (way != BY_HEAP)
        group->world->host->ops->copy.within(group->world->host, bytes, call->in,
                                             completion ? (void *)(completion + 1) : envelope->data);
    atomic_store_explicit(&envelope->turn, turn_of(number) + 1, memory_order_release);
    tshi_wake_sleepers(&inbox->sleepers, &envelope->turn);
    if (way == BY_HEAP)
        work->state = completion;
    else
        work->done = true;
    return true;
}

/* An earlier send to the same rank still waits for an envelope. */
static bool must_queue(const tsh_work *work) {
    for (const tsh_work *w = work->group->messages; w && w != work; w = w->next) {
        if (w->call.op == TSH_COLLECTIVE_SEND && !w->done && !w->state && w->call.root == work->call.root) return true;
    }
    return false;
}

static void mismatch(tsh_work *work, int peer, uint32_t kind, int64_t count) {
    const tsh_group *group = work->group;
    const tshi_signature mine = {.kind = tshi_kind_of(&work->call), .count = work->call.count};
    const tshi_signature theirs = {.kind = kind, .count = count};
    bool sends = work->call.op == TSH_COLLECTIVE_SEND;
    tshi_work_end(work, sends ? tshi_message_mismatch(group, group->rank, &mine, peer, &theirs, "")
                              : tshi_message_mismatch(group, peer, &theirs, group->rank, &mine, ""));
}

static void send_progress(tsh_work *work) {
    tshi_mailbox *box = ((tshi_shm_group *)work->group->state)->mailbox;
    tshi_completion *completion = work->state;
    if (!completion) {
        if (!must_queue(work)) send_envelope(work);
        return;
    }
    uint32_t state = atomic_load_explicit(&completion->state, memory_order_acquire);
    if (state == SEND_SENT || state == SEND_READ) return;
    work->done = true;
    if (state == SEND_REFUSED) mismatch(work, work->call.root, completion->kind, completion->count);
    work->state = NULL;
    completion_give(box, completion);
}

/* --- receiving ---------------------------------------------------------------------------------------------------- */

static void answer(const tsh_group *group, const tshi_envelope *envelope, uint32_t state) {
    tshi_completion *completion = tshi_shm_heap_at(group, envelope->from, envelope->completion);
    atomic_store_explicit(&completion->state, state, memory_order_release);
    tshi_wake_sleepers(&completion->sleepers, &completion->state);
}

/* Reports a mismatch to the sender of a small message, whose send has already returned: its next call fails with it.
 * Later complaints are dropped while one is unread. */
static void complain(const tsh_work *work, const tshi_envelope *envelope) {
    tsh_group *group = work->group;
    tshi_member *member = tshi_member_at(group->state, envelope->from);
    uint32_t none = 0;
    if (!atomic_compare_exchange_strong(&member->complaint, &none, 1)) return;
    member->complainer = group->rank;
    member->sent = (tshi_signature){.kind = envelope->kind, .count = envelope->count};
    member->wanted = (tshi_signature){.kind = tshi_kind_of(&work->call), .count = work->call.count};
    atomic_store_explicit(&member->complaint, 2, memory_order_release);
}

static void refuse(tsh_work *work, const tshi_envelope *envelope) {
    tsh_group *group = work->group;
    mismatch(work, envelope->from, envelope->kind, envelope->count);
    if (envelope->way == BY_HEAP) {
        tshi_completion *completion = tshi_shm_heap_at(group, envelope->from, envelope->completion);
        completion->kind = tshi_kind_of(&work->call);
        completion->count = work->call.count;
        answer(group, envelope, SEND_REFUSED);
        return;
    }
    if (envelope->way == BY_BUFFER) answer(group, envelope, SEND_TAKEN);
    complain(work, envelope);
}

/* True: this rank may read the sender's memory. False: the sender has withdrawn, and the work has ended with its
 * failure. */
static bool claim(tsh_work *work, const tshi_envelope *envelope) {
    tsh_group *group = work->group;
    tshi_completion *completion = tshi_shm_heap_at(group, envelope->from, envelope->completion);
    uint32_t sent = SEND_SENT;
    if (atomic_compare_exchange_strong(&completion->state, &sent, SEND_READ)) return true;
    tsh_status status = tshi_control_failure(group->world);
    if (status == TSH_OK) {
        status = tshi_fail(TSH_ERR_PEER, "rank %d has given up its send after a failure", group->ranks[envelope->from]);
    }
    tshi_work_end(work, status);
    return false;
}

static void take(tsh_work *work, const tshi_envelope *envelope) {
    tsh_group *group = work->group;
    const tshi_comm_call *call = &work->call;
    work->sender = envelope->from;
    if (!tshi_message_fits(envelope->kind, envelope->count, call)) {
        refuse(work, envelope);
        return;
    }
    if (envelope->way == BY_HEAP && !claim(work, envelope)) return;
    const void *from =
        envelope->way == BY_ENVELOPE ? envelope->data : tshi_shm_heap_at(group, envelope->from, envelope->at);
    size_t bytes = tshi_message_bytes(envelope->kind, envelope->count);
    if (bytes) group->world->host->ops->copy.within(group->world->host, bytes, from, call->out);
    if (envelope->way != BY_ENVELOPE) answer(group, envelope, SEND_TAKEN);
    work->done = true;
}

/* A receive that has not started does not match: it must first search the unexpected messages. */
static inline bool wants(const tsh_work *work, int from) {
    return work->call.op == TSH_COLLECTIVE_RECV && work->started && !work->done &&
           (work->call.root == from || work->call.root == TSH_ANY_RANK);
}

static tsh_status keep(tsh_group *group, tshi_mailbox *box, const tshi_envelope *envelope) {
    unexpected_message *unexpected = tshi_pool_take(&box->spare, &group->world->allocator, sizeof *unexpected);
    if (!unexpected) return TSH_ERR_MEMORY;
    memcpy(&unexpected->envelope, envelope, sizeof *envelope);
    if (box->unexpected_end)
        box->unexpected_end->next = unexpected;
    else
        box->unexpected = unexpected;
    box->unexpected_end = unexpected;
    if (++box->unexpected_count == MOST_KEPT) atomic_store(&inbox_at(group, group->rank)->congested, 1);
    return TSH_OK;
}

/* Matches the envelopes in this rank's inbox with its receives, and keeps the others as unexpected messages. Without
 * memory for that an envelope stays in the inbox. */
static void empty_inbox(tsh_group *group, tshi_mailbox *box) {
    tshi_inbox *inbox = inbox_at(group, group->rank);
    for (;;) {
        tshi_envelope *envelope = &inbox->envelope[box->next_in % TSHI_ENVELOPES];
        uint32_t full = turn_of(box->next_in) + 1;
        if (atomic_load_explicit(&envelope->turn, memory_order_acquire) != full) return;
        tsh_work *work = group->messages;
        while (work && !wants(work, envelope->from)) work = work->next;
        if (work)
            take(work, envelope);
        else if (keep(group, box, envelope) != TSH_OK)
            return;
        atomic_store_explicit(&envelope->turn, full + 1, memory_order_release);
        box->next_in++;
    }
}

static void look_in_kept(tsh_work *work, tshi_mailbox *box) {
    unexpected_message **link = &box->unexpected, *before = NULL;
    while (*link && !wants(work, (*link)->envelope.from)) {
        before = *link;
        link = &(*link)->next;
    }
    unexpected_message *unexpected = *link;
    if (!unexpected) return;
    take(work, &unexpected->envelope);
    *link = unexpected->next;
    if (box->unexpected_end == unexpected) box->unexpected_end = before;
    if (box->unexpected_count-- == MOST_KEPT) {
        atomic_store(&inbox_at(work->group, work->group->rank)->congested, 0);
    }
    tshi_pool_give(&box->spare, unexpected);
}

/* --- tshi_group_ops ----------------------------------------------------------------------------------------------- */

static tsh_status heed_complaint(tsh_group *group) {
    tshi_member *me = tshi_member_at(group->state, group->rank);
    if (atomic_load_explicit(&me->complaint, memory_order_acquire) != 2) return TSH_OK;
    tsh_status status =
        tshi_message_mismatch(group, group->rank, &me->sent, me->complainer, &me->wanted, " (an earlier call)");
    atomic_store_explicit(&me->complaint, 0, memory_order_release);
    return status;
}

tsh_status tshi_message_start(tsh_work *work) {
    tsh_group *group = work->group;
    tshi_mailbox *box = mailbox_of(group);
    if (!box) return TSH_ERR_MEMORY;
    work->message_number = tshi_group_note(group, &work->call);
    tsh_status status = heed_complaint(group);
    if (status != TSH_OK) return status;
    if (work->call.op == TSH_COLLECTIVE_RECV) look_in_kept(work, box);
    return TSH_OK;
}

/* Sends a message that fits an envelope, if the ring has room. */
static bool send_quickly(tsh_work *work) {
    const tshi_comm_call *call = &work->call;
    tshi_inbox *inbox = inbox_at(work->group, call->root);
    const tshi_envelope *envelope =
        &inbox->envelope[atomic_load_explicit(&inbox->tail, memory_order_relaxed) % TSHI_ENVELOPES];
    tshi_claim(envelope);
    size_t bytes = tshi_message_bytes(tshi_kind_of(call), call->count);
    if (bytes > TSHI_INLINE_BYTES) return false;
    if (bytes) tshi_claim(envelope->data + bytes - 1);
    return !atomic_load_explicit(&inbox->congested, memory_order_relaxed) && send_envelope(work);
}

/* Receives the next envelope, if it arrives soon and matches. */
static bool receive_quickly(tsh_work *work, tshi_mailbox *box) {
    const int spins = tshi_shm_of(work->group->world)->spins;
    tshi_inbox *inbox = inbox_at(work->group, work->group->rank);
    tshi_envelope *envelope = &inbox->envelope[box->next_in % TSHI_ENVELOPES];
    uint32_t full = turn_of(box->next_in) + 1;
    for (int polls = 0; atomic_load_explicit(&envelope->turn, memory_order_acquire) != full; polls++) {
        if (polls >= spins) return false;
        if (polls > TSHI_EAGER_POLLS) tshi_cpu_pause();
    }
    if (work->call.root != envelope->from && work->call.root != TSH_ANY_RANK) return false;
    take(work, envelope);
    atomic_store_explicit(&envelope->turn, full + 1, memory_order_release);
    box->next_in++;
    return true;
}

bool tshi_message_quick(tsh_work *work) {
    tsh_group *group = work->group;
    tshi_shm_group *lg = group->state;
    tshi_mailbox *box = lg->mailbox;
    const tshi_member *me = tshi_member_at(lg, group->rank);
    if (!box || box->unexpected || tshi_control_has_failed(group->world)) return false;
    if (atomic_load_explicit(&me->complaint, memory_order_relaxed) != 0) return false;
    if (!(work->call.op == TSH_COLLECTIVE_SEND ? send_quickly(work) : receive_quickly(work, box))) return false;
    work->message_number = tshi_group_note(group, &work->call);
    return true;
}

void tshi_message_progress(tsh_work *work) {
    tsh_group *group = work->group;
    tshi_mailbox *box = ((tshi_shm_group *)group->state)->mailbox;
    if (work->call.op == TSH_COLLECTIVE_SEND)
        send_progress(work);
    else
        empty_inbox(group, box);
    if (work->done || !tshi_control_has_failed(group->world)) return;
    tsh_status status = tshi_control_failure(group->world);
    if (status == TSH_OK) return;
    tshi_work_end(work, tshi_message_depart(work, status));
}

tsh_status tshi_message_depart(const tsh_work *work, tsh_status status) {
    const tsh_group *group = work->group;
    tshi_completion *completion = work->state;
    uint32_t sent = SEND_SENT;
    if (work->call.op != TSH_COLLECTIVE_SEND || !completion) return status;
    if (atomic_compare_exchange_strong(&completion->state, &sent, SEND_WITHDRAWN)) return status;
    tshi_failure before;
    tshi_failure_keep(&before, status);
    tshi_shm_await_reader(group->world, group->ranks[work->call.root], &completion->state, SEND_READ, work->call.in,
                          tshi_message_bytes(tshi_kind_of(&work->call), work->call.count));
    return tshi_failure_report(&before);
}

tshi_awaited tshi_message_watch(const tsh_work *work) {
    tsh_group *group = work->group;
    const tshi_mailbox *box = ((tshi_shm_group *)group->state)->mailbox;
    int rank = work->call.root < 0 ? -1 : group->ranks[work->call.root];
    tshi_awaited watch = {NULL, 0, NULL, rank};
    tshi_completion *completion = work->state;
    if (work->call.op == TSH_COLLECTIVE_RECV && box) {
        tshi_inbox *inbox = inbox_at(group, group->rank);
        watch.word = &inbox->envelope[box->next_in % TSHI_ENVELOPES].turn;
        watch.target = turn_of(box->next_in) + 1;
        watch.sleepers = &inbox->sleepers;
    } else if (completion) {
        watch.word = &completion->state;
        watch.target = SEND_TAKEN;
        watch.sleepers = &completion->sleepers;
    }
    return watch;
}

static void drop_kept(tshi_mailbox *box) {
    while (box->unexpected) {
        unexpected_message *unexpected = box->unexpected;
        box->unexpected = unexpected->next;
        tshi_pool_give(&box->spare, unexpected);
    }
    box->unexpected_end = NULL;
    box->unexpected_count = 0;
}

void tshi_messages_reset(tsh_group *group) {
    tshi_shm_group *lg = group->state;
    tshi_inbox *inbox = inbox_at(group, group->rank);
    tshi_mailbox *box = lg->mailbox;
    atomic_store(&inbox->tail, 0);
    atomic_store(&inbox->congested, 0);
    atomic_store(&tshi_member_at(lg, group->rank)->complaint, 0);
    for (int i = 0; i < TSHI_ENVELOPES; i++) atomic_store(&inbox->envelope[i].turn, 0);
    if (!box) return;
    drop_kept(box);
    box->next_in = 0;
    for (int i = 0; box->eager_buffers && i < EAGER_BUFFERS; i++) atomic_store(&eager_buffer(box, i)->state, SEND_FREE);
    box->free_completions = NULL;
    for (int block = 0; block < box->completion_blocks; block++) {
        tshi_completion *completions = box->completions[block];
        for (int i = 0; i < COMPLETIONS; i++) completion_give(box, &completions[i]);
    }
}

/* No receiver has yet to read an eager buffer of this closed group. */
static bool fetched(const tshi_mailbox *box) {
    for (int i = 0; box->eager_buffers && i < EAGER_BUFFERS; i++) {
        if (atomic_load_explicit(&eager_buffer(box, i)->state, memory_order_acquire) == SEND_SENT) return false;
    }
    return true;
}

static void free_mailbox(tsh_world *world, tshi_mailbox *box) {
    tsh_device *device = world->host;
    device->ops->memory.release(device, box->eager_buffers);
    for (int i = 0; i < box->completion_blocks; i++) device->ops->memory.release(device, box->completions[i]);
    tshi_free(&world->allocator, box);
}

void tshi_messages_close(tsh_group *group) {
    tsh_world *world = group->world;
    tshi_shm_group *lg = group->state;
    tshi_mailbox *box = lg->mailbox;
    lg->mailbox = NULL;
    if (!box) return;
    drop_kept(box);
    tshi_pool_clear(&box->spare, &world->allocator);
    box->next = tshi_shm_of(world)->mailboxes;
    tshi_shm_of(world)->mailboxes = box;
    tshi_messages_sweep(world, false);
}

void tshi_messages_sweep(tsh_world *world, bool all) {
    tshi_mailbox **link = &tshi_shm_of(world)->mailboxes;
    while (*link) {
        tshi_mailbox *box = *link;
        if (!all && !fetched(box)) {
            link = &box->next;
            continue;
        }
        *link = box->next;
        free_mailbox(world, box);
    }
}
