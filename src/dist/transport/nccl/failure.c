/* What ends the communication: errors of NCCL, failures, deaths, deadlines; and recovering from them. */
#include "dist/collectives/signal.h"
#include "dist/transport/nccl/nccl.h"

#include <stdio.h>
#include <string.h>

#define TOGETHER   22200 /* the first version that aborts communicators in a group */
#define LOOK_EVERY 20e-3
#define BLAME      1.0 /* s; how long an error of NCCL's waits for the message of the rank that caused it */

/* --- what ends the communication ---------------------------------------------------------------------------------- */

static bool is_ours(const tsh_group *group) {
    return group->ops == group->world->data && group->state;
}

static void abort_group(tsh_group *group) {
    tsh_world *world = group->world;
    if (!is_ours(group)) return;
    tshi_nccl_of(world)->library->comm_abort(group->state);
    tshi_nccl_window_forget(world, group->state);
    group->state = NULL;
}

/* Aborts all communicators in one group, which NCCL takes since 2.22: the end of one of them frees memory, for which
 * the GPU has to come to the end of what it has been given, calls of all communicators with it. Graphs go first: NCCL
 * waits for those that hold a communicator's calls. */
static void abort_all(tsh_world *world) {
    tshi_nccl *nccl = tshi_nccl_of(world);
    bool together = nccl->library->version >= TOGETHER && nccl->library->group_start() == ncclSuccess;
    bool failed = nccl->failed != TSH_OK;
    tshi_cuda_graphs_end(tshi_nccl_device(world), NULL, failed ? nccl->failed : TSH_ERR_STATE,
                         failed ? nccl->words : "the world has been recovered since the capture");
    nccl->abort_due = false;
    for (tsh_group *g = world->groups; g; g = g->next) abort_group(g);
    if (nccl->closing) abort_group(nccl->closing);
    while (nccl->kept) {
        tshi_nccl_kept *kept = nccl->kept;
        nccl->kept = kept->next;
        nccl->library->comm_abort(kept->comm);
        tshi_nccl_window_forget(world, kept->comm);
        tshi_free(&world->allocator, kept);
    }
    for (tshi_nccl_link *link = nccl->links; link; link = link->next) {
        if (link->comm) nccl->library->comm_abort(link->comm);
        link->comm = NULL;
        link->tail.group = NULL;
    }
    if (together) nccl->library->group_end();
    nccl->done = nccl->queued;
}

tsh_status tshi_nccl_stop(tsh_world *world, tsh_status status, bool tell) {
    tshi_nccl *nccl = tshi_nccl_of(world);
    tshi_cuda_device *device = tshi_nccl_device(world);
    if (nccl->failed == TSH_OK) {
        nccl->failed = status;
        snprintf(nccl->words, sizeof nccl->words, "%s", tsh_error_message());
        if (tell) world->control->fail(world, nccl->words, (tshi_tape_step){0});
        /* The GPU's results are invalid from here on: every read asks the device first. */
        tshi_fail(nccl->failed, "%s", nccl->words);
        tshi_cuda_keep(device, nccl->failed);
        if (device->capturing)
            nccl->abort_due = true;
        else
            abort_all(world);
    }
    return tshi_fail(nccl->failed, "%s", nccl->words);
}

tsh_status tshi_nccl_check(tsh_world *world, cudaError_t error, const char *what) {
    tsh_status status = tshi_cuda_fail(error, what);
    return status == TSH_OK ? TSH_OK : tshi_nccl_stop(world, status, true);
}

ncclResult_t tshi_nccl_result(const tshi_nccl *nccl, ncclComm_t comm, ncclResult_t result) {
    bool begun = result == ncclSuccess || result == ncclInProgress;
    ncclResult_t now = ncclSuccess;
    if (begun && comm) result = nccl->library->comm_get_async_error(comm, &now);
    return begun && result == ncclSuccess ? now : result;
}

tsh_status tshi_nccl_fail(const tshi_nccl *nccl, ncclComm_t comm, ncclResult_t result, const char *what, bool late) {
    const char *last = nccl->library->get_last_error(comm);
    bool peer = late && (result == ncclRemoteError || result == ncclSystemError);
    return tshi_fail(peer ? TSH_ERR_PEER : TSH_ERR_SYSTEM, "%s: NCCL: %s (%d)%s%.300s", what,
                     nccl->library->get_error_string(result), (int)result, last && *last ? ": " : "", last ? last : "");
}

/* An error of NCCL that came from another rank: the rank itself may know better. */
static tsh_status blame(tsh_world *world, tsh_status status) {
    char words[TSHI_MESSAGE_SIZE];
    snprintf(words, sizeof words, "%s", tsh_error_message());
    tsh_group *control = world->group->control;
    double until = tshi_clock() + BLAME;
    while (status == TSH_ERR_PEER && tshi_clock() < until) {
        tsh_status cause = world->control->trouble(control, true, true);
        char known[TSHI_MESSAGE_SIZE];
        if (cause != TSH_OK) {
            snprintf(known, sizeof known, "%s", tsh_error_message());
            return tshi_nccl_stop(world, tshi_fail(cause, "%.200s (%.280s)", known, words), false);
        }
        tshi_sleep(5e-3);
    }
    return tshi_nccl_stop(world, tshi_fail(status, "%s", words), true);
}

