/* The relay: a thread in the first rank of each machine, in worlds of several machines, that keeps the machines' pages
 * alike. It sends what has changed of its machine's ranks, and looks for their deaths, whether or not a rank is in a
 * call. It logs nothing and calls none of the program's functions: what it learns is on the page.
 *
 * Nothing is queued. For each connection the relay knows what it has last sent of each rank, and sends the ranks whose
 * record differs by now; so a slow connection costs no memory, and gets the latest. The hub sends on what the others
 * have sent because its page has changed.
 *
 *   of a connection                 its other end does           the ranks behind it become
 *   news, beats                     live                         what the news says
 *   farewell, then the end          its ranks leave              nothing new
 *   the end, or other bytes         has died, or is no relay     DEAD, those that have not left
 *   nothing for the timeout         is stopped, or cut off       STUCK, those that have not left */
#ifndef TSHI_RELAY_H
#define TSHI_RELAY_H

#include "dist/control/links.h"
#include "dist/control/page.h"

typedef struct tshi_relay tshi_relay;

typedef struct tshi_relay_plan {
    tshi_page *page; /* of this machine */
    const tshi_roster *roster;
    int file; /* in which byte r is the lock that rank r of this machine holds for life; -1: no deaths are looked for */
    double timeout; /* seconds after which a silent machine is given up, but not under 5 */
    const tsh_allocator *allocator;
} tshi_relay_plan;

/* Starts it, when all ranks of the machine hold their locks. Takes the connections of the links, after a failure too.
 * The page has to stay until the relay has ended. */
tsh_status tshi_relay_begin(const tshi_relay_plan *plan, tshi_machine_links *links, tshi_relay **out);
/* Ends it when this rank has left: once the other ranks of its machine have left, and at the hub also the other
 * machines, but after 2 seconds in any case. */
void tshi_relay_end(tshi_relay *relay);

#endif
