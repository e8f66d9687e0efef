/* Recovery.
 *
 *   step                 every rank                                      after it
 *   recovery_barrier     has left its calls                              no rank starts a call
 *   exchange             knows the last barrier entered and passed       all ranks finish the same calls
 *                        in each group
 *   finish_groups        finishes calls that some member has passed      MPI has no call of the groups in flight
 *                        into, as a call of MPI cannot be cancelled
 *   recovery_barrier
 *   revive               resets its barriers, and becomes ALIVE
 *   discard_messages     receives and discards given-up messages         MPI has no message of the old epoch
 *   recovery_barrier                                                     messages have tags of the new epoch
 *
 * Invariant: after the last barrier all members of a group are at the same entry barrier, and no message of an earlier
 * epoch can match. */
#include "dist/registry.h"
#include "dist/transport/mpi/mpi.h"

#include <string.h>

#define PATIENCE        1.0 /* seconds that given-up messages have to end */
#define NAP_NANOSECONDS 200000L

/* The position of one member in a group's calls. */
typedef struct position {
    uint64_t id, entered, moved;
} position;

/* --- waiting ------------------------------------------------------------------------------------------------------ */

static bool is_mpi(const tsh_group *group) {
    return group->ops == &tshi_mpi_ops && group->state;
}

/* Advances this rank's calls: members that have passed an entry barrier need this rank's part before they recover. */
static void move_on(tsh_world *world) {
    for (tsh_group *g = world->groups; g; g = g->next) {
        if (is_mpi(g)) tshi_mpi_advance(g);
    }
}

static tsh_status wait_request(tsh_world *world, int error, MPI_Request *request) {
    tshi_barrier_state next = tshi_barrier_next(world);
    double since = tshi_clock();
    int done = 0;
    tsh_status status = TSH_OK;
    while (error == MPI_SUCCESS && !done) {
        error = MPI_Test(request, &done, MPI_STATUS_IGNORE);
        if (done || error != MPI_SUCCESS) break;
        status = tshi_barrier_poll(world, &next);
        if (status != TSH_OK) break;
        tshi_mpi_doze(tshi_clock() - since);
    }
    tshi_barrier_end(world);
    if (status != TSH_OK) tshi_mpi_skip_finalize();
    return error == MPI_SUCCESS ? status : tshi_mpi_error(world, "world_recover", error);
}

/* A step of the recovery. Calls MPI meanwhile, for the progress of messages that this rank has sent. */
static tsh_status recovery_barrier(tsh_world *world) {
    tshi_barrier_state barrier = tshi_barrier_begin(world);
    tsh_status status = TSH_OK;
    int there, error = MPI_SUCCESS;
    while (status == TSH_OK && error == MPI_SUCCESS && !tshi_barrier_done(world, &barrier)) {
        error = MPI_Iprobe(MPI_ANY_SOURCE, MPI_ANY_TAG, tshi_mpi_of(world)->recovery, &there, MPI_STATUS_IGNORE);
        move_on(world);
        status = tshi_barrier_wait(world, &barrier, NAP_NANOSECONDS);
    }
    tshi_barrier_end(world);
    if (status != TSH_OK) tshi_mpi_skip_finalize();
    return error == MPI_SUCCESS ? status : tshi_mpi_error(world, "world_recover", error);
}

/* --- the positions of all ranks ----------------------------------------------------------------------------------- */

static int count_groups(const tsh_world *world) {
    int n = 0;
    for (const tsh_group *g = world->groups; g; g = g->next) n += is_mpi(g);
    return n;
}

/* Gathers the positions of all ranks, [size * most], padded with zeros. */
static tsh_status exchange(tsh_world *world, position **out, int *most) {
    tshi_mpi *mpi = tshi_mpi_of(world);
    const tsh_allocator *allocator = &world->allocator;
    MPI_Request request = MPI_REQUEST_NULL;
    int mine = count_groups(world), i = 0;
    *out = NULL;
    tsh_status status =
        wait_request(world, MPI_Iallreduce(&mine, most, 1, MPI_INT, MPI_MAX, mpi->recovery, &request), &request);
    if (status != TSH_OK) return status;
    position *all = tshi_calloc(allocator, (size_t)*most * (size_t)world->size, sizeof *all);
    position *own = tshi_calloc(allocator, (size_t)*most, sizeof *own);
    if (!all || !own) {
        status = tshi_control_stick(world, TSH_ERR_MEMORY, "world_recover: no memory");
    } else {
        for (const tsh_group *g = world->groups; g; g = g->next) {
            const tshi_mpi_group *mg = g->state;
            if (is_mpi(g)) own[i++] = (position){mg->id, mg->entered, mg->moved};
        }
        int bytes = *most * (int)sizeof *own;
        int error = MPI_Iallgather(own, bytes, MPI_BYTE, all, bytes, MPI_BYTE, mpi->recovery, &request);
        status = wait_request(world, error, &request);
    }
    tshi_free(allocator, own);
    if (status == TSH_OK)
        *out = all;
    else
        tshi_free(allocator, all);
    return status;
}

