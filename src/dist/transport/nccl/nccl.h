/* The data transport of GPUs: NCCL moves the data of ranks that control connects.
 *
 * Control agrees on what is opened, carries NCCL's ids and reports failures and deaths. Calls are queued on the
 * device's communication stream, behind the work queued on its compute stream; the host does not wait. A call that a
 * peer does not queue never ends by itself: wherever the host waits for the GPU it calls tshi_nccl_watch, which aborts
 * the communicators when a peer is lost.
 *
 * Invariant: what a rank queues for NCCL, over all of its groups, is in the order of its program's calls, and depends
 * on nothing else. It holds because a collective is queued by its call, and messages are queued together as
 * point_to_point.c says. Ranks whose programs make their calls in one order therefore never wait for each other in a
 * cycle, although NCCL runs what is on one stream, and in one communicator, one after another. */
#ifndef TSHI_NCCL_H
#define TSHI_NCCL_H

#include "device/cuda/stream.h"
#include "dist/collectives/collectives.h"
#include "dist/control/control.h"
#include "dist/rendezvous/environment.h"
#include "dist/transport/nccl/header.h"
#include "dist/world.h"

/* NCCL's functions, by their names. */
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

/* Opens the library, once a process. TSH_ERR_UNSUPPORTED with the loader's message. */
tsh_status tshi_nccl_library_open(const tshi_nccl_library **out);

/* A CUDA event that a work waits for. */
typedef struct tshi_nccl_event {
    cudaEvent_t event;
    uint64_t capture;             /* that it was recorded in, where it is never queried; 0: none */
    bool queued;                  /* the work is on the GPU, and the event behind it; false for a message held back */
    struct tshi_nccl_event *next; /* of those that are free */
} tshi_nccl_event;

/* A call in flight on one of the communication streams, whose calls end in their order. */
typedef struct tshi_nccl_in_flight {
    tsh_group *group; /* NULL: none */
    cudaEvent_t before, after;
    char name[TSHI_LINE / 4]; /* "all_reduce #3"; of messages that were queued together the first */
    const char *call;
    bool collective; /* all members make it */
    uint64_t number;
    double left_after;      /* s; a peer that has left has done its part by then, or never will */
    double since;           /* when the host first saw that it waits only for its peers; 0: not yet */
    tshi_deadline deadline; /* of that wait */
} tshi_nccl_in_flight;

/* A communicator whose group has gone, during a capture that holds calls of it, or while this GPU had calls of others
 * to end: NCCL waits for both in its end, where no watch sees it, and the peers of those calls may wait for what this
 * host does next. */
typedef struct tshi_nccl_kept {
    ncclComm_t comm;
    struct tshi_nccl_kept *next;
} tshi_nccl_kept;

#define TSHI_NCCL_AHEAD 128

#define TSHI_NCCL_PLACE 4 /* in world->state */

typedef struct tshi_nccl {
    const tshi_nccl_library *library;
    bool checked; /* TSHARD_CHECK=1: every call is agreed upon first */
    tshi_nccl_event *events;
    void *barrier_buffer; /* in device memory, for barriers */
    int streams, opened;  /* communication streams that groups take in turn; groups so far */
    /* The numbers of calls that have been queued, messages that were queued together as one, and that are known to have
     * ended. A host that is TSHI_NCCL_AHEAD calls ahead of its GPU waits. The last entry of calls is for those of a
     * captured graph, which are not counted. */
    uint64_t queued, done;
    tshi_nccl_in_flight calls[TSHI_NCCL_AHEAD + 1];
    tsh_group *batch;   /* has messages that are held back; NULL: no group has */
    cudaEvent_t behind; /* the work that was queued before the last of them */
    double next_poll;
    bool watching;
    tsh_group *closing; /* a group that waits for its calls to end, and is in no list any more; or NULL */
    /* The failure that has ended the communication, until the world recovers. */
    tsh_status failed;
    char message[TSHI_MESSAGE_SIZE];
    bool abort_due;       /* of the communicators, when the capture is over that holds calls of theirs */
    tshi_nccl_kept *kept; /* end when the capture is over, and the GPU has no calls */
} tshi_nccl;

static inline tshi_nccl *tshi_nccl_of(const tsh_world *world) {
    return world->state[TSHI_NCCL_PLACE];
}

static inline tshi_cuda_device *tshi_nccl_device(const tsh_world *world) {
    return tshi_cuda(world->device);
}

/* A message that is not queued yet. */
static inline bool tshi_nccl_is_held(const tsh_work *work) {
    const tshi_nccl_event *e = work->state;
    return !work->done && e && !e->queued;
}

/* --- move.c ------------------------------------------------------------------------------------------------------- */

bool tshi_nccl_reduces(tsh_dtype dtype, tsh_reduce_op op);
/* Queues the call's data on the stream. */
ncclResult_t tshi_nccl_move(const tshi_nccl *nccl, const tsh_group *group, const tshi_comm_call *call, ncclComm_t comm,
                            cudaStream_t stream);
/* Queues the messages of the group that are held back. */
ncclResult_t tshi_nccl_move_messages(const tsh_group *group, ncclComm_t comm, cudaStream_t stream);

/* --- queue.c ------------------------------------------------------------------------------------------------------ */

