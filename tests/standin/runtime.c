/* The CUDA runtime on the host. */
#include "standin/standin.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#define MOST_NAMES   128
#define MOST_STREAMS 256

/* --- state, all under one lock ------------------------------------------------------------------------------------ */

typedef struct operation {
    bool (*ready)(void *data);
    void (*run)(void *data);
    void *data;
    void (*drop)(void *data);
    struct CUevent_st *wait; /* instead: until this event's `version` is reached */
    struct CUevent_st *reach;
    uint64_t version;
    struct operation *next;
} operation;

typedef struct capture {
    operation *first, *last;
    int uses;
    bool invalid;
} capture;

struct CUstream_st {
    operation *first, *last;
    capture *capture;
    bool origin, unjoined;
};

struct CUevent_st {
    uint64_t recorded, reached;
    capture *capture; /* where it was recorded last, when that was a capture */
    struct CUstream_st *stream;
    int uses;
};

typedef struct memory {
    char *base;
    size_t size;
    int kind; /* 0: the device's, 1: managed, 2: pinned */
    struct memory *next;
} memory;

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
static bool lazy, protect;
static int gpus = 1, opened;
static size_t total_memory = (size_t)4 << 30, used_memory;
static memory *memories;
static struct CUstream_st *streams[MOST_STREAMS];
static cudaError_t last_error;

static void make_lock(void) {
    pthread_mutexattr_t kind;
    pthread_mutexattr_init(&kind);
    pthread_mutexattr_settype(&kind, PTHREAD_MUTEX_RECURSIVE);
    pthread_mutex_init(&lock, &kind);
}

static void enter(void) {
    pthread_once(&once, make_lock);
    pthread_mutex_lock(&lock);
}

static void leave(void) {
    pthread_mutex_unlock(&lock);
}

static void die(const char *words) {
    fprintf(stderr, "CUDA stand-in: %s\n", words);
    abort();
}

static name_count *count_of(const char *name) {
    for (int i = 0; i < names_count; i++)
        if (strcmp(names[i].name, name) == 0) return &names[i];
    if (names_count == MOST_NAMES) die("too many names");
    names[names_count] = (name_count){.name = name};
    return &names[names_count++];
}

void standin_reset(void) {
    enter();
    for (int i = 0; i < names_count; i++) names[i].calls = 0;
    all_calls = fail_at = 0;
    fail_name = failed_name = NULL;
    lazy = protect = false;
    gpus = 1;
    total_memory = (size_t)4 << 30;
    last_error = cudaSuccess;
    leave();
}

uint64_t standin_calls(const char *name) {
    enter();
    uint64_t calls = name ? count_of(name)->calls : all_calls;
    leave();
    return calls;
}

void standin_fail(const char *name, uint64_t nth, int code) {
    enter();
    fail_name = name;
    fail_at = (name ? count_of(name)->calls : all_calls) + nth;
    fail_code = code;
    failed_name = NULL;
    leave();
}

const char *standin_failed(void) {
    return failed_name;
}

bool standin_call(const char *name, int *code) {
    enter();
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
    leave();
    return fails;
}

void standin_count(const char *name, int change) {
    enter();
    name_count *c = count_of(name);
    c->live += change;
    if (c->live < 0) die("something is given back twice");
    leave();
}

int standin_live(char *text, size_t size) {
    int live = 0;
    size_t used = 0;
    enter();
    if (size) *text = '\0';
    for (int i = 0; i < names_count; i++) {
        live += names[i].live;
        if (names[i].live && used < size) {
            used +=
                (size_t)snprintf(text + used, size - used, "%s%d %s", used ? ", " : "", names[i].live, names[i].name);
        }
    }
    leave();
    return live;
}

void standin_gpus(int count) {
    gpus = count;
}

void standin_memory(size_t bytes) {
    total_memory = bytes;
}

/* A call that has to fail: its code. */
static bool fails(const char *name, cudaError_t usual, cudaError_t *error) {
    int code = usual;
    if (!standin_call(name, &code)) return false;
    *error = last_error = (cudaError_t)code;
    return true;
}

/* --- memory ------------------------------------------------------------------------------------------------------- */

static void guard(int access) {
    for (memory *m = memories; m; m = m->next)
        if (m->kind == 0) mprotect(m->base, m->size, access);
}

void standin_open(void) {
    enter();
    if (opened++ == 0 && protect) guard(PROT_READ | PROT_WRITE);
}

