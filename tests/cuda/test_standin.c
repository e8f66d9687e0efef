/* The stand-in of the CUDA runtime refuses what CUDA refuses, and waits where CUDA waits. */
#include "cuda/dies.h"
#include "standin/standin.h"

#include <pthread.h>

TestSuite(cuda_standin, .timeout = 60);

static void start(int gpus) {
    standin_reset();
    standin_gpus(gpus);
    standin_lazy(true);
}

static cudaStream_t new_stream(void) {
    cudaStream_t stream = NULL;
    cr_assert_eq(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), cudaSuccess);
    return stream;
}

static cudaEvent_t new_event(unsigned flags) {
    cudaEvent_t event = NULL;
    cr_assert_eq(cudaEventCreateWithFlags(&event, flags), cudaSuccess);
    return event;
}

static void mark(void *flag) {
    *(bool *)flag = true;
}

static bool is_set(void *flag) {
    return *(bool *)flag;
}

/* Work that ends when *flag is set. */
static void hold(cudaStream_t stream, bool *flag) {
    cr_assert(standin_queue(stream, is_set, NULL, flag, NULL));
}

/* --- the modes of captures ---------------------------------------------------------------------------------------- */

typedef enum unsafe_call {
    MALLOC,
    FREE,
    HOST_ALLOC,
    EVENT_QUERY,
    EVENT_WAIT,
    STREAM_QUERY,
    STREAM_WAIT,
    CALLS
} unsafe_call;

typedef struct bed {
    cudaStream_t other;
    cudaEvent_t event;
    enum cudaStreamCaptureMode mode; /* of the thread */
    unsafe_call call;
    cudaError_t error;
} bed;

static void *call(void *data) {
    bed *b = data;
    enum cudaStreamCaptureMode mode = b->mode;
    void *memory = NULL;
    cudaThreadExchangeStreamCaptureMode(&mode);
    switch (b->call) {
    case MALLOC: b->error = cudaMalloc(&memory, 64); break;
    case FREE:
        b->error = cudaErrorUnknown;
        mode = cudaStreamCaptureModeRelaxed;
        cudaThreadExchangeStreamCaptureMode(&mode);
        cudaMalloc(&memory, 64);
        cudaThreadExchangeStreamCaptureMode(&mode);
        b->error = cudaFree(memory);
        if (b->error == cudaSuccess) memory = NULL;
        break;
    case HOST_ALLOC: b->error = cudaHostAlloc(&memory, 64, 0); break;
    case EVENT_QUERY: b->error = cudaEventQuery(b->event); break;
    case EVENT_WAIT: b->error = cudaEventSynchronize(b->event); break;
    case STREAM_QUERY: b->error = cudaStreamQuery(b->other); break;
    default: b->error = cudaStreamSynchronize(b->other); break;
    }
    mode = cudaStreamCaptureModeRelaxed;
    cudaThreadExchangeStreamCaptureMode(&mode);
    if (memory && b->call == HOST_ALLOC) cudaFreeHost(memory);
    if (memory && b->call != HOST_ALLOC) cudaFree(memory);
    return NULL;
}

/* Whether a capture of this mode forbids the call to this thread, or to another of `mode`. */
static void expect_call(bed *b, enum cudaStreamCaptureMode of_capture, bool elsewhere, bool allowed) {
    cudaStream_t stream = new_stream();
    cudaGraph_t graph = NULL;
    enum cudaStreamCaptureMode before = cudaStreamCaptureModeGlobal;
    cudaThreadExchangeStreamCaptureMode(&before);
    cr_assert_eq(cudaStreamBeginCapture(stream, of_capture), cudaSuccess);
    pthread_t thread;
    if (elsewhere) {
        cr_assert_eq(pthread_create(&thread, NULL, call, b), 0);
        pthread_join(thread, NULL);
    } else {
        call(b);
    }
    cr_expect_eq(b->error == cudaSuccess, allowed, "call %d, capture %d, thread %d, %s: %d", (int)b->call,
                 (int)of_capture, (int)b->mode, elsewhere ? "elsewhere" : "here", (int)b->error);
    if (!allowed) cr_expect_eq(b->error, cudaErrorStreamCaptureUnsupported);
    cudaError_t ended = cudaStreamEndCapture(stream, &graph);
    cr_expect_eq(ended, allowed ? cudaSuccess : cudaErrorStreamCaptureInvalidated);
    if (graph) cudaGraphDestroy(graph);
    cudaGetLastError();
    cudaStreamDestroy(stream);
}

