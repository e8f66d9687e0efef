/* Kernels that are noted. Those of a planned run do not compute: each adds to the device's record what it would read,
 * write and multiply. Those of a device with a trace do, and are events of it. */
#ifndef TSHI_PLAN_KERNELS_H
#define TSHI_PLAN_KERNELS_H

#include "device/device.h"

/* Tables by dtype. */
typedef struct tshi_plan_tables {
    tshi_elementwise_ops elementwise[TSH_DTYPE_COUNT];
    tshi_sum_ops sum[TSH_DTYPE_COUNT];
    tshi_softmax_ops softmax[TSH_DTYPE_COUNT];
    tshi_loss_ops loss[TSH_DTYPE_COUNT];
    tshi_cross_entropy_ops cross_entropy[TSH_DTYPE_COUNT];
    tshi_embedding_ops embedding[TSH_DTYPE_COUNT];
    tshi_norm_ops norm[TSH_DTYPE_COUNT];
    tshi_attention_ops attention[TSH_DTYPE_COUNT];
    tshi_random_ops random[TSH_DTYPE_COUNT];
    tshi_optimizer_ops optimizer[TSH_DTYPE_COUNT];
} tshi_plan_tables;

/* The CPU's kernels in `ops` become those of a planned run. */
TSHI_TOOLS void tshi_plan_kernels(tshi_device_ops *ops, tshi_plan_tables *tables);
/* A device's kernels in `ops` become those that run the ones of device->trace->behind as events. */
void tshi_timed_kernels(tshi_device_ops *ops, tshi_plan_tables *tables);

#endif
