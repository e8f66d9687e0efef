/* Communicators: the calls in flight on them, the results of calls, and their end. Nothing here checks for failures of
 * the world; failure.c, which does, uses these functions. */
#include "dist/transport/nccl/nccl.h"

#define END_SECONDS 5.0

/* --- calls -------------------------------------------------------------------------------------------------------- */

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

tshi_nccl_in_flight *tshi_nccl_oldest(tshi_nccl *nccl) {
    for (; nccl->done < nccl->queued; nccl->done++) {
        tshi_nccl_in_flight *first = &nccl->calls[nccl->done % TSHI_NCCL_AHEAD];
        if (cudaEventQuery(first->after) != cudaSuccess) return first;
    }
    return NULL;
}

/* --- ending ------------------------------------------------------------------------------------------------------- */

/* The result of a call that returned `result`, when it has ended or at `until`. */
static ncclResult_t comm_wait(const tshi_nccl *nccl, ncclComm_t comm, ncclResult_t result, double until) {
    ncclResult_t now = tshi_nccl_result(nccl, comm, result);
    for (int polls = 0; now == ncclInProgress && tshi_clock() <= until; polls++) {
        tshi_cuda_nap(polls);
        now = tshi_nccl_result(nccl, comm, result);
    }
    return now;
}

/* Without memory for the list entry the communicator is leaked: to end it now could wait forever. */
void tshi_nccl_comm_keep(tsh_world *world, ncclComm_t comm) {
    tshi_nccl *nccl = tshi_nccl_of(world);
    tshi_nccl_kept *kept = tshi_calloc(&world->allocator, 1, sizeof *kept);
    if (!kept) return;
    *kept = (tshi_nccl_kept){.comm = comm, .next = nccl->kept};
    nccl->kept = kept;
}

void tshi_nccl_comm_drop(tsh_world *world, ncclComm_t comm) {
    tshi_nccl *nccl = tshi_nccl_of(world);
    if (tshi_nccl_oldest(nccl))
        tshi_nccl_comm_keep(world, comm);
    else
        nccl->library->comm_abort(comm);
}

void tshi_nccl_comm_leave(tsh_world *world, ncclComm_t comm) {
    const tshi_nccl *nccl = tshi_nccl_of(world);
    double until = tshi_clock() + (world->timeout < END_SECONDS ? world->timeout : END_SECONDS);
    if (comm_wait(nccl, comm, nccl->library->comm_finalize(comm), until) == ncclSuccess)
        nccl->library->comm_destroy(comm);
    else
        nccl->library->comm_abort(comm);
}

void tshi_nccl_kept_end(tsh_world *world) {
    tshi_nccl *nccl = tshi_nccl_of(world);
    while (nccl->kept) {
        tshi_nccl_kept *kept = nccl->kept;
        nccl->kept = kept->next;
        tshi_nccl_comm_leave(world, kept->comm);
        tshi_free(&world->allocator, kept);
    }
}
