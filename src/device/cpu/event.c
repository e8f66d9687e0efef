/* Times. Work here is done when its call returns. */
#ifndef _POSIX_C_SOURCE
#define _POSIX_C_SOURCE 200809L
#endif
#include "base/clock.h"
#include "device/cpu/kernels/kernels.h"

typedef struct cpu_event {
    tsh_event base;
    double seconds;
} cpu_event;

tsh_status tshi_cpu_synchronize(tsh_device *device) {
    return device->ops->check(device);
}

tsh_event *tshi_cpu_event_create(tsh_device *device) {
    cpu_event *event = tshi_calloc(&device->allocator, 1, sizeof *event);
    if (!event) return NULL;
    event->base.device = device;
    return &event->base;
}

tsh_status tshi_cpu_event_record(tsh_event *event) {
    ((cpu_event *)event)->seconds = tshi_clock();
    return TSH_OK;
}

tsh_status tshi_cpu_event_elapsed(tsh_event *begin, tsh_event *end, double *seconds) {
    *seconds = ((cpu_event *)end)->seconds - ((cpu_event *)begin)->seconds;
    return TSH_OK;
}

void tshi_cpu_event_destroy(tsh_event *event) {
    tshi_free(&event->device->allocator, event);
}
