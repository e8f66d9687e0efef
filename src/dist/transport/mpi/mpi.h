/* The backend over MPI: collectives are MPI's own, on a communicator for each group.
 *
 * A blocking call of MPI cannot be given up, so a rank enters one only when all members have made the call. Each call
 * first passes the group's entry barrier, in which a rank notices failures that peers report, ranks that have left, and
 * the deadline, and which compares the calls. It is a page of shared memory for members on one machine, a non-blocking
 * call of MPI otherwise. Two ranks exchange messages instead of collectives, all_reduce apart, and notice failures
 * throughout; asynchronous calls do so in groups of any size (exchange.c). During blocking calls a thread logs warnings
 * (watch.c). */
#ifndef TSHI_MPI_H
#define TSHI_MPI_H

#include "dist/collectives/collectives.h"
#include "dist/control/control.h"
#include "dist/control/heap_block.h"
#include "dist/rendezvous/rendezvous.h"
#include "dist/transport/mpi/watcher.h"
#include "dist/world.h"

#include <mpi.h>
#include <stdalign.h>
#include <stdatomic.h>

/* Watches the calls of MPI that block; see watch.c. */
typedef struct tshi_mpi_watch {
    _Atomic uint64_t passages; /* entries to such a call and returns from it: odd inside */
    _Atomic(const tsh_group *) group;
    tshi_watcher thread;
    /* The thread's own: the count that it saw last, since when, and when it warns next. */
    uint64_t seen;
    double since, next_warning;
} tshi_mpi_watch;

/* Seconds for which messages that a rank has sent before it left or failed may still be under way. */
#define TSHI_GRACE 0.25

/* --- the world ---------------------------------------------------------------------------------------------------- */

typedef struct tshi_mpi {
    /* Fields that each call reads are next to each other. */
    int64_t chunk; /* the most elements of one call of MPI */
    unsigned looks;
    bool watched;        /* TSHARD_CHECK */
    bool shared;         /* TSHARD_MPI_SHARED */
    bool oversubscribed; /* more ranks than cores on this machine */
    bool ready;          /* the communicators exist */
    bool rdma;
    MPI_Comm base; /* whose ranks the world has; not its own, and not used after joining */
    MPI_Comm recovery;
    MPI_Op op[TSH_DTYPE_COUNT][TSH_REDUCE_OP_COUNT];
    uint32_t epoch, tag_epochs;
    double *left;  /* [size] when this rank has seen that a rank has left, 0: not yet */
    double looked; /* when this rank last checked for deaths */
    /* The start of the wait under way, and its next warning. */
    double waiting_since, next_warning;
    uint64_t next_group; /* numbers the groups that this rank leads */
    tshi_pool messages;
    struct tshi_mpi_message *given_up; /* messages */
    tshi_mpi_watch watch;
    tsh_world *next; /* of the worlds that are ready, see tshi_mpi_list */
} tshi_mpi;

/* --- groups ------------------------------------------------------------------------------------------------------- */

/* A member of a group on one machine, in memory that all members share; see entry_barrier.c. */
typedef struct tshi_entry_member {
    alignas(128) _Atomic uint64_t
        arrived[2]; /* of even and odd barriers: a rank that has passed one may be in the next already */
    alignas(
        128) _Atomic uint64_t passed; /* the last barrier; on another line, because only ranks that give up read it */
} tshi_entry_member;

typedef struct tshi_entry_block {
    tshi_heap_block head;
    tshi_entry_member member[];
} tshi_entry_block;

enum {
    TSHI_ENTRY_PASSED = 1,
    TSHI_ENTRY_ASYNC = 2,     /* the call of some member is asynchronous, so that no member's may block */
    TSHI_ENTRY_IRREGULAR = 4, /* the parts of some member are not equal */
    TSHI_ENTRY_DIFFER = 8,
    TSHI_ENTRY_STOPPED = 16 /* some member has given up waiting */
};

typedef struct tshi_detail {
    tshi_signature signature;
    char text[TSHI_MESSAGE_SIZE];
} tshi_detail;

typedef enum tshi_phase { TSHI_IDLE, TSHI_AT_ENTRY, TSHI_COMPARING, TSHI_COUNTING, TSHI_EXCHANGING } tshi_phase;

