/* The listening rank makes the roster of the peers that have joined and sends it to each. */
#ifndef TSHI_GATHER_H
#define TSHI_GATHER_H

#include "dist/rendezvous/acceptor.h"

/* Gathers all ranks and answers them. *stopped (may be NULL when the plan has no tick): the tick has ended it, and no
 * peer was answered. */
tsh_status tshi_roster_gather(tshi_rendezvous *r, const tshi_acceptor_plan *plan, bool *stopped, tshi_roster *out);

#endif
