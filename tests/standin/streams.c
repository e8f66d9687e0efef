/* The stand-in of the CUDA runtime: streams and events. */
#include "standin/runtime.h"

#include <stdlib.h>
#include <time.h>

struct CUevent_st {
    mark *last;       /* recording; NULL: none */
    uint64_t capture; /* the number of that where it was recorded last; 0: not in one */
    front front;      /* there */
    int gpu;
    unsigned flags;
    struct CUstream_st *stream;
};

struct CUstream_st *standin_streams[STANDIN_STREAMS];
static bool lazy;

/* --- streams ------------------------------------------------------------------------------------------------------ */

bool standin_is_stream(const struct CUstream_st *stream) {
    for (int i = 0; i < STANDIN_STREAMS; i++)
        if (stream && standin_streams[i] == stream) return true;
    return false;
}

struct CUstream_st *standin_stream(cudaStream_t stream) {
    if (!standin_is_stream(stream)) standin_die("a stream that is none (the default stream is not used here)");
    return stream;
}

static void mark_release(mark *m) {
    if (m && --m->uses == 0) free(m);
}

static void run_one(operation *op) {
    standin_open();
    op->run(op->data);
    standin_close();
}

static bool advance_to(struct CUstream_st *stream, const mark *until);

/* Streams share the queues of their GPU; what was put into a queue first is first in beginning. */
static bool comes_first(struct CUstream_st *stream, const operation *op) {
    for (int i = 0; i < STANDIN_STREAMS; i++) {
        struct CUstream_st *other = standin_streams[i];
        if (!other || other == stream || other->gpu != stream->gpu || other->queue != stream->queue) continue;
        if (other->first && other->first->number < op->number) advance_to(other, NULL);
        if (stream->first != op) return true;
        if (other->first && other->first->number < op->number) return false;
    }
    return true;
}

/* False when the stream has to wait. The operation may have run meanwhile: then it is no longer queued. */
static bool may_run(struct CUstream_st *stream, const operation *op) {
    if (!comes_first(stream, op)) return false;
    if (stream->first != op) return true;
    mark *wait = op->wait;
    if (wait && !wait->reached && standin_is_stream(wait->stream)) {
        wait->uses++;
        advance_to(wait->stream, wait);
        mark_release(wait);
    }
    if (stream->first != op) return true;
    if (op->wait && !op->wait->reached) return false;
    return !op->ready || op->ready(op->data);
}

/* Runs what can run, until that mark is reached (NULL: all); true when the stream is empty then. */
static bool advance_to(struct CUstream_st *stream, const mark *until) {
    while (stream->first && !(until && until->reached)) {
        operation *op = stream->first;
        if (!may_run(stream, op)) return false;
        if (stream->first != op) continue;
        stream->first = op->next;
        if (!stream->first) stream->last = NULL;
        if (op->run) run_one(op);
        if (op->reach) op->reach->reached = true;
        if (op->drop) op->drop(op->data);
        mark_release(op->wait);
        mark_release(op->reach);
        free(op);
    }
    return !stream->first;
}

static bool advance(struct CUstream_st *stream) {
    return advance_to(stream, NULL);
}

void standin_progress(void) {
    standin_enter();
    for (int i = 0; i < STANDIN_STREAMS; i++)
        if (standin_streams[i]) advance(standin_streams[i]);
    standin_leave();
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

static uint64_t numbers; /* of operations */

/* With a seed the GPU also comes to some stream before the host waits. */
static void run_some(void) {
    if (standin_choose(4) != 3) return;
    uint32_t first = standin_choose(STANDIN_STREAMS);
    for (uint32_t i = 0; i < STANDIN_STREAMS; i++) {
        struct CUstream_st *stream = standin_streams[(first + i) % STANDIN_STREAMS];
        if (!stream || !stream->first) continue;
        advance(stream);
        return;
    }
}

void standin_stream_queue(struct CUstream_st *stream, const operation *what) {
    operation *op = malloc(sizeof *op);
    *op = *what;
    op->next = NULL;
    op->number = ++numbers;
    if (op->wait) op->wait->uses++;
    if (op->reach) op->reach->uses++;
    append(&stream->first, &stream->last, op);
    if (lazy)
        run_some();
    else
        advance(stream);
}

static bool queue_or_capture(cudaStream_t stream, const operation *op, void *(*again)(void *data), bool *captured) {
    standin_enter();
    bool ours = standin_is_stream(stream);
    *captured = ours && stream->capture;
    if (*captured)
        standin_capture_add(stream, op, again);
    else if (ours)
        standin_stream_queue(stream, op);
    standin_leave();
    return ours;
}

bool standin_queue(cudaStream_t stream, bool (*ready)(void *data), void (*run)(void *data), void *data,
                   void (*drop)(void *data)) {
    bool captured;
    return queue_or_capture(stream, &(operation){.ready = ready, .run = run, .data = data, .drop = drop}, NULL,
                            &captured);
}

bool standin_queue_again(cudaStream_t stream, bool (*ready)(void *data), void *(*again)(void *data), void *data,
                         void (*drop)(void *data), bool *captured) {
    return queue_or_capture(stream, &(operation){.ready = ready, .data = data, .drop = drop}, again, captured);
}

bool standin_capture(cudaStream_t stream, void (*run)(void *data), void *data, void (*drop)(void *data)) {
    if (standin_is_stream(stream) && stream->gpu != standin_current()) {
        standin_note(cudaErrorInvalidResourceHandle);
        drop(data);
        return true;
    }
    return standin_queue(stream, NULL, run, data, drop);
}

void standin_drain(struct CUstream_st *stream) {
    for (;;) {
        standin_enter();
        bool empty = advance(stream);
        if (!empty) standin_progress();
        standin_leave();
        if (empty) return;
        nanosleep(&(struct timespec){.tv_nsec = 20000}, NULL);
    }
}

static bool is_idle(int gpu) {
    for (int i = 0; i < STANDIN_STREAMS; i++) {
        const struct CUstream_st *stream = standin_streams[i];
        if (stream && stream->gpu == gpu && stream->first) return false;
    }
    return true;
}

bool standin_wait_idle(int gpu) {
    bool idle = false;
    for (int looks = 0; looks < 50000 && !idle; looks++) {
        if (looks > 0) nanosleep(&(struct timespec){.tv_nsec = 100000}, NULL);
        standin_enter();
        standin_progress();
        idle = is_idle(gpu);
        standin_leave();
    }
    return idle;
}

bool standin_stream_is_of(cudaStream_t stream, int gpu) {
    return standin_stream(stream)->gpu == gpu;
}

bool standin_is_captured(cudaStream_t stream) {
    return standin_stream(stream)->capture != NULL;
}

cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest) {
    cudaError_t error;
    if (standin_fails("cudaDeviceGetStreamPriorityRange", cudaErrorUnknown, &error)) return error;
    *least = 0;
    *greatest = -5;
    return cudaSuccess;
}

