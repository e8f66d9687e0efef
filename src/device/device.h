/* A device is memory and kernels behind one const table, which cpu/ and cuda/ fill. */
#ifndef TSHI_DEVICE_H
#define TSHI_DEVICE_H

#include "base/cuts.h"
#include "device/kernels.h"
#include "device/slabs.h"
#include "tshard/graph.h"

typedef struct tshi_memory_ops {
    /* At least `size` bytes aligned to 64 (a unique pointer for size 0), or NULL with the message set. */
    void *(*alloc)(tsh_device *device, size_t size);
    /* Releases what alloc returned; NULL is ignored. */
    void (*release)(tsh_device *device, void *pointer);
    /* The block that alloc returned at this address, NULL for any other pointer. */
    tshi_slab_block *(*find)(tsh_device *device, const void *pointer);
} tshi_memory_ops;

/* Events are points in the order of a device's work, as in the public header; create returns NULL with the message
 * set. */
typedef struct tshi_event_ops {
    tsh_event *(*create)(tsh_device *device);
    tsh_status (*record)(tsh_event *event);
    tsh_status (*elapsed)(tsh_event *begin, tsh_event *end, double *seconds);
    void (*destroy)(tsh_event *event);
} tshi_event_ops;

/* A handle to an allocation of this device, by which other ranks of the machine map it. */
typedef struct tshi_share {
    unsigned char handle[64]; /* from the device's driver; zeros where other processes cannot map the allocation */
    char gpu[16];             /* the GPU's PCI bus address */
    uint64_t process;
    uint64_t base,
        born; /* the allocation's address in that process and the time when it was shared: together they are unique */
    uint64_t offset; /* of the shared pointer in the allocation */
} tshi_share;

/* Mapping the device memory of other ranks of this machine. */
typedef struct tshi_sharing_ops {
    /* Exports `pointer`, memory of this device, to other ranks. A shared allocation is kept until the device is
     * destroyed, even when its memory is released. TSH_ERR_UNSUPPORTED where no other rank can map it. */
    tsh_status (*share)(tsh_device *device, const void *pointer, tshi_share *out);
    /* *out: the address, in this process, of what another device has shared, for this device's copies and
     * reductions. The first call for an allocation maps it; it stays mapped. */
    tsh_status (*map)(tsh_device *device, const tshi_share *share, void **out);
    /* Unmaps all allocations of other ranks. Devices that own them are destroyed after this, unless `keep` was
     * called on them. */
    void (*unmap)(tsh_device *device);
    /* From now on, destroying this device leaves its shared memory allocated until the process ends. */
    void (*keep)(tsh_device *device);
    /* Waits for all queued work before other ranks touch this device's memory; leaves reporting of kernels' failures
     * to `check`. TSH_ERR_STATE during a graph capture. */
    tsh_status (*drain)(tsh_device *device);
} tshi_sharing_ops;

/* Host memory for values of tensors, which a device keeps for later values. */
typedef struct tshi_host_buffer tshi_host_buffer;
struct tshi_host_buffer {
    tshi_host_buffer *next; /* in a list of the device */
    void *data;
    size_t size;
    void *leaving; /* device memory that a copy to this buffer still reads; or NULL */
};
/* Takes the smallest buffer of `bytes` or more off the list; NULL if there is none. */
tshi_host_buffer *tshi_host_buffer_take(tshi_host_buffer **list, size_t bytes);

/* Tensor memory whose values wait in host memory. The copies run beside the device's queue of work. */
typedef struct tshi_offload_ops {
    /* Copies `bytes` at `from`, memory of alloc, to host memory, after all work queued so far. Takes `from` over, which
     * is released when no copy reads it any more: at the latest in `join`. On failure `from` stays the caller's. */
    tsh_status (*to_host)(tsh_device *device, size_t bytes, void *from, tshi_host_buffer **host);
    /* Begins to copy the values to `to`, memory of alloc, after all work queued so far. Until `join`, no other work may
     * use `to`. */
    tsh_status (*from_host)(tsh_device *device, size_t bytes, const tshi_host_buffer *host, void *to);
    /* Work queued from now on waits for the copies that have begun. NULL: copies have ended when to_host and from_host
     * return. */
    void (*join)(tsh_device *device);
    /* Takes back host memory of to_host, after `join` if from_host has read it. */
    void (*release)(tsh_device *device, tshi_host_buffer *host);
} tshi_offload_ops;

/* Captured graphs, as in the public header; the arguments have been checked. */
typedef struct tshi_graph_ops {
    tsh_status (*capture_begin)(tsh_device *device);
    tsh_status (*capture_end)(tsh_device *device, tsh_graph **out);
    tsh_status (*launch)(tsh_graph *graph);
    void (*destroy)(tsh_graph *graph);
} tshi_graph_ops;

/* Nested ranges for the vendor's profiler (NVTX), pushed while a trace is written. */
typedef struct tshi_range_ops {
    void (*push)(const char *name);
    void (*pop)(void);
} tshi_range_ops;

