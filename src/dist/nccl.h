/* The backend of GPUs: NCCL moves the data, the backend beneath (local, mpi) keeps the ranks together.
 *
 * Every group has a control group of the same ranks on the backend beneath. It agrees on what is opened, carries
 * messages between two ranks (NCCL would want both sides to queue them in one order), and tells of failures and deaths.
 * Collectives are queued on the device's communication stream, behind what its compute stream has been given; the host
 * does not wait. Whenever it does wait for the GPU it comes here to look around (tshi_nccl_watch), for a collective
 * whose peers do not come never ends by itself: it is aborted. */
#ifndef TSHI_NCCL_H
#define TSHI_NCCL_H

#include "device/cuda/cuda.h"
#include "dist/environment.h"

#include <nccl.h>

/* NCCL's functions, by their names. Those of symmetric memory may be NULL. */
typedef struct tshi_nccl_library {
    int version;
    __typeof__(&ncclGetVersion) get_version;
    __typeof__(&ncclGetUniqueId) get_unique_id;
    __typeof__(&ncclCommInitRankConfig) comm_init_rank_config;
    __typeof__(&ncclCommSplit) comm_split;
    __typeof__(&ncclCommFinalize) comm_finalize;
    __typeof__(&ncclCommDestroy) comm_destroy;
    __typeof__(&ncclCommAbort) comm_abort;
    __typeof__(&ncclCommGetAsyncError) comm_get_async_error;
    __typeof__(&ncclGetErrorString) get_error_string;
    __typeof__(&ncclGetLastError) get_last_error;
    __typeof__(&ncclAllReduce) all_reduce;
    __typeof__(&ncclReduce) reduce;
    __typeof__(&ncclBroadcast) broadcast;
    __typeof__(&ncclAllGather) all_gather;
    __typeof__(&ncclReduceScatter) reduce_scatter;
    __typeof__(&ncclSend) send;
    __typeof__(&ncclRecv) recv;
    __typeof__(&ncclGroupStart) group_start;
    __typeof__(&ncclGroupEnd) group_end;
} tshi_nccl_library;

/* nccl_library.c: opened once a process. TSH_ERR_UNSUPPORTED with the loader's words. */
tsh_status tshi_nccl_library_open(const tshi_nccl_library **out);

/* An event that a work waits for. */
typedef struct tshi_nccl_event {
    cudaEvent_t event;
    struct tshi_nccl_event *next; /* of those that are free */
} tshi_nccl_event;

/* world->upper_state. */
typedef struct tshi_nccl {
    const tshi_nccl_library *library;
    bool checked; /* TSHARD_CHECK=1: every call is agreed upon first */
    cudaEvent_t before, after, marker;
    const void *marked; /* what is complete at `marker` */
    tshi_nccl_event *events;
    void *word; /* in device memory, for barriers */
    /* The call queued last; all others end before it. NULL: none. */
    tsh_group *last;
    cudaEvent_t last_before, last_after;
    char name[TSHI_LINE / 4]; /* "all_reduce #3" */
    double ready_since;       /* since when it could have run; 0: not seen to be ready */
    double next_look;
    bool watching;
    /* What has ended the communication, until the world recovers. */
    tsh_status failed;
    char words[TSHI_MESSAGE_SIZE];
} tshi_nccl;

static inline tshi_nccl *tshi_nccl_of(const tsh_world *world) {
    return world->upper_state;
}

static inline tshi_cuda_device *tshi_nccl_device(const tsh_world *world) {
    return tshi_cuda(world->device);
}

/* --- nccl_move.c -------------------------------------------------------------------------------------------------- */

bool tshi_nccl_reduces(tsh_dtype dtype, tsh_reduce_op op);
/* The call's data, queued on the stream. */
ncclResult_t tshi_nccl_move(const tshi_nccl *nccl, const tsh_group *group, const tshi_call *call, ncclComm_t comm,
                            cudaStream_t stream);

/* --- nccl_comm.c: communicators, and what ends them ---------------------------------------------------------------- */

/* group->state, a communicator of its members made anew. Collective over them. `status`: how this rank has fared. */
tsh_status tshi_nccl_comm_create(tsh_group *group, tsh_status status);
/* The same out of parent's, which has one. group is NULL on ranks outside. Collective over parent. */
tsh_status tshi_nccl_comm_split(tsh_group *parent, tsh_group *group);
/* After its last call. */
void tshi_nccl_comm_close(tsh_group *group);
/* Until NCCL has done what `what` began: these communicators take calls without waiting. */
tsh_status tshi_nccl_settle(tsh_world *world, ncclComm_t comm, ncclResult_t result, const char *what);

/* What calls have to return, or TSH_OK. */
tsh_status tshi_nccl_trouble(tsh_group *group);
/* Look around while waiting: errors of NCCL, failures, deaths, the deadline. What it finds ends the communication: every
 * communicator is aborted, so that the GPU goes on. */
tsh_status tshi_nccl_watch(tsh_world *world);
/* The same, as the device calls it. */
void tshi_nccl_watcher(void *world);
/* Sleep a little, longer after a while; `looks` counts. */
void tshi_nccl_doze(int looks);
/* End the communication. The words of `status` are in tsh_error_message(); tell: the others do not know yet. */
tsh_status tshi_nccl_stop(tsh_world *world, tsh_status status, bool tell);
void tshi_nccl_abort(tsh_world *world);

#endif