Test(cuda_standin, a_capture_forbids_what_its_mode_says) {
    const enum cudaStreamCaptureMode global = cudaStreamCaptureModeGlobal, local = cudaStreamCaptureModeThreadLocal,
                                     relaxed = cudaStreamCaptureModeRelaxed;
    start(1);
    bed b = {.other = new_stream(), .event = new_event(0)};
    for (int i = 0; i < CALLS; i++) {
        b.call = (unsafe_call)i;
        b.mode = global;
        expect_call(&b, global, false, false);
        expect_call(&b, global, true, false);
        expect_call(&b, local, false, false);
        expect_call(&b, local, true, true);
        expect_call(&b, relaxed, false, true);
        expect_call(&b, relaxed, true, true);
        b.mode = local;
        expect_call(&b, global, false, false);
        expect_call(&b, global, true, true);
        b.mode = relaxed;
        expect_call(&b, global, false, true);
        expect_call(&b, global, true, true);
    }
}

static void *end_capture(void *data) {
    bed *b = data;
    cudaGraph_t graph = NULL;
    b->error = cudaStreamEndCapture(b->other, &graph);
    if (graph) cudaGraphDestroy(graph);
    return NULL;
}

Test(cuda_standin, a_thread_ends_the_captures_that_it_has_begun) {
    start(1);
    for (int mode = 0; mode < 3; mode++) {
        bed b = {.other = new_stream()};
        pthread_t thread;
        cr_assert_eq(cudaStreamBeginCapture(b.other, (enum cudaStreamCaptureMode)mode), cudaSuccess);
        cr_assert_eq(pthread_create(&thread, NULL, end_capture, &b), 0);
        pthread_join(thread, NULL);
        bool relaxed = mode == cudaStreamCaptureModeRelaxed;
        cr_expect_eq(b.error, relaxed ? cudaSuccess : cudaErrorStreamCaptureWrongThread, "mode %d", mode);
    }
}

/* Whatever the mode. */
Test(cuda_standin, a_capture_cannot_be_waited_for) {
    char pageable[16] = "";
    void *memory = NULL;
    start(1);
    cudaEvent_t event = new_event(0);
    cr_assert_eq(cudaMalloc(&memory, sizeof pageable), cudaSuccess);
    for (int what = 0; what < 6; what++) {
        cudaStream_t stream = new_stream();
        cudaGraph_t graph = NULL;
        cr_assert_eq(cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed), cudaSuccess);
        cr_assert_eq(cudaEventRecord(event, stream), cudaSuccess);
        cudaError_t error = what == 0   ? cudaStreamQuery(stream)
                            : what == 1 ? cudaStreamSynchronize(stream)
                            : what == 2 ? cudaEventQuery(event)
                            : what == 3 ? cudaEventSynchronize(event)
                            : what == 4 ? cudaDeviceSynchronize()
                                        : cudaMemcpyAsync(memory, pageable, 16, cudaMemcpyHostToDevice, stream);
        bool of_event = what == 2 || what == 3;
        cr_expect_eq(error, of_event ? cudaErrorCapturedEvent : cudaErrorStreamCaptureUnsupported, "%d", what);
        cr_expect_eq(cudaStreamEndCapture(stream, &graph), cudaErrorStreamCaptureInvalidated, "%d", what);
    }
}

/* --- waiting ------------------------------------------------------------------------------------------------------ */

Test(cuda_standin, a_copy_to_pageable_memory_waits_for_its_stream) {
    char pageable[16];
    void *memory = NULL, *pinned = NULL;
    bool ran = false;
    start(1);
    cudaStream_t stream = new_stream();
    cr_assert_eq(cudaMalloc(&memory, 16), cudaSuccess);
    cr_assert_eq(cudaHostAlloc(&pinned, 16, 0), cudaSuccess);
    standin_queue(stream, NULL, mark, &ran, NULL);
    cr_assert_eq(cudaMemcpyAsync(pinned, memory, 16, cudaMemcpyDeviceToHost, stream), cudaSuccess);
    cr_expect_not(ran);
    cr_assert_eq(cudaMemcpyAsync(pageable, memory, 16, cudaMemcpyDeviceToHost, stream), cudaSuccess);
    cr_expect(ran);
}

