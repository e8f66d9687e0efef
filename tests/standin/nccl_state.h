/* The stand-in of NCCL from the inside: what its files share. */
#ifndef STANDIN_NCCL_STATE_H
#define STANDIN_NCCL_STATE_H

#include "standin/nccl.h"
#include "standin/standin.h"

#include <pthread.h>
#include <stddef.h>

#define MOST_RANKS 16
#define MOST_COMMS 512
#define ID_AT      (NCCL_UNIQUE_ID_BYTES - 32) /* where the text of an id begins */

/* One rank's side of one call; collectives have a number, messages a peer. */
typedef struct part {
    enum { ALL_REDUCE, REDUCE, BROADCAST, ALL_GATHER, REDUCE_SCATTER, SEND, RECV } kind;
    const void *in;
    void *out;
    size_t count;
    ncclDataType_t type;
    ncclRedOp_t op;
    int root;        /* or the peer */
    uint64_t number; /* of the communicator's collectives, when it starts on the GPU */
    bool done;
    bool published; /* its file is there, where ranks are processes */
    ncclComm_t comm;
    struct part *next_launched;
    struct part *next; /* of the batch */
} part;

/* What one call, or one group of calls, queues on a stream for one communicator. */
typedef struct batch {
    ncclComm_t comm;
    cudaStream_t stream;
    part *first, *last;
    bool launched;
    bool captures; /* its stream was captured at the call */
    bool captured; /* in a graph, whose launches have copies */
    struct batch *next;
} batch;

typedef struct clique {
    char id[NCCL_UNIQUE_ID_BYTES];
    int size, joined, uses;
    part *launched;
    struct clique *next;
} clique;

typedef struct split {
    clique *parent;
    uint64_t number;
    int size, here;
    struct {
        int color, key, rank;
        ncclComm_t comm, *out;
    } member[MOST_RANKS];
    struct split *next;
} split;

struct ncclComm {
    clique *clique; /* NULL until a split is decided */
    int rank, size, uses;
    int gpu;
    uint64_t calls, splits; /* so far */
    int busy, asked;        /* looks until the call under way is done; those since then */
    int due;                /* what is left of busy when the call is queued */
    batch *waiting;         /* to be queued then */
    bool splitting, aborted, finalizing, closed;
    bool charged;          /* it has its memory */
    int captured;          /* batches in graphs that live: the communicator cannot end before them */
    ncclComm_t next_abort; /* of a group */
    ncclResult_t error;
    uint64_t sent[MOST_RANKS], received[MOST_RANKS]; /* messages, where ranks are processes */
};

/* --- nccl.c: communicators ---------------------------------------------------------------------------------------- */

/* Held inside the runtime's lock, never around it. */
extern pthread_mutex_t standin_nccl_lock;

_Noreturn void standin_nccl_die(const char *message);
/* A call that has to fail: its code. */
bool standin_nccl_fails(const char *name, ncclResult_t usual, ncclResult_t *result);
/* Dies where it is none. */
void standin_nccl_check(ncclComm_t comm);
/* One use of it less: the handle's, or that of what was queued. */
void standin_nccl_release(ncclComm_t comm);

/* The end of a communicator whose calls have been told to end: waits for the GPU. */
void standin_nccl_reclaim(ncclComm_t comm);
/* Inside of ncclGroupStart, on this thread: it is aborted with the others of the group. */
bool standin_nccl_abort_later(ncclComm_t comm);

/* --- nccl_calls.c ------------------------------------------------------------------------------------------------ */

/* Queues the communicator's calls that are due. Called without the lock. */
void standin_nccl_enqueue(ncclComm_t comm);
/* Drops those that are not queued. */
void standin_nccl_forget(ncclComm_t comm);

/* --- nccl_data.c -------------------------------------------------------------------------------------------------- */

size_t standin_nccl_size(ncclDataType_t type);
/* All ranks' parts of a collective. */
void standin_nccl_move(part *const *all, int ranks);

/* --- nccl_processes.c --------------------------------------------------------------------------------------------- */

/* Ranks are processes: the environment names a folder that they share. The functions below do nothing otherwise, but
 * for standin_nccl_is_complete. */
bool standin_nccl_apart(void);
void standin_nccl_publish_join(const clique *c, int rank);
/* All ranks have joined. */
bool standin_nccl_is_complete(clique *c);
/* Publishes the colour and key of this process's rank, the first member of the split; adds those of the others when all
 * are there. */
void standin_nccl_publish_split(const split *s, int rank);
void standin_nccl_complete_split(split *s);
/* Does of a launched call what the other ranks' files allow. */
void standin_nccl_progress_apart(part *p);

#endif
