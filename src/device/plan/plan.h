/* The device of a dry run: tensors take address space but no pages, are accounted for as on the CPU, and kernels
 * only count. */
#ifndef TSHI_PLAN_H
#define TSHI_PLAN_H

#include "device/plan/kernels.h"
#include "device/record.h"

typedef struct tshi_planned {
    tshi_device_ops ops; /* the CPU's table with counting kernels, or a device's with timed kernels */
    tshi_plan_tables tables;
    tsh_allocator allocator;
} tshi_planned;

/* Turns a CPU device over `bytes` at `heap`, which has a record, into that of a dry run. NULL without memory. The
 * caller frees it after the device is destroyed. */
tshi_planned *tshi_plan_device(tsh_device *device, const void *heap, size_t bytes);
void tshi_planned_free(tshi_planned *planned);

/* Attaches a trace to the device, whose kernels become its events; detach restores the device. TSH_ERR_MEMORY. */
tsh_status tshi_trace_attach(tsh_device *device, struct tshi_trace_file *trace);
void tshi_trace_detach(tsh_device *device);

#endif
