/* Which ranks continue after a death (tsh_world_continue). The ranks decide it in the control page of the broken
 * world's first machine, which is that of rank 0: page->turn is the round and its phase, and record[].standing says how
 * far a rank has come.
 *
 *   phase of round k     becomes              when                                      by
 *   GATHERING k          BUILDING k           every rank is LOST or has come to round k   a rank of the first machine
 *   BUILDING k           CONFIRMED k          every member has built the new world        a rank of the first machine
 *   BUILDING k           GATHERING k + 1      a member has died, or could not build it    any member
 *   CONFIRMED k          (final)
 *
 *   standing of a rank   becomes              when                                        by
 *   not come, or k - 1   come to k            GATHERING k                                 the rank
 *   come to k            built in k           it has built the new world                  the rank
 *   not come, or k - 1   LOST                 GATHERING k, and its process has ended,     a rank of the first machine
 *                                             it has left, or the wait is over
 *   LOST                 (final)
 *
 * Every change is one compare-and-swap, so it happens once, and any rank may make it. The members of round k are the
 * ranks that have come to it; in BUILDING k no standing becomes LOST, so all members read the same set. A member that
 * dies then costs a round. A rank that was stopped, and that the others have declared LOST, cannot come: the swap to
 * "come" fails. Ranks of other machines make their changes and read the page through the ranks of the first one
 * (meeting.h).
 *
 * Rank 0 brings the ranks that wait to join: it writes them into the page, for round k, before it comes to round k.
 * They are members of the world of round k if rank 0 is a member of the round; rank 0 counts as having built only when
 * they have too.
 *
 * Invariant: at most one world follows a world. It holds because a world follows only from CONFIRMED, which the turn
 * never leaves; and there is one page, in the memory of one machine. Ranks that cannot reach this machine end
 * themselves, however many they are, and if all of its ranks die, the job ends. */
#ifndef TSHI_STANDINGS_H
#define TSHI_STANDINGS_H

#include "dist/control/page.h"

/* Seconds between the first member that has built the new world and the last one, after which BUILDING ends. */
#define TSHI_LONGEST_LAG 10.0

typedef enum tshi_continue_phase { TSHI_GATHERING = 0, TSHI_BUILDING, TSHI_CONFIRMED, TSHI_PHASES } tshi_continue_phase;

static inline uint32_t tshi_turn(uint32_t round, tshi_continue_phase phase) {
    return round * TSHI_PHASES + (uint32_t)phase;
}

/* Standings: 0 has not come. */
#define TSHI_LOST UINT32_MAX

static inline uint32_t tshi_come_to(uint32_t round) {
    return 2 * round + 1;
}

static inline uint32_t tshi_built_in(uint32_t round) {
    return 2 * round + 2;
}

static inline bool tshi_is_member(uint32_t standing, uint32_t round) {
    return standing == tshi_come_to(round) || standing == tshi_built_in(round);
}

/* The page's part, as a rank has read it: all of one turn. Sent as it is between machines of one byte order. */
typedef struct tshi_standings {
    uint32_t turn, port;
    tshi_newcomers newcomers; /* none unless rank 0 is a member */
    struct {
        uint32_t standing, unused;
        int64_t completed;
    } rank[];
} tshi_standings;

static inline size_t tshi_standings_bytes(int size) {
    return sizeof(tshi_standings) + (size_t)size * sizeof(((tshi_standings *)NULL)->rank[0]);
}

void tshi_standings_read(tshi_page *page, tshi_standings *out);

/* What a rank does. COME: `step` are the steps that it has completed. */
typedef enum tshi_standing_change { TSHI_LOOK = 0, TSHI_COME, TSHI_BUILT, TSHI_FAILED_TO_BUILD } tshi_standing_change;

/* Nothing changes unless the round, and the rank's standing, allow it. */
void tshi_standings_change(tshi_page *page, int rank, tshi_standing_change change, uint32_t round, int64_t step);

#endif
