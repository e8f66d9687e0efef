/* Recovery.
 *
 *   step                 every rank                                            after it
 *   discarding_barrier   has left its calls, and cancelled their receives      no rank starts a call
 *   discarding_barrier   all messages that it has sent have ended, because     no message of this epoch is under way
 *                        their receivers have discarded them
 *   control barrier      becomes ALIVE                                         messages have tags of the new epoch
 *
 * Invariant: no message of an earlier epoch can match. A rank that recovers receives and discards all messages. */
#include "dist/tagged/tagged.h"

#define NAP_NANOSECONDS 200000L

static bool is_tagged(const tsh_group *group) {
    return group->ops == group->world->control && group->state;
}

/* Cancels the receives of this rank's calls; true once none of its messages is under way. */
static bool messages_ended(tsh_world *world) {
    bool ended = tshi_tagged_messages_ended(world);
    for (tsh_group *g = world->groups; g; g = g->next) {
        if (is_tagged(g)) ended = tshi_schedule_stop(&tshi_tagged_group_of(g)->call) && ended;
    }
    return ended;
}

/* A step of the recovery, which this rank makes at once, or when its messages have ended. */
static tsh_status discarding_barrier(tsh_world *world, bool at_once) {
    tshi_barrier_state barrier = at_once ? tshi_barrier_begin(world) : tshi_barrier_next(world);
    tsh_status status = TSH_OK;
    bool made = at_once;
    while (status == TSH_OK && !(made && tshi_barrier_done(world, &barrier))) {
        bool ended = messages_ended(world);
        status = tshi_tagged_of(world)->ops->discard(world);
        if (status == TSH_OK && ended && !made) {
            barrier = tshi_barrier_begin(world);
            made = true;
        }
        if (status == TSH_OK) status = tshi_barrier_poll(world, &barrier);
        if (status == TSH_OK && !(made && tshi_barrier_done(world, &barrier))) tshi_sleep(NAP_NANOSECONDS * 1e-9);
    }
    tshi_barrier_end(world);
    const tshi_message_ops *ops = tshi_tagged_of(world)->ops;
    if (status != TSH_OK && ops->lose) ops->lose(world);
    return status;
}

void tshi_tagged_restart(tsh_group *group) {
    tshi_schedule *call = &tshi_tagged_group_of(group)->call;
    if (call->phase != TSHI_IDLE) tshi_schedule_end(call, TSH_ERR_STATE);
    call->number = 0;
}

tsh_status tshi_tagged_recover(tsh_world *world) {
    const tshi_machine *m = &world->machine;
    if (m->broken != TSH_OK) return tshi_fail(m->broken, "%s", m->broken_words);
    tsh_status status = discarding_barrier(world, true);
    if (status == TSH_OK) tshi_groups_stop(world);
    if (status == TSH_OK) status = discarding_barrier(world, false);
    if (status != TSH_OK) return status;
    tshi_groups_restart(world);
    tshi_control_revive(world);
    return tshi_control_barrier(world);
}
