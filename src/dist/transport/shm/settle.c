/* Memory that peers touch, and when they no longer do.
 *
 * Invariant: a call returns an error only when no peer touches its memory any more. Each rank sets `moving` before it
 * checks for failures and moves data; a rank that leaves a call has seen the state of a rank that has failed, which
 * `failures` counted before, and then reads its peers' `moving`. All are sequentially consistent, so either the mover
 * sees the failure and moves nothing, or the leaving rank sees the mover and waits. If the mover takes too long, the
 * leaving rank gives its own pages a private copy, and the mover goes on with the shared ones. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "dist/collectives/redistribute.h"
#include "dist/transport/shm/shm.h"

#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define SHORT_NAP    1e-4
#define HOLD_SECONDS 0.5

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
    if (world->machine.broken == TSH_OK)
        tshi_control_stick(world, TSH_ERR_TIMEOUT, "rank %d did not end a call within %g s after it had failed", rank,
                           world->timeout);
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
