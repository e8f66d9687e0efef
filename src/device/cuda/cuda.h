/* What the files of a GPU's device share. Host code is C; kernels are in .cu files, whose launchers have the types of
 * device/kernels.h, so that the table holds them directly. */
#ifndef TSHI_CUDA_H
#define TSHI_CUDA_H

#include "device/cuda/stream.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The first wrong index that a kernel has found: pinned memory that the GPU writes and the host reads without waiting.
 * `found` goes from 0 to 1 last. */
typedef struct tshi_cuda_report {
    int32_t found;
    int32_t is_target; /* else an embedding's id */
    int64_t value, index, limit, ignore_index;
} tshi_cuda_report;

/* --- stream.c ----------------------------------------------------------------------------------------------------- */

/* Keep a failure for check; the first one stands. cudaSuccess is fine. */
void tshi_cuda_note(tsh_device *device, cudaError_t error, const char *what);
/* Before every launch of a kernel: its first one may load it, for which the driver waits until the GPU has nothing to
 * do. `quiet` has waited by then. */
void tshi_cuda_load(tsh_device *device, const void *kernel);
/* After every launch: notes a failure of it; waits where memory is managed. */
void tshi_cuda_launched(tsh_device *device, const char *what);
/* Wait until the compute stream is empty. False, and noted, where that fails or a graph is captured. */
bool tshi_cuda_wait(tsh_device *device, const char *what);
/* Waits, watched, until the GPU has nothing to do: before a call that waits for all of it in the driver, where no watch
 * could end what waits for a lost peer. Not while a graph is captured, nor without a watch. */
void tshi_cuda_quiet(tshi_cuda_device *device, const char *what);
/* Wait for one event. */
cudaError_t tshi_cuda_wait_event(tshi_cuda_device *cuda, cudaEvent_t event);
/* The device's slots of these names. */
tsh_status tshi_cuda_check(tsh_device *device);
tsh_status tshi_cuda_synchronize(tsh_device *device);

/* --- tables of functions ------------------------------------------------------------------------------------------ */

extern const tshi_event_ops tshi_cuda_event_ops; /* event.c */
extern const tshi_graph_ops tshi_cuda_graph_ops;
extern const tshi_range_ops tshi_cuda_range_ops;     /* ranges.c */
extern const tshi_sharing_ops tshi_cuda_sharing_ops; /* memory/sharing.c */
void tshi_cuda_sharing_destroy(tshi_cuda_device *device);
extern const tshi_offload_ops tshi_cuda_offload_ops; /* memory/offload.c */
void tshi_cuda_offload_destroy(tshi_cuda_device *device);

/* Owners that a graph remembers; a graph that holds work of more owners counts as one that holds work of any. */
#define TSHI_CUDA_OWNERS 8

/* Captured work; graph.c. */
typedef struct tshi_cuda_graph {
    tsh_graph base;
    cudaGraphExec_t exec; /* NULL: it cannot be launched any more */
    const void *owners[TSHI_CUDA_OWNERS];
    int owner_count;
    struct tshi_cuda_pool *pool;
    int64_t *replays; /* in device memory: launches that have run */
    /* The failure of a call that could not be captured, or what has ended the graph, and its message. */
    tsh_status broken;
    char message[TSHI_MESSAGE_SIZE];
    struct tshi_cuda_graph *next;
} tshi_cuda_graph;

/* --- memory/cache.c ---------------------------------------------------------------------------------------------- */

tsh_status tshi_cuda_memory_create(tshi_cuda_device *device);
void tshi_cuda_memory_destroy(tshi_cuda_device *device);
void *tshi_cuda_alloc(tsh_device *device, size_t size);
void *tshi_cuda_alloc_symmetric(tsh_device *device, size_t size, size_t *offset);
void tshi_cuda_release(tsh_device *device, void *pointer);
tshi_slab_block *tshi_cuda_find(tsh_device *device, const void *pointer);

/* Blocks that are allocated between open and close belong to the graph that is captured: they are free for other work
 * when the pool is dropped. So are other blocks that are released meanwhile. */
typedef struct tshi_cuda_pool tshi_cuda_pool;
tsh_status tshi_cuda_pool_open(tshi_cuda_device *device, tshi_cuda_pool **out);
void tshi_cuda_pool_close(tshi_cuda_device *device);
void tshi_cuda_pool_drop(tshi_cuda_device *device, tshi_cuda_pool *pool);

struct tshi_slab;
/* The slab that `pointer` lies in, or NULL. */
struct tshi_slab *tshi_cuda_slab(const tshi_cuda_device *device, const void *pointer);

/* --- memory/copies.c ---------------------------------------------------------------------------------------------- */

tsh_status tshi_cuda_staging_create(tshi_cuda_device *device);
void tshi_cuda_staging_destroy(tshi_cuda_device *device);
tshi_copy_fn tshi_cuda_copy;
tshi_copy_fn tshi_cuda_copy_to_host;
tshi_copy_fn tshi_cuda_copy_from_host;
tshi_copy_strided_fn tshi_cuda_copy_strided;
tshi_zero_fn tshi_cuda_zero;

/* --- gemm.c ------------------------------------------------------------------------------------------------------- */

tsh_status tshi_cuda_blas_create(tshi_cuda_device *device);
void tshi_cuda_blas_destroy(tshi_cuda_device *device);
void tshi_cuda_blas_describe(const tshi_cuda_device *device, char *text, size_t size);
tshi_gemm_fn tshi_cuda_gemm;
tshi_affine_fn tshi_cuda_affine;
tshi_affine_backward_fn tshi_cuda_affine_backward;
tshi_gemm_unary_backward_fn tshi_cuda_gemm_unary_backward;

/* --- cudnn/attention.c -------------------------------------------------------------------------------------------- */

/* Where TSHARD_CUDNN is off the device has none of this, and takes no call. */
tsh_status tshi_cuda_dnn_create(tshi_cuda_device *device);
void tshi_cuda_dnn_destroy(tshi_cuda_device *device);
/* ", cuDNN 9.19.0"; nothing where it has not been used. */
void tshi_cuda_dnn_describe(const tshi_cuda_device *device, char *text, size_t size);
/* tshi_attention_fn and tshi_attention_backward_fn, where cuDNN takes the call. False: nothing has been done. */
bool tshi_cuda_dnn_forward(tsh_device *device, tsh_dtype dtype, const tshi_attention *a, const void *q, const void *k,
                           const void *v, void *y, void *log_sums);
bool tshi_cuda_dnn_backward(tsh_device *device, tsh_dtype dtype, const tshi_attention *a, const void *q, const void *k,
                            const void *v, const void *y, const void *log_sums, const void *dy,
                            const tshi_attention_grads *g, void *delta);

#ifdef __cplusplus
}
#endif

#endif
