/* The stand-in of the CUDA runtime: memory, and its sharing between processes. A piece of device memory is a file
 * without a name, which other processes open through /proc. Behind the memory the file lists the processes that have it
 * mapped, so that freeing it too early is noticed. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "standin/runtime.h"

#include <fcntl.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define PAGE       ((size_t)4096)
#define MOST_USERS 64

struct standin_users {
    _Atomic int process[MOST_USERS]; /* 0: free */
};

static bool protect;
static int opened;
static _Atomic size_t used[STANDIN_GPUS]; /* bytes of each GPU */
static uint64_t pieces;
static standin_piece *memories;

/* --- closed to the host ------------------------------------------------------------------------------------------- */

/* A piece ends where the page behind it begins, but for what keeps it aligned. The bytes between are checked when it is
 * freed, and the page is closed to all. */
#define ALIGNMENT ((size_t)256)

static size_t units(size_t size, size_t unit) {
    return (size + unit - 1) / unit * unit;
}

static char *start_of(const standin_piece *m) {
    return m->base - (units(m->size, PAGE) - units(m->size, ALIGNMENT));
}

static bool is_guarded(const standin_piece *piece) {
    return piece->kind == STANDIN_DEVICE || piece->kind == STANDIN_MAPPED;
}

static void guard(int access) {
    for (standin_piece *m = memories; m; m = m->next)
        if (is_guarded(m)) mprotect(start_of(m), units(m->size, PAGE), access);
}

static bool reaches(int gpu, const standin_piece *m) {
    return m->kind == STANDIN_MAPPED ? m->openers >> gpu & 1 : standin_has_access(gpu, m->handle.gpu);
}

void standin_reach(int gpu) {
    for (standin_piece *m = memories; m && protect && opened > 0; m = m->next) {
        bool closed = is_guarded(m) && gpu >= 0 && !reaches(gpu, m);
        if (closed == m->closed) continue;
        mprotect(start_of(m), units(m->size, PAGE), closed ? PROT_NONE : PROT_READ | PROT_WRITE);
        m->closed = closed;
    }
}

void standin_open(void) {
    standin_enter();
    if (opened++ == 0 && protect) guard(PROT_READ | PROT_WRITE);
}

void standin_close(void) {
    if (--opened == 0 && protect) guard(PROT_NONE);
    standin_leave();
}

void standin_protect(bool on) {
    standin_enter();
    protect = on;
    if (opened == 0) guard(on ? PROT_NONE : PROT_READ | PROT_WRITE);
    standin_leave();
}

standin_piece *standin_memory_at(const void *pointer) {
    for (standin_piece *m = memories; m; m = m->next)
        if ((uintptr_t)pointer - (uintptr_t)m->base < m->size) return m;
    return NULL;
}

int standin_gpu_of(const void *pointer) {
    const standin_piece *m = standin_memory_at(pointer);
    return m ? m->handle.gpu : -1;
}

void standin_check_memory(const void *pointer, size_t bytes) {
    const standin_piece *m = standin_memory_at(pointer);
    if (!m) standin_die("a pointer that is not the device's");
    if (bytes > m->size - ((uintptr_t)pointer - (uintptr_t)m->base)) {
        standin_die("a copy past the end of an allocation");
    }
}

/* --- accesses that a GPU would report ----------------------------------------------------------------------------- */

static void explain(int number, siginfo_t *about, void *context) {
    uintptr_t at = (uintptr_t)about->si_addr;
    (void)number;
    (void)context;
    for (const standin_piece *m = memories; m; m = m->next) {
        uintptr_t first = (uintptr_t)start_of(m), end = (uintptr_t)m->base + m->size;
        if (at - first >= units(m->size, PAGE) + PAGE) continue;
        fprintf(stderr, "CUDA stand-in: %p, %lld bytes behind the begin of %zu bytes of GPU %d: ", about->si_addr,
                (long long)(at - (uintptr_t)m->base), m->size, m->handle.gpu);
        standin_die(at < end ? "an access by who has none" : "an access past the end of an allocation");
    }
    signal(SIGSEGV, SIG_DFL); /* the access comes again */
}

static void watch(void) {
    struct sigaction action = {.sa_sigaction = explain, .sa_flags = SA_SIGINFO};
    sigaction(SIGSEGV, &action, NULL);
}

/* --- allocating and freeing --------------------------------------------------------------------------------------- */

/* Maps the piece's file (-1: plain memory), and of a file the list of users. */
static void map(standin_piece *m, int file) {
    int flags = file < 0 ? MAP_PRIVATE | MAP_ANONYMOUS : MAP_SHARED;
    size_t room = units(m->size, PAGE);
    char *start = mmap(NULL, room + PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (start == MAP_FAILED) standin_die("no memory");
    start = mmap(start, room, PROT_READ | PROT_WRITE, flags | MAP_NORESERVE | MAP_FIXED, file, 0);
    if (start == MAP_FAILED) standin_die("no memory");
    m->base = start + (room - units(m->size, ALIGNMENT));
    if (file < 0) return;
    m->users = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, file, (off_t)room);
    if (m->users == MAP_FAILED) standin_die("no memory");
}

