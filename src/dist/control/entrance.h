/* The entrance of a running job: from the first tsh_world_joiners on, rank 0 listens for ranks that want to join, at
 * the address of the job's rendezvous. Later worlds keep the entrance while rank 0 lives; after its death the next rank
 * 0 opens another.
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
 * Invariant: a rank that joins continues only in a world that is CONFIRMED (standings.h). It holds because rank 0 tells
 * the rank so only after it has read CONFIRMED in the page; a rank whose connection ends before that leaves the world,
 * as if it had died. */
#ifndef TSHI_ENTRANCE_H
#define TSHI_ENTRANCE_H

#include "dist/control/page.h"
#include "dist/rendezvous/rendezvous.h"
#include "dist/world.h"

typedef struct tshi_entrance tshi_entrance;

/* Begins to listen. Called on rank 0. */
tsh_status tshi_entrance_open(const tsh_world *world, tshi_entrance **out);
/* Ranks of other machines meet at the same port (meeting.h): meanwhile rank 0 does not listen for ranks that join, and
 * these try again. Ranks that wait at the entrance already keep waiting. */
void tshi_entrance_pause(tshi_entrance *e);
tsh_status tshi_entrance_reopen(const tsh_world *world, tshi_entrance *e);
/* Accepts connections, and handles what has arrived on them. Does not wait. */
void tshi_entrance_poll(const tsh_world *world, tshi_entrance *e);
/* The ranks that wait to join, at most TSHI_MOST_JOINERS. */
int tshi_entrance_count(const tshi_entrance *e);

/* Makes the ranks that wait the newcomers of a round. Waits a moment for ranks that are still busy with the previous
 * round. */
void tshi_entrance_list(const tsh_world *world, tshi_entrance *e, tshi_newcomers *out);
/* Sends the newcomers their places: the ranks of the roster from `first` on. */
void tshi_entrance_place(const tsh_world *world, tshi_entrance *e, const tshi_roster *roster, int first, int port,
                         double patience);
/* Waits until all newcomers have built the world; false when one has not, has ended, or at the deadline. */
bool tshi_entrance_built(const tsh_world *world, tshi_entrance *e, double deadline);
/* Tells the newcomers that the world is confirmed, and that they continue in it. */
void tshi_entrance_confirm(tshi_entrance *e);

/* Closes the entrance; NULL is accepted. With `ended` the ranks that wait fail, because the job has ended; otherwise
 * they connect again. */
void tshi_entrance_close(const tsh_world *world, tshi_entrance *e, bool ended);

#endif
