/* Collectives of a group over several machines with several members on each, in two levels: group->near has the members
 * of this rank's machine, group->far the members with this rank's index on each machine. */
#ifndef TSHI_LEVELS_H
#define TSHI_LEVELS_H

#include "dist/collectives/collectives.h"

/* The call runs in two levels when all members wait for it; the same on all members. */
bool tshi_levels_take(const tsh_group *group, const tshi_comm_call *call);
/* Runs a call that all members have compared. Between machines each byte travels once for
 * each machine that needs it. An error of one member becomes an error of all: a member takes every step, after a
 * failure as one that cannot make it. Collective over the group, waits. */
tsh_status tshi_levels_run(tsh_group *group, const tshi_comm_call *call);

#endif
