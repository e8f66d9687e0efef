/* A GPU as a backend that queues work of its own on it sees it: streams, failures, captures, symmetric memory. The one
 * header of device/cuda for other rooms; cuda.h has what its own files share. */
#ifndef TSHI_CUDA_STREAM_H
#define TSHI_CUDA_STREAM_H

#include "device/device.h"

#include <cuda_runtime_api.h>

#ifdef __cplusplus
extern "C" {
#endif

#define TSHI_CUDA_COMMUNICATIONS 4
#define TSHI_CUDA_KERNELS        4096 /* 2^12, many times the kernels that a program uses */

typedef struct tshi_cuda_device {
    tsh_device base;
    int ordinal, processors; /* of the GPU; its multiprocessors */
    bool cached;             /* TSHARD_CUDA_CACHE; without it every block is an allocation of CUDA's */
    bool managed;            /* TSHARD_CUDA_MANAGED=1: memory that the host may read, and every launch waited for */
    cudaStream_t compute;
    /* Streams of communication run beside `compute`; the first exists always, each other one once a group takes it. */
    cudaStream_t communication[TSHI_CUDA_COMMUNICATIONS];
    struct tshi_cuda_graph *capturing; /* work that is queued goes into this graph instead of running; the host cannot
                                        * wait meanwhile */
    uint64_t captures;                 /* that have begun */
    /* Called every now and then while the host waits for the GPU: it ends communication that cannot finish. */
    void (*watch)(void *watcher);
    /* Launches a graph that holds work of an owner, as a call that the watch sees. Where it is NULL the device launches
     * such a graph like any graph. */
    tsh_status (*launch)(void *watcher, cudaGraphExec_t exec);
    /* Waits, watched, for what has been queued on streams that only the watcher knows. */
    void (*drain)(void *watcher);
    void *watcher;
    uint64_t waits;    /* times that the host has waited for the GPU */
    tsh_status failed; /* the first failure that no check has returned yet, and its message */
    char message[TSHI_MESSAGE_SIZE];

    /* --- for device/cuda alone --- */
    bool ipc;              /* not TSHARD_CUDA_IPC=0: other ranks may map this memory */
    bool keeps_shared;     /* memory that has been shared stays when the device is destroyed */
    bool tf32;             /* TSHARD_TF32=1: float32 products on the tensor cores */
    cudaEvent_t events[2]; /* between streams, without timing */
    struct tshi_cuda_report *report;
    struct tshi_cuda_memory *memory;
    struct tshi_cuda_staging *staging;
    struct tshi_cuda_sharing *sharing; /* from the first use on */
    struct tshi_cuda_offload *offload; /* from the first use on */
    struct tshi_cuda_blas *blas;
    struct tshi_cuda_dnn *dnn; /* or NULL */
    bool loads_at_once;        /* CUDA_MODULE_LOADING=EAGER: every kernel is loaded when CUDA starts */
    const void **loaded;       /* [TSHI_CUDA_KERNELS] kernels that have been launched, by hash; NULL before the first */
    struct tshi_cuda_graph *graphs;
    const int64_t *replays; /* while capturing: in device memory, how often the graph has run before; else NULL */
} tshi_cuda_device;

static inline tshi_cuda_device *tshi_cuda(tsh_device *device) {
    return (tshi_cuda_device *)device;
}

/* The number of the capture that goes on; 0: none does. */
static inline uint64_t tshi_cuda_capture(const tshi_cuda_device *device) {
    return device->capturing ? device->captures : 0;
}

/* Makes the device's GPU the calling thread's current one: new events, streams, memory and kernels are the current
 * GPU's. The program may have made another one current, or call from a new thread, which has the first. */
void tshi_cuda_use(const tshi_cuda_device *device);

static inline cudaStream_t tshi_cuda_stream(tsh_device *device) {
    tshi_cuda_use(tshi_cuda(device));
    return tshi_cuda(device)->compute;
}

/* "cudaMalloc: out of memory (2)" with `what` in front; TSH_ERR_MEMORY for that error, else TSH_ERR_SYSTEM. TSH_OK for
 * cudaSuccess. */
tsh_status tshi_cuda_fail(cudaError_t error, const char *what);
/* An event without timing. */
tsh_status tshi_cuda_event_new(cudaEvent_t *out);
/* A stream that runs beside the compute stream; `first`: its work runs before that of other streams that have work. */
tsh_status tshi_cuda_stream_new(cudaStream_t *out, bool first);
/* Between two looks at what a host waits for, of which there were `looks` before: lets other threads run, then sleeps,
 * longer after a while. The end of a call or of a step is seen soon, and a wait of seconds takes little of a core. */
void tshi_cuda_nap(int looks);
#define TSHI_CUDA_SPINS 2000 /* looks without a sleep */
/* Makes the i-th of the communication streams, if there is none. */
tsh_status tshi_cuda_communication_open(tshi_cuda_device *device, int i);
/* What the compute stream is given from now on waits for all that the i-th has been given. */
cudaError_t tshi_cuda_communication_join(tshi_cuda_device *device, int i);
/* Waits until all of them are empty, without a watch. */
cudaError_t tshi_cuda_communication_wait(const tshi_cuda_device *device);
/* Keep this failure, with tsh_error_message(), for check and for the capture; the first one stands. */
void tshi_cuda_keep(tshi_cuda_device *device, tsh_status status);
/* Keep TSH_ERR_STATE for check and for the capture: no graph can hold `what`. */
void tshi_cuda_no_capture(tsh_device *device, const char *what);

/* The graph that is captured holds work of `owner`, which ends the graph before it goes itself. */
void tshi_cuda_graph_hold(tshi_cuda_device *device, const void *owner);
/* Frees what the graphs that hold work of `owner` (NULL: of any) would run: to launch one returns `status` with
 * `words`. What has been launched goes on. Of the one that is captured nothing can be freed: its end returns `status`
 * and calls the watch. True where this one holds work of `owner`. */
bool tshi_cuda_graphs_end(tshi_cuda_device *device, const void *owner, tsh_status status, const char *words);

/* A function of a library that is opened when a program has GPUs; tshard loads without it. */
typedef struct tshi_cuda_symbol {
    const char *name;
    void *function; /* the address of a pointer to the function; a missing optional one becomes NULL */
    bool optional;
} tshi_cuda_symbol;

/* TSH_ERR_UNSUPPORTED, with the loader's message, where the library is missing or lacks a function. */
tsh_status tshi_cuda_library_open(const char *name, const char *folder, const tshi_cuda_symbol *symbols, int count,
                                  void **out);
void tshi_cuda_library_close(void *library);

/* The memory that alloc_symmetric hands out, until it is taken away again; it stays the caller's. */
tsh_status tshi_cuda_symmetric_set(tshi_cuda_device *device, void *base, size_t size);
void tshi_cuda_symmetric_unset(tshi_cuda_device *device);

#ifdef __cplusplus
}
#endif

#endif
