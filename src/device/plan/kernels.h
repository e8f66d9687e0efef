/* Tables of kernels for the dry run and for the trace. In a dry run a kernel adds to the device's record what it
 * would read, write and multiply, and computes nothing. In a trace a kernel is an event around the device's own
 * kernel. */
#ifndef TSHI_PLAN_KERNELS_H
#define TSHI_PLAN_KERNELS_H

#include "device/device.h"

/* The tables by dtype. */
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

/* Replaces the CPU's kernels in `ops` by those of the dry run. */
TSHI_TOOLS void tshi_plan_kernels(tshi_device_ops *ops, tshi_plan_tables *tables);
/* The dry run's: values that leave take no host memory. */
extern const tshi_offload_ops tshi_plan_offload;
/* Replaces a device's kernels in `ops` by those of the trace, which call the ones of device->trace->behind. */
void tshi_timed_kernels(tshi_device_ops *ops, tshi_plan_tables *tables);

#endif