void standin_close(void) {
    if (--opened == 0 && protect) guard(PROT_NONE);
    leave();
}

void standin_protect(bool on) {
    enter();
    protect = on;
    if (opened == 0) guard(on ? PROT_NONE : PROT_READ | PROT_WRITE);
    leave();
}

static memory *memory_at(const void *pointer) {
    for (memory *m = memories; m; m = m->next)
        if ((uintptr_t)pointer - (uintptr_t)m->base < m->size) return m;
    return NULL;
}

/* Dies where [pointer, pointer + bytes) is not the device's. */
static void check_device(const void *pointer, size_t bytes) {
    memory *m = memory_at(pointer);
    if (!m) die("a pointer that is not the device's");
    if (bytes > m->size - ((uintptr_t)pointer - (uintptr_t)m->base)) die("a copy past the end of an allocation");
}

static cudaError_t take(const char *name, int kind, size_t size, void **out) {
    cudaError_t error;
    *out = NULL;
    if (fails(name, cudaErrorMemoryAllocation, &error)) return error;
    enter();
    if (kind != 2 && (used_memory > total_memory || size > total_memory - used_memory)) {
        leave();
        return last_error = cudaErrorMemoryAllocation;
    }
    memory *m = malloc(sizeof *m);
    *m = (memory){.size = (size + 4095) / 4096 * 4096, .kind = kind, .next = memories};
    m->base = mmap(NULL, m->size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (m->base == MAP_FAILED) die("no memory");
    memset(m->base, 0xff, m->size < 65536 ? m->size : 65536); /* NaNs: what nobody has written is no zero */
    if (kind == 0 && protect && opened == 0) mprotect(m->base, m->size, PROT_NONE);
    memories = m;
    if (kind != 2) used_memory += m->size;
    *out = m->base;
    standin_count(kind == 2 ? "pinned allocation" : "allocation", 1);
    leave();
    return cudaSuccess;
}

static cudaError_t give(const char *name, bool pinned, void *pointer) {
    cudaError_t error = cudaSuccess;
    fails(name, cudaErrorLaunchFailure, &error);
    if (!pointer) return error;
    enter();
    standin_progress(); /* it waits for the device */
    memory **link = &memories;
    while (*link && (*link)->base != pointer) link = &(*link)->next;
    memory *m = *link;
    if (!m || (m->kind == 2) != pinned) die("freeing what was not allocated so");
    *link = m->next;
    if (!pinned) used_memory -= m->size;
    munmap(m->base, m->size);
    free(m);
    standin_count(pinned ? "pinned allocation" : "allocation", -1);
    leave();
    return error;
}

cudaError_t cudaMalloc(void **out, size_t size) {
    return take("cudaMalloc", 0, size, out);
}

cudaError_t cudaMallocManaged(void **out, size_t size, unsigned flags) {
    (void)flags;
    return take("cudaMallocManaged", 1, size, out);
}

cudaError_t cudaFree(void *pointer) {
    return give("cudaFree", false, pointer);
}

cudaError_t cudaHostAlloc(void **out, size_t size, unsigned flags) {
    (void)flags;
    return take("cudaHostAlloc", 2, size, out);
}

cudaError_t cudaMallocHost(void **out, size_t size) {
    return take("cudaHostAlloc", 2, size, out);
}

cudaError_t cudaFreeHost(void *pointer) {
    return give("cudaFreeHost", true, pointer);
}

cudaError_t cudaMemGetInfo(size_t *there, size_t *total) {
    cudaError_t error;
    if (fails("cudaMemGetInfo", cudaErrorUnknown, &error)) return error;
    *there = total_memory > used_memory ? total_memory - used_memory : 0;
    *total = total_memory;
    return cudaSuccess;
}

/* --- streams ------------------------------------------------------------------------------------------------------ */

static bool is_stream(const struct CUstream_st *stream) {
    for (int i = 0; i < MOST_STREAMS; i++)
        if (stream && streams[i] == stream) return true;
    return false;
}

static struct CUstream_st *checked(cudaStream_t stream) {
    if (!is_stream(stream)) die("a stream that is none (the default stream is not used here)");
    return stream;
}

static void event_release(struct CUevent_st *event) {
    if (--event->uses == 0) free(event);
}

static void run_one(operation *op) {
    standin_open();
    op->run(op->data);
    standin_close();
}

static bool advance_to(struct CUstream_st *stream, const struct CUevent_st *event, uint64_t version);

/* False when the stream has to stand. Meanwhile the operation's own turn may have come: then it is gone. */
static bool may_run(struct CUstream_st *stream, const operation *op) {
    struct CUevent_st *event = op->wait;
    uint64_t version = op->version;
    if (event && event->reached < version && is_stream(event->stream)) advance_to(event->stream, event, version);
    if (stream->first != op) return true;
    if (event && event->reached < version) return false;
    return !op->ready || op->ready(op->data);
}

/* Runs what can run, up to that version of the event (NULL: all); true when the stream is empty then. */
static bool advance_to(struct CUstream_st *stream, const struct CUevent_st *event, uint64_t version) {
    while (stream->first && !(event && event->reached >= version)) {
        operation *op = stream->first;
        if (!may_run(stream, op)) return false;
        if (stream->first != op) continue;
        stream->first = op->next;
        if (!stream->first) stream->last = NULL;
        if (op->run) run_one(op);
        if (op->reach) op->reach->reached = op->version;
        if (op->drop) op->drop(op->data);
        if (op->wait) event_release(op->wait);
        if (op->reach) event_release(op->reach);
        free(op);
    }
    return !stream->first;
}

static bool advance(struct CUstream_st *stream) {
    return advance_to(stream, NULL, 0);
}

void standin_progress(void) {
    enter();
    for (int i = 0; i < MOST_STREAMS; i++)
        if (streams[i]) advance(streams[i]);
    leave();
}

void standin_lazy(bool on) {
    lazy = on;
    if (!on) standin_progress();
}

static void append(operation **first, operation **last, operation *op) {
    if (*last)
        (*last)->next = op;
    else
        *first = op;
    *last = op;
}

static void queue(struct CUstream_st *stream, const operation *what) {
    operation *op = malloc(sizeof *op);
    *op = *what;
    op->next = NULL;
    if (op->wait) op->wait->uses++;
    if (op->reach) op->reach->uses++;
    append(&stream->first, &stream->last, op);
    if (!lazy) advance(stream);
}

bool standin_queue(cudaStream_t stream, bool (*ready)(void *data), void (*run)(void *data), void *data,
                   void (*drop)(void *data)) {
    enter();
    bool ours = is_stream(stream);
    operation op = {.ready = ready, .run = run, .data = data, .drop = drop};
    if (ours && stream->capture) {
        operation *kept = malloc(sizeof *kept);
        *kept = op;
        append(&stream->capture->first, &stream->capture->last, kept);
        stream->unjoined = true;
    } else if (ours) {
        queue(stream, &op);
    }
    leave();
    return ours;
}

bool tshi_standin_capture(cudaStream_t stream, void (*run)(void *data), void *data, void (*drop)(void *data)) {
    return standin_queue(stream, NULL, run, data, drop);
}

/* Until `stream` is empty, for what other threads may have to do first. */
static void drain(struct CUstream_st *stream) {
    for (;;) {
        enter();
        bool empty = advance(stream);
        if (!empty) standin_progress();
        leave();
        if (empty) return;
        nanosleep(&(struct timespec){.tv_nsec = 20000}, NULL);
    }
}

cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest) {
    cudaError_t error;
    if (fails("cudaDeviceGetStreamPriorityRange", cudaErrorUnknown, &error)) return error;
    *least = 0;
    *greatest = -5;
    return cudaSuccess;
}

