/* The transport over MPI: collectives are MPI's own, on a communicator for each group.
 *
 * Invariant: a rank enters a blocking call of MPI only when all members have made the call, because it cannot leave one
 * before they have. So each call first passes the group's entry barrier, which compares the calls, and in which a rank
 * still notices failures, ranks that have left, and the deadline. Between members on one machine it is a block of
 * shared memory, else a non-blocking call of MPI.
 *
 * Two ranks exchange messages instead, except in all_reduce, and so do started calls in groups of any size
 * (exchange.c): these notice failures throughout. During blocking calls a thread logs warnings (watch.c). */
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

/* The watch over blocking calls of MPI; see watch.c. */
typedef struct tshi_mpi_watch {
    _Atomic uint64_t passages; /* entries to a blocking call and returns from it: odd inside */
    _Atomic(const tsh_group *) group;
    tshi_watcher thread;
    /* The thread's: the last `passages` that it saw, when it saw them first, and the time of its next warning. */
    uint64_t seen;
    double since, next_warning;
} tshi_mpi_watch;

/* Seconds for which messages that a rank sent before it left or failed may still be in flight. */
#define TSHI_GRACE     0.25

#define TSHI_MPI_PLACE 3 /* in world->state */

/* --- the world ---------------------------------------------------------------------------------------------------- */

typedef struct tshi_mpi {
    /* The fields that each call reads are next to each other. */
    int64_t chunk; /* the most elements in one call of MPI */
    unsigned looks;
    bool watched;        /* TSHARD_CHECK */
    bool shared;         /* TSHARD_MPI_SHARED */
    bool oversubscribed; /* see tshi_machine_oversubscribed */
    bool ready;          /* the communicators exist */
    bool rdma;
    MPI_Comm base; /* the communicator of the world's ranks; borrowed, and not used after joining */
    MPI_Comm recovery;
    MPI_Op op[TSH_DTYPE_COUNT][TSH_REDUCE_OP_COUNT];
    uint32_t epoch, tag_epochs;
    double *left;  /* [size] when this rank noticed that a rank has left; 0: it has not */
    double looked; /* when this rank last polled for deaths */
    /* The start of the wait in progress, and its next warning. */
    double waiting_since, next_warning;
    uint64_t next_group; /* numbers the groups whose first member is this rank */
    tshi_pool messages;
    struct tshi_mpi_message *given_up; /* messages that MPI may still use */
    tshi_mpi_watch watch;
    tsh_world *next; /* in the list of ready worlds, see tshi_mpi_list */
} tshi_mpi;

/* --- groups ------------------------------------------------------------------------------------------------------- */

/* A member of a group on one machine, in memory that all members share; see entry_barrier.c. */
typedef struct tshi_entry_member {
    alignas(128) _Atomic uint64_t
        arrived[2]; /* of even and odd barriers, as a rank that has passed one may already be in the next */
    alignas(128) _Atomic uint64_t passed; /* the last barrier; on its own line, since only ranks that give up read it */
} tshi_entry_member;

typedef struct tshi_entry_block {
    tshi_heap_block head;
    tshi_entry_member member[];
} tshi_entry_block;

enum {
    TSHI_ENTRY_PASSED = 1,
    TSHI_ENTRY_ASYNC = 2,     /* some member has started the call without waiting, so no member may block in MPI */
    TSHI_ENTRY_IRREGULAR = 4, /* some member has unequal parts */
    TSHI_ENTRY_DIFFER = 8,    /* the members' hashes differ */
    TSHI_ENTRY_STOPPED = 16   /* the barrier is given up */
};

typedef struct tshi_detail {
    tshi_signature signature;
    char text[TSHI_MESSAGE_SIZE];
} tshi_detail;

typedef enum tshi_phase { TSHI_IDLE, TSHI_AT_ENTRY, TSHI_COMPARING, TSHI_COUNTING, TSHI_EXCHANGING } tshi_phase;

