/* The data backend of GPUs: NCCL moves the data of ranks that a control backend (local, mpi) connects.
 *
 * A group's control group agrees on what is opened, matches sends with receives (NCCL requires both sides to queue
 * messages in one order: the order of the matches), and reports failures and deaths. Collectives are queued on the
 * device's communication stream, behind the work queued on its compute stream; the host does not wait. A collective
 * that a peer does not queue never ends by itself: wherever the host waits for the GPU it calls tshi_nccl_watch, which
 * aborts the communicators when a peer is lost. */
#ifndef TSHI_NCCL_H
#define TSHI_NCCL_H

#include "device/cuda/stream.h"
#include "dist/collectives/collectives.h"
#include "dist/rendezvous/environment.h"
#include "dist/transport/nccl/header.h"
#include "dist/world.h"

/* NCCL's functions, by their names. Those of symmetric memory, the last four, may be NULL. */
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
    ncclResult_t (*mem_alloc)(void **, size_t);
    ncclResult_t (*mem_free)(void *);
    ncclResult_t (*window_register)(ncclComm_t, void *, size_t, ncclWindow_t *, int);
    ncclResult_t (*window_deregister)(ncclComm_t, ncclWindow_t);
} tshi_nccl_library;

/* Opens the library, once a process. TSH_ERR_UNSUPPORTED with the loader's message. */
tsh_status tshi_nccl_library_open(const tshi_nccl_library **out);

/* A CUDA event that a work waits for. */
typedef struct tshi_nccl_event {
    cudaEvent_t event;
    uint64_t capture;             /* that it was recorded in, where it is never queried; 0: none */
    struct tshi_nccl_event *next; /* of those that are free */
} tshi_nccl_event;

/* A call in flight on one of the communication streams, whose calls end in their order. */
typedef struct tshi_nccl_in_flight {
    tsh_group *group; /* NULL: none */
    cudaEvent_t before, after;
    char name[TSHI_LINE / 4]; /* "all_reduce #3" */
    double left_after;        /* s; a peer that has left has done its part by then, or never will */
    double ready_since;       /* when the host first saw that it could run; 0: not yet */
} tshi_nccl_in_flight;

/* OWN: the link has a communicator and a stream. OFFERED: the sender has made them, and its peer has not said yet
 * whether its GPU has room too. SHARED: it has none; its messages take the shared link (shared.c). */
typedef enum tshi_nccl_way { TSHI_OWN, TSHI_OFFERED, TSHI_SHARED } tshi_nccl_way;

/* The link of a group's messages from one rank to another, on either: a communicator of the two, made when their first
 * message is matched with its receive, and a stream of its own. A message is queued there when both sides have matched
 * it, behind the kernels that were queued when the call was made: so any order of calls ends that would end with
 * messages that the host moves (link.c says why links share neither). Where the GPU has too few queues for all links,
 * those that come last have neither. */
typedef struct tshi_nccl_link {
    tsh_group *group;
    int peer;
    bool sends;
    tshi_nccl_way way;
    ncclUniqueId id; /* the sender's; it is sent with every match */
    ncclComm_t comm; /* of sender and receiver, in this order */
    bool ready;      /* the communicator can be used */
    ncclResult_t result;
    cudaStream_t stream;
    tshi_nccl_in_flight last; /* the message queued last */
    const tsh_work *busy;     /* NCCL is about to queue this one */
    struct tshi_nccl_link *next;
} tshi_nccl_link;

/* A message under way. ENQUEUEING: NCCL has been called and has not queued it yet. */
typedef enum tshi_nccl_stage { TSHI_UNMATCHED, TSHI_MATCHED, TSHI_ENQUEUEING, TSHI_QUEUED } tshi_nccl_stage;

/* How far the agreement on a message of a shared link has come: no note yet, a note to the peer, one from it, both
 * sides' consent. */
typedef enum tshi_nccl_turn { TSHI_NOT_YET, TSHI_NOTE_SENT, TSHI_NOTE_RECEIVED, TSHI_AGREED } tshi_nccl_turn;

