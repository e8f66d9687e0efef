/* gpu_probe [--stay | CHECK...]: what tshard's CUDA side assumes of a GPU and its driver, asked of those here.
 * It uses the CUDA runtime alone: nvcc builds it in seconds. --stay keeps a context open until stdin ends, so that
 * programs which start meanwhile find the driver awake. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "probe.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const double held = 0.2; /* seconds that a stream is held while the host calls */

static void check_device(void) {
    struct cudaDeviceProp p;
    int version = 0;
    probe_open();
    probe_need(cudaGetDeviceProperties(&p, 0), "cudaGetDeviceProperties");
    probe_need(cudaRuntimeGetVersion(&version), "cudaRuntimeGetVersion");
    printf("  %s, %d.%d, %d multiprocessors, %.1f GiB, runtime %d\n", p.name, p.major, p.minor, p.multiProcessorCount,
           (double)p.totalGlobalMem / (1 << 30), version);
}

static const char *words(cudaError_t error) {
    return error == cudaSuccess ? "done" : error == cudaErrorNotReady ? "not ready" : cudaGetErrorString(error);
}

/* An event behind work that has not ended is told from one that was reached, without waiting. */
static void check_events(void) {
    cudaEvent_t event;
    enum { QUERIES = 1000 };
    probe_open();
    probe_need(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "cudaEventCreateWithFlags");
    probe_hold();
    probe_need(cudaEventRecord(event, bed.stream), "cudaEventRecord");
    double begin = probe_now();
    cudaError_t before = cudaErrorNotReady;
    for (int i = 0; i < QUERIES && before == cudaErrorNotReady; i++) before = cudaEventQuery(event);
    double one = (probe_now() - begin) / QUERIES;
    probe_release();
    printf("  pending: %s, %.2f us a query; reached: %s\n", words(before), 1e6 * one, words(cudaEventQuery(event)));
}

static void copy_behind(const char *what, void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind) {
    probe_hold();
    probe_release_in(held);
    double begin = probe_now();
    cudaError_t error = cudaMemcpyAsync(to, from, bytes, kind, bed.stream);
    double took = probe_now() - begin;
    probe_release();
    printf("  %-14s %9zu bytes: %s, %8.3f ms, %s\n", what, bytes, words(error), 1e3 * took,
           took > held / 2 ? "waits for the stream" : "returns at once");
}

/* Copies to and from pageable memory behind a busy stream: does the call wait? */
static void check_copies(void) {
    const size_t sizes[] = {4, 64 << 10, 16 << 20};
    void *pinned = NULL, *pageable = calloc(1, 16 << 20);
    probe_open();
    probe_need(cudaHostAlloc(&pinned, 16 << 20, cudaHostAllocDefault), "cudaHostAlloc");
    for (int i = 0; i < 3; i++) {
        copy_behind("to pageable", pageable, bed.data, sizes[i], cudaMemcpyDeviceToHost);
        copy_behind("from pageable", bed.data, pageable, sizes[i], cudaMemcpyHostToDevice);
        copy_behind("to pinned", pinned, bed.data, sizes[i], cudaMemcpyDeviceToHost);
        copy_behind("from pinned", bed.data, pinned, sizes[i], cudaMemcpyHostToDevice);
    }
    free(pageable);
}

static void say(const char *call, double begin, cudaError_t error) {
    double took = probe_now() - begin;
    printf("  %-26s %s, %8.3f ms%s\n", call, words(error), 1e3 * took, took > held / 2 ? ", waits for the stream" : "");
}