/* Takes an event for a work that starts. */
tsh_status tshi_nccl_event_take(tsh_world *world, tshi_nccl_event **out);
/* Queues a call, or for a message those of its group that are held back, under the number. */
tsh_status tshi_nccl_enqueue(tsh_group *group, const tshi_comm_call *call, uint64_t number, tshi_nccl_in_flight **out);
/* Records the event of a work that has just been queued. */
tsh_status tshi_nccl_mark_queued(tsh_group *group, tshi_nccl_event *e);
/* Launches a graph that holds calls of the world's groups: it counts as a call. The device calls it. */
tsh_status tshi_nccl_launch(void *world, cudaGraphExec_t exec);
/* Gives back the event of a work. See tshi_group_ops. */
void tshi_nccl_drop(tsh_work *work);
/* Ends a work. */
void tshi_nccl_end(tsh_work *work, tsh_status status);

/* --- collective.c ------------------------------------------------------------------------------------------------- */

/* See tshi_group_ops. */
tsh_status tshi_nccl_run(tsh_group *group, const tshi_comm_call *call);
tsh_status tshi_nccl_start(tsh_work *work);
void tshi_nccl_progress(tsh_work *work);
void tshi_nccl_join(tsh_work *work);
tsh_status tshi_nccl_nap(tsh_group *group, const tsh_work *work, double since);
/* --- comm.c: calls under way, and the end of communicators -------------------------------------------------------- */

/* The present result of a call on comm that returned `result`. */
ncclResult_t tshi_nccl_result(const tshi_nccl *nccl, ncclComm_t comm, ncclResult_t result);
/* Fails with NCCL's own message. late: the call had started without an error, so that the error most often comes from
 * another rank. */
tsh_status tshi_nccl_fail(const tshi_nccl *nccl, ncclComm_t comm, ncclResult_t result, const char *what, bool late);
/* The oldest call in flight, as far as is known; NULL: all have ended. */
tshi_nccl_in_flight *tshi_nccl_oldest(tshi_nccl *nccl);
/* Keeps a communicator; ends those that are kept, when nothing is captured and no call under way. */
void tshi_nccl_comm_keep(tsh_world *world, ncclComm_t comm);
void tshi_nccl_kept_end(tsh_world *world);
/* Aborts a communicator without calls, or keeps it. */
void tshi_nccl_comm_drop(tsh_world *world, ncclComm_t comm);
/* Finalises a communicator, and destroys it; it is aborted if it does not end in time: peers may be dead, or late. */
void tshi_nccl_comm_leave(tsh_world *world, ncclComm_t comm);

/* --- failure.c: what ends the communication ----------------------------------------------------------------------- */

/* Waits until the call `what`, which returned `result`, has ended: calls of these communicators are non-blocking. */
tsh_status tshi_nccl_settle(tsh_world *world, ncclComm_t comm, ncclResult_t result, const char *what);
/* The error that calls have to return, or TSH_OK. */
tsh_status tshi_nccl_failure(tsh_group *group);
/* Checks for errors of NCCL, failures, deaths and the deadline while the host waits. Any of them ends the
 * communication: every communicator is aborted, so that the GPU continues. */
tsh_status tshi_nccl_watch(tsh_world *world);
/* tshi_nccl_watch as the device calls it. */
void tshi_nccl_watcher(void *world);
/* Ends the communication with `status` and tsh_error_message(). tell: report it to the peers. */
tsh_status tshi_nccl_stop(tsh_world *world, tsh_status status, bool tell);
/* An error of CUDA ends the communication too. */
tsh_status tshi_nccl_check(tsh_world *world, cudaError_t error, const char *what);
/* Aborts every communicator. */
void tshi_nccl_abort_all(tsh_world *world);
/* Waits, watched, until the GPU has passed the event. An error of CUDA ends the communication. */
tsh_status tshi_nccl_wait_event(tsh_world *world, cudaEvent_t event);
/* Waits until all calls have ended, because peers need this rank's part; or until the communication has ended. The
 * device calls it. */
void tshi_nccl_drain(void *world);

/* --- group.c ------------------------------------------------------------------------------------------------------ */

/* Makes a new communicator of the group's members, group->state; `status` is this rank's status so far. Collective
 * over the group. */
tsh_status tshi_nccl_comm_create(tsh_group *group, tsh_status status);
/* Chooses the stream of the group's collectives. */
tsh_status tshi_nccl_stream_take(tsh_group *group);
/* See tshi_group_ops. */
tsh_status tshi_nccl_group_split(tsh_group *parent, tsh_group *group);
void tshi_nccl_group_close(tsh_group *group);

/* --- world.c ------------------------------------------------------------------------------------------------------ */

/* The error of a world on CPUs whose TSHARD_BACKEND is nccl. */
tsh_status tshi_nccl_refuse_cpu(void);

/* --- recover.c ---------------------------------------------------------------------------------------------------- */

/* See tshi_group_ops. */
tsh_status tshi_nccl_recover(tsh_world *world);

/* --- point_to_point.c --------------------------------------------------------------------------------------------- */

/* Holds a message back. */
tsh_status tshi_nccl_message_start(tsh_work *work);
/* Queues the messages that are held back. The device calls it. */
void tshi_nccl_submit_all(void *world);
/* See tshi_group_ops. */
void tshi_nccl_submit(tsh_world *world, const tsh_work *work);

#endif
