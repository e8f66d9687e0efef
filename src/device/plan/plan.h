/* The device of a planned run: memory that takes address space and no pages, with the same book-keeping as the CPU's, and
 * kernels that count. */
#ifndef TSHI_PLAN_H
#define TSHI_PLAN_H

#include "device/plan/kernels.h"
#include "device/record.h"

typedef struct tshi_planned {
    tshi_device_ops ops; /* the CPU's, with kernels that count */
    tshi_plan_tables tables;
    tsh_allocator allocator;
} tshi_planned;

/* A CPU's device over `bytes` at `heap`, which has a record, becomes one of a planned run. NULL without memory. The caller frees it when the
 * device has been destroyed. */
tshi_planned *tshi_plan_device(tsh_device *device, const void *heap, size_t bytes);
void tshi_planned_free(tshi_planned *planned);

#endif