tshi_nccl_tail *tshi_nccl_oldest(tshi_nccl *nccl) {
    for (; nccl->done < nccl->queued; nccl->done++) {
        tshi_nccl_tail *first = &nccl->calls[nccl->done % TSHI_NCCL_AHEAD];
        if (cudaEventQuery(first->after) != cudaSuccess) return first;
    }
    return NULL;
}

/* How long the call has been under way, for all that this rank has to do with it; 0: it is not. */
static double waited(tshi_nccl_tail *tail, double now) {
    if (!tail) return 0;
    bool waits =
        tail->group && cudaEventQuery(tail->after) == cudaErrorNotReady && cudaEventQuery(tail->before) == cudaSuccess;
    if (!waits) tail->ready_since = 0;
    if (waits && tail->ready_since == 0) tail->ready_since = now;
    return waits ? now - tail->ready_since : 0;
}

static tsh_status time_out(tsh_world *world, const tsh_group *group, const char *what) {
    tsh_status status = tshi_fail(TSH_ERR_TIMEOUT, "%s: not done within %g s", what, world->timeout);
    tshi_log(&world->log, TSH_LOG_WARNING, "rank %d: %s", world->rank, tsh_error_message());
    tshi_group_log_ring(group ? group : world->group);
    return tshi_nccl_stop(world, tshi_fail(status, "%s: not done within %g s", what, world->timeout), true);
}

static tsh_status look_at_comm(tsh_world *world, ncclComm_t comm, const tshi_nccl_tail *tail) {
    const tshi_nccl *nccl = tshi_nccl_of(world);
    ncclResult_t result = tshi_nccl_result(nccl, comm, ncclSuccess);
    if (result == ncclSuccess || result == ncclInProgress) return TSH_OK;
    return blame(world, tshi_nccl_fail(nccl, comm, result, tail && tail->group ? tail->name : "nccl", true));
}

static tsh_status look_at_comms(tsh_world *world) {
    tshi_nccl *nccl = tshi_nccl_of(world);
    tsh_status status = TSH_OK;
    for (tsh_group *g = world->groups; g && status == TSH_OK; g = g->next) {
        if (is_ours(g)) status = look_at_comm(world, g->state, tshi_nccl_oldest(nccl));
    }
    if (nccl->closing && is_ours(nccl->closing) && status == TSH_OK)
        status = look_at_comm(world, nccl->closing->state, tshi_nccl_oldest(nccl));
    for (const tshi_nccl_link *link = nccl->links; link && status == TSH_OK; link = link->next) {
        if (link->comm) status = look_at_comm(world, link->comm, &link->tail);
    }
    return status;
}

bool tshi_nccl_idle(tshi_nccl *nccl) {
    bool done = !tshi_nccl_oldest(nccl);
    for (const tshi_nccl_link *link = nccl->links; link && done; link = link->next)
        done = !link->tail.group || cudaEventQuery(link->tail.after) == cudaSuccess;
    return done;
}

/* Something has been queued, and all of it is done. */
static bool ended_well(const tsh_world *world, double now) {
    tshi_nccl *nccl = tshi_nccl_of(world);
    bool any = nccl->queued > 0;
    for (const tshi_nccl_link *link = nccl->links; link; link = link->next) any = any || link->tail.group;
    return any && tshi_nccl_idle(nccl) && !tshi_nccl_message_halfway(world, now);
}

/* NCCL does not say which of the group's ranks are missing. */
static void warn(tsh_world *world, const tshi_nccl_tail *tail, double since, double now) {
    tshi_nccl *nccl = tshi_nccl_of(world);
    if (since < tshi_word_after(world)) {
        nccl->next_word = 0;
        return;
    }
    if (now < nccl->next_word) return;
    nccl->next_word = now + since;
    tshi_log(&world->log, TSH_LOG_WARNING, "%s: rank %d has waited %.1f s for the other ranks of its group", tail->name,
             world->rank, since);
}

