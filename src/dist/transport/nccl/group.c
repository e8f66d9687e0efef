/* Groups: their communicators, made and ended, and the control groups beneath them. */
#include "dist/transport/nccl/nccl.h"

#include <stdio.h>
#include <string.h>

/* --- making ------------------------------------------------------------------------------------------------------- */

/* Either all members of the group have a communicator, or none has. */
static tsh_status attach(tsh_group *parent, tsh_group *group, ncclComm_t comm, tsh_status status) {
    tsh_status mine = status;
    char message[TSHI_MESSAGE_SIZE];
    snprintf(message, sizeof message, "%s", tsh_error_message());
    status = tshi_group_agree(parent, "nccl: communicator", status);
    if (group && status == TSH_OK) group->state = comm;
    if (comm && status != TSH_OK) tshi_nccl_comm_drop(parent->world, comm);
    return mine == TSH_OK ? status : tshi_fail(mine, "%s", message);
}

/* Communicators do not block, although each call then costs a thread of NCCL and a wait for it: a blocking call may
 * wait for a lost peer forever, and ncclCommAbort frees what a call on another thread still uses. */
tsh_status tshi_nccl_comm_create(tsh_group *group, tsh_status status) {
    tsh_world *world = group->world;
    const tshi_nccl *nccl = tshi_nccl_of(world);
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    ncclComm_t comm = NULL;
    ncclUniqueId id = {{0}};
    config.blocking = 0;
    tshi_cuda_use(tshi_nccl_device(world));
    if (status == TSH_OK && group->rank == 0) {
        ncclResult_t result = nccl->library->get_unique_id(&id);
        if (result != ncclSuccess) status = tshi_nccl_fail(nccl, NULL, result, "ncclGetUniqueId", false);
    }
    status = tshi_group_fetch(group, "nccl: id", &(const int32_t){0}, 1, &id, sizeof id, status);
    if (status != TSH_OK) return status;
    ncclResult_t result = nccl->library->comm_init_rank_config(&comm, group->size, id, group->rank, &config);
    status = tshi_nccl_settle(world, comm, result, "ncclCommInitRankConfig");
    return attach(group, group, comm, status);
}

/* A communicator out of parent's, which NCCL splits while it has no calls under way. group is NULL on ranks outside.
 * Collective over parent. */
static tsh_status comm_split(tsh_group *parent, tsh_group *group) {
    tsh_world *world = parent->world;
    const tshi_nccl *nccl = tshi_nccl_of(world);
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    ncclComm_t comm = NULL;
    config.blocking = 0;
    tshi_cuda_use(tshi_nccl_device(world));
    tshi_nccl_drain(world);
    tsh_status status = tshi_nccl_failure(parent);
    if (status == TSH_OK) {
        /* The members' order is the group's; no two groups have the same first rank. */
        ncclResult_t result = nccl->library->comm_split(parent->state, group ? group->ranks[0] : NCCL_SPLIT_NOCOLOR,
                                                        group ? group->rank : 0, &comm, &config);
        status = tshi_nccl_settle(world, parent->state, result, "ncclCommSplit");
    }
    if (status == TSH_OK && comm) status = tshi_nccl_settle(world, comm, ncclSuccess, "ncclCommSplit");
    return attach(parent, group, comm, status);
}

tsh_status tshi_nccl_stream_take(tsh_group *group) {
    tshi_nccl *nccl = tshi_nccl_of(group->world);
    group->stream = nccl->opened++ % nccl->streams;
    return tshi_cuda_communication_open(tshi_nccl_device(group->world), group->stream);
}

tsh_status tshi_nccl_group_split(tsh_group *parent, tsh_group *group) {
    tsh_status status = group ? tshi_nccl_stream_take(group) : TSH_OK;
    status = tshi_group_agree(parent, "group_create: stream", status);
    /* Without a communicator, after a recovery, each makes its own when it is first used. */
    return status == TSH_OK && parent->state ? comm_split(parent, group) : status;
}

/* --- ending ------------------------------------------------------------------------------------------------------- */

/* Waits for the group's calls, and removes the group from the record of calls. */
static void flush_group(tsh_group *group) {
    tshi_nccl *nccl = tshi_nccl_of(group->world);
    for (uint64_t i = nccl->done; i < nccl->queued; i++) {
        tshi_nccl_in_flight *entry = &nccl->calls[i % TSHI_NCCL_AHEAD];
        if (entry->group != group) continue;
        tshi_nccl_wait_event(group->world, entry->after);
        entry->group = NULL;
    }
}

void tshi_nccl_group_close(tsh_group *group) {
    tsh_world *world = group->world;
    tshi_nccl *nccl = tshi_nccl_of(world);
    ncclComm_t comm;
    if (nccl->batch == group) nccl->batch = NULL;
    nccl->closing = group;
    flush_group(group);
    nccl->closing = NULL;
    comm = group->state; /* it may have been aborted meanwhile */
    group->state = NULL;
    bool captured = tshi_cuda_graphs_end(tshi_nccl_device(world), group, TSH_ERR_STATE,
                                         "the graph holds calls of a group that has been destroyed");
    if (comm && (captured || tshi_nccl_oldest(nccl)))
        tshi_nccl_comm_keep(world, comm);
    else if (comm)
        tshi_nccl_comm_leave(world, comm);
}
