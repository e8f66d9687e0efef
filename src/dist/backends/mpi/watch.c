/* Words about a call that never returns. Inside a collective of MPI's no rank can be told that a member has stopped, and
 * none can look. So a thread looks that has nothing to do with MPI, seldom: when the same call has been inside for long
 * it says so, again when that has lasted twice as long, and at the deadline with the last calls. It never moves a call
 * on and never ends one. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "dist/backends/mpi/mpi.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#define LOOKS       4.0 /* until the first words */
#define STACK_BYTES ((size_t)256 << 10)

static void tell(const tsh_world *world, const tsh_group *group, double seconds) {
    char ranks[TSHI_LINE];
    const tshi_mpi_op *op = &tshi_mpi_group_of(group)->op;
    tshi_log(&world->log, TSH_LOG_WARNING, "rank %d: %s #%llu: inside MPI for %.3g s%s", world->rank,
             tsh_collective_name(op->call.op), (unsigned long long)op->post.number, seconds,
             tshi_gate_stopped(group, ranks, sizeof ranks));
    if (seconds >= world->timeout) tshi_group_log_ring(group);
}

static void until(struct timespec *out, double seconds) {
    clock_gettime(CLOCK_MONOTONIC, out);
    double nanoseconds = (double)out->tv_nsec + (seconds - (double)(time_t)seconds) * 1e9;
    out->tv_sec += (time_t)seconds + (nanoseconds >= 1e9);
    out->tv_nsec = (long)(nanoseconds >= 1e9 ? nanoseconds - 1e9 : nanoseconds);
}

/* With the lock: groups are not closed meanwhile. */
static void *watch(void *argument) {
    const tsh_world *world = argument;
    tshi_mpi_watch *w = &tshi_mpi_of(world)->watch;
    uint64_t seen = 0;
    double since = 0, next_word = 0;
    pthread_mutex_lock(&w->lock);
    while (!w->ended) {
        struct timespec next;
        until(&next, tshi_word_after(world) / LOOKS);
        if (pthread_cond_timedwait(&w->wake, &w->lock, &next) != ETIMEDOUT) continue;
        uint64_t passages = atomic_load_explicit(&w->passages, memory_order_acquire);
        double now = tshi_clock();
        if (passages % 2 == 0 || passages != seen) {
            seen = passages;
            since = now;
            next_word = now + tshi_word_after(world);
        } else if (now >= next_word) {
            tell(world, atomic_load_explicit(&w->group, memory_order_relaxed), now - since);
            bool due = now - since < world->timeout && 2 * (now - since) > world->timeout;
            next_word = due ? since + world->timeout : now + (now - since);
        }
    }
    pthread_mutex_unlock(&w->lock);
    return NULL;
}

/* Signals are for the program's own threads. */
static bool start(tsh_world *world, tshi_mpi_watch *w) {
    pthread_attr_t attributes;
    sigset_t all, before;
    if (pthread_attr_init(&attributes) != 0) return false;
    pthread_attr_setstacksize(&attributes, STACK_BYTES);
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int error = pthread_create(&w->thread, &attributes, watch, world);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    pthread_attr_destroy(&attributes);
    return error == 0;
}

void tshi_watch_open(tsh_world *world) {
    tshi_mpi_watch *w = &tshi_mpi_of(world)->watch;
    pthread_condattr_t monotonic;
    if (pthread_condattr_init(&monotonic) != 0) return;
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_mutex_init(&w->lock, NULL);
    pthread_cond_init(&w->wake, &monotonic);
    pthread_condattr_destroy(&monotonic);
    w->running = start(world, w);
    if (!w->running) tshi_log(&world->log, TSH_LOG_WARNING, "world_init: no thread for words about calls that hang");
}

void tshi_watch_close(tsh_world *world) {
    tshi_mpi_watch *w = &tshi_mpi_of(world)->watch;
    if (!w->running) return;
    w->running = false;
    pthread_mutex_lock(&w->lock);
    w->ended = true;
    pthread_cond_signal(&w->wake);
    pthread_mutex_unlock(&w->lock);
    pthread_join(w->thread, NULL);
    pthread_cond_destroy(&w->wake);
    pthread_mutex_destroy(&w->lock);
}

void tshi_watch_settle(tsh_world *world) {
    tshi_mpi_watch *w = &tshi_mpi_of(world)->watch;
    if (!w->running) return;
    pthread_mutex_lock(&w->lock);
    pthread_mutex_unlock(&w->lock);
}
