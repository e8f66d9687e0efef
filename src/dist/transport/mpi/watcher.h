/* A thread that calls a function at intervals, for what must be looked at while the world's thread is inside MPI. */
#ifndef TSHI_WATCHER_H
#define TSHI_WATCHER_H

#include <pthread.h>
#include <stdbool.h>

typedef struct tshi_watcher {
    void (*look)(void *user); /* runs with `lock` held */
    void *user;
    double every; /* seconds between two looks */
    bool running, ended;
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t wake;
} tshi_watcher;

/* False: there can be no thread, and `look` is never called. The thread takes no signals. */
bool tshi_watcher_begin(tshi_watcher *watcher, double every, void (*look)(void *user), void *user);
/* After it `look` runs no more. Does nothing unless the watcher is running. */
void tshi_watcher_end(tshi_watcher *watcher);
/* Waits for the end of a look under way. */
void tshi_watcher_pass(tshi_watcher *watcher);

#endif
