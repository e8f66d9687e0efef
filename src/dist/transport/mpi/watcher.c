#include "dist/transport/mpi/watcher.h"

#include <errno.h>
#include <signal.h>
#include <time.h>

#define STACK_BYTES ((size_t)256 << 10)

static struct timespec after(double seconds) {
    struct timespec at;
    clock_gettime(CLOCK_MONOTONIC, &at);
    double nanoseconds = (double)at.tv_nsec + (seconds - (double)(time_t)seconds) * 1e9;
    at.tv_sec += (time_t)seconds + (nanoseconds >= 1e9);
    at.tv_nsec = (long)(nanoseconds >= 1e9 ? nanoseconds - 1e9 : nanoseconds);
    return at;
}

static void *watch(void *argument) {
    tshi_watcher *watcher = argument;
    pthread_mutex_lock(&watcher->lock);
    while (!watcher->ended) {
        struct timespec next = after(watcher->every);
        if (pthread_cond_timedwait(&watcher->wake, &watcher->lock, &next) == ETIMEDOUT) watcher->look(watcher->user);
    }
    pthread_mutex_unlock(&watcher->lock);
    return NULL;
}

/* Blocks all signals in the thread: they are for the program's own threads. */
static bool start(tshi_watcher *watcher) {
    pthread_attr_t attributes;
    sigset_t all, before;
    if (pthread_attr_init(&attributes) != 0) return false;
    pthread_attr_setstacksize(&attributes, STACK_BYTES);
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int error = pthread_create(&watcher->thread, &attributes, watch, watcher);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    pthread_attr_destroy(&attributes);
    return error == 0;
}

bool tshi_watcher_begin(tshi_watcher *watcher, double every, void (*look)(void *user), void *user) {
    pthread_condattr_t monotonic;
    *watcher = (tshi_watcher){.look = look, .user = user, .every = every};
    if (pthread_condattr_init(&monotonic) != 0) return false;
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_mutex_init(&watcher->lock, NULL);
    pthread_cond_init(&watcher->wake, &monotonic);
    pthread_condattr_destroy(&monotonic);
    watcher->running = start(watcher);
    return watcher->running;
}

void tshi_watcher_end(tshi_watcher *watcher) {
    if (!watcher->running) return;
    watcher->running = false;
    pthread_mutex_lock(&watcher->lock);
    watcher->ended = true;
    pthread_cond_signal(&watcher->wake);
    pthread_mutex_unlock(&watcher->lock);
    pthread_join(watcher->thread, NULL);
    pthread_cond_destroy(&watcher->wake);
    pthread_mutex_destroy(&watcher->lock);
}
