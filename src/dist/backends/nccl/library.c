/* NCCL, opened when a program uses GPUs, so that tshard loads without it. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "dist/backends/nccl/nccl.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>

/* Its path when tshard was built, for a loader whose own paths lack it. */
#ifndef TSHARD_NCCL_FOLDER
#define TSHARD_NCCL_FOLDER "/usr/local/cuda/lib64"
#endif

/* The first version with ncclCommSplit. */
#define OLDEST 21800

typedef struct symbol {
    const char *name;
    void **place;
} symbol;

/* The library is the process's and stays open, because NCCL has threads that may outlive a world. */
static struct {
    pthread_once_t once;
    tsh_status status;
    char words[TSHI_MESSAGE_SIZE];
    tshi_nccl_library functions;
} process = {.once = PTHREAD_ONCE_INIT};

static tsh_status find(void *library) {
    tshi_nccl_library *f = &process.functions;
    const symbol symbols[] = {
        {"ncclGetVersion", (void **)&f->get_version},
        {"ncclGetUniqueId", (void **)&f->get_unique_id},
        {"ncclCommInitRankConfig", (void **)&f->comm_init_rank_config},
        {"ncclCommSplit", (void **)&f->comm_split},
        {"ncclCommFinalize", (void **)&f->comm_finalize},
        {"ncclCommDestroy", (void **)&f->comm_destroy},
        {"ncclCommAbort", (void **)&f->comm_abort},
        {"ncclCommGetAsyncError", (void **)&f->comm_get_async_error},
        {"ncclGetErrorString", (void **)&f->get_error_string},
        {"ncclGetLastError", (void **)&f->get_last_error},
        {"ncclAllReduce", (void **)&f->all_reduce},
        {"ncclReduce", (void **)&f->reduce},
        {"ncclBroadcast", (void **)&f->broadcast},
        {"ncclAllGather", (void **)&f->all_gather},
        {"ncclReduceScatter", (void **)&f->reduce_scatter},
        {"ncclSend", (void **)&f->send},
        {"ncclRecv", (void **)&f->recv},
        {"ncclGroupStart", (void **)&f->group_start},
        {"ncclGroupEnd", (void **)&f->group_end},
        /* An older library lacks these functions, and is usable without them. */
        {"ncclMemAlloc", (void **)&f->mem_alloc},
        {"ncclMemFree", (void **)&f->mem_free},
        {"ncclCommWindowRegister", (void **)&f->window_register},
        {"ncclCommWindowDeregister", (void **)&f->window_deregister},
    };
    const size_t count = sizeof symbols / sizeof *symbols, required = count - 4;
    for (size_t i = 0; i < count; i++) {
        *symbols[i].place = dlsym(library, symbols[i].name);
        if (i < required && !*symbols[i].place)
            return tshi_fail(TSH_ERR_UNSUPPORTED, "libnccl.so.2 has no %s", symbols[i].name);
    }
    if (f->get_version(&f->version) != ncclSuccess) return tshi_fail(TSH_ERR_UNSUPPORTED, "ncclGetVersion failed");
    if (f->version >= OLDEST) return TSH_OK;
    return tshi_fail(TSH_ERR_UNSUPPORTED, "NCCL is %d.%d, and at least 2.18 is wanted", f->version / 10000,
                     f->version / 100 % 100);
}

static void open_once(void) {
    void *library = dlopen("libnccl.so.2", RTLD_NOW | RTLD_LOCAL);
    char why[TSHI_LINE] = "";
    if (!library) snprintf(why, sizeof why, "%s", dlerror());
    if (!library) library = dlopen(TSHARD_NCCL_FOLDER "/libnccl.so.2", RTLD_NOW | RTLD_LOCAL);
    process.status = library ? find(library) : tshi_fail(TSH_ERR_UNSUPPORTED, "no NCCL: %s", why);
    if (process.status == TSH_OK) return;
    snprintf(process.words, sizeof process.words, "%s", tsh_error_message());
    if (library) dlclose(library);
}

tsh_status tshi_nccl_library_open(const tshi_nccl_library **out) {
    pthread_once(&process.once, open_once);
    *out = process.status == TSH_OK ? &process.functions : NULL;
    return process.status == TSH_OK ? TSH_OK : tshi_fail(process.status, "%s", process.words);
}
