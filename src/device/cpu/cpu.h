/* The CPU's device, for its own files. */
#ifndef TSHI_CPU_DEVICE_H
#define TSHI_CPU_DEVICE_H

#include "device/cpu/isa.h"
#include "device/device.h"
#include "device/each_kernel.h"
#include "device/slabs.h"

/* Which library multiplies float32. */
typedef enum tshi_products { TSHI_PRODUCTS_ONEDNN, TSHI_PRODUCTS_BLAS, TSHI_PRODUCTS_BY_SIZES } tshi_products;

typedef struct tshi_cpu_device {
    tsh_device base;
    tshi_device_ops ops; /* with the kernels of `isa` in ranges for threads */
    tshi_float_tables tables;
    const tshi_isa *isa;
    tshi_products products;
    tshi_slabs heap; /* one slab */
    tshi_slab_index index;
    size_t high_water;                  /* bytes of the heap that have ever been in use */
    tshi_host_buffer *host;             /* free buffers, outside the heap */
    struct tshi_primitives *primitives; /* kernels/primitives.h; NULL: no product has used them */
} tshi_cpu_device;

/* Sets cpu->products, once cpu->isa is set (kernels/gemm.c). TSH_ERR_UNSUPPORTED where TSHARD_PRODUCTS names a library
 * that this build lacks. */
tsh_status tshi_cpu_products_choose(tshi_cpu_device *cpu);

#endif
