/* A GPU behind tshi_device_ops: what its files share. Host code is C; kernels are in .cu files, whose launchers have
 * the slots' own signatures (kernels.h), so that the table holds them directly. */
#ifndef TSHI_CUDA_H
#define TSHI_CUDA_H

#include "device/device.h"
#include "tshard/graph.h"

#include <cuda_runtime_api.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The first wrong index that a kernel has met: pinned memory that the GPU writes and the host reads without waiting.
 * `found` goes from 0 to 1 last. */
typedef struct tshi_cuda_report {
    int32_t found;
    int32_t is_target; /* else an embedding's id */
    int64_t value, place, limit, ignore_index;
} tshi_cuda_report;

typedef struct tshi_cuda_memory tshi_cuda_memory;   /* memory.c: the caching allocator */
typedef struct tshi_cuda_sharing tshi_cuda_sharing; /* share.c: other ranks' memory */
typedef struct tshi_cuda_blas tshi_cuda_blas;       /* gemm.c: cuBLASLt's handle, workspace and chosen algorithms */

typedef struct tshi_cuda_device {
    tsh_device base;
    int ordinal, processors; /* of the GPU; its multiprocessors */
    bool managed;            /* TSHARD_CUDA_MANAGED=1: memory that the host may read, and every launch waited for */
    bool ipc;                /* not TSHARD_CUDA_IPC=0: other ranks may be given this memory in place */
    bool abandoned;          /* what has been shared stays when the device goes */
    bool tf32;               /* TSHARD_TF32=1: float32 products on the tensor cores */
    cudaStream_t compute, communication, copies;
    cudaEvent_t events[2]; /* between streams, without timing */
    tshi_cuda_report *report;
    tshi_cuda_memory *memory;
    tshi_cuda_sharing *sharing; /* from the first use on */
    tshi_cuda_blas *blas;
    tsh_graph *capturing;   /* what is queued goes into this graph instead of running; the host cannot wait meanwhile */
    const int64_t *replays; /* while capturing: in device memory, how often the graph has run before; else NULL */
    /* Called every now and then while the host waits for the GPU: communication that cannot finish is ended there. */
    void (*watch)(void *watcher);
    void *watcher;
    uint64_t waits;    /* times that the host has waited for the GPU */
    tsh_status failed; /* the first failure that check has not told, and its words */
    char words[TSHI_MESSAGE_SIZE];
} tshi_cuda_device;

struct tsh_graph {
    tshi_cuda_device *device;
    cudaGraphExec_t exec;
    struct tshi_cuda_pool *pool;
    int64_t *replays;  /* in device memory: launches that have run */
    tsh_status broken; /* what could not be captured */
    char words[TSHI_MESSAGE_SIZE];
};

static inline tshi_cuda_device *tshi_cuda(tsh_device *device) {
    return (tshi_cuda_device *)device;
}

static inline cudaStream_t tshi_cuda_stream(tsh_device *device) {
    return tshi_cuda(device)->compute;
}

/* "cudaMalloc: out of memory (2)" with `what` in front; TSH_ERR_MEMORY for that error, else TSH_ERR_SYSTEM. TSH_OK for
 * cudaSuccess. */
tsh_status tshi_cuda_fail(cudaError_t error, const char *what);
/* Keep a failure for check to tell; the first stands. Success is fine. */
void tshi_cuda_note(tsh_device *device, cudaError_t error, const char *what);
/* After every launch: notes what went wrong with it; waits where memory is managed. */
void tshi_cuda_launched(tsh_device *device, const char *what);
/* Wait until the compute stream has done all. False, and noted, where that fails or a graph is captured. */
bool tshi_cuda_wait(tsh_device *device, const char *what);
/* Wait for one event. */
cudaError_t tshi_cuda_wait_event(tshi_cuda_device *cuda, cudaEvent_t event);
/* Note that `what` is nothing that a graph can hold: TSH_ERR_STATE. */
void tshi_cuda_no_capture(tsh_device *device, const char *what);

/* --- event.c ------------------------------------------------------------------------------------------------------ */

