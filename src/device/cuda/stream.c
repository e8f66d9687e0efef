/* Failures of calls and kernels, and waiting for the GPU. */
#include "base/clock.h"
#include "device/cuda/cuda.h"

#include <sched.h>
#include <stdio.h>

tsh_status tshi_cuda_fail(cudaError_t error, const char *what) {
    if (error == cudaSuccess) return TSH_OK;
    return tshi_fail(error == cudaErrorMemoryAllocation ? TSH_ERR_MEMORY : TSH_ERR_SYSTEM, "%s: %s (%d)", what,
                     cudaGetErrorString(error), (int)error);
}

void tshi_cuda_use(const tshi_cuda_device *device) {
    int current = -1;
    if (cudaGetDevice(&current) != cudaSuccess || current != device->ordinal) cudaSetDevice(device->ordinal);
}

tsh_status tshi_cuda_event_new(cudaEvent_t *out) {
    return tshi_cuda_fail(cudaEventCreateWithFlags(out, cudaEventDisableTiming), "cudaEventCreateWithFlags");
}

tsh_status tshi_cuda_stream_new(cudaStream_t *out, bool first) {
    int low = 0, high = 0;
    cudaError_t error = cudaDeviceGetStreamPriorityRange(&low, &high);
    if (error != cudaSuccess) return tshi_cuda_fail(error, "cudaDeviceGetStreamPriorityRange");
    error = cudaStreamCreateWithPriority(out, cudaStreamNonBlocking, first ? high : low);
    return tshi_cuda_fail(error, "cudaStreamCreateWithPriority");
}

/* High priority: peers wait for communication. */
tsh_status tshi_cuda_communication_open(tshi_cuda_device *device, int i) {
    if (device->communication[i]) return TSH_OK;
    tshi_cuda_use(device);
    return tshi_cuda_stream_new(&device->communication[i], true);
}

cudaError_t tshi_cuda_communication_join(tshi_cuda_device *device, int i) {
    cudaError_t error = cudaEventRecord(device->events[1], device->communication[i]);
    return error == cudaSuccess ? cudaStreamWaitEvent(device->compute, device->events[1], 0) : error;
}

cudaError_t tshi_cuda_communication_wait(const tshi_cuda_device *device) {
    cudaError_t error = cudaSuccess;
    for (int i = 0; i < TSHI_CUDA_COMMUNICATIONS && error == cudaSuccess; i++)
        if (device->communication[i]) error = cudaStreamSynchronize(device->communication[i]);
    return error;
}

void tshi_cuda_record_status(tshi_cuda_device *device, tsh_status status) {
    tshi_cuda_graph *graph = device->capturing;
    if (graph && graph->broken == TSH_OK) {
        graph->broken = status;
        snprintf(graph->message, sizeof graph->message, "%s", tsh_error_message());
    }
    if (device->failed != TSH_OK) return;
    device->failed = status;
    snprintf(device->message, sizeof device->message, "%s", tsh_error_message());
}

void tshi_cuda_record_error(tsh_device *device, cudaError_t error, const char *what) {
    if (error != cudaSuccess) tshi_cuda_record_status(tshi_cuda(device), tshi_cuda_fail(error, what));
}

void tshi_cuda_no_capture(tsh_device *device, const char *what) {
    tshi_cuda_record_status(tshi_cuda(device), tshi_fail(TSH_ERR_STATE, "%s: not while a graph is captured", what));
}

void tshi_cuda_nap(int looks) {
    if (looks < TSHI_CUDA_SPINS)
        sched_yield();
    else
        tshi_sleep(looks < 10 * TSHI_CUDA_SPINS ? 20e-6 : 200e-6);
}

/* With a watch the host polls, as a collective whose peers are missing never ends: the watch aborts it. */
cudaError_t tshi_cuda_wait_event(tshi_cuda_device *cuda, cudaEvent_t event) {
    if (!cuda->watch) return cudaEventSynchronize(event);
    cudaError_t error;
    for (int looks = 0; (error = cudaEventQuery(event)) == cudaErrorNotReady; looks++) {
        tshi_cuda_nap(looks);
        if (looks >= TSHI_CUDA_SPINS) cuda->watch(cuda->watcher);
    }
    return error;
}

