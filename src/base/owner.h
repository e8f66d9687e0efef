/* The owner of a world: the thread that has created it. A process that is forked from the owner's may not use it. */
#ifndef TSHI_OWNER_H
#define TSHI_OWNER_H

#include "base/base.h"

#include <pthread.h>
#include <stdatomic.h>

typedef struct tshi_owner {
    pthread_t thread;
    unsigned char *process;  /* 1 in the process that has created the world, 0 in one that is forked from it; or NULL */
    bool strict;             /* TSHARD_CHECK: calls of other threads are errors */
    const tsh_log_sink *log; /* for what a call cannot return */
    _Atomic bool warned;     /* the warning of a call from another thread has been logged */
    atomic_int inside;       /* calls of its own thread in flight */
    atomic_bool visited;     /* another thread's call is in flight */
} tshi_owner;

/* The calling thread and its process become the owner. */
void tshi_owner_open(tshi_owner *owner, bool strict, const tsh_log_sink *log);
void tshi_owner_close(tshi_owner *owner);

/* The calling thread is not the owner's thread or process. */
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

#endif
