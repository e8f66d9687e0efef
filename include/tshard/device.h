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

/* Bytes of one element; 0 for a value that is no dtype. */
TSH_API size_t tsh_dtype_size(tsh_dtype dtype);
/* "float32", ...; "unknown dtype" for a value that is no dtype. */
TSH_API const char *tsh_dtype_name(tsh_dtype dtype);

/* TSH_DEVICE_DEFAULT, in a configuration, takes the value of TSHARD_DEVICE. */
typedef enum tsh_device_kind { TSH_DEVICE_DEFAULT = 0, TSH_CPU, TSH_CUDA } tsh_device_kind;

/* Memory, streams and kernels of one rank. Owned by its world (tsh_world_device). */
typedef struct tsh_device tsh_device;

/* Counters of a device's tensor memory. */
typedef struct tsh_memory_stats {
    uint64_t allocations; /* requests that needed never-used memory (0 in a steady-state step) */
    uint64_t requests;    /* tensor buffers that were requested */
    size_t bytes_in_use;  /* bytes of live buffers, each rounded up to a multiple of 64 */
    size_t bytes_peak;    /* the largest bytes_in_use so far */
} tsh_memory_stats;

/* What tensor memory is for. */
typedef enum tsh_memory_purpose {
    TSH_MEMORY_OTHER = 0,     /* tensors of the program, such as a batch */
    TSH_MEMORY_PARAMETERS,    /* leaves that want a gradient */
    TSH_MEMORY_GRADIENTS,     /* of leaves, and the buckets that sum them */
    TSH_MEMORY_OPTIMIZER,     /* states of optimizers */
    TSH_MEMORY_ACTIVATIONS,   /* results of functions, their gradients, and what functions keep or need meanwhile */
    TSH_MEMORY_COMMUNICATION, /* buffers of collectives and messages, and what ranks share to find each other */
    TSH_MEMORY_PURPOSE_COUNT
} tsh_memory_purpose;

/* "parameters", ...; "unknown purpose" for a value that is none. */
TSH_API const char *tsh_memory_purpose_name(tsh_memory_purpose purpose);

/* A device's tensor memory by purpose, and where the program was when most of it was in use. */
typedef struct tsh_memory_use {
    size_t live[TSH_MEMORY_PURPOSE_COUNT];    /* bytes; they add up to bytes_in_use of tsh_memory_stats */
    size_t at_peak[TSH_MEMORY_PURPOSE_COUNT]; /* bytes when bytes_peak was reached; they add up to it */
    char function[48];                        /* that ran at the peak; "": none did */
    char layer[80]; /* the parameter that a function used last before the peak, by its name in a list; "": none */
    bool backward;  /* the peak was in a backward */
} tsh_memory_use;

/* The libraries of this device's matrix products: "1 BLAS thread, oneDNN 2.6.3 for float32, OpenBLAS 0.3.21 (Haswell
 * kernels) for float64", written into text, always terminated (size > 0). Returns text. */
TSH_API char *tsh_device_describe(const tsh_device *device, char *text, size_t size);

/* The device's kind, and its memory counters up to now. */
TSH_API tsh_device_kind tsh_device_kind_of(const tsh_device *device);
TSH_API tsh_memory_stats tsh_device_stats(const tsh_device *device);
/* The counters by purpose; zeros for NULL. */
TSH_API tsh_memory_use tsh_device_memory(const tsh_device *device);
/* Set bytes_peak to bytes_in_use. */
TSH_API void tsh_device_reset_peak(tsh_device *device);

/* Wait until all work that this rank has queued on the device has ended; returns its first failure. A CPU queues
 * nothing. */
TSH_API tsh_status tsh_device_synchronize(tsh_device *device);

/* The stream (cudaStream_t) in which a GPU runs the library's work in order, for kernels of a program's own: they are
 * launched there, and nothing waits for them. NULL for a CPU. */
TSH_API void *tsh_device_stream(tsh_device *device);

/* A point in the order of a device's work, with the time at which the device reached it. Owned by the caller. */
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
