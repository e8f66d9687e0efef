/* The relay, in worlds of several machines: a thread in the first rank of each machine that keeps the machines' pages
 * equal. It polls for the deaths of its machine's ranks and sends what changes to its neighbours in the tree of
 * machines (links.h), whether or not a rank is in a call. It logs nothing and calls no function of the program: it
 * only writes the page, and carries the packets of ranks on different machines (packets.h).
 *
 * Invariant: every change of a record reaches every connection, or the connection fails or has said farewell. It holds
 * because each change increments page->changed after it is written, the relay then compares every record with the last
 * state that it sent on each connection, and it sends those that differ. There is no queue: a slow connection costs no
 * memory and skips to the latest state. A relay forwards news because applying them changes its own page. The first
 * cause of all failures is sent before the failures that follow from it.
 *
 * Invariant: the packets that a rank has sent before a change of its record leave before the news of that change. It
 * holds because a relay reads the record, then takes what is in its machine's queue, and sends the news only when no
 * packet of that connection is left. A packet waits, in memory of the relay's own, until there is room for it. Each
 * relay on a packet's way keeps the order.
 *
 * Leaving takes at most 2 (n - 1) messages between n machines: a farewell says that all ranks on its side of a
 * connection have left, so a wave of farewells goes up the tree. Where one rank has left and others go on, each relay
 * waits 0.1 s for such a farewell before it sends news of that rank, for ranks that wait for it.
 *
 *   a connection receives             the other end                the ranks behind it become
 *   news, beats                       is alive                     what the news says
 *   a farewell of all, then its end   has left                     left, unless they are STUCK or DEAD
 *   another farewell, then its end    waits no longer              no new state
 *   its end, or bytes of no relay     has died, or is no relay     DEAD, unless they have left
 *   nothing for TSHARD_SILENCE        is stopped, or cut off       STUCK, unless they have left
 *
 * Behind a connection are all ranks that are reached over it: over a child of this machine those of the child's
 * subtree, over its parent all others. So when a machine in the middle dies, the machines below it count as DEAD for
 * the rest, and the rest for them; the reasons of their ranks name the machine that has died. The tree is not mended,
 * since any death breaks the world. A machine in the middle whose ranks leave 2.5 s before those below it takes their
 * path away too, without a new state. */
#ifndef TSHI_RELAY_H
#define TSHI_RELAY_H

#include "dist/control/links.h"
#include "dist/control/packets.h"

typedef struct tshi_relay tshi_relay;

typedef struct tshi_relay_plan {
    tshi_page *page;    /* of this machine */
    tshi_roster roster; /* its arrays outlive the relay */
    int file;           /* rank r of this machine locks its byte r for life; -1: the relay polls no deaths */
    double silence;     /* seconds after which a silent machine is given up, at least 5 */
    const tsh_allocator *allocator;
    tshi_packet_queue *queues; /* of this machine's ranks and of the relay */
} tshi_relay_plan;

/* Starts the relay, once all ranks of the machine hold their locks. Takes over the connections of `links`, even if it
 * fails. The page must outlive the relay. */
tsh_status tshi_relay_begin(const tshi_relay_plan *plan, tshi_machine_links *links, tshi_relay **out);
/* Ends the relay after this rank has left. Waits until the other ranks of its machine and of those below it in the tree
 * have left, but no longer than 2.5 seconds. */
void tshi_relay_end(tshi_relay *relay);

#endif
