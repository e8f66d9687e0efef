/* What is queued on the communication streams: calls, whose entries in nccl->calls the host watches, and the events
 * that works wait for. */
#include "dist/transport/nccl/nccl.h"

#include <stdio.h>

#define LEFT_AFTER       1.0
#define GRAPH_LEFT_AFTER 30.0 /* kernels of its own, besides the calls */

/* --- events ------------------------------------------------------------------------------------------------------- */

tsh_status tshi_nccl_event_take(tsh_world *world, tshi_nccl_event **out) {
    tshi_nccl *nccl = tshi_nccl_of(world);
    *out = nccl->events;
    if (*out) {
        nccl->events = (*out)->next;
        **out = (tshi_nccl_event){.event = (*out)->event};
        return TSH_OK;
    }
    tshi_cuda_use(tshi_nccl_device(world));
    tshi_nccl_event *e = tshi_calloc(&world->allocator, 1, sizeof *e);
    if (!e) return TSH_ERR_MEMORY;
    tsh_status status = tshi_cuda_event_new(&e->event);
    if (status == TSH_OK)
        *out = e;
    else
        tshi_free(&world->allocator, e);
    return status;
}

static void event_give(tsh_world *world, tshi_nccl_event *e) {
    tshi_nccl *nccl = tshi_nccl_of(world);
    if (!e) return;
    e->next = nccl->events;
    nccl->events = e;
}

/* --- calls -------------------------------------------------------------------------------------------------------- */

/* An entry of nccl->calls for the next call; waits until one is free. */
static tsh_status find_entry(tsh_world *world, tshi_nccl_in_flight **out) {
    tshi_nccl *nccl = tshi_nccl_of(world);
    *out = &nccl->calls[TSHI_NCCL_AHEAD];
    if (tshi_nccl_device(world)->capturing) return TSH_OK;
    const tshi_nccl_in_flight *oldest = tshi_nccl_oldest(nccl);
    bool full = nccl->queued - nccl->done == TSHI_NCCL_AHEAD;
    *out = &nccl->calls[nccl->queued % TSHI_NCCL_AHEAD];
    return full ? tshi_nccl_wait_event(world, oldest->after) : TSH_OK;
}

static void count_entry(tshi_nccl_in_flight *entry, tsh_group *group, const char *call, uint64_t number,
                        double left_after) {
    entry->group = group;
    entry->call = call;
    entry->number = number;
    entry->collective = false;
    entry->left_after = left_after;
    entry->since = 0;
    if (!tshi_nccl_device(group->world)->capturing) tshi_nccl_of(group->world)->queued++;
}

static ncclResult_t pass(tsh_group *group, const tshi_comm_call *call, cudaStream_t stream) {
    ncclComm_t comm = group->state;
    if (tshi_is_message(call->op)) return tshi_nccl_move_messages(group, comm, stream);
    return tshi_nccl_move(tshi_nccl_of(group->world), group, call, comm, stream);
}

/* The entry's `before` comes behind everything that was queued on the compute stream before the call. */
static tsh_status record_before(tsh_world *world, tshi_nccl_in_flight *entry, bool messages) {
    tshi_nccl *nccl = tshi_nccl_of(world);
    cudaEvent_t spare = entry->before;
    if (!messages)
        return tshi_nccl_check(world, cudaEventRecord(spare, tshi_nccl_device(world)->compute), "cudaEventRecord");
    entry->before = nccl->behind;
    nccl->behind = spare;
    return TSH_OK;
}

tsh_status tshi_nccl_enqueue(tsh_group *group, const tshi_comm_call *call, uint64_t number, tshi_nccl_in_flight **out) {
    tsh_world *world = group->world;
    const tshi_cuda_device *device = tshi_nccl_device(world);
    cudaStream_t stream = device->communication[group->stream];
    ncclComm_t comm = group->state;
    tshi_nccl_in_flight *entry = NULL;
    tsh_status status = find_entry(world, &entry);
    if (status == TSH_OK) status = record_before(world, entry, tshi_is_message(call->op));
    if (status == TSH_OK)
        status = tshi_nccl_check(world, cudaStreamWaitEvent(stream, entry->before, 0), "cudaStreamWaitEvent");
    if (status != TSH_OK) return status;
    if (device->capturing) tshi_cuda_graph_hold(tshi_nccl_device(world), group);
    snprintf(entry->name, sizeof entry->name, "%s #%llu", tsh_collective_name(call->op), (unsigned long long)number);
    status = tshi_nccl_settle(world, comm, pass(group, call, stream), entry->name);
    if (status == TSH_OK) status = tshi_nccl_check(world, cudaEventRecord(entry->after, stream), "cudaEventRecord");
    if (status != TSH_OK) return status;
    count_entry(entry, group, tsh_collective_name(call->op), number, LEFT_AFTER);
    entry->collective = !tshi_is_message(call->op);
    *out = entry;
    return TSH_OK;
}

tsh_status tshi_nccl_mark_queued(tsh_group *group, tshi_nccl_event *e) {
    tsh_world *world = group->world;
    cudaStream_t stream = tshi_nccl_device(world)->communication[group->stream];
    tsh_status status = tshi_nccl_check(world, cudaEventRecord(e->event, stream), "cudaEventRecord");
    e->capture = tshi_cuda_capture(tshi_nccl_device(world));
    e->queued = status == TSH_OK;
    return status;
}

tsh_status tshi_nccl_launch(void *of, cudaGraphExec_t exec) {
    tsh_world *world = of;
    tshi_nccl *nccl = tshi_nccl_of(world);
    cudaStream_t stream = tshi_nccl_device(world)->compute;
    tshi_nccl_in_flight *entry = NULL;
    tsh_status status = tshi_nccl_failure(world->group);
    if (status == TSH_OK) status = find_entry(world, &entry);
    if (status == TSH_OK) status = tshi_nccl_check(world, cudaEventRecord(entry->before, stream), "cudaEventRecord");
    if (status == TSH_OK) status = tshi_nccl_check(world, cudaGraphLaunch(exec, stream), "cudaGraphLaunch");
    if (status == TSH_OK) status = tshi_nccl_check(world, cudaEventRecord(entry->after, stream), "cudaEventRecord");
    if (status != TSH_OK) return status;
    snprintf(entry->name, sizeof entry->name, "graph_launch");
    count_entry(entry, world->group, entry->name, nccl->queued, GRAPH_LEFT_AFTER);
    return TSH_OK;
}

/* --- the end of works --------------------------------------------------------------------------------------------- */

void tshi_nccl_drop(tsh_work *work) {
    event_give(work->group->world, work->state);
    work->state = NULL;
}

void tshi_nccl_end(tsh_work *work, tsh_status status) {
    tshi_nccl_drop(work);
    tshi_work_end(work, status);
}
