/* Point to point over tagged messages.
 *
 *   message   direction              number in tag   carries
 *   header    sender to receiver     none            count, kind, number; up to INLINE_BYTES of data
 *   data      sender to receiver     its number      the data, if it is larger
 *   reply     receiver to sender     its number      the status: whether the message matches its receive
 *
 * Invariant: both sides return the same status. The sender ends only after the reply, and the receiver takes the data
 * of a mismatched message too, into memory of its own, so that the sender's request ends. */
#include "dist/tagged/tagged.h"

#include <stdio.h>
#include <string.h>

#define INLINE_BYTES 1024
#define LOOK_EVERY   16u

typedef struct header {
    int64_t count;
    uint32_t kind; /* see tshi_kind_of */
    uint32_t number;
    uint32_t bytes; /* of data in the header; 0: none, or it follows */
    unsigned char data[INLINE_BYTES];
} header;

#define HEADER_BYTES offsetof(header, data)

typedef struct reply {
    int32_t status;
    char words[TSHI_LINE];
} reply;

typedef struct tshi_tagged_message {
    header header;
    reply reply;
    tshi_request request[3]; /* of the header, the data and the reply */
    bool has_header;         /* received, on the receiver */
    bool moves;              /* the receiver has begun to receive the data */
    double trouble_seen;     /* when this rank first saw a failure during this message; 0: it has not */
    int peer;
    size_t moved;                     /* bytes of the data already passed to the transport */
    void *dropping;                   /* memory for the data of a mismatched message */
    struct tshi_tagged_message *next; /* in tagged->given_up */
} message;

static const tshi_message_ops *ops_of(const tsh_work *work) {
    return tshi_tagged_of(work->group->world)->ops;
}

static void message_free(tsh_world *world, message *m) {
    if (m->dropping) world->host->ops->memory.release(world->host, m->dropping);
    tshi_pool_give(&tshi_tagged_of(world)->messages, m);
}

static void message_end(tsh_work *work, tsh_status status) {
    message_free(work->group->world, work->state);
    work->state = NULL;
    tshi_work_end(work, status);
}

/* --- large data --------------------------------------------------------------------------------------------------- */

static tsh_status send_part(tsh_work *work, int part, tshi_purpose purpose, const void *data, size_t bytes) {
    message *m = work->state;
    m->request[part] = (tshi_request){.member = m->peer, .active = true};
    uint64_t tag = tshi_tag(purpose, purpose == TSHI_FOR_HEADER ? 0 : m->header.number);
    return ops_of(work)->send(work->group, m->peer, tag, data, bytes, &m->request[part]);
}

static tsh_status receive_part(tsh_work *work, int part, tshi_purpose purpose, void *data, size_t room) {
    message *m = work->state;
    m->request[part] = (tshi_request){.member = m->peer, .active = true, .receives = true};
    uint64_t tag = tshi_tag(purpose, purpose == TSHI_FOR_HEADER ? 0 : m->header.number);
    return ops_of(work)->receive(work->group, m->peer, tag, data, room, &m->request[part]);
}

/* *done: that many parts of the message, from `first` on, have gone or come. */
static tsh_status test_parts(tsh_work *work, int first, int parts, bool *done) {
    message *m = work->state;
    tsh_status status = TSH_OK;
    *done = true;
    for (int i = first; i < first + parts && status == TSH_OK; i++) {
        if (m->request[i].active) status = ops_of(work)->test(work->group->world, &m->request[i]);
        *done = *done && status == TSH_OK && !m->request[i].active;
    }
    return status;
}

static tsh_status move_chunk(tsh_work *work, size_t bytes, void *data, bool send) {
    message *m = work->state;
    size_t longest = (size_t)tshi_tagged_of(work->group->world)->longest, rest = bytes - m->moved;
    if (rest == 0) return TSH_OK;
    size_t n = rest < longest ? rest : longest;
    char *at = (char *)data + m->moved;
    m->moved += n;
    return send ? send_part(work, 1, TSHI_FOR_DATA, at, n) : receive_part(work, 1, TSHI_FOR_DATA, at, n);
}

static size_t bytes_of(const tsh_work *work) {
    return tshi_message_bytes(tshi_kind_of(&work->call), work->call.count);
}

/* --- sending ------------------------------------------------------------------------------------------------------ */

static void fill_header(tsh_work *work, message *m) {
    const tshi_comm_call *call = &work->call;
    size_t bytes = bytes_of(work);
    header *h = &m->header;
    h->count = call->count;
    h->kind = tshi_kind_of(call);
    h->number = tshi_tagged_group_of(work->group)->sent[call->root]++;
    h->bytes = bytes <= INLINE_BYTES ? (uint32_t)bytes : 0;
    if (h->bytes) work->group->world->host->ops->copy.to_host(work->group->world->host, bytes, call->in, h->data);
}