/* What a sender's call says to its receive. */
typedef struct tshi_nccl_ticket {
    ncclUniqueId id;
    uint64_t number; /* of the sender's messages */
    uint32_t offers; /* the link is OFFERED or OWN */
} tshi_nccl_ticket;

typedef struct tshi_nccl_message {
    tshi_nccl_stage stage;
    tshi_nccl_turn turn;
    int peer, sender;          /* ranks of the world, once it is matched */
    uint64_t ticketed;         /* the ticket's number */
    tsh_work *match;           /* of the control group, until it is matched */
    void *ticket;              /* TSHI_TICKET bytes of world->host: a tshi_nccl_ticket */
    cudaEvent_t before, after; /* the work queued when the call was made; the message */
    uint64_t number;
    double matched;       /* the time when it was matched */
    tshi_nccl_link *link; /* NULL before that */
    struct tshi_nccl_message *next;
} tshi_nccl_message;

/* A communicator whose group or link has gone, during a capture that holds calls of it, or while this GPU had calls of
 * others to end: NCCL waits for both in its end, where no watch sees it, and the peers of those calls may wait for what
 * this host does next. */
typedef struct tshi_nccl_kept {
    ncclComm_t comm;
    struct tshi_nccl_kept *next;
} tshi_nccl_kept;

/* A communicator's window on symmetric memory; NCCL may fill it in after the call. */
typedef struct tshi_nccl_window {
    ncclComm_t comm;
    ncclWindow_t window;
    struct tshi_nccl_window *next;
} tshi_nccl_window;

typedef struct tshi_nccl_note_slot tshi_nccl_note_slot;

/* The shared link of this rank. */
typedef struct tshi_nccl_shared {
    tsh_group *group;     /* all ranks: its communicator moves the messages, its control group notes about them. NULL:
                                * the GPUs have queues for a link to and from each rank of the world */
    tshi_nccl_link *link; /* in the list of links; NULL before the first message */
    tshi_nccl_note_slot *receive; /* of the next note; NULL before the first message */
    tshi_nccl_note_slot *sent;
    uint64_t tickets;
} tshi_nccl_shared;

#define TSHI_NCCL_AHEAD 128

/* world->data_state. */
typedef struct tshi_nccl {
    const tshi_nccl_library *library;
    bool checked; /* TSHARD_CHECK=1: every call is agreed upon first */
    tshi_nccl_event *events;
    void *barrier_buffer; /* in device memory, for barriers */
    int streams, opened;  /* communication streams that groups take in turn; groups so far */
    /* The numbers of collectives that have been queued, and that are known to have ended. A host that is
     * TSHI_NCCL_AHEAD collectives ahead of its GPU waits. The last entry of calls is for those of a captured graph,
     * which are not counted. */
    uint64_t queued, done;
    tshi_nccl_in_flight calls[TSHI_NCCL_AHEAD + 1];
    int queues;            /* of the GPU that has the fewest */
    tshi_nccl_link *links; /* of all groups */
    tshi_nccl_shared shared;
    bool oversubscribed;         /* the log has warned of more streams than the GPU has queues */
    tshi_nccl_message *messages; /* that are free */
    void *arena;                 /* symmetric memory, or NULL */
    size_t arena_bytes;
    tshi_nccl_window *windows; /* on it, of all groups */
    double next_warning;       /* about a call that takes long */
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
    return world->data_state;
}

static inline tshi_cuda_device *tshi_nccl_device(const tsh_world *world) {
    return tshi_cuda(world->device);
}

/* --- move.c ------------------------------------------------------------------------------------------------------- */

bool tshi_nccl_reduces(tsh_dtype dtype, tsh_reduce_op op);
/* Queues the call's data on the stream. */
ncclResult_t tshi_nccl_move(const tshi_nccl *nccl, const tsh_group *group, const tshi_comm_call *call, ncclComm_t comm,
                            cudaStream_t stream);

/* --- collective.c ------------------------------------------------------------------------------------------------- */

