/* A GPU, for a transport that queues its own work on it: streams, failures, captures, symmetric memory. The only header
 * of device/cuda that other folders include; cuda.h is for its own files. */
#ifndef TSHI_CUDA_STREAM_H
#define TSHI_CUDA_STREAM_H

#include "device/device.h"

#include <cuda_runtime_api.h>

#ifdef __cplusplus
extern "C" {
#endif

#define TSHI_CUDA_COMMUNICATIONS 4
#define TSHI_CUDA_KERNELS        4096 /* 2^12, many more than a program uses */

typedef struct tshi_cuda_device {
    tsh_device base;
    int ordinal, processors; /* the GPU's number, and its count of multiprocessors */
    bool cached;             /* TSHARD_CUDA_CACHE; false: every block is a cudaMalloc of its own */
    bool managed;            /* TSHARD_CUDA_MANAGED=1: managed memory; the host waits after every launch */
    cudaStream_t compute;
    /* Communication streams run concurrently with `compute`; the first always exists, others once a group uses them. */
    cudaStream_t communication[TSHI_CUDA_COMMUNICATIONS];
    struct tshi_cuda_graph *capturing; /* the graph under capture, or NULL; the host cannot wait during a capture */
    uint64_t captures;                 /* captures begun so far */
    /* Called repeatedly while the host waits for the GPU: aborts communication that cannot finish. NULL: no watch. */
    void (*watch)(void *watcher);
    /* Launches a graph that holds work of an owner, as a call that the watch knows of. NULL: such a graph is launched
     * like any other. */
    tsh_status (*launch)(void *watcher, cudaGraphExec_t exec);
    /* Waits, watched, until the watcher's own streams are empty. */
    void (*drain)(void *watcher);
    /* Queues work that the watcher has held back. Called where a capture begins or ends, and before a launch. */
    void (*submit)(void *watcher);
    void *watcher;
    uint64_t waits;    /* times that the host has waited for the GPU */
    tsh_status failed; /* the first failure that check has not returned yet, and its message */
    char message[TSHI_MESSAGE_SIZE];

    /* --- private to device/cuda --- */
    bool ipc;              /* TSHARD_CUDA_IPC: other ranks may map this memory */
    bool keeps_shared;     /* shared memory is not freed when the device is destroyed */
    bool tf32;             /* TSHARD_TF32=1: float32 products on the tensor cores */
    cudaEvent_t events[2]; /* to order streams, without timing */
    struct tshi_cuda_report *report;
    struct tshi_cuda_memory *memory;
    struct tshi_cuda_staging *staging;
    struct tshi_cuda_sharing *sharing; /* NULL before the first use */
    struct tshi_cuda_offload *offload; /* NULL before the first use */
    struct tshi_cuda_blas *blas;
    struct tshi_cuda_dnn *dnn; /* NULL: TSHARD_CUDNN=0 */
    bool loads_at_once;        /* CUDA_MODULE_LOADING=EAGER: CUDA loads all kernels when it initializes */
    const void **loaded;       /* [TSHI_CUDA_KERNELS] kernels that have been launched, by hash; NULL before the first */
    struct tshi_cuda_graph *graphs;
    const int64_t *replays; /* during a capture: the graph's count of completed launches, in device memory; else NULL */
} tshi_cuda_device;

static inline tshi_cuda_device *tshi_cuda(tsh_device *device) {
    return (tshi_cuda_device *)device;
}

/* The number of the current capture, from 1; 0: no graph is captured. */
static inline uint64_t tshi_cuda_capture(const tshi_cuda_device *device) {
    return device->capturing ? device->captures : 0;
}

/* cudaSetDevice to the device's GPU: events, streams, memory and kernels belong to the thread's current GPU. The
 * program may have made another GPU current, or call from a new thread, whose current GPU is 0. */
void tshi_cuda_use(const tshi_cuda_device *device);

static inline cudaStream_t tshi_cuda_stream(tsh_device *device) {
    tshi_cuda_use(tshi_cuda(device));
    return tshi_cuda(device)->compute;
}

/* Sets "WHAT: out of memory (2)" and returns TSH_ERR_MEMORY for that error, else TSH_ERR_SYSTEM. TSH_OK for
 * cudaSuccess. */
tsh_status tshi_cuda_fail(cudaError_t error, const char *what);
/* An event without timing. */
tsh_status tshi_cuda_event_new(cudaEvent_t *out);
/* A non-blocking stream. first: of the highest priority, else the lowest. */
tsh_status tshi_cuda_stream_new(cudaStream_t *out, bool first);
/* The pause between two polls, after `looks` polls: yields at first, then sleeps, later for longer. So a short wait
 * ends soon, and a wait of seconds takes little of a core. */
void tshi_cuda_nap(int looks);
#define TSHI_CUDA_SPINS 2000 /* polls before the first sleep */
/* Creates the i-th communication stream if it does not exist. */
tsh_status tshi_cuda_communication_open(tshi_cuda_device *device, int i);
/* Makes later work on the compute stream wait for all work queued so far on the i-th communication stream. */
cudaError_t tshi_cuda_communication_join(tshi_cuda_device *device, int i);
/* Waits until all communication streams are empty, without a watch. */
cudaError_t tshi_cuda_communication_wait(const tshi_cuda_device *device);
/* Keeps a failure, with tsh_error_message(), for check and for the graph under capture. Only the first is kept. */
void tshi_cuda_record_status(tshi_cuda_device *device, tsh_status status);
/* Keeps TSH_ERR_STATE in the same way: `what` cannot be captured. */
void tshi_cuda_no_capture(tsh_device *device, const char *what);

/* Notes that the graph under capture holds work of `owner`, which must end the graph (below) before it is destroyed. */
void tshi_cuda_graph_hold(tshi_cuda_device *device, const void *owner);
/* Ends all graphs that hold work of `owner` (NULL: of any owner): frees their executables, and later launches return
 * `status` with `words`. Launches in flight continue. The graph under capture cannot be freed: capture_end returns
 * `status` and calls the watch. True if this one holds work of `owner`. */
bool tshi_cuda_graphs_end(tshi_cuda_device *device, const void *owner, tsh_status status, const char *words);

/* A function of a library that is loaded only in programs that use GPUs. */
typedef struct tshi_cuda_symbol {
    const char *name;
    void *function; /* the address of a pointer to the function; a missing optional one becomes NULL */
    bool optional;
} tshi_cuda_symbol;

/* TSH_ERR_UNSUPPORTED, with the loader's message, if the library or a function is missing. */
tsh_status tshi_cuda_library_open(const char *name, const char *folder, const tshi_cuda_symbol *symbols, int count,
                                  void **out);
void tshi_cuda_library_close(void *library);

#ifdef __cplusplus
}
#endif

#endif