cudaError_t cudaStreamCreateWithPriority(cudaStream_t *out, unsigned flags, int priority) {
    cudaError_t error;
    (void)flags;
    (void)priority;
    *out = NULL;
    if (fails("cudaStreamCreate", cudaErrorMemoryAllocation, &error)) return error;
    enter();
    int at = 0;
    while (at < MOST_STREAMS && streams[at]) at++;
    if (at == MOST_STREAMS) die("too many streams");
    *out = streams[at] = calloc(1, sizeof **out);
    standin_count("stream", 1);
    leave();
    return cudaSuccess;
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *out, unsigned flags) {
    return cudaStreamCreateWithPriority(out, flags, 0);
}

cudaError_t cudaStreamDestroy(cudaStream_t stream) {
    cudaError_t error = cudaSuccess;
    fails("cudaStreamDestroy", cudaErrorLaunchFailure, &error);
    drain(checked(stream));
    enter();
    for (int i = 0; i < MOST_STREAMS; i++)
        if (streams[i] == stream) streams[i] = NULL;
    free(stream);
    standin_count("stream", -1);
    leave();
    return error;
}

/* The host must not ask a stream that is captured. */
static bool asked_capture(struct CUstream_st *stream) {
    if (!stream->capture) return false;
    stream->capture->invalid = true;
    last_error = cudaErrorStreamCaptureUnsupported;
    return true;
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
    cudaError_t error;
    if (asked_capture(checked(stream))) return cudaErrorStreamCaptureUnsupported;
    drain(stream);
    return fails("cudaStreamSynchronize", cudaErrorLaunchFailure, &error) ? error : cudaSuccess;
}