Test(cuda_standin, streams_share_queues) {
    bool go = false, ran[3] = {false};
    setenv("CUDA_DEVICE_MAX_CONNECTIONS", "2", 1);
    start(1);
    cudaStream_t streams[3] = {new_stream(), new_stream(), new_stream()};
    hold(streams[0], &go);
    for (int i = 0; i < 3; i++) standin_queue(streams[i], NULL, mark, &ran[i], NULL);
    standin_progress();
    cr_expect(ran[1]);
    cr_expect_not(ran[0]);
    cr_expect_not(ran[2], "a stream passes one whose queue it shares");
    go = true;
    standin_progress();
    cr_expect(ran[0] && ran[2]);
}

static char order[16];

static void note(void *letter) {
    size_t used = strlen(order);
    order[used] = *(char *)letter;
}

/* a, then b and c on two streams, then d. */
Test(cuda_standin, a_replay_follows_edges_and_nothing_else) {
    char letters[] = "abcd";
    cudaGraph_t graph = NULL;
    cudaGraphExec_t exec = NULL;
    bool seen[2] = {false};
    start(1);
    cudaStream_t one = new_stream(), two = new_stream();
    cudaEvent_t fork = new_event(0), join = new_event(0);
    cr_assert_eq(cudaStreamBeginCapture(one, cudaStreamCaptureModeRelaxed), cudaSuccess);
    standin_queue(one, NULL, note, &letters[0], NULL);
    cr_assert_eq(cudaEventRecord(fork, one), cudaSuccess);
    cr_assert_eq(cudaStreamWaitEvent(two, fork, 0), cudaSuccess);
    standin_queue(one, NULL, note, &letters[1], NULL);
    standin_queue(two, NULL, note, &letters[2], NULL);
    cr_assert_eq(cudaEventRecord(join, two), cudaSuccess);
    cr_assert_eq(cudaStreamWaitEvent(one, join, 0), cudaSuccess);
    standin_queue(one, NULL, note, &letters[3], NULL);
    cr_assert_eq(cudaStreamEndCapture(one, &graph), cudaSuccess);
    cr_assert_eq(cudaGraphInstantiate(&exec, graph, 0), cudaSuccess);
    for (int i = 0; i < 4; i++) {
        memset(order, 0, sizeof order);
        cr_assert_eq(cudaGraphLaunch(exec, one), cudaSuccess);
        cr_assert_eq(cudaStreamSynchronize(one), cudaSuccess);
        bool b_first = strcmp(order, "abcd") == 0;
        cr_assert(b_first || strcmp(order, "acbd") == 0, "%s", order);
        seen[b_first] = true;
    }
    cr_expect(seen[0] && seen[1], "branches of a graph have an order");
}

/* --- what belongs to which GPU, and to which process -------------------------------------------------------------- */

static void nothing(void *data) {
    (void)data;
}

Test(cuda_standin, objects_belong_to_a_gpu) {
    float ms;
    start(2);
    cudaStream_t here = new_stream();
    cudaEvent_t mine = new_event(0), untimed = new_event(cudaEventDisableTiming), never = new_event(0);
    cudaSetDevice(1);
    cudaStream_t there = new_stream();
    cudaEvent_t yours = new_event(0);
    cr_expect_eq(cudaEventRecord(mine, there), cudaErrorInvalidResourceHandle);
    cr_expect_eq(cudaEventRecord(mine, here), cudaSuccess);
    cr_expect_eq(cudaEventRecord(yours, there), cudaSuccess);
    cr_expect_eq(cudaEventRecord(untimed, here), cudaSuccess);
    cr_expect_eq(cudaStreamWaitEvent(there, mine, 0), cudaSuccess);
    cr_expect_eq(cudaEventElapsedTime(&ms, mine, yours), cudaErrorInvalidResourceHandle);
    cr_expect_eq(cudaEventElapsedTime(&ms, mine, untimed), cudaErrorInvalidResourceHandle);
    cr_expect_eq(cudaEventElapsedTime(&ms, mine, never), cudaErrorInvalidResourceHandle);
    cudaGetLastError();
    standin_capture(here, nothing, NULL, nothing);
    cr_expect_eq(cudaGetLastError(), cudaErrorInvalidResourceHandle, "a launch on a stream of another GPU");
    standin_capture(there, nothing, NULL, nothing);
    cr_expect_eq(cudaGetLastError(), cudaSuccess);
}

