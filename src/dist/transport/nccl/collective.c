/* Groups on GPUs: collectives are queued on the communication stream, in order, with events for what must wait. */
#include "base/hash.h"
#include "dist/transport/nccl/nccl.h"

#include <limits.h>
#include <stdio.h>
#include <string.h>

#define LEFT_AFTER       1.0
#define SPIN             500e-6 /* s; a host that waits sleeps after it */
#define GRAPH_LEFT_AFTER 30.0   /* kernels of its own, besides the calls */

/* --- events ------------------------------------------------------------------------------------------------------- */

static tsh_status event_take(tsh_world *world, tshi_nccl_event **out) {
    tshi_nccl *nccl = tshi_nccl_of(world);
    *out = nccl->events;
    if (*out) {
        nccl->events = (*out)->next;
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

/* --- queuing ------------------------------------------------------------------------------------------------------ */

/* Without TSHARD_CHECK the ranks do not agree on calls, so a call that cannot be made fails the world, like a step that
 * has failed, until the world recovers. */
static tsh_status cannot(tsh_group *group, const tshi_comm_call *call) {
    char message[TSHI_MESSAGE_SIZE];
    snprintf(message, sizeof message, "%s", tsh_error_message());
    group->world->control->fail(group->world, message, (tshi_tape_step){0});
    return tshi_fail(call->failed, "%s", message);
}

static tsh_status ready(tsh_group *group, const tshi_comm_call *call) {
    const tshi_nccl *nccl = tshi_nccl_of(group->world);
    char message[TSHI_MESSAGE_SIZE];
    if (call->failed != TSH_OK) snprintf(message, sizeof message, "%s", tsh_error_message());
    tsh_status status = tshi_nccl_failure(group);
    if (status != TSH_OK) return status;
    if (call->failed != TSH_OK) tshi_fail(call->failed, "%s", message);
    /* Every rank gets this error by itself. */
    if (call->failed == TSH_ERR_UNSUPPORTED) return call->failed;
    if (nccl->checked) status = group->control->ops->compare(group->control, call);
    if (!nccl->checked && call->failed != TSH_OK) status = cannot(group, call);
    /* After a recovery. */
    if (status == TSH_OK && !group->state) status = tshi_nccl_comm_create(group, TSH_OK);
    return status;
}

/* An entry of nccl->calls for the next call; waits until one is free. */
static tsh_status find_entry(tsh_world *world, tshi_nccl_in_flight **out) {
    tshi_nccl *nccl = tshi_nccl_of(world);
    *out = &nccl->calls[TSHI_NCCL_AHEAD];
    if (tshi_nccl_device(world)->capturing) return TSH_OK;
    for (int polls = 0; tshi_nccl_oldest(nccl) && nccl->queued - nccl->done == TSHI_NCCL_AHEAD; polls++) {
        tsh_status status = tshi_nccl_watch(world);
        if (status != TSH_OK) return status;
        tshi_cuda_nap(polls);
    }
    *out = &nccl->calls[nccl->queued % TSHI_NCCL_AHEAD];
    return TSH_OK;
}

static tsh_status queue(tsh_group *group, const tshi_comm_call *call, tshi_nccl_in_flight **out) {
    tsh_world *world = group->world;
    tshi_nccl *nccl = tshi_nccl_of(world);
    const tshi_cuda_device *device = tshi_nccl_device(world);
    cudaStream_t stream = device->communication[group->stream];
    tshi_nccl_in_flight *entry = NULL;
    uint64_t number = tshi_group_note(group, call);
    tsh_status status = ready(group, call);
    if (status == TSH_OK) status = find_entry(world, &entry);
    /* Behind everything that is queued on the device's compute stream so far. */
    if (status == TSH_OK)
        status = tshi_nccl_check(world, cudaEventRecord(entry->before, device->compute), "cudaEventRecord");
    if (status == TSH_OK) {
        status = tshi_nccl_check(world, cudaStreamWaitEvent(stream, entry->before, 0), "cudaStreamWaitEvent");
    }
    if (status != TSH_OK) return status;
    if (device->capturing) tshi_cuda_graph_hold(tshi_nccl_device(world), group);
    snprintf(entry->name, sizeof entry->name, "%s #%llu", tsh_collective_name(call->op), (unsigned long long)number);
    ncclComm_t comm = group->state;
    ncclResult_t result = tshi_nccl_move(nccl, group, call, comm, stream);
    status = tshi_nccl_settle(world, comm, result, entry->name);
    if (status == TSH_OK) status = tshi_nccl_check(world, cudaEventRecord(entry->after, stream), "cudaEventRecord");
    if (status != TSH_OK) return status;
    entry->group = group;
    entry->ready_since = 0;
    entry->left_after = LEFT_AFTER;
    if (!device->capturing) nccl->queued++;
    *out = entry;
    return TSH_OK;
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
    entry->group = world->group;
    entry->ready_since = 0;
    entry->left_after = GRAPH_LEFT_AFTER;
    nccl->queued++;
    return TSH_OK;
}

static tsh_status wait_event(tsh_world *world, cudaEvent_t event) {
    for (int polls = 0;; polls++) {
        cudaError_t error = cudaEventQuery(event);
        if (error == cudaSuccess) return TSH_OK;
        if (error != cudaErrorNotReady) return tshi_nccl_check(world, error, "cudaEventQuery");
        tsh_status status = tshi_nccl_watch(world);
        if (status != TSH_OK) return status;
        tshi_cuda_nap(polls);
    }
}

/* In order: what this rank queues later, on any stream, finds the result. */
tsh_status tshi_nccl_run(tsh_group *group, const tshi_comm_call *call) {
    tsh_world *world = group->world;
    const tshi_cuda_device *device = tshi_nccl_device(world);
    tshi_nccl_in_flight *place = NULL;
    tsh_status status = queue(group, call, &place);
    if (status == TSH_OK) {
        status = tshi_nccl_check(world, cudaStreamWaitEvent(device->compute, place->after, 0), "cudaStreamWaitEvent");
    }
    bool wait = call->op == TSH_COLLECTIVE_BARRIER || device->managed;
    if (status != TSH_OK || !wait) return status;
    if (!device->capturing) return wait_event(world, place->after);
    tshi_cuda_no_capture(world->device, tsh_collective_name(call->op));
    return TSH_OK;
}

/* --- calls that do not wait --------------------------------------------------------------------------------------- */

void tshi_nccl_drop(tsh_work *work) {
    if (tshi_is_message(work->call.op)) {
        tshi_nccl_message_drop(work);
        return;
    }
    event_give(work->group->world, work->state);
    work->state = NULL;
}

static void end(tsh_work *work, tsh_status status) {
    tshi_nccl_drop(work);
    tshi_work_end(work, status);
}

tsh_status tshi_nccl_start(tsh_work *work) {
    tsh_world *world = work->group->world;
    tshi_nccl_event *e = NULL;
    if (tshi_is_message(work->call.op)) return tshi_nccl_message_start(work);
    if (work->call.failed == TSH_OK) work->call.failed = event_take(world, &e);
    tshi_nccl_in_flight *place = NULL;
    tsh_status status = queue(work->group, &work->call, &place);
    if (status == TSH_OK) {
        cudaStream_t stream = tshi_nccl_device(world)->communication[work->group->stream];
        status = tshi_nccl_check(world, cudaEventRecord(e->event, stream), "cudaEventRecord");
        e->capture = tshi_cuda_capture(tshi_nccl_device(world));
    }
    if (status == TSH_OK)
        work->state = e;
    else
        event_give(world, e);
    return status;
}

void tshi_nccl_progress(tsh_work *work) {
    tsh_world *world = work->group->world;
    const tshi_nccl *nccl = tshi_nccl_of(world);
    const tshi_nccl_event *e = work->state;
    if (tshi_is_message(work->call.op)) {
        tshi_nccl_message_progress(work);
        return;
    }
    if (nccl->failed != TSH_OK) {
        end(work, tshi_fail(nccl->failed, "%s", nccl->message));
        return;
    }
    /* What is captured runs with the graph: the capture's end joins the streams. */
    if (e->capture) {
        if (e->capture != tshi_cuda_capture(tshi_nccl_device(world))) end(work, TSH_OK);
        return;
    }
    cudaError_t error = cudaEventQuery(e->event);
    if (error == cudaErrorNotReady) return;
    end(work, error == cudaSuccess ? TSH_OK : tshi_nccl_check(world, error, "cudaEventQuery"));
}

/* A capture can wait only for its own calls: the host waits for earlier ones, unless they were captured. */
void tshi_nccl_join(tsh_work *work) {
    const tshi_cuda_device *device = tshi_nccl_device(work->group->world);
    const tshi_nccl_event *e = work->state;
    if (tshi_is_message(work->call.op)) {
        tshi_nccl_message_join(work);
        return;
    }
    if (!e || device->managed || e->capture != tshi_cuda_capture(device)) return;
    cudaError_t error = cudaStreamWaitEvent(device->compute, e->event, 0);
    end(work, tshi_nccl_check(work->group->world, error, "cudaStreamWaitEvent"));
}

tsh_status tshi_nccl_nap(tsh_group *group, const tsh_work *work, double since) {
    tsh_world *world = group->world;
    /* While a graph is captured the host's wait becomes the GPU's, but for calls that were started before. */
    if (tshi_nccl_device(world)->capturing && group->queue) {
        for (tsh_work *w = group->queue; w; w = w->next) tshi_nccl_join(w);
        if (group->queue->done) return TSH_OK;
    }
    double waited = tshi_clock() - since;
    /* A message that is not queued yet waits for its peer, whatever the GPU still has to do for earlier ones. The watch
     * may queue it: the caller then finds it queued, and the GPU waits. */
    bool for_gpu = work && tshi_is_message(work->call.op) ? tshi_nccl_message_queued(work)
                                                          : group->queue || tshi_nccl_messages_queued(group);
    tsh_status status = tshi_nccl_watch(world);
    /* The control group knows the peer of a message that has not found it. */
    const tsh_work *match = work && tshi_is_message(work->call.op) ? tshi_nccl_message_match(work) : NULL;
    if (status == TSH_OK && match) return world->control->nap(group->control, match, since);
    if (for_gpu) tshi_nccl_device(world)->waits++;
    if (status == TSH_OK) tshi_cuda_nap(waited < SPIN ? 0 : waited < 1000 * SPIN ? TSHI_CUDA_SPINS : INT_MAX);
    return status;
}

void tshi_nccl_awake(tsh_group *group) {
    if (group->world->control->awake) group->world->control->awake(group->control);
}