/* The collective under way; there is one at a time. */
typedef struct tshi_mpi_op {
    tshi_phase phase;
    bool async;
    bool regular;      /* all parts are equal; after the entry barrier: those of all members */
    uint64_t identity; /* hash of what has to agree */
    tshi_signature signature;
    bool moves; /* false: the ranks only compare */
    void *out;  /* where the result goes: call.out, or scratch */
    void *scratch;
    void *kept; /* the data of a call that the caller has given up and a recovery may finish; NULL: the caller's */
    tshi_comm_call call;
    /* An exchange (exchange.c): its steps, of which `step` have been begun and `done` have ended. */
    int64_t steps, step, done;
    int64_t block;       /* elements of a step */
    int window;          /* the most steps under way */
    MPI_Request request; /* of the entry barrier, or of what the ranks compare */
    tsh_tensor *held[2];
    double trouble_seen; /* when, 0: not */
    const char *text;    /* of an agreement, else NULL */
    uint64_t mine[3];
    tshi_failure outcome; /* until the call ends: why it cannot be made */
} tshi_mpi_op;

typedef struct tshi_mpi_group {
    MPI_Comm comm;
    tshi_entry_block *block; /* NULL: the members are on several machines */
    uint64_t entered, moved; /* the last entry barrier that this rank has entered, and the last that it has passed */
    uint64_t word;           /* this rank's word in that barrier */
    double stopping;         /* when this rank gave it up, 0: not */
    tshi_mpi_op op;
    uint64_t id;
    uint64_t *all;   /* [3 * size] the numbers that members post at an entry barrier without shared memory */
    int *counts;     /* [2 * size] for MPI */
    int64_t *kept;   /* [2 * size] counts of a call that may be given up */
    int64_t *matrix; /* [2 * size * size], all_to_all with parts of its own; made when needed */
    /* Exchanges make these three when they are needed, of so many bytes. */
    MPI_Request *request; /* of the steps under way, 2 (size - 1) each */
    const void **terms;   /* [size] what a reduction has */
    void *fold;           /* blocks that are to be reduced */
    size_t request_room, terms_room, fold_room;
    tshi_detail *detail; /* [1 + size], mine first */
    uint32_t *sent;      /* [size] messages to each member */
} tshi_mpi_group;

static inline tshi_mpi *tshi_mpi_of(const tsh_world *world) {
    return world->state;
}

static inline tshi_mpi_group *tshi_mpi_group_of(const tsh_group *group) {
    return group->state;
}

/* --- world.c ------------------------------------------------------------------------------------------------------ */

/* See tshi_group_ops. */
tsh_status tshi_mpi_probe(const tshi_start *start, bool *takes);
tsh_status tshi_mpi_world_open(tsh_world *world, const tshi_start *start, void **heap);
tsh_status tshi_mpi_world_join(tsh_world *world, tsh_status mine);
bool tshi_mpi_rdma(const tsh_world *world);
void tshi_mpi_leave(tsh_world *world);
void tshi_mpi_world_close(tsh_world *world);

/* --- wireup.c ----------------------------------------------------------------------------------------------------- */

/* Starts MPI for ranks that the rendezvous has found, where no launcher of MPI has started them. */
tsh_status tshi_mpi_connect(const tshi_start *start);

/* --- start.c: MPI itself, of which a process has one -------------------------------------------------------------- */

/* Calls MPI_Init_thread, unless it was called before. */
tsh_status tshi_mpi_start(void);
/* MPI may be called here, which the program has started. */
tsh_status tshi_mpi_check_thread(void);
/* This process is a child of the one that has started MPI. */
bool tshi_mpi_is_forked(void);
/* Gathers the ranks of MPI_COMM_WORLD. Sets rank, size and threads, and start->found, unless the roster is known.
 * Starts MPI if it is not started. */
tsh_status tshi_mpi_enter(const tshi_start *start);
/* The roster of the ranks of a communicator, with the key of rank 0; every rank learns whether one has failed, and
 * why. `mine` is how this rank has fared so far. Sets what the settings take from it. out NULL: it is known. */
tsh_status tshi_mpi_roster(MPI_Comm comm, tshi_settings *settings, const tsh_allocator *allocator, tsh_status mine,
                           tshi_roster *out);
