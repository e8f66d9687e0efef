/* Collectives over tagged messages: waiting for a call, and works. */
#include "base/cpu.h"
#include "dist/tagged/tagged.h"

/* Polls of the call before the first poll for failures. */
#define SPINS        4000
#define SPINS_SHARED 20
#define POLLS        4
#define LOOK_EVERY   64u /* calls */
/* Between polls for failures while messages move. */
#define LOOK_SECONDS 1e-3

static tsh_status begin(tsh_group *group, const tshi_comm_call *call, bool started) {
    tsh_world *world = group->world;
    tshi_tagged_group *tg = group->state;
    if (tshi_control_has_failed(world)) {
        tsh_status status = tshi_tagged_failure(world);
        if (status != TSH_OK) return status;
    }
    tg->trouble_seen = 0;
    tg->call.longest = tshi_tagged_of(world)->longest;
    tsh_status status = tshi_schedule_begin(&tg->call, call, started);
    /* After the first messages, so that this bookkeeping overlaps with their way to the peers. */
    tshi_group_note(group, call);
    return status;
}

/* --- waiting ------------------------------------------------------------------------------------------------------ */

static tsh_status wait_slowly(tsh_group *group) {
    tshi_schedule *call = &tshi_tagged_group_of(group)->call;
    tsh_world *world = group->world;
    tshi_tagged *tagged = tshi_tagged_of(world);
    double since = tshi_clock(), moved = since, next_look = 0;
    while (call->phase != TSHI_IDLE) {
        tagged->moved = false;
        if (tshi_schedule_advance(call) || tagged->moved) {
            moved = tshi_clock();
            if (call->phase == TSHI_IDLE || moved < next_look) continue;
        }
        next_look = tshi_clock() + LOOK_SECONDS;
        tsh_status status = tshi_tagged_poll_call(group, since);
        if (status != TSH_OK) {
            tshi_tagged_awake(group);
            return status;
        }
        if (world->pending) tshi_world_progress(world);
        tshi_tagged_doze(tshi_clock() - moved);
    }
    tshi_tagged_awake(group);
    return tshi_failure_report(&call->outcome);
}

tsh_status tshi_tagged_run(tsh_group *group, const tshi_comm_call *call) {
    tshi_schedule *m = &tshi_tagged_group_of(group)->call;
    int spins = tshi_tagged_of(group->world)->oversubscribed ? SPINS_SHARED : SPINS;
    tsh_status status = begin(group, call, false);
    if (status != TSH_OK) return status;
    for (int i = 0; i < spins && !group->world->pending; i++) {
        if (tshi_schedule_advance(m)) i = 0;
        if (m->phase == TSHI_IDLE) return m->outcome.status;
    }
    return wait_slowly(group);
}

/* --- calls that do not wait --------------------------------------------------------------------------------------- */

tsh_status tshi_tagged_start(tsh_work *work) {
    if (tshi_is_message(work->call.op)) return tshi_tagged_message_start(work);
    return begin(work->group, &work->call, true);
}

void tshi_tagged_progress(tsh_work *work) {
    tsh_group *group = work->group;
    tshi_tagged *tagged = tshi_tagged_of(group->world);
    tshi_schedule *call = &tshi_tagged_group_of(group)->call;
    if (tshi_is_message(work->call.op)) {
        tshi_tagged_message_progress(work);
        return;
    }
    /* Several polls: each processes only some of the messages that have arrived. */
    for (int idle = 0; idle < POLLS && call->phase != TSHI_IDLE; idle++) {
        if (tshi_schedule_advance(call)) idle = -1;
    }
    if (call->phase == TSHI_IDLE) {
        tshi_work_end(work, tshi_failure_report(&call->outcome));
        return;
    }
    if (++tagged->looks % LOOK_EVERY != 0 && !tshi_control_has_failed(group->world)) return;
    tsh_status status = tshi_tagged_group_failure(group);
    if (status != TSH_OK) status = tshi_tagged_give_up(group);
    if (status != TSH_OK) tshi_work_end(work, status);
}

/* Between machines only: on one machine the host's cores move the data, and do not compute meanwhile. */
bool tshi_tagged_overlaps(const tsh_group *group) {
    return tshi_tagged_group_of(group)->call.apart;
}

/* Messages are in host memory only. */
bool tshi_tagged_stages(const tsh_group *group, const tshi_comm_call *call) {
    (void)group;
    (void)call;
    return true;
}
