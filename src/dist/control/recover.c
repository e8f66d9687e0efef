/* The steps of a recovery: a barrier each.
 *
 * Invariant: a rank returns from step s only when every rank has made step s, and sees the states that the ranks had
 * then. It holds because record[].recover only increases and each rank writes its state before it (page.h). A rank that
 * leaves after it has made the step does not fail the step. */
#include "dist/control/control.h"

#include <stdio.h>

#define NAP_NANOSECONDS 50000000L

void tshi_control_revive(tsh_world *world) {
    tshi_page *page = world->machine.page;
    page->record[world->rank].reason[0] = '\0';
    tshi_page_set_state(page, world->rank, TSHI_FAILED, TSHI_ALIVE);
    atomic_store(&page->cause, 0);
}

static void publish_wait(tsh_world *world, const tshi_barrier_state *barrier) {
    tshi_waits *waits = &world->machine.waits;
    tshi_waits_begin(waits, barrier->step);
    for (int i = 0; i < world->size; i++) {
        if (!tshi_reached(&world->machine.page->record[i].recover, barrier->step)) tshi_waits_add(waits, i);
    }
    tshi_waits_publish(waits);
}

tshi_barrier_state tshi_barrier_next(tsh_world *world) {
    tshi_barrier_state barrier = {.step = world->machine.steps + 1};
    barrier.deadline = tshi_deadline_since(world, tshi_clock(), "world_recover", barrier.step);
    publish_wait(world, &barrier);
    return barrier;
}

tshi_barrier_state tshi_barrier_begin(tsh_world *world) {
    tshi_page_recover_step(world->machine.page, world->rank, world->machine.steps + 1);
    tshi_barrier_state barrier = tshi_barrier_next(world);
    world->machine.steps++;
    return barrier;
}

bool tshi_barrier_done(const tsh_world *world, tshi_barrier_state *barrier) {
    tshi_rank_record *r = world->machine.page->record;
    while (barrier->next < world->size && tshi_reached(&r[barrier->next].recover, barrier->step)) barrier->next++;
    return barrier->next == world->size;
}

/* The first rank that has left without making the step, or -1. `left` is loaded before `recover`: a rank makes its last
 * step before it leaves. */
static int first_left(const tsh_world *world, const tshi_barrier_state *barrier) {
    for (int i = barrier->next; i < world->size; i++) {
        if (!tshi_control_has_left(world, i)) continue;
        if (!tshi_reached(&world->machine.page->record[i].recover, barrier->step)) return i;
    }
    return -1;
}

tsh_status tshi_barrier_poll(tsh_world *world, tshi_barrier_state *barrier) {
    char words[TSHI_MESSAGE_SIZE], ranks[TSHI_LINE], stopped[TSHI_LINE];
    tshi_signal_poll(world);
    tshi_machine_poll(world);
    tsh_status status = tshi_control_lasting_failure(world);
    if (status != TSH_OK) return tshi_control_add_call(world, status, "world_recover", barrier->step);
    int left = first_left(world, barrier);
    if (left >= 0)
        return tshi_control_break(world, TSH_ERR_PEER, "rank %d has left the world; world_recover #%u waits for it",
                                  left, barrier->step);
    publish_wait(world, barrier);
    if (!tshi_deadline_passed(world, &barrier->deadline, ranks, stopped)) return TSH_OK;
    snprintf(words, sizeof words, "world_recover #%u: %.180s did not come within %g s%.180s", barrier->step, ranks,
             world->timeout, stopped);
    /* Not tshi_deadline_report: it would return the failure that this recovery is for, instead of the timeout. */
    tshi_log(&world->log, TSH_LOG_WARNING, "rank %d: %s", world->rank, words);
    return tshi_control_stick(world, TSH_ERR_TIMEOUT, "%s", words);
}

/* Sleeps until rank barrier->next makes the step, but not for long; then polls. */
static tsh_status wait_for_next(tsh_world *world, tshi_barrier_state *barrier) {
    tshi_rank_record *r = &world->machine.page->record[barrier->next];
    tshi_doze(&r->recover, barrier->step, &r->sleepers, NAP_NANOSECONDS);
    if (tshi_reached(&r->recover, barrier->step)) return TSH_OK;
    tsh_status status = tshi_barrier_poll(world, barrier);
    /* The rank may have made the step and left since. */
    return tshi_reached(&r->recover, barrier->step) ? TSH_OK : status;
}

void tshi_barrier_end(tsh_world *world) {
    tshi_waits_end(&world->machine.waits);
}

tsh_status tshi_control_barrier(tsh_world *world) {
    tshi_barrier_state barrier = tshi_barrier_begin(world);
    tsh_status status = TSH_OK;
    while (status == TSH_OK && !tshi_barrier_done(world, &barrier)) status = wait_for_next(world, &barrier);
    tshi_barrier_end(world);
    return status;
}
