/* GPU memory: a cache of slabs, and the pools of captured graphs. */
#include "device/cuda/cuda.h"
#include "device/slabs.h"

/* Small buffers have separate slabs: a long-lived one would keep a large slab from being freed. */
#define SMALL_BYTES      ((size_t)1 << 20)
#define SMALL_SLAB_BYTES ((size_t)4 << 20)
#define LARGE_SLAB_BYTES ((size_t)64 << 20)
#define SLAB_UNIT        ((size_t)2 << 20) /* the GPU's page size */
#define BLOCK_UNIT       ((size_t)256)     /* cudaMalloc's alignment; a multiple of TSHI_BLOCK_UNIT */

struct tshi_cuda_pool {
    tshi_slabs small, large;
    tshi_slab_block *kept; /* blocks of other pools that were released while this one was open */
    tshi_cuda_pool *next;
};

typedef struct tshi_cuda_memory {
    tshi_slab_index index;
    tshi_cuda_pool own;
    tshi_cuda_pool *active; /* `own`, or the pool of the graph under capture */
    tshi_cuda_pool *pools;  /* the pools of all graphs */
    size_t held;            /* bytes of all slabs */
} tshi_cuda_memory;

/* --- slabs -------------------------------------------------------------------------------------------------------- */

static cudaError_t alloc_slab(tshi_cuda_device *cuda, size_t size, void **out) {
    tshi_cuda_use(cuda);
    cudaError_t error = cuda->managed ? cudaMallocManaged(out, size, cudaMemAttachGlobal) : cudaMalloc(out, size);
    if (error != cudaSuccess) cudaGetLastError(); /* clears the error, which the next launch would report */
    return error;
}

static void free_slab(tshi_cuda_device *cuda, tshi_slab *slab) {
    cuda->memory->held -= slab->size;
    tshi_cuda_record_error(&cuda->base, cudaFree(slab->base), "cudaFree");
}

tshi_slab *tshi_cuda_slab(const tshi_cuda_device *device, const void *pointer) {
    const tshi_cuda_memory *memory = device->memory;
    for (const tshi_cuda_pool *pool = &memory->own; pool; pool = pool == &memory->own ? memory->pools : pool->next) {
        tshi_slab *slab = tshi_slabs_find(&pool->large, pointer);
        if (!slab) slab = tshi_slabs_find(&pool->small, pointer);
        if (slab) return slab;
    }
    return NULL;
}

/* Frees the idle slabs, and returns true if there were any. A shared slab is not idle, as other ranks may have it
 * mapped. Frees none during a capture: the GPU may still use them, and the host cannot wait for it. */
static bool trim(tshi_cuda_device *cuda) {
    tshi_slabs *all[] = {&cuda->memory->own.small, &cuda->memory->own.large};
    bool any = false, waited = false;
    if (cuda->capturing) return false;
    for (int i = 0; i < 2; i++) {
        tshi_slab *slab;
        while ((slab = tshi_slabs_take_idle(all[i], &cuda->memory->index))) {
            if (!waited) tshi_cuda_wait_idle(cuda, "waiting for the GPU before cudaFree");
            waited = any = true;
            free_slab(cuda, slab);
            tshi_free(&cuda->base.allocator, slab);
        }
    }
    return any;
}

static tsh_status no_room(tshi_cuda_device *cuda, size_t size, cudaError_t error) {
    size_t there = 0, total = 0;
    if (error != cudaErrorMemoryAllocation) return tshi_cuda_fail(error, "cudaMalloc");
    if (cudaMemGetInfo(&there, &total) != cudaSuccess) cudaGetLastError();
    return tshi_fail(
        TSH_ERR_MEMORY,
        "no room on the GPU for a tensor of %zu bytes: tensors take %zu, %zu are held for them, %zu of the "
        "GPU's %zu are free",
        size, cuda->base.stats.bytes_in_use, cuda->memory->held, there, total);
}

static tsh_status add_slab(tshi_cuda_device *cuda, tshi_slabs *slabs, size_t size) {
    tshi_cuda_memory *memory = cuda->memory;
    size_t least = size < SMALL_BYTES ? SMALL_SLAB_BYTES : LARGE_SLAB_BYTES;
    size_t exact = tshi_units(size, SLAB_UNIT), wanted = exact < least ? least : exact;
    if (!cuda->cached) wanted = exact = size;
    void *base = NULL;
    cudaError_t error = alloc_slab(cuda, wanted, &base);
    if (error == cudaErrorMemoryAllocation && (trim(cuda) || exact < wanted)) {
        wanted = exact;
        error = alloc_slab(cuda, wanted, &base);
    }
    if (error != cudaSuccess) return no_room(cuda, size, error);
    tsh_status status = tshi_slabs_add(slabs, &memory->index, base, wanted);
    if (status != TSH_OK) {
        cudaFree(base);
        return status;
    }
    memory->held += wanted;
    cuda->base.stats.allocations++;
    return TSH_OK;
}

/* --- buffers ------------------------------------------------------------------------------------------------------ */

