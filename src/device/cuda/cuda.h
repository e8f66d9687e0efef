/* Declarations shared by the files of device/cuda. Host code is C. Kernels are in .cu files, whose launchers have the
 * function types of device/kernels.h, so the device's table points to them directly. */
#ifndef TSHI_CUDA_H
#define TSHI_CUDA_H

#include "device/cuda/stream.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The first out-of-range index that a kernel has found, in pinned memory: the GPU writes it, and the host reads it
 * without waiting. The GPU sets `found` from 0 to 1 last. */
typedef struct tshi_cuda_report {
    int32_t found;
    int32_t is_target; /* a class target; else an embedding's id */
    int64_t value, index, limit, ignore_index;
} tshi_cuda_report;

/* --- stream.c ----------------------------------------------------------------------------------------------------- */

/* Keeps a failure for check; later failures do not replace it. Does nothing for cudaSuccess. */
void tshi_cuda_record_error(tsh_device *device, cudaError_t error, const char *what);
/* Called before every launch of a kernel. The first launch may load the kernel, for which the driver waits until the
 * GPU is idle: so this waits first, watched (tshi_cuda_wait_idle). */
void tshi_cuda_load(tsh_device *device, const void *kernel);
/* Called after every launch: keeps its failure; waits for it if memory is managed. */
void tshi_cuda_launched(tsh_device *device, const char *what);
/* Waits until the compute stream is empty. False, with the failure kept for check, if that fails or during a
 * capture. */
bool tshi_cuda_wait(tsh_device *device, const char *what);
/* Waits, watched, until the GPU is idle. Called before a call in which the driver waits for that itself, where no watch
 * could abort a collective whose peer is lost. Does nothing during a capture or without a watch. */
void tshi_cuda_wait_idle(tshi_cuda_device *device, const char *what);
/* Waits, watched, for one event. */
cudaError_t tshi_cuda_wait_event(tshi_cuda_device *cuda, cudaEvent_t event);
/* tshi_device_ops.check and .synchronize. */
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

/* Owners that a graph lists. A graph with more owners is taken to hold work of every owner. */
#define TSHI_CUDA_OWNERS 8

/* Captured work; graph.c. */
typedef struct tshi_cuda_graph {
    tsh_graph base;
    cudaGraphExec_t exec; /* NULL: the graph can no longer be launched */
    const void *owners[TSHI_CUDA_OWNERS];
    int owner_count;
    struct tshi_cuda_pool *pool;
    int64_t *replays; /* in device memory: completed launches */
    /* Why the graph is unusable: a call that could not be captured failed, or an owner ended the graph; the message. */
    tsh_status broken;
    char message[TSHI_MESSAGE_SIZE];
    struct tshi_cuda_graph *next;
} tshi_cuda_graph;

/* --- memory/cache.c ---------------------------------------------------------------------------------------------- */

tsh_status tshi_cuda_memory_create(tshi_cuda_device *device);
void tshi_cuda_memory_destroy(tshi_cuda_device *device);
void *tshi_cuda_alloc(tsh_device *device, size_t size);
void tshi_cuda_release(tsh_device *device, void *pointer);
tshi_slab_block *tshi_cuda_find(tsh_device *device, const void *pointer);

/* The memory pool of a captured graph. Blocks allocated between open and close belong to it until it is dropped. Blocks
 * of other pools that are released in between also stay reserved until then, as the graph may use them. */
typedef struct tshi_cuda_pool tshi_cuda_pool;
tsh_status tshi_cuda_pool_open(tshi_cuda_device *device, tshi_cuda_pool **out);
void tshi_cuda_pool_close(tshi_cuda_device *device);
void tshi_cuda_pool_drop(tshi_cuda_device *device, tshi_cuda_pool *pool);

struct tshi_slab;
/* The slab that contains `pointer`, or NULL. */
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
tshi_gemm_batch_fn tshi_cuda_gemm_batch;
tshi_affine_fn tshi_cuda_affine;
tshi_affine_backward_fn tshi_cuda_affine_backward;
tshi_gemm_unary_backward_fn tshi_cuda_gemm_unary_backward;

/* --- cudnn/attention.c -------------------------------------------------------------------------------------------- */

/* With TSHARD_CUDNN=0 create does nothing, and the others take no call. */
tsh_status tshi_cuda_dnn_create(tshi_cuda_device *device);
void tshi_cuda_dnn_destroy(tshi_cuda_device *device);
/* ", cuDNN 9.19.0", or "" if it has not been used. */
void tshi_cuda_dnn_describe(const tshi_cuda_device *device, char *text, size_t size);
/* tshi_attention_fn and tshi_attention_backward_fn by cuDNN. False: cuDNN does not take the call, and nothing is
 * queued. */
bool tshi_cuda_dnn_forward(tsh_device *device, tsh_dtype dtype, const tshi_attention *a, const void *q, const void *k,
                           const void *v, void *y, void *log_sums);
bool tshi_cuda_dnn_backward(tsh_device *device, tsh_dtype dtype, const tshi_attention *a, const void *q, const void *k,
                            const void *v, const void *y, const void *log_sums, const void *dy,
                            const tshi_attention_grads *g, void *delta);

#ifdef __cplusplus
}
#endif

#endif
