/* Point to point over MPI.
 *
 *   message   direction              number in tag   carries
 *   header    sender to receiver     none            count, kind, number; up to INLINE_BYTES of data
 *   data      sender to receiver     its number      the data, if it is larger
 *   reply     receiver to sender     its number      the status: whether the message matches its receive
 *
 * Invariant: both sides return the same status. The sender ends only after the reply, and the receiver takes the data
 * of a mismatched message too, into memory of its own, so that the sender's request ends. */
#include "dist/transport/mpi/mpi.h"

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

#define HEADER_BYTES ((int)offsetof(header, data))

typedef struct reply {
    int32_t status;
    char words[TSHI_LINE];
} reply;

typedef struct tshi_mpi_message {
    header header;
    reply reply;
    MPI_Request request[3];
    bool has_header;     /* received, on the receiver */
    bool moves;          /* the data is in flight between the memory of both callers */
    double trouble_seen; /* when this rank first saw a failure during this message; 0: it has not */
    int peer;
    size_t moved;                  /* bytes of the data already passed to MPI */
    void *dropping;                /* memory for the data of a mismatched message */
    struct tshi_mpi_message *next; /* in mpi->given_up */
} message;

static void message_free(tsh_world *world, message *m) {
    if (m->dropping) world->host->ops->memory.release(world->host, m->dropping);
    tshi_pool_give(&tshi_mpi_of(world)->messages, m);
}

static void message_end(tsh_work *work, tsh_status status) {
    message_free(work->group->world, work->state);
    work->state = NULL;
    tshi_work_end(work, status);
}

/* --- large data --------------------------------------------------------------------------------------------------- */

static MPI_Comm comm_of(const tsh_work *work) {
    return tshi_mpi_of(work->group->world)->comm;
}

static int peer_of(const tsh_work *work) {
    return work->group->ranks[((const message *)work->state)->peer];
}

/* Starts the next chunk of the data, if any is left. */
static int move_chunk(tsh_work *work, size_t bytes, void *data, bool send) {
    message *m = work->state;
    size_t chunk = (size_t)tshi_mpi_of(work->group->world)->chunk, rest = bytes - m->moved;
    if (rest == 0) return MPI_SUCCESS;
    int n = (int)(rest < chunk ? rest : chunk), tag = tshi_mpi_tag(work->group, TSHI_FOR_DATA, m->header.number);
    char *at = (char *)data + m->moved;
    m->moved += (size_t)n;
    if (send) return MPI_Isend(at, n, MPI_BYTE, peer_of(work), tag, comm_of(work), &m->request[1]);
    return MPI_Irecv(at, n, MPI_BYTE, peer_of(work), tag, comm_of(work), &m->request[1]);
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
    h->number = tshi_mpi_group_of(work->group)->sent[call->root]++;
    h->bytes = bytes <= INLINE_BYTES ? (uint32_t)bytes : 0;
    if (h->bytes) work->group->world->host->ops->copy.to_host(work->group->world->host, bytes, call->in, h->data);
}

static int send_start(tsh_work *work) {
    message *m = work->state;
    m->peer = work->call.root;
    fill_header(work, m);
    int error = MPI_Irecv(&m->reply, (int)sizeof m->reply, MPI_BYTE, peer_of(work),
                          tshi_mpi_tag(work->group, TSHI_FOR_REPLY, m->header.number), comm_of(work), &m->request[2]);
    if (error == MPI_SUCCESS) {
        error = MPI_Isend(&m->header, HEADER_BYTES + (int)m->header.bytes, MPI_BYTE, peer_of(work),
                          tshi_mpi_tag(work->group, TSHI_FOR_HEADER, 0), comm_of(work), &m->request[0]);
    }
    if (m->header.bytes) m->moved = m->header.bytes;
    return error == MPI_SUCCESS ? move_chunk(work, bytes_of(work), (void *)(uintptr_t)work->call.in, true) : error;
}

static int send_progress(tsh_work *work) {
    message *m = work->state;
    int done = 0, error = MPI_SUCCESS;
    if (m->moved < bytes_of(work)) {
        error = MPI_Test(&m->request[1], &done, MPI_STATUS_IGNORE);
        if (error != MPI_SUCCESS || !done) return error;
        return move_chunk(work, bytes_of(work), (void *)(uintptr_t)work->call.in, true);
    }
    error = MPI_Testall(3, m->request, &done, MPI_STATUSES_IGNORE);
    if (error != MPI_SUCCESS || !done) return error;
    tsh_status status = (tsh_status)m->reply.status;
    if (status != TSH_OK) tshi_fail(status, "%.*s", TSHI_LINE - 1, m->reply.words);
    message_end(work, status);
    return MPI_SUCCESS;
}

