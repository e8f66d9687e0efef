/* The CPU's device, for its own files. */
#ifndef TSHI_CPU_DEVICE_H
#define TSHI_CPU_DEVICE_H

#include "device/cpu/isa.h"
#include "device/device.h"
#include "device/slabs.h"

typedef struct tshi_cpu_device {
    tsh_device base;
    tshi_device_ops ops; /* with the kernels of `isa` */
    const tshi_isa *isa;
    tshi_slabs heap; /* one slab */
    tshi_slab_index index;
    size_t high_water;                  /* bytes of the heap that have ever been in use */
    tshi_host_buffer *host;             /* free buffers, outside the heap */
    struct tshi_primitives *primitives; /* kernels/primitives.h; NULL: no product has used them */
} tshi_cpu_device;

#endif
