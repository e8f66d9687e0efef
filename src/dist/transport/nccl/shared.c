/* The shared link: the messages of links that the GPU has no queues for.
 *
 * A rank has one stream and, with all ranks of the world, one communicator for all of them. A message is queued there
 * when nothing is left that it could wait for on either GPU: both have come to the call, and neither has an earlier
 * message on its shared link that has not ended. The two hosts find this out with notes, over the control group. The
 * higher rank of the two says that its GPU has come to the call. When the lower rank's GPU has come there too and its
 * shared link is free, the lower rank takes its link and asks for the higher one's; that rank takes its own when it is
 * free, agrees, and queues the message; the lower rank queues it on hearing so.
 *
 * Why it ends. A message that both sides have queued is first on both streams, on queues that no other stream shares,
 * and ends. A link that is taken is that of a higher rank that has just agreed, whose message the peer's host queues
 * when it hears of it; or that of a lower rank that waits for a higher one's. Where links are waited for, then, they
 * are waited for in the order of the ranks: the highest link in any chain of waits has a message that ends, and so has
 * the chain. Nothing is taken before both GPUs have come to the call, so no link is held for the sake of kernels or
 * calls that may wait for another message. A program whose calls end where each waits for its data therefore ends
 * here, while the hosts make calls of the library; within the library every wait reads notes. */
#include "dist/transport/nccl/nccl.h"

#include <string.h>

typedef enum note_kind { ACCEPT, REFUSE, READY, ASK, AGREE } note_kind;

/* About a message, which its sender has numbered. */
typedef struct note {
    int32_t kind, sender; /* a note_kind; a rank of the world */
    uint64_t number;
} note;

/* Memory and work of a note in flight. */
struct tshi_nccl_note_slot {
    tsh_work *work;
    void *bytes; /* TSHI_TICKET, of world->host */
    struct tshi_nccl_note_slot *next;
};

/* --- its life ----------------------------------------------------------------------------------------------------- */

static void note_slot_free(tsh_world *world, tshi_nccl_note_slot *slot) {
    tshi_message_cancel(slot->work, "the note is not needed any more");
    world->host->ops->memory.release(world->host, slot->bytes);
    tshi_free(&world->allocator, slot);
}

void tshi_nccl_shared_close(tsh_world *world) {
    tshi_nccl_shared *shared = &tshi_nccl_of(world)->shared;
    if (shared->receive) note_slot_free(world, shared->receive);
    shared->receive = NULL;
    while (shared->sent) {
        tshi_nccl_note_slot *slot = shared->sent;
        shared->sent = slot->next;
        note_slot_free(world, slot);
    }
}

/* --- notes -------------------------------------------------------------------------------------------------------- */

static tsh_status note_slot_new(tsh_world *world, tshi_nccl_note_slot **out) {
    tsh_device *host = world->host;
    tshi_nccl_note_slot *slot = tshi_calloc(&world->allocator, 1, sizeof *slot);
    *out = slot;
    if (!slot) return TSH_ERR_MEMORY;
    slot->bytes = host->ops->memory.alloc(host, TSHI_TICKET);
    if (slot->bytes) {
        memset(slot->bytes, 0, TSHI_TICKET);
        return TSH_OK;
    }
    tshi_free(&world->allocator, slot);
    *out = NULL;
    return TSH_ERR_MEMORY;
}

static tsh_status note_slot_post(tsh_world *world, tshi_nccl_note_slot *slot, tsh_collective op, int peer) {
    const tshi_comm_call call = {.op = op,
                                 .dtype = TSH_UINT8,
                                 .root = peer,
                                 .count = 1,
                                 .in = op == TSH_COLLECTIVE_SEND ? slot->bytes : NULL,
                                 .out = op == TSH_COLLECTIVE_RECV ? slot->bytes : NULL,
                                 .ticket = true};
    slot->work = tshi_work_new(tshi_nccl_of(world)->shared.group->control, &call, NULL, NULL);
    if (!slot->work) return TSH_ERR_MEMORY;
    tshi_work_enqueue(slot->work);
    return TSH_OK;
}

/* A slot to send from: one whose note has arrived, or a new one. */
static tsh_status note_slot_take(tsh_world *world, tshi_nccl_note_slot **out) {
    tshi_nccl_shared *shared = &tshi_nccl_of(world)->shared;
    tshi_nccl_note_slot **at = &shared->sent;
    while (*at && (*at)->work && (*at)->work->linked) at = &(*at)->next;
    *out = *at;
    if (!*out) return note_slot_new(world, out);
    *at = (*out)->next;
    tsh_work_release((*out)->work);
    (*out)->work = NULL;
    return TSH_OK;
}

/* The peer waits for the note, so a failure stops the world. */
static tsh_status tell(tsh_world *world, note_kind kind, const tshi_nccl_message *m) {
    tshi_nccl_shared *shared = &tshi_nccl_of(world)->shared;
    tshi_nccl_note_slot *slot;
    tsh_status status = note_slot_take(world, &slot);
    if (status != TSH_OK) return tshi_nccl_stop(world, status, true);
    const note n = {.kind = kind, .sender = m->sender, .number = m->ticketed};
    memcpy(slot->bytes, &n, sizeof n);
    slot->next = shared->sent;
    shared->sent = slot;
    status = note_slot_post(world, slot, TSH_COLLECTIVE_SEND, m->peer);
    return status == TSH_OK ? TSH_OK : tshi_nccl_stop(world, status, true);
}

