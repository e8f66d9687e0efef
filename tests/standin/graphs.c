/* The stand-in of the CUDA runtime: graphs. */
#include "standin/runtime.h"

#include <stdlib.h>

static uint64_t captures;

static void capture_release(capture *c) {
    if (--c->uses > 0) return;
    for (int i = 0; i < c->count; i++)
        if (c->nodes[i].op.drop) c->nodes[i].op.drop(c->nodes[i].op.data);
    free(c->nodes);
    free(c);
}

void standin_front_add(front *to, const front *more) {
    for (int i = 0; i < more->count; i++) {
        int k = 0;
        while (k < to->count && to->node[k] != more->node[i]) k++;
        if (k < to->count) continue;
        if (to->count == STANDIN_FRONT) standin_die("a capture with too many branches");
        to->node[to->count++] = more->node[i];
    }
}

void standin_capture_add(struct CUstream_st *stream, const operation *op, void *(*again)(void *data)) {
    capture *c = stream->capture;
    if (c->count == c->room) {
        c->room = 2 * c->room + 16;
        c->nodes = realloc(c->nodes, (size_t)c->room * sizeof *c->nodes);
    }
    c->nodes[c->count] = (node){.op = *op, .again = again, .behind = stream->front};
    stream->front = (front){.count = 1, .node = {c->count++}};
    stream->unjoined = true;
}

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, enum cudaStreamCaptureMode mode) {
    cudaError_t error;
    if (standin_fails("cudaStreamBeginCapture", cudaErrorUnknown, &error)) return error;
    if (standin_stream(stream)->capture) return standin_note(cudaErrorIllegalState);
    capture *c = calloc(1, sizeof *c);
    standin_enter();
    /* Other threads look at the captures of all streams: this one is whole before it is there. */
    *c = (capture){.uses = 1, .mode = mode, .thread = pthread_self(), .number = ++captures};
    stream->capture = c;
    stream->front.count = 0;
    stream->origin = true;
    standin_leave();
    return cudaSuccess;
}

cudaError_t cudaStreamIsCapturing(cudaStream_t stream, enum cudaStreamCaptureStatus *status) {
    cudaError_t error;
    if (standin_fails("cudaStreamIsCapturing", cudaErrorUnknown, &error)) return error;
    standin_enter();
    const capture *c = standin_stream(stream)->capture;
    *status = !c           ? cudaStreamCaptureStatusNone
              : c->invalid ? cudaStreamCaptureStatusInvalidated
                           : cudaStreamCaptureStatusActive;
    standin_leave();
    return cudaSuccess;
}

cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t *out) {
    cudaError_t error = cudaSuccess;
    *out = NULL;
    bool fails = standin_fails("cudaStreamEndCapture", cudaErrorUnknown, &error);
    standin_enter();
    capture *c = standin_stream(stream)->capture;
    if (!c || !stream->origin) standin_die("the end of a capture that has not begun");
    if (c->mode != cudaStreamCaptureModeRelaxed && !pthread_equal(c->thread, pthread_self())) {
        c->invalid = true;
        standin_leave();
        return standin_note(cudaErrorStreamCaptureWrongThread);
    }
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
    standin_enter();
    capture_release((capture *)graph);
    standin_count("graph", -1);
    standin_leave();
    return error;
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t *out, cudaGraph_t graph, unsigned long long flags) {
    cudaError_t error;
    (void)flags;
    *out = NULL;
    if (standin_fails("cudaGraphInstantiate", cudaErrorMemoryAllocation, &error)) return error;
    standin_enter();
    ((capture *)graph)->uses++;
    standin_leave();
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

/* --- launches ----------------------------------------------------------------------------------------------------- */

typedef struct launch {
    capture *graph;
    void **data; /* of each node */
    bool *done, backwards;
    int left;
} launch;

static launch *launch_new(capture *c) {
    launch *l = calloc(1, sizeof *l);
    *l = (launch){.graph = c, .left = c->count, .backwards = c->launches++ % 2 == 0};
    l->data = calloc((size_t)c->count + 1, sizeof *l->data);
    l->done = calloc((size_t)c->count + 1, sizeof *l->done);
    for (int i = 0; i < c->count; i++) {
        const node *n = &c->nodes[i];
        l->data[i] = n->again ? n->again(n->op.data) : n->op.data;
    }
    c->uses++;
    return l;
}

static void launch_drop(void *data) {
    launch *l = data;
    for (int i = 0; i < l->graph->count; i++) {
        const node *n = &l->graph->nodes[i];
        if (n->again && n->op.drop) n->op.drop(l->data[i]);
    }
    capture_release(l->graph);
    free(l->data);
    free(l->done);
    free(l);
}

static bool may_run(const launch *l, int at) {
    const node *n = &l->graph->nodes[at];
    for (int i = 0; i < n->behind.count; i++)
        if (!l->done[n->behind.node[i]]) return false;
    return !n->op.ready || n->op.ready(l->data[at]);
}

/* The next node that can run, from the last or from the first on: nothing but edges orders them. -1: none. */
static int next_node(const launch *l) {
    int count = l->graph->count;
    for (int i = 0; i < count; i++) {
        int at = l->backwards ? count - 1 - i : i;
        if (!l->done[at] && may_run(l, at)) return at;
    }
    return -1;
}

static bool launch_ready(void *data) {
    launch *l = data;
    for (int at; l->left > 0 && (at = next_node(l)) >= 0; l->left--) {
        const node *n = &l->graph->nodes[at];
        standin_open();
        if (n->op.run) n->op.run(l->data[at]);
        standin_close();
        l->done[at] = true;
    }
    return l->left == 0;
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t stream) {
    cudaError_t error;
    if (standin_fails("cudaGraphLaunch", cudaErrorLaunchFailure, &error)) return error;
    standin_enter();
    standin_queue(standin_stream(stream), launch_ready, NULL, launch_new((capture *)exec), launch_drop);
    standin_leave();
    return cudaSuccess;
}

/* --- looking into a graph ----------------------------------------------------------------------------------------- */

static int node_of_call(const capture *c, int call) {
    for (int i = 0; i < c->count; i++)
        if (c->nodes[i].again && call-- == 0) return i;
    return -1;
}

static bool stands_behind_any(const node *n, const bool *marked) {
    for (int i = 0; i < n->behind.count; i++)
        if (marked[n->behind.node[i]]) return true;
    return false;
}

/* Edges lead from earlier nodes to later ones. */
int standin_graph_beside(cudaGraphExec_t exec, int call) {
    const capture *c = (const capture *)exec;
    int at = node_of_call(c, call), beside = 0;
    bool *before = calloc((size_t)c->count + 1, sizeof *before), *after = calloc((size_t)c->count + 1, sizeof *after);
    if (at >= 0) before[at] = after[at] = true;
    for (int i = at; i >= 0; i--)
        for (int k = 0; k < c->nodes[i].behind.count && before[i]; k++) before[c->nodes[i].behind.node[k]] = true;
    for (int i = at + 1; i < c->count && at >= 0; i++) after[i] = stands_behind_any(&c->nodes[i], after);
    for (int i = 0; i < c->count; i++) beside += !c->nodes[i].again && !before[i] && !after[i];
    free(before);
    free(after);
    return at < 0 ? -1 : beside;
}