static tsh_status send_start(tsh_work *work) {
    message *m = work->state;
    m->peer = work->call.root;
    fill_header(work, m);
    tsh_status status = receive_part(work, 2, TSHI_FOR_REPLY, &m->reply, sizeof m->reply);
    if (status == TSH_OK) status = send_part(work, 0, TSHI_FOR_HEADER, &m->header, HEADER_BYTES + m->header.bytes);
    if (m->header.bytes) m->moved = m->header.bytes;
    return status == TSH_OK ? move_chunk(work, bytes_of(work), (void *)(uintptr_t)work->call.in, true) : status;
}

static tsh_status send_progress(tsh_work *work) {
    message *m = work->state;
    bool done;
    tsh_status status;
    while (m->moved < bytes_of(work)) {
        status = test_parts(work, 1, 1, &done);
        if (status == TSH_OK && done) status = move_chunk(work, bytes_of(work), (void *)(uintptr_t)work->call.in, true);
        if (status != TSH_OK || !done) return status;
    }
    status = test_parts(work, 0, 3, &done);
    if (status != TSH_OK || !done) return status;
    tsh_status answer = (tsh_status)m->reply.status;
    if (answer != TSH_OK) tshi_fail(answer, "%.*s", TSHI_LINE - 1, m->reply.words);
    message_end(work, answer);
    return TSH_OK;
}

/* --- receiving ---------------------------------------------------------------------------------------------------- */

static tsh_status receive_start(tsh_work *work) {
    message *m = work->state;
    m->peer = work->call.root;
    return receive_part(work, 0, TSHI_FOR_HEADER, &m->header, sizeof m->header);
}

/* Fills the reply with the status that both sides will return. */
static void judge(tsh_work *work) {
    message *m = work->state;
    const header *h = &m->header;
    const tshi_comm_call *call = &work->call;
    const tshi_signature sent = {.kind = h->kind, .count = h->count},
                         wanted = {.kind = tshi_kind_of(call), .count = call->count};
    m->reply.status = TSH_OK;
    if (tshi_message_fits(h->kind, h->count, call)) return;
    m->reply.status = (int32_t)tshi_message_mismatch(work->group, m->peer, &sent, work->group->rank, &wanted, "");
    snprintf(m->reply.words, sizeof m->reply.words, "%s", tsh_error_message());
}

/* Copies the data from the header, or starts to receive it; sends the reply. */
static tsh_status receive_data(tsh_work *work) {
    message *m = work->state;
    const header *h = &m->header;
    tsh_device *device = work->group->world->host;
    void *to = work->call.out;
    judge(work);
    bool good = m->reply.status == TSH_OK;
    size_t bytes = tshi_message_bytes(h->kind, h->count);
    if (h->bytes > 0) {
        m->moved = bytes;
        if (good) device->ops->copy.from_host(device, h->bytes, h->data, to);
    } else if (!good && bytes > 0) {
        m->dropping = to = device->ops->memory.alloc(device, bytes);
        if (!to) return ops_of(work)->fail(work->group, TSH_ERR_MEMORY);
    }
    tsh_status status = move_chunk(work, bytes, to, false);
    if (status != TSH_OK) return status;
    m->moves = h->bytes == 0;
    return send_part(work, 2, TSHI_FOR_REPLY, &m->reply, good ? sizeof m->reply.status : sizeof m->reply);
}

static void receive_end(tsh_work *work) {
    const message *m = work->state;
    tsh_status status = (tsh_status)m->reply.status;
    if (status == TSH_OK)
        work->sender = m->peer;
    else
        tshi_fail(status, "%s", m->reply.words);
    message_end(work, status);
}

static tsh_status take_header(tsh_work *work) {
    message *m = work->state;
    m->has_header = true;
    if (m->peer == TSH_ANY_RANK) m->peer = tsh_group_rank_of(work->group, m->request[0].sender);
    return receive_data(work);
}

static tsh_status receive_progress(tsh_work *work) {
    message *m = work->state;
    bool done = true;
    tsh_status status = TSH_OK;
    if (!m->has_header) {
        status = test_parts(work, 0, 1, &done);
        if (status == TSH_OK && done) status = take_header(work);
    }
    size_t bytes = m->has_header ? tshi_message_bytes(m->header.kind, m->header.count) : 0;
    while (status == TSH_OK && done && m->moved < bytes) {
        status = test_parts(work, 1, 1, &done);
        if (status == TSH_OK && done)
            status = move_chunk(work, bytes, m->dropping ? m->dropping : work->call.out, false);
    }
    if (status == TSH_OK && done) status = test_parts(work, 0, 3, &done);
    if (status == TSH_OK && done) receive_end(work);
    return status;
}

/* --- both --------------------------------------------------------------------------------------------------------- */