/* Launches a graph that holds calls of the world's groups: it counts as a call. The device calls it. */
tsh_status tshi_nccl_launch(void *world, cudaGraphExec_t exec);
/* See tshi_group_ops. */
tsh_status tshi_nccl_run(tsh_group *group, const tshi_comm_call *call);
tsh_status tshi_nccl_start(tsh_work *work);
void tshi_nccl_progress(tsh_work *work);
void tshi_nccl_drop(tsh_work *work);
void tshi_nccl_join(tsh_work *work);
tsh_status tshi_nccl_nap(tsh_group *group, const tsh_work *work, double since);
void tshi_nccl_awake(tsh_group *group);

/* --- comm.c: calls under way, and the end of communicators -------------------------------------------------------- */

/* The present result of a call on comm that returned `result`. */
ncclResult_t tshi_nccl_result(const tshi_nccl *nccl, ncclComm_t comm, ncclResult_t result);
/* Fails with NCCL's own message. late: the call had started without an error, so that the error most often comes from
 * another rank. */
tsh_status tshi_nccl_fail(const tshi_nccl *nccl, ncclComm_t comm, ncclResult_t result, const char *what, bool late);
/* The oldest collective in flight, as far as is known; NULL: all have ended. */
tshi_nccl_in_flight *tshi_nccl_oldest(tshi_nccl *nccl);
/* No call is in flight on any stream. */
bool tshi_nccl_idle(tshi_nccl *nccl);
/* The link in the list of windows that leads to the communicator's window, or to NULL. */
tshi_nccl_window **tshi_nccl_window_of(tshi_nccl *nccl, const void *comm);
/* Drops the window of a communicator that was aborted. */
void tshi_nccl_window_forget(tsh_world *world, ncclComm_t comm);
/* Called before the communicator, which is in no group any more, is finalised. */
void tshi_nccl_window_close(tsh_world *world, ncclComm_t comm, double until);
/* Keeps a communicator; ends those that are kept, when nothing is captured and no call under way. */
void tshi_nccl_comm_keep(tsh_world *world, ncclComm_t comm);
void tshi_nccl_kept_end(tsh_world *world);
/* Aborts a communicator without calls, or keeps it. */
void tshi_nccl_comm_drop(tsh_world *world, ncclComm_t comm);
/* Finalises a communicator and its window. */
void tshi_nccl_comm_leave(tsh_world *world, ncclComm_t comm);
/* Ends a communicator of which ncclCommFinalize has returned `result`; it is aborted if it has not ended by `until`. */
void tshi_nccl_comm_end(const tshi_nccl *nccl, ncclComm_t comm, ncclResult_t result, double until);
/* Seconds that the end of a communicator may take: peers may be dead, or late. */
double tshi_nccl_patience(const tsh_world *world);

/* --- failure.c: what ends the communication ----------------------------------------------------------------------- */

/* Waits until the call `what`, which returned `result`, has ended: calls of these communicators are non-blocking. poll:
 * does not wait; *done says whether it has ended. */
tsh_status tshi_nccl_settle(tsh_world *world, ncclComm_t comm, ncclResult_t result, const char *what);
tsh_status tshi_nccl_poll(tsh_world *world, ncclComm_t comm, ncclResult_t result, const char *what, bool *done);
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
/* Waits until the call queued last on a link, or until all collectives, have ended, because peers need this rank's
 * part; or until the communication has ended. */
void tshi_nccl_flush(tsh_world *world, const tshi_nccl_in_flight *entry);
void tshi_nccl_flush_all(tsh_world *world);
/* Waits, as tshi_nccl_flush does, for all collectives and all messages that are queued. The device calls it. */
void tshi_nccl_drain(void *world);

/* --- group.c ------------------------------------------------------------------------------------------------------ */

/* Makes a new communicator of the group's members, group->state; `status` is this rank's status so far. Collective
 * over the group. */
tsh_status tshi_nccl_comm_create(tsh_group *group, tsh_status status);
/* Registers symmetric memory with the group's communicator. Where that fails on any rank the group gets another
 * communicator, without a window. Collective over the group. */
