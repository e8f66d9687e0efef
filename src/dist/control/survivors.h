/* A rank's part in the choice of the ranks that go on (standings.h). */
#ifndef TSHI_SURVIVORS_H
#define TSHI_SURVIVORS_H

#include "dist/control/liveness.h"
#include "dist/control/meeting.h"

typedef struct tshi_survivors {
    tsh_world *world; /* that has broken */
    int64_t step;
    double wait, since; /* since: when the round began, for this rank */
    uint32_t round;
    int *ranks, count, own;        /* the members, ascending; this one's index */
    tshi_newcomers newcomers;      /* that join, after the members */
    int port;                      /* at which the new world meets; 0: its ranks are on one machine */
    int64_t first_step, last_step; /* the least and the largest that a member has completed */
    tshi_standings *page;          /* as it was last read */
    uint32_t brought;              /* 1 + the last round to which rank 0 has brought newcomers */
    double silence;                /* seconds after which a machine is given up */
    tshi_probe *probes;            /* [world->size] of other machines' ranks */
    tshi_meeting meeting;
} tshi_survivors;

/* `step`: the steps that this rank has completed. Ranks that live and have not come after `wait` seconds are LOST. */
tsh_status tshi_survivors_open(tsh_world *world, int64_t step, double wait, tshi_survivors *out);
/* Waits for the members of the next round, and lists them. TSH_ERR_STATE on a rank that is LOST, TSH_ERR_TIMEOUT on one
 * that does not reach the first machine, TSH_ERR_PEER where all ranks of the first machine have ended. */
tsh_status tshi_survivors_gather(tshi_survivors *s);
/* Waits until all members have said whether they have built the new world. *confirmed: all have; false after `deadline`
 * too, and then the next round is due. */
tsh_status tshi_survivors_confirm(tshi_survivors *s, bool built, double deadline, bool *confirmed);
void tshi_survivors_close(tshi_survivors *s);

#endif