/* The collective in flight; a group has one at a time. */
typedef struct tshi_mpi_op {
    tshi_phase phase;
    bool async;
    bool regular;      /* this rank's parts are equal; after the entry barrier: all members' are */
    uint64_t identity; /* the hash that all members must agree on */
    tshi_signature signature;
    bool given_up; /* this rank has returned from the call, which a recovery may finish */
    void *out;     /* the target of the result: call.out, or scratch */
    void *scratch;
    void *kept; /* a copy of the data of a call that the caller has given up and a recovery may finish, or NULL */
    tshi_comm_call call;
    /* An exchange (exchange.c): its number of steps; `step` of them have begun, and `done` have ended. */
    int64_t steps, step, done;
    int64_t block;       /* elements of a step */
    int window;          /* the most steps in flight */
    MPI_Request request; /* of the entry barrier, or of the gather that compares or counts */
    tsh_tensor *held[2];
    double trouble_seen; /* when this rank first saw a failure in this call; 0: it has not */
    uint64_t mine[3];
    tshi_failure outcome; /* before the call ends: the reason why it cannot be made */
} tshi_mpi_op;

typedef struct tshi_mpi_group {
    MPI_Comm comm;
    tshi_entry_block *block; /* NULL: the members are on several machines */
    uint64_t entered, moved; /* the last entry barrier that this rank has entered, and the last that it has passed */
    uint64_t word;           /* this rank's word in that barrier */
    double stopping;         /* when this rank marked its word; 0: it has not */
    tshi_mpi_op op;
    uint64_t id;
    uint64_t *all;   /* [3 * size] the result of an entry barrier without shared memory */
    int *counts;     /* [2 * size] counts and displacements for MPI */
    int64_t *kept;   /* [2 * size] counts of a call that may be given up */
    int64_t *matrix; /* [2 * size * size] counts of an all_to_all with unequal parts; allocated when first needed */
    /* Exchanges allocate these when they first need them; below, their sizes in bytes. */
    MPI_Request *request; /* of the steps in flight, 2 (size - 1) each */
    const void **terms;   /* [size] the operands of a reduction */
    void *fold;           /* received blocks, to be reduced */
    size_t request_room, terms_room, fold_room;
    tshi_detail *detail; /* [1 + size], this rank's first */
    uint32_t *sent;      /* [size] messages to each member */
} tshi_mpi_group;