tsh_status tshi_nccl_comm_register(tsh_group *group);
/* Chooses the stream of the group's collectives. */
tsh_status tshi_nccl_stream_take(tsh_group *group);
/* See tshi_group_ops. */
tsh_status tshi_nccl_group_open(tsh_group *parent, const int *ranks, int n, tsh_group *group);
void tshi_nccl_group_close(tsh_group *group);

/* --- recover.c ---------------------------------------------------------------------------------------------------- */

/* See tshi_group_ops. */
tsh_status tshi_nccl_recover(tsh_world *world);

/* --- symmetric.c: memory that every rank has at the same offset --------------------------------------------------- */

/* Opens the world's arena, if all ranks want one of the same size and can allocate it. Called after the world's
 * communicator is made; collective. */
tsh_status tshi_nccl_arena_open(tsh_world *world);
/* Called after the last communicator is destroyed. */
void tshi_nccl_arena_close(tsh_world *world);
/* Registers the arena with the group's new communicator. False: a rank has failed, and the group has none any more.
 * Collective over the group. */
bool tshi_nccl_window_open(tsh_group *group);
/* See tshi_group_ops. */
bool tshi_nccl_symmetric(const tsh_group *group);

/* --- link.c: the ways of messages --------------------------------------------------------------------------------- */

/* Queues of this process's GPU. */
int tshi_nccl_queues(void);
/* Streams of this rank with links of their own to and from each rank of the world, and some groups beside it. */
int tshi_nccl_streams_to_all(const tsh_world *world);
/* Logs, once, that there are more streams than queues: those that share one wait for each other as if they were one. */
void tshi_nccl_warn_of_streams(tsh_world *world);
/* The group's link to or from `peer`, made if there is none. offered: the sender has one of its own to offer, or this
 * rank is the sender. */
tsh_status tshi_nccl_link_get(tsh_group *group, int peer, bool sends, bool offered, tshi_nccl_link **out);
/* The peer has accepted or refused what this rank has offered. */
void tshi_nccl_link_decide(tsh_world *world, tshi_nccl_link *link, bool accepted);
/* The shared link, made if there is none. */
tsh_status tshi_nccl_link_shared(tsh_world *world, tshi_nccl_link **out);
ncclComm_t tshi_nccl_link_comm(const tshi_nccl_link *link);
/* Makes the communicator when both sides have matched a message. *ready: it can be used. Does not wait. */
tsh_status tshi_nccl_link_open(tshi_nccl_link *link, const void *ticket, bool *ready);
/* Closes the links of a group (NULL: of all groups), after their last message. */
void tshi_nccl_links_close(tsh_world *world, const tsh_group *group);

/* --- shared.c: messages of links that share one ------------------------------------------------------------------- */

/* Frees the notes in flight. */
void tshi_nccl_shared_close(tsh_world *world);
/* Tells the sender whether its link is accepted. */
tsh_status tshi_nccl_answer(tsh_world *world, const tshi_nccl_message *m, bool accepts);
/* Reads notes. Does not wait. */
tsh_status tshi_nccl_shared_progress(tsh_world *world);
/* Advances a message of a shared link. *turn: it is to be queued now, on the shared link. */
tsh_status tshi_nccl_shared_turn(tsh_work *work, bool *turn);

/* --- point_to_point.c: see tshi_group_ops ------------------------------------------------------------------------- */

tsh_status tshi_nccl_message_start(tsh_work *work);
void tshi_nccl_message_progress(tsh_work *work);
void tshi_nccl_message_join(tsh_work *work);
void tshi_nccl_message_drop(tsh_work *work);
/* The work in the control group by which the message is matched; NULL: it is matched. */
const tsh_work *tshi_nccl_message_match(const tsh_work *work);
/* True when the message is queued on the GPU; true when a message of the group is. */
bool tshi_nccl_message_queued(const tsh_work *work);
bool tshi_nccl_messages_queued(const tsh_group *group);
void tshi_nccl_messages_free(tsh_world *world);

#endif
