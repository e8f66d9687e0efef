/* Restarts of a job. Each node has a launcher, its tshard-run. When a rank fails, all launchers stop their ranks and
 * start them again together. The launcher of node 0 decides; every other launcher has a link to it, which is a TCP
 * connection. A launcher without links (one node, or --max-restarts 0) decides alone.
 *
 * Before any rank is started, the launchers find each other by a rendezvous at MASTER_ADDR:MASTER_PORT, under a key
 * made of the job's token: a connection without the token never becomes a link. From then on:
 *
 *   a launcher   its ranks     leaves this state
 *   RUNS         run           when the first of them fails, or a signal asks to end: FAILED to node 0
 *                              by STOP -> STOPS
 *                              when all have ended with 0: STOPPED to node 0 -> WAITS
 *   STOPS        are to end    when all have ended: STOPPED to node 0 -> WAITS
 *   WAITS        none          by START -> RUNS; by END: it exits with the code that END carries
 *
 *   node 0       of the job    leaves this state
 *   RUNS         run           by the first FAILED, or when a link is lost: STOP to all -> STOPS
 *                              when all have STOPPED: END 0 to all
 *   STOPS        are to end    when all have STOPPED: START to all -> RUNS; or END to all, when no restart is left, a
 *                              signal has asked to end, a program cannot be started or a link was lost
 *
 * Node 0's launcher handles what it reports itself like the messages of the others. A link is lost when its connection
 * ends, or when nothing arrives for run_links.silence seconds; both ends send a BEAT every second. Node 0 counts a lost
 * node as stopped; a launcher that has lost node 0 stops its ranks and ends. */
#ifndef RUN_LAUNCHERS_H
#define RUN_LAUNCHERS_H

#include "run.h"

#define RUN_WORDS 4000

/* How an attempt has ended on one node. */
typedef struct run_outcome {
    int code;
    bool failed;         /* a rank has not exited with 0; code is that of the first one */
    bool unusable;       /* the ranks could not be started, and another attempt would fail as well */
    bool stopped_others; /* ranks were stopped that had not ended by themselves */
    size_t shown;        /* so many bytes of the text are on this node's screen already */
    char text[RUN_WORDS];
} run_outcome;

/* --- links.c: messages between launchers -------------------------------------------------------------------------- */

typedef enum run_message_kind {
    RUN_BEAT = 1,
    RUN_FAILED,  /* to node 0: a rank of this node has failed, or `signal` asks to end; kill: for the second time */
    RUN_STOP,    /* to all: end your ranks, by `signal` where there is one; kill: at once */
    RUN_STOPPED, /* to node 0: this node's ranks have ended; its outcome */
    RUN_START,   /* to all: print `outcome`, which is node's, and start attempt number `attempt` of `most` */
    RUN_END,     /* to all: print it and exit with its code */
    RUN_LOST     /* never sent: the link has ended, and outcome.text says why */
} run_message_kind;

typedef struct run_message {
    run_message_kind kind;
    int signal, attempt, most, node;
    bool kill;
    run_outcome outcome;
} run_message;

#define RUN_MESSAGE_HEAD 20
#define RUN_MESSAGE_MOST (RUN_MESSAGE_HEAD + RUN_WORDS)

/* Returns the bytes written. */
size_t run_message_write(const run_message *message, unsigned char out[RUN_MESSAGE_MOST]);
/* Reads the message at the start of `bytes`. Returns its length; 0 for an incomplete message, -1 for an invalid one. */
int run_message_read(const unsigned char *bytes, size_t size, run_message *out);

typedef struct run_connection {
    int fd; /* -1: lost, which has been reported */
    int node;
    char host[64];
    double heard;
    size_t received, waiting;
    unsigned char in[2 * RUN_MESSAGE_MOST], out[4 * RUN_MESSAGE_MOST]; /* out: what the socket has not taken yet */
} run_connection;

typedef struct run_links {
    int n; /* 0: this launcher decides for itself */
    run_connection *connection;
    int events; /* an epoll that can be read when something has come, or -1 */
    double silence, next_beat;
} run_links;

typedef void run_message_fn(void *user, int node, const run_message *message);

/* Finds the other launchers. Returns 0, or the code to exit with after printing the reason. The search also ends when a
 * signal from signal_fd asks to end, or when the guard has ended. */
int run_links_open(run_links *links, const run_options *options, const run_link *guard, int signal_fd);
/* To the node, or to all (-1). A link that does not take it ends, and is reported as lost by the next serve. */
void run_links_send(run_links *links, int node, const run_message *message);
/* Sends beats that are due, and calls `handle` for each message that has arrived and for each lost link. Never
 * waits. */
void run_links_serve(run_links *links, run_message_fn *handle, void *user);
/* Seconds until the next serve is due. */
double run_links_patience(const run_links *links);
/* Ends the links so that what has been sent arrives. */
void run_links_close(run_links *links);

/* --- launchers.c: when ranks stop, start and end ------------------------------------------------------------------ */

typedef struct run_launchers run_launchers;

/* What this node's ranks are to do. */
typedef enum run_order { RUN_GO_ON = 0, RUN_FAIL, RUN_STOP_BY_SIGNAL, RUN_KILL } run_order;

/* NULL, with the code to exit with: the launchers have not found each other, which has been said. */
run_launchers *run_launchers_open(run_options *options, const run_link *guard, int *code);
void run_launchers_close(run_launchers *all);
/* Can be read when something has come from another launcher, or -1. */
int run_launchers_fd(const run_launchers *all);
/* Seconds until run_launchers_serve is due; below 0: never. */
double run_launchers_patience(const run_launchers *all);
/* Handles what has come, and never waits; *number is the signal of RUN_STOP_BY_SIGNAL and RUN_KILL, or 0. */
run_order run_launchers_serve(run_launchers *all, int *number);
/* A rank of this node is the first one here to fail. */
void run_launchers_failed(run_launchers *all);
/* A signal asks this launcher to end. True: it is not the first one. */
bool run_launchers_signal(run_launchers *all, int number);
/* The guard has ended: this launcher ends without waiting for the others. */
void run_launchers_leave(run_launchers *all);
/* Called when this node's ranks have ended: waits for the other nodes' ranks, and prints how the attempt ended. True:
 * all ranks start again, as attempt options->attempt. False: the job is over; *code is the exit code. */
bool run_launchers_again(run_launchers *all, const run_outcome *outcome, int *code);

#endif
