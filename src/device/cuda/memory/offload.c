/* Offloading tensors to pinned host memory. Copies have their own stream, so that they overlap with kernels; as it runs
 * them in order, a released buffer can be reused at once. */
#include "device/cuda/cuda.h"

typedef struct tshi_cuda_offload {
    cudaStream_t stream;
    cudaEvent_t before, after; /* order the copies and the compute stream */
    bool copies;               /* copies were queued since the last join */
    tshi_host_buffer *leaving, *free;
} tshi_cuda_offload;

static void free_buffers(tshi_cuda_device *cuda, tshi_host_buffer *buffer) {
    while (buffer) {
        tshi_host_buffer *next = buffer->next;
        cudaFreeHost(buffer->data);
        tshi_free(&cuda->base.allocator, buffer);
        buffer = next;
    }
}

void tshi_cuda_offload_destroy(tshi_cuda_device *device) {
    tshi_cuda_offload *offload = device->offload;
    if (!offload) return;
    if (offload->stream) cudaStreamSynchronize(offload->stream);
    free_buffers(device, offload->leaving);
    free_buffers(device, offload->free);
    if (offload->before) cudaEventDestroy(offload->before);
    if (offload->after) cudaEventDestroy(offload->after);
    if (offload->stream) cudaStreamDestroy(offload->stream);
    tshi_free(&device->base.allocator, offload);
    device->offload = NULL;
}

static tsh_status open_offload(tshi_cuda_device *cuda) {
    tshi_cuda_use(cuda);
    if (cuda->offload) return TSH_OK;
    cuda->offload = tshi_calloc(&cuda->base.allocator, 1, sizeof *cuda->offload);
    if (!cuda->offload) return TSH_ERR_MEMORY;
    tsh_status status = tshi_cuda_stream_new(&cuda->offload->stream, false);
    if (status == TSH_OK) status = tshi_cuda_event_new(&cuda->offload->before);
    if (status == TSH_OK) status = tshi_cuda_event_new(&cuda->offload->after);
    if (status != TSH_OK) tshi_cuda_offload_destroy(cuda);
    return status;
}

static tsh_status new_buffer(tshi_cuda_device *cuda, size_t bytes, tshi_host_buffer **out) {
    tshi_host_buffer *buffer = tshi_calloc(&cuda->base.allocator, 1, sizeof *buffer);
    if (!buffer) return TSH_ERR_MEMORY;
    tshi_cuda_wait_idle(cuda, "waiting for the GPU before cudaHostAlloc");
    tsh_status status =
        tshi_cuda_fail(cudaHostAlloc(&buffer->data, bytes, cudaHostAllocPortable), "cudaHostAlloc for offloading");
    if (status != TSH_OK) {
        cudaGetLastError(); /* clears the error, which the next launch would report */
        tshi_free(&cuda->base.allocator, buffer);
        return status;
    }
    buffer->size = bytes;
    *out = buffer;
    return TSH_OK;
}

static void offload_join(tsh_device *device) {
    tshi_cuda_device *cuda = tshi_cuda(device);
    tshi_cuda_offload *offload = cuda->offload;
    if (!offload || !offload->copies) return;
    tshi_cuda_use(cuda);
    cudaError_t error = cudaEventRecord(offload->after, offload->stream);
    if (error == cudaSuccess) error = cudaStreamWaitEvent(cuda->compute, offload->after, 0);
    tshi_cuda_record_error(device, error, "waiting for copies from and to the host");
    offload->copies = false;
    while (offload->leaving) {
        tshi_host_buffer *buffer = offload->leaving;
        offload->leaving = buffer->next;
        tshi_cuda_release(device, buffer->leaving);
        buffer->leaving = NULL;
    }
}

static tsh_status begin_copy(tshi_cuda_device *cuda, size_t bytes, const void *from, void *to,
                             enum cudaMemcpyKind kind) {
    tshi_cuda_offload *offload = cuda->offload;
    cudaError_t error = cudaEventRecord(offload->before, cuda->compute);
    if (error == cudaSuccess) error = cudaStreamWaitEvent(offload->stream, offload->before, 0);
    if (error == cudaSuccess) error = cudaMemcpyAsync(to, from, bytes, kind, offload->stream);
    offload->copies = true;
    return tshi_cuda_fail(error, kind == cudaMemcpyDeviceToHost ? "offloading" : "fetching what was offloaded");
}

/* The host may read managed memory directly, so it waits for every copy. */
static void end_if_managed(tsh_device *device) {
    if (!tshi_cuda(device)->managed) return;
    offload_join(device);
    tshi_cuda_wait(device, "offloading");
}

static tsh_status check_capture(const tshi_cuda_device *cuda) {
    if (!cuda->capturing) return TSH_OK;
    return tshi_fail(TSH_ERR_STATE, "values are copied to the host and back: not while a graph is captured");
}

static tsh_status offload_to_host(tsh_device *device, size_t bytes, void *from, tshi_host_buffer **host) {
    tshi_cuda_device *cuda = tshi_cuda(device);
    tsh_status status = check_capture(cuda);
    if (status == TSH_OK) status = open_offload(cuda);
    tshi_host_buffer *buffer = status == TSH_OK ? tshi_host_buffer_take(&cuda->offload->free, bytes) : NULL;
    if (status == TSH_OK && !buffer) status = new_buffer(cuda, bytes, &buffer);
    if (status != TSH_OK) return status;
    status = begin_copy(cuda, bytes, from, buffer->data, cudaMemcpyDeviceToHost);
    tshi_host_buffer **list = status == TSH_OK ? &cuda->offload->leaving : &cuda->offload->free;
    buffer->next = *list;
    *list = buffer;
    if (status != TSH_OK) return status;
    buffer->leaving = from;
    *host = buffer;
    end_if_managed(device);
    return TSH_OK;
}

static tsh_status offload_from_host(tsh_device *device, size_t bytes, const tshi_host_buffer *host, void *to) {
    tsh_status status = check_capture(tshi_cuda(device));
    if (status != TSH_OK) return status;
    tshi_cuda_use(tshi_cuda(device));
    status = begin_copy(tshi_cuda(device), bytes, host->data, to, cudaMemcpyHostToDevice);
    end_if_managed(device);
    return status;
}

static void offload_release(tsh_device *device, tshi_host_buffer *host) {
    tshi_cuda_offload *offload = tshi_cuda(device)->offload;
    if (host->leaving) offload_join(device);
    host->next = offload->free;
    offload->free = host;
}

const tshi_offload_ops tshi_cuda_offload_ops = {
    .to_host = offload_to_host, .from_host = offload_from_host, .join = offload_join, .release = offload_release};
