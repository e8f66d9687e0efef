/* device: element types, and the device that holds tensors.
 *
 * Thread safety: any thread may call tsh_dtype_size, tsh_dtype_name and, while the world lives, tsh_device_kind_of. All
 * other functions are for the world's thread. */
#ifndef TSHARD_DEVICE_H
#define TSHARD_DEVICE_H

#include "tshard/base.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Element types. Differentiable functions take float32 and float64, and bfloat16 and float16, which are computed in
 * float32 and rounded once, to nearest even; ids are int64; tensors and collectives take all. Zero is float32, so that
 * a zeroed configuration means it. */
typedef enum tsh_dtype {
    TSH_FLOAT32 = 0,
    TSH_FLOAT64,
    TSH_BFLOAT16,
    TSH_FLOAT16,
    TSH_INT32,
    TSH_INT64,
    TSH_UINT8,
    TSH_COMPLEX64,
    TSH_COMPLEX128,
    TSH_DTYPE_COUNT
} tsh_dtype;

/* Bytes of one element; 0 for any other value. */
TSH_API size_t tsh_dtype_size(tsh_dtype dtype);
/* "float32", ...; "unknown dtype" for any other value. */
TSH_API const char *tsh_dtype_name(tsh_dtype dtype);

/* In a configuration, TSH_DEVICE_DEFAULT takes the value of TSHARD_DEVICE. */
typedef enum tsh_device_kind { TSH_DEVICE_DEFAULT = 0, TSH_CPU, TSH_CUDA } tsh_device_kind;

/* Memory, streams and kernels of one rank. Owned by its world (tsh_world_device). */
typedef struct tsh_device tsh_device;

/* Counters of a device's tensor memory. */
typedef struct tsh_memory_stats {
    uint64_t allocations; /* requests that could not reuse memory (0 in a steady-state step) */
    uint64_t requests;    /* requests for tensor memory */
    size_t bytes_in_use;  /* bytes of live buffers, each rounded up to a multiple of 64 */
    size_t bytes_peak;    /* the largest bytes_in_use so far */
} tsh_memory_stats;

/* The purpose of tensor memory. */
typedef enum tsh_memory_purpose {
    TSH_MEMORY_OTHER = 0,     /* the program's tensors, such as a batch */
    TSH_MEMORY_PARAMETERS,    /* leaves that want a gradient */
    TSH_MEMORY_GRADIENTS,     /* gradients of leaves, and the buckets that sum them */
    TSH_MEMORY_OPTIMIZER,     /* optimizer states */
    TSH_MEMORY_ACTIVATIONS,   /* results of functions, their gradients, saved tensors and scratch */
    TSH_MEMORY_COMMUNICATION, /* buffers of collectives and messages, and of the rendezvous */
    TSH_MEMORY_PURPOSE_COUNT
} tsh_memory_purpose;

/* "parameters", ...; "unknown purpose" for any other value. */
TSH_API const char *tsh_memory_purpose_name(tsh_memory_purpose purpose);

/* A device's tensor memory by purpose, and where in the program the peak was. */
typedef struct tsh_memory_use {
    size_t live[TSH_MEMORY_PURPOSE_COUNT];    /* bytes in use; their sum is bytes_in_use of tsh_memory_stats */
    size_t at_peak[TSH_MEMORY_PURPOSE_COUNT]; /* bytes at the peak; their sum is bytes_peak */
    char function[48];                        /* the function that ran at the peak; "": none */
    char layer[80]; /* the parameter used last before the peak, by its name in a list; "": none */
    bool backward;  /* the peak was in backward */
} tsh_memory_use;

/* Writes the libraries of this device's matrix products, "1 thread, oneDNN 2.6.3 for float32, OpenBLAS 0.3.21
 * (Haswell kernels) for float64", into text, always terminated (size > 0). Returns text. */
TSH_API char *tsh_device_describe(const tsh_device *device, char *text, size_t size);

/* The device's kind, and its memory counters. */
TSH_API tsh_device_kind tsh_device_kind_of(const tsh_device *device);
TSH_API tsh_memory_stats tsh_device_stats(const tsh_device *device);
/* The counters by purpose; zeros for NULL. */
TSH_API tsh_memory_use tsh_device_memory(const tsh_device *device);
/* Set bytes_peak to bytes_in_use. */
TSH_API void tsh_device_reset_peak(tsh_device *device);

/* Wait for all work that this rank has queued on the device; returns the first failure. A CPU queues nothing. */
TSH_API tsh_status tsh_device_synchronize(tsh_device *device);

/* The stream (cudaStream_t) on which the library queues its work on a GPU. A program launches its own kernels there,
 * and need not wait for them. NULL for a CPU. */
TSH_API void *tsh_device_stream(tsh_device *device);

/* A point in a device's queue of work, with the time at which the device reached it. The caller destroys it. */
typedef struct tsh_event tsh_event;
TSH_API tsh_status tsh_event_create(tsh_device *device, tsh_event **out);
/* Put the event behind all work queued so far. Does not wait. */
TSH_API tsh_status tsh_event_record(tsh_event *event);
/* Seconds from begin to end, both recorded on one device. Waits until the device has reached end. */
TSH_API tsh_status tsh_event_elapsed(tsh_event *begin, tsh_event *end, double *seconds);
TSH_API void tsh_event_destroy(tsh_event *event);

#ifdef __cplusplus
}
#endif

#endif