tsh_status tshi_nccl_answer(tsh_world *world, const tshi_nccl_message *m, bool accepts) {
    return tell(world, accepts ? ACCEPT : REFUSE, m);
}

/* The message that the note is about; NULL: this rank has not polled its match yet, which the sender of the note has
 * seen. */
static tshi_nccl_message *find(const tsh_world *world, const note *n) {
    for (const tsh_group *g = world->groups; g; g = g->next) {
        for (const tsh_work *w = g->ops == world->data ? g->messages : NULL; w; w = w->next) {
            tshi_nccl_message *m = w->state;
            bool is = m && m->stage == TSHI_MATCHED && m->sender == n->sender && m->ticketed == n->number;
            if (is) return m;
        }
    }
    return NULL;
}

static void heed(tsh_world *world, const note *n, tshi_nccl_message *m) {
    if (n->kind == ACCEPT || n->kind == REFUSE)
        tshi_nccl_link_decide(world, m->link, n->kind == ACCEPT);
    else
        m->turn = n->kind == AGREE ? TSHI_AGREED : TSHI_NOTE_RECEIVED;
}

/* Reads the notes that have come. One that comes before its time stays where it is, with those behind it, until the
 * next poll: its match is here already. */
static tsh_status read_notes(tsh_world *world) {
    tshi_nccl_shared *shared = &tshi_nccl_of(world)->shared;
    tsh_status status = TSH_OK;
    if (!shared->receive) {
        status = note_slot_new(world, &shared->receive);
        if (status == TSH_OK) status = note_slot_post(world, shared->receive, TSH_COLLECTIVE_RECV, TSH_ANY_RANK);
    }
    while (status == TSH_OK && !shared->receive->work->linked) {
        note received;
        /* A failure is the world's, whose watch reports it. */
        if (shared->receive->work->status != TSH_OK) return TSH_OK;
        memcpy(&received, shared->receive->bytes, sizeof received);
        tshi_nccl_message *m = find(world, &received);
        if (!m) return TSH_OK;
        heed(world, &received, m);
        tsh_work_release(shared->receive->work);
        shared->receive->work = NULL;
        status = note_slot_post(world, shared->receive, TSH_COLLECTIVE_RECV, TSH_ANY_RANK);
    }
    return status == TSH_OK ? TSH_OK : tshi_nccl_stop(world, status, true);
}

/* --- a message's turn --------------------------------------------------------------------------------------------- */

/* *over: the GPU has passed the event. An error stops the world. */
static tsh_status is_over(tsh_world *world, cudaEvent_t event, bool *over) {
    cudaError_t error = cudaEventQuery(event);
    *over = error == cudaSuccess;
    return error == cudaErrorNotReady ? TSH_OK : tshi_nccl_check(world, error, "cudaEventQuery");
}

static tsh_status take(tsh_work *work, bool *taken) {
    tsh_world *world = work->group->world;
    tshi_nccl_link *link;
    *taken = false;
    tsh_status status = tshi_nccl_link_shared(world, &link);
    if (status != TSH_OK) return tshi_nccl_stop(world, status, true);
    if (link->busy) return TSH_OK;
    *taken = !link->last.group;
    if (!*taken) status = is_over(world, link->last.after, taken);
    if (*taken) link->busy = work;
    return status;
}

/* The deadline does not count the time of kernels before the call. */
static tsh_status has_come(tsh_world *world, tshi_nccl_message *m, bool *come) {
    tsh_status status = is_over(world, m->before, come);
    if (!*come) m->matched = tshi_clock();
    return status;
}

static tsh_status lower_turn(tsh_work *work, tshi_nccl_message *m) {
    tsh_world *world = work->group->world;
    bool come = false, taken = false;
    if (m->turn != TSHI_NOTE_RECEIVED) return TSH_OK;
    tsh_status status = has_come(world, m, &come);
    if (status == TSH_OK && come) status = take(work, &taken);
    if (status != TSH_OK || !taken) return status;
    m->turn = TSHI_NOTE_SENT;
    return tell(world, ASK, m);
}

static tsh_status higher_turn(tsh_work *work, tshi_nccl_message *m) {
    tsh_world *world = work->group->world;
    bool come = false, taken = false;
    tsh_status status = TSH_OK;
    if (m->turn == TSHI_NOT_YET) {
        status = has_come(world, m, &come);
        if (status != TSH_OK || !come) return status;
        m->turn = TSHI_NOTE_SENT;
        return tell(world, READY, m);
    }
    if (m->turn == TSHI_NOTE_RECEIVED) status = take(work, &taken);
    if (status != TSH_OK || !taken) return status;
    m->turn = TSHI_AGREED;
    return tell(world, AGREE, m);
}

tsh_status tshi_nccl_shared_turn(tsh_work *work, bool *turn) {
    tsh_world *world = work->group->world;
    tshi_nccl_message *m = work->state;
    tsh_status status = world->rank < m->peer ? lower_turn(work, m) : higher_turn(work, m);
    *turn = m->turn == TSHI_AGREED;
    return status;
}

tsh_status tshi_nccl_shared_progress(tsh_world *world) {
    return tshi_nccl_of(world)->shared.group ? read_notes(world) : TSH_OK;
}
