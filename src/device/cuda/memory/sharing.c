/* GPU memory shared between ranks of one machine: by CUDA IPC between processes, by address within a process, with peer
 * access between GPUs.
 *
 * The unit of sharing is a slab: it gets one handle, and each other rank maps it once. Invariant: a shared slab is
 * freed only with its device, because other ranks have it mapped until they leave. */
#include "base/clock.h"
#include "device/cuda/cuda.h"
#include "device/slabs.h"

#include <assert.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* The handle by which other ranks map a slab. */
typedef struct slab_handle {
    cudaIpcMemHandle_t handle;
    uint64_t born;
} slab_handle;

/* Another rank's slab, mapped in this process. */
typedef struct mapping {
    uint64_t process, base, born;
    char *here;
    bool opened; /* by CUDA IPC: it has to be closed */
    struct mapping *next;
} mapping;

typedef struct tshi_cuda_sharing {
    char gpu[sizeof((tshi_share *)0)->gpu];
    uint64_t process;
    mapping *mappings; /* the most recently used first */
} tshi_cuda_sharing;

static_assert(sizeof(cudaIpcMemHandle_t) == sizeof((tshi_share *)0)->handle, "a share holds CUDA's handle");

/* --- this process and its GPU ------------------------------------------------------------------------------------- */

/* The PID and its namespace, in one number. */
static uint64_t this_process(void) {
    struct stat space;
    uint64_t number_space = stat("/proc/self/ns/pid", &space) == 0 ? (uint64_t)space.st_ino : 0;
    return number_space << 32 | (uint32_t)getpid();
}

static tsh_status sharing_open(tshi_cuda_device *cuda) {
    if (cuda->sharing) return TSH_OK;
    const tsh_allocator *allocator = &cuda->base.allocator;
    tshi_cuda_sharing *sharing = tshi_calloc(allocator, 1, sizeof *sharing);
    if (!sharing) return TSH_ERR_MEMORY;
    tsh_status status = tshi_cuda_fail(cudaDeviceGetPCIBusId(sharing->gpu, sizeof sharing->gpu, cuda->ordinal),
                                       "cudaDeviceGetPCIBusId");
    if (status != TSH_OK) {
        tshi_free(allocator, sharing);
        return status;
    }
    sharing->process = this_process();
    cuda->sharing = sharing;
    return TSH_OK;
}

/* Returns an error for the caller to report, and clears it, as the next launch would report it again. */
static tsh_status refused(cudaError_t error, const char *what) {
    if (error == cudaSuccess) return TSH_OK;
    cudaGetLastError();
    return tshi_fail(TSH_ERR_UNSUPPORTED, "%s: %s (%d)", what, cudaGetErrorString(error), (int)error);
}

/* --- sharing a slab ----------------------------------------------------------------------------------------------- */

static tsh_status make_handle(tshi_cuda_device *cuda, tshi_slab *slab) {
    slab_handle *handle = tshi_calloc(&cuda->base.allocator, 1, sizeof *handle);
    if (!handle) return TSH_ERR_MEMORY;
    tsh_status status = TSH_OK;
    tshi_cuda_use(cuda);
    if (!cuda->managed) status = refused(cudaIpcGetMemHandle(&handle->handle, slab->base), "cudaIpcGetMemHandle");
    if (status != TSH_OK) {
        tshi_free(&cuda->base.allocator, handle);
        return status;
    }
    handle->born = (uint64_t)(tshi_clock() * 1e9);
    slab->shared = handle;
    return TSH_OK;
}

static tsh_status share(tsh_device *device, const void *pointer, tshi_share *out) {
    tshi_cuda_device *cuda = tshi_cuda(device);
    if (!cuda->ipc) return tshi_fail(TSH_ERR_UNSUPPORTED, "TSHARD_CUDA_IPC is 0");
    tsh_status status = sharing_open(cuda);
    if (status != TSH_OK) return status;
    tshi_slab *slab = tshi_cuda_slab(cuda, pointer);
    if (!slab) return tshi_fail(TSH_ERR_UNSUPPORTED, "GPU memory that is not the device's own");
    if (!slab->shared) status = make_handle(cuda, slab);
    if (status != TSH_OK) return status;
    const slab_handle *handle = slab->shared;
    *out = (tshi_share){.process = cuda->sharing->process,
                        .base = (uint64_t)(uintptr_t)slab->base,
                        .born = handle->born,
                        .offset = (uint64_t)((const char *)pointer - slab->base)};
    memcpy(out->handle, &handle->handle, sizeof out->handle);
    memcpy(out->gpu, cuda->sharing->gpu, sizeof out->gpu);
    return TSH_OK;
}

/* --- mapping a slab ----------------------------------------------------------------------------------------------- */

