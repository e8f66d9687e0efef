/* Steps of work, captured and run again. */
#include "tshard/graph.h"

#include "device/cuda/cuda.h"
#include "device/cuda/kernels/kernels.h"

#include <string.h>

static tsh_status check_device(const char *what, const tsh_device *device) {
    if (!device) return tshi_fail(TSH_ERR_ARGUMENT, "%s: a device is required", what);
    if (device->ops->kind == TSH_CUDA) return TSH_OK;
    return tshi_fail(TSH_ERR_UNSUPPORTED, "%s: a %s has no graphs, only a GPU has", what, device->ops->name);
}

/* What belongs to a graph, whole or not. */
static void drop(tsh_graph *graph) {
    tshi_cuda_device *cuda = graph->device;
    if (graph->exec) tshi_cuda_note(&cuda->base, cudaGraphExecDestroy(graph->exec), "cudaGraphExecDestroy");
    tshi_cuda_release(&cuda->base, graph->replays);
    tshi_cuda_pool_drop(cuda, graph->pool);
    tshi_free(&cuda->base.allocator, graph);
}

/* The counter is the first thing in the graph's own memory. */
static tsh_status prepare(tsh_graph *graph) {
    tshi_cuda_device *cuda = graph->device;
    tsh_status status = tshi_cuda_pool_open(cuda, &graph->pool);
    if (status != TSH_OK) return status;
    graph->replays = tshi_cuda_alloc(&cuda->base, sizeof *graph->replays);
    if (!graph->replays) return TSH_ERR_MEMORY;
    return tshi_cuda_fail(cudaMemsetAsync(graph->replays, 0, sizeof *graph->replays, cuda->compute), "cudaMemsetAsync");
}

tsh_status tsh_graph_capture_begin(tsh_device *device) {
    tsh_status status = check_device("graph_capture_begin", device);
    if (status != TSH_OK) return status;
    tshi_cuda_device *cuda = tshi_cuda(device);
    if (cuda->capturing) return tshi_fail(TSH_ERR_STATE, "graph_capture_begin: a graph is captured already");
    if (cuda->managed) {
        return tshi_fail(TSH_ERR_STATE,
                         "graph_capture_begin: with TSHARD_CUDA_MANAGED=1 the host waits after every kernel");
    }
    tsh_graph *graph = tshi_calloc(&device->allocator, 1, sizeof *graph);
    if (!graph) return TSH_ERR_MEMORY;
    graph->device = cuda;
    status = prepare(graph);
    /* Relaxed: the cache may ask for more memory, which other modes forbid. */
    if (status == TSH_OK) {
        status = tshi_cuda_fail(cudaStreamBeginCapture(cuda->compute, cudaStreamCaptureModeRelaxed),
                                "cudaStreamBeginCapture");
    }
    if (status != TSH_OK) {
        tshi_cuda_pool_close(cuda);
        drop(graph);
        return status;
    }
    cuda->capturing = graph;
    cuda->replays = graph->replays;
    return TSH_OK;
}

/* A stream that was drawn into the capture by an event goes back to where it began. */
static cudaError_t join(tshi_cuda_device *cuda, cudaStream_t stream) {
    enum cudaStreamCaptureStatus state = cudaStreamCaptureStatusNone;
    cudaError_t error = cudaStreamIsCapturing(stream, &state);
    if (error != cudaSuccess || state != cudaStreamCaptureStatusActive) return error;
    error = cudaEventRecord(cuda->events[1], stream);
    return error == cudaSuccess ? cudaStreamWaitEvent(cuda->compute, cuda->events[1], 0) : error;
}

/* The stream leaves the capture in any case. */
static tsh_status finish(tsh_graph *graph) {
    tshi_cuda_device *cuda = graph->device;
    cudaGraph_t captured = NULL;
    tshi_cuda_note(&cuda->base, join(cuda, cuda->communication), "graph_capture_end, joining communication");
    tshi_cuda_note(&cuda->base, join(cuda, cuda->copies), "graph_capture_end, joining copies");
    tshi_cuda_count(&cuda->base, graph->replays);
    cudaError_t error = cudaStreamEndCapture(cuda->compute, &captured);
    cuda->capturing = NULL;
    cuda->replays = NULL;
    tshi_cuda_pool_close(cuda);
    tsh_status status = TSH_OK;
    if (graph->broken != TSH_OK) {
        status = tshi_fail(graph->broken, "graph_capture_end: %s", graph->words);
        if (strcmp(cuda->words, graph->words) == 0) cuda->failed = TSH_OK; /* told now */
        if (error != cudaSuccess) cudaGetLastError();
    } else {
        status = tshi_cuda_fail(error, "cudaStreamEndCapture");
    }
    if (status == TSH_OK)
        status = tshi_cuda_fail(cudaGraphInstantiate(&graph->exec, captured, 0), "cudaGraphInstantiate");
    if (captured) cudaGraphDestroy(captured);
    return status;
}

tsh_status tsh_graph_capture_end(tsh_device *device, tsh_graph **out) {
    tsh_status status = check_device("graph_capture_end", device);
    if (out) *out = NULL;
    if (status != TSH_OK) return status;
    tsh_graph *graph = tshi_cuda(device)->capturing;
    if (!graph) return tshi_fail(TSH_ERR_STATE, "graph_capture_end: no graph is captured");
    status = finish(graph);
    if (status == TSH_OK && !out) status = tshi_fail(TSH_ERR_ARGUMENT, "graph_capture_end: out is NULL");
    if (status != TSH_OK) {
        drop(graph);
        return status;
    }
    *out = graph;
    return TSH_OK;
}

tsh_status tsh_graph_launch(tsh_graph *graph) {
    if (!graph) return tshi_fail(TSH_ERR_ARGUMENT, "graph_launch: a graph is required");
    tshi_cuda_device *cuda = graph->device;
    if (cuda->capturing) return tshi_fail(TSH_ERR_STATE, "graph_launch: not while a graph is captured");
    return tshi_cuda_fail(cudaGraphLaunch(graph->exec, cuda->compute), "cudaGraphLaunch");
}

void tsh_graph_destroy(tsh_graph *graph) {
    if (graph) drop(graph);
}
