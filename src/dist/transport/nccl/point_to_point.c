/* Point to point. A ticket on the control group matches a send with its receive and reports a mismatch to both
 * ranks; then each rank queues its side of the message on the link between the two. */
#include "dist/transport/nccl/nccl.h"

#include <stdio.h>
#include <string.h>

/* --- their memory ------------------------------------------------------------------------------------------------- */

static void message_free(tsh_world *world, tshi_nccl_message *m) {
    if (m->before) cudaEventDestroy(m->before);
    if (m->after) cudaEventDestroy(m->after);
    world->host->ops->memory.release(world->host, m->ticket);
    tshi_free(&world->allocator, m);
}

void tshi_nccl_messages_free(tsh_world *world) {
    tshi_nccl *nccl = tshi_nccl_of(world);
    while (nccl->messages) {
        tshi_nccl_message *m = nccl->messages;
        nccl->messages = m->next;
        message_free(world, m);
    }
}

static tsh_status message_make(tsh_world *world, tshi_nccl_message *m) {
    m->ticket = world->host->ops->memory.alloc(world->host, TSHI_TICKET);
    if (!m->ticket) return TSH_ERR_MEMORY;
    memset(m->ticket, 0, TSHI_TICKET);
    tshi_cuda_use(tshi_nccl_device(world));
    tsh_status status = tshi_cuda_event_new(&m->before);
    return status == TSH_OK ? tshi_cuda_event_new(&m->after) : status;
}

static tsh_status message_take(tsh_world *world, tshi_nccl_message **out) {
    tshi_nccl *nccl = tshi_nccl_of(world);
    tshi_nccl_message *m = nccl->messages;
    *out = m;
    if (m) {
        nccl->messages = m->next;
        return TSH_OK;
    }
    m = tshi_calloc(&world->allocator, 1, sizeof *m);
    if (!m) return TSH_ERR_MEMORY;
    tsh_status status = message_make(world, m);
    *out = status == TSH_OK ? m : NULL;
    if (status != TSH_OK) message_free(world, m);
    return status;
}

/* The link whose stream the message takes; NULL: it has not been made. */
static tshi_nccl_link *way_of(const tshi_nccl_message *m) {
    return m->link->way == TSHI_SHARED ? tshi_nccl_of(m->link->group->world)->shared.link : m->link;
}

void tshi_nccl_message_drop(tsh_work *work) {
    tshi_nccl_message *m = work->state;
    if (!m) return;
    tshi_nccl *nccl = tshi_nccl_of(work->group->world);
    tshi_message_cancel(m->match, "the message has failed");
    tshi_nccl_link *link = m->link ? way_of(m) : NULL;
    if (link && link->busy == work) link->busy = NULL;
    m->match = NULL;
    m->link = NULL;
    m->next = nccl->messages;
    nccl->messages = m;
    work->state = NULL;
}

static void end(tsh_work *work, tsh_status status) {
    tshi_work_end(work, status);
    tshi_nccl_message_drop(work);
}

/* --- matching ----------------------------------------------------------------------------------------------------- */

/* A message without elements takes no link. */
static tsh_status fill_ticket(tsh_work *work, tshi_nccl_message *m) {
    tsh_group *group = work->group;
    tshi_nccl_link *link;
    if (work->call.count == 0) return TSH_OK;
    tsh_status status = tshi_nccl_link_get(group, work->call.root, true, true, &link);
    if (status != TSH_OK) return status;
    const tshi_nccl_ticket ticket = {
        .id = link->id, .number = ++tshi_nccl_of(group->world)->shared.tickets, .offers = link->way != TSHI_SHARED};
    memcpy(m->ticket, &ticket, sizeof ticket);
    return TSH_OK;
}

/* The message comes behind the kernels that are queued now, however late it is matched: calls in between may wait for
 * kernels that are queued later. */
static tsh_status mark(tsh_work *work, tshi_nccl_message *m) {
    const tshi_cuda_device *device = tshi_nccl_device(work->group->world);
    tsh_status status = work->call.op == TSH_COLLECTIVE_SEND ? fill_ticket(work, m) : TSH_OK;
    if (status != TSH_OK) return status;
    return tshi_cuda_fail(cudaEventRecord(m->before, device->compute), "cudaEventRecord");
}

