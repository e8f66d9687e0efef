/* The device of a dry run and that of a trace: each is a device with another table of functions. */
#include "device/plan/plan.h"
#include "device/trace.h"

#include <stdio.h>

static void describe_dry(const tsh_device *device, char *text, size_t size) {
    const char *of = device->ops->kind == TSH_CPU ? "" : " of a GPU";
    snprintf(text, size, "a dry run%s: kernels are counted, not run", of);
}

static tshi_planned *new_planned(const tsh_device *device) {
    tshi_planned *planned = tshi_calloc(&device->allocator, 1, sizeof *planned);
    if (!planned) return NULL;
    planned->allocator = device->allocator;
    return planned;
}

tshi_planned *tshi_plan_device(tsh_device *device, const tshi_device_ops *own, const void *heap, size_t bytes) {
    tshi_planned *planned = new_planned(device);
    if (!planned) return NULL;
    device->record->planned = true;
    device->record->heap = heap;
    device->record->heap_bytes = bytes;
    tshi_dry_kernels(planned, device->ops, own);
    planned->ops.name = own->name;
    planned->ops.kind = own->kind;
    planned->ops.computes = own->computes;
    planned->ops.describe = describe_dry;
    planned->ops.offload = &tshi_dry_offload;
    device->ops = &planned->ops;
    return planned;
}

void tshi_planned_free(tshi_planned *planned) {
    if (!planned) return;
    tsh_allocator allocator = planned->allocator;
    tshi_free(&allocator, planned);
}

tsh_status tshi_trace_attach(tsh_device *device, tshi_trace_file *trace) {
    tshi_planned *timed = new_planned(device);
    if (!timed) return TSH_ERR_MEMORY;
    tshi_timed_kernels(timed, device->ops);
    trace->profiler = device->ops->range;
    trace->timed = timed;
    device->trace = trace;
    device->ops = &timed->ops;
    return TSH_OK;
}

void tshi_trace_detach(tsh_device *device) {
    tshi_trace_file *trace = device->trace;
    device->ops = trace->timed->inner;
    device->trace = NULL;
    tshi_planned_free(trace->timed);
    trace->timed = NULL;
    trace->profiler = NULL;
}
