/* GPU memory: a cache of slabs, and copies. */
#include "device/cuda/cuda.h"
#include "device/cuda/memory/blocks.h"

#include <string.h>

/* Small buffers have slabs of their own, or one that stays would keep a large slab from being whole again. */
#define SMALL_BYTES      ((size_t)1 << 20)
#define SMALL_SLAB_BYTES ((size_t)4 << 20)
#define LARGE_SLAB_BYTES ((size_t)64 << 20)
#define SLAB_UNIT        ((size_t)2 << 20) /* of the GPU's pages */
#define COUNTED          ((size_t)64)      /* what tsh_memory_stats rounds to */

/* Pinned memory on the way to the GPU: a slot is filled by one copy after another and used again when they have run. */
#define SLOTS      8
#define SLOT_BYTES ((size_t)1 << 20)

struct tshi_cuda_pool {
    tshi_blocks small, large;
    tshi_piece *kept; /* blocks of other pools that were released while this one was open */
    tshi_cuda_pool *next;
};

typedef struct staging {
    char *memory;
    cudaEvent_t done[SLOTS];
    int slot;
    size_t used; /* of the slot */
} staging;

typedef struct tshi_cuda_memory {
    tshi_block_books books;
    tshi_cuda_pool own;
    tshi_cuda_pool *active; /* own, or that of the graph that is captured */
    tshi_cuda_pool *pools;  /* of graphs */
    tshi_blocks symmetric;  /* one slab, or none */
    size_t held;            /* bytes of all slabs */
    staging staging;
} tshi_cuda_memory;

static size_t round_up(size_t size, size_t unit) {
    return (size + unit - 1) / unit * unit;
}

/* --- slabs -------------------------------------------------------------------------------------------------------- */

static cudaError_t get_slab(tshi_cuda_device *cuda, size_t size, void **out) {
    cudaError_t error = cuda->managed ? cudaMallocManaged(out, size, cudaMemAttachGlobal) : cudaMalloc(out, size);
    if (error != cudaSuccess) cudaGetLastError(); /* or the next launch is blamed for it */
    return error;
}

static void give_slab_back(tshi_cuda_device *cuda, tshi_slab *slab) {
    cuda->memory->held -= slab->size;
    tshi_cuda_note(&cuda->base, cudaFree(slab->base), "cudaFree");
}

tshi_slab *tshi_cuda_slab(const tshi_cuda_device *device, const void *pointer) {
    const tshi_cuda_memory *memory = device->memory;
    for (const tshi_cuda_pool *pool = &memory->own; pool; pool = pool == &memory->own ? memory->pools : pool->next) {
        tshi_slab *slab = tshi_blocks_slab(&pool->large, pointer);
        if (!slab) slab = tshi_blocks_slab(&pool->small, pointer);
        if (slab) return slab;
    }
    return NULL;
}

/* Slabs that nothing lies in go back to the GPU, but for those that have been shared: others may have them mapped. True
 * when there was one. Not while a graph is captured: the GPU may be
 * at work in them, and cannot be waited for. */
