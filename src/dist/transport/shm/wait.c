/* Waiting: spin, then yield, then sleep on a futex, and poll for failures between sleeps. */
#include "dist/transport/shm/shm.h"

#include <sched.h>
#include <stddef.h>
#include <string.h>

#define CACHE_LINE 64
/* The longest sleep between two polls for failures. */
#define NAP_NANOSECONDS 50000000L
#define LOOK_EVERY      50e-3 /* seconds */
#define YIELDS          64    /* before the first sleep */

/* alone: the number of works in flight for which the futex wakes this rank. */
static long nap_length(const tsh_world *world, double since, int alone) {
    return world->pending <= alone ? NAP_NANOSECONDS : (long)(tshi_world_nap(since) * 1e9);
}

/* Waits until *word has reached `target`: yields, then sleeps. rank: the world rank waited for. */
static tsh_status wait_for(tshi_wait *wait, _Atomic uint32_t *word, uint32_t target, _Atomic uint32_t *sleepers,
                           int rank) {
    for (int i = 0; i < YIELDS; i++) {
        if (tshi_reached(word, target)) return TSH_OK;
        if (wait->world->pending) tshi_world_progress(wait->world);
        sched_yield();
    }
    double since = tshi_clock();
    while (!tshi_reached(word, target)) {
        if (wait->world->pending) tshi_world_progress(wait->world);
        tshi_doze(word, target, sleepers, nap_length(wait->world, since, 0));
        if (tshi_reached(word, target)) break;
        tsh_status status = tshi_shm_poll(wait, rank);
        /* The rank may have published and left since. */
        if (status != TSH_OK && !tshi_reached(word, target)) return status;
    }
    return TSH_OK;
}

/* Copies the draft into this rank's slot. Peers poll the slot's cache line, so writing it at once takes it from them
 * only once. */
static inline tshi_slot *publish(tsh_group *group, uint32_t sync) {
    tshi_shm_group *lg = group->state;
    tshi_slot *mine = tshi_slot_at(lg, group->rank, sync);
    memcpy(&mine->flags, &lg->draft.flags, sizeof *mine - offsetof(tshi_slot, flags));
    atomic_store_explicit(&mine->sync, sync, memory_order_release);
    return mine;
}

static tshi_wait wait_since(tsh_group *group, const tsh_work *message, double since) {
    const tshi_shm_group *lg = group->state;
    const char *name = message ? tsh_collective_name(message->call.op) : lg->name;
    uint64_t number = message ? message->message_number : group->calls;
    tshi_deadline deadline = tshi_deadline_since(group->world, since, name, number);
    return (tshi_wait){group->world, group, lg->sync, deadline, message};
}

/* Not inlined, to keep the fast path short. */
__attribute__((noinline)) static tsh_status sync_slowly(tsh_group *group, uint32_t sync) {
    tshi_shm_group *lg = group->state;
    tsh_world *world = group->world;
    tsh_status status = TSH_OK;
    tshi_wait wait = wait_since(group, NULL, tshi_clock());
    wait.sync = sync;
    tshi_wake_sleepers(&tshi_member_at(lg, group->rank)->sleepers, &tshi_slot_at(lg, group->rank, sync)->sync);
    tshi_shm_publish_wait(&wait);
    for (int i = 0; i < group->size && status == TSH_OK; i++) {
        _Atomic uint32_t *word = &tshi_slot_at(lg, i, sync)->sync;
        status = wait_for(&wait, word, sync, &tshi_member_at(lg, i)->sleepers, group->ranks[i]);
    }
    tshi_waits_end(&world->machine.waits);
    return status;
}

/* Prefetches the cache lines of this rank's next slot for writing. All members have passed the sync that used it
 * before, so no member reads it any more. */
static inline void claim(const tshi_slot *slot, size_t bytes) {
    for (size_t at = 0; at < bytes; at += CACHE_LINE) tshi_claim((const char *)slot + at);
}

/* True if all members have published the sync, or do so within the polls of tshi_shm.spins. */
static inline bool all_post_soon(const tsh_group *group, uint32_t sync) {
    const tshi_shm_group *lg = group->state;
    const int spins = tshi_shm_of(group->world)->spins;
    int polls = 0;
    for (int i = 0; i < group->size; i++) {
        tshi_slot *slot = tshi_slot_at(lg, i, sync);
        while (!tshi_reached(&slot->sync, sync)) {
            if (polls++ >= spins) return false;
            if (polls > TSHI_EAGER_POLLS) tshi_cpu_pause();
        }
    }
    return true;
}

