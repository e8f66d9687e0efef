/* The rank that listens: it takes in connections of unknown peers, has each prove by a HELLO that it is of the job, and
 * answers. One state machine for both transports: TCP and Unix sockets.
 *
 * It waits for no peer in particular: one that sends nothing, too little or nonsense costs a slot in a bounded table
 * for a bounded time, and the deadline is checked between any two peers. */
#ifndef TSHI_ACCEPTOR_H
#define TSHI_ACCEPTOR_H

#include "dist/rendezvous/rendezvous.h"

#include <poll.h>

typedef struct tshi_acceptor_plan {
    int *listeners; /* [n], closed when all have come or time is up, before any peer is answered */
    int n;
    bool same_user;        /* Unix sockets: a peer has to run as this user */
    unsigned char *leader; /* the nonce by which this rank was announced; NULL: it was not */
    /* Called about every 100 ms while peers come; false ends the gathering. May be NULL. */
    bool (*tick)(void *user);
    /* Called when all have come or time is up, before any peer is answered. May be NULL. */
    void (*closing)(void *user);
    void *user;
} tshi_acceptor_plan;

typedef enum tshi_peer_state {
    TSHI_PEER_UNKNOWN = 0, /* has until its deadline to prove that it is of the job */
    TSHI_PEER_CONTRADICTS, /* is of the job, with another world size: kept for the answer that says so */
    TSHI_PEER_JOINED,
} tshi_peer_state;

typedef struct tshi_peer {
    int fd, rank; /* rank: -1 until ranks are assigned */
    tshi_peer_state state;
    double deadline;
    unsigned char nonce[TSHI_NONCE_SIZE];
    tshi_frame hello;
    size_t received, size, sent;
    unsigned char in[TSHI_WIRE_MOST];
    unsigned char *out; /* the answer */
} tshi_peer;

typedef struct tshi_acceptor {
    tshi_rendezvous *rendezvous;
    const tshi_acceptor_plan *plan;
    tshi_peer *peers; /* [n], of `room`, which grows up to `most` */
    int n, room, most, joined, refused;
    double next_loss;     /* when a rank that came and went is worth the next warning */
    bool full;            /* there was no descriptor for a connection */
    struct pollfd *polls; /* [polls_room]: listeners, then peers */
    int polls_room;
    double deadline;
    char contradiction[TSHI_MESSAGE_SIZE];
} tshi_acceptor;

/* Gathers peers until all ranks are here or the deadline, and keeps those that are of the job. *stopped (may be NULL
 * when tick is): tick has returned false, before any peer was answered. */
tsh_status tshi_acceptor_open(tshi_acceptor *a, tshi_rendezvous *rendezvous, const tshi_acceptor_plan *plan,
                              bool *stopped);
/* Sends a new connection a CHALLENGE with a new nonce, which its HELLO has to answer. leader: see the plan. */
bool tshi_acceptor_challenge(const tshi_rendezvous *r, int fd, const unsigned char *leader,
                             unsigned char nonce[TSHI_NONCE_SIZE]);
/* Closes the connections that are left. */
void tshi_acceptor_close(tshi_acceptor *a);

/* --- acceptor_answer.c -------------------------------------------------------------------------------------------- */

/* The rank is this one or has joined. */
bool tshi_acceptor_has(const tshi_acceptor *a, int rank);
/* "3/4 joined, missing rank 2", with the reason where it is known. */
const char *tshi_acceptor_progress(const tshi_acceptor *a, char *text, size_t size);
/* TSH_OK when all ranks are here; else every peer that is of the job gets the reason, which is returned. */
tsh_status tshi_acceptor_verdict(tshi_acceptor *a);
/* Sends a peer of the job the reason for which it is refused. */
void tshi_acceptor_refuse(tshi_acceptor *a, tshi_peer *peer, const char *reason);
/* Sends the answer to every peer, each with its own rank and HMAC; one that does not read delays no other. */
tsh_status tshi_acceptor_answer(tshi_acceptor *a, tshi_wire_answer *answer);
/* The frame of an answer to one peer, which the peer owns. */
tsh_status tshi_acceptor_prepare(tshi_acceptor *a, tshi_peer *peer, tshi_wire_answer *answer);

/* --- gather.c ----------------------------------------------------------------------------------------------------- */

/* Gathers all ranks, makes the roster and sends it to each. *stopped (may be NULL when the plan has no tick): the tick
 * has ended it, and no peer was answered. */
tsh_status tshi_roster_gather(tshi_rendezvous *r, const tshi_acceptor_plan *plan, bool *stopped, tshi_roster *out);

#endif