/* Without a cache each block has its own slab, and idle slabs are freed here, except during a capture (see trim). */
static tshi_slab_block *take_block(tshi_cuda_device *cuda, size_t size) {
    tshi_cuda_memory *memory = cuda->memory;
    tshi_slabs *slabs = size < SMALL_BYTES ? &memory->active->small : &memory->active->large;
    bool failed = false, fresh = !cuda->cached && !cuda->capturing;
    if (fresh) trim(cuda);
    tshi_slab_block *block = fresh ? NULL : tshi_slabs_alloc(slabs, &memory->index, size, &failed);
    if (block || failed) return block;
    return add_slab(cuda, slabs, size) == TSH_OK ? tshi_slabs_alloc(slabs, &memory->index, size, &failed) : NULL;
}

/* Turns `block` into a buffer of `size` bytes. */
static void *buffer_in(tsh_device *device, tshi_slab_block *block, size_t size) {
    tshi_device_count(device, block, tshi_units(size, TSHI_BLOCK_UNIT));
    return block->data;
}

void *tshi_cuda_alloc(tsh_device *device, size_t size) {
    if (!tshi_device_reserve(device, size)) return NULL;
    if (size > SIZE_MAX / 2) {
        no_room(tshi_cuda(device), size, cudaErrorMemoryAllocation);
        return NULL;
    }
    size_t unit = tshi_cuda(device)->cached ? BLOCK_UNIT : TSHI_BLOCK_UNIT;
    tshi_slab_block *block = take_block(tshi_cuda(device), tshi_units(size, unit));
    return block ? buffer_in(device, block, size) : NULL;
}

static bool belongs(const tshi_cuda_pool *pool, const tshi_slab_block *block) {
    return block->slab->owner == &pool->small || block->slab->owner == &pool->large;
}

void tshi_cuda_release(tsh_device *device, void *pointer) {
    tshi_cuda_device *cuda = tshi_cuda(device);
    tshi_cuda_memory *memory = cuda->memory;
    tshi_slab_block *block = tshi_slab_index_take(&memory->index, pointer);
    if (!block) return;
    tshi_device_uncount(device, block);
    if (memory->active != &memory->own && !belongs(memory->active, block)) {
        block->next = memory->active->kept;
        memory->active->kept = block;
    } else {
        tshi_slabs_release(&memory->index, block);
    }
}

tshi_slab_block *tshi_cuda_find(tsh_device *device, const void *pointer) {
    return tshi_slab_index_find(&tshi_cuda(device)->memory->index, pointer);
}

/* --- graphs' pools ------------------------------------------------------------------------------------------------ */

tsh_status tshi_cuda_pool_open(tshi_cuda_device *device, tshi_cuda_pool **out) {
    *out = tshi_calloc(&device->base.allocator, 1, sizeof **out);
    if (!*out) return TSH_ERR_MEMORY;
    (*out)->next = device->memory->pools;
    device->memory->pools = *out;
    device->memory->active = *out;
    return TSH_OK;
}

void tshi_cuda_pool_close(tshi_cuda_device *device) {
    device->memory->active = &device->memory->own;
}

void tshi_cuda_pool_drop(tshi_cuda_device *device, tshi_cuda_pool *pool) {
    tshi_cuda_memory *memory = device->memory;
    if (!pool) return;
    tshi_cuda_pool **link = &memory->pools;
    while (*link != pool) link = &(*link)->next;
    *link = pool->next;
    while (pool->kept) {
        tshi_slab_block *block = pool->kept;
        pool->kept = block->next;
        tshi_slabs_release(&memory->index, block);
    }
    tshi_slabs_merge(&pool->small, &memory->own.small);
    tshi_slabs_merge(&pool->large, &memory->own.large);
    tshi_free(&device->base.allocator, pool);
}

/* --- creation and destruction ------------------------------------------------------------------------------------- */

tsh_status tshi_cuda_memory_create(tshi_cuda_device *device) {
    tshi_cuda_memory *memory = tshi_calloc(&device->base.allocator, 1, sizeof *memory);
    if (!memory) return TSH_ERR_MEMORY;
    device->memory = memory;
    memory->index.allocator = &device->base.allocator;
    memory->active = &memory->own;
    return TSH_OK;
}

static void destroy_slabs(tshi_cuda_device *cuda, tshi_slabs *slabs) {
    for (tshi_slab *slab = slabs->first; slab; slab = slab->next) {
        if (!slab->shared || !cuda->keeps_shared) free_slab(cuda, slab);
    }
    tshi_slabs_clear(slabs, &cuda->memory->index);
}

void tshi_cuda_memory_destroy(tshi_cuda_device *device) {
    tshi_cuda_memory *memory = device->memory;
    if (!memory) return;
    while (memory->pools) tshi_cuda_pool_drop(device, memory->pools);
    destroy_slabs(device, &memory->own.small);
    destroy_slabs(device, &memory->own.large);
    tshi_slab_index_clear(&memory->index);
    tshi_free(&device->base.allocator, memory);
    device->memory = NULL;
}