static int made[64]; /* streams of each GPU, so far */

cudaError_t cudaStreamCreateWithPriority(cudaStream_t *out, unsigned flags, int priority) {
    cudaError_t error;
    (void)flags;
    (void)priority;
    *out = NULL;
    if (standin_fails("cudaStreamCreate", cudaErrorMemoryAllocation, &error)) return error;
    standin_enter();
    int at = 0;
    while (at < STANDIN_STREAMS && standin_streams[at]) at++;
    if (at == STANDIN_STREAMS) standin_die("too many streams");
    *out = standin_streams[at] = calloc(1, sizeof **out);
    (*out)->gpu = standin_current();
    (*out)->queue = made[(*out)->gpu]++ % standin_queues();
    standin_count("stream", 1);
    standin_leave();
    return cudaSuccess;
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *out, unsigned flags) {
    return cudaStreamCreateWithPriority(out, flags, 0);
}

cudaError_t cudaStreamDestroy(cudaStream_t stream) {
    cudaError_t error = cudaSuccess;
    standin_fails("cudaStreamDestroy", cudaErrorLaunchFailure, &error);
    if (standin_stream(stream)->capture) standin_die("a stream is destroyed while it is captured");
    standin_drain(standin_stream(stream));
    standin_enter();
    for (int i = 0; i < STANDIN_STREAMS; i++)
        if (standin_streams[i] == stream) standin_streams[i] = NULL;
    free(stream);
    standin_count("stream", -1);
    standin_leave();
    return error;
}

bool standin_asked_capture(struct CUstream_st *stream) {
    standin_enter();
    bool captured = stream->capture;
    if (captured) stream->capture->invalid = true;
    standin_leave();
    if (captured) standin_note(cudaErrorStreamCaptureUnsupported);
    return captured;
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
    cudaError_t error;
    if (standin_asked_capture(standin_stream(stream))) return cudaErrorStreamCaptureUnsupported;
    if (standin_unsafe(&error)) return error;
    standin_drain(stream);
    return standin_fails("cudaStreamSynchronize", cudaErrorLaunchFailure, &error) ? error : cudaSuccess;
}

cudaError_t cudaDeviceSynchronize(void) {
    cudaError_t error;
    if (standin_waits_for_device(&error)) return error;
    for (int i = 0; i < STANDIN_STREAMS; i++)
        if (standin_streams[i]) standin_drain(standin_streams[i]);
    return standin_fails("cudaDeviceSynchronize", cudaErrorLaunchFailure, &error) ? error : cudaSuccess;
}

cudaError_t cudaStreamQuery(cudaStream_t stream) {
    cudaError_t error;
    if (standin_fails("cudaStreamQuery", cudaErrorLaunchFailure, &error)) return error;
    if (standin_asked_capture(standin_stream(stream)) || standin_unsafe(&error))
        return cudaErrorStreamCaptureUnsupported;
    standin_enter();
    bool busy = stream->first;
    standin_leave();
    return busy ? cudaErrorNotReady : cudaSuccess;
}

/* --- events ------------------------------------------------------------------------------------------------------- */

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *out, unsigned flags) {
    cudaError_t error;
    *out = NULL;
    if (standin_fails("cudaEventCreate", cudaErrorMemoryAllocation, &error)) return error;
    *out = calloc(1, sizeof **out);
    (*out)->gpu = standin_current();
    (*out)->flags = flags;
    standin_count("event", 1);
    return cudaSuccess;
}

