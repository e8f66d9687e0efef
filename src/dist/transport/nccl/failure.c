/* What ends the communication: errors of NCCL, failures, deaths, deadlines. Wherever the host waits for the GPU it
 * checks for them. */
#include "dist/control/control.h"
#include "dist/transport/nccl/nccl.h"

#include <stdio.h>
#include <string.h>

#define TOGETHER   22200 /* the first version that aborts communicators in a group */
#define POLL_EVERY 20e-3
#define BLAME      1.0 /* s; how long an error of NCCL waits for the message of the rank that caused it */

/* --- what ends the communication ---------------------------------------------------------------------------------- */

static bool is_ours(const tsh_group *group) {
    return group->ops == group->world->data && group->state;
}

static void abort_group(tsh_group *group) {
    tsh_world *world = group->world;
    if (!is_ours(group)) return;
    tshi_nccl_of(world)->library->comm_abort(group->state);
    group->state = NULL;
}

/* Aborts all communicators in one group, which NCCL takes since 2.22: the end of one of them frees memory, for which
 * the GPU has to come to the end of what it has been given, calls of all communicators with it. Graphs go first: NCCL
 * waits for those that hold a communicator's calls. */
void tshi_nccl_abort_all(tsh_world *world) {
    tshi_nccl *nccl = tshi_nccl_of(world);
    bool together = nccl->library->version >= TOGETHER && nccl->library->group_start() == ncclSuccess;
    bool failed = nccl->failed != TSH_OK;
    tshi_cuda_graphs_end(tshi_nccl_device(world), NULL, failed ? nccl->failed : TSH_ERR_STATE,
                         failed ? nccl->message : "the world has been recovered since the capture");
    nccl->abort_due = false;
    for (tsh_group *g = world->groups; g; g = g->next) abort_group(g);
    if (nccl->closing) abort_group(nccl->closing);
    while (nccl->kept) {
        tshi_nccl_kept *kept = nccl->kept;
        nccl->kept = kept->next;
        nccl->library->comm_abort(kept->comm);
        tshi_free(&world->allocator, kept);
    }
    if (together) nccl->library->group_end();
    nccl->done = nccl->queued;
}

tsh_status tshi_nccl_stop(tsh_world *world, tsh_status status, bool tell) {
    tshi_nccl *nccl = tshi_nccl_of(world);
    tshi_cuda_device *device = tshi_nccl_device(world);
    if (nccl->failed == TSH_OK) {
        nccl->failed = status;
        snprintf(nccl->message, sizeof nccl->message, "%s", tsh_error_message());
        if (tell) tshi_world_fail_in(world, nccl->message, (tshi_tape_step){0});
        /* The GPU's results are invalid from here on: every read asks the device first. */
        tshi_fail(nccl->failed, "%s", nccl->message);
        tshi_cuda_record_status(device, nccl->failed);
        if (device->capturing)
            nccl->abort_due = true;
        else
            tshi_nccl_abort_all(world);
    }
    return tshi_fail(nccl->failed, "%s", nccl->message);
}

tsh_status tshi_nccl_check(tsh_world *world, cudaError_t error, const char *what) {
    tsh_status status = tshi_cuda_fail(error, what);
    return status == TSH_OK ? TSH_OK : tshi_nccl_stop(world, status, true);
}

/* An error that NCCL got from another rank: that rank itself may report its cause. */
static tsh_status blame(tsh_world *world, tsh_status status) {
    char message[TSHI_MESSAGE_SIZE];
    snprintf(message, sizeof message, "%s", tsh_error_message());
    tsh_group *control = world->group->control;
    double until = tshi_clock() + BLAME;
    while (status == TSH_ERR_PEER && tshi_clock() < until) {
        tsh_status cause = world->control->check_peers(control, true, true);
        char known[TSHI_MESSAGE_SIZE];
        if (cause != TSH_OK) {
            snprintf(known, sizeof known, "%s", tsh_error_message());
            return tshi_nccl_stop(world, tshi_fail(cause, "%.200s (%.280s)", known, message), false);
        }
        tshi_sleep(5e-3);
    }
    return tshi_nccl_stop(world, tshi_fail(status, "%s", message), true);
}

/* The call waits only for its peers; its deadline counts from the first poll that has found this. */
static bool waits_for_peers(tsh_world *world, tshi_nccl_in_flight *entry, double now) {
    bool waits = entry && entry->group && cudaEventQuery(entry->after) == cudaErrorNotReady &&
                 cudaEventQuery(entry->before) == cudaSuccess;
    if (!waits) return false;
    if (entry->since == 0) {
        entry->since = now;
        entry->deadline = tshi_deadline_since(world, now, entry->call, entry->number);
        if (entry->collective) entry->deadline.group = entry->group;
    }
    return true;
}

static tsh_status time_out(tsh_world *world, const tsh_group *group, const char *what, const char *ranks) {
    char words[TSHI_MESSAGE_SIZE];
    snprintf(words, sizeof words, "%s: not done within %g s%s%.300s", what, world->timeout,
             ranks[0] ? "; waits for " : "", ranks);
    tshi_log(&world->log, TSH_LOG_WARNING, "rank %d: %s", world->rank, words);
    tshi_group_log_recent_calls(group);
    return tshi_nccl_stop(world, tshi_fail(TSH_ERR_TIMEOUT, "%s", words), true);
}

