/* The device of a dry run: tensors take address space but no pages, are accounted for as on the CPU, and kernels
 * only count. And the device of a trace: its kernels are events around its own. */
#ifndef TSHI_PLAN_H
#define TSHI_PLAN_H

#include "device/device.h"
#include "device/each_kernel.h"
#include "device/record.h"

/* What takes the place of a device's table. */
typedef struct tshi_planned {
    tshi_device_ops ops;          /* the first member: device->ops is the address of this struct, too */
    const tshi_device_ops *inner; /* the device's own table */
    tshi_float_tables tables;
    tsh_allocator allocator;
} tshi_planned;

/* The device's own table, under that of the dry run or the trace. */
static inline const tshi_device_ops *tshi_inner_ops(const tsh_device *device) {
    return ((const tshi_planned *)device->ops)->inner;
}

/* Turns a CPU device over `bytes` at `heap`, which has a record, into that of a dry run: of a device with the table
 * `own`. NULL without memory. The caller frees it after the device is destroyed. */
tshi_planned *tshi_plan_device(tsh_device *device, const tshi_device_ops *own, const void *heap, size_t bytes);
void tshi_planned_free(tshi_planned *planned);

/* Attaches a trace to the device, whose kernels become its events; detach restores the device. TSH_ERR_MEMORY. */
tsh_status tshi_trace_attach(tsh_device *device, struct tshi_trace_file *trace);
void tshi_trace_detach(tsh_device *device);

/* Makes a device's table into one with the kernels of the dry run, or of the trace. A slot that is NULL in `own` stays
 * NULL, because callers choose by it, and sizes of scratch memory are those of `own`. The dry run is on the host. */
TSHI_TOOLS void tshi_dry_kernels(tshi_planned *planned, const tshi_device_ops *host, const tshi_device_ops *own);
void tshi_timed_kernels(tshi_planned *planned, const tshi_device_ops *own);
/* The dry run's: values that leave take no host memory. */
extern const tshi_offload_ops tshi_dry_offload;

#endif
