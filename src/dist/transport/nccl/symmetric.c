/* Symmetric memory: an arena of one size on every rank, registered as a window with every communicator. Collectives on
 * buffers that have one offset in it on all ranks need no copies. Where a rank cannot register it, no rank does. */
#include "dist/transport/nccl/nccl.h"

#include <stdio.h>
#include <string.h>

#define PATIENCE 30.0 /* a registration that failed on another rank would never end here */

static void without(const tsh_world *world, const char *what) {
    cudaGetLastError(); /* otherwise the next launch would return it */
    if (world->rank == 0)
        tshi_log(&world->log, TSH_LOG_INFO, "%s: no symmetric memory: %.300s", what, tsh_error_message());
}

/* --- the arena ---------------------------------------------------------------------------------------------------- */

static tsh_status wanted_bytes(const tsh_world *world, size_t *out) {
    const tshi_nccl_library *library = tshi_nccl_of(world)->library;
    *out = 0;
    tsh_status status = tshi_setting_bytes(TSHI_SETTING_NCCL_SYMMETRIC, out);
    bool can = library->mem_alloc && library->mem_free && library->window_register && library->window_deregister;
    bool managed = tshi_nccl_device(world)->managed; /* NCCL cannot use memory that the host may read */
    if (!can || managed) *out = 0;
    if (status == TSH_OK && *out == 0) {
        const char *why = !can ? "NCCL has no windows" : managed ? "TSHARD_CUDA_MANAGED is 1" : "none is wanted";
        tshi_fail(TSH_ERR_UNSUPPORTED, "%s", why);
    }
    *out = (*out + NCCL_WIN_REQUIRED_ALIGNMENT - 1) / NCCL_WIN_REQUIRED_ALIGNMENT * NCCL_WIN_REQUIRED_ALIGNMENT;
    return status;
}

static tsh_status take(tsh_world *world, size_t bytes) {
    tshi_nccl *nccl = tshi_nccl_of(world);
    ncclResult_t result = nccl->library->mem_alloc(&nccl->arena, bytes);
    if (result != ncclSuccess) {
        nccl->arena = NULL;
        return tshi_nccl_fail(nccl, NULL, result, "ncclMemAlloc", false);
    }
    nccl->arena_bytes = bytes;
    return tshi_cuda_symmetric_set(tshi_nccl_device(world), nccl->arena, bytes);
}

tsh_status tshi_nccl_arena_open(tsh_world *world) {
    tsh_group *control = world->group->control;
    char text[64];
    size_t bytes;
    tsh_status status = wanted_bytes(world, &bytes);
    snprintf(text, sizeof text, "world_init: %zu bytes of symmetric memory", bytes);
    status = world->control->agree(control, text, status);
    if (status != TSH_OK && status != TSH_ERR_MISMATCH) return status;
    if (status == TSH_OK && bytes > 0) {
        status = world->control->agree(control, "world_init: symmetric memory", take(world, bytes));
        if (status == TSH_OK) return TSH_OK;
    }
    without(world, "world_init");
    tshi_nccl_arena_close(world);
    return TSH_OK;
}

void tshi_nccl_arena_close(tsh_world *world) {
    tshi_nccl *nccl = tshi_nccl_of(world);
    const tshi_cuda_device *device = tshi_nccl_device(world);
    if (!nccl->arena) return;
    cudaStreamSynchronize(device->compute); /* for work that was queued before the buffers were freed */
    tshi_cuda_communication_wait(device);
    tshi_cuda_symmetric_unset(tshi_nccl_device(world));
    nccl->library->mem_free(nccl->arena);
    nccl->arena = NULL;
}

/* --- windows ------------------------------------------------------------------------------------------------------ */

/* Waits until the call that returned `result` has ended, at most `patience` seconds. */
static tsh_status wait_result(tsh_world *world, ncclComm_t comm, ncclResult_t result, const char *what,
                              double patience) {
    const tshi_nccl *nccl = tshi_nccl_of(world);
    double until = tshi_clock() + patience;
    bool begun = result == ncclSuccess || result == ncclInProgress;
    for (int polls = 0; begun; polls++) {
        result = tshi_nccl_result(nccl, comm, ncclSuccess);
        if (result != ncclInProgress) break;
        if (tshi_clock() > until) return tshi_fail(TSH_ERR_TIMEOUT, "%s: not done within %g s", what, patience);
        tsh_status status = tshi_nccl_watch(world);
        if (status != TSH_OK) return status;
        tshi_cuda_nap(polls);
    }
    return result == ncclSuccess ? TSH_OK : tshi_nccl_fail(nccl, comm, result, what, begun);
}

/* Two agreements: all ranks have started the registration; it has ended on all. A communicator that is not in its group
 * is not watched by other calls. */
static tsh_status enter(tsh_group *group, ncclComm_t comm) {
    tsh_world *world = group->world;
    tshi_nccl *nccl = tshi_nccl_of(world);
    tshi_nccl_window *w = tshi_calloc(&world->allocator, 1, sizeof *w);
    ncclResult_t result = ncclSuccess;
    tsh_status status = w ? TSH_OK : TSH_ERR_MEMORY;
    if (w) {
        *w = (tshi_nccl_window){.comm = comm, .next = nccl->windows};
        nccl->windows = w;
        result =
            nccl->library->window_register(comm, nccl->arena, nccl->arena_bytes, &w->window, NCCL_WIN_COLL_SYMMETRIC);
        if (result != ncclSuccess && result != ncclInProgress) {
            status = tshi_nccl_fail(nccl, comm, result, "ncclCommWindowRegister", false);
        }
    }
    status = tshi_group_agree(group, "nccl: window", status);
    if (status != TSH_OK) return status;
    double patience = world->timeout < PATIENCE ? world->timeout : PATIENCE;
    status = wait_result(world, comm, result, "ncclCommWindowRegister", patience);
    /* A call without a window is not a failure: these GPUs cannot reach each other's memory in that way. */
    status = tshi_group_agree(group, w->window ? "nccl: a window" : "nccl: no window", status);
    if (status != TSH_OK && status != TSH_ERR_MISMATCH) return status;
    if (status == TSH_ERR_MISMATCH || !w->window) {
        if (!w->window) tshi_fail(TSH_ERR_UNSUPPORTED, "NCCL has none between these GPUs");
        without(world, "nccl");
        tshi_nccl_window_close(world, comm, tshi_clock() + tshi_nccl_patience(world));
    }
    return TSH_OK;
}

bool tshi_nccl_window_open(tsh_group *group) {
    tsh_world *world = group->world;
    const tshi_nccl *nccl = tshi_nccl_of(world);
    ncclComm_t comm = group->state;
    if (!nccl->arena) return true;
    group->state = NULL;
    if (enter(group, comm) == TSH_OK) {
        group->state = comm;
        return true;
    }
    without(world, "nccl");
    tshi_nccl_comm_drop(world, comm);
    return false;
}

bool tshi_nccl_symmetric(const tsh_group *group) {
    tshi_nccl *nccl = tshi_nccl_of(group->world);
    /* After a recovery the group has no communicator yet, and gets one later. */
    return group->state ? *tshi_nccl_window_of(nccl, group->state) != NULL : nccl->arena != NULL;
}
