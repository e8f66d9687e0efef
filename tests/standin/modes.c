/* The stand-in of the CUDA runtime: what a thread must not call while a stream is captured, by the mode of the capture
 * and of the thread. */
#include "standin/runtime.h"

static _Thread_local enum cudaStreamCaptureMode thread_mode = cudaStreamCaptureModeGlobal;

cudaError_t cudaThreadExchangeStreamCaptureMode(enum cudaStreamCaptureMode *mode) {
    enum cudaStreamCaptureMode before = thread_mode;
    thread_mode = *mode;
    *mode = before;
    return cudaSuccess;
}

static bool forbids(const capture *c) {
    if (c->mode == cudaStreamCaptureModeRelaxed || thread_mode == cudaStreamCaptureModeRelaxed) return false;
    if (pthread_equal(c->thread, pthread_self())) return true;
    return c->mode == cudaStreamCaptureModeGlobal && thread_mode == cudaStreamCaptureModeGlobal;
}

static bool invalidate(bool all, cudaError_t *error) {
    bool any = false;
    standin_enter();
    for (int i = 0; i < STANDIN_STREAMS; i++) {
        const struct CUstream_st *stream = standin_streams[i];
        if (!stream || !stream->capture || !(all || forbids(stream->capture))) continue;
        stream->capture->invalid = any = true;
    }
    standin_leave();
    if (any) *error = standin_note(cudaErrorStreamCaptureUnsupported);
    return any;
}

bool standin_unsafe(cudaError_t *error) {
    return invalidate(false, error);
}

bool standin_waits_for_device(cudaError_t *error) {
    return invalidate(true, error);
}