static tsh_status look(tsh_world *world, double now) {
    tshi_nccl *nccl = tshi_nccl_of(world);
    /* The oldest: those behind it may have to wait for it. */
    tshi_nccl_tail *tail = tshi_nccl_oldest(nccl);
    double since = waited(tail, now);
    bool waits = tail && tail->ready_since != 0;
    /* After an error of a kernel no event is ever over. */
    cudaError_t error = tail ? cudaEventQuery(tail->after) : cudaSuccess;
    if (error != cudaSuccess && error != cudaErrorNotReady) return tshi_nccl_check(world, error, "cudaEventQuery");
    tshi_signal_look(world);
    tsh_status status = look_at_comms(world);
    if (status != TSH_OK) return status;
    status = world->control->trouble(waits ? tail->group->control : world->group->control, true,
                                     waits && since > tail->left_after);
    if (status != TSH_OK) {
        /* It may have ended well meanwhile, and then the next call hears of it. */
        return ended_well(world, now) ? TSH_OK : tshi_nccl_stop(world, status, false);
    }
    if (since > world->timeout) return time_out(world, tail->group, tail->name);
    warn(world, tail, since, now);
    const tsh_work *halfway = tshi_nccl_message_halfway(world, now - world->timeout);
    if (halfway) return time_out(world, halfway->group, tsh_collective_name(halfway->call.op));
    for (tshi_nccl_link *link = nccl->links; link; link = link->next) {
        if (waited(&link->tail, now) > world->timeout) return time_out(world, link->group, link->tail.name);
    }
    return TSH_OK;
}

tsh_status tshi_nccl_watch(tsh_world *world) {
    tshi_nccl *nccl = tshi_nccl_of(world);
    double now = tshi_clock();
    if (!tshi_nccl_device(world)->capturing) {
        if (nccl->abort_due) abort_all(world);
        if (nccl->kept && tshi_nccl_idle(nccl)) tshi_nccl_kept_end(world);
    }
    if (nccl->failed != TSH_OK) return tshi_fail(nccl->failed, "%s", nccl->words);
    /* What the GPU waits for may be a message that this host has still to hear of. */
    if (world->pending > 0) tshi_world_progress(world);
    if (now < nccl->next_look || nccl->watching) return TSH_OK;
    nccl->watching = true;
    tsh_status status = look(world, now);
    nccl->watching = false;
    nccl->next_look = now + LOOK_EVERY;
    return status;
}

void tshi_nccl_watcher(void *world) {
    tshi_nccl_watch(world);
}

tsh_status tshi_nccl_trouble(tsh_group *group) {
    const tshi_nccl *nccl = tshi_nccl_of(group->world);
    if (nccl->failed != TSH_OK) return tshi_fail(nccl->failed, "%s", nccl->words);
    tsh_status status = group->world->control->trouble(group->control, false, false);
    return status == TSH_OK ? TSH_OK : tshi_nccl_stop(group->world, status, false);
}

tsh_status tshi_nccl_look(tsh_world *world, ncclComm_t comm, ncclResult_t result, const char *what, bool *done) {
    const tshi_nccl *nccl = tshi_nccl_of(world);
    bool begun = result == ncclSuccess || result == ncclInProgress;
    result = tshi_nccl_result(nccl, comm, result);
    *done = result == ncclSuccess;
    if (*done || result == ncclInProgress) return TSH_OK;
    return blame(world, tshi_nccl_fail(nccl, comm, result, what, begun));
}

tsh_status tshi_nccl_settle(tsh_world *world, ncclComm_t comm, ncclResult_t result, const char *what) {
    double until = 0;
    for (int looks = 0;; looks++) {
        bool done;
        tsh_status status = tshi_nccl_look(world, comm, result, what, &done);
        if (status != TSH_OK || done) return status;
        if (until == 0) until = tshi_clock() + world->timeout;
        status = tshi_nccl_watch(world);
        if (status != TSH_OK) return status;
        if (tshi_clock() > until) return time_out(world, world->group, what);
        tshi_cuda_nap(looks);
    }
}

/* --- recovering --------------------------------------------------------------------------------------------------- */

/* Each wait that the GPU has queued has ended, with its event or in an error, so the GPU comes to the end of its
 * queues. */
tsh_status tshi_nccl_recover(tsh_world *world) {
    tshi_nccl *nccl = tshi_nccl_of(world);
    tshi_cuda_device *device = tshi_nccl_device(world);
    if (device->capturing) return tshi_fail(TSH_ERR_STATE, "world_recover: not while a graph is captured");
    abort_all(world);
    cudaError_t error = tshi_cuda_communication_wait(device);
    for (const tshi_nccl_link *link = nccl->links; link && error == cudaSuccess; link = link->next) {
        if (link->stream) error = cudaStreamSynchronize(link->stream);
    }
    if (error != cudaSuccess) return tshi_cuda_fail(error, "world_recover: cudaStreamSynchronize");
    if (device->failed != TSH_OK && !strcmp(device->message, nccl->words)) device->failed = TSH_OK;
    tsh_status status = world->control->recover(world);
    if (status != TSH_OK) return status;
    tshi_nccl_links_close(world, NULL);
    tshi_nccl_shared_close(world);
    nccl->failed = TSH_OK;
    if (nccl->shared.group) status = tshi_nccl_comm_create(nccl->shared.group, TSH_OK);
    return status == TSH_OK ? TSH_OK : tshi_nccl_stop(world, status, true);
}