static bool trim(tshi_cuda_device *cuda) {
    tshi_blocks *all[] = {&cuda->memory->own.small, &cuda->memory->own.large};
    bool any = false, waited = false;
    if (cuda->capturing) return false;
    for (int i = 0; i < 2; i++) {
        tshi_slab *slab;
        while ((slab = tshi_blocks_idle(all[i], &cuda->memory->books))) {
            if (!waited) tshi_cuda_wait(&cuda->base, "cudaStreamSynchronize before cudaFree");
            waited = any = true;
            give_slab_back(cuda, slab);
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

static tsh_status add_slab(tshi_cuda_device *cuda, tshi_blocks *blocks, size_t size) {
    tshi_cuda_memory *memory = cuda->memory;
    size_t least = size < SMALL_BYTES ? SMALL_SLAB_BYTES : LARGE_SLAB_BYTES;
    size_t exact = round_up(size, SLAB_UNIT), wanted = exact < least ? least : exact;
    void *base = NULL;
    cudaError_t error = get_slab(cuda, wanted, &base);
    if (error == cudaErrorMemoryAllocation && (trim(cuda) || exact < wanted)) {
        wanted = exact;
        error = get_slab(cuda, wanted, &base);
    }
    if (error != cudaSuccess) return no_room(cuda, size, error);
    tsh_status status = tshi_blocks_add(blocks, &memory->books, base, wanted);
    if (status != TSH_OK) {
        cudaFree(base);
        return status;
    }
    memory->held += wanted;
    cuda->base.stats.allocations++;
    return TSH_OK;
}

/* --- buffers ------------------------------------------------------------------------------------------------------ */

static size_t units(size_t size) {
    return round_up(size ? size : 1, TSHI_BLOCK_UNIT);
}

static tshi_piece *take(tshi_cuda_device *cuda, size_t size) {
    tshi_cuda_memory *memory = cuda->memory;
    tshi_blocks *blocks = size < SMALL_BYTES ? &memory->active->small : &memory->active->large;
    bool failed = false;
    tshi_piece *block = tshi_blocks_take(blocks, &memory->books, size, &failed);
    if (block || failed) return block;
    return add_slab(cuda, blocks, size) == TSH_OK ? tshi_blocks_take(blocks, &memory->books, size, &failed) : NULL;
}

/* `block` is a buffer of `size` bytes now. */
static void *hand_out(tsh_device *device, tshi_piece *block, size_t size) {
    tsh_memory_stats *stats = &device->stats;
    block->wanted = round_up(size ? size : 1, COUNTED);
    stats->requests++;
    stats->bytes_in_use += block->wanted;
    if (stats->bytes_in_use > stats->bytes_peak) stats->bytes_peak = stats->bytes_in_use;
    return block->hole.data;
}

void *tshi_cuda_alloc(tsh_device *device, size_t size) {
    if (!device->allocator.reserve(device->allocator.user, size)) {
        tshi_fail(TSH_ERR_MEMORY, "the allocator's reserve refused %zu bytes of tensor memory", size);
        return NULL;
    }
    if (size > SIZE_MAX / 2) {
        no_room(tshi_cuda(device), size, cudaErrorMemoryAllocation);
        return NULL;
    }
    tshi_piece *block = take(tshi_cuda(device), units(size));
    return block ? hand_out(device, block, size) : NULL;
}

/* Not what a graph makes: its blocks come back by another way. */
void *tshi_cuda_alloc_symmetric(tsh_device *device, size_t size, size_t *offset) {
    tshi_cuda_memory *memory = tshi_cuda(device)->memory;
    const tshi_slab *slab = memory->symmetric.slabs;
    bool failed;
    if (!slab || size > slab->size || memory->active != &memory->own) return NULL;
    tshi_piece *block = tshi_blocks_take(&memory->symmetric, &memory->books, units(size), &failed);
    if (!block) return NULL;
    *offset = (size_t)(block->hole.data - slab->base);
    return hand_out(device, block, size);
}

tsh_status tshi_cuda_symmetric_set(tshi_cuda_device *device, void *base, size_t size) {
    return tshi_blocks_add(&device->memory->symmetric, &device->memory->books, base, size);
}

void tshi_cuda_symmetric_unset(tshi_cuda_device *device) {
    tshi_blocks_clear(&device->memory->symmetric, &device->memory->books);
}

static bool belongs(const tshi_cuda_pool *pool, const tshi_piece *block) {
    return block->slab->owner == &pool->small || block->slab->owner == &pool->large;
}

void tshi_cuda_release(tsh_device *device, void *pointer) {
    tshi_cuda_device *cuda = tshi_cuda(device);
    tshi_cuda_memory *memory = cuda->memory;
    tshi_piece *block = pointer ? tshi_blocks_find(&memory->books, pointer) : NULL;
    if (!block) return;
    device->stats.bytes_in_use -= block->wanted;
    tshi_blocks_forget(&memory->books, block);
    if (memory->active != &memory->own && !belongs(memory->active, block)) {
        block->chain = memory->active->kept;
        memory->active->kept = block;
    } else {
        tshi_blocks_give(&memory->books, block);
    }
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
        tshi_piece *block = pool->kept;
        pool->kept = block->chain;
        block->chain = NULL;
        tshi_blocks_give(&memory->books, block);
    }
    tshi_blocks_join(&pool->small, &memory->own.small);
    tshi_blocks_join(&pool->large, &memory->own.large);
    tshi_free(&device->base.allocator, pool);
}

/* --- from the first to the last ----------------------------------------------------------------------------------- */

tsh_status tshi_cuda_memory_create(tshi_cuda_device *device) {
    tshi_cuda_memory *memory = tshi_calloc(&device->base.allocator, 1, sizeof *memory);
    if (!memory) return TSH_ERR_MEMORY;
    device->memory = memory;
    memory->books.allocator = &device->base.allocator;
    memory->active = &memory->own;
    staging *stage = &memory->staging;
    tsh_status status = TSH_OK;
    for (int i = 0; i < SLOTS && status == TSH_OK; i++) {
        status = tshi_cuda_fail(cudaEventCreateWithFlags(&stage->done[i], cudaEventDisableTiming),
                                "cudaEventCreateWithFlags");
    }
    void *pinned = NULL;
    if (status == TSH_OK) {
        status = tshi_cuda_fail(cudaHostAlloc(&pinned, SLOTS * SLOT_BYTES, cudaHostAllocPortable), "cudaHostAlloc");
        stage->memory = status == TSH_OK ? pinned : NULL;
    }
    return status;
}

static void destroy_blocks(tshi_cuda_device *cuda, tshi_blocks *blocks) {
    for (tshi_slab *slab = blocks->slabs; slab; slab = slab->next) {
        if (!slab->shared || !cuda->keeps_shared) give_slab_back(cuda, slab);
    }
    tshi_blocks_clear(blocks, &cuda->memory->books);
}

void tshi_cuda_memory_destroy(tshi_cuda_device *device) {
    tshi_cuda_memory *memory = device->memory;
    if (!memory) return;
    while (memory->pools) tshi_cuda_pool_drop(device, memory->pools);
    destroy_blocks(device, &memory->own.small);
    destroy_blocks(device, &memory->own.large);
    tshi_cuda_symmetric_unset(device);
    if (memory->staging.memory) cudaFreeHost(memory->staging.memory);
    for (int i = 0; i < SLOTS; i++)
        if (memory->staging.done[i]) cudaEventDestroy(memory->staging.done[i]);
    tshi_pool_clear(&memory->books.structs, &device->base.allocator);
    tshi_free(&device->base.allocator, memory->books.buckets);
    tshi_free(&device->base.allocator, memory);
    device->memory = NULL;
}

/* --- copies ------------------------------------------------------------------------------------------------------- */

static void queued(tsh_device *device, cudaError_t error, const char *what) {
    tshi_cuda_note(device, error, what);
    if (tshi_cuda(device)->managed) tshi_cuda_wait(device, what);
}

void tshi_cuda_copy(tsh_device *device, size_t bytes, const void *from, void *to) {
    if (bytes == 0 || from == to) return;
    queued(device, cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, tshi_cuda_stream(device)), "copy");
}

void tshi_cuda_zero(tsh_device *device, size_t bytes, void *to) {
    if (bytes > 0) queued(device, cudaMemsetAsync(to, 0, bytes, tshi_cuda_stream(device)), "zero");
}

void tshi_cuda_copy_to_host(tsh_device *device, size_t bytes, const void *from, void *to) {
    if (bytes == 0) return;
    cudaError_t error = cudaErrorUnknown;
    if (tshi_cuda(device)->capturing) {
        tshi_cuda_no_capture(device, "a copy to the host");
    } else {
        error = cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToHost, tshi_cuda_stream(device));
        tshi_cuda_note(device, error, "a copy to the host");
    }
    /* No caller is to go on with what the memory happened to hold. */
    if (error != cudaSuccess || !tshi_cuda_wait(device, "a copy to the host")) memset(to, 0, bytes);
}

