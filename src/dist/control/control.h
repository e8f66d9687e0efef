/* Failures of a world, for every transport: the error that a call has to return, failing, leaving, the steps of a
 * recovery and the deadline. The state is in the control page (page.h) and in world->machine.
 *
 * Invariant: world->machine.broken, once set, never changes, and every later call returns it. It holds because
 * only tshi_control_break sets it, and keeps the first error. A world that is not broken recovers when every rank has
 * made the same steps.
 *
 *   state of a rank   set by                                    its peers' calls return   ended by
 *   FAILED            the rank: tshi_control_fail               TSH_ERR_PEER              a recovery of all ranks
 *   STUCK             the rank: its deadline, an MPI error;     TSH_ERR_PEER              nothing: the world is broken
 *                     the relay: its machine is silent
 *   DEAD              a rank of its machine, or the relay       TSH_ERR_PEER              nothing: the world is
 * broken */
#ifndef TSHI_CONTROL_H
#define TSHI_CONTROL_H

#include "dist/world.h"

/* Seconds that a rank waits before it reports a suspected deadlock, and in a broken world for a peer that still moves
 * data. */
double tshi_control_doubt(const tsh_world *world);

/* --- which error ------------------------------------------------------------------------------------------------- */

/* Two loads: the only check for failures on a call's fast path. */
static inline bool tshi_control_has_failed(const tsh_world *world) {
    const tshi_machine *m = &world->machine;
    return m->broken != TSH_OK || atomic_load_explicit(&m->page->failures, memory_order_relaxed) != 0;
}
/* The error that a call has to return after failures and deaths: this rank's own, or else the first cause's; TSH_OK
 * where no rank has failed. */
tsh_status tshi_control_failure(tsh_world *world);
/* The error of a rank that is STUCK or DEAD, which ends a recovery; TSH_OK where no rank is. */
tsh_status tshi_control_lasting_failure(tsh_world *world);
/* Appends " in all_reduce #7" to the message if a rank has died. Returns `status`. */
tsh_status tshi_control_add_call(tsh_world *world, tsh_status status, const char *call, unsigned long long number);
/* Breaks the world: it can then only be continued or destroyed. Returns the first reason, which later calls do not
 * replace. */
tsh_status tshi_control_break(tsh_world *world, tsh_status status, const char *format, ...) TSH_PRINTF(3, 4);
/* The rank is STUCK or DEAD. */
static inline bool tshi_control_is_lost(const tsh_world *world, int rank) {
    uint32_t state = tshi_page_state(world->machine.page, rank);
    return state == TSHI_STUCK || state == TSHI_DEAD;
}
/* tshi_group_ops.check_peers and .fails_later. */
tsh_status tshi_control_check_peers(tsh_group *group, bool look, bool waits);
bool tshi_control_fails_later(const tsh_world *world, tshi_tape_step step);
static inline bool tshi_control_has_left(const tsh_world *world, int rank) {
    return atomic_load(&world->machine.page->record[rank].left) != 0;
}

/* --- what this rank publishes ------------------------------------------------------------------------------------- */

/* tshi_group_ops.fail: this rank becomes FAILED. */
void tshi_control_fail(tsh_world *world, const char *reason, tshi_tape_step step);
/* This rank leaves the world. The second call does nothing. */
void tshi_control_leave(tsh_world *world);
/* This rank becomes STUCK, with the words as its reason, and its world is broken. */
tsh_status tshi_control_stick(tsh_world *world, tsh_status status, const char *format, ...) TSH_PRINTF(3, 4);

/* --- the deadline ------------------------------------------------------------------------------------------------- */

/* The deadline of a wait that world->machine.waits has published. */
typedef struct tshi_deadline {
    double end, next_warning;
    const char *name; /* "all_reduce" */
    unsigned long long number;
    const tsh_group *group; /* all of its members make the call; NULL: it waits for single ranks */
    bool agrees;            /* the call is an agreement on the control channel, not a transport's */
} tshi_deadline;

tshi_deadline tshi_deadline_since(const tsh_world *world, double since, const char *name, unsigned long long number);
/* Publishes the wait on the control page, once it has lasted for a while: then all machines know which members of the
 * group have come to the call, and which have not. */
void tshi_deadline_publish(tsh_world *world, const tshi_deadline *wait);
/* The error of an agreement and a transport's call that can never end, since another member of the group waits in the
 * other one of the same number; this rank becomes FAILED. TSH_OK where no such call is known. Two agreements compare
 * their votes, and two calls of a transport their entries, with better words. */
tsh_status tshi_deadline_compare(tsh_world *world, const tshi_deadline *wait);
/* Names the ranks that block this one, as tshi_waits_name does (TSHI_LINE bytes each); without a published row, the
 * members of wait->group that have not come to the call. False: not sure. */
bool tshi_deadline_name(const tsh_world *world, const tshi_deadline *wait, char *ranks, char *stopped);
/* True when the deadline has passed; `ranks` and `stopped` (TSHI_LINE bytes each) name the missing ranks. Before the
 * deadline it warns at wait->next_warning, and again when the wait has lasted twice as long. In a cycle of waits one
 * rank may just have been released, so the deadline of a cycle passes tshi_control_doubt later. */
bool tshi_deadline_passed(tsh_world *world, tshi_deadline *wait, char *ranks, char *stopped);
/* This rank becomes STUCK, and its world is broken. True if this rank is the first cause: it reports a timeout. On the
 * others the call fails with the first cause's words, so all ranks report the same. */
bool tshi_deadline_report(tsh_world *world, const char *words);

/* --- recovering --------------------------------------------------------------------------------------------------- */

/* A step of a recovery, and the rank that this one waits for. */
typedef struct tshi_barrier_state {
    uint32_t step;
    int next; /* all ranks before this one have made the step */
    tshi_deadline deadline;
} tshi_barrier_state;

/* The wait for the next step, before this rank makes it. */
tshi_barrier_state tshi_barrier_next(tsh_world *world);
/* Makes the next step. */
tshi_barrier_state tshi_barrier_begin(tsh_world *world);
/* All ranks have made the step. */
bool tshi_barrier_done(const tsh_world *world, tshi_barrier_state *barrier);
/* The error that ends a recovery: a rank that is STUCK, DEAD or has left, or the deadline. */
tsh_status tshi_barrier_poll(tsh_world *world, tshi_barrier_state *barrier);
/* Ends the wait, whatever its outcome. */
void tshi_barrier_end(tsh_world *world);
/* Makes a step, and returns when all ranks have made it. */
tsh_status tshi_control_barrier(tsh_world *world);
/* This rank becomes ALIVE again. Called between two steps, so that no rank sees some ranks ALIVE and others not. */
void tshi_control_revive(tsh_world *world);

#endif
