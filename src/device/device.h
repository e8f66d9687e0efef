/* A device is memory plus kernels behind one const table. cpu/ and cuda/ implement it. */
#ifndef TSHI_DEVICE_H
#define TSHI_DEVICE_H

#include "device/kernels.h"
#include "device/slabs.h"
#include "tshard/graph.h"

typedef struct tshi_memory_ops {
    /* At least `size` bytes aligned to 64 (a unique pointer for 0), or NULL with the message set. */
    void *(*alloc)(tsh_device *device, size_t size);
    /* As alloc, from the part of memory that the devices of all ranks have in common, `offset` bytes into it: ranks
     * that ask for equal sizes in the same order get equal offsets. NULL, without a message, where there is no room.
     * The slot is NULL where a device never has such memory. */
    void *(*alloc_symmetric)(tsh_device *device, size_t size, size_t *offset);
    /* Takes back a pointer of either; NULL is fine. */
    void (*release)(tsh_device *device, void *pointer);
    /* The block of a pointer of either, NULL for any other pointer. */
    tshi_slab_block *(*find)(tsh_device *device, const void *pointer);
} tshi_memory_ops;

/* Points in the order of a device's work, as in the public header; create returns NULL with the message set. */
typedef struct tshi_event_ops {
    tsh_event *(*create)(tsh_device *device);
    tsh_status (*record)(tsh_event *event);
    tsh_status (*elapsed)(tsh_event *begin, tsh_event *end, double *seconds);
    void (*destroy)(tsh_event *event);
} tshi_event_ops;

/* A piece of a device's memory, as the devices of other ranks on this machine understand it. */
typedef struct tshi_share {
    unsigned char handle[64]; /* the implementation's; zeros where other processes cannot map the piece */
    char gpu[16];             /* the GPU's address on the bus */
    uint64_t process;
    uint64_t base, born; /* where the piece lies in that process, and since when: no two pieces are alike */
    uint64_t offset;     /* in the piece */
} tshi_share;

/* Other ranks' memory in place, on this machine. */
typedef struct tshi_sharing_ops {
    /* Describe `pointer`, memory of this device, to other ranks. That memory stays the device's until it is destroyed,
     * even when it is released. TSH_ERR_UNSUPPORTED where no other rank can map it. */
    tsh_status (*share)(tsh_device *device, const void *pointer, tshi_share *out);
    /* *out is what another device has shared, for this device's copies and reductions. The first call maps the piece,
     * which stays mapped. */
    tsh_status (*map)(tsh_device *device, const tshi_share *share, void **out);
    /* Unmap all pieces. The devices that own them are destroyed afterwards, unless `keep` was called on
     * them. */
    void (*unmap)(tsh_device *device);
    /* From now on, destroying this device leaves the memory that it has shared to the end of the process. */
    void (*keep)(tsh_device *device);
    /* Wait for all queued work, as other ranks require before they touch this device's memory; reports nothing of what
     * `check` reports. TSH_ERR_STATE while a graph is captured. */
    tsh_status (*drain)(tsh_device *device);
} tshi_sharing_ops;

/* Captured steps of work, as in the public header; the arguments have been checked. */
typedef struct tshi_graph_ops {
    tsh_status (*capture_begin)(tsh_device *device);
    tsh_status (*capture_end)(tsh_device *device, tsh_graph **out);
    tsh_status (*launch)(tsh_graph *graph);
    void (*destroy)(tsh_graph *graph);
} tshi_graph_ops;

/* Ranges inside of each other, which the device's own tools show while a trace is written. */
typedef struct tshi_range_ops {
    void (*push)(const char *name);
    void (*pop)(void);
} tshi_range_ops;

typedef struct tshi_device_ops {
    const char *name;
    tsh_device_kind kind;
    unsigned computes; /* bit d: dtype d is a float dtype here */

    void (*destroy)(tsh_device *device);
    /* The text of tsh_device_describe. */
    void (*describe)(const tsh_device *device, char *text, size_t size);
    /* The first failure that kernels have reported and no check has returned yet (an id out of range, a launch that
     * failed). Does not wait for kernels that still run. */
    tsh_status (*check)(tsh_device *device);
    /* Wait for all queued work, then check. */
    tsh_status (*synchronize)(tsh_device *device);
    /* The stream of tsh_device_stream. NULL: there is none. */
    void *(*stream)(tsh_device *device);
    /* FLOP/s of the device's matrix units for products of dtype, at the clock (Hz) that they run at now, which is
     * measured; 0 where that is not known. Waits. */
    double (*matrix_rate)(tsh_device *device, tsh_dtype dtype, double *clock);

    tshi_memory_ops memory;
    tshi_copy_ops copy;
    tshi_product_ops product;
    tshi_targets_check_fn *targets_check;
    tshi_ids_check_fn *ids_check;
    tshi_reduce_fn *reduce;
    tshi_top_ops top;
    /* Tables for each dtype, of TSH_DTYPE_COUNT entries; all NULL for one that the device does not compute with. */
    const tshi_elementwise_ops *elementwise;
    const tshi_sum_ops *sum;
    const tshi_softmax_ops *softmax;
    const tshi_loss_ops *loss;
    const tshi_cross_entropy_ops *cross_entropy;
    const tshi_embedding_ops *embedding;
    const tshi_norm_ops *norm;
    const tshi_attention_ops *attention;
    const tshi_random_ops *random;
    const tshi_optimizer_ops *optimizer;

    const tshi_event_ops *event;
    const tshi_sharing_ops *sharing; /* NULL on the CPU, whose ranks share a heap */
    const tshi_graph_ops *graph;     /* NULL where nothing can be captured */
    const tshi_range_ops *range;     /* NULL where there are no such tools */
} tshi_device_ops;

