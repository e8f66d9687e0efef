/* The owner of a world: the thread that has created it. A process that is forked from the owner's may not use it. */
#ifndef TSHI_OWNER_H
#define TSHI_OWNER_H

#include "base/base.h"

#include <pthread.h>
#include <stdatomic.h>

typedef struct tshi_owner {
    pthread_t thread;
    unsigned char *process;  /* 1 in the process that created the world, 0 in a fork of it; NULL: not known */
    bool strict;             /* TSHARD_CHECK: calls of other threads are errors */
    const tsh_log_sink *log; /* for errors that a call cannot return */
    _Atomic bool warned;     /* a call from another thread has been warned of */
    atomic_int inside;       /* the owner's calls in flight */
    atomic_bool visited;     /* another thread's call is in flight */
} tshi_owner;

/* The calling thread and its process become the owner. */
void tshi_owner_open(tshi_owner *owner, bool strict, const tsh_log_sink *log);
void tshi_owner_close(tshi_owner *owner);

/* The calling thread is not the owner. */
static inline bool tshi_owner_is_other(const tshi_owner *owner) {
    return !pthread_equal(pthread_self(), owner->thread) || (owner->process && !*owner->process);
}
/* TSH_ERR_STATE for a call from another process. A call from another thread is TSH_ERR_STATE in a strict world; else
 * the first one logs a warning. */
tsh_status tshi_owner_stranger(tshi_owner *owner, const char *what);
static inline tsh_status tshi_owner_check(tshi_owner *owner, const char *what) {
    return owner && tshi_owner_is_other(owner) ? tshi_owner_stranger(owner, what) : TSH_OK;
}
/* tshi_owner_check for functions that return no status: logs the error, and returns true when the call must not go
 * on. */
bool tshi_owner_refuses(tshi_owner *owner, const char *what);

/* tshi_owner_check at the beginning of a call that waits for peers: TSH_ERR_STATE also while another thread is in such
 * a call. tshi_owner_leave ends the call. */
tsh_status tshi_owner_enter(tshi_owner *owner, const char *what);
void tshi_owner_leave(tshi_owner *owner);

/* Starts a thread that takes no signals: they are for the program's own threads. Returns an errno. */
int tshi_thread_start(pthread_t *thread, void *(*run)(void *), void *argument);

#endif
