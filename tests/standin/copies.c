/* The stand-in of the CUDA runtime: copies. */
#include "standin/runtime.h"

#include <stdlib.h>
#include <string.h>

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

/* Pageable memory: the driver itself reads or writes it, and returns when it has. It keeps little of what it reads. */
static bool waits_for(const copy *c, enum cudaMemcpyKind kind, size_t bytes) {
    if (kind == cudaMemcpyDeviceToHost) return !standin_memory_at(c->to);
    return kind == cudaMemcpyHostToDevice && bytes > 65536 && !standin_memory_at(c->from);
}

static cudaError_t queue_copy(copy c, enum cudaMemcpyKind kind, cudaStream_t stream) {
    size_t there = span(c.rows, c.to_stride, c.bytes), here = span(c.rows, c.from_stride, c.bytes);
    standin_enter();
    if (kind != cudaMemcpyDeviceToHost) standin_check_memory(c.to, there);
    if (c.from && kind != cudaMemcpyHostToDevice) standin_check_memory(c.from, here);
    bool waits = waits_for(&c, kind, here), pageable = kind == cudaMemcpyHostToDevice && !standin_memory_at(c.from);
    if ((waits || pageable) && standin_asked_capture(standin_stream(stream))) {
        standin_leave();
        return cudaErrorStreamCaptureUnsupported;
    }
    if (pageable) {
        c.own = malloc(here);
        memcpy(c.own, c.from, here);
    }
    copy *kept = malloc(sizeof *kept);
    *kept = c;
    standin_queue(standin_stream(stream), NULL, run_copy, kept, drop_copy);
    standin_leave();
    if (waits) standin_drain(stream);
    return cudaSuccess;
}

cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind, cudaStream_t stream) {
    cudaError_t error;
    if (standin_fails("cudaMemcpyAsync", cudaErrorInvalidValue, &error)) return error;
    return queue_copy((copy){.to = to, .from = from, .bytes = bytes, .rows = 1}, kind, stream);
}

cudaError_t cudaMemcpy2DAsync(void *to, size_t to_stride, const void *from, size_t from_stride, size_t bytes,
                              size_t rows, enum cudaMemcpyKind kind, cudaStream_t stream) {
    cudaError_t error;
    if (standin_fails("cudaMemcpy2DAsync", cudaErrorInvalidValue, &error)) return error;
    if (to_stride < bytes || from_stride < bytes || to_stride > INT32_MAX || from_stride > INT32_MAX) {
        return standin_note(cudaErrorInvalidPitchValue);
    }
    return queue_copy(
        (copy){
            .to = to, .from = from, .to_stride = to_stride, .from_stride = from_stride, .bytes = bytes, .rows = rows},
        kind, stream);
}

cudaError_t cudaMemsetAsync(void *to, int value, size_t bytes, cudaStream_t stream) {
    cudaError_t error;
    if (standin_fails("cudaMemsetAsync", cudaErrorInvalidValue, &error)) return error;
    return queue_copy((copy){.to = to, .value = value, .bytes = bytes, .rows = 1}, cudaMemcpyDeviceToDevice, stream);
}
