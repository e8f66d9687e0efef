/* A relay's state, and one turn of its work: reading and writing the connections, with no thread and no clock of its
 * own. */
#ifndef TSHI_RELAY_TURN_H
#define TSHI_RELAY_TURN_H

#include "dist/control/machine.h"
#include "dist/control/news.h"
#include "dist/control/relay.h"

#include <poll.h>
#include <pthread.h>
#include <semaphore.h>

#define TSHI_LINK_BYTES 8192

/* The last state of a rank that was sent on a link. */
typedef struct tshi_told {
    uint64_t agreement;
    uint32_t recover;
    uint8_t state, left;
    uint16_t wait; /* of tshi_rank_record.wait, a fingerprint, the lowest bits */
} tshi_told;

typedef struct tshi_kept_packet {
    struct tshi_kept_packet *next;
    tshi_packet packet;
} tshi_kept_packet;

/* Packets that wait, the oldest first. */
typedef struct tshi_kept_packets {
    tshi_kept_packet *first, *last;
} tshi_kept_packets;

/* The connection to a neighbour in the tree of machines. */
typedef struct tshi_relay_link {
    int fd;          /* -1: closed */
    int node;        /* the machine at the other end */
    int first, next; /* records are compared with told[] from rank `first` on; `next` have been compared */
    bool said_farewell;
    double tell_left; /* when news go out of ranks that have left and not changed otherwise; 0: there are none */
    double last_received, next_beat;
    double news_at;  /* when the last news of a rank were sent */
    tshi_told *told; /* [world size] */
    tshi_kept_packets packets;
    size_t received, size, sent;
    unsigned char in[TSHI_LINK_BYTES], out[TSHI_LINK_BYTES];
} tshi_relay_link;

struct tshi_relay {
    tshi_relay_plan plan;
    tshi_deaths deaths;
    int *ranks; /* of this machine, for deaths */
    int node;
    int *toward; /* [nodes] the neighbour over which that machine is reached */
    int n;
    tshi_relay_link *links; /* [n] */
    tshi_told *told;        /* of all links */
    struct pollfd *polls;
    int *kept; /* descriptors that the thread keeps open, ascending */
    int n_kept;
    uint32_t seen;                 /* page->changed when told[] was last compared with the page */
    double now, next_look;         /* now: when the current turn began */
    tshi_kept_packets undelivered; /* of this machine's ranks, whose queues are full */
    int bell;                      /* the socket by which ranks wake the relay; -1: there is none */
    double leave_by;               /* 0: the rank has not left */
    _Atomic bool leaving;
    uint64_t written[TSHI_NEWS_KINDS], written_bytes; /* messages of each kind on all links */
    /* Only the thread and its owner use the rest. */
    bool apart; /* it has a descriptor table of its own */
    pid_t process;
    pthread_t thread;
    sem_t begun;
};

/* A relay that no thread runs. It takes the connections of `links` over when it is there. */
tsh_status tshi_relay_new(const tshi_relay_plan *plan, const tshi_machine_links *links, tshi_relay **out);
void tshi_relay_free(tshi_relay *relay);
/* Waits for a connection or the bell, at most `longest` milliseconds, then reads, compares the page and sends. `now`:
 * the time before the wait. False when all links have ended, or the time to leave is over. */
bool tshi_relay_turn(tshi_relay *relay, double now, int longest);
void tshi_relay_close_links(tshi_relay *relay);

#endif