cudaError_t cudaDeviceSynchronize(void) {
    cudaError_t error;
    for (int i = 0; i < MOST_STREAMS; i++)
        if (streams[i]) drain(streams[i]);
    return fails("cudaDeviceSynchronize", cudaErrorLaunchFailure, &error) ? error : cudaSuccess;
}

cudaError_t cudaStreamQuery(cudaStream_t stream) {
    cudaError_t error;
    if (fails("cudaStreamQuery", cudaErrorLaunchFailure, &error)) return error;
    if (asked_capture(checked(stream))) return cudaErrorStreamCaptureUnsupported;
    return stream->first ? cudaErrorNotReady : cudaSuccess;
}

/* --- events ------------------------------------------------------------------------------------------------------- */

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *out, unsigned flags) {
    cudaError_t error;
    (void)flags;
    *out = NULL;
    if (fails("cudaEventCreate", cudaErrorMemoryAllocation, &error)) return error;
    *out = calloc(1, sizeof **out);
    (*out)->uses = 1;
    standin_count("event", 1);
    return cudaSuccess;
}

cudaError_t cudaEventCreate(cudaEvent_t *out) {
    return cudaEventCreateWithFlags(out, 0);
}

cudaError_t cudaEventDestroy(cudaEvent_t event) {
    cudaError_t error = cudaSuccess;
    fails("cudaEventDestroy", cudaErrorLaunchFailure, &error);
    enter();
    event_release(event);
    standin_count("event", -1);
    leave();
    return error;
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
    cudaError_t error;
    if (fails("cudaEventRecord", cudaErrorLaunchFailure, &error)) return error;
    enter();
    event->stream = checked(stream);
    event->capture = stream->capture;
    if (!stream->capture) {
        operation op = {.reach = event, .version = ++event->recorded};
        queue(stream, &op);
    }
    leave();
    return cudaSuccess;
}

static cudaError_t wait_in_capture(struct CUstream_st *stream, struct CUevent_st *event) {
    if (!event->capture && stream->capture) { /* a graph cannot wait for what is outside of it */
        stream->capture->invalid = true;
        return last_error = cudaErrorStreamCaptureIsolation;
    }
    if (!stream->capture) {
        stream->capture = event->capture;
        stream->unjoined = true;
    } else if (event->stream != stream) {
        event->stream->unjoined = false;
    }
    return cudaSuccess;
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags) {
    cudaError_t error;
    (void)flags;
    if (fails("cudaStreamWaitEvent", cudaErrorLaunchFailure, &error)) return error;
    enter();
    error = cudaSuccess;
    if (checked(stream)->capture || event->capture) {
        error = wait_in_capture(stream, event);
    } else if (event->recorded > 0) {
        operation op = {.wait = event, .version = event->recorded};
        queue(stream, &op);
    }
    leave();
    return error;
}

cudaError_t cudaEventQuery(cudaEvent_t event) {
    cudaError_t error;
    if (fails("cudaEventQuery", cudaErrorLaunchFailure, &error)) return error;
    if (event->capture) return last_error = cudaErrorCapturedEvent;
    enter();
    bool done = event->reached >= event->recorded;
    if (!done) advance_to(event->stream, event, event->recorded); /* so that asking again and again comes to an end */
    leave();
    return done ? cudaSuccess : cudaErrorNotReady;
}

cudaError_t cudaEventSynchronize(cudaEvent_t event) {
    cudaError_t error;
    if (event->capture) return last_error = cudaErrorCapturedEvent;
    while (event->reached < event->recorded) {
        standin_progress();
        if (event->reached < event->recorded) nanosleep(&(struct timespec){.tv_nsec = 20000}, NULL);
    }
    return fails("cudaEventSynchronize", cudaErrorLaunchFailure, &error) ? error : cudaSuccess;
}

cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t start, cudaEvent_t end) {
    (void)start;
    (void)end;
    *ms = 1;
    return cudaSuccess;
}