static tsh_status post(tsh_work *work, tshi_nccl_message *m) {
    tshi_comm_call call = work->call;
    call.in = call.op == TSH_COLLECTIVE_SEND ? m->ticket : NULL;
    call.out = call.op == TSH_COLLECTIVE_RECV ? m->ticket : NULL;
    call.ticket = true;
    call.on_device = false;
    m->match = tshi_work_new(work->group->control, &call, NULL, NULL);
    if (!m->match) return TSH_ERR_MEMORY;
    tshi_work_enqueue(m->match);
    return TSH_OK;
}

tsh_status tshi_nccl_message_start(tsh_work *work) {
    tsh_group *group = work->group;
    tsh_world *world = group->world;
    tshi_nccl_message *m = NULL;
    if (tshi_nccl_device(world)->capturing) {
        tshi_cuda_no_capture(world->device, tsh_collective_name(work->call.op));
        return TSH_ERR_STATE;
    }
    tsh_status status = tshi_nccl_failure(group);
    if (status == TSH_OK) status = message_take(world, &m);
    if (status != TSH_OK) return status;
    m->stage = TSHI_UNMATCHED;
    m->turn = TSHI_NOT_YET;
    m->number = tshi_group_note(group, &work->call);
    work->state = m;
    status = mark(work, m);
    if (status == TSH_OK) status = post(work, m);
    if (status != TSH_OK) tshi_nccl_message_drop(work);
    return status;
}

/* Finds the link of a message that is matched. The receive that finds none yet decides on it. */
static tsh_status join_link(tsh_work *work, tshi_nccl_message *m) {
    tsh_group *group = work->group;
    tsh_world *world = group->world;
    bool sends = work->call.op == TSH_COLLECTIVE_SEND;
    int peer = sends ? work->call.root : work->sender;
    const tshi_nccl_ticket *ticket = m->ticket;
    if (work->call.count == 0) return TSH_OK;
    m->peer = group->ranks[peer];
    m->sender = sends ? world->rank : m->peer;
    m->ticketed = ticket->number;
    const tshi_nccl_link *before = tshi_nccl_of(world)->links;
    tsh_status status = tshi_nccl_link_get(group, peer, sends, ticket->offers, &m->link);
    bool asked = !sends && before != tshi_nccl_of(world)->links && ticket->offers && tshi_nccl_of(world)->shared.group;
    if (status != TSH_OK) return tshi_nccl_stop(world, status, true);
    return asked ? tshi_nccl_answer(world, m, m->link->way == TSHI_OWN) : TSH_OK;
}

/* From here on the peer relies on this rank: a failure stops the world. */
static tsh_status end_match(tsh_work *work, tshi_nccl_message *m) {
    tsh_work *match = m->match;
    tsh_status status = tshi_work_finish(match);
    work->sender = match->sender;
    m->match = NULL;
    tsh_work_release(match);
    if (status != TSH_OK) return status;
    m->stage = TSHI_MATCHED;
    m->matched = tshi_clock();
    return join_link(work, m);
}

/* --- moving ------------------------------------------------------------------------------------------------------- */

/* True where an earlier message of this link has not been queued, or an unmatched one may turn out to be of this link:
 * both ranks queue the messages of a link in the order of the calls. */
static bool must_queue(const tsh_work *work) {
    const tshi_nccl_link *link = ((tshi_nccl_message *)work->state)->link;
    for (const tsh_work *w = work->group->messages; w && w != work; w = w->next) {
        const tshi_nccl_message *m = w->state;
        if (w->done || !m || w->call.op != work->call.op || m->stage == TSHI_QUEUED) continue;
        bool may_be = !m->link && (w->call.root == link->peer || w->call.root == TSH_ANY_RANK);
        if (m->link == link || may_be) return true;
    }
    return false;
}

static tsh_status has_turn(tsh_work *work, tshi_nccl_message *m, bool *turn) {
    tshi_nccl_link *link = m->link;
    *turn = false;
    if (link->way == TSHI_SHARED) return tshi_nccl_shared_turn(work, turn);
    if (link->way == TSHI_OFFERED || link->busy || must_queue(work)) return TSH_OK;
    return tshi_nccl_link_open(link, m->ticket, turn);
}

