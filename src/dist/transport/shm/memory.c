/* Heaps and the control page: anonymous memory files for processes, plain memory for threads, so that nothing with a
 * name is ever left behind. */
#include "dist/rendezvous/memory_exchange.h"
#include "dist/transport/shm/shm.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

static size_t control_bytes(int size) {
    return tshi_page_bytes(size) + tshi_block_bytes(size) + tshi_waits_bytes(size);
}

static tsh_status map_fail(size_t bytes, int rank) {
    tshi_fail_errno(errno, "world_init: mapping the %zu bytes of rank %d's heap (TSHARD_HEAP makes it smaller)", bytes,
                    rank);
    return TSH_ERR_MEMORY;
}

/* --- processes ---------------------------------------------------------------------------------------------------- */

static size_t round_up(size_t n) {
    return (n + TSHI_HUGE_PAGE - 1) / TSHI_HUGE_PAGE * TSHI_HUGE_PAGE;
}

/* The size of one file for all: each rank needs one descriptor and one mapping, however many ranks there are. */
static tsh_status lay_out(const tshi_memory_ranks *ranks, size_t *total) {
    tsh_status status = TSH_OK;
    *total = round_up(control_bytes(ranks->size));
    for (int i = 0; i < ranks->size && status == TSH_OK; i++) {
        if (ranks->heap_bytes[i] > SIZE_MAX / 4) status = TSH_ERR_OVERFLOW;
        if (status == TSH_OK) status = tshi_size_add(*total, round_up(ranks->heap_bytes[i]), total);
    }
    if (status == TSH_OK && *total <= INT64_MAX) return TSH_OK;
    return tshi_fail(TSH_ERR_OVERFLOW, "world_init: the heaps of %d ranks do not fit an address space (TSHARD_HEAP)",
                     ranks->size);
}

/* tshi_memory_plan.make: rank 0 records the heap of each rank, before any other rank maps the file. */
static int make_memory(const tshi_memory_ranks *ranks) {
    size_t bytes, at = round_up(control_bytes(ranks->size));
    tsh_status status = lay_out(ranks, &bytes);
    if (status != TSH_OK) return -(int)status;
    int fd = tshi_memory_file("tshard", bytes);
    tshi_page *page = MAP_FAILED;
    if (fd >= 0) page = mmap(NULL, control_bytes(ranks->size), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (page == MAP_FAILED) {
        const char *limit = errno == EFBIG ? " is more than this process may make, see ulimit -f" : "";
        tshi_fail_errno(errno, "world_init: a memory file of %zu bytes%s (TSHARD_HEAP makes it smaller)", bytes, limit);
        if (fd >= 0) close(fd);
        return -TSH_ERR_MEMORY;
    }
    for (int i = 0; i < ranks->size; i++) {
        tshi_rank_record *r = &page->record[i];
        r->heap_at = at;
        r->heap_bytes = ranks->heap_bytes[i];
        at += round_up(ranks->heap_bytes[i]);
    }
    page->size = ranks->size;
    munmap(page, control_bytes(ranks->size));
    return fd;
}

static tsh_status map_memory(void *user) {
    tsh_world *world = user;
    tshi_shm *local = tshi_shm_of(world);
    struct stat s;
    if (fstat(local->file, &s) != 0) return tshi_fail_errno(errno, "world_init: the memory of all ranks");
    local->memory_bytes = (size_t)s.st_size;
    local->file_device = s.st_dev;
    local->file_number = s.st_ino;
    if (local->memory_bytes >= control_bytes(world->size))
        local->memory = tshi_map_memory(local->file, local->memory_bytes);
    if (!local->memory) {
        tshi_fail_errno(errno, "world_init: mapping the %zu bytes of all ranks (TSHARD_HEAP makes it smaller)",
                        local->memory_bytes);
        return TSH_ERR_MEMORY;
    }
    local->page = (tshi_page *)(void *)local->memory;
    for (int i = 0; i < world->size; i++) {
        local->heap[i] = local->memory + local->page->record[i].heap_at;
        local->heap_bytes[i] = (size_t)local->page->record[i].heap_bytes;
    }
    return tshi_shm_appear(world);
}

tsh_status tshi_memory_of_processes(tsh_world *world, const tshi_settings *settings, double deadline) {
    tshi_shm *local = tshi_shm_of(world);
    const tshi_memory_plan plan = {.make = make_memory, .join = map_memory, .user = world, .memory = &local->file};
    return tshi_memory_exchange(settings, &world->log, &world->allocator, deadline, &plan);
}

/* --- threads ------------------------------------------------------------------------------------------------------ */

void tsh_thread_rendezvous_destroy(tsh_thread_rendezvous *threads) {
    if (!threads) return;
    tsh_allocator allocator = tshi_allocator_resolve(NULL);
    for (int i = 0; threads->heap && i < threads->size; i++) {
        if (threads->heap[i]) munmap(threads->heap[i], threads->heap_bytes[i]);
    }
    if (threads->page) munmap(threads->page, threads->control_bytes);
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
    if (world_size > 1) tshi_device_prepare_cuda();
    tsh_allocator allocator = tshi_allocator_resolve(NULL);
    size_t size = (size_t)world_size;
    tsh_thread_rendezvous *threads = tshi_calloc(&allocator, 1, sizeof *threads);
    if (!threads) return TSH_ERR_MEMORY;
    threads->size = world_size;
    threads->heap = tshi_calloc(&allocator, size, sizeof *threads->heap);
    threads->heap_bytes = tshi_calloc(&allocator, size, sizeof *threads->heap_bytes);
    threads->taken = tshi_calloc(&allocator, size, sizeof *threads->taken);
    threads->control_bytes = control_bytes(world_size);
    void *page = mmap(NULL, threads->control_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (page != MAP_FAILED) threads->page = page;
    if (!threads->heap || !threads->heap_bytes || !threads->taken || !threads->page) {
        tsh_thread_rendezvous_destroy(threads);
        return tshi_fail(TSH_ERR_MEMORY, "threads_create: no memory");
    }
    threads->page->size = world_size;
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

tsh_status tshi_memory_of_threads(tsh_world *world, const tshi_settings *settings, tsh_thread_rendezvous *threads) {
    tshi_shm *local = tshi_shm_of(world);
    int rank = settings->rank;
    if (atomic_flag_test_and_set(&threads->taken[rank])) {
        return tshi_fail(TSH_ERR_STATE, "world_init: rank %d of the threads has been taken", rank);
    }
    local->threads = threads;
    local->page = threads->page;
    threads->heap[rank] = tshi_map_memory(-1, settings->heap_bytes);
    threads->heap_bytes[rank] = settings->heap_bytes;
    local->heap[rank] = threads->heap[rank];
    local->heap_bytes[rank] = settings->heap_bytes;
    return local->heap[rank] ? TSH_OK : map_fail(settings->heap_bytes, rank);
}
