/* The steps of a recovery: in each of them every rank waits for all. */
#include "dist/collectives/signal.h"
#include "dist/control/control.h"

#include <stdio.h>

#define NAP_NANOSECONDS 50000000L

void tshi_control_revive(tsh_world *world) {
    tshi_page *page = world->machine.page;
    page->record[world->rank].reason[0] = '\0';
    tshi_page_set_state(page, world->rank, TSHI_FAILED, TSHI_ALIVE);
    atomic_store(&page->cause, 0);
}

static void post_wait(tsh_world *world, const tshi_meeting *meeting) {
    tshi_waits *waits = &world->machine.waits;
    tshi_waits_begin(waits, meeting->step);
    for (int i = 0; i < world->size; i++) {
        if (!tshi_reached(&world->machine.page->record[i].recover, meeting->step)) tshi_waits_add(waits, i);
    }
    tshi_waits_post(waits);
}

tshi_meeting tshi_meeting_next(tsh_world *world) {
    tshi_meeting meeting = {.step = world->machine.steps + 1};
    meeting.deadline = tshi_deadline_since(world, tshi_clock(), "world_recover", meeting.step);
    post_wait(world, &meeting);
    return meeting;
}

tshi_meeting tshi_meeting_begin(tsh_world *world) {
    tshi_page_recover_step(world->machine.page, world->rank, world->machine.steps + 1);
    tshi_meeting meeting = tshi_meeting_next(world);
    world->machine.steps++;
    return meeting;
}

bool tshi_meeting_done(const tsh_world *world, tshi_meeting *meeting) {
    tshi_rank_record *r = world->machine.page->record;
    while (meeting->next < world->size && tshi_reached(&r[meeting->next].recover, meeting->step)) meeting->next++;
    return meeting->next == world->size;
}

/* A rank that has left, and has not made the step; or -1. */
static int first_left(const tsh_world *world, const tshi_meeting *meeting) {
    for (int i = meeting->next; i < world->size; i++) {
        if (!tshi_control_has_left(world, i)) continue;
        if (!tshi_reached(&world->machine.page->record[i].recover, meeting->step)) return i;
    }
    return -1;
}

tsh_status tshi_meeting_look(tsh_world *world, tshi_meeting *meeting) {
    char words[TSHI_MESSAGE_SIZE], ranks[TSHI_LINE], stopped[TSHI_LINE];
    tshi_signal_look(world);
    tshi_machine_look(world);
    tsh_status status = tshi_control_permanent_trouble(world);
    if (status != TSH_OK) return tshi_control_add_call(world, status, "world_recover", meeting->step);
    int left = first_left(world, meeting);
    if (left >= 0) {
        snprintf(words, sizeof words, "rank %d has left the world; world_recover #%u waits for it", left,
                 meeting->step);
        return tshi_control_break(world, TSH_ERR_PEER, words);
    }
    post_wait(world, meeting);
    if (!tshi_deadline_passed(world, &meeting->deadline, ranks, stopped)) return TSH_OK;
    snprintf(words, sizeof words, "world_recover #%u: %.180s did not come within %g s%.180s", meeting->step, ranks,
             world->timeout, stopped);
    /* Peers that have failed are the reason for a recovery, and none for its end. */
    tshi_log(&world->log, TSH_LOG_WARNING, "rank %d: %s", world->rank, words);
    return tshi_control_stick(world, TSH_ERR_TIMEOUT, words);
}

tsh_status tshi_meeting_wait(tsh_world *world, tshi_meeting *meeting, long nanoseconds) {
    tshi_rank_record *r = &world->machine.page->record[meeting->next];
    tshi_doze(&r->recover, meeting->step, &r->sleepers, nanoseconds);
    if (tshi_reached(&r->recover, meeting->step)) return TSH_OK;
    tsh_status status = tshi_meeting_look(world, meeting);
    /* It may have come, and gone, since. */
    return tshi_reached(&r->recover, meeting->step) ? TSH_OK : status;
}

void tshi_meeting_end(tsh_world *world) {
    tshi_waits_end(&world->machine.waits);
}

tsh_status tshi_control_meet(tsh_world *world) {
    tshi_meeting meeting = tshi_meeting_begin(world);
    tsh_status status = TSH_OK;
    while (status == TSH_OK && !tshi_meeting_done(world, &meeting)) {
        status = tshi_meeting_wait(world, &meeting, NAP_NANOSECONDS);
    }
    tshi_meeting_end(world);
    return status;
}
