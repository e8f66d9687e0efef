/* The device of a dry run: the CPU's with another table of functions. A device with a trace is made likewise. */
#include "device/plan/plan.h"
#include "device/trace.h"

#include <stdio.h>

static void describe(const tsh_device *device, char *text, size_t size) {
    (void)device;
    snprintf(text, size, "a dry run: kernels are counted, not run");
}

tshi_planned *tshi_plan_device(tsh_device *device, const void *heap, size_t bytes) {
    tshi_planned *planned = tshi_calloc(&device->allocator, 1, sizeof *planned);
    if (!planned) return NULL;
    planned->allocator = device->allocator;
    device->record->planned = true;
    device->record->heap = heap;
    device->record->heap_bytes = bytes;
    planned->ops = *device->ops;
    planned->ops.describe = describe;
    planned->ops.offload = &tshi_plan_offload;
    tshi_plan_kernels(&planned->ops, &planned->tables);
    device->ops = &planned->ops;
    return planned;
}

void tshi_planned_free(tshi_planned *planned) {
    if (!planned) return;
    tsh_allocator allocator = planned->allocator;
    tshi_free(&allocator, planned);
}

tsh_status tshi_trace_attach(tsh_device *device, tshi_trace_file *trace) {
    tshi_planned *timed = tshi_calloc(&device->allocator, 1, sizeof *timed);
    if (!timed) return TSH_ERR_MEMORY;
    timed->allocator = device->allocator;
    timed->ops = *device->ops;
    tshi_timed_kernels(&timed->ops, &timed->tables);
    trace->behind = device->ops;
    trace->timed = timed;
    device->trace = trace;
    device->ops = &timed->ops;
    return TSH_OK;
}

void tshi_trace_detach(tsh_device *device) {
    tshi_trace_file *trace = device->trace;
    device->ops = trace->behind;
    device->trace = NULL;
    tshi_planned_free(trace->timed);
    trace->timed = NULL;
}