/* The furthest position of any member of the group; false: a member has closed the group. */
static bool furthest(const tsh_group *group, const position *all, int most, position *out) {
    *out = (position){.id = tshi_mpi_group_of(group)->id};
    for (int i = 0; i < group->size; i++) {
        const position *own = all + (size_t)group->ranks[i] * (size_t)most;
        int k = 0;
        while (k < most && own[k].id != out->id) k++;
        if (k == most) return false;
        if (own[k].entered > out->entered) out->entered = own[k].entered;
        if (own[k].moved > out->moved) out->moved = own[k].moved;
    }
    return true;
}

/* --- finishing ---------------------------------------------------------------------------------------------------- */

/* An entry barrier without shared memory is a call of MPI, so members that have not entered it take part now. */
static tsh_status finish_entry(tsh_group *group, uint64_t last) {
    tshi_mpi_group *mg = group->state;
    tshi_mpi_op *op = &mg->op;
    tsh_world *world = group->world;
    if (mg->block) return TSH_OK;
    if (op->phase == TSHI_AT_ENTRY) return wait_request(world, MPI_SUCCESS, &op->request);
    if (mg->entered >= last) return TSH_OK;
    const uint64_t mine[3] = {0};
    MPI_Request request = MPI_REQUEST_NULL;
    mg->entered = last;
    return wait_request(world, tshi_entry_call(group, mine, &request), &request);
}

/* Finishes a call whose entry barrier some member has passed; its result is dropped. */
static tsh_status finish_move(tsh_group *group, uint64_t last) {
    tshi_mpi_group *mg = group->state;
    tshi_barrier_state next = tshi_barrier_next(group->world);
    double since = tshi_clock();
    if (mg->op.phase == TSHI_IDLE) return TSH_OK;
    bool behind = mg->entered == last;
    /* MPI_Test reports a request that finish_entry has waited for as done. */
    while (behind && mg->op.phase != TSHI_IDLE) {
        if (tshi_mpi_advance(group)) continue;
        tsh_status status = tshi_barrier_poll(group->world, &next);
        if (status != TSH_OK) return status;
        tshi_mpi_doze(tshi_clock() - since);
    }
    if (mg->op.phase != TSHI_IDLE) tshi_mpi_op_end(group, TSH_ERR_STATE);
    return TSH_OK;
}

static tsh_status finish_groups(tsh_world *world, const position *all, int most) {
    tsh_status status = TSH_OK;
    for (tsh_group *g = world->groups; g && status == TSH_OK; g = g->next) {
        position last;
        if (!is_mpi(g) || !furthest(g, all, most, &last)) continue;
        status = finish_entry(g, last.entered);
        if (status == TSH_OK) status = finish_move(g, last.moved);
    }
    return status;
}

/* Discards messages until those that this rank has given up have ended: a send ends when its receiver discards it. A
 * receiver that has closed the group never does, so PATIENCE limits the wait. */
static tsh_status discard_messages(tsh_world *world) {
    tshi_barrier_state barrier = tshi_barrier_next(world);
    double since = tshi_clock();
    bool waits = false;
    tsh_status status = TSH_OK;
    while (!waits || !tshi_barrier_done(world, &barrier)) {
        for (tsh_group *g = world->groups; g && status == TSH_OK; g = g->next) {
            if (is_mpi(g)) status = tshi_mpi_messages_discard(g);
        }
        if (status == TSH_OK) status = tshi_barrier_poll(world, &barrier);
        if (status != TSH_OK) break;
        bool ended = tshi_mpi_messages_ended(world) || tshi_clock() - since >= PATIENCE;
        if (!waits && ended) barrier = tshi_barrier_begin(world);
        waits = waits || ended;
        tshi_mpi_doze(tshi_clock() - since);
    }
    tshi_barrier_end(world);
    if (status != TSH_OK) tshi_mpi_skip_finalize();
    return status;
}

tsh_status tshi_mpi_recover(tsh_world *world) {
    tshi_mpi *mpi = tshi_mpi_of(world);
    const tshi_machine *m = &world->machine;
    position *all = NULL;
    int most = 0;
    if (m->broken != TSH_OK) return tshi_fail(m->broken, "%s", m->broken_words);
    tsh_status status = recovery_barrier(world);
    if (status == TSH_OK) status = exchange(world, &all, &most);
    if (status == TSH_OK) status = finish_groups(world, all, most);
    tshi_free(&world->allocator, all);
    if (status == TSH_OK) tshi_groups_stop(world);
    if (status == TSH_OK) status = recovery_barrier(world);
    if (status != TSH_OK) return status;
    tshi_groups_restart(world);
    tshi_control_revive(world);
    status = discard_messages(world);
    mpi->epoch++;
    return status == TSH_OK ? recovery_barrier(world) : status;
}
