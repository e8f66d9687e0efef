/* The relay, in worlds of several machines: a thread in the first rank of each machine that keeps the machines' pages
 * equal. It sends changes of its machine's ranks and polls for their deaths, whether or not a rank is in a call. It
 * logs nothing and calls no function of the program: it only writes the page, and carries the packets of ranks on
 * different machines (packets.h).
 *
 * Invariant: every change of a record reaches every connection, or the connection fails. It holds because each change
 * increments page->changed after it is written, the relay then compares every record with the last state that it sent
 * on each connection, and it sends those that differ. There is no queue: a slow connection costs no memory and skips to
 * the latest state. The hub forwards news because applying them changes its own page.
 *
 * Invariant: the packets that a rank has sent before a change of its record leave before the news of that change. It
 * holds because a relay reads the record, then takes what is in its machine's queue, and sends the news only when no
 * packet of that connection is left. A packet waits, in memory of the relay's own, until there is room for it.
 *
 *   a connection receives             the other end                the ranks behind it become
 *   news, beats                       is alive                     what the news says
 *   a farewell, then its end          has left                     no new state
 *   its end, or bytes of no relay     has died, or is no relay     DEAD, unless they have left
 *   nothing for the timeout           is stopped, or cut off       STUCK, unless they have left */
#ifndef TSHI_RELAY_H
#define TSHI_RELAY_H

#include "dist/control/links.h"
#include "dist/control/packets.h"

typedef struct tshi_relay tshi_relay;

typedef struct tshi_relay_plan {
    tshi_page *page; /* of this machine */
    const tshi_roster *roster;
    int file;       /* rank r of this machine locks its byte r for life; -1: the relay polls no deaths */
    double timeout; /* seconds after which a silent machine is given up, at least 5 */
    const tsh_allocator *allocator;
    tshi_packet_queue *queues; /* of this machine's ranks and of the relay; NULL: no rank sends packets */
} tshi_relay_plan;

/* Starts the relay, once all ranks of the machine hold their locks. Takes over the connections of `links`, even if it
 * fails. The page must outlive the relay. */
tsh_status tshi_relay_begin(const tshi_relay_plan *plan, tshi_machine_links *links, tshi_relay **out);
/* Ends the relay after this rank has left. Waits until the other ranks of its machine have left, and at the hub the
 * other machines too, but no longer than 2.5 seconds. */
void tshi_relay_end(tshi_relay *relay);

#endif
