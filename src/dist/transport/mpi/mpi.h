/* The transport over MPI: messages between two ranks, in non-blocking calls that this rank progresses only inside the
 * library's calls. Collectives are schedules of such messages (schedule.h). All groups of a world share a communicator,
 * and a message's tag names its group, epoch and call (tag.c). */
#ifndef TSHI_MPI_H
#define TSHI_MPI_H

#include "dist/collectives/schedule.h"
#include "dist/control/control.h"
#include "dist/rendezvous/rendezvous.h"
#include "dist/world.h"

#include <mpi.h>

/* Seconds for which messages that a rank sent before it left or failed may still be in flight. */
#define TSHI_GRACE     0.25

#define TSHI_MPI_PLACE 3 /* in world->state */

/* --- the world ---------------------------------------------------------------------------------------------------- */

typedef struct tshi_mpi {
    int64_t chunk; /* the most bytes in one call of MPI, whose counts are ints */
    unsigned looks;
    bool oversubscribed; /* see tshi_machine_oversubscribed */
    bool ready;          /* the communicator exists */
    bool rdma;
    MPI_Comm base; /* the communicator of the world's ranks; borrowed, and not used after joining */
    MPI_Comm comm; /* a duplicate of it */
    double *left;  /* [size] when this rank noticed that a rank has left; 0: it has not */
    double looked; /* when this rank last polled for deaths */
    /* The start of the wait in progress, and its next warning. */
    double waiting_since, next_warning;
    /* Numbers of groups (tag.c): how many tags can tell apart, those of this rank's groups as bits, and the next. */
    uint32_t group_numbers, message_numbers, next_group;
    uint64_t *taken;
    tshi_pool messages;
    struct tshi_mpi_message *given_up; /* messages that MPI may still use */
    /* The message that is being received to be discarded (recover.c). */
    MPI_Request discarding;
    void *discarded;
    tsh_world *next; /* in the list of ready worlds, see tshi_mpi_list */
} tshi_mpi;

/* --- groups ------------------------------------------------------------------------------------------------------- */

typedef struct tshi_mpi_group {
    tshi_schedule call;           /* the collective in flight */
    double trouble_seen;          /* when this rank first saw a failure in this call; 0: it has not */
    uint32_t number;              /* the same on all members, and of no other group that one of them is in */
    uint32_t *sent;               /* [size] messages to each member */
    struct tshi_mpi_claim *claim; /* while the group is opened */
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

/* --- tag.c: group, epoch and call of a message -------------------------------------------------------------------- */

typedef enum tshi_purpose { TSHI_FOR_CALL, TSHI_FOR_HEADER, TSHI_FOR_DATA, TSHI_FOR_REPLY } tshi_purpose;

int tshi_mpi_tag(const tsh_group *group, tshi_purpose purpose, uint64_t number);
/* Divides the tags of MPI between groups, epochs and messages. */
tsh_status tshi_mpi_count_tags(tsh_world *world);
/* Bytes of a claim. */
size_t tshi_mpi_claim_bytes(const tshi_mpi *mpi);
/* Gives the group a number, the same on all members. mg->claim is allocated. Collective over the group, waits. */
tsh_status tshi_mpi_number_take(tsh_group *group);
void tshi_mpi_number_give(tshi_mpi *mpi, uint32_t number);

/* --- group.c ------------------------------------------------------------------------------------------------------ */

/* See tshi_group_ops. prepare also makes the state of the world's group, which needs no open. */
tsh_status tshi_mpi_group_prepare(tsh_group *group, uint64_t *address);
tsh_status tshi_mpi_group_open(tsh_group *group, uint64_t address);
void tshi_mpi_group_close(tsh_group *group);

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
/* After tshi_mpi_group_failure has found an error: returns it once the group's call has been given up, and until then
 * TSH_OK. No message uses the caller's memory any more, unless the world is broken. */
tsh_status tshi_mpi_give_up(tsh_group *group);
/* The error with which the group's call, waited for since `since`, has been given up; else TSH_OK. */
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
/* See tshi_group_ops. */
void tshi_mpi_restart(tsh_group *group);

/* --- point_to_point.c --------------------------------------------------------------------------------------------- */

tsh_status tshi_mpi_message_start(tsh_work *work);
void tshi_mpi_message_progress(tsh_work *work);
/* See tshi_group_ops.drop. */
void tshi_mpi_message_drop(tsh_work *work);
/* Frees the given-up messages that MPI no longer uses. True if none is left. */
bool tshi_mpi_messages_ended(tsh_world *world);
/* Receives and discards all messages to this rank for which no receive is posted. */
tsh_status tshi_mpi_messages_discard(tsh_world *world);

#endif