static cudaError_t wait_compute(tshi_cuda_device *cuda) {
    if (!cuda->watch) return cudaStreamSynchronize(cuda->compute);
    cudaError_t error = cudaEventRecord(cuda->events[0], cuda->compute);
    return error == cudaSuccess ? tshi_cuda_wait_event(cuda, cuda->events[0]) : error;
}

bool tshi_cuda_wait(tsh_device *device, const char *what) {
    tshi_cuda_device *cuda = tshi_cuda(device);
    if (cuda->capturing) {
        tshi_cuda_no_capture(device, what);
        return false;
    }
    cuda->waits++;
    cudaError_t error = wait_compute(cuda);
    tshi_cuda_record_error(device, error, what);
    return error == cudaSuccess;
}

void tshi_cuda_wait_idle(tshi_cuda_device *device, const char *what) {
    if (!device->drain || device->capturing) return;
    tshi_cuda_wait(&device->base, what);
    device->drain(device->watcher);
}

/* True from a kernel's second launch on; always false for a kernel that finds no place in the table. */
static bool is_loaded(tshi_cuda_device *cuda, const void *kernel) {
    if (!cuda->loaded) cuda->loaded = tshi_calloc(&cuda->base.allocator, TSHI_CUDA_KERNELS, sizeof *cuda->loaded);
    if (!cuda->loaded) return false;
    size_t at = (uint32_t)((uintptr_t)kernel >> 4) * 0x9E3779B1u >> 20; /* 12 bits: TSHI_CUDA_KERNELS is 2^12 */
    for (int tries = 0; tries < 16; tries++, at = (at + 1) & (TSHI_CUDA_KERNELS - 1)) {
        if (cuda->loaded[at] == kernel) return true;
        if (cuda->loaded[at]) continue;
        cuda->loaded[at] = kernel;
        return false;
    }
    return false;
}

void tshi_cuda_load(tsh_device *device, const void *kernel) {
    tshi_cuda_device *cuda = tshi_cuda(device);
    if (!cuda->drain || cuda->loads_at_once || is_loaded(cuda, kernel)) return;
    tshi_cuda_wait_idle(cuda, "waiting for the GPU before a kernel is loaded");
}

void tshi_cuda_launched(tsh_device *device, const char *what) {
    tshi_cuda_record_error(device, cudaGetLastError(), what);
    if (tshi_cuda(device)->managed) tshi_cuda_wait(device, what);
}

/* Once `found` is set the other fields are complete: the GPU sets it last, and writes no report before the host clears
 * it. */
static tsh_status report_status(tshi_cuda_report *report) {
    if (!__atomic_load_n(&report->found, __ATOMIC_ACQUIRE)) return TSH_OK;
    tshi_cuda_report r = *report;
    __atomic_store_n(&report->found, 0, __ATOMIC_RELEASE);
    if (r.is_target) {
        return tshi_fail(TSH_ERR_RANGE, "target %lld at index %lld is outside [0, %lld) and not ignore_index %lld",
                         (long long)r.value, (long long)r.index, (long long)r.limit, (long long)r.ignore_index);
    }
    return tshi_fail(TSH_ERR_RANGE, "id %lld at index %lld, the vocabulary is [0, %lld)", (long long)r.value,
                     (long long)r.index, (long long)r.limit);
}

tsh_status tshi_cuda_check(tsh_device *device) {
    tshi_cuda_device *cuda = tshi_cuda(device);
    if (!cuda->capturing) { /* a stream must not be queried during its capture */
        cudaError_t error = cudaStreamQuery(cuda->compute);
        if (error != cudaErrorNotReady) tshi_cuda_record_error(device, error, "a kernel");
    }
    tsh_status status = report_status(cuda->report);
    if (cuda->failed == TSH_OK) return status;
    status = tshi_fail(cuda->failed, "%s", cuda->message);
    cuda->failed = TSH_OK;
    return status;
}

tsh_status tshi_cuda_synchronize(tsh_device *device) {
    tshi_cuda_wait(device, "device_synchronize");
    return tshi_cuda_check(device);
}