tsh_status tshi_tagged_message_start(tsh_work *work) {
    tsh_world *world = work->group->world;
    const tshi_comm_call *call = &work->call;
    tsh_status status = tshi_tagged_failure(world);
    if (status != TSH_OK) return status;
    message *m = tshi_pool_take(&tshi_tagged_of(world)->messages, &world->allocator, sizeof *m);
    if (!m) return TSH_ERR_MEMORY;
    work->state = m;
    work->message_number = tshi_group_note(work->group, call);
    return call->op == TSH_COLLECTIVE_SEND ? send_start(work) : receive_start(work);
}

/* Every rank that can be the message's peer has left. */
static bool peer_left(const tsh_work *work) {
    const message *m = work->state;
    const tsh_group *group = work->group;
    bool left = true;
    for (int i = 0; i < group->size; i++) {
        bool awaited = i != group->rank && (m->peer == TSH_ANY_RANK || m->peer == i);
        if (awaited) left = tshi_tagged_has_left(group->world, group->ranks[i], TSHI_GRACE) && left;
    }
    return left;
}

/* The message may be given up: no data is or will be in flight between the memory of both callers. A sender waits until
 * its data has gone, whether the receiver takes it or discards it in its recovery: so a receiver that has a header can
 * rely on the data. TSHI_GRACE is time for the peer's part of the message. */
static bool may_go(tsh_work *work) {
    message *m = work->state;
    bool sends = work->call.op == TSH_COLLECTIVE_SEND;
    if (work->group->world->machine.broken != TSH_OK || (sends && m->header.bytes != 0)) return true;
    if (sends ? m->moved < bytes_of(work) || m->request[1].active : m->moves) return false;
    if (m->trouble_seen == 0) m->trouble_seen = tshi_clock();
    return tshi_clock() - m->trouble_seen >= TSHI_GRACE;
}

/* The error with which to give up the message, if there is one and may_go allows it; else TSH_OK. */
static tsh_status look(tsh_work *work) {
    tshi_tagged *tagged = tshi_tagged_of(work->group->world);
    if (++tagged->looks % LOOK_EVERY != 0 && !tshi_control_has_failed(work->group->world)) return TSH_OK;
    tsh_status status = tshi_tagged_failure(work->group->world);
    const message *m = work->state;
    if (status != TSH_OK && may_go(work)) return status;
    if (!peer_left(work)) return TSH_OK;
    if (m->peer == TSH_ANY_RANK) return tshi_fail(TSH_ERR_PEER, "recv: all peers have left");
    return tshi_fail(TSH_ERR_PEER, "rank %d has left (it exited, or destroyed its world) before %s",
                     work->group->ranks[m->peer], tsh_collective_name(work->call.op));
}

void tshi_tagged_message_progress(tsh_work *work) {
    tsh_status status = work->call.op == TSH_COLLECTIVE_SEND ? send_progress(work) : receive_progress(work);
    if (work->done) return;
    if (status == TSH_OK) status = look(work);
    if (status == TSH_OK) return;
    tshi_failure why;
    tshi_failure_keep(&why, status);
    tshi_tagged_message_drop(work);
    tshi_work_end(work, tshi_failure_report(&why));
}

/* Cancels the message. The transport may still read or write its memory, which is kept until a recovery. */
void tshi_tagged_message_drop(tsh_work *work) {
    message *m = work->state;
    tshi_tagged *tagged = tshi_tagged_of(work->group->world);
    double deadline = tshi_clock() + TSHI_GRACE;
    bool receives = work->call.op == TSH_COLLECTIVE_RECV;
    if (receives && !m->has_header) tshi_tagged_end_receive(work->group->world, &m->request[0], deadline);
    if (receives) tshi_tagged_end_receive(work->group->world, &m->request[1], deadline);
    if (!receives) tshi_tagged_end_receive(work->group->world, &m->request[2], deadline);
    m->next = tagged->given_up;
    tagged->given_up = m;
    work->state = NULL;
}

/* --- after a failure ---------------------------------------------------------------------------------------------- */

static bool has_ended(tsh_world *world, message *m) {
    const tshi_tagged *tagged = tshi_tagged_of(world);
    bool ended = true;
    for (int i = 0; i < 3; i++) {
        if (m->request[i].active) tagged->ops->test(world, &m->request[i]);
        ended = ended && !m->request[i].active;
    }
    return ended;
}

bool tshi_tagged_messages_ended(tsh_world *world) {
    tshi_tagged *tagged = tshi_tagged_of(world);
    struct tshi_tagged_message **link = &tagged->given_up;
    while (*link) {
        message *m = *link;
        if (!has_ended(world, m)) {
            link = &m->next;
            continue;
        }
        *link = m->next;
        message_free(world, m);
    }
    return tagged->given_up == NULL;
}