/* Which calls wait for a stream that they do not name. */
static void check_waits(void) {
    void *memory = NULL, *pinned = NULL;
    cudaStream_t stream;
    probe_open();
    for (int i = 0; i < 6; i++) {
        probe_hold();
        probe_release_in(held);
        double begin = probe_now();
        if (i == 0) say("first launch of a kernel", begin, gpu_touch(bed.other, bed.data));
        if (i == 1) say("cudaMalloc", begin, cudaMalloc(&memory, 64 << 20));
        if (i == 2) say("cudaFree", begin, cudaFree(memory));
        if (i == 3) say("cudaHostAlloc", begin, cudaHostAlloc(&pinned, 64 << 20, cudaHostAllocDefault));
        if (i == 4) say("cudaFreeHost", begin, cudaFreeHost(pinned));
        if (i == 5) say("cudaStreamCreate", begin, cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
        probe_release();
    }
}

/* Memory may be allocated while a stream is captured in the relaxed mode. */
static void check_capture(void) {
    void *memory = NULL, *pinned = NULL;
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    probe_open();
    probe_need(cudaStreamBeginCapture(bed.stream, cudaStreamCaptureModeRelaxed), "cudaStreamBeginCapture");
    probe_need(cudaMemsetAsync(bed.data, 0, 64, bed.stream), "cudaMemsetAsync in a capture");
    probe_need(cudaMalloc(&memory, 32 << 20), "cudaMalloc in a capture");
    probe_need(cudaHostAlloc(&pinned, 1 << 20, cudaHostAllocDefault), "cudaHostAlloc in a capture");
    probe_need(gpu_touch(bed.stream, memory), "a kernel in a capture");
    probe_need(cudaStreamEndCapture(bed.stream, &graph), "cudaStreamEndCapture");
    probe_need(cudaGraphInstantiate(&exec, graph, 0), "cudaGraphInstantiate");
    probe_need(cudaGraphLaunch(exec, bed.stream), "cudaGraphLaunch");
    probe_need(cudaStreamSynchronize(bed.stream), "cudaStreamSynchronize");
    printf("  device and pinned memory can be allocated within\n");
}

/* Another process maps this one's memory. */
static void check_ipc(void) {
    int there[2], back[2], seen = 0;
    cudaIpcMemHandle_t handle;
    void *mapped = NULL;
    if (pipe(there) != 0 || pipe(back) != 0) exit(1);
    pid_t child = fork();
    probe_open();
    if (child == 0) {
        close(there[1]); /* the end of the other process ends the read */
        close(back[0]);
        if (read(there[0], &handle, sizeof handle) != (ssize_t)sizeof handle) _exit(1);
        probe_need(cudaIpcOpenMemHandle(&mapped, handle, cudaIpcMemLazyEnablePeerAccess), "cudaIpcOpenMemHandle");
        probe_need(cudaMemcpyAsync((void *)(bed.flag + 1), mapped, sizeof seen, cudaMemcpyDeviceToHost, bed.stream),
                   "a copy");
        probe_release();
        seen = bed.flag[1];
        if (write(back[1], &seen, sizeof seen) < 0) _exit(1);
        _exit(0);
    }
    close(back[1]);
    close(there[0]);
    probe_need(cudaMemsetAsync(bed.data, 1, 64, bed.stream), "cudaMemsetAsync");
    probe_release();
    probe_need(cudaIpcGetMemHandle(&handle, bed.data), "cudaIpcGetMemHandle");
    if (write(there[1], &handle, sizeof handle) < 0 || read(back[0], &seen, sizeof seen) != sizeof seen) exit(1);
    printf("  another process reads %s\n", seen == 0x01010101 ? "what this one wrote" : "SOMETHING ELSE");
}

/* Streams share the hardware's queues: counts those that are blocked by a stream on which they do not depend, which is
 * busy and has another kernel queued. */
static void check_queues(void) {
    enum { STREAMS = 32 };
    cudaStream_t streams[STREAMS];
    cudaEvent_t events[STREAMS];
    int behind = 0;
    const char *queues = getenv("CUDA_DEVICE_MAX_CONNECTIONS");
    probe_open();
    for (int i = 0; i < STREAMS; i++) {
        probe_need(cudaStreamCreateWithFlags(&streams[i], cudaStreamNonBlocking), "cudaStreamCreateWithFlags");
        probe_need(cudaEventCreateWithFlags(&events[i], cudaEventDisableTiming), "cudaEventCreateWithFlags");
        probe_need(gpu_touch(streams[i], bed.data + 64 * i), "a kernel");
    }
    probe_need(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
    probe_hold();
    probe_need(gpu_touch(bed.stream, bed.data), "a kernel");
    for (int i = 0; i < STREAMS; i++) {
        probe_need(gpu_touch(streams[i], bed.data + 64 * i), "a kernel");
        probe_need(cudaEventRecord(events[i], streams[i]), "cudaEventRecord");
    }
    probe_nap(held);
    for (int i = 0; i < STREAMS; i++) behind += cudaEventQuery(events[i]) == cudaErrorNotReady;
    probe_release();
    printf("  CUDA_DEVICE_MAX_CONNECTIONS=%s: %d of %d streams stand behind one that is busy\n", queues ? queues : "",
           behind, STREAMS);
}

static void time_graph(int nodes) {
    enum { LAUNCHES = 50 };
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    probe_need(cudaStreamBeginCapture(bed.stream, cudaStreamCaptureModeRelaxed), "cudaStreamBeginCapture");
    for (int i = 0; i < nodes; i++) probe_need(gpu_touch(bed.stream, bed.data), "a kernel");
    probe_need(cudaStreamEndCapture(bed.stream, &graph), "cudaStreamEndCapture");
    probe_need(cudaGraphInstantiate(&exec, graph, 0), "cudaGraphInstantiate");
    probe_need(cudaGraphLaunch(exec, bed.stream), "cudaGraphLaunch");
    probe_release();
    double begin = probe_now();
    for (int i = 0; i < LAUNCHES; i++) probe_need(cudaGraphLaunch(exec, bed.stream), "cudaGraphLaunch");
    double host = probe_now() - begin;
    probe_release();
    double all = probe_now() - begin;
    printf("  graph of %4d kernels: %8.2f us a launch on the host, %6.2f us a kernel in all\n", nodes,
           1e6 * host / LAUNCHES, 1e6 * all / LAUNCHES / nodes);
    probe_need(cudaGraphExecDestroy(exec), "cudaGraphExecDestroy");
}

static void check_launches(void) {
    enum { LAUNCHES = 1000 };
    probe_open();
    probe_need(gpu_touch(bed.stream, bed.data), "a kernel");
    probe_release();
    double begin = probe_now();
    for (int i = 0; i < LAUNCHES; i++) probe_need(gpu_touch(bed.stream, bed.data), "a kernel");
    double host = probe_now() - begin;
    probe_release();
    printf("  a kernel: %.2f us on the host, %.2f us in all\n", 1e6 * host / LAUNCHES,
           1e6 * (probe_now() - begin) / LAUNCHES);
    for (int nodes = 1; nodes <= 1000; nodes *= 10) time_graph(nodes);
}

static void time_copy(const char *what, void *to, const void *from, enum cudaMemcpyKind kind, double moved) {
    enum { COPIES = 10, BYTES = 128 << 20 };
    double best = 1e9;
    for (int i = 0; i < 3; i++) {
        double begin = probe_now();
        for (int c = 0; c < COPIES; c++) probe_need(cudaMemcpyAsync(to, from, BYTES, kind, bed.stream), "a copy");
        probe_release();
        if (probe_now() - begin < best) best = probe_now() - begin;
    }
    printf("  %-24s %8.1f GB/s\n", what, 1e-9 * moved * COPIES * BYTES / best);
}

static void check_bandwidth(void) {
    void *pinned = NULL, *pageable = calloc(1, 128 << 20);
    probe_open();
    probe_need(cudaHostAlloc(&pinned, 128 << 20, cudaHostAllocDefault), "cudaHostAlloc");
    time_copy("within, read and written", bed.data + (32 << 20), bed.data, cudaMemcpyDeviceToDevice, 2);
    time_copy("to pinned", pinned, bed.data, cudaMemcpyDeviceToHost, 1);
    time_copy("from pinned", bed.data, pinned, cudaMemcpyHostToDevice, 1);
    time_copy("to pageable", pageable, bed.data, cudaMemcpyDeviceToHost, 1);
    free(pageable);
}

static int stay(void) {
    char byte;
    probe_open();
    printf("a context is open\n");
    fflush(stdout);
    while (read(0, &byte, 1) > 0) {
    }
    return 0;
}

int main(int argc, char **argv) {
    const probe_check checks[] = {{"device", check_device, false},       {"events", check_events, false},
                                  {"copies", check_copies, false},       {"waits", check_waits, false},
                                  {"capture", check_capture, false},     {"ipc", check_ipc, false},
                                  {"queues", check_queues, false},       {"launches", check_launches, false},
                                  {"bandwidth", check_bandwidth, false}, {NULL, NULL, false}};
    if (argc > 1 && strcmp(argv[1], "--stay") == 0) return stay();
    return probe_run(checks, argv + 1);
}
