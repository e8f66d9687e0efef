/* tshard-pmix: tells MPI who its processes are, where no launcher of MPI has started them. What it and the ranks say to
 * each other is in dist/wireup.h.
 *
 * One for each machine: a watcher, and its child, a PMIx server for the ranks there. PMIx asks a server's host for one
 * thing that a machine cannot do alone: a fence, an all-gather of what each has to say about itself. So the helpers of
 * all machines meet, as their ranks have met, and that of one machine (the hub) gathers for all.
 *
 * MPI_Init cannot be told to give up. So whatever happens here, a fence ends in time, if need be with less than all;
 * that something was missing is told in words, which the ranks read once MPI_Init returns. */
#ifndef HELPER_H
#define HELPER_H

#include "dist/backends/mpi/wireup.h"

/* Once something is wrong: how long a stand-in gets to do what a rank has not, seconds. */
#define HELPER_RECOVERY 5.0

/* What a rank is known to have done. */
typedef struct helper_rank {
    int rank, process, pidfd; /* -1: there is none, or it has ended */
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
    int *spokes;                  /* [nodes] connections; see tshi_rendezvous_run */
    bool hub;
    bool troubled; /* words have been said */
    bool fenced;   /* all ranks here wait in a fence; parts[order.node] is what they bring */
    bool *brought; /* [nodes] */
    helper_blob *parts;
} helper;

/* main.c: of the ranks on a machine: "ranks 2, 3" */
const char *helper_ranks_of(const helper *h, int node, char *text, size_t size);
/* "!" and words, to the ranks here; the first count. On stderr too: MPI_Init may end a process instead of returning. */
void helper_say(helper *h, const char *words);

/* --- folder.c ----------------------------------------------------------------------------------------------------- */

/* A new one; those that others have left are removed. */
bool helper_folder_make(char *out, size_t size);
void helper_folder_remove(const char *path);

/* --- server.c: PMIx ----------------------------------------------------------------------------------------------- */

typedef enum helper_event_kind { HELPER_CONNECTED, HELPER_FENCE } helper_event_kind;

/* From PMIx' thread. */
typedef struct helper_event {
    helper_event_kind kind;
    int rank;
    helper_blob part;
} helper_event;

/* The server, and the variables for its clients into text. *events can be read from. False, having said why. */
bool helper_server_start(helper *h, int *events, char *text, size_t size);
/* Lets the ranks here go on, with this; the blob is taken over. */
void helper_server_release(helper_blob whole);
/* --- stand_in.c --------------------------------------------------------------------------------------------------- */

/* Takes the place of a rank that does not come, so that the others get on. Returns when that fails. */
int helper_stand_in(void);

/* --- star.c: the other machines' helpers -------------------------------------------------------------------------- */

/* All meet. False, having said why. */
bool helper_star_open(helper *h);
/* The ranks here have come to a fence. */
void helper_star_fence(helper *h, helper_blob part);
/* Something has come from a machine. */
void helper_star_hear(helper *h, int node);
/* Words about what went wrong, once, to the ranks of all machines. */
void helper_star_trouble(helper *h, const char *words) __attribute__((nonnull));
/* It is not waited for any more. */
void helper_star_lose(helper *h, int node);
/* The deadline has passed, and some have not come to the fence. */
void helper_star_give_up(helper *h);
/* The ranks here are done. */
void helper_star_close(helper *h);

#endif
