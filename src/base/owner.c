#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "base/owner.h"
#include "base/clock.h"

#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

/* A store of another core is visible after this many seconds. */
#define VISIBLE 20e-6

static size_t page_bytes(void) {
    return (size_t)sysconf(_SC_PAGESIZE);
}

void tshi_owner_open(tshi_owner *owner, bool strict, const tsh_log_sink *log) {
    *owner = (tshi_owner){.thread = pthread_self(), .strict = strict, .log = log};
#ifdef MADV_WIPEONFORK
    unsigned char *page = mmap(NULL, page_bytes(), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (page == MAP_FAILED) return;
    if (madvise(page, page_bytes(), MADV_WIPEONFORK) == 0) {
        *page = 1;
        owner->process = page;
    } else {
        munmap(page, page_bytes());
    }
#endif
}

void tshi_owner_close(tshi_owner *owner) {
    if (owner->process) munmap(owner->process, page_bytes());
    owner->process = NULL;
}

tsh_status tshi_owner_stranger(tshi_owner *owner, const char *what) {
    const char *const words = "this thread did not create the world; only the thread that did may use it";
    if (owner->process && !*owner->process) {
        return tshi_fail(TSH_ERR_STATE,
                         "%s: this process was forked from the one that created the world; only that one may use it",
                         what);
    }
    if (owner->strict) return tshi_fail(TSH_ERR_STATE, "%s: %s", what, words);
    if (!atomic_exchange(&owner->warned, true)) tshi_log(owner->log, TSH_LOG_WARNING, "%s: %s", what, words);
    return TSH_OK;
}

bool tshi_owner_refuses(tshi_owner *owner, const char *what) {
    if (tshi_owner_check(owner, what) == TSH_OK) return false;
    tshi_log(owner->log, TSH_LOG_ERROR, "%s", tsh_error_message());
    return true;
}

static tsh_status meet(const char *what) {
    return tshi_fail(TSH_ERR_STATE, "%s: another thread is in a call of this world, which only one thread may use",
                     what);
}

/* The owner's frequent calls take no lock: another thread waits long enough to see a call of the owner in flight. */
static tsh_status visit(tshi_owner *owner, const char *what) {
    tsh_status status = tshi_owner_stranger(owner, what);
    if (status != TSH_OK) return status;
    if (atomic_exchange(&owner->visited, true)) return meet(what);
    tshi_sleep(VISIBLE);
    if (atomic_load(&owner->inside) == 0) return TSH_OK;
    atomic_store(&owner->visited, false);
    return meet(what);
}

tsh_status tshi_owner_enter(tshi_owner *owner, const char *what) {
    if (tshi_owner_is_other(owner)) return visit(owner, what);
    int inside = atomic_load_explicit(&owner->inside, memory_order_relaxed);
    atomic_store_explicit(&owner->inside, inside + 1, memory_order_relaxed);
    if (!atomic_load_explicit(&owner->visited, memory_order_acquire)) return TSH_OK;
    atomic_store_explicit(&owner->inside, inside, memory_order_relaxed);
    return meet(what);
}

void tshi_owner_leave(tshi_owner *owner) {
    if (tshi_owner_is_other(owner)) {
        atomic_store(&owner->visited, false);
        return;
    }
    int inside = atomic_load_explicit(&owner->inside, memory_order_relaxed);
    atomic_store_explicit(&owner->inside, inside - 1, memory_order_release);
}

int tshi_thread_start(pthread_t *thread, void *(*run)(void *), void *argument) {
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int error = pthread_create(thread, NULL, run, argument);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return error;
}
