/* device: element types, and where tensors live.
 *
 * Thread safety: tsh_dtype_size and tsh_dtype_name are any thread's, at any time, and tsh_device_kind_of while the
 * world lives. The counters are the world's thread's. */
#ifndef TSHARD_DEVICE_H
#define TSHARD_DEVICE_H

#include "tshard/base.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Differentiable functions take float32 and float64, and on a GPU bfloat16 and float16 too, which are computed with in
 * float32 and rounded once; ids are int64; tensors and collectives take all.
 * Zero is float32, so that a zeroed configuration means it. */
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

/* Zero, in a configuration, leaves it to TSHARD_DEVICE. */
typedef enum tsh_device_kind { TSH_DEVICE_DEFAULT = 0, TSH_CPU, TSH_CUDA } tsh_device_kind;

/* Memory, streams and kernels of one rank. Owned by its world (tsh_world_device). */
typedef struct tsh_device tsh_device;

/* allocations: times that memory was taken which no earlier tensor had used (0 in a steady-state step);
 * requests: tensor buffers asked for; bytes_in_use, bytes_peak: of live buffers, rounded to 64 each. */
typedef struct tsh_memory_stats {
    uint64_t allocations;
    uint64_t requests;
    size_t bytes_in_use;
    size_t bytes_peak;
} tsh_memory_stats;

/* What multiplies matrices here: "1 BLAS thread, oneDNN 2.6.3 for float32, OpenBLAS 0.3.21 (Haswell kernels) for
 * float64". Into text, always terminated (size > 0); returns text. */
TSH_API char *tsh_device_describe(const tsh_device *device, char *text, size_t size);

/* What it is, and its counters up to now. */
TSH_API tsh_device_kind tsh_device_kind_of(const tsh_device *device);
TSH_API tsh_memory_stats tsh_device_stats(const tsh_device *device);
/* bytes_peak starts again from bytes_in_use. */
TSH_API void tsh_device_reset_peak(tsh_device *device);

/* Wait until all that this rank has queued on the device is done; what went wrong there. A CPU has nothing queued. */
TSH_API tsh_status tsh_device_synchronize(tsh_device *device);

/* A point in the order of a device's work, and when that was reached: for measuring. Owned by the caller. */
typedef struct tsh_event tsh_event;
TSH_API tsh_status tsh_event_create(tsh_device *device, tsh_event **out);
/* The point is behind all that is queued so far. Does not wait. */
TSH_API tsh_status tsh_event_record(tsh_event *event);
/* Seconds from begin to end, both recorded on one device. Waits until end is reached. */
TSH_API tsh_status tsh_event_elapsed(tsh_event *begin, tsh_event *end, double *seconds);
TSH_API void tsh_event_destroy(tsh_event *event);

#ifdef __cplusplus
}
#endif

#endif
