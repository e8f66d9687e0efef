/* Worlds whose ranks are threads of one process. */
#include "base/cpu.h"
#include "dist/registry.h"
#include "dist/rendezvous/environment.h"
#include "dist/world.h"

#include <sys/mman.h>

void tsh_thread_rendezvous_destroy(tsh_thread_rendezvous *threads) {
    if (!threads) return;
    tsh_allocator allocator = tshi_allocator_resolve(NULL);
    for (int i = 0; threads->heap && i < threads->size; i++) {
        if (threads->heap[i]) munmap(threads->heap[i], threads->heap_bytes[i]);
    }
    if (threads->memory) munmap(threads->memory, threads->memory_bytes);
    tshi_free(&allocator, threads->heap);
    tshi_free(&allocator, threads->heap_bytes);
    tshi_free(&allocator, threads->taken);
    tshi_free(&allocator, threads);
}

tsh_status tsh_thread_rendezvous_create(int world_size, tsh_thread_rendezvous **out) {
    if (!out) return tshi_fail(TSH_ERR_ARGUMENT, "threads_create: out is NULL");
    *out = NULL;
    if (world_size < 1 || world_size > TSHI_MOST_RANKS) {
        return tshi_fail(TSH_ERR_ARGUMENT, "threads_create: a world of %d ranks; it must be from 1 to %d", world_size,
                         TSHI_MOST_RANKS);
    }
    /* It changes the environment, which the ranks' threads read. */
    tsh_allocator allocator = tshi_allocator_resolve(NULL);
    size_t size = (size_t)world_size;
    tsh_thread_rendezvous *threads = tshi_calloc(&allocator, 1, sizeof *threads);
    if (!threads) return TSH_ERR_MEMORY;
    threads->size = world_size;
    threads->heap = tshi_calloc(&allocator, size, sizeof *threads->heap);
    threads->heap_bytes = tshi_calloc(&allocator, size, sizeof *threads->heap_bytes);
    threads->taken = tshi_calloc(&allocator, size, sizeof *threads->taken);
    threads->area_bytes = tshi_backend_area_bytes(world_size);
    threads->memory_bytes = tshi_machine_bytes(world_size, threads->area_bytes);
    void *memory = mmap(NULL, threads->memory_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory != MAP_FAILED) threads->memory = memory;
    if (!threads->heap || !threads->heap_bytes || !threads->taken || !threads->memory) {
        tsh_thread_rendezvous_destroy(threads);
        return tshi_fail(TSH_ERR_MEMORY, "threads_create: no memory");
    }
    ((tshi_page *)memory)->size = world_size;
    *out = threads;
    return TSH_OK;
}

tsh_status tshi_threads_settings(const tsh_world_config *config, tshi_settings *settings) {
    int size = config->threads->size, rank = config->rank;
    if (config->world_size && config->world_size != size) {
        return tshi_fail(TSH_ERR_ARGUMENT, "world_init: the configuration says world_size %d, the threads are %d",
                         config->world_size, size);
    }
    if (rank < 0 || rank >= size) {
        return tshi_fail(TSH_ERR_ARGUMENT, "world_init: rank %d of %d threads", rank, size);
    }
    settings->rank = settings->local_rank = rank;
    settings->size = settings->local_size = size;
    return TSH_OK;
}