/* --- memory ------------------------------------------------------------------------------------------------------- */

typedef struct touched {
    volatile char *at;
    int gpu;
    bool writes;
} touched;

/* As a kernel of that GPU. */
static void touch(void *data) {
    const touched *a = data;
    standin_reach(a->gpu);
    if (a->writes)
        *a->at = 1;
    else
        (void)*a->at;
    standin_reach(-1);
}

/* Work of GPU 0 on 1000 bytes of `of`, so far behind their beginning; then they are freed. */
static void touch_memory(int of, ptrdiff_t offset, bool writes, bool enabled) {
    void *memory = NULL;
    start(2);
    standin_protect(true);
    cudaSetDevice(of);
    cudaMalloc(&memory, 1000);
    cudaSetDevice(0);
    if (enabled) cudaDeviceEnablePeerAccess(1, 0);
    touched a = {(char *)memory + offset, 0, writes};
    cudaStream_t stream = NULL;
    cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
    standin_queue(stream, NULL, touch, &a, NULL);
    cudaStreamSynchronize(stream);
    cudaFree(memory);
}

static void read_inside(void) {
    touch_memory(0, 999, false, false);
}

static void read_past(void) {
    touch_memory(0, 1024, false, false);
}

static void write_past(void) {
    touch_memory(0, 1000, true, false);
}

static void read_peer(void) {
    touch_memory(1, 0, false, true);
}

static void read_stranger(void) {
    touch_memory(1, 0, false, false);
}

Test(cuda_standin, kernels_stay_in_their_memory) {
    expect_end("a read of the last byte", read_inside, NULL);
    expect_end("a read past the end", read_past, "past the end");
    expect_end("a write past the end", write_past, "behind the end of an allocation was written");
    expect_end("a read of a peer's memory", read_peer, NULL);
    expect_end("a read of another GPU's memory", read_stranger, "by who has none");
}

Test(cuda_standin, each_gpu_has_its_own_memory) {
    void *memory = NULL, *other = NULL;
    size_t there = 0, total = 0;
    start(2);
    standin_memory(1 << 20);
    cr_assert_eq(cudaMalloc(&memory, 1 << 20), cudaSuccess);
    cr_expect_eq(cudaMalloc(&other, 4096), cudaErrorMemoryAllocation);
    cr_assert_eq(cudaMemGetInfo(&there, &total), cudaSuccess);
    cr_expect(there == 0 && total == 1 << 20);
    cudaSetDevice(1);
    cr_assert_eq(cudaMemGetInfo(&there, &total), cudaSuccess);
    cr_expect_eq(there, 1 << 20);
    cr_expect_eq(cudaMalloc(&other, 4096), cudaSuccess);
}

Test(cuda_standin, a_handle_is_that_of_the_allocation) {
    char *memory = NULL;
    cudaIpcMemHandle_t whole, part;
    start(1);
    cr_assert_eq(cudaMalloc((void **)&memory, 4096), cudaSuccess);
    cr_assert_eq(cudaIpcGetMemHandle(&whole, memory), cudaSuccess);
    cr_assert_eq(cudaIpcGetMemHandle(&part, memory + 100), cudaSuccess);
    cr_expect_eq(memcmp(&whole, &part, sizeof whole), 0);
    void *mapped = NULL;
    cr_expect_eq(cudaIpcOpenMemHandle(&mapped, whole, cudaIpcMemLazyEnablePeerAccess), cudaErrorInvalidResourceHandle,
                 "in the process that made it");
}

static void allocate(void) {
    void *memory = NULL;
    if (cudaMalloc(&memory, 64) != cudaErrorInitializationError) _exit(1);
}

Test(cuda_standin, a_forked_process_has_no_cuda) {
    void *memory = NULL;
    start(1);
    cr_assert_eq(cudaMalloc(&memory, 64), cudaSuccess);
    expect_end("cudaMalloc in a child", allocate, NULL);
}

static void destroy_captured(void) {
    start(1);
    cudaStream_t stream = NULL;
    cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
    cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed);
    cudaStreamDestroy(stream);
}

Test(cuda_standin, a_stream_is_not_destroyed_while_it_is_captured) {
    expect_end("cudaStreamDestroy", destroy_captured, "while it is captured");
}
