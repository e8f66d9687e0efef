/* Failures, deaths and the deadline of calls on shared memory, and recovery.
 *
 * Invariant: a call returns an error only when no peer touches its memory any more. Each rank sets `moving` before it
 * checks for failures and moves data; a rank that leaves a call has seen the failure before it reads its peers'
 * `moving`. Both are sequentially consistent, so either the mover sees the failure and moves nothing, or the leaving
 * rank sees the mover and waits. If the mover takes too long, the leaving rank gives its own pages a private copy, and
 * the mover goes on with the shared ones. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "dist/collectives/redistribute.h"
#include "dist/collectives/signal.h"
#include "dist/transport/shm/shm.h"

#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define LONGEST_PARTING 2.0
#define SHORT_NAP       1e-4
#define HOLD_SECONDS    0.5

static tshi_rank_record *record_of(const tsh_world *world, int rank) {
    return &world->machine.page->record[rank];
}

/* The message may come from, or go to, member i. */
static bool comes_from(const tshi_wait *wait, int i) {
    int peer = wait->message->call.root;
    return peer < 0 ? i != wait->group->rank : i == peer;
}

static const char *name_of(const tshi_wait *wait) {
    const tshi_shm_group *lg = wait->group->state;
    return wait->message ? tsh_collective_name(wait->message->call.op) : lg->name;
}

static unsigned long long number_of(const tshi_wait *wait) {
    return wait->message ? wait->message->message_number : wait->group->calls;
}

/* "all_reduce float32 [8] sum #7, in backward of linear". */
static void describe_call(const tshi_wait *wait, char *text, size_t size) {
    const tshi_place *place = &wait->world->device->place;
    const tshi_signature *signature = &((tshi_shm_group *)wait->group->state)->draft.signature;
    if (wait->message || signature->kind == TSHI_KIND_TEXT || signature->kind == TSHI_KIND_FAILED)
        snprintf(text, size, "%.100s #%llu", name_of(wait), number_of(wait));
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
    snprintf(words, sizeof words, "%.80s #%llu: %.180s did not come within %g s%.180s", name_of(wait), number_of(wait),
             ranks, wait->world->timeout, stopped);
    if (tshi_deadline_report(wait->world, words)) log_last_calls(wait);
    return tshi_control_failure(wait->world);
}