/* From now on MPI is not finalised at exit, because that could wait for ever. */
void tshi_mpi_skip_finalize(void);
/* True when the transport reads and writes memory past the CPU (RDMA). */
bool tshi_mpi_has_adapter(void);
/* A duplicate of `base`, when all its ranks have made the call; else TSH_ERR_TIMEOUT. */
tsh_status tshi_mpi_gather(MPI_Comm base, double seconds, double warn_every, const tsh_log_sink *log, MPI_Comm *out);
/* The worlds that are ready: MPI_Finalize ends them, where the program calls it before it destroys them. */
void tshi_mpi_list(tsh_world *world);
void tshi_mpi_unlist(tsh_world *world);

/* --- group.c ------------------------------------------------------------------------------------------------------ */

/* Creates group->state on a communicator of its members, which it takes over. Collective over the members. */
tsh_status tshi_mpi_group_attach(tsh_group *group, tshi_mpi_group *mg, MPI_Comm comm);
tshi_mpi_group *tshi_mpi_group_new(tsh_world *world, int size);
void tshi_mpi_group_free(tsh_world *world, tshi_mpi_group *mg);
tsh_status tshi_mpi_group_open(tsh_group *parent, const int *ranks, int n, tsh_group *group);
void tshi_mpi_group_close(tsh_group *group);

/* --- entry_barrier.c ---------------------------------------------------------------------------------------------- */

/* Enter the entry barrier with mg->op. Returns an MPI error code. */
int tshi_entry_arrive(tsh_group *group);
/* The call of MPI that an entry barrier without shared memory is. */
int tshi_entry_call(tsh_group *group, const uint64_t mine[3], MPI_Request *request);
/* The TSHI_ENTRY_* bits when the barrier is decided, else 0. */
int tshi_entry_poll(tsh_group *group, int *error);
/* "; rank 1 is stopped" for members that a signal has stopped, else "". */
const char *tshi_entry_stopped(const tsh_group *group, char *text, size_t size);
/* Resets the barrier. Collective; no member may be inside it. */
void tshi_entry_renew(tsh_group *group);
/* Give up the call; false when its barrier was passed after all, when that is not decided yet, or while its data is
 * exchanged: call again. */
bool tshi_entry_withdraw(tsh_group *group);
/* After a withdrawal: no member can pass the barrier any more, so that a recovery does not finish the call. */
bool tshi_entry_is_over(const tsh_group *group);
/* True when that member has not entered this rank's barrier, as far as can be known. */
bool tshi_entry_lacks(const tsh_group *group, int member);

/* --- types.c ------------------------------------------------------------------------------------------------------ */

MPI_Datatype tshi_mpi_type(tsh_dtype dtype);
/* Reductions of one dtype, made by tshi_mpi_ops_create. */
MPI_Op tshi_mpi_reduction(const tshi_mpi *mpi, tsh_dtype dtype, tsh_reduce_op reduce);
int tshi_mpi_ops_create(tshi_mpi *mpi);
void tshi_mpi_ops_free(tshi_mpi *mpi);
/* x /= ranks. */
void tshi_mpi_divide(tsh_device *device, tsh_dtype dtype, int64_t n, int ranks, void *x);

/* --- move.c ------------------------------------------------------------------------------------------------------- */

/* mg->op can be a blocking call of MPI; else it is made as an exchange. */
bool tshi_move_fits(const tsh_group *group);
/* Allocates the memory that the call needs. */
tsh_status tshi_move_prepare(tsh_group *group);
/* Waits for all members. Returns an MPI error code. */
int tshi_move_run(tsh_group *group);

/* --- exchange.c --------------------------------------------------------------------------------------------------- */

/* Two ranks make mg->op as an exchange in any case. */
bool tshi_exchange_is_pair(const tsh_group *group);
/* Sets the steps, and allocates what they need. */
tsh_status tshi_exchange_begin(tsh_group *group);
/* Moves what it can without waiting, until op->done is op->steps. Returns an MPI error code. */
int tshi_exchange_advance(tsh_group *group);
/* The call is given up for good: what has not come yet must not come into the caller's memory. */
void tshi_exchange_abandon(tsh_group *group);

/* --- watch.c ------------------------------------------------------------------------------------------------------ */

