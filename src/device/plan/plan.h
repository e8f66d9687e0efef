/* The device of a planned run: memory that takes address space and no pages, with the same book-keeping as the CPU's,
 * and kernels that count. */
#ifndef TSHI_PLAN_H
#define TSHI_PLAN_H

#include "device/plan/kernels.h"
#include "device/record.h"

typedef struct tshi_planned {
    tshi_device_ops ops; /* the CPU's, with kernels that count; or a device's, with kernels that are timed */
    tshi_plan_tables tables;
    tsh_allocator allocator;
} tshi_planned;

/* A CPU's device over `bytes` at `heap`, which has a record, becomes one of a planned run. NULL without memory. The
 * caller frees it when the device has been destroyed. */
tshi_planned *tshi_plan_device(tsh_device *device, const void *heap, size_t bytes);
void tshi_planned_free(tshi_planned *planned);

/* From now on the device has a trace, whose events its kernels are; then it has none again. TSH_ERR_MEMORY. */
tsh_status tshi_trace_attach(tsh_device *device, struct tshi_trace_file *trace);
void tshi_trace_detach(tsh_device *device);

#endif