#define UNWRITTEN 0xff /* NaNs: memory that was never written holds no zeros */

static void fill(const standin_piece *m) {
    size_t room = units(m->size, PAGE);
    memset(start_of(m), UNWRITTEN, room < 65536 ? room : 65536);
    memset(m->base + m->size, UNWRITTEN, units(m->size, ALIGNMENT) - m->size);
}

static void check_end(const standin_piece *m) {
    mprotect(start_of(m), units(m->size, PAGE), PROT_READ | PROT_WRITE); /* in no list any more */
    for (size_t i = m->size; i < units(m->size, ALIGNMENT); i++)
        if ((unsigned char)m->base[i] != UNWRITTEN) standin_die("memory behind the end of an allocation was written");
}

static void unmap(standin_piece *m) {
    munmap(start_of(m), units(m->size, PAGE) + PAGE);
    if (m->users) munmap(m->users, PAGE);
    free(m);
}

static void enlist(standin_piece *m) {
    m->next = memories;
    memories = m;
    if (is_guarded(m) && protect && opened == 0) mprotect(start_of(m), units(m->size, PAGE), PROT_NONE);
}

static standin_piece *take_out(const void *pointer) {
    standin_piece **link = &memories;
    while (*link && (*link)->base != pointer) link = &(*link)->next;
    standin_piece *m = *link;
    if (m) *link = m->next;
    return m;
}

static int make_file(size_t size) {
    int file = memfd_create("gpu", MFD_CLOEXEC);
    if (file < 0 || ftruncate(file, (off_t)(units(size, PAGE) + PAGE)) != 0) standin_die("no memory file");
    return file;
}

static const char *kind_name(standin_kind kind) {
    return kind == STANDIN_PINNED ? "pinned allocation" : "allocation";
}

bool standin_charge(int gpu, size_t bytes) {
    size_t total = standin_total_memory(), before = atomic_fetch_add(&used[gpu], bytes);
    bool fits = before <= total && bytes <= total - before;
    if (!fits) standin_discharge(gpu, bytes);
    return fits;
}

void standin_discharge(int gpu, size_t bytes) {
    atomic_fetch_sub(&used[gpu], bytes);
}

cudaError_t standin_take(const char *name, standin_kind kind, size_t size, void **out) {
    cudaError_t error;
    *out = NULL;
    if (standin_fails(name, cudaErrorMemoryAllocation, &error)) return error;
    if (standin_unsafe(&error)) return error;
    if (size == 0) standin_die("an allocation of nothing");
    if (kind != STANDIN_PINNED && (size > SIZE_MAX / 2 || !standin_charge(standin_current(), units(size, PAGE))))
        return standin_note(cudaErrorMemoryAllocation);
    standin_enter();
    if (pieces == 0) watch();
    standin_piece *m = malloc(sizeof *m);
    *m = (standin_piece){.size = size, .kind = kind};
    m->handle = (standin_handle){++pieces, m->size, getpid(), -1, standin_current()};
    if (kind == STANDIN_DEVICE) m->handle.file = make_file(m->size);
    map(m, m->handle.file);
    fill(m);
    enlist(m);
    *out = m->base;
    standin_count(kind_name(kind), 1);
    standin_leave();
    return cudaSuccess;
}

/* Not one that has ended and waits to be reaped. */
static bool is_alive(int process) {
    char path[64], state = 'X';
    snprintf(path, sizeof path, "/proc/%d/stat", process);
    FILE *file = fopen(path, "r");
    if (!file) return false;
    if (fscanf(file, "%*d (%*[^)]) %c", &state) != 1) state = 'X';
    fclose(file);
    return state != 'Z' && state != 'X';
}

/* A process that has died has let go. */
static void check_users(const standin_piece *m) {
    for (int i = 0; m->users && i < MOST_USERS; i++) {
        int process = atomic_load(&m->users->process[i]);
        if (process && is_alive(process)) standin_die("freeing what another process has mapped");
    }
}

cudaError_t standin_give(const char *name, standin_kind kind, void *pointer) {
    cudaError_t error = cudaSuccess;
    standin_fails(name, cudaErrorLaunchFailure, &error);
    if (!pointer || standin_unsafe(&error)) return error;
    if (!standin_wait_idle(standin_gpu_of(pointer)))
        standin_die("memory is freed while calls that nothing ends keep the GPU");
    standin_enter();
    standin_piece *m = take_out(pointer);
    if (m && m->kind == STANDIN_MANAGED && kind == STANDIN_DEVICE) kind = m->kind; /* one call for both */
    if (!m || m->kind != kind) {
        standin_die("freeing what was not allocated so");
    }
    check_users(m);
    check_end(m);
    if (kind != STANDIN_PINNED) standin_discharge(m->handle.gpu, units(m->size, PAGE));
    if (m->kind == STANDIN_DEVICE) close(m->handle.file);
    unmap(m);
    standin_count(kind_name(kind), -1);
    standin_leave();
    return error;
}

