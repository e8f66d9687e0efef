/* Failures of a world, for every transport: which error a call has to return, failing, leaving, the steps of a recovery
 * and the deadline. The state is in the control page (page.h) and in world->machine.
 *
 *   state of a rank   set by                                    its peers' calls return   ends by
 *   FAILED            the rank: tshi_control_fail               TSH_ERR_PEER              a recovery of all ranks
 *   STUCK             the rank: its deadline, an error of MPI   TSH_ERR_PEER              never: the world is broken
 *   DEAD              a rank of its machine, or the relay       TSH_ERR_PEER              never: the world is broken */
#ifndef TSHI_CONTROL_H
#define TSHI_CONTROL_H

#include "dist/world.h"

/* The longest doubt about a deadlock, or about a peer that moves data in a world that is lost; seconds. */
double tshi_control_doubt(const tsh_world *world);

/* --- which error ------------------------------------------------------------------------------------------------- */

/* All that a call looks at on its fast path. */
static inline bool tshi_control_has_failed(const tsh_world *world) {
    const tshi_machine *m = &world->machine;
    return m->broken != TSH_OK || atomic_load_explicit(&m->page->failures, memory_order_relaxed) != 0;
}
/* The error that a call has to return because of failures and deaths, or TSH_OK. */
tsh_status tshi_control_failure(tsh_world *world);
/* The error of a rank that is lost for good: all that ends a recovery. */
tsh_status tshi_control_lasting_failure(tsh_world *world);
/* Adds " in all_reduce #7" to the words of a death. Returns `status`. */
tsh_status tshi_control_add_call(tsh_world *world, tsh_status status, const char *call, unsigned long long number);
/* Marks the world as one that can only be destroyed. Keeps the first reason, which it returns. */
tsh_status tshi_control_break(tsh_world *world, tsh_status status, const char *words);
/* The rank has failed for good. */
static inline bool tshi_control_is_lost(const tsh_world *world, int rank) {
    uint32_t state = tshi_page_state(world->machine.page, rank);
    return state == TSHI_STUCK || state == TSHI_DEAD;
}
/* See tshi_group_ops.check_peers and .fails_later. */
tsh_status tshi_control_check_peers(tsh_group *group, bool look, bool waits);
bool tshi_control_fails_later(const tsh_world *world, tshi_tape_step step);
static inline bool tshi_control_has_left(const tsh_world *world, int rank) {
    return atomic_load(&world->machine.page->record[rank].left) != 0;
}

/* --- what this rank tells ----------------------------------------------------------------------------------------- */

/* See tshi_group_ops.fail. */
void tshi_control_fail(tsh_world *world, const char *reason, tshi_tape_step step);
/* This rank leaves the world. Again: nothing. */
void tshi_control_leave(tsh_world *world);
/* This rank can go on no more; breaks the world as well. */
tsh_status tshi_control_stick(tsh_world *world, tsh_status status, const char *words);

/* --- the deadline ------------------------------------------------------------------------------------------------- */

/* A wait that world->machine.waits has been told of. */
typedef struct tshi_deadline {
    double end, next_warning;
    const char *name; /* "all_reduce" */
    unsigned long long number;
} tshi_deadline;

tshi_deadline tshi_deadline_since(const tsh_world *world, double since, const char *name, unsigned long long number);
/* The deadline has passed; `ranks` (TSHI_LINE bytes) and `stopped` say who has not come. Warns before that, at
 * next_warning, of which it sets the next one. Where each rank waits for another one, one of them may just have been
 * released: that shows soon, or it is a deadlock. */
bool tshi_deadline_passed(tsh_world *world, tshi_deadline *wait, char *ranks, char *stopped);
/* It has passed: tells the peers, and breaks the world. The first rank whose deadline passes reports it for all ranks:
 * one whose deadline passes at that time reports the same. True: this is the first one. */
bool tshi_deadline_report(tsh_world *world, const char *words);

/* --- recovering --------------------------------------------------------------------------------------------------- */

/* A step of recovering that this rank has made, and whom it waits for. */
typedef struct tshi_barrier_state {
    uint32_t step;
    int next;
    tshi_deadline deadline;
} tshi_barrier_state;

/* The next step, which this rank has not made: what ranks do before it. */
tshi_barrier_state tshi_barrier_next(tsh_world *world);
tshi_barrier_state tshi_barrier_begin(tsh_world *world);
/* All ranks have made the step. */
bool tshi_barrier_done(const tsh_world *world, tshi_barrier_state *barrier);
/* What ranks cannot recover from: a rank that is lost or has left, and the deadline. */
tsh_status tshi_barrier_poll(tsh_world *world, tshi_barrier_state *barrier);
/* Sleeps at most so long until the next rank may have come, and looks. */
tsh_status tshi_barrier_wait(tsh_world *world, tshi_barrier_state *barrier, long nanoseconds);
/* After all of them, however it has ended. */
void tshi_barrier_end(tsh_world *world);
/* All of these: returns when all ranks have made this step. */
tsh_status tshi_control_barrier(tsh_world *world);
/* This rank has put its failure behind it: between two steps. */
void tshi_control_revive(tsh_world *world);

#endif
