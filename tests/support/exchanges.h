/* Random exchanges of boxes against the plain definition, for a rank's function of support/ranks.h. */
#ifndef TSHI_TEST_EXCHANGES_H
#define TSHI_TEST_EXCHANGES_H

#include "dist/collectives/redistribute.h"
#include "support/ranks.h"

/* Up to three axes over some of the world's ranks, in any order, in any layouts and split order. */
void tshi_random_placement(uint32_t *state, int world, int ndim, tshi_placement *p, int *ranks);

/* Runs the exchange that the seed stands for in the world's group, or as messages, and checks values, calls and bytes.
 * Collective; false, with the failure noted, where something is wrong. */
bool tshi_try_exchange(tshi_rank *r, uint32_t seed, bool messages);

#endif
