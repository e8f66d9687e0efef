/* Waiting: spin, then yield, then sleep on a futex, looking around for failures now and then. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "dist/local.h"

#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

/* Polls without a pause: a pause costs the reply of a peer that is just as fast. */
#define EAGER_POLLS 64
#define CACHE_LINE  64
/* The longest sleep before looking around. */
#define NAP_NANOSECONDS 50000000L

static inline void pause_cpu(void) {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

void tshi_wake(_Atomic uint32_t *word) {
    syscall(SYS_futex, (uint32_t *)word, FUTEX_WAKE, INT32_MAX, NULL, NULL, 0);
}

static void doze(_Atomic uint32_t *word, uint32_t target, _Atomic uint32_t *sleepers) {
    const struct timespec nap = {.tv_nsec = NAP_NANOSECONDS};
    /* Registered before the last look: a poster that does not see me has posted before that look. */
    atomic_fetch_add_explicit(sleepers, 1, memory_order_acq_rel);
    uint32_t seen = atomic_load_explicit(word, memory_order_acquire);
    if ((int32_t)(seen - target) < 0) syscall(SYS_futex, (uint32_t *)word, FUTEX_WAIT, seen, &nap, NULL, 0);
    atomic_fetch_sub_explicit(sleepers, 1, memory_order_acq_rel);
}

tsh_status tshi_wait_for(tshi_wait *wait, _Atomic uint32_t *word, uint32_t target, _Atomic uint32_t *sleepers,
                         int rank) {
    const tshi_local *local = tshi_local_of(wait->world);
    for (int i = 0; i < local->yields; i++) {
        if (tshi_reached(word, target)) return TSH_OK;
        sched_yield();
    }
    while (!tshi_reached(word, target)) {
        doze(word, target, sleepers);
        if (tshi_reached(word, target)) break;
        tsh_status status = tshi_local_look(wait, rank);
        /* It may have posted and gone since. */
        if (status != TSH_OK && !tshi_reached(word, target)) return status;
    }
    return TSH_OK;
}

/* Whoever sleeps until my post. A read-modify-write, although it writes nothing new: it comes before or after the
 * sleeper's own in one order that both see, so one of the two sees the other. */
static inline void wake_sleepers(tshi_member *me, tshi_slot *slot) {
    if (atomic_fetch_add_explicit(&me->sleepers, 0, memory_order_acq_rel) != 0) tshi_wake(&slot->sync);
}

/* Out of the line of the fast path. */
__attribute__((noinline)) static tsh_status sync_slowly(tsh_group *group, uint32_t sync) {
    tshi_local_group *lg = group->state;
    double now = tshi_clock();
    tshi_wait wait = {group->world, group, sync, now + group->world->timeout, now + 5};
    wake_sleepers(tshi_member_at(lg, group->rank), tshi_slot_at(lg, group->rank, sync));
    for (int i = 0; i < group->size; i++) {
        _Atomic uint32_t *word = &tshi_slot_at(lg, i, sync)->sync;
        tsh_status status = tshi_wait_for(&wait, word, sync, &tshi_member_at(lg, i)->sleepers, group->ranks[i]);
        if (status != TSH_OK) return status;
    }
    return TSH_OK;
}

/* Take the lines of my next slot away from whoever read them last, before I need to write them. All have passed this
 * sync, so nobody reads them any more. */
static inline void claim(const tshi_slot *slot, size_t bytes) {
    for (size_t at = 0; at < bytes; at += CACHE_LINE) {
#if defined(__x86_64__)
        __asm__ volatile("prefetchw %0" : : "m"(*((const char *)slot + at)));
#else
        __builtin_prefetch((const char *)slot + at, 1);
#endif
    }
}

tsh_status tshi_local_sync(tsh_group *group, size_t payload) {
    tshi_local_group *lg = group->state;
    uint32_t sync = ++lg->sync;
    size_t bytes = payload ? sizeof(tshi_slot) + payload : 0;
    tshi_slot *mine = tshi_slot_at(lg, group->rank, sync);
    atomic_store_explicit(&mine->sync, sync, memory_order_release);
    int polls = 0;
    for (int i = 0; i < group->size; i++) {
        tshi_slot *slot = tshi_slot_at(lg, i, sync);
        while (!tshi_reached(&slot->sync, sync)) {
            if (polls++ >= lg->spins) return sync_slowly(group, sync);
            if (polls > EAGER_POLLS) pause_cpu();
        }
    }
    wake_sleepers(tshi_member_at(lg, group->rank), mine);
    claim(tshi_slot_at(lg, group->rank, sync + 1), bytes ? bytes : 1);
    return TSH_OK;
}
