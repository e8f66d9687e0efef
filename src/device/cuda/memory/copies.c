/* Copies within a GPU's memory, to the host and from it. Copies to and from the host are staged through pinned memory:
 * a copy of pageable memory blocks until the stream reaches it, and no watch could end that wait. */
#include "device/cuda/cuda.h"

#include <string.h>

/* Consecutive copies share a slot of pinned memory until it is full; it is reused when all of them have run. */
#define SLOTS      8
#define SLOT_BYTES ((size_t)1 << 20)
#define ALIGNMENT  ((size_t)64) /* of each copy in a slot */

typedef struct tshi_cuda_staging {
    char *memory;
    cudaEvent_t done[SLOTS];
    int slot;
    size_t used; /* of the slot */
} tshi_cuda_staging;

tsh_status tshi_cuda_staging_create(tshi_cuda_device *device) {
    tshi_cuda_staging *staging = tshi_calloc(&device->base.allocator, 1, sizeof *staging);
    void *pinned = NULL;
    if (!staging) return TSH_ERR_MEMORY;
    device->staging = staging;
    tsh_status status = TSH_OK;
    for (int i = 0; i < SLOTS && status == TSH_OK; i++) status = tshi_cuda_event_new(&staging->done[i]);
    if (status != TSH_OK) return status;
    status = tshi_cuda_fail(cudaHostAlloc(&pinned, SLOTS * SLOT_BYTES, cudaHostAllocPortable), "cudaHostAlloc");
    staging->memory = status == TSH_OK ? pinned : NULL;
    return status;
}

void tshi_cuda_staging_destroy(tshi_cuda_device *device) {
    tshi_cuda_staging *staging = device->staging;
    if (!staging) return;
    if (staging->memory) cudaFreeHost(staging->memory);
    for (int i = 0; i < SLOTS; i++)
        if (staging->done[i]) cudaEventDestroy(staging->done[i]);
    tshi_free(&device->base.allocator, staging);
    device->staging = NULL;
}

static void queued(tsh_device *device, cudaError_t error, const char *what) {
    tshi_cuda_record_error(device, error, what);
    if (tshi_cuda(device)->managed) tshi_cuda_wait(device, what);
}

void tshi_cuda_copy(tsh_device *device, size_t bytes, const void *from, void *to) {
    if (bytes == 0 || from == to) return;
    queued(device, cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, tshi_cuda_stream(device)), "copy");
}

void tshi_cuda_zero(tsh_device *device, size_t bytes, void *to) {
    if (bytes > 0) queued(device, cudaMemsetAsync(to, 0, bytes, tshi_cuda_stream(device)), "zero");
}

/* Reserves *got bytes (at most `bytes`) in the current slot, or in the next one, for whose copies it waits. NULL if
 * that fails. */
static char *staging_part(tshi_cuda_device *cuda, size_t bytes, size_t *got) {
    tshi_cuda_staging *staging = cuda->staging;
    if (staging->used == SLOT_BYTES || (staging->used + bytes > SLOT_BYTES && bytes <= SLOT_BYTES)) {
        cudaError_t error = cudaEventRecord(staging->done[staging->slot], cuda->compute);
        staging->slot = (staging->slot + 1) % SLOTS;
        staging->used = 0;
        if (error == cudaSuccess) error = cudaEventQuery(staging->done[staging->slot]);
        if (error == cudaErrorNotReady) {
            cuda->waits++;
            error = tshi_cuda_wait_event(cuda, staging->done[staging->slot]);
        }
        tshi_cuda_record_error(&cuda->base, error, "a copy through pinned memory");
        if (error != cudaSuccess) return NULL;
    }
    size_t left = SLOT_BYTES - staging->used;
    *got = bytes < left ? bytes : left;
    return staging->memory + (size_t)staging->slot * SLOT_BYTES + staging->used;
}

/* A part of a copy to the host in flight: it is in pinned memory once the slot's event has completed. */
typedef struct arriving {
    const char *staged;
    size_t bytes;
    int slot;
} arriving;

