/* Timing events on the compute stream. */
#include "device/cuda/cuda.h"

typedef struct cuda_event {
    tsh_event base;
    cudaEvent_t event;
} cuda_event;

static tsh_event *event_create(tsh_device *device) {
    cuda_event *event = tshi_calloc(&device->allocator, 1, sizeof *event);
    if (!event) return NULL;
    event->base.device = device;
    tshi_cuda_use(tshi_cuda(device));
    if (tshi_cuda_fail(cudaEventCreate(&event->event), "cudaEventCreate") == TSH_OK) return &event->base;
    tshi_free(&device->allocator, event);
    return NULL;
}

static tsh_status event_record(tsh_event *event) {
    return tshi_cuda_fail(cudaEventRecord(((cuda_event *)event)->event, tshi_cuda_stream(event->device)),
                          "cudaEventRecord");
}

static tsh_status event_elapsed(tsh_event *begin, tsh_event *end, double *seconds) {
    float milliseconds = 0;
    *seconds = 0;
    tshi_cuda(begin->device)->waits++;
    tsh_status status = tshi_cuda_fail(tshi_cuda_wait_event(tshi_cuda(begin->device), ((cuda_event *)end)->event),
                                       "cudaEventSynchronize");
    if (status == TSH_OK) {
        status = tshi_cuda_fail(
            cudaEventElapsedTime(&milliseconds, ((cuda_event *)begin)->event, ((cuda_event *)end)->event),
            "cudaEventElapsedTime");
    }
    *seconds = 1e-3 * (double)milliseconds;
    return status;
}

static void event_destroy(tsh_event *event) {
    cudaEventDestroy(((cuda_event *)event)->event);
    tshi_free(&event->device->allocator, event);
}

const tshi_event_ops tshi_cuda_event_ops = {
    .create = event_create, .record = event_record, .elapsed = event_elapsed, .destroy = event_destroy};