/* The ordinal in this process of the GPU with that identifier. */
static tsh_status other_gpu(const tshi_cuda_device *cuda, const char *gpu, int *ordinal) {
    int can = 0;
    tsh_status status = refused(cudaDeviceGetByPCIBusId(ordinal, gpu), "cudaDeviceGetByPCIBusId");
    if (status == TSH_OK) {
        status = refused(cudaDeviceCanAccessPeer(&can, cuda->ordinal, *ordinal), "cudaDeviceCanAccessPeer");
    }
    if (status != TSH_OK || can) return status;
    return tshi_fail(TSH_ERR_UNSUPPORTED, "the GPU %s has no access to the memory of %s", cuda->sharing->gpu, gpu);
}

static tsh_status enable_peer(int ordinal) {
    cudaError_t error = cudaDeviceEnablePeerAccess(ordinal, 0);
    if (error != cudaErrorPeerAccessAlreadyEnabled) return refused(error, "cudaDeviceEnablePeerAccess");
    cudaGetLastError();
    return TSH_OK;
}

static tsh_status map(tshi_cuda_device *cuda, const tshi_share *share, mapping *m) {
    static const unsigned char none[sizeof share->handle];
    char gpu[sizeof share->gpu + 1] = {0};
    int ordinal = cuda->ordinal;
    memcpy(gpu, share->gpu, sizeof share->gpu);
    tshi_cuda_use(cuda);
    bool elsewhere = strcmp(gpu, cuda->sharing->gpu) != 0, inside = share->process == cuda->sharing->process;
    tsh_status status = elsewhere ? other_gpu(cuda, gpu, &ordinal) : TSH_OK;
    if (status == TSH_OK && inside && elsewhere) status = enable_peer(ordinal);
    if (status != TSH_OK) return status;
    *m = (mapping){share->process, share->base, share->born, (char *)(uintptr_t)share->base, !inside, NULL};
    if (inside) return TSH_OK;
    if (!memcmp(share->handle, none, sizeof none)) {
        return tshi_fail(TSH_ERR_UNSUPPORTED, "managed memory cannot be mapped by other processes");
    }
    cudaIpcMemHandle_t handle;
    void *here = NULL;
    memcpy(&handle, share->handle, sizeof handle);
    status = refused(cudaIpcOpenMemHandle(&here, handle, cudaIpcMemLazyEnablePeerAccess), "cudaIpcOpenMemHandle");
    m->here = here;
    return status;
}

/* The link to the mapping of the shared slab, or to the end of the list. */
static mapping **find(tshi_cuda_sharing *sharing, const tshi_share *share) {
    mapping **link = &sharing->mappings;
    for (; *link; link = &(*link)->next) {
        const mapping *m = *link;
        if (m->process == share->process && m->base == share->base && m->born == share->born) break;
    }
    return link;
}

static tsh_status map_share(tsh_device *device, const tshi_share *share, void **out) {
    tshi_cuda_device *cuda = tshi_cuda(device);
    *out = NULL;
    tsh_status status = sharing_open(cuda);
    if (status != TSH_OK) return status;
    mapping **link = find(cuda->sharing, share), *m = *link;
    if (m) {
        *link = m->next;
    } else {
        m = tshi_calloc(&device->allocator, 1, sizeof *m);
        status = m ? map(cuda, share, m) : TSH_ERR_MEMORY;
        if (status != TSH_OK) {
            tshi_free(&device->allocator, m);
            return status;
        }
    }
    m->next = cuda->sharing->mappings;
    cuda->sharing->mappings = m;
    *out = m->here + share->offset;
    return TSH_OK;
}

static tsh_status drain(tsh_device *device) {
    tshi_cuda_device *cuda = tshi_cuda(device);
    if (cuda->capturing) {
        tshi_cuda_no_capture(device, "a collective on other ranks' memory");
        return TSH_ERR_STATE;
    }
    return tshi_cuda_wait(device, "what a collective waits for") ? TSH_OK : TSH_ERR_SYSTEM;
}

static void unmap(tsh_device *device) {
    tshi_cuda_sharing *sharing = tshi_cuda(device)->sharing;
    if (!sharing || !sharing->mappings) return;
    tshi_cuda_wait(device, "cudaStreamSynchronize before cudaIpcCloseMemHandle");
    while (sharing->mappings) {
        mapping *m = sharing->mappings;
        sharing->mappings = m->next;
        if (m->opened) tshi_cuda_record_error(device, cudaIpcCloseMemHandle(m->here), "cudaIpcCloseMemHandle");
        tshi_free(&device->allocator, m);
    }
}

static void keep_shared(tsh_device *device) {
    tshi_cuda(device)->keeps_shared = true;
}

void tshi_cuda_sharing_destroy(tshi_cuda_device *device) {
    tshi_cuda_sharing *sharing = device->sharing;
    if (!sharing) return;
    unmap(&device->base);
    tshi_free(&device->base.allocator, sharing);
    device->sharing = NULL;
}

const tshi_sharing_ops tshi_cuda_sharing_ops = {
    .share = share, .map = map_share, .unmap = unmap, .keep = keep_shared, .drain = drain};