tsh_status tshi_shm_sync(tsh_group *group, size_t payload) {
    tshi_shm_group *lg = group->state;
    uint32_t sync = ++lg->sync;
    size_t bytes = payload ? sizeof(tshi_slot) + payload : 0;
    tshi_slot *mine = publish(group, sync);
    if (!all_post_soon(group, sync)) {
        tsh_status status = sync_slowly(group, sync);
        if (status == TSH_OK) lg->compared = sync;
        return status;
    }
    lg->compared = sync;
    tshi_wake_sleepers(&tshi_member_at(lg, group->rank)->sleepers, &mine->sync);
    claim(tshi_slot_at(lg, group->rank, sync + 1), bytes ? bytes : 1);
    return TSH_OK;
}

tsh_status tshi_shm_await(tsh_group *group, uint32_t sync) {
    return all_post_soon(group, sync) ? TSH_OK : sync_slowly(group, sync);
}

/* --- without waiting ---------------------------------------------------------------------------------------------- */

void tshi_shm_publish(tsh_group *group, size_t next) {
    tshi_shm_group *lg = group->state;
    uint32_t sync = ++lg->sync;
    tshi_slot *mine = publish(group, sync);
    tshi_wake_sleepers(&tshi_member_at(lg, group->rank)->sleepers, &mine->sync);
    if (next) claim(tshi_slot_at(lg, group->rank, sync + 1), sizeof(tshi_slot) + next);
}

static int first_missing(const tsh_group *group, uint32_t sync) {
    const tshi_shm_group *lg = group->state;
    for (int i = 0; i < group->size; i++) {
        if (!tshi_reached(&tshi_slot_at(lg, i, sync)->sync, sync)) return i;
    }
    return -1;
}

bool tshi_shm_is_published(const tsh_group *group, uint32_t sync) {
    return first_missing(group, sync) < 0;
}

static bool is_message(const tsh_work *work) {
    return work && tshi_is_message(work->call.op);
}

/* True while this rank has to wait: for the message, or else for the slots of the group's first collective. */
static bool is_missing(const tsh_group *group, const tsh_work *work) {
    const tshi_shm_group *lg = group->state;
    if (is_message(work)) return work->linked && !work->done;
    return group->queue && first_missing(group, lg->sync) >= 0;
}

/* Sleeps until the message or a missing slot may have arrived. *rank: the world rank waited for, or -1. */
static void sleep_for(tsh_group *group, const tsh_work *work, double since, int *rank) {
    tshi_shm_group *lg = group->state;
    tshi_awaited watch = {NULL, 0, NULL, -1};
    int i = is_message(work) ? -1 : first_missing(group, lg->sync);
    if (is_message(work)) {
        watch = tshi_message_watch(work);
    } else if (i >= 0) {
        watch = (tshi_awaited){&tshi_slot_at(lg, i, lg->sync)->sync, lg->sync, &tshi_member_at(lg, i)->sleepers,
                               group->ranks[i]};
    }
    *rank = watch.rank;
    long length = nap_length(group->world, since, watch.word ? 1 : 0);
    if (watch.word)
        tshi_doze(watch.word, watch.target, watch.sleepers, length);
    else
        tshi_sleep(1e-9 * (double)length);
}

tsh_status tshi_shm_nap(tsh_group *group, const tsh_work *work, double since) {
    tsh_world *world = group->world;
    tshi_shm *local = tshi_shm_of(world);
    const tsh_work *message = is_message(work) ? work : NULL;
    int rank = -1;
    if (!is_missing(group, work)) return TSH_OK;
    if (local->waiting_since != since) {
        local->waiting_since = since;
        tshi_wait wait = wait_since(group, message, since);
        local->next_warning = wait.deadline.next_warning;
        local->next_look = since + LOOK_EVERY;
        local->naps = 0;
        tshi_shm_publish_wait(&wait);
    }
    if (local->naps++ < YIELDS) {
        sched_yield();
        return TSH_OK;
    }
    sleep_for(group, work, since, &rank);
    double now = tshi_clock();
    if (now < local->next_look) return TSH_OK;
    local->next_look = now + LOOK_EVERY;
    /* Before an error, queued works get a chance to end: all members may have published their slots by now. */
    tshi_world_progress(world);
    if (!is_missing(group, work)) return TSH_OK;
    tshi_wait wait = wait_since(group, message, since);
    wait.deadline.next_warning = local->next_warning;
    tsh_status status = tshi_shm_poll(&wait, rank);
    local->next_warning = wait.deadline.next_warning;
    if (status == TSH_OK) return TSH_OK;
    return is_message(work) ? tshi_message_depart(work, status)
                            : tshi_shm_depart(group, &group->queue->call, NULL, status);
}

void tshi_shm_awake(tsh_group *group) {
    tshi_waits_end(&group->world->machine.waits);
}
