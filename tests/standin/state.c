/* The stand-in of the CUDA runtime: counts of its calls, failures, and what has not been given back. */
#include "standin/runtime.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MOST_NAMES 128

typedef struct name_count {
    const char *name;
    uint64_t calls;
    int live;
} name_count;

static pthread_mutex_t lock;
static pthread_once_t once = PTHREAD_ONCE_INIT;
static name_count names[MOST_NAMES];
static int names_count;
static uint64_t all_calls, fail_at;
static const char *fail_name, *failed_name;
static int fail_code;
static pid_t process; /* that CUDA has begun in, with these settings */
static int queues;
static bool loads_at_once;
static int broken; /* 0, or what every call returns */
static _Thread_local cudaError_t last_error;

static uint64_t random_state;

uint32_t standin_choose(uint32_t limit) {
    static const char *text;
    if (!text) text = getenv("TSHARD_TEST_SEED") ? getenv("TSHARD_TEST_SEED") : "0";
    uint64_t seed = strtoull(text, NULL, 10);
    if (seed == 0) return 0;
    standin_enter();
    if (random_state == 0) random_state = seed * 0x9E3779B97F4A7C15u | 1;
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    uint32_t drawn = (uint32_t)((random_state >> 32) * limit >> 32);
    standin_leave();
    return drawn;
}

static void make_lock(void) {
    pthread_mutexattr_t kind;
    pthread_mutexattr_init(&kind);
    pthread_mutexattr_settype(&kind, PTHREAD_MUTEX_RECURSIVE);
    pthread_mutex_init(&lock, &kind);
}

void standin_enter(void) {
    pthread_once(&once, make_lock);
    pthread_mutex_lock(&lock);
}

void standin_leave(void) {
    pthread_mutex_unlock(&lock);
}

void standin_die(const char *message) {
    fprintf(stderr, "CUDA stand-in: %s\n", message);
    abort();
}

static name_count *count_of(const char *name) {
    for (int i = 0; i < names_count; i++)
        if (strcmp(names[i].name, name) == 0) return &names[i];
    if (names_count == MOST_NAMES) standin_die("too many names");
    names[names_count] = (name_count){.name = name};
    return &names[names_count++];
}

void standin_reset(void) {
    standin_enter();
    for (int i = 0; i < names_count; i++) names[i].calls = 0;
    all_calls = fail_at = 0;
    fail_name = failed_name = NULL;
    broken = 0;
    standin_leave();
    standin_lazy(false);
    standin_protect(false);
    standin_gpus(1);
    standin_peers(true);
    standin_memory((size_t)4 << 30);
    last_error = cudaSuccess;
}

uint64_t standin_calls(const char *name) {
    standin_enter();
    uint64_t calls = name ? count_of(name)->calls : all_calls;
    standin_leave();
    return calls;
}

void standin_fail(const char *name, uint64_t nth, int code) {
    standin_enter();
    fail_name = name;
    fail_at = (name ? count_of(name)->calls : all_calls) + nth;
    fail_code = code;
    failed_name = NULL;
    standin_leave();
}

const char *standin_failed(void) {
    return failed_name;
}

void standin_break(int code) {
    broken = code;
}

static void start(void) {
    const char *connections = getenv("CUDA_DEVICE_MAX_CONNECTIONS"), *loading = getenv("CUDA_MODULE_LOADING");
    process = getpid();
    queues = connections ? atoi(connections) : 8;
    loads_at_once = loading && strcmp(loading, "EAGER") == 0;
}

bool standin_has_begun(void) {
    return process != 0;
}

int standin_queues(void) {
    return queues;
}

bool standin_loads_at_once(void) {
    return loads_at_once;
}

/* CUDA cannot be used in a process that was forked from one where it had begun, nor after an error that stays. */
static bool is_lost(const char *name, int *code) {
    if (strncmp(name, "cuda", 4) != 0) return false;
    if (process == 0) start();
    bool forked = process != getpid();
    if (code && (forked || broken)) *code = forked ? cudaErrorInitializationError : broken;
    return forked || broken;
}

bool standin_call(const char *name, int *code) {
    standin_enter();
    if (is_lost(name, code)) {
        standin_leave();
        return true;
    }
    name_count *c = count_of(name);
    c->calls++;
    all_calls++;
    bool mine = fail_at > 0 && (!fail_name || strcmp(fail_name, name) == 0);
    bool fails = mine && fail_at == (fail_name ? c->calls : all_calls);
    if (fails) {
        failed_name = c->name;
        if (code && fail_code) *code = fail_code;
        fail_at = 0;
    }
    standin_leave();
    return fails;
}

void standin_count(const char *name, int change) {
    standin_enter();
    name_count *c = count_of(name);
    c->live += change;
    if (c->live < 0) standin_die("something is given back twice");
    standin_leave();
}

int standin_live(char *text, size_t size) {
    int live = 0;
    size_t used = 0;
    standin_enter();
    if (size) *text = '\0';
    for (int i = 0; i < names_count; i++) {
        live += names[i].live;
        if (names[i].live && used < size) {
            used +=
                (size_t)snprintf(text + used, size - used, "%s%d %s", used ? ", " : "", names[i].live, names[i].name);
        }
    }
    standin_leave();
    return live;
}

cudaError_t standin_note(cudaError_t error) {
    return last_error = error;
}

bool standin_fails(const char *name, cudaError_t usual, cudaError_t *error) {
    int code = (int)usual;
    if (!standin_call(name, &code)) return false;
    *error = last_error = (cudaError_t)code;
    return true;
}

/* After a launch: the stand-in for launches itself never fails. */
cudaError_t cudaGetLastError(void) {
    cudaError_t error = last_error;
    if (standin_fails("cudaGetLastError", cudaErrorLaunchOutOfResources, &error)) error = last_error;
    last_error = cudaSuccess;
    return error;
}

cudaError_t cudaPeekAtLastError(void) {
    return last_error;
}

const char *cudaGetErrorString(cudaError_t error) {
    switch (error) {
    case cudaSuccess: return "no error";
    case cudaErrorMemoryAllocation: return "out of memory";
    case cudaErrorInsufficientDriver: return "CUDA driver version is insufficient for CUDA runtime version";
    case cudaErrorNoDevice: return "no CUDA-capable device is detected";
    case cudaErrorPeerAccessUnsupported: return "peer access is not supported between these two devices";
    case cudaErrorMapBufferObjectFailed: return "mapping of buffer object failed";
    default: return "an error of the stand-in";
    }
}

const char *cudaGetErrorName(cudaError_t error) {
    return cudaGetErrorString(error);
}
