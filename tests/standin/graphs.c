/* The stand-in of the CUDA runtime: graphs. */
#include "standin/runtime.h"

#include <stdlib.h>

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
    if (standin_fails("cudaStreamBeginCapture", cudaErrorUnknown, &error)) return error;
    if (standin_stream(stream)->capture) return standin_note(cudaErrorIllegalState);
    stream->capture = calloc(1, sizeof *stream->capture);
    stream->capture->uses = 1;
    stream->origin = true;
    return cudaSuccess;
}

cudaError_t cudaStreamIsCapturing(cudaStream_t stream, enum cudaStreamCaptureStatus *status) {
    cudaError_t error;
    if (standin_fails("cudaStreamIsCapturing", cudaErrorUnknown, &error)) return error;
    const capture *c = standin_stream(stream)->capture;
    *status = !c           ? cudaStreamCaptureStatusNone
              : c->invalid ? cudaStreamCaptureStatusInvalidated
                           : cudaStreamCaptureStatusActive;
    return cudaSuccess;
}

cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t *out) {
    cudaError_t error = cudaSuccess;
    *out = NULL;
    bool fails = standin_fails("cudaStreamEndCapture", cudaErrorUnknown, &error);
    standin_enter();
    capture *c = standin_stream(stream)->capture;
    if (!c || !stream->origin) standin_die("the end of a capture that has not begun");
    if (c->invalid && !fails) error = cudaErrorStreamCaptureInvalidated;
    for (int i = 0; i < STANDIN_STREAMS; i++) {
        if (!standin_streams[i] || standin_streams[i]->capture != c) continue;
        if (standin_streams[i] != stream && standin_streams[i]->unjoined && error == cudaSuccess)
            error = cudaErrorStreamCaptureUnjoined;
        standin_streams[i]->capture = NULL;
        standin_streams[i]->unjoined = standin_streams[i]->origin = false;
    }
    if (error == cudaSuccess) {
        *out = (cudaGraph_t)c;
        standin_count("graph", 1);
    } else {
        standin_note(error);
        capture_release(c);
    }
    standin_leave();
    return error;
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
    cudaError_t error = cudaSuccess;
    standin_fails("cudaGraphDestroy", cudaErrorLaunchFailure, &error);
    capture_release((capture *)graph);
    standin_count("graph", -1);
    return error;
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t *out, cudaGraph_t graph, unsigned long long flags) {
    cudaError_t error;
    (void)flags;
    *out = NULL;
    if (standin_fails("cudaGraphInstantiate", cudaErrorMemoryAllocation, &error)) return error;
    ((capture *)graph)->uses++;
    *out = (cudaGraphExec_t)graph;
    standin_count("executable graph", 1);
    return cudaSuccess;
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec) {
    cudaError_t error = cudaSuccess;
    standin_fails("cudaGraphExecDestroy", cudaErrorLaunchFailure, &error);
    standin_enter();
    capture_release((capture *)exec);
    standin_count("executable graph", -1);
    standin_leave();
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
    if (standin_fails("cudaGraphLaunch", cudaErrorLaunchFailure, &error)) return error;
    standin_enter();
    ((capture *)exec)->uses++;
    standin_queue(standin_stream(stream), NULL, run_graph, exec, drop_graph);
    standin_leave();
    return cudaSuccess;
}
