/* tshard-pmix tells MPI of its processes where no launcher of MPI has started them. What it and the ranks send each
 * other is in dist/transport/mpi/wireup.h.
 *
 * Each machine has one: a watcher, and its child, a PMIx server for the ranks there. PMIx asks a server for one thing
 * that a machine cannot do alone: a fence, an all-gather of what each process has to publish. So the helpers of all
 * machines find each other as their ranks have, and that of one machine (the hub) gathers for all.
 *
 * MPI_Init does not give up. So a fence ends in time, if need be with less than all; the ranks read what
 * was missing once MPI_Init returns. */
#ifndef HELPER_H
#define HELPER_H

#include "dist/transport/mpi/wireup.h"

/* What a rank is known to have done. */
typedef struct helper_rank {
    int rank, process, pidfd; /* pidfd -1: there is none, or the process has ended */
    bool connected;           /* to the server */
    bool started;             /* MPI has */
    bool replaced;            /* by a stand-in */
} helper_rank;

/* Bytes from malloc. */
typedef struct helper_blob {
    char *bytes;
    size_t size;
} helper_blob;

typedef struct helper {
    tshi_wireup_order order;
    int32_t *node;                /* [ranks] */
    char (*host)[TSHI_HOST_SIZE]; /* [nodes] */
    helper_rank *here;            /* [order.here] */
    char folder[64];              /* of this helper alone, removed at the end */
    double deadline;              /* for all ranks to have started MPI */
    int *connections;             /* [nodes], see tshi_rendezvous_run */
    bool hub;
    bool failed; /* a failure has been reported */
    bool fenced; /* all ranks here wait in a fence; parts[order.node] is theirs */
    bool *came;  /* [nodes] parts that have come */
    helper_blob *parts;
} helper;

#endif
