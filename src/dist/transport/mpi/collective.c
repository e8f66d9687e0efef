/* Collectives over MPI: waiting for a call, and works. */
#include "base/cpu.h"
#include "dist/registry.h"
#include "dist/transport/mpi/mpi.h"

/* Polls of the call before the first poll for failures. */
#define SPINS        4000
#define SPINS_SHARED 20
#define POLLS        4
#define LOOK_EVERY   64u /* calls */

static tsh_status begin(tsh_group *group, const tshi_comm_call *call, bool started) {
    tsh_world *world = group->world;
    tshi_mpi_group *mg = group->state;
    if (tshi_control_has_failed(world)) {
        tsh_status status = tshi_mpi_failure(world);
        if (status != TSH_OK) return status;
    }
    mg->trouble_seen = 0;
    mg->call.longest = tshi_mpi_of(world)->chunk;
    tsh_status status = tshi_schedule_begin(&mg->call, call, started);
    /* After the first messages, so that this bookkeeping overlaps with their way to the peers. */
    tshi_group_note(group, call);
    return status;
}

/* --- waiting ------------------------------------------------------------------------------------------------------ */

static tsh_status wait_slowly(tsh_group *group) {
    tshi_schedule *call = &tshi_mpi_group_of(group)->call;
    tsh_world *world = group->world;
    double since = tshi_clock(), moved = since;
    while (call->phase != TSHI_IDLE) {
        if (tshi_schedule_advance(call)) {
            moved = tshi_clock();
            continue;
        }
        tsh_status status = tshi_mpi_poll_call(group, since);
        if (status != TSH_OK) {
            tshi_mpi_awake(group);
            return status;
        }
        if (world->pending) tshi_world_progress(world);
        tshi_mpi_doze(tshi_clock() - moved);
    }
    tshi_mpi_awake(group);
    return tshi_failure_report(&call->outcome);
}

static tsh_status mpi_run(tsh_group *group, const tshi_comm_call *call) {
    tshi_schedule *m = &tshi_mpi_group_of(group)->call;
    int spins = tshi_mpi_of(group->world)->oversubscribed ? SPINS_SHARED : SPINS;
    tsh_status status = begin(group, call, false);
    if (status != TSH_OK) return status;
    for (int i = 0; i < spins && !group->world->pending; i++) {
        if (tshi_schedule_advance(m)) i = 0;
        if (m->phase == TSHI_IDLE) return m->outcome.status;
    }
    return wait_slowly(group);
}

/* --- calls that do not wait --------------------------------------------------------------------------------------- */

static tsh_status mpi_start(tsh_work *work) {
    if (tshi_is_message(work->call.op)) return tshi_mpi_message_start(work);
    return begin(work->group, &work->call, true);
}

static void mpi_progress(tsh_work *work) {
    tsh_group *group = work->group;
    tshi_mpi *mpi = tshi_mpi_of(group->world);
    tshi_schedule *call = &tshi_mpi_group_of(group)->call;
    if (tshi_is_message(work->call.op)) {
        tshi_mpi_message_progress(work);
        return;
    }
    /* Several polls: each call of MPI processes only some of the messages that have arrived. */
    for (int idle = 0; idle < POLLS && call->phase != TSHI_IDLE; idle++) {
        if (tshi_schedule_advance(call)) idle = -1;
    }
    if (call->phase == TSHI_IDLE) {
        tshi_work_end(work, tshi_failure_report(&call->outcome));
        return;
    }
    if (++mpi->looks % LOOK_EVERY != 0 && !tshi_control_has_failed(group->world)) return;
    tsh_status status = tshi_mpi_group_failure(group);
    if (status != TSH_OK) status = tshi_mpi_give_up(group);
    if (status != TSH_OK) tshi_work_end(work, status);
}

/* Between machines only: on one machine the host's cores move the data, and do not compute meanwhile. */
static bool mpi_overlaps(const tsh_group *group) {
    return tshi_mpi_group_of(group)->call.apart;
}

/* MPI is given host memory only. */
static bool mpi_stages(const tsh_group *group, const tshi_comm_call *call) {
    (void)group;
    (void)call;
    return true;
}

const tshi_group_ops tshi_mpi_ops = {
    .name = "mpi",
    .place = TSHI_MPI_PLACE,
    .overlaps = mpi_overlaps,
    .stages = mpi_stages,
    .probe = tshi_mpi_probe,
    .world_open = tshi_mpi_world_open,
    .world_join = tshi_mpi_world_join,
    .rdma = tshi_mpi_rdma,
    .recover = tshi_mpi_recover,
    .leave = tshi_mpi_leave,
    .world_close = tshi_mpi_world_close,
    .prepare = tshi_mpi_group_prepare,
    .open = tshi_mpi_group_open,
    .close = tshi_mpi_group_close,
    .check_peers = tshi_mpi_check_peers,
    .restart = tshi_mpi_restart,
    .fails_later = tshi_control_fails_later,
    .run = mpi_run,
    .start = mpi_start,
    .progress = mpi_progress,
    .drop = tshi_mpi_message_drop,
    .nap = tshi_mpi_nap,
    .awake = tshi_mpi_awake,
};
