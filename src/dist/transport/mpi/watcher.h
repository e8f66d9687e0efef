/* A thread that calls a function at intervals, while the world's thread may be inside a blocking call of MPI. */
#ifndef TSHI_WATCHER_H
#define TSHI_WATCHER_H

#include <pthread.h>
#include <stdbool.h>

typedef struct tshi_watcher {
    void (*look)(void *user); /* runs with `lock` held */
    void *user;
    double every; /* seconds between two calls of `look` */
    bool running, ended;
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t wake;
} tshi_watcher;

/* False: the thread could not be started, and `look` is never called. The thread blocks all signals. */
bool tshi_watcher_begin(tshi_watcher *watcher, double every, void (*look)(void *user), void *user);
/* Ends the thread: afterwards `look` is not called. Does nothing unless the watcher is running. */
void tshi_watcher_end(tshi_watcher *watcher);

#endif
