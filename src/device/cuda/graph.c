/* CUDA graphs: capturing work and launching it again. */
#include "device/cuda/cuda.h"
#include "device/cuda/kernels/kernels.h"

#include <stdio.h>
#include <string.h>

static void end_exec(tshi_cuda_graph *graph) {
    if (graph->exec)
        tshi_cuda_record_error(graph->base.device, cudaGraphExecDestroy(graph->exec), "cudaGraphExecDestroy");
    graph->exec = NULL;
}

/* Frees a graph, complete or not, and its memory. */
static void drop(tshi_cuda_graph *graph) {
    tshi_cuda_device *cuda = tshi_cuda(graph->base.device);
    tshi_cuda_graph **link = &cuda->graphs;
    while (*link && *link != graph) link = &(*link)->next;
    if (*link) *link = graph->next;
    end_exec(graph);
    tshi_cuda_release(&cuda->base, graph->replays);
    tshi_cuda_pool_drop(cuda, graph->pool);
    tshi_free(&cuda->base.allocator, graph);
}

/* Opens the graph's pool, and allocates its replay counter there. */
static tsh_status prepare(tshi_cuda_graph *graph) {
    tshi_cuda_device *cuda = tshi_cuda(graph->base.device);
    tsh_status status = tshi_cuda_pool_open(cuda, &graph->pool);
    if (status != TSH_OK) return status;
    graph->replays = tshi_cuda_alloc(&cuda->base, sizeof *graph->replays);
    if (!graph->replays) return TSH_ERR_MEMORY;
    return tshi_cuda_fail(cudaMemsetAsync(graph->replays, 0, sizeof *graph->replays, cuda->compute), "cudaMemsetAsync");
}

static void submit(const tshi_cuda_device *cuda) {
    if (cuda->submit) cuda->submit(cuda->watcher);
}

static tsh_status capture_begin(tsh_device *device) {
    tshi_cuda_device *cuda = tshi_cuda(device);
    if (cuda->capturing) return tshi_fail(TSH_ERR_STATE, "graph_capture_begin: a graph is captured already");
    if (cuda->managed) {
        return tshi_fail(TSH_ERR_STATE,
                         "graph_capture_begin: with TSHARD_CUDA_MANAGED=1 the host waits after every kernel");
    }
    tshi_cuda_use(cuda);
    tshi_cuda_graph *graph = tshi_calloc(&device->allocator, 1, sizeof *graph);
    if (!graph) return TSH_ERR_MEMORY;
    graph->base.device = device;
    submit(cuda);
    tsh_status status = prepare(graph);
    /* Relaxed: the cache may call cudaMalloc, which other modes forbid. */
    if (status == TSH_OK) {
        status = tshi_cuda_fail(cudaStreamBeginCapture(cuda->compute, cudaStreamCaptureModeRelaxed),
                                "cudaStreamBeginCapture");
    }
    if (status != TSH_OK) {
        tshi_cuda_pool_close(cuda);
        drop(graph);
        return status;
    }
    graph->next = cuda->graphs;
    cuda->graphs = graph;
    cuda->capturing = graph;
    cuda->captures++;
    cuda->replays = graph->replays;
    return TSH_OK;
}

/* --- owners of work ----------------------------------------------------------------------------------------------- */

static bool holds(const tshi_cuda_graph *graph, const void *owner) {
    int known = graph->owner_count < TSHI_CUDA_OWNERS ? graph->owner_count : TSHI_CUDA_OWNERS;
    for (int i = 0; owner && i < known; i++)
        if (graph->owners[i] == owner) return true;
    return owner ? graph->owner_count > TSHI_CUDA_OWNERS : graph->owner_count > 0;
}

void tshi_cuda_graph_hold(tshi_cuda_device *device, const void *owner) {
    tshi_cuda_graph *graph = device->capturing;
    if (holds(graph, owner)) return;
    if (graph->owner_count < TSHI_CUDA_OWNERS) graph->owners[graph->owner_count] = owner;
    graph->owner_count++;
}

bool tshi_cuda_graphs_end(tshi_cuda_device *device, const void *owner, tsh_status status, const char *words) {
    bool captured = device->capturing && holds(device->capturing, owner);
    for (tshi_cuda_graph *graph = device->graphs; graph; graph = graph->next) {
        if (graph->broken != TSH_OK || !holds(graph, owner)) continue;
        graph->broken = status;
        snprintf(graph->message, sizeof graph->message, "%s", words);
        end_exec(graph);
    }
    return captured;
}

