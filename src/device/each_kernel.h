/* For files that make functions from device/kernels.def. */
#ifndef TSHI_EACH_KERNEL_H
#define TSHI_EACH_KERNEL_H

#include "device/kernels.h"

/* The arguments between the parentheses. */
#define LIST(...) __VA_ARGS__

/* MAKE for each dtype that has a table of kernels. */
#define EACH_FLOAT(MAKE, ...)                                                                                          \
    MAKE(TSH_FLOAT32, __VA_ARGS__)                                                                                     \
    MAKE(TSH_FLOAT64, __VA_ARGS__)                                                                                     \
    MAKE(TSH_BFLOAT16, __VA_ARGS__)                                                                                    \
    MAKE(TSH_FLOAT16, __VA_ARGS__)

/* Memory for a device's tables by dtype. */
typedef struct tshi_float_tables {
#define FLOAT_TABLE(table) tshi_##table##_ops table[TSH_DTYPE_COUNT];
#include "device/kernels.def"
} tshi_float_tables;

#endif