cudaError_t cudaEventCreate(cudaEvent_t *out) {
    return cudaEventCreateWithFlags(out, 0);
}

cudaError_t cudaEventDestroy(cudaEvent_t event) {
    cudaError_t error = cudaSuccess;
    standin_fails("cudaEventDestroy", cudaErrorLaunchFailure, &error);
    standin_enter();
    mark_release(event->last);
    free(event);
    standin_count("event", -1);
    standin_leave();
    return error;
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
    cudaError_t error;
    if (standin_fails("cudaEventRecord", cudaErrorLaunchFailure, &error)) return error;
    standin_enter();
    if (event->gpu != standin_stream(stream)->gpu) {
        standin_leave();
        return standin_note(cudaErrorInvalidResourceHandle);
    }
    event->stream = stream;
    event->capture = stream->capture ? stream->capture->number : 0;
    event->front = stream->front;
    if (!stream->capture) {
        mark_release(event->last);
        event->last = calloc(1, sizeof *event->last);
        *event->last = (mark){.stream = stream, .uses = 1};
        standin_stream_queue(stream, &(operation){.reach = event->last});
    }
    standin_leave();
    return cudaSuccess;
}

static capture *capture_of(uint64_t number) {
    for (int i = 0; i < STANDIN_STREAMS; i++) {
        struct CUstream_st *stream = standin_streams[i];
        if (stream && stream->capture && stream->capture->number == number) return stream->capture;
    }
    return NULL;
}

static cudaError_t wait_in_capture(struct CUstream_st *stream, struct CUevent_st *event) {
    capture *from = event->capture ? capture_of(event->capture) : NULL;
    if (!from) return standin_note(cudaErrorCapturedEvent);
    if (stream->capture && stream->capture != from) {
        stream->capture->invalid = from->invalid = true;
        return standin_note(cudaErrorStreamCaptureMerge);
    }
    if (!stream->capture) {
        stream->capture = from;
        stream->front.count = 0;
        stream->unjoined = true;
    } else if (event->stream != stream) {
        event->stream->unjoined = false;
    }
    standin_front_add(&stream->front, &event->front);
    return cudaSuccess;
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags) {
    cudaError_t error;
    (void)flags;
    if (standin_fails("cudaStreamWaitEvent", cudaErrorLaunchFailure, &error)) return error;
    standin_enter();
    error = cudaSuccess;
    if (standin_stream(stream)->capture && !event->capture) { /* a graph cannot wait for what is outside of it */
        stream->capture->invalid = true;
        error = standin_note(cudaErrorStreamCaptureIsolation);
    } else if (event->capture) {
        error = wait_in_capture(stream, event);
    } else if (event->last) {
        standin_stream_queue(stream, &(operation){.wait = event->last});
    }
    standin_leave();
    return error;
}

/* The graph is not run, so nothing can be said of the event. The capture is over then. */
static bool asked_captured(const struct CUevent_st *event) {
    if (!event->capture) return false;
    standin_enter();
    capture *c = capture_of(event->capture);
    if (c) c->invalid = true;
    standin_note(cudaErrorCapturedEvent);
    standin_leave();
    return true;
}

cudaError_t cudaEventQuery(cudaEvent_t event) {
    cudaError_t error;
    if (standin_fails("cudaEventQuery", cudaErrorLaunchFailure, &error)) return error;
    if (asked_captured(event)) return cudaErrorCapturedEvent;
    if (standin_unsafe(&error)) return error;
    standin_enter();
    bool done = !event->last || event->last->reached;
    if (!done) { /* so that asking again and again comes to an end */
        mark *last = event->last;
        last->uses++;
        advance_to(last->stream, last);
        mark_release(last);
    }
    standin_leave();
    return done ? cudaSuccess : cudaErrorNotReady;
}

cudaError_t cudaEventSynchronize(cudaEvent_t event) {
    cudaError_t error;
    if (asked_captured(event)) return cudaErrorCapturedEvent;
    if (standin_unsafe(&error)) return error;
    while (event->last && !event->last->reached) {
        standin_progress();
        if (!event->last->reached) nanosleep(&(struct timespec){.tv_nsec = 20000}, NULL);
    }
    return standin_fails("cudaEventSynchronize", cudaErrorLaunchFailure, &error) ? error : cudaSuccess;
}

/* At least a millisecond: launches take time too. */
cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t start, cudaEvent_t end) {
    bool timed = !((start->flags | end->flags) & cudaEventDisableTiming);
    if (!timed || start->gpu != end->gpu || (!start->capture && !start->last) || (!end->capture && !end->last))
        return standin_note(cudaErrorInvalidResourceHandle);
    if (asked_captured(start) || asked_captured(end)) return cudaErrorCapturedEvent;
    standin_enter();
    bool done = start->last && start->last->reached && end->last && end->last->reached;
    *ms = done ? 1 : 0;
    standin_leave();
    return done ? cudaSuccess : standin_note(cudaErrorNotReady);
}