tsh_status tshi_cuda_synchronize(tsh_device *device);
tsh_event *tshi_cuda_event_create(tsh_device *device);
tsh_status tshi_cuda_event_record(tsh_event *event);
tsh_status tshi_cuda_event_elapsed(tsh_event *begin, tsh_event *end, double *seconds);
void tshi_cuda_event_destroy(tsh_event *event);

/* --- memory.c ----------------------------------------------------------------------------------------------------- */

tsh_status tshi_cuda_memory_create(tshi_cuda_device *device);
void tshi_cuda_memory_destroy(tshi_cuda_device *device);
void *tshi_cuda_alloc(tsh_device *device, size_t size);
void *tshi_cuda_alloc_symmetric(tsh_device *device, size_t size, size_t *offset);
void tshi_cuda_release(tsh_device *device, void *pointer);
void tshi_cuda_copy(tsh_device *device, size_t bytes, const void *from, void *to);
void tshi_cuda_copy_to_host(tsh_device *device, size_t bytes, const void *from, void *to);
void tshi_cuda_copy_from_host(tsh_device *device, size_t bytes, const void *from, void *to);
void tshi_cuda_copy_strided(tsh_device *device, int64_t outer, size_t bytes, const void *from, size_t from_stride,
                            void *to, size_t to_stride);
void tshi_cuda_zero(tsh_device *device, size_t bytes, void *to);

/* What alloc_symmetric gives out, until it is taken away again: it stays the caller's. */
tsh_status tshi_cuda_symmetric_set(tshi_cuda_device *device, void *base, size_t size);
void tshi_cuda_symmetric_unset(tshi_cuda_device *device);

/* Blocks that are allocated between open and close belong to the graph that is captured: they go back to the others
 * when the pool is dropped. So do blocks of others that are released meanwhile. */
typedef struct tshi_cuda_pool tshi_cuda_pool;
tsh_status tshi_cuda_pool_open(tshi_cuda_device *device, tshi_cuda_pool **out);
void tshi_cuda_pool_close(tshi_cuda_device *device);
void tshi_cuda_pool_drop(tshi_cuda_device *device, tshi_cuda_pool *pool);

struct tshi_slab;
/* The slab that `pointer` lies in, or NULL. */
struct tshi_slab *tshi_cuda_slab(const tshi_cuda_device *device, const void *pointer);

/* --- share.c ------------------------------------------------------------------------------------------------------ */

tsh_status tshi_cuda_share(tsh_device *device, const void *pointer, tshi_share *out);
tsh_status tshi_cuda_reach(tsh_device *device, const tshi_share *share, void **out);
void tshi_cuda_unreach(tsh_device *device);
void tshi_cuda_abandon(tsh_device *device);
tsh_status tshi_cuda_settle(tsh_device *device);
void tshi_cuda_sharing_destroy(tshi_cuda_device *device);

/* --- gemm.c ------------------------------------------------------------------------------------------------------- */

tsh_status tshi_cuda_blas_create(tshi_cuda_device *device);
void tshi_cuda_blas_destroy(tshi_cuda_device *device);
void tshi_cuda_blas_describe(const tshi_cuda_device *device, char *text, size_t size);
tsh_status tshi_cuda_gemm(tsh_device *device, tsh_dtype dtype, bool transpose_a, bool transpose_b, int64_t m, int64_t n,
                          int64_t k, double alpha, const void *a, int64_t lda, const void *b, int64_t ldb, double beta,
                          void *c, int64_t ldc);
tsh_status tshi_cuda_affine(tsh_device *device, tsh_dtype dtype, int64_t m, int64_t n, int64_t k, const void *x,
                            const void *w, const void *b, tshi_unary f, void *pre, void *y);
tsh_status tshi_cuda_affine_backward(tsh_device *device, tsh_dtype dtype, int64_t m, int64_t n, int64_t k,
                                     const void *x, const void *dy, double beta, void *dw, double beta_b, void *db);

#ifdef __cplusplus
}
#endif

#endif