static tsh_status poll_comm(tsh_world *world, ncclComm_t comm, const tshi_nccl_in_flight *entry) {
    const tshi_nccl *nccl = tshi_nccl_of(world);
    ncclResult_t result = tshi_nccl_result(nccl, comm, ncclSuccess);
    if (result == ncclSuccess || result == ncclInProgress) return TSH_OK;
    return blame(world, tshi_nccl_fail(nccl, comm, result, entry && entry->group ? entry->name : "nccl", true));
}

static tsh_status poll_comms(tsh_world *world) {
    tshi_nccl *nccl = tshi_nccl_of(world);
    tsh_status status = TSH_OK;
    for (tsh_group *g = world->groups; g && status == TSH_OK; g = g->next) {
        if (is_ours(g)) status = poll_comm(world, g->state, tshi_nccl_oldest(nccl));
    }
    if (nccl->closing && is_ours(nccl->closing) && status == TSH_OK)
        status = poll_comm(world, nccl->closing->state, tshi_nccl_oldest(nccl));
    return status;
}

static tsh_status poll_world(tsh_world *world, double now) {
    tshi_nccl *nccl = tshi_nccl_of(world);
    /* Only the oldest call: later ones may have to wait for it. */
    tshi_nccl_in_flight *entry = tshi_nccl_oldest(nccl);
    bool waits = waits_for_peers(world, entry, now);
    char ranks[TSHI_LINE], stopped[TSHI_LINE];
    /* After an error in a kernel no event ever completes. */
    cudaError_t error = entry ? cudaEventQuery(entry->after) : cudaSuccess;
    if (error != cudaSuccess && error != cudaErrorNotReady) return tshi_nccl_check(world, error, "cudaEventQuery");
    tshi_signal_poll(world);
    tsh_status status = poll_comms(world);
    if (status != TSH_OK) return status;
    const tsh_group *group = waits ? entry->group : world->group;
    status = group->control->ops->check_peers(group->control, true, waits && now - entry->since > entry->left_after);
    if (status != TSH_OK) {
        /* The calls in flight may have ended without an error meanwhile: then the next call reports the failure. */
        bool ended = nccl->queued > 0 && !tshi_nccl_oldest(nccl);
        return ended ? TSH_OK : tshi_nccl_stop(world, status, false);
    }
    bool late = waits && tshi_deadline_passed(world, &entry->deadline, ranks, stopped);
    return late ? time_out(world, entry->group, entry->name, ranks) : TSH_OK;
}

tsh_status tshi_nccl_watch(tsh_world *world) {
    tshi_nccl *nccl = tshi_nccl_of(world);
    double now = tshi_clock();
    if (!tshi_nccl_device(world)->capturing) {
        if (nccl->abort_due) tshi_nccl_abort_all(world);
        if (nccl->kept && !tshi_nccl_oldest(nccl)) tshi_nccl_kept_end(world);
    }
    if (nccl->failed != TSH_OK) return tshi_fail(nccl->failed, "%s", nccl->message);
    if (now < nccl->next_poll || nccl->watching) return TSH_OK;
    nccl->watching = true;
    tsh_status status = poll_world(world, now);
    nccl->watching = false;
    nccl->next_poll = now + POLL_EVERY;
    return status;
}

void tshi_nccl_watcher(void *world) {
    tshi_nccl_watch(world);
}

tsh_status tshi_nccl_failure(tsh_group *group) {
    const tshi_nccl *nccl = tshi_nccl_of(group->world);
    if (nccl->failed != TSH_OK) return tshi_fail(nccl->failed, "%s", nccl->message);
    tsh_status status = group->control->ops->check_peers(group->control, false, false);
    return status == TSH_OK ? TSH_OK : tshi_nccl_stop(group->world, status, false);
}

tsh_status tshi_nccl_settle(tsh_world *world, ncclComm_t comm, ncclResult_t result, const char *what) {
    const tshi_nccl *nccl = tshi_nccl_of(world);
    bool begun = result == ncclSuccess || result == ncclInProgress;
    double until = 0;
    for (int polls = 0;; polls++) {
        ncclResult_t now = tshi_nccl_result(nccl, comm, result);
        if (now == ncclSuccess) return TSH_OK;
        if (now != ncclInProgress) return blame(world, tshi_nccl_fail(nccl, comm, now, what, begun));
        if (until == 0) until = tshi_clock() + world->timeout;
        tsh_status status = tshi_nccl_watch(world);
        if (status != TSH_OK) return status;
        if (tshi_clock() > until) return time_out(world, world->group, what, "");
        tshi_cuda_nap(polls);
    }
}

/* --- waiting for calls -------------------------------------------------------------------------------------------- */

tsh_status tshi_nccl_wait_event(tsh_world *world, cudaEvent_t event) {
    for (int polls = 0;; polls++) {
        cudaError_t error = cudaEventQuery(event);
        if (error == cudaSuccess) return TSH_OK;
        if (error != cudaErrorNotReady) return tshi_nccl_check(world, error, "cudaEventQuery");
        tsh_status status = tshi_nccl_watch(world);
        if (status != TSH_OK) return status;
        tshi_cuda_nap(polls);
    }
}

void tshi_nccl_drain(void *of) {
    tsh_world *world = of;
    tshi_nccl_in_flight *entry;
    tsh_status status = TSH_OK;
    while (status == TSH_OK && (entry = tshi_nccl_oldest(tshi_nccl_of(world))))
        status = tshi_nccl_wait_event(world, entry->after);
}