static inline tshi_mpi *tshi_mpi_of(const tsh_world *world) {
    return world->state[TSHI_MPI_PLACE];
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

/* Starts MPI for ranks that the rendezvous has found and no MPI launcher has started. */
tsh_status tshi_mpi_connect(const tshi_start *start);

/* --- start.c: MPI itself, once in a process ----------------------------------------------------------------------- */

/* Calls MPI_Init_thread, unless it was called before. */
tsh_status tshi_mpi_start(void);
/* The thread level of the program's MPI allows calls from this thread. */
tsh_status tshi_mpi_check_thread(void);
/* This process is a forked child of the one that started MPI. */
bool tshi_mpi_is_forked(void);
/* Starts MPI if needed, and gathers the ranks of MPI_COMM_WORLD. Sets rank, size and threads, and start->found unless
 * the roster is known. */
tsh_status tshi_mpi_enter(const tshi_start *start);
/* Gathers the roster of a communicator's ranks, with rank 0's key, and sets the settings that follow from it. mine:
 * this rank's status so far; if a rank has failed, all return its message. out NULL: the roster is known. */
tsh_status tshi_mpi_roster(MPI_Comm comm, tshi_settings *settings, const tsh_allocator *allocator, tsh_status mine,
                           tshi_roster *out);
/* From now on MPI is not finalised at exit: MPI_Finalize could hang. */
void tshi_mpi_skip_finalize(void);
/* This machine has an RDMA adapter. */
bool tshi_mpi_has_adapter(void);
/* Duplicates `base` once all its ranks have made the call; TSH_ERR_TIMEOUT after `seconds`. */
tsh_status tshi_mpi_gather(MPI_Comm base, double seconds, double warn_every, const tsh_log_sink *log, MPI_Comm *out);
/* The list of ready worlds. If the program calls MPI_Finalize before it destroys them, that ends them. */
void tshi_mpi_list(tsh_world *world);
void tshi_mpi_unlist(tsh_world *world);

/* --- group.c ------------------------------------------------------------------------------------------------------ */

/* Sets group->state to `mg` on a communicator of the members, which it takes over. Collective over the members. */
tsh_status tshi_mpi_group_attach(tsh_group *group, tshi_mpi_group *mg, MPI_Comm comm);
tshi_mpi_group *tshi_mpi_group_new(tsh_world *world, int size);
void tshi_mpi_group_free(tsh_world *world, tshi_mpi_group *mg);
tsh_status tshi_mpi_group_prepare(tsh_group *group, uint64_t *address);
tsh_status tshi_mpi_group_open(tsh_group *group, uint64_t address);
void tshi_mpi_group_close(tsh_group *group);

/* --- entry_barrier.c ---------------------------------------------------------------------------------------------- */

/* Enters the entry barrier with mg->op. Returns an MPI error code. */
int tshi_entry_arrive(tsh_group *group);
/* Starts the call of MPI that is the entry barrier of a group without shared memory. */
int tshi_entry_call(tsh_group *group, const uint64_t mine[3], MPI_Request *request);
/* The TSHI_ENTRY_* bits when the barrier is decided, else 0. */
int tshi_entry_poll(tsh_group *group, int *error);
/* "; rank 1 is stopped" for members that a signal has stopped, else "". */
const char *tshi_entry_stopped(const tsh_group *group, char *text, size_t size);
/* Resets the barrier. Collective; no member may be inside it. */
void tshi_entry_renew(tsh_group *group);
/* Gives up the call. False if its barrier was passed after all, if that is still undecided, or while its data is
 * exchanged: the caller calls again later. */
bool tshi_entry_withdraw(tsh_group *group);
/* After a withdrawal: no member can pass the barrier any more, so a recovery need not finish the call. */
bool tshi_entry_is_over(const tsh_group *group);
/* That member has not entered this rank's barrier, or without shared memory may not have. */
bool tshi_entry_lacks(const tsh_group *group, int member);

/* --- types.c ------------------------------------------------------------------------------------------------------ */

MPI_Datatype tshi_mpi_type(tsh_dtype dtype);
/* MPI's own reduction, or one made by tshi_mpi_ops_create. */
MPI_Op tshi_mpi_reduction(const tshi_mpi *mpi, tsh_dtype dtype, tsh_reduce_op reduce);
int tshi_mpi_ops_create(tshi_mpi *mpi);
void tshi_mpi_ops_free(tshi_mpi *mpi);
/* x /= ranks. */
void tshi_mpi_divide(tsh_device *device, tsh_dtype dtype, int64_t n, int ranks, void *x);

/* --- move.c ------------------------------------------------------------------------------------------------------- */

/* mg->op fits a blocking call of MPI; else it is made as an exchange. */
bool tshi_move_fits(const tsh_group *group);
/* Allocates the memory that the call needs. */
tsh_status tshi_move_prepare(tsh_group *group);
/* Runs the blocking call. Returns an MPI error code. */
int tshi_move_run(tsh_group *group);

/* --- exchange.c --------------------------------------------------------------------------------------------------- */

/* mg->op is always made as an exchange: the group has two ranks. */
bool tshi_exchange_is_pair(const tsh_group *group);
/* Sets the steps, and allocates their requests and buffers. */
tsh_status tshi_exchange_begin(tsh_group *group);
/* Advances the exchange without waiting; it is complete when op->done is op->steps. Returns an MPI error code. */
int tshi_exchange_advance(tsh_group *group);
/* The call is given up for good: cancels receives into the caller's memory. */
void tshi_exchange_abandon(tsh_group *group);

/* --- watch.c ------------------------------------------------------------------------------------------------------ */

/* If no thread can be started, blocking calls log no warnings. */
void tshi_watch_open(tsh_world *world);

/* Called before and after a blocking call. */
static inline void tshi_watch_pass(tsh_group *group) {
    tshi_mpi_watch *w = &tshi_mpi_of(group->world)->watch;
    uint64_t passages = atomic_load_explicit(&w->passages, memory_order_relaxed);
    atomic_store_explicit(&w->group, group, memory_order_relaxed);
    atomic_store_explicit(&w->passages, passages + 1, memory_order_release);
}

/* --- failure.c ---------------------------------------------------------------------------------------------------- */

/* Called while waiting: polls for deaths every 20 ms, and answers SIGUSR1. */
void tshi_mpi_poll(tsh_world *world);
/* This rank noticed at least `seconds` ago that the rank has left. */
bool tshi_mpi_has_left(const tsh_world *world, int rank, double seconds);
/* The error that a call has to return now, or TSH_OK. */
tsh_status tshi_mpi_failure(tsh_world *world);
/* See tshi_group_ops.check_peers. */
tsh_status tshi_mpi_check_peers(tsh_group *group, bool look, bool waits);
/* As above for a rank that waits for the group's members: also an error if one of them has left. */
tsh_status tshi_mpi_group_failure(tsh_group *group);
/* Returns that error from a call that is given up. A member that has left breaks the world. */
tsh_status tshi_mpi_stop(tsh_group *group);
/* Cancels a receive. If MPI has already begun to receive the message, waits for the rest until the deadline. */
void tshi_mpi_end_receive(MPI_Request *request, double deadline);
/* The error with which to give up the group's call, waited for since `since`, if there is one and the caller's memory
 * is no longer used; else TSH_OK. */
tsh_status tshi_mpi_poll_call(tsh_group *group, double since);
/* Returns an MPI error, with MPI's message. Breaks the world. */
tsh_status tshi_mpi_error(tsh_world *world, const char *what, int error);
/* Publishes in the wait graph the ranks that have not made the group's call, or the message's peer. */
void tshi_mpi_publish_wait(tsh_group *group, const tsh_work *message);
/* True if the wait that began at `since` has passed the deadline; before that it warns. The wait stays published until
 * tshi_mpi_end_wait. message: the message waited for; NULL: the group's call. */
bool tshi_mpi_late(tsh_group *group, const tsh_work *message, double since);
/* Returns the error of a passed deadline. Breaks the world. message as above. */
tsh_status tshi_mpi_time_out(tsh_group *group, const tsh_work *message);
/* Yields the processor for the first 2 ms of a wait, then sleeps, longer as the wait lasts. */
void tshi_mpi_doze(double waited);
tsh_status tshi_mpi_nap(tsh_group *group, const tsh_work *work, double since);
void tshi_mpi_awake(tsh_group *group);
/* Ends the published wait. */
void tshi_mpi_end_wait(tsh_world *world);

/* --- recover.c ---------------------------------------------------------------------------------------------------- */

tsh_status tshi_mpi_recover(tsh_world *world);

/* --- collective.c ------------------------------------------------------------------------------------------------- */

/* Advances the collective in flight; true if it has made progress. op->outcome is valid when the phase is TSHI_IDLE. */
bool tshi_mpi_advance(tsh_group *group);
/* Prepares the call in flight for returning unfinished: the caller's memory is no longer used. */
void tshi_mpi_give_up(tsh_group *group);
void tshi_mpi_op_end(tsh_group *group, tsh_status status);

/* --- point_to_point.c --------------------------------------------------------------------------------------------- */

tsh_status tshi_mpi_message_start(tsh_work *work);
void tshi_mpi_message_progress(tsh_work *work);
/* See tshi_group_ops.drop. */
void tshi_mpi_message_drop(tsh_work *work);
/* Frees the given-up messages that MPI no longer uses. True if none is left. */
bool tshi_mpi_messages_ended(tsh_world *world);
/* Receives and discards messages of the group whose receives were given up. */
tsh_status tshi_mpi_messages_discard(tsh_group *group);
/* Sets mpi->tag_epochs, the number of epochs whose messages have distinct tags. */
void tshi_mpi_count_tags(tshi_mpi *mpi);

#endif