/* Room for a part of `bytes`; *got of them. Waits when all slots are still on their way. NULL when that fails. */
static char *stage_room(tshi_cuda_device *cuda, size_t bytes, size_t *got) {
    staging *stage = &cuda->memory->staging;
    if (stage->used == SLOT_BYTES || (stage->used + bytes > SLOT_BYTES && bytes <= SLOT_BYTES)) {
        cudaError_t error = cudaEventRecord(stage->done[stage->slot], cuda->compute);
        stage->slot = (stage->slot + 1) % SLOTS;
        stage->used = 0;
        if (error == cudaSuccess) error = cudaEventQuery(stage->done[stage->slot]);
        if (error == cudaErrorNotReady) {
            cuda->waits++;
            error = tshi_cuda_wait_event(cuda, stage->done[stage->slot]);
        }
        tshi_cuda_note(&cuda->base, error, "a copy from the host");
        if (error != cudaSuccess) return NULL;
    }
    size_t room = SLOT_BYTES - stage->used;
    *got = bytes < room ? bytes : room;
    return stage->memory + (size_t)stage->slot * SLOT_BYTES + stage->used;
}

void tshi_cuda_copy_from_host(tsh_device *device, size_t bytes, const void *from, void *to) {
    tshi_cuda_device *cuda = tshi_cuda(device);
    if (bytes > 0 && cuda->capturing) {
        tshi_cuda_no_capture(device, "a copy from the host");
        return;
    }
    for (size_t done = 0, some = 0; done < bytes; done += some) {
        char *room = stage_room(cuda, bytes - done, &some);
        if (!room) return;
        memcpy(room, (const char *)from + done, some);
        cuda->memory->staging.used += round_up(some, COUNTED);
        if (cuda->memory->staging.used > SLOT_BYTES) cuda->memory->staging.used = SLOT_BYTES;
        queued(device, cudaMemcpyAsync((char *)to + done, room, some, cudaMemcpyHostToDevice, tshi_cuda_stream(device)),
               "a copy from the host");
    }
}

void tshi_cuda_copy_strided(tsh_device *device, int64_t outer, size_t bytes, const void *from, size_t from_stride,
                            void *to, size_t to_stride) {
    if (outer <= 0 || bytes == 0) return;
    if (outer == 1 || (from_stride == bytes && to_stride == bytes)) {
        tshi_cuda_copy(device, (size_t)outer * bytes, from, to);
    } else if (from_stride < bytes || from_stride > INT32_MAX || to_stride > INT32_MAX) { /* no pitch for the GPU */
        for (int64_t o = 0; o < outer; o++) {
            tshi_cuda_copy(device, bytes, (const char *)from + (size_t)o * from_stride,
                           (char *)to + (size_t)o * to_stride);
        }
    } else {
        queued(device,
               cudaMemcpy2DAsync(to, to_stride, from, from_stride, bytes, (size_t)outer, cudaMemcpyDeviceToDevice,
                                 tshi_cuda_stream(device)),
               "copy_strided");
    }
}
