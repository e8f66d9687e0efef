/* Point to point: messages are held back when they start, and queued together, on their group's communicator.
 *
 * The messages that a rank has started and that are not queued are its batch, all of one group. The batch is queued,
 * between ncclGroupStart and ncclGroupEnd, when the program
 *
 *   waits for one of its messages, or tests one (a blocking message waits for itself);
 *   starts a message in another group;
 *   makes a collective of any group, or another call in which ranks agree (tsh_group_create, ...);
 *   begins or ends a capture, or launches a graph.
 *
 * Invariant: where a batch ends depends on the program's calls, never on time: nothing is queued because the host waits
 * for the GPU, or because works progress. Therefore ranks that start messages one after another, and then wait, queue
 * them in one batch each, in which order does not matter: NCCL runs a batch as one kernel, whose messages all progress.
 * And what is queued is in the order of the calls: of the messages and collectives that ranks call in one order, the
 * first that has not ended is in the first batch that has not ended, on each of its ranks, so it ends.
 *
 * A wait for work that is queued need not queue the batch: peers queue their part of that work before their part of the
 * batch, or never. */
#include "dist/transport/nccl/nccl.h"

static tsh_work *first_held(const tsh_group *group) {
    tsh_work *w = group->messages;
    while (w && !tshi_nccl_is_held(w)) w = w->next;
    return w;
}

/* However late the batch is queued, its messages do not wait for kernels that are queued after their calls. */
static tsh_status record_behind(tsh_world *world) {
    const tshi_cuda_device *device = tshi_nccl_device(world);
    tshi_cuda_use(device);
    return tshi_nccl_check(world, cudaEventRecord(tshi_nccl_of(world)->behind, device->compute), "cudaEventRecord");
}

tsh_status tshi_nccl_message_start(tsh_work *work) {
    tsh_group *group = work->group;
    tshi_nccl_event *e = NULL;
    if (work->call.root == TSH_ANY_RANK)
        return tshi_fail(TSH_ERR_UNSUPPORTED, "recv: NCCL has no receive from any rank: from has to name the sender");
    tshi_nccl *nccl = tshi_nccl_of(group->world);
    if (nccl->batch != group) tshi_nccl_submit_all(group->world);
    tsh_status status = tshi_nccl_failure(group);
    if (status == TSH_OK) status = record_behind(group->world);
    if (status == TSH_OK) status = tshi_nccl_event_take(group->world, &e);
    if (status != TSH_OK) return status;
    work->message_number = tshi_group_note(group, &work->call);
    if (work->call.op == TSH_COLLECTIVE_RECV) work->sender = work->call.root;
    work->state = e;
    nccl->batch = group;
    return TSH_OK;
}

static tsh_status queue_batch(tsh_group *group, const tsh_work *first) {
    tshi_nccl_in_flight *entry;
    tsh_status status = tshi_nccl_failure(group);
    if (status != TSH_OK) return status;
    if (group->state) return tshi_nccl_enqueue(group, &first->call, first->message_number, &entry);
    return tshi_fail(TSH_ERR_STATE,
                     "%s: since tsh_world_recover the group has made no collective, with which it gets a communicator: "
                     "tsh_barrier is one",
                     tsh_collective_name(first->call.op));
}

void tshi_nccl_submit_all(void *of) {
    const tsh_world *world = of;
    tsh_group *group = tshi_nccl_of(world)->batch;
    tsh_work *first = group ? first_held(group) : NULL;
    tshi_nccl_of(world)->batch = NULL;
    if (!first) return;
    tshi_cuda_use(tshi_nccl_device(world));
    tsh_status status = queue_batch(group, first);
    for (tsh_work *w = first; w; w = w->next) {
        if (!tshi_nccl_is_held(w)) continue;
        tsh_status marked = status == TSH_OK ? tshi_nccl_mark_queued(group, w->state) : status;
        if (marked != TSH_OK) tshi_nccl_end(w, marked);
    }
}

void tshi_nccl_submit(tsh_world *world, const tsh_work *work) {
    bool opened = tshi_nccl_of(world) != NULL; /* the ranks also agree while the world is made */
    if (opened && (!work || tshi_nccl_is_held(work))) tshi_nccl_submit_all(world);
}
