/* NCCL on the host: symmetric memory. A window is there when all ranks of a communicator have asked for it. */
#include "standin/nccl_state.h"
#include "standin/runtime.h"

#include <stdlib.h>

/* What an ncclWindow_t points to. */
typedef struct window {
    ncclComm_t comm;
    char *base;
    size_t size;
    struct window *next;
} window;

static window *windows; /* under the lock */
static bool without;
static uint64_t in_windows;

void standin_nccl_windows(bool on) {
    without = !on;
}

uint64_t standin_nccl_in_windows(void) {
    pthread_mutex_lock(&standin_nccl_lock);
    uint64_t count = in_windows;
    pthread_mutex_unlock(&standin_nccl_lock);
    return count;
}

ncclResult_t ncclMemAlloc(void **out, size_t size) {
    return standin_take("ncclMemAlloc", STANDIN_NCCL, size, out) == cudaSuccess ? ncclSuccess : ncclUnhandledCudaError;
}

ncclResult_t ncclMemFree(void *pointer) {
    pthread_mutex_lock(&standin_nccl_lock);
    for (window *w = windows; w; w = w->next)
        if (w->base == pointer) standin_nccl_die("memory is freed that a window is on");
    pthread_mutex_unlock(&standin_nccl_lock);
    return standin_give("ncclMemFree", STANDIN_NCCL, pointer) == cudaSuccess ? ncclSuccess : ncclUnhandledCudaError;
}

ncclResult_t ncclCommWindowRegister(ncclComm_t comm, void *base, size_t size, ncclWindow_t *out, int flags) {
    ncclResult_t result;
    if (standin_nccl_fails("ncclCommWindowRegister", ncclInvalidArgument, &result)) return result;
    standin_enter();
    const standin_piece *piece = standin_memory_at(base);
    bool fits = piece && piece->kind == STANDIN_NCCL && piece->base == base && size <= piece->size;
    standin_leave();
    fits = fits && size % NCCL_WIN_REQUIRED_ALIGNMENT == 0;
    if (!fits || flags != NCCL_WIN_COLL_SYMMETRIC) standin_nccl_die("a window on what is no memory for one");
    pthread_mutex_lock(&standin_nccl_lock);
    standin_nccl_check(comm);
    clique *c = comm->clique;
    if (comm->busy || comm->splitting || comm->finalizing) standin_nccl_die("a call before the last is done");
    if (comm->window) standin_nccl_die("a second window");
    if (c->registered++ > 0 && c->window_bytes != size) standin_nccl_die("windows of several sizes");
    c->window_bytes = size;
    comm->window_base = base;
    comm->window = out;
    comm->registering = true;
    pthread_mutex_unlock(&standin_nccl_lock);
    return ncclInProgress;
}

static void add(ncclComm_t comm) {
    window *w = malloc(sizeof *w);
    *w = (window){comm, comm->window_base, comm->clique->window_bytes, windows};
    windows = w;
    *comm->window = (ncclWindow_t)w;
}

bool standin_nccl_registering(ncclComm_t comm) {
    pthread_mutex_lock(&standin_nccl_lock);
    standin_nccl_check(comm);
    bool registering = comm->registering, done = registering && comm->clique->registered == comm->size;
    pthread_mutex_unlock(&standin_nccl_lock);
    if (!done) return registering;
    ncclResult_t result = ncclSuccess;
    bool failed = standin_nccl_fails("ncclCommWindowRegister's end", ncclSystemError, &result);
    if (!failed && !without) standin_count("window", 1);
    pthread_mutex_lock(&standin_nccl_lock);
    comm->registering = false;
    if (failed)
        comm->error = result;
    else if (!without)
        add(comm);
    pthread_mutex_unlock(&standin_nccl_lock);
    return false;
}

static bool take_out(ncclComm_t comm) {
    window **link = &windows;
    while (*link && (*link)->comm != comm) link = &(*link)->next;
    window *gone = *link;
    if (!gone) return false;
    *link = gone->next;
    free(gone);
    return true;
}

/* The window is released even if the call fails. */
ncclResult_t ncclCommWindowDeregister(ncclComm_t comm, ncclWindow_t handle) {
    ncclResult_t result = ncclSuccess;
    standin_nccl_fails("ncclCommWindowDeregister", ncclInvalidUsage, &result);
    pthread_mutex_lock(&standin_nccl_lock);
    standin_nccl_check(comm);
    window *w = windows;
    while (w && (ncclWindow_t)w != handle) w = w->next;
    if (!w || w->comm != comm || comm->finalizing) standin_nccl_die("a window that is none");
    take_out(comm);
    pthread_mutex_unlock(&standin_nccl_lock);
    standin_count("window", -1);
    return result;
}

void standin_nccl_windows_drop(ncclComm_t comm, bool aborts) {
    pthread_mutex_lock(&standin_nccl_lock);
    bool any = take_out(comm);
    pthread_mutex_unlock(&standin_nccl_lock);
    if (any && !aborts) standin_nccl_die("a communicator is destroyed that has a window");
    if (any) standin_count("window", -1);
}

/* Where in its communicator's window, or -1. */
static int64_t place(const part *p, const void *data) {
    window *w = windows;
    while (w && w->comm != p->comm) w = w->next;
    uintptr_t offset = w ? (uintptr_t)data - (uintptr_t)w->base : 0;
    return w && offset < w->size ? (int64_t)offset : -1;
}

void standin_nccl_look_at(part *const *all, int ranks) {
    int64_t in = place(all[0], all[0]->in), out = place(all[0], all[0]->out);
    for (int r = 1; r < ranks; r++) {
        if (place(all[r], all[r]->in) != in || place(all[r], all[r]->out) != out) {
            standin_nccl_die("ranks' buffers lie at different places in their windows");
        }
    }
    if (in >= 0 && out >= 0) in_windows++;
}