typedef struct tshi_device_ops {
    const char *name;
    tsh_device_kind kind;
    unsigned computes; /* bit d is set: the device computes with dtype d */

    void (*destroy)(tsh_device *device);
    /* Writes the text of tsh_device_describe. */
    void (*describe)(const tsh_device *device, char *text, size_t size);
    /* The first failure that kernels have reported and no earlier check has returned (an id out of range, a launch
     * that failed). Does not wait for kernels that still run. */
    tsh_status (*check)(tsh_device *device);
    /* Waits for all queued work, then does what `check` does. */
    tsh_status (*synchronize)(tsh_device *device);
    /* The stream of tsh_device_stream. NULL: the device has no streams. */
    void *(*stream)(tsh_device *device);
    /* Peak FLOP/s of the device's matrix units for products of dtype at the current clock (*clock, Hz), which is
     * measured; 0 where the peak is unknown. Waits. */
    double (*matrix_rate)(tsh_device *device, tsh_dtype dtype, double *clock);

    tshi_memory_ops memory;
    /* The kernels. A float table is an array of TSH_DTYPE_COUNT tables; all slots are NULL for a dtype that the device
     * does not compute with. */
#define TABLE(table)       tshi_##table##_ops table;
#define FLOAT_TABLE(table) const tshi_##table##_ops *table;
#define LONE(name, ...)    tshi_##name##_fn *name;
#include "device/kernels.def"

    const tshi_event_ops *event;
    const tshi_offload_ops *offload;
    const tshi_sharing_ops *sharing; /* NULL on the CPU: its ranks share a heap */
    const tshi_graph_ops *graph;     /* NULL: the device cannot capture graphs */
    const tshi_range_ops *range;     /* NULL: no profiler shows ranges */
} tshi_device_ops;

/* The first member of every implementation of an event, and of a graph. */
struct tsh_event {
    tsh_device *device;
};

struct tsh_graph {
    tsh_device *device;
};

/* The function that is running and the parameter that it used last; each is NULL where there is none. The texts are
 * static or outlive the call. */
typedef struct tshi_place {
    const char *function, *layer;
    const char *last; /* the function that ran last, or NULL */
    bool backward;
} tshi_place;

/* The first member of every implementation of a device. */
struct tsh_device {
    const tshi_device_ops *ops;
    bool captures; /* a graph capture is under way: the host can read no values */
    tsh_allocator allocator;
    tsh_memory_stats stats;
    tsh_memory_use report;      /* its texts say where the peak was */
    tsh_memory_purpose purpose; /* of the next allocations */
    tshi_place place;
    struct tshi_record *record;                       /* device/record.h; NULL: no record is kept */
    struct tshi_trace_file *trace;                    /* device/trace.h; NULL: no trace is written */
    tshi_pool tensors, storages, gradients, offloads; /* memory for structs of the rooms above */
    tshi_cut_table cuts;                              /* of the tensors' layouts (tensor/cuts.c) */
    uint64_t forms;            /* how many distinct metadata its tensors have had (tensor/tensor.h numbers them) */
    struct tsh_tensor *newest; /* head of the list of live tensors, newest first */
    bool ended;                /* the world was destroyed before these tensors: their memory is gone */
    const tsh_log_sink *log;   /* the world's, which outlives the device; NULL: stderr */
    struct tshi_owner *owner;  /* the thread and process that own the world (base/owner.h), or NULL */
    int threads;               /* of the BLAS and the kernels; 0 on a GPU */
    bool checked;              /* TSHARD_CHECK: handles of released tensors are not reused */
};

/* True when the device keeps a record or writes a trace: one test on the hot path before either is looked at. */
static inline bool tshi_is_observed(const tsh_device *device) {
    return ((uintptr_t)device->record | (uintptr_t)device->trace) != 0;
}

/* A CPU device whose tensors live in the `size` bytes at `heap`: page aligned, zeroed, borrowed (the caller unmaps
 * them after the device is destroyed). `threads`: of the rank, at least 1. */
tsh_status tshi_device_create_cpu(const tsh_allocator *allocator, void *heap, size_t size, int threads,
                                  tsh_device **out);

/* The GPU of index local_rank modulo the number of GPUs. TSHARD_CUDA_MANAGED and TSHARD_TF32 (0 or 1) are read now.
 * TSH_ERR_UNSUPPORTED, with the reason, without a driver, a GPU or cuBLASLt, and in builds without CUDA. */
tsh_status tshi_device_create_cuda(const tsh_allocator *allocator, int local_rank, tsh_device **out);

/* A GPU's table, whose list of kernels and sizes of scratch memory are known without a GPU; NULL in builds without
 * CUDA, with the message set. */
const tshi_device_ops *tshi_cuda_table(void);

void tshi_device_destroy(tsh_device *device);

/* Accounting of alloc and release. reserve: the allocator's limit allows `size` bytes more of tensor memory; false
 * with the message set. count: a block of `bytes` is handed out under the current purpose; uncount: it is taken
 * back. */
bool tshi_device_reserve(const tsh_device *device, size_t size);
void tshi_device_count(tsh_device *device, tshi_slab_block *block, size_t bytes);
void tshi_device_uncount(tsh_device *device, const tshi_slab_block *block);

/* Sets the purpose of the next allocations; returns the one before, which the caller restores. */
static inline tsh_memory_purpose tshi_device_purpose(tsh_device *device, tsh_memory_purpose purpose) {
    tsh_memory_purpose before = device->purpose;
    device->purpose = purpose;
    return before;
}
/* Accounts the block at `pointer`, which alloc has returned, to this purpose. */
void tshi_device_repurpose(tsh_device *device, const void *pointer, tsh_memory_purpose purpose);

static inline bool tshi_device_computes(const tsh_device *device, tsh_dtype dtype) {
    return (unsigned)dtype < TSH_DTYPE_COUNT && device->ops->computes >> dtype & 1;
}

/* TSH_ERR_DTYPE when the device does not compute with dtype: "WHAT is bfloat16; the CPU computes with float32 and
 * float64". */
tsh_status tshi_check_computes(const tsh_device *device, tsh_dtype dtype, const char *what);

#endif