/* Passes the message to NCCL when its turn has come. */
static tsh_status give(tsh_work *work, tshi_nccl_message *m) {
    tsh_world *world = work->group->world;
    tshi_comm_call call = work->call;
    bool turn;
    tsh_status status = has_turn(work, m, &turn);
    if (status != TSH_OK || !turn) return status;
    tshi_nccl_link *link = way_of(m);
    status = tshi_nccl_check(world, cudaStreamWaitEvent(link->stream, m->before, 0), "cudaStreamWaitEvent");
    if (status == TSH_OK)
        status = tshi_nccl_check(world, cudaEventRecord(link->last.before, link->stream), "cudaEventRecord");
    if (status != TSH_OK) return status;
    call.root = m->link->way == TSHI_SHARED ? m->peer : m->link->sends ? 1 : 0;
    snprintf(link->last.name, sizeof link->last.name, "%s #%llu", tsh_collective_name(call.op),
             (unsigned long long)m->number);
    link->result = tshi_nccl_move(tshi_nccl_of(world), link->group, &call, tshi_nccl_link_comm(link), link->stream);
    link->busy = work;
    m->stage = TSHI_ENQUEUEING;
    return TSH_OK;
}

static tsh_status queued(tsh_work *work, tshi_nccl_message *m) {
    tsh_world *world = work->group->world;
    tshi_nccl_link *link = way_of(m);
    bool done = false;
    tsh_status status = tshi_nccl_poll(world, tshi_nccl_link_comm(link), link->result, link->last.name, &done);
    if (status != TSH_OK || !done) return status;
    status = tshi_nccl_check(world, cudaEventRecord(m->after, link->stream), "cudaEventRecord");
    if (status == TSH_OK)
        status = tshi_nccl_check(world, cudaEventRecord(link->last.after, link->stream), "cudaEventRecord");
    link->last.group = link->group;
    link->last.ready_since = 0;
    link->busy = NULL;
    m->stage = TSHI_QUEUED;
    return status;
}

void tshi_nccl_message_progress(tsh_work *work) {
    tsh_world *world = work->group->world;
    const tshi_nccl *nccl = tshi_nccl_of(world);
    tshi_nccl_message *m = work->state;
    tsh_status status = nccl->failed == TSH_OK ? TSH_OK : tshi_fail(nccl->failed, "%s", nccl->message);
    if (status == TSH_OK && m->match && !m->match->linked) status = end_match(work, m);
    if (status == TSH_OK) status = tshi_nccl_shared_progress(world);
    bool nothing = work->call.count == 0 && m->stage == TSHI_MATCHED;
    if (status == TSH_OK && m->stage == TSHI_MATCHED && !nothing) status = give(work, m);
    if (status == TSH_OK && m->stage == TSHI_ENQUEUEING) status = queued(work, m);
    if (status != TSH_OK || nothing) {
        end(work, status);
        return;
    }
    if (m->stage != TSHI_QUEUED) return;
    cudaError_t error = cudaEventQuery(m->after);
    if (error != cudaErrorNotReady) end(work, tshi_nccl_check(world, error, "cudaEventQuery"));
}

const tsh_work *tshi_nccl_message_match(const tsh_work *work) {
    const tshi_nccl_message *m = work->state;
    return m && m->match && m->match->linked ? m->match : NULL;
}

bool tshi_nccl_message_queued(const tsh_work *work) {
    const tshi_nccl_message *m = work->state;
    return m && m->stage == TSHI_QUEUED;
}

bool tshi_nccl_messages_queued(const tsh_group *group) {
    const tsh_work *w = group->messages;
    while (w && !tshi_nccl_message_queued(w)) w = w->next;
    return w != NULL;
}

void tshi_nccl_message_join(tsh_work *work) {
    tsh_world *world = work->group->world;
    tshi_nccl_message *m = work->state;
    const tshi_cuda_device *device = tshi_nccl_device(world);
    if (!m || m->stage != TSHI_QUEUED || device->managed) return;
    end(work, tshi_nccl_check(world, cudaStreamWaitEvent(device->compute, m->after, 0), "cudaStreamWaitEvent"));
}