/* What every event and every graph starts with. */
struct tsh_event {
    tsh_device *device;
};

struct tsh_graph {
    tsh_device *device;
};

/* Where the program is: the function that runs (NULL: none), and the parameter that one has used last (NULL: none).
 * Both texts outlive their being here. */
typedef struct tshi_place {
    const char *function, *layer;
    const char *last; /* the last function that has run, or NULL */
    bool backward;
} tshi_place;

/* What every device starts with; an implementation embeds it first. */
struct tsh_device {
    const tshi_device_ops *ops;
    bool captures; /* a graph is captured, so the host can read nothing */
    tsh_allocator allocator;
    tsh_memory_stats stats;
    tsh_memory_use report;      /* its texts belong to the peak */
    tsh_memory_purpose purpose; /* of memory that is allocated from now on */
    tshi_place place;
    struct tshi_record *record;             /* device/record.h; NULL: none is kept */
    struct tshi_trace_file *trace;          /* device/trace.h; NULL: none is written */
    tshi_pool tensors, storages, gradients; /* structs of the rooms above */
    uint64_t forms;                         /* numbers that metadata of its tensors have got (tensor/tensor.h) */
    struct tsh_tensor *newest;              /* of the tensors that are alive: the first of their list */
    bool ended;                             /* the world has been destroyed before these: they have no memory */
    const tsh_log_sink *log;                /* the world's, which outlives the device; NULL: stderr */
    struct tshi_owner *owner;               /* the world's thread and process (base/owner.h), or NULL */
    int threads;                            /* of the CPU's matrix products; 0 on a GPU */
    bool checked;                           /* TSHARD_CHECK: handles of tensors are not used again */
    bool tunes; /* TSHARD_CUDA_TUNE: algorithms are chosen by their time, which no other device chooses alike */
};

/* What the program does is noted: calls look here once before they look for a record and a trace. */
static inline bool tshi_is_noted(const tsh_device *device) {
    return ((uintptr_t)device->record | (uintptr_t)device->trace) != 0;
}

/* A CPU device whose tensor memory is the `size` bytes at `heap` (page aligned, zero pages, borrowed: the caller unmaps
 * them after the device is destroyed). `threads` for the BLAS, at least 1. */
tsh_status tshi_device_create_cpu(const tsh_allocator *allocator, void *heap, size_t size, int threads,
                                  tsh_device **out);

/* GPU number local_rank modulo the GPUs that there are. TSHARD_CUDA_MANAGED and TSHARD_TF32 (0 or 1) are read now.
 * TSH_ERR_UNSUPPORTED, with the reason, without a driver, a GPU or cuBLASLt, and in builds without CUDA. */
tsh_status tshi_device_create_cuda(const tsh_allocator *allocator, int local_rank, tsh_device **out);

/* In a world of several ranks, whose work waits for that of others: CUDA's own settings by which no work keeps other
 * work from beginning, unless the environment has them already, or the program has used a GPU before, when it is too
 * late. */
void tshi_device_prepare_cuda(void);

void tshi_device_destroy(tsh_device *device);

/* For alloc: whether the allocator allows `size` bytes of tensor memory more, false with the message set; and the
 * counters, when a block is handed out for `bytes`, under the current purpose, and when it is taken back. */
bool tshi_device_reserve(const tsh_device *device, size_t size);
void tshi_device_count(tsh_device *device, tshi_slab_block *block, size_t bytes);
void tshi_device_uncount(tsh_device *device, const tshi_slab_block *block);

/* Memory is allocated for this purpose from now on; returns the one before, which the caller sets again. */
static inline tsh_memory_purpose tshi_device_purpose(tsh_device *device, tsh_memory_purpose purpose) {
    tsh_memory_purpose before = device->purpose;
    device->purpose = purpose;
    return before;
}
/* The memory at `pointer`, which alloc has returned, is counted under this purpose from now on. */
void tshi_device_repurpose(tsh_device *device, const void *pointer, tsh_memory_purpose purpose);

static inline bool tshi_device_computes(const tsh_device *device, tsh_dtype dtype) {
    return (unsigned)dtype < TSH_DTYPE_COUNT && device->ops->computes >> dtype & 1;
}

/* TSH_ERR_DTYPE when the device does not compute with dtype: "WHAT is bfloat16; the CPU computes with float32 and
 * float64". */
tsh_status tshi_check_computes(const tsh_device *device, tsh_dtype dtype, const char *what);

#endif