/* --- receiving ---------------------------------------------------------------------------------------------------- */

static int receive_start(tsh_work *work) {
    message *m = work->state;
    m->peer = work->call.root;
    int from = m->peer == TSH_ANY_RANK ? MPI_ANY_SOURCE : peer_of(work);
    return MPI_Irecv(&m->header, (int)sizeof m->header, MPI_BYTE, from, tshi_mpi_tag(work->group, TSHI_FOR_HEADER, 0),
                     comm_of(work), &m->request[0]);
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
static int receive_data(tsh_work *work) {
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
        if (!to) return MPI_ERR_NO_MEM;
    }
    int error = move_chunk(work, bytes, to, false);
    if (error != MPI_SUCCESS) return error;
    m->moves = h->bytes == 0;
    return MPI_Isend(&m->reply, (int)(good ? sizeof m->reply.status : sizeof m->reply), MPI_BYTE, peer_of(work),
                     tshi_mpi_tag(work->group, TSHI_FOR_REPLY, h->number), comm_of(work), &m->request[2]);
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

static int receive_progress(tsh_work *work) {
    message *m = work->state;
    const header *h = &m->header;
    int done = 0, error;
    if (!m->has_header) {
        MPI_Status from;
        error = MPI_Test(&m->request[0], &done, &from);
        if (error != MPI_SUCCESS || !done) return error;
        m->has_header = true;
        m->peer = tsh_group_rank_of(work->group, from.MPI_SOURCE);
        /* After a failure the sender may have given up the data that follows its header. */
        if (h->bytes == 0 && tshi_mpi_failure(work->group->world) != TSH_OK) return MPI_SUCCESS;
        error = receive_data(work);
        if (error != MPI_SUCCESS) return error;
    }
    size_t bytes = tshi_message_bytes(h->kind, h->count);
    while (m->moved < bytes) {
        error = MPI_Test(&m->request[1], &done, MPI_STATUS_IGNORE);
        if (error != MPI_SUCCESS || !done) return error;
        error = move_chunk(work, bytes, m->dropping ? m->dropping : work->call.out, false);
        if (error != MPI_SUCCESS) return error;
    }
    error = MPI_Testall(3, m->request, &done, MPI_STATUSES_IGNORE);
    if (error == MPI_SUCCESS && done) receive_end(work);
    return error;
}

/* --- both --------------------------------------------------------------------------------------------------------- */

tsh_status tshi_mpi_message_start(tsh_work *work) {
    tsh_world *world = work->group->world;
    const tshi_comm_call *call = &work->call;
    tsh_status status = tshi_mpi_failure(world);
    if (status != TSH_OK) return status;
    message *m = tshi_pool_take(&tshi_mpi_of(world)->messages, &world->allocator, sizeof *m);
    if (!m) return TSH_ERR_MEMORY;
    for (int i = 0; i < 3; i++) m->request[i] = MPI_REQUEST_NULL;
    work->state = m;
    work->message_number = tshi_group_note(work->group, call);
    int error = call->op == TSH_COLLECTIVE_SEND ? send_start(work) : receive_start(work);
    if (error == MPI_SUCCESS) return TSH_OK;
    return tshi_mpi_error(world, tsh_collective_name(call->op), error);
}

/* Every rank that can be the message's peer has left. */
static bool peer_left(const tsh_work *work) {
    const message *m = work->state;
    const tsh_group *group = work->group;
    bool left = true;
    for (int i = 0; i < group->size; i++) {
        bool awaited = i != group->rank && (m->peer == TSH_ANY_RANK || m->peer == i);
        if (awaited) left = tshi_mpi_has_left(group->world, group->ranks[i], TSHI_GRACE) && left;
    }
    return left;
}

/* The message may be given up: no data is in flight between the memory of both callers, and TSHI_GRACE after the
 * failure none will be. */
static bool may_go(const tsh_work *work) {
    message *m = work->state;
    int replied = 0;
    bool sends = work->call.op == TSH_COLLECTIVE_SEND;
    if (work->group->world->machine.broken != TSH_OK || (sends ? m->header.bytes != 0 : !m->moves)) return true;
    if (sends && !m->moves) {
        MPI_Test(&m->request[2], &replied, MPI_STATUS_IGNORE);
        m->moves = replied != 0;
    }
    if (m->trouble_seen == 0) m->trouble_seen = tshi_clock();
    return !m->moves && tshi_clock() - m->trouble_seen >= TSHI_GRACE;
}

/* The error with which to give up the message, if there is one and may_go allows it; else TSH_OK. */
static tsh_status look(tsh_work *work) {
    tshi_mpi *mpi = tshi_mpi_of(work->group->world);
    if (++mpi->looks % LOOK_EVERY != 0 && !tshi_control_has_failed(work->group->world)) return TSH_OK;
    tsh_status status = tshi_mpi_failure(work->group->world);
    const message *m = work->state;
    if (status != TSH_OK && may_go(work)) return status;
    if (!peer_left(work)) return TSH_OK;
    if (m->peer == TSH_ANY_RANK) return tshi_fail(TSH_ERR_PEER, "recv: all peers have left");
    return tshi_fail(TSH_ERR_PEER, "rank %d has left (it exited, or destroyed its world) before %s",
                     work->group->ranks[m->peer], tsh_collective_name(work->call.op));
}

void tshi_mpi_message_progress(tsh_work *work) {
    int error = work->call.op == TSH_COLLECTIVE_SEND ? send_progress(work) : receive_progress(work);
    if (work->done) return;
    tsh_status status = error == MPI_SUCCESS
                            ? look(work)
                            : tshi_mpi_error(work->group->world, tsh_collective_name(work->call.op), error);
    if (status == TSH_OK) return;
    tshi_failure why;
    tshi_failure_keep(&why, status);
    tshi_mpi_message_drop(work);
    tshi_work_end(work, tshi_failure_report(&why));
}

/* Cancels the message. MPI may still read or write its memory, which is kept until a recovery. */
void tshi_mpi_message_drop(tsh_work *work) {
    message *m = work->state;
    tshi_mpi *mpi = tshi_mpi_of(work->group->world);
    double deadline = tshi_clock() + TSHI_GRACE;
    bool receives = work->call.op == TSH_COLLECTIVE_RECV;
    if (receives && !m->has_header) tshi_mpi_end_receive(&m->request[0], deadline);
    if (receives) tshi_mpi_end_receive(&m->request[1], deadline);
    if (!receives) tshi_mpi_end_receive(&m->request[2], deadline);
    m->next = mpi->given_up;
    mpi->given_up = m;
    work->state = NULL;
}

/* --- after a failure ---------------------------------------------------------------------------------------------- */

bool tshi_mpi_messages_ended(tsh_world *world) {
    tshi_mpi *mpi = tshi_mpi_of(world);
    message **link = &mpi->given_up;
    while (*link) {
        message *m = *link;
        int done = 0;
        if (MPI_Testall(3, m->request, &done, MPI_STATUSES_IGNORE) != MPI_SUCCESS || !done) {
            link = &m->next;
            continue;
        }
        *link = m->next;
        message_free(world, m);
    }
    return mpi->given_up == NULL;
}

/* One message at a time: the one after it can match only when this one has come. */
tsh_status tshi_mpi_messages_discard(tsh_world *world) {
    tshi_mpi *mpi = tshi_mpi_of(world);
    MPI_Status status;
    int there = 1, bytes = 0, error = MPI_SUCCESS;
    while (error == MPI_SUCCESS && there) {
        error = MPI_Test(&mpi->discarding, &there, MPI_STATUS_IGNORE); /* a null request is done */
        if (error != MPI_SUCCESS || !there) break;
        tshi_free(&world->allocator, mpi->discarded);
        mpi->discarded = NULL;
        error = MPI_Iprobe(MPI_ANY_SOURCE, MPI_ANY_TAG, mpi->comm, &there, &status);
        if (error != MPI_SUCCESS || !there) break;
        MPI_Get_count(&status, MPI_BYTE, &bytes);
        mpi->discarded = tshi_calloc(&world->allocator, 1, (size_t)bytes + 1);
        if (!mpi->discarded) return tshi_control_stick(world, TSH_ERR_MEMORY, "world_recover: no memory");
        error =
            MPI_Irecv(mpi->discarded, bytes, MPI_BYTE, status.MPI_SOURCE, status.MPI_TAG, mpi->comm, &mpi->discarding);
    }
    return error == MPI_SUCCESS ? TSH_OK : tshi_mpi_error(world, "world_recover", error);
}