/* --- copies ------------------------------------------------------------------------------------------------------- */

typedef struct copy {
    void *to;
    const void *from; /* NULL: value */
    size_t to_stride, from_stride, bytes, rows;
    int value;
    char *own; /* a copy of pageable memory, which may change as soon as the call is over */
} copy;

static void run_copy(void *data) {
    const copy *c = data;
    for (size_t i = 0; i < c->rows; i++) {
        char *to = (char *)c->to + i * c->to_stride;
        if (c->from)
            memmove(to, (const char *)(c->own ? c->own : c->from) + i * c->from_stride, c->bytes);
        else
            memset(to, c->value, c->bytes);
    }
}

static void drop_copy(void *data) {
    free(((copy *)data)->own);
    free(data);
}

static size_t span(size_t rows, size_t stride, size_t bytes) {
    return rows ? (rows - 1) * stride + bytes : 0;
}

static cudaError_t queue_copy(copy c, enum cudaMemcpyKind kind, cudaStream_t stream) {
    size_t there = span(c.rows, c.to_stride, c.bytes), here = span(c.rows, c.from_stride, c.bytes);
    enter();
    if (kind != cudaMemcpyDeviceToHost) check_device(c.to, there);
    if (c.from && kind != cudaMemcpyHostToDevice) check_device(c.from, here);
    if (kind == cudaMemcpyHostToDevice && !memory_at(c.from)) {
        c.own = malloc(here);
        memcpy(c.own, c.from, here);
    }
    copy *kept = malloc(sizeof *kept);
    *kept = c;
    standin_queue(checked(stream), NULL, run_copy, kept, drop_copy);
    leave();
    return cudaSuccess;
}

cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind, cudaStream_t stream) {
    cudaError_t error;
    if (fails("cudaMemcpyAsync", cudaErrorInvalidValue, &error)) return error;
    return queue_copy((copy){.to = to, .from = from, .bytes = bytes, .rows = 1}, kind, stream);
}

cudaError_t cudaMemcpy2DAsync(void *to, size_t to_stride, const void *from, size_t from_stride, size_t bytes,
                              size_t rows, enum cudaMemcpyKind kind, cudaStream_t stream) {
    cudaError_t error;
    if (fails("cudaMemcpy2DAsync", cudaErrorInvalidValue, &error)) return error;
    if (to_stride < bytes || from_stride < bytes || to_stride > INT32_MAX || from_stride > INT32_MAX) {
        return last_error = cudaErrorInvalidPitchValue;
    }
    return queue_copy(
        (copy){
            .to = to, .from = from, .to_stride = to_stride, .from_stride = from_stride, .bytes = bytes, .rows = rows},
        kind, stream);
}

cudaError_t cudaMemsetAsync(void *to, int value, size_t bytes, cudaStream_t stream) {
    cudaError_t error;
    if (fails("cudaMemsetAsync", cudaErrorInvalidValue, &error)) return error;
    return queue_copy((copy){.to = to, .value = value, .bytes = bytes, .rows = 1}, cudaMemcpyDeviceToDevice, stream);
}

/* --- graphs ------------------------------------------------------------------------------------------------------- */

static void capture_release(capture *c) {
    if (--c->uses > 0) return;
    while (c->first) {
        operation *op = c->first;
        c->first = op->next;
        if (op->drop) op->drop(op->data);
        free(op);
    }
    free(c);
}

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, enum cudaStreamCaptureMode mode) {
    cudaError_t error;
    (void)mode;
    if (fails("cudaStreamBeginCapture", cudaErrorUnknown, &error)) return error;
    if (checked(stream)->capture) return last_error = cudaErrorIllegalState;
    stream->capture = calloc(1, sizeof *stream->capture);
    stream->capture->uses = 1;
    stream->origin = true;
    return cudaSuccess;
}

cudaError_t cudaStreamIsCapturing(cudaStream_t stream, enum cudaStreamCaptureStatus *status) {
    cudaError_t error;
    if (fails("cudaStreamIsCapturing", cudaErrorUnknown, &error)) return error;
    const capture *c = checked(stream)->capture;
    *status = !c           ? cudaStreamCaptureStatusNone
              : c->invalid ? cudaStreamCaptureStatusInvalidated
                           : cudaStreamCaptureStatusActive;
    return cudaSuccess;
}

cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t *out) {
    cudaError_t error = cudaSuccess;
    *out = NULL;
    bool told = fails("cudaStreamEndCapture", cudaErrorUnknown, &error);
    enter();
    capture *c = checked(stream)->capture;
    if (!c || !stream->origin) die("the end of a capture that has not begun");
    if (c->invalid && !told) error = cudaErrorStreamCaptureInvalidated;
    for (int i = 0; i < MOST_STREAMS; i++) {
        if (!streams[i] || streams[i]->capture != c) continue;
        if (streams[i] != stream && streams[i]->unjoined && error == cudaSuccess)
            error = cudaErrorStreamCaptureUnjoined;
        streams[i]->capture = NULL;
        streams[i]->unjoined = streams[i]->origin = false;
    }
    if (error == cudaSuccess) {
        *out = (cudaGraph_t)c;
        standin_count("graph", 1);
    } else {
        last_error = error;
        capture_release(c);
    }
    leave();
    return error;
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
    cudaError_t error = cudaSuccess;
    fails("cudaGraphDestroy", cudaErrorLaunchFailure, &error);
    capture_release((capture *)graph);
    standin_count("graph", -1);
    return error;
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t *out, cudaGraph_t graph, unsigned long long flags) {
    cudaError_t error;
    (void)flags;
    *out = NULL;
    if (fails("cudaGraphInstantiate", cudaErrorMemoryAllocation, &error)) return error;
    ((capture *)graph)->uses++;
    *out = (cudaGraphExec_t)graph;
    standin_count("executable graph", 1);
    return cudaSuccess;
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec) {
    cudaError_t error = cudaSuccess;
    fails("cudaGraphExecDestroy", cudaErrorLaunchFailure, &error);
    enter();
    capture_release((capture *)exec);
    standin_count("executable graph", -1);
    leave();
    return error;
}

static void run_graph(void *data) {
    for (operation *op = ((capture *)data)->first; op; op = op->next) op->run(op->data);
}

static void drop_graph(void *data) {
    capture_release(data);
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t stream) {
    cudaError_t error;
    if (fails("cudaGraphLaunch", cudaErrorLaunchFailure, &error)) return error;
    enter();
    ((capture *)exec)->uses++;
    standin_queue(checked(stream), NULL, run_graph, exec, drop_graph);
    leave();
    return cudaSuccess;
}

/* --- the GPU ------------------------------------------------------------------------------------------------------ */

cudaError_t cudaGetDeviceCount(int *count) {
    cudaError_t error;
    if (fails("cudaGetDeviceCount", cudaErrorUnknown, &error)) return error;
    if (gpus < 0) return last_error = cudaErrorInsufficientDriver;
    if (gpus == 0) return last_error = cudaErrorNoDevice;
    *count = gpus;
    return cudaSuccess;
}

cudaError_t cudaSetDevice(int device) {
    cudaError_t error;
    if (fails("cudaSetDevice", cudaErrorUnknown, &error)) return error;
    return device >= 0 && device < gpus ? cudaSuccess : (last_error = cudaErrorInvalidDevice);
}

cudaError_t cudaDeviceGetAttribute(int *value, enum cudaDeviceAttr attribute, int device) {
    cudaError_t error;
    (void)device;
    if (fails("cudaDeviceGetAttribute", cudaErrorUnknown, &error)) return error;
    *value = attribute == cudaDevAttrMultiProcessorCount ? 4 : attribute == cudaDevAttrComputeCapabilityMajor ? 9 : 0;
    return cudaSuccess;
}

cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *about, int device) {
    cudaError_t error;
    if (fails("cudaGetDeviceProperties", cudaErrorUnknown, &error)) return error;
    memset(about, 0, sizeof *about);
    snprintf(about->name, sizeof about->name, "GPU stand-in %d", device);
    about->multiProcessorCount = 4;
    about->totalGlobalMem = total_memory;
    return cudaSuccess;
}

cudaError_t cudaRuntimeGetVersion(int *version) {
    cudaError_t error;
    if (fails("cudaRuntimeGetVersion", cudaErrorUnknown, &error)) return error;
    *version = CUDART_VERSION;
    return cudaSuccess;
}

/* After a launch: the stand-in for launches itself never fails. */
cudaError_t cudaGetLastError(void) {
    cudaError_t error = last_error;
    if (fails("cudaGetLastError", cudaErrorLaunchOutOfResources, &error)) error = last_error;
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
    default: return "an error of the stand-in";
    }
}

const char *cudaGetErrorName(cudaError_t error) {
    return cudaGetErrorString(error);
}
