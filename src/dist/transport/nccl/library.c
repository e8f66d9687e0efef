/* NCCL, opened when a program has GPUs: tshard loads without it. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "dist/transport/nccl/nccl.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

#ifndef TSHARD_NCCL_FOLDER
#define TSHARD_NCCL_FOLDER "/usr/local/cuda/lib64"
#endif

/* The first version with ncclCommSplit. */
#define OLDEST 21800

/* NCCL has threads that outlive a world: it is opened once in a process, and stays. */
static struct {
    pthread_once_t once;
    tsh_status status;
    char message[TSHI_MESSAGE_SIZE];
    tshi_nccl_library functions;
} process = {.once = PTHREAD_ONCE_INIT};

static tsh_status open_library(void) {
    tshi_nccl_library *f = &process.functions;
    const tshi_cuda_symbol symbols[] = {
        {"ncclGetVersion", &f->get_version, false},
        {"ncclGetUniqueId", &f->get_unique_id, false},
        {"ncclCommInitRankConfig", &f->comm_init_rank_config, false},
        {"ncclCommSplit", &f->comm_split, false},
        {"ncclCommFinalize", &f->comm_finalize, false},
        {"ncclCommDestroy", &f->comm_destroy, false},
        {"ncclCommAbort", &f->comm_abort, false},
        {"ncclCommGetAsyncError", &f->comm_get_async_error, false},
        {"ncclGetErrorString", &f->get_error_string, false},
        {"ncclGetLastError", &f->get_last_error, false},
        {"ncclAllReduce", &f->all_reduce, false},
        {"ncclReduce", &f->reduce, false},
        {"ncclBroadcast", &f->broadcast, false},
        {"ncclAllGather", &f->all_gather, false},
        {"ncclReduceScatter", &f->reduce_scatter, false},
        {"ncclSend", &f->send, false},
        {"ncclRecv", &f->recv, false},
        {"ncclGroupStart", &f->group_start, false},
        {"ncclGroupEnd", &f->group_end, false},
    };
    void *library;
    tsh_status status = tshi_cuda_library_open("libnccl.so.2", TSHARD_NCCL_FOLDER, symbols,
                                               (int)(sizeof symbols / sizeof *symbols), &library);
    if (status != TSH_OK) return status;
    if (f->get_version(&f->version) != ncclSuccess) {
        status = tshi_fail(TSH_ERR_UNSUPPORTED, "ncclGetVersion failed");
    } else if (f->version < OLDEST) {
        status = tshi_fail(TSH_ERR_UNSUPPORTED, "NCCL is %d.%d, but 2.18 or later is required", f->version / 10000,
                           f->version / 100 % 100);
    }
    if (status != TSH_OK) tshi_cuda_library_close(library);
    return status;
}

/* Several threads launch NCCL's operations in any order, which NCCL would report as a race. */
static void open_once(void) {
    setenv("NCCL_LAUNCH_RACE_FATAL", "0", 0);
    process.status = open_library();
    if (process.status != TSH_OK) snprintf(process.message, sizeof process.message, "%s", tsh_error_message());
}

tsh_status tshi_nccl_library_open(const tshi_nccl_library **out) {
    pthread_once(&process.once, open_once);
    *out = process.status == TSH_OK ? &process.functions : NULL;
    return process.status == TSH_OK ? TSH_OK : tshi_fail(process.status, "%s", process.message);
}
