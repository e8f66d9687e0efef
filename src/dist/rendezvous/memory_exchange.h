/* How the ranks of one machine come to share memory: rank 0 sends each a descriptor over an abstract Unix socket. */
#ifndef TSHI_MEMORY_EXCHANGE_H
#define TSHI_MEMORY_EXCHANGE_H

#include "dist/rendezvous/environment.h"

/* What rank 0 knows of all ranks once they are there. */
typedef struct tshi_memory_ranks {
    int size;
    size_t *heap_bytes; /* [size] */
    const void *user;   /* of the plan */
} tshi_memory_ranks;

typedef struct tshi_memory_plan {
    /* Makes what the ranks share, in rank 0: a descriptor, or minus the status of a failure, with the message set. */
    int (*make)(const tshi_memory_ranks *ranks);
    /* Called in every rank, with *memory set, before any rank goes on. NULL: there is nothing to do. */
    tsh_status (*join)(void *user);
    void *user;
    const int *ranks; /* [settings->size] their numbers in the world, for messages; NULL: as in the settings */
    int *memory;      /* gets the descriptor, or -1; the caller's, after a failure too */
} tshi_memory_plan;

/* Every rank gets the descriptor that rank 0 makes, and joins. One that fails in this, or ends, ends the exchange of
 * all, with its reason. Waits for all ranks until the deadline (tshi_clock's) and logs which ones are missing. */
tsh_status tshi_memory_exchange(const tshi_settings *settings, const tsh_log_sink *log, const tsh_allocator *allocator,
                                double deadline, const tshi_memory_plan *plan);

#endif