static tsh_status look_at_clock(tshi_wait *wait) {
    char ranks[TSHI_LINE], stopped[TSHI_LINE];
    tshi_deadline deadline = tshi_deadline_since(wait->world, wait->since, name_of(wait), number_of(wait));
    deadline.next_warning = wait->next_warning;
    bool passed = tshi_deadline_passed(wait->world, &deadline, ranks, stopped);
    wait->next_warning = deadline.next_warning;
    return passed ? time_out(wait, ranks, stopped) : TSH_OK;
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

/* All ranks of the cycle fail: the rank that finds it first becomes FAILED, and the others see that. */
static tsh_status end_cycle(const tshi_wait *wait, const char *words) {
    tshi_world_fail_in(wait->world, words, (tshi_tape_step){0});
    return tshi_fail(TSH_ERR_MISMATCH, "%s", words);
}

tsh_status tshi_shm_poll(tshi_wait *wait, int rank) {
    char cycle[TSHI_MESSAGE_SIZE];
    tsh_world *world = wait->world;
    tshi_signal_poll(world);
    tshi_machine_poll(world);
    tsh_status status = tshi_control_failure(world);
    if (status != TSH_OK) return tshi_control_add_call(world, status, name_of(wait), number_of(wait));
    if (rank < 0) rank = all_left(wait);
    if (rank >= 0 && tshi_control_has_left(world, rank)) {
        char words[TSHI_LINE];
        snprintf(words, sizeof words, "rank %d has left the world; %s #%llu waits for it", rank, name_of(wait),
                 number_of(wait));
        return tshi_control_break(world, TSH_ERR_PEER, words);
    }
    tshi_shm_publish_wait(wait);
    return tshi_waits_cycle(&world->machine.waits, cycle, sizeof cycle) ? end_cycle(wait, cycle) : look_at_clock(wait);
}

/* Wakes the ranks that sleep until this one publishes; other sleepers time out soon. */
void tshi_shm_wake(tsh_group *group) {
    const tshi_shm_group *lg = group->state;
    for (uint32_t k = 0; k < lg->slots; k++) tshi_wake(&tshi_slot_at(lg, group->rank, k)->sync);
}

/* --- memory that peers still touch -------------------------------------------------------------------------------- */

/* `moving` is set before `failures` is loaded; a rank that leaves the call does the opposite. */
tsh_status tshi_shm_move(const tsh_group *group) {
    const tshi_machine *m = &group->world->machine;
    tshi_member *me = tshi_member_at(group->state, group->rank);
    atomic_store(&me->moving, 1);
    if (m->broken == TSH_OK && atomic_load(&m->page->failures) == 0) return TSH_OK;
    tsh_status status = tshi_control_failure(group->world);
    if (status != TSH_OK) tshi_shm_moved(group);
    return status;
}

void tshi_shm_moved(const tsh_group *group) {
    atomic_store_explicit(&tshi_member_at(group->state, group->rank)->moving, 0, memory_order_release);
}

/* Replaces the pages by a private copy at the same address: peers continue with the shared pages. False for threads,
 * which have one address space, and without memory. */
static bool keep_pages(const tsh_world *world, const void *data, size_t bytes) {
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    char *start = (char *)((uintptr_t)data / page * page);
    if (world->machine.threads) return false;
    if (!data || !bytes) return true;
    bytes = ((uintptr_t)data + bytes - (uintptr_t)start + page - 1) / page * page;
    void *copy = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (copy == MAP_FAILED) return false;
    memcpy(copy, start, bytes);
    if (mremap(copy, bytes, bytes, MREMAP_MAYMOVE | MREMAP_FIXED, start) != MAP_FAILED) return true;
    munmap(copy, bytes);
    return false;
}

/* This rank becomes STUCK: a recovery would need the shared pages that it is about to replace. */
static void give_up(tsh_world *world, int rank) {
    char words[TSHI_MESSAGE_SIZE];
    snprintf(words, sizeof words, "rank %d did not end a call within %g s after it had failed", rank, world->timeout);
    if (world->machine.broken == TSH_OK) tshi_control_stick(world, TSH_ERR_TIMEOUT, words);
}

/* Waits a moment for `rank` to finish with this rank's memory. False, and this rank is STUCK, after `end`. */
static bool waits_on(tsh_world *world, int rank, double end) {
    if (tshi_clock() > end) {
        give_up(world, rank);
        return false;
    }
    tshi_sleep(SHORT_NAP);
    tshi_machine_poll(world);
    return true;
}

/* Seconds that this rank waits for a peer that moves data: the timeout, or briefly in a broken world. */
static double patience(const tsh_world *world) {
    return world->machine.broken == TSH_OK ? world->timeout : tshi_control_doubt(world);
}

/* Waits on, where a private copy is impossible: GPU memory, threads, or no memory left. */
static void hold_on(tsh_world *world, int rank, double *next_warning) {
    if (tshi_warning_due(next_warning, world->warn_every)) {
        tshi_log(&world->log, TSH_LOG_WARNING, "rank %d waits for rank %d, which still moves data of a failed call",
                 world->rank, rank);
    }
    tshi_sleep(HOLD_SECONDS);
    tshi_machine_poll(world);
}

/* A member that moves data, or -1. A dead member no longer does. */
static int mover(const tsh_group *group) {
    for (int i = 0; i < group->size; i++) {
        bool moves = i != group->rank && atomic_load(&tshi_member_at(group->state, i)->moving);
        if (moves && tshi_page_state(group->world->machine.page, group->ranks[i]) != TSHI_DEAD) return group->ranks[i];
    }
    return -1;
}

tsh_status tshi_shm_depart(tsh_group *group, const tshi_comm_call *call, const tshi_exchange_plan *plan,
                           tsh_status status) {
    tsh_world *world = group->world;
    double end = tshi_clock() + patience(world), next_warning = 0;
    tshi_failure before;
    int rank;
    if (mover(group) < 0) return status;
    tshi_failure_keep(&before, status);
    while ((rank = mover(group)) >= 0) {
        if (waits_on(world, rank, end)) continue;
        size_t size = tsh_dtype_size(call->dtype);
        size_t in = (size_t)(plan ? tshi_box_numel(plan->e.ndim, &plan->held) : tshi_elements_in(group, call)) * size;
        size_t out = plan ? 0 : (size_t)tshi_elements_out(group, call) * size;
        bool kept = !call->on_device && keep_pages(world, call->in, in);
        if (kept && keep_pages(world, call->out, out)) break;
        hold_on(world, rank, &next_warning);
    }
    return tshi_failure_report(&before);
}

void tshi_shm_await_reader(tsh_world *world, int rank, _Atomic uint32_t *word, uint32_t held, const void *data,
                           size_t bytes) {
    double end = tshi_clock() + patience(world), next_warning = 0;
    while (atomic_load(word) == held && tshi_page_state(world->machine.page, rank) != TSHI_DEAD) {
        if (waits_on(world, rank, end)) continue;
        if (keep_pages(world, data, bytes)) return;
        hold_on(world, rank, &next_warning);
    }
}

/* --- recovering --------------------------------------------------------------------------------------------------- */

/* The latest sync that any member has published. */
static uint32_t last_sync(const tsh_group *group) {
    const tshi_shm_group *lg = group->state;
    uint32_t last = lg->sync;
    for (int i = 0; i < group->size; i++) {
        for (uint32_t k = 0; k < lg->slots; k++) {
            uint32_t sync = atomic_load(&tshi_slot_at(lg, i, k)->sync);
            if ((int32_t)(sync - last) > 0) last = sync;
        }
    }
    return last;
}

/* All ranks read the slots when they stop, and write their own only when all have stopped. */
void tshi_shm_stop(tsh_group *group) {
    ((tshi_shm_group *)group->state)->agreed = last_sync(group);
}

void tshi_shm_restart(tsh_group *group) {
    tshi_shm_group *lg = group->state;
    lg->sync = lg->agreed;
    lg->compared = lg->agreed;
    for (uint32_t k = 0; k < lg->slots; k++) atomic_store(&tshi_slot_at(lg, group->rank, k)->sync, lg->agreed);
    tshi_messages_reset(group);
}

/* Waits until all peers have unmapped this rank's GPU memory, which must not be freed before; threads map none. After
 * LONGEST_PARTING the memory is kept until this process ends. */
static void unmap_peers(tsh_world *world) {
    if (!tshi_shm_of(world)->maps) return;
    world->device->ops->sharing->unmap(world->device);
    atomic_store(&record_of(world, world->rank)->unmapped_peers, 1);
    double end = tshi_clock() + LONGEST_PARTING;
    for (int i = 0; i < world->size; i++) {
        while (!atomic_load(&record_of(world, i)->unmapped_peers) &&
               tshi_page_state(world->machine.page, i) != TSHI_DEAD) {
            if (tshi_clock() > end) {
                world->device->ops->sharing->keep(world->device);
                return;
            }
            tshi_sleep(100e-6);
            tshi_machine_poll(world);
        }
    }
}

void tshi_shm_leave(tsh_world *world) {
    tshi_messages_sweep(world, true);
    tshi_control_leave(world);
    if (world->machine.page) unmap_peers(world);
}
