/* How a rank joins a running job: it finds the job's entrance (entrance.h), waits there for a place in a world, and
 * reports whether it has built that world. If the connection ends, because rank 0 has died, the rank reconnects. */
#ifndef TSHI_JOINING_H
#define TSHI_JOINING_H

#include "dist/control/standings.h"
#include "dist/rendezvous/rendezvous.h"
#include "dist/rendezvous/sockets.h"

typedef struct tshi_joining {
    tshi_settings settings; /* with the key of the entrance */
    tshi_rendezvous r;
    tshi_endpoint at[TSHI_ENDPOINTS];
    int n, fd;             /* fd: -1 without a connection */
    double since, unheard; /* when it began, and since when no rank of the job has answered */
    unsigned char theirs[TSHI_NONCE_SIZE], mine[TSHI_NONCE_SIZE]; /* of the CHALLENGE and the HELLO */
    tshi_frame next; /* a PLACE that has come after a world that was not confirmed */
    bool has_next;
    char reason[TSHI_LINE]; /* why there is no connection */
} tshi_joining;

/* A place in a world. */
typedef struct tshi_join_place {
    tshi_roster roster;
    uint64_t seed;
    int port;        /* at which its ranks meet; 0: they are on one machine */
    double patience; /* seconds to build it */
} tshi_join_place;

tsh_status tshi_joining_open(const tshi_settings *settings, const tsh_log_sink *log, const tsh_allocator *allocator,
                             tshi_joining *out);
/* Waits for a place, whose roster the caller owns. TSH_ERR_TIMEOUT when no job takes ranks in at the address within the
 * timeout, at most 120 s, or when the job has not taken this rank in before the timeout. TSH_ERR_PEER when the job has
 * ended. */
tsh_status tshi_joining_wait(tshi_joining *j, tshi_join_place *out);
/* Reports whether this rank has built the world, for which the place gave it `patience` seconds. Returns true when the
 * world is confirmed; otherwise the rank leaves it, and waits for another place. */
bool tshi_joining_report(tshi_joining *j, tsh_status built, double patience);
void tshi_joining_close(tshi_joining *j);

#endif
