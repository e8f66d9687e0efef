/* The entrance of a running job: rank 0 listens for ranks that want to join, at the address of the job's rendezvous, from
 * the first tsh_world_joiners on. The worlds that follow keep it while rank 0 lives; then the next rank 0 opens another.
 *
 *   rank 0                                              a rank that joins (joining.h)
 *   CHALLENGE                                      ->
 *                                                  <-   HELLO
 *   (at a tsh_world_continue) PLACE, ANSWER: a roster   ->
 *                                                  <-   ANSWER: whether it has built that world
 *   PLACE of the next round, or PLACE without a world: that one is confirmed   ->
 *
 * All frames but the CHALLENGE are sealed with the key of the entrance, which programs without the job's token lack.
 *
 * Invariant: a rank that joins goes on only in a world that is CONFIRMED (standings.h). It holds because rank 0 says so
 * after it has read it; a rank whose connection ends before that leaves the world, as if it had died. */
#ifndef TSHI_ENTRANCE_H
#define TSHI_ENTRANCE_H

#include "dist/control/page.h"
#include "dist/rendezvous/rendezvous.h"
#include "dist/world.h"

typedef struct tshi_entrance tshi_entrance;

/* Listens. On rank 0. */
tsh_status tshi_entrance_open(const tsh_world *world, tshi_entrance **out);
/* Ranks of other machines meet at the same port (meeting.h): in the meantime rank 0 does not listen for ranks that
 * join, which try again. Those that have been taken in wait on. */
void tshi_entrance_pause(tshi_entrance *e);
tsh_status tshi_entrance_reopen(const tsh_world *world, tshi_entrance *e);
/* Takes connections, and what has come on them. Does not wait. */
void tshi_entrance_poll(const tsh_world *world, tshi_entrance *e);
/* The ranks that wait to join, at most TSHI_MOST_JOINERS. */
int tshi_entrance_count(const tshi_entrance *e);

/* The ranks that wait become the newcomers of a round. Waits a moment for those that are still in the last one. */
void tshi_entrance_list(const tsh_world *world, tshi_entrance *e, tshi_newcomers *out);
/* Sends them their places: the ranks of the roster from `first` on. */
void tshi_entrance_place(const tsh_world *world, tshi_entrance *e, const tshi_roster *roster, int first, int port,
                         double patience);
/* Waits until all newcomers have built the world; false when one has not, has ended, or at the deadline. */
bool tshi_entrance_built(const tsh_world *world, tshi_entrance *e, double deadline);
/* They go on in it. */
void tshi_entrance_confirm(tshi_entrance *e);

/* Closes it; NULL is accepted. `ended`: the job has ended, and the ranks that wait get this as their answer; otherwise
 * they connect again. */
void tshi_entrance_close(const tsh_world *world, tshi_entrance *e, bool ended);

#endif
