/* Collectives of groups on GPUs, in order: they are checked, queued (queue.c) and waited for. */
#include "base/hash.h"
#include "dist/control/agree.h"
#include "dist/transport/nccl/nccl.h"

#include <limits.h>
#include <stdio.h>
#include <string.h>

#define SPIN 500e-6 /* s; a host that waits sleeps after it */

/* --- calls in order ----------------------------------------------------------------------------------------------- */

/* Without TSHARD_CHECK the ranks do not agree on calls, so a call that cannot be made fails the world, like a step that
 * has failed, until the world recovers. */
static tsh_status cannot(tsh_group *group, const tshi_comm_call *call) {
    char message[TSHI_MESSAGE_SIZE];
    snprintf(message, sizeof message, "%s", tsh_error_message());
    tshi_world_fail_in(group->world, message, (tshi_tape_step){0});
    return tshi_fail(call->failed, "%s", message);
}

static tsh_status ready(tsh_group *group, const tshi_comm_call *call) {
    const tshi_nccl *nccl = tshi_nccl_of(group->world);
    tshi_failure before;
    tshi_failure_keep(&before, call->failed);
    tshi_nccl_submit_all(group->world);
    tsh_status status = tshi_nccl_failure(group);
    if (status != TSH_OK) return status;
    tshi_failure_report(&before);
    /* Every rank gets this error by itself. */
    if (call->failed == TSH_ERR_UNSUPPORTED) return call->failed;
    if (nccl->checked) status = tshi_control_compare(group, call);
    if (!nccl->checked && call->failed != TSH_OK) status = cannot(group, call);
    /* After a recovery. */
    if (status == TSH_OK && !group->state) status = tshi_nccl_comm_create(group, TSH_OK);
    return status;
}

static tsh_status queue(tsh_group *group, const tshi_comm_call *call, tshi_nccl_in_flight **out) {
    uint64_t number = tshi_group_note(group, call);
    tsh_status status = ready(group, call);
    return status == TSH_OK ? tshi_nccl_enqueue(group, call, number, out) : status;
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
    if (!device->capturing) return tshi_nccl_wait_event(world, place->after);
    tshi_cuda_no_capture(world->device, tsh_collective_name(call->op));
    return TSH_OK;
}

/* --- calls that do not wait --------------------------------------------------------------------------------------- */

tsh_status tshi_nccl_start(tsh_work *work) {
    tshi_nccl_event *e = NULL;
    if (tshi_is_message(work->call.op)) return tshi_nccl_message_start(work);
    if (work->call.failed == TSH_OK) work->call.failed = tshi_nccl_event_take(work->group->world, &e);
    work->state = e;
    tshi_nccl_in_flight *place = NULL;
    tsh_status status = queue(work->group, &work->call, &place);
    if (status == TSH_OK) status = tshi_nccl_mark_queued(work->group, e);
    if (status != TSH_OK) tshi_nccl_drop(work);
    return status;
}

void tshi_nccl_progress(tsh_work *work) {
    tsh_world *world = work->group->world;
    const tshi_nccl *nccl = tshi_nccl_of(world);
    const tshi_nccl_event *e = work->state;
    if (nccl->failed != TSH_OK) {
        tshi_nccl_end(work, tshi_fail(nccl->failed, "%s", nccl->message));
        return;
    }
    if (!e->queued) return;
    /* What is captured runs with the graph: the capture's end joins the streams. */
    if (e->capture) {
        if (e->capture != tshi_cuda_capture(tshi_nccl_device(world))) tshi_nccl_end(work, TSH_OK);
        return;
    }
    cudaError_t error = cudaEventQuery(e->event);
    if (error == cudaErrorNotReady) return;
    tshi_nccl_end(work, error == cudaSuccess ? TSH_OK : tshi_nccl_check(world, error, "cudaEventQuery"));
}

/* A capture can wait only for its own calls: the host waits for earlier ones, unless they were captured. */
void tshi_nccl_join(tsh_work *work) {
    const tshi_cuda_device *device = tshi_nccl_device(work->group->world);
    const tshi_nccl_event *e = work->state;
    if (!e || !e->queued || device->managed || e->capture != tshi_cuda_capture(device)) return;
    cudaError_t error = cudaStreamWaitEvent(device->compute, e->event, 0);
    tshi_nccl_end(work, tshi_nccl_check(work->group->world, error, "cudaStreamWaitEvent"));
}

/* While a graph is captured the host's wait becomes the GPU's, but for calls that were started before. */
static bool join_captured(tsh_group *group) {
    bool ended = false;
    tsh_work *lists[] = {group->queue, group->messages};
    for (int i = 0; i < 2; i++) {
        for (tsh_work *w = lists[i]; w; w = w->next) {
            if (!w->done) tshi_nccl_join(w);
            ended = ended || w->done;
        }
    }
    return ended;
}

tsh_status tshi_nccl_nap(tsh_group *group, const tsh_work *work, double since) {
    tsh_world *world = group->world;
    (void)work;
    if (tshi_nccl_device(world)->capturing && join_captured(group)) return TSH_OK;
    double waited = tshi_clock() - since;
    tsh_status status = tshi_nccl_watch(world);
    tshi_nccl_device(world)->waits++;
    if (status == TSH_OK) tshi_cuda_nap(waited < SPIN ? 0 : waited < 1000 * SPIN ? TSHI_CUDA_SPINS : INT_MAX);
    return status;
}