/* Where no thread can be started, blocking calls log no warnings. */
void tshi_watch_open(tsh_world *world);

/* Before and after a call that blocks. */
static inline void tshi_watch_pass(tsh_group *group) {
    tshi_mpi_watch *w = &tshi_mpi_of(group->world)->watch;
    uint64_t passages = atomic_load_explicit(&w->passages, memory_order_relaxed);
    atomic_store_explicit(&w->group, group, memory_order_relaxed);
    atomic_store_explicit(&w->passages, passages + 1, memory_order_release);
}

/* --- failure.c ---------------------------------------------------------------------------------------------------- */

/* While waiting: checks for deaths now and then, and answers SIGUSR1. */
void tshi_mpi_poll(tsh_world *world);
/* The rank has left at least so many seconds ago, for all that this rank knows. */
bool tshi_mpi_has_left(const tsh_world *world, int rank, double seconds);
/* The error that a call has to return now, or TSH_OK. */
tsh_status tshi_mpi_failure(tsh_world *world);
/* See tshi_group_ops.check_peers. */
tsh_status tshi_mpi_check_peers(tsh_group *group, bool look, bool waits);
/* The error while waiting for the members of a group: also when one of them has left. */
tsh_status tshi_mpi_group_failure(tsh_group *group);
/* That error when the call is given up: permanent where it has to be. */
tsh_status tshi_mpi_stop(tsh_group *group);
/* Withdraws a receive. What MPI has begun to receive goes on coming from a rank that is still there, until the
 * deadline. */
void tshi_mpi_end_receive(MPI_Request *request, double deadline);
/* Why to give up the group's call, which has been waited for since then, if there is a reason and it is safe to go. */
tsh_status tshi_mpi_poll_call(tsh_group *group, double since);
/* A failure of MPI itself, with MPI's message. Permanent. */
tsh_status tshi_mpi_error(tsh_world *world, const char *what, int error);
/* Post the ranks that this wait is for: those that have not made the group's call, or the sender of the message. */
void tshi_mpi_publish_wait(tsh_group *group, const tsh_work *message);
/* True when the wait that began at `since` has passed the deadline; before that it warns. The wait is posted until
 * tshi_mpi_end_wait. message: what is waited for; NULL: the group's call. */
bool tshi_mpi_late(tsh_group *group, const tsh_work *message, double since);
/* The deadline has passed. Permanent. message as above; what: the name of the call. */
tsh_status tshi_mpi_time_out(tsh_group *group, const tsh_work *message, const char *what);
/* Yield the processor, or sleep a little; longer as the wait lasts. */
void tshi_mpi_doze(double waited);
tsh_status tshi_mpi_nap(tsh_group *group, const tsh_work *work, double since);
void tshi_mpi_awake(tsh_group *group);
/* Ends the wait that was posted. */
void tshi_mpi_end_wait(tsh_world *world);

/* --- recover.c ---------------------------------------------------------------------------------------------------- */

tsh_status tshi_mpi_recover(tsh_world *world);

/* --- mpi.c -------------------------------------------------------------------------------------------------------- */

/* Progresses the collective under way; true when it has moved. op->outcome is valid when the phase is TSHI_IDLE. */
bool tshi_mpi_advance(tsh_group *group);
/* The call under way returns unfinished: its caller's memory is no longer used. */
void tshi_mpi_give_up(tsh_group *group);
void tshi_mpi_op_end(tsh_group *group, tsh_status status);
tsh_status tshi_mpi_agree(tsh_group *parent, const char *text, tsh_status failed);

/* --- point_to_point.c --------------------------------------------------------------------------------------------- */

tsh_status tshi_mpi_message_start(tsh_work *work);
void tshi_mpi_message_progress(tsh_work *work);
/* See tshi_group_ops.drop. */
void tshi_mpi_message_drop(tsh_work *work);
/* All messages that were given up have left MPI; frees those that have. */
bool tshi_mpi_messages_ended(tsh_world *world);
/* Receives what has been sent in the group and its receivers have given up, and discards it. */
tsh_status tshi_mpi_messages_discard(tsh_group *group);
/* How many epochs of messages have tags of their own. */
void tshi_mpi_count_tags(tshi_mpi *mpi);

#endif