static cudaError_t fetch(tshi_cuda_device *cuda, size_t bytes, const char *from, arriving *next) {
    tshi_cuda_staging *staging = cuda->staging;
    char *staged = staging_part(cuda, bytes, &next->bytes);
    if (!staged) return cudaErrorUnknown;
    next->staged = staged;
    next->slot = staging->slot;
    staging->used += (next->bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    cudaError_t error = cudaMemcpyAsync(staged, from, next->bytes, cudaMemcpyDeviceToHost, cuda->compute);
    return error == cudaSuccess ? cudaEventRecord(staging->done[next->slot], cuda->compute) : error;
}

static cudaError_t land(tshi_cuda_device *cuda, const arriving *part, char *to) {
    cudaError_t error = tshi_cuda_wait_event(cuda, cuda->staging->done[part->slot]);
    if (error == cudaSuccess) memcpy(to, part->staged, part->bytes);
    return error;
}

/* Copies in parts: the GPU writes the next part while the host copies one from pinned memory. */
static cudaError_t read_parts(tshi_cuda_device *cuda, size_t bytes, const char *from, char *to) {
    arriving part = {0};
    cudaError_t error = fetch(cuda, bytes, from, &part);
    for (size_t landed = 0; error == cudaSuccess && landed < bytes;) {
        arriving next = {0};
        size_t next_at = landed + part.bytes;
        if (next_at < bytes) error = fetch(cuda, bytes - next_at, from + next_at, &next);
        if (error == cudaSuccess) error = land(cuda, &part, to + landed);
        landed = next_at;
        part = next;
    }
    return error;
}

void tshi_cuda_copy_to_host(tsh_device *device, size_t bytes, const void *from, void *to) {
    tshi_cuda_device *cuda = tshi_cuda(device);
    cudaError_t error = cudaErrorUnknown;
    if (bytes == 0) return;
    if (cuda->capturing) {
        tshi_cuda_no_capture(device, "a copy to the host");
    } else {
        cuda->waits++;
        error = read_parts(cuda, bytes, from, to);
        tshi_cuda_record_error(device, error, "a copy to the host");
    }
    /* A caller that continues after a failure reads zeros rather than uninitialized memory. */
    if (error != cudaSuccess) memset(to, 0, bytes);
}

void tshi_cuda_copy_from_host(tsh_device *device, size_t bytes, const void *from, void *to) {
    tshi_cuda_device *cuda = tshi_cuda(device);
    if (bytes > 0 && cuda->capturing) {
        tshi_cuda_no_capture(device, "a copy from the host");
        return;
    }
    for (size_t done = 0, some = 0; done < bytes; done += some) {
        char *staged = staging_part(cuda, bytes - done, &some);
        if (!staged) return;
        memcpy(staged, (const char *)from + done, some);
        cuda->staging->used += (some + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
        queued(device,
               cudaMemcpyAsync((char *)to + done, staged, some, cudaMemcpyHostToDevice, tshi_cuda_stream(device)),
               "a copy from the host");
    }
}

void tshi_cuda_copy_strided(tsh_device *device, int64_t outer, size_t bytes, const void *from, size_t from_stride,
                            void *to, size_t to_stride) {
    if (outer <= 0 || bytes == 0) return;
    if (outer == 1 || (from_stride == bytes && to_stride == bytes)) {
        tshi_cuda_copy(device, (size_t)outer * bytes, from, to);
    } else if (from_stride < bytes || from_stride > INT32_MAX ||
               to_stride > INT32_MAX) { /* cudaMemcpy2D takes no such pitch */
        for (int64_t o = 0; o < outer; o++) {
            tshi_cuda_copy(device, bytes, (const char *)from + (size_t)o * from_stride,
                           (char *)to + (size_t)o * to_stride);
        }
    } else {
        queued(device,
               cudaMemcpy2DAsync(to, to_stride, from, from_stride, bytes, (size_t)outer, cudaMemcpyDeviceToDevice,
                                 tshi_cuda_stream(device)),
               "copy_strided");
    }
}