/* --- ending a capture --------------------------------------------------------------------------------------------- */

/* Joins a communication stream that is part of the capture to the compute stream, where the capture began. */
static cudaError_t join_if_captured(tshi_cuda_device *cuda, int i) {
    enum cudaStreamCaptureStatus state = cudaStreamCaptureStatusNone;
    cudaError_t error = cudaStreamIsCapturing(cuda->communication[i], &state);
    if (error != cudaSuccess || state != cudaStreamCaptureStatusActive) return error;
    return tshi_cuda_communication_join(cuda, i);
}

/* Ends the capture, even if it fails. */
static tsh_status finish(tshi_cuda_graph *graph) {
    tshi_cuda_device *cuda = tshi_cuda(graph->base.device);
    cudaGraph_t captured = NULL;
    submit(cuda);
    for (int i = 0; i < TSHI_CUDA_COMMUNICATIONS; i++) {
        cudaError_t joined = cuda->communication[i] ? join_if_captured(cuda, i) : cudaSuccess;
        tshi_cuda_record_error(&cuda->base, joined, "graph_capture_end, joining communication");
    }
    tshi_cuda_count(&cuda->base, graph->replays);
    cudaError_t error = cudaStreamEndCapture(cuda->compute, &captured);
    cuda->capturing = NULL;
    cuda->replays = NULL;
    tshi_cuda_pool_close(cuda);
    tsh_status status = TSH_OK;
    if (graph->broken != TSH_OK) {
        status = tshi_fail(graph->broken, "graph_capture_end: %s", graph->message);
        if (strcmp(cuda->message, graph->message) == 0) cuda->failed = TSH_OK; /* capture_end returns it */
        if (error != cudaSuccess) cudaGetLastError();
    } else {
        status = tshi_cuda_fail(error, "cudaStreamEndCapture");
    }
    if (status == TSH_OK)
        status = tshi_cuda_fail(cudaGraphInstantiate(&graph->exec, captured, 0), "cudaGraphInstantiate");
    if (captured) cudaGraphDestroy(captured);
    return status;
}

static tsh_status capture_end(tsh_device *device, tsh_graph **out) {
    tshi_cuda_device *cuda = tshi_cuda(device);
    tshi_cuda_graph *graph = cuda->capturing;
    char words[TSHI_MESSAGE_SIZE];
    if (!graph) return tshi_fail(TSH_ERR_STATE, "graph_capture_end: no graph is captured");
    tshi_cuda_use(cuda);
    tsh_status status = finish(graph);
    if (status == TSH_OK) {
        *out = &graph->base;
        return TSH_OK;
    }
    snprintf(words, sizeof words, "%s", tsh_error_message());
    drop(graph);
    /* A failure during the capture could not abort communication that was part of it: the watch does now. */
    if (cuda->watch) cuda->watch(cuda->watcher);
    return tshi_fail(status, "%s", words);
}

/* Makes the compute stream wait for the communication streams: the graph may read the result of a started call, and
 * NCCL needs the calls of a communicator in order. Without a watch these streams are never used. */
static cudaError_t join_all(tshi_cuda_device *cuda) {
    cudaError_t error = cudaSuccess;
    for (int i = 0; cuda->watch && i < TSHI_CUDA_COMMUNICATIONS && error == cudaSuccess; i++)
        if (cuda->communication[i]) error = tshi_cuda_communication_join(cuda, i);
    return error;
}

static tsh_status launch(tsh_graph *graph) {
    tshi_cuda_device *cuda = tshi_cuda(graph->device);
    const tshi_cuda_graph *g = (const tshi_cuda_graph *)graph;
    if (cuda->capturing) return tshi_fail(TSH_ERR_STATE, "graph_launch: not while a graph is captured");
    tshi_cuda_use(cuda);
    submit(cuda);
    if (!g->exec) return tshi_fail(g->broken, "graph_launch: %s", g->message);
    tsh_status status = tshi_cuda_fail(join_all(cuda), "graph_launch, after communication");
    if (status != TSH_OK) return status;
    if (g->owner_count > 0 && cuda->launch) return cuda->launch(cuda->watcher, g->exec);
    return tshi_cuda_fail(cudaGraphLaunch(g->exec, cuda->compute), "cudaGraphLaunch");
}

static void destroy(tsh_graph *graph) {
    drop((tshi_cuda_graph *)graph);
}

const tshi_graph_ops tshi_cuda_graph_ops = {
    .capture_begin = capture_begin, .capture_end = capture_end, .launch = launch, .destroy = destroy};
