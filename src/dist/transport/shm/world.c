/* Worlds of one machine: which ranks they connect, joining and closing them. */
#include "base/cpu.h"
#include "dist/registry.h"
#include "dist/rendezvous/rendezvous.h"
#include "dist/transport/shm/shm.h"

#include <sys/mman.h>
#include <unistd.h>

#define LONGEST_JOIN 120.0

/* Spinning only pays when the peer has a core of its own. */
#define SPINS        4000
#define YIELDS       64
#define SPINS_SHARED 8

/* Threads, or processes that the rendezvous has found on one machine. */
tsh_status tshi_shm_probe(const tshi_start *start, bool *takes) {
    const tshi_roster *roster = start->roster;
    char hosts[TSHI_LINE];
    if (start->config->threads) {
        tsh_status status = tshi_threads_settings(start->config, start->settings);
        *takes = start->settings->size > 1;
        return status;
    }
    *takes = roster && roster->nodes == 1;
    if (!roster || *takes || !tshi_backend_is("local")) return TSH_OK;
    return tshi_fail(TSH_ERR_ARGUMENT, "world_init: the ranks are on %d machines (%s), but TSHARD_BACKEND is local",
                     roster->nodes, tshi_roster_hosts(roster, hosts, sizeof hosts));
}

static tsh_status local_new(tsh_world *world, const tshi_settings *settings) {
    const tsh_allocator *allocator = &world->allocator;
    size_t size = (size_t)settings->size;
    tshi_shm *local = tshi_calloc(allocator, 1, sizeof *local);
    if (!local) return TSH_ERR_MEMORY;
    world->state = local;
    local->heap = tshi_calloc(allocator, size, sizeof *local->heap);
    local->heap_bytes = tshi_calloc(allocator, size, sizeof *local->heap_bytes);
    local->file = -1;
    local->spins = SPINS_SHARED; /* until count_cores */
    local->yields = YIELDS;
    return local->heap && local->heap_bytes ? TSH_OK : TSH_ERR_MEMORY;
}

tsh_status tshi_shm_world_open(tsh_world *world, const tshi_start *start, void **heap) {
    tsh_thread_rendezvous *threads = start->config->threads;
    tsh_status status = local_new(world, start->settings);
    if (status != TSH_OK) return status;
    status = threads ? tshi_memory_of_threads(world, start->settings, threads)
                     : tshi_memory_of_processes(world, start->settings, start->deadline);
    *heap = tshi_shm_of(world)->heap[world->rank];
    return status;
}

/* Counts the cores that the ranks may use together: a launcher may have bound each rank to its own. */
static void count_cores(tsh_world *world, tshi_shm *local) {
    int cores = 0;
    for (int i = 0; i < TSHI_CORE_BYTES; i++) {
        unsigned any = 0;
        for (int rank = 0; rank < world->size; rank++) any |= local->page->record[rank].cores[i];
        cores += __builtin_popcount(any);
    }
    local->crowded = world->size > cores;
    local->spins = local->crowded ? SPINS_SHARED : SPINS;
    world->spins = local->spins;
    tshi_shm_tune(world->group->state, local);
}

/* The rows of waits lie behind the block of the world's group. */
static tsh_status open_waits(tsh_world *world) {
    tshi_shm *local = tshi_shm_of(world);
    char *block = (char *)local->page + tshi_page_bytes(world->size);
    tsh_status status = tshi_waits_open(world, &local->waits, block + tshi_block_bytes(world->size));
    if (status != TSH_OK || local->threads) return status;
    /* Other namespaces number processes differently. */
    const tshi_rank_record *r = local->page->record;
    for (int i = 0; i < world->size; i++) {
        local->waits.process[i] = r[i].namespace == r[world->rank].namespace ? r[i].process : 0;
    }
    return TSH_OK;
}

static tsh_status join(tsh_world *world) {
    tshi_shm *local = tshi_shm_of(world);
    tshi_shm_group *lg = tshi_shm_group_new(world, world->size);
    if (!lg) return TSH_ERR_MEMORY;
    lg->block = (char *)local->page + tshi_page_bytes(world->size);
    world->group->state = lg;
    tsh_status status = open_waits(world);
    if (status != TSH_OK) return status;
    tshi_granted_cores(local->page->record[world->rank].cores, TSHI_CORE_BYTES);
    double timeout = world->timeout;
    if (world->timeout > LONGEST_JOIN) world->timeout = LONGEST_JOIN;
    status = tshi_shm_agree(world->group, "world_init", TSH_OK, 0);
    world->timeout = timeout;
    if (status == TSH_OK) count_cores(world, local);
    for (int i = 0; status == TSH_OK && local->threads && i < world->size; i++) {
        local->heap[i] = local->threads->heap[i];
        local->heap_bytes[i] = local->threads->heap_bytes[i];
    }
    return status;
}

tsh_status tshi_shm_world_join(tsh_world *world, tsh_status mine) {
    const tshi_shm *local = tshi_shm_of(world);
    tsh_status status = mine == TSH_OK ? join(world) : mine;
    if (status != TSH_OK && local && local->page) tshi_shm_fail(world, tsh_error_message(), (tshi_tape_step){0});
    return status;
}

void tshi_shm_world_close(tsh_world *world) {
    tshi_shm *local = tshi_shm_of(world);
    const tsh_allocator *allocator = &world->allocator;
    if (local->memory) munmap(local->memory, local->memory_bytes);
    if (local->life) munmap(local->life, 1);
    if (tshi_shm_has_file(local)) close(local->file);
    tshi_waits_close(world, &local->waits);
    tshi_free(allocator, local->heap);
    tshi_free(allocator, local->heap_bytes);
    tshi_free(allocator, local);
    world->state = NULL;
}