cudaError_t cudaMalloc(void **out, size_t size) {
    return standin_take("cudaMalloc", STANDIN_DEVICE, size, out);
}

cudaError_t cudaMallocManaged(void **out, size_t size, unsigned flags) {
    (void)flags;
    return standin_take("cudaMallocManaged", STANDIN_MANAGED, size, out);
}

cudaError_t cudaFree(void *pointer) {
    return standin_give("cudaFree", STANDIN_DEVICE, pointer);
}

cudaError_t cudaHostAlloc(void **out, size_t size, unsigned flags) {
    (void)flags;
    return standin_take("cudaHostAlloc", STANDIN_PINNED, size, out);
}

cudaError_t cudaMallocHost(void **out, size_t size) {
    return standin_take("cudaHostAlloc", STANDIN_PINNED, size, out);
}

cudaError_t cudaFreeHost(void *pointer) {
    return standin_give("cudaFreeHost", STANDIN_PINNED, pointer);
}

cudaError_t cudaMemGetInfo(size_t *there, size_t *total) {
    cudaError_t error;
    if (standin_fails("cudaMemGetInfo", cudaErrorUnknown, &error)) return error;
    *total = standin_total_memory();
    size_t taken = used[standin_current()];
    *there = *total > taken ? *total - taken : 0;
    return cudaSuccess;
}

/* --- between processes -------------------------------------------------------------------------------------------- */

cudaError_t cudaIpcGetMemHandle(cudaIpcMemHandle_t *out, void *pointer) {
    cudaError_t error;
    if (standin_fails("cudaIpcGetMemHandle", cudaErrorMemoryAllocation, &error)) return error;
    if (standin_unsafe(&error)) return error;
    standin_enter();
    const standin_piece *m = standin_memory_at(pointer);
    bool here = m && m->handle.gpu == standin_current();
    bool can = here && m->kind == STANDIN_DEVICE; /* the handle is that of the whole allocation */
    if (can) {
        memset(out, 0, sizeof *out);
        memcpy(out, &m->handle, sizeof m->handle);
    }
    standin_leave();
    return can ? cudaSuccess : standin_note(cudaErrorInvalidValue);
}

static standin_piece *mapped_before(const standin_handle *handle) {
    for (standin_piece *m = memories; m; m = m->next) {
        const standin_handle *h = &m->handle;
        if (m->kind == STANDIN_MAPPED && h->process == handle->process && h->number == handle->number) return m;
    }
    return NULL;
}

static void sign(standin_piece *m, int from, int to) {
    for (int i = 0; i < MOST_USERS; i++) {
        int expected = from;
        if (atomic_compare_exchange_strong(&m->users->process[i], &expected, to)) return;
    }
    standin_die("too many processes have a piece of memory mapped");
}

static standin_piece *map_handle(const standin_handle *handle) {
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/fd/%d", handle->process, handle->file);
    int file = open(path, O_RDWR | O_CLOEXEC);
    if (file < 0) return NULL;
    standin_piece *m = malloc(sizeof *m);
    *m = (standin_piece){.size = handle->size, .kind = STANDIN_MAPPED, .handle = *handle};
    map(m, file);
    close(file);
    sign(m, 0, getpid());
    enlist(m);
    standin_count("IPC mapping", 1);
    return m;
}

cudaError_t cudaIpcOpenMemHandle(void **out, cudaIpcMemHandle_t opaque, unsigned flags) {
    cudaError_t error;
    standin_handle handle;
    *out = NULL;
    if (standin_fails("cudaIpcOpenMemHandle", cudaErrorMapBufferObjectFailed, &error)) return error;
    if (standin_unsafe(&error)) return error;
    if (flags != cudaIpcMemLazyEnablePeerAccess) return standin_note(cudaErrorInvalidValue);
    memcpy(&handle, &opaque, sizeof handle);
    if (handle.process == getpid()) return standin_note(cudaErrorInvalidResourceHandle);
    if (!standin_can_reach(standin_current(), handle.gpu)) return standin_note(cudaErrorPeerAccessUnsupported);
    standin_enter();
    standin_piece *m = mapped_before(&handle);
    if (!m) m = map_handle(&handle);
    if (m) m->opened++;
    if (m) m->openers |= 1u << standin_current();
    if (m) *out = m->base;
    standin_leave();
    return m ? cudaSuccess : standin_note(cudaErrorMapBufferObjectFailed);
}

cudaError_t cudaIpcCloseMemHandle(void *pointer) {
    cudaError_t error = cudaSuccess;
    standin_fails("cudaIpcCloseMemHandle", cudaErrorLaunchFailure, &error);
    standin_enter();
    standin_progress();
    standin_piece *m = standin_memory_at(pointer);
    if (!m || m->kind != STANDIN_MAPPED || m->base != pointer) standin_die("closing what was not opened");
    if (--m->opened == 0) {
        take_out(pointer);
        sign(m, getpid(), 0);
        unmap(m);
        standin_count("IPC mapping", -1);
    }
    standin_leave();
    return error;
}
