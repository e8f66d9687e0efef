/* Scenarios that run as ranks of any transport of tagged messages, a function each. They report failures in `r`, as the
 * ranks of support/ranks.h do. */
#ifndef TSHI_TEST_TAGGED_RANKS_H
#define TSHI_TEST_TAGGED_RANKS_H

#include "support/clock.h"
#include "support/ranks.h"

/* main.c: a rank marks a point that it has reached by a file in TEST_FOLDER; another rank waits for the file, for a
 * minute at most. Works without a world and with dead ranks. */
void rank_arrives(int rank);
void await_rank(int rank);

void pause_for(double seconds);
/* Sends this rank the signal after so many seconds, from a child. */
void signal_later(int number, double seconds);

/* guest.c: a program that uses MPI itself. Without MPI in the build the scenario fails. */
void guest_begin(int argc, char **argv, int *rank, int *size); /* starts MPI */
void guest_end(void);
void scenario_guest(tshi_rank *r);

/* collectives.c */
void scenario_matrix(tshi_rank *r); /* every collective x dtype x size x spread, blocking and started */
void scenario_short(tshi_rank *r);  /* some of it */
void scenario_levels(tshi_rank *r); /* sizes at which machines with as many ranks each take two levels */
void scenario_chunks(tshi_rank *r); /* every collective in messages of a few elements */
void scenario_cases(tshi_rank *r);  /* cases with known answers */
void scenario_large(tshi_rank *r);  /* counts and offsets past 2^31 */
void scenario_messages(tshi_rank *r);
void scenario_exchanges(tshi_rank *r); /* of boxes */
void scenario_groups(tshi_rank *r);
void scenario_pairs(tshi_rank *r); /* groups of two, several at once */

/* weights.c */
void scenario_weights(tshi_rank *r);

/* failures.c */
void scenario_misuse(tshi_rank *r);
void scenario_recover(tshi_rank *r);
void scenario_late(tshi_rank *r); /* a rank that does not come */
void scenario_leave(tshi_rank *r);
void scenario_stopped(tshi_rank *r);
void scenario_named(tshi_rank *r);    /* of messages, in warnings */
void scenario_exits(tshi_rank *r);    /* a rank that exits in the middle */
void scenario_vanishes(tshi_rank *r); /* a rank that dies, maybe on another machine */
void scenario_forks(tshi_rank *r);    /* a child of a rank, which is no rank */
void scenario_killed(tshi_rank *r);
void scenario_steps(tshi_rank *r); /* tapes, on which a rank fails */

/* troubles.c */
void scenario_troubles(tshi_rank *r); /* ranks that fail or differ, seed after seed */
void scenario_lost(tshi_rank *r);     /* one that dies or stops */
void scenario_blame(tshi_rank *r);    /* a stopped rank that its peers wait for, on two axes */
void scenario_ring(tshi_rank *r);
void scenario_absent(int rank, int size); /* before there is a world */

/* worlds.c */
void scenario_twice(tshi_rank *r); /* two worlds, one after the other */
void scenario_linger(tshi_rank *r);

#endif
