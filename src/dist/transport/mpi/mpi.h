/* The transport over MPI: tagged messages between two ranks (dist/tagged). All groups of a world share a communicator,
 * and a message's tag names its group, epoch and call (tag.c). */
#ifndef TSHI_MPI_H
#define TSHI_MPI_H

#include "dist/rendezvous/rendezvous.h"
#include "dist/tagged/tagged.h"

#include <mpi.h>

#define TSHI_MPI_PLACE 3 /* in world->state */

/* --- the world ---------------------------------------------------------------------------------------------------- */

typedef struct tshi_mpi {
    tshi_tagged tagged;
    bool ready; /* the communicator exists */
    bool rdma;
    MPI_Comm base; /* the communicator of the world's ranks; borrowed, and not used after joining */
    MPI_Comm comm; /* a duplicate of it */
    /* Numbers of groups (tag.c): how many tags can tell apart, those of this rank's groups as bits, and the next. */
    uint32_t group_numbers, message_numbers, next_group;
    uint64_t *taken;
    /* The message that is being received to be discarded. */
    MPI_Request discarding;
    void *discarded;
    tsh_world *next; /* in the list of ready worlds, see tshi_mpi_list */
} tshi_mpi;

/* --- groups ------------------------------------------------------------------------------------------------------- */

typedef struct tshi_mpi_group {
    tshi_tagged_group tagged;
    uint32_t number;              /* the same on all members, and of no other group that one of them is in */
    struct tshi_mpi_claim *claim; /* while the group is opened */
} tshi_mpi_group;

static inline tshi_mpi *tshi_mpi_of(const tsh_world *world) {
    return world->state[TSHI_MPI_PLACE];
}

/* --- world.c ------------------------------------------------------------------------------------------------------ */

/* See tshi_group_ops. */
void tshi_mpi_leave(tsh_world *world);

/* --- start.c: MPI itself, once in a process ----------------------------------------------------------------------- */

/* The thread level of the program's MPI allows calls from this thread. */
tsh_status tshi_mpi_check_thread(void);
/* Starts MPI if needed, and gathers the ranks of MPI_COMM_WORLD. Sets rank, size and threads, and start->found unless
 * the roster is known. */
tsh_status tshi_mpi_enter(const tshi_start *start);
/* Gathers the roster of a communicator's ranks, with rank 0's key, and sets the settings that follow from it. mine:
 * this rank's status so far; if a rank has failed, all return its message. out NULL: the roster is known. */
tsh_status tshi_mpi_roster(MPI_Comm comm, tshi_settings *settings, const tsh_allocator *allocator, tsh_status mine,
                           tshi_roster *out);
/* From now on MPI is not finalised at exit: MPI_Finalize could hang. */
void tshi_mpi_skip_finalize(void);
/* Duplicates `base` once all its ranks have made the call; TSH_ERR_TIMEOUT after `seconds`. */
tsh_status tshi_mpi_gather(MPI_Comm base, double seconds, double warn_every, const tsh_log_sink *log, MPI_Comm *out);
/* The list of ready worlds. If the program calls MPI_Finalize before it destroys them, that ends them. */
void tshi_mpi_list(tsh_world *world);
void tshi_mpi_unlist(tsh_world *world);

/* --- tag.c: group, epoch and call of a message -------------------------------------------------------------------- */

/* The tag of MPI for one of tagged.h. */
int tshi_mpi_tag(const tsh_group *group, uint64_t tag);
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

/* --- message.c ---------------------------------------------------------------------------------------------------- */

extern const tshi_message_ops tshi_mpi_messages;
/* Returns an MPI error, with MPI's message. Breaks the world. */
tsh_status tshi_mpi_error(tsh_world *world, const char *what, int error);

#endif
