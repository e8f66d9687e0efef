/* Polling while a rank waits: failures, deaths, cycles of waits and the deadline. */
#include "dist/transport/shm/shm.h"

#include <stdio.h>

/* The message may come from, or go to, member i. */
static bool comes_from(const tshi_wait *wait, int i) {
    int peer = wait->message->call.root;
    return peer < 0 ? i != wait->group->rank : i == peer;
}

/* "all_reduce float32 [8] sum #7, in backward of linear". */
static void describe_call(const tshi_wait *wait, char *text, size_t size) {
    const tshi_place *place = &wait->world->device->place;
    const tshi_signature *signature = &((tshi_shm_group *)wait->group->state)->draft.signature;
    if (wait->message || signature->kind == TSHI_KIND_TEXT || signature->kind == TSHI_KIND_FAILED)
        snprintf(text, size, "%.100s #%llu", wait->deadline.name, wait->deadline.number);
    else
        tshi_signature_describe(signature, NULL, text, size);
    if (place->function)
        tshi_append(text, size, ", in %s%.40s", place->backward ? "backward of " : "", place->function);
}

/* See tshi_waits.stands. A wait does not stand while this rank has other works in flight, which a peer may wait for, or
 * if it receives from any rank, as one absent rank does not block it then. */
static bool stands(const tshi_wait *wait) {
    int own = wait->message || wait->group->queue ? 1 : 0;
    bool any = wait->message && wait->message->call.root < 0;
    return !any && wait->world->pending <= own;
}

void tshi_shm_publish_wait(const tshi_wait *wait) {
    char text[TSHI_LINE];
    tshi_waits *waits = &wait->world->machine.waits;
    tshi_waits_begin(waits, wait->message ? wait->message->message_number : wait->sync);
    for (int i = 0; i < wait->group->size; i++) {
        _Atomic uint32_t *word = &tshi_slot_at(wait->group->state, i, wait->sync)->sync;
        bool here = wait->message ? !comes_from(wait, i) : tshi_reached(word, wait->sync);
        if (!here) tshi_waits_add(waits, wait->group->ranks[i]);
    }
    if (waits->published) { /* not the first time: most waits end before the second */
        describe_call(wait, text, sizeof text);
        tshi_waits_say(waits, text, stands(wait));
    }
    tshi_waits_publish(waits);
}

static void log_last_calls(const tshi_wait *wait) {
    char text[TSHI_LINE];
    const tshi_shm_group *lg = wait->group->state;
    tshi_group_log_recent_calls(wait->group);
    for (int i = 0; i < wait->group->size; i++) {
        /* A call's second sync has the same number as its first. */
        tshi_slot *last = tshi_slot_at(lg, i, 0);
        for (uint32_t k = 1; k < lg->slots; k++) {
            tshi_slot *slot = tshi_slot_at(lg, i, k);
            if (slot->signature.number > last->signature.number) last = slot;
        }
        bool waits = tshi_waits_call(&wait->world->machine.waits, wait->group->ranks[i], text, sizeof text);
        if (!waits && last->signature.number) tshi_slot_describe(last, text, sizeof text);
        tshi_log(&wait->world->log, TSH_LOG_WARNING, "rank %d%s: %s", wait->group->ranks[i],
                 waits ? " waits in" : "'s last call", text[0] ? text : "none");
    }
}

static tsh_status time_out(const tshi_wait *wait, const char *ranks, const char *stopped) {
    char words[TSHI_MESSAGE_SIZE];
    snprintf(words, sizeof words, "%.80s #%llu: %.180s did not come within %g s%.180s", wait->deadline.name,
             wait->deadline.number, ranks, wait->world->timeout, stopped);
    if (tshi_deadline_report(wait->world, words)) log_last_calls(wait);
    return tshi_control_failure(wait->world);
}

/* For a receive from any rank: a peer if all peers have left, else -1. */
static int all_left(const tshi_wait *wait) {
    int last = -1;
    for (int i = 0; wait->message && i < wait->group->size; i++) {
        int rank = wait->group->ranks[i];
        if (rank == wait->world->rank) continue;
        if (!tshi_control_has_left(wait->world, rank)) return -1;
        last = rank;
    }
    return last;
}

tsh_status tshi_shm_poll(tshi_wait *wait, int rank) {
    tsh_world *world = wait->world;
    const tshi_deadline *call = &wait->deadline;
    char ranks[TSHI_LINE], stopped[TSHI_LINE];
    tshi_signal_poll(world);
    tshi_machine_poll(world);
    tsh_status status = tshi_control_failure(world);
    if (status != TSH_OK) return tshi_control_add_call(world, status, call->name, call->number);
    if (rank < 0) rank = all_left(wait);
    if (rank >= 0 && tshi_control_has_left(world, rank))
        return tshi_control_break(world, TSH_ERR_PEER, "rank %d has left the world; %s #%llu waits for it", rank,
                                  call->name, call->number);
    tshi_shm_publish_wait(wait);
    status = tshi_world_end_cycle(world);
    if (status != TSH_OK || !tshi_deadline_passed(world, &wait->deadline, ranks, stopped)) return status;
    return time_out(wait, ranks, stopped);
}

/* Wakes the ranks that sleep until this one publishes; other sleepers time out soon. */
void tshi_shm_wake(tsh_group *group) {
    const tshi_shm_group *lg = group->state;
    for (uint32_t k = 0; k < lg->slots; k++) tshi_wake(&tshi_slot_at(lg, group->rank, k)->sync);
}
