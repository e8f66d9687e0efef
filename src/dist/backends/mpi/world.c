/* Worlds over MPI: the heap, the communicators, and leaving. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "base/cpu.h"
#include "dist/backends/mpi/mpi.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define MOST_CORES 1024
#define SPINS      4000
#define PATIENCE   120.0
/* Elements of one call of MPI, whose counts are ints. */
#define CHUNK ((int64_t)1 << 30)

/* --- the heap ----------------------------------------------------------------------------------------------------- */

static tsh_status heap_open(tshi_mpi *mpi, size_t bytes) {
    mpi->heap = tshi_map_memory(-1, bytes);
    mpi->heap_bytes = bytes;
    if (mpi->heap) return TSH_OK;
    tshi_fail_errno(errno, "world_init: mapping a heap of %zu bytes (TSHARD_HEAP makes it smaller)", bytes);
    return TSH_ERR_MEMORY;
}

tsh_status tshi_mpi_open(tsh_world *world, const tshi_settings *settings) {
    const tsh_allocator *allocator = &world->allocator;
    size_t size = (size_t)settings->size;
    tshi_mpi *mpi = tshi_calloc(allocator, 1, sizeof *mpi);
    if (!mpi) return TSH_ERR_MEMORY;
    world->state = mpi;
    world->ops = &tshi_mpi_ops;
    mpi->recovery = mpi->notices = MPI_COMM_NULL;
    mpi->inbox_request = MPI_REQUEST_NULL;
    mpi->chunk = CHUNK;
    tsh_status status = tshi_process_self(&mpi->me);
    if (status != TSH_OK) return status;
    mpi->watched = settings->checked;
    mpi->shared = settings->shared;
    mpi->node = tshi_calloc(allocator, size, sizeof *mpi->node);
    mpi->peer = tshi_calloc(allocator, size, sizeof *mpi->peer);
    mpi->outbox = tshi_outbox_create(settings->size);
    return mpi->node && mpi->peer && mpi->outbox ? heap_open(mpi, settings->heap_bytes) : TSH_ERR_MEMORY;
}

/* --- joining ------------------------------------------------------------------------------------------------------ */

/* Machines, numbered by their first rank; and whether this one has fewer cores than ranks. */
static int find_machines(tsh_world *world, tshi_mpi *mpi) {
    MPI_Comm node;
    unsigned char mine[MOST_CORES / 8], all[MOST_CORES / 8];
    int first = world->rank, ranks = 0, cores = 0;
    tshi_granted_cores(mine, sizeof mine);
    int error = MPI_Comm_split_type(mpi->recovery, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &node);
    if (error != MPI_SUCCESS) return error;
    MPI_Comm_size(node, &ranks);
    error = MPI_Bcast(&first, 1, MPI_INT, 0, node);
    if (error == MPI_SUCCESS) error = MPI_Allreduce(mine, all, sizeof mine, MPI_UNSIGNED_CHAR, MPI_BOR, node);
    MPI_Comm_free(&node);
    if (error != MPI_SUCCESS) return error;
    for (size_t i = 0; i < sizeof all; i++) cores += __builtin_popcount(all[i]);
    mpi->crowded = ranks > cores;
    error = MPI_Allgather(&first, 1, MPI_INT, mpi->node, 1, MPI_INT, mpi->recovery);
    for (int i = 0; i < world->size; i++) mpi->nodes += mpi->node[i] == i;
    return error;
}

/* The words of MPI's own settings that name its transports. */
static bool names_rdma(const char *text) {
    return strstr(text, "ucx") || strstr(text, "openib") || strstr(text, "ofi") || strstr(text, "psm") ||
           strstr(text, "usnic");
}

static bool variable_names_rdma(const char *name) {
    char text[256] = "";
    int index, count = 0;
    MPI_T_cvar_handle handle;
    if (MPI_T_cvar_get_index(name, &index) != MPI_SUCCESS) return false;
    if (MPI_T_cvar_handle_alloc(index, NULL, &handle, &count) != MPI_SUCCESS) return false;
    bool names = count < (int)sizeof text && MPI_T_cvar_read(handle, text) == MPI_SUCCESS && names_rdma(text);
    MPI_T_cvar_handle_free(&handle);
    return names;
}

/* There are adapters here, and MPI was built on, or told to use, a transport that drives them. */
static bool find_rdma(void) {
    char version[MPI_MAX_LIBRARY_VERSION_STRING] = "";
    int length = 0, level;
    if (!tshi_mpi_has_adapter()) return false;
    MPI_Get_library_version(version, &length);
    if (names_rdma(version)) return true;
    if (MPI_T_init_thread(MPI_THREAD_SINGLE, &level) != MPI_SUCCESS) return false;
    bool found = variable_names_rdma("pml") || variable_names_rdma("btl") || variable_names_rdma("mtl");
    MPI_T_finalize();
    return found;
}

static int make_communicators(tsh_world *world, tshi_mpi *mpi) {
    int error = MPI_Comm_dup(mpi->recovery, &mpi->notices);
    if (error == MPI_SUCCESS) error = MPI_Comm_set_errhandler(mpi->notices, MPI_ERRORS_RETURN);
    if (error == MPI_SUCCESS) error = find_machines(world, mpi);
    if (error == MPI_SUCCESS) error = tshi_mpi_ops_create(mpi);
    if (error == MPI_SUCCESS) {
        error = MPI_Irecv(&mpi->inbox, (int)sizeof mpi->inbox, MPI_BYTE, MPI_ANY_SOURCE, 0, mpi->notices,
                          &mpi->inbox_request);
    }
    return error;
}

/* Where all ranks share the memory of one machine their waits can be followed. */
static tsh_status open_waits(tsh_world *world) {
    tshi_mpi *mpi = world->state;
    tshi_gate_block *block = tshi_mpi_group_of(world->group)->block;
    tsh_status status = tshi_waits_open(world, &mpi->waits, block ? &block->member[world->size] : NULL);
    for (int i = 0; status == TSH_OK && block && i < world->size; i++) {
        const tshi_process *who = &block->member[i].who;
        if (tshi_process_same_machine(who, &mpi->me)) mpi->waits.process[i] = (int)who->number;
    }
    return status;
}

tsh_status tshi_mpi_join(tsh_world *world, tsh_status mine) {
    tshi_mpi *mpi = world->state;
    tshi_mpi_group *mg = mine == TSH_OK ? tshi_mpi_group_new(world, world->size) : NULL;
    MPI_Comm comm = MPI_COMM_NULL;
    int failed = mg == NULL, any = 0;
    char words[TSHI_MESSAGE_SIZE];
    snprintf(words, sizeof words, "%s", failed ? tsh_error_message() : "");
    tsh_status come = tshi_mpi_gather(world->timeout < PATIENCE ? world->timeout : PATIENCE, world->warn_every,
                                      &world->log, &mpi->recovery);
    if (come != TSH_OK) {
        tshi_mpi_group_free(world, mg);
        return come;
    }
    int error = MPI_Allreduce(&failed, &any, 1, MPI_INT, MPI_MAX, mpi->recovery);
    if (error == MPI_SUCCESS && any) {
        tshi_mpi_group_free(world, mg);
        if (failed) return tshi_fail(mine == TSH_OK ? TSH_ERR_MEMORY : mine, "%s", words);
        return tshi_fail(TSH_ERR_PEER, "world_init: another rank could not join");
    }
    if (error == MPI_SUCCESS) error = make_communicators(world, mpi);
    if (error == MPI_SUCCESS) error = MPI_Comm_dup(mpi->recovery, &comm);
    if (error != MPI_SUCCESS) {
        tshi_mpi_group_free(world, mg);
        return tshi_mpi_error(world, "world_init", error);
    }
    mpi->ready = true;
    mpi->rdma = mpi->nodes > 1 && find_rdma();
    world->spins = mpi->crowded ? 0 : SPINS;
    if (!mpi->watched) tshi_watch_open(world);
    tsh_status status = tshi_mpi_group_attach(world->group, mg, comm);
    return status == TSH_OK ? open_waits(world) : status;
}

bool tshi_mpi_owns(const tsh_world *world) {
    return world->ops == &tshi_mpi_ops;
}

void *tshi_mpi_heap(const tsh_world *world) {
    return tshi_mpi_of(world)->heap;
}

int tshi_mpi_nodes(const tsh_world *world) {
    return tshi_mpi_of(world)->nodes;
}

bool tshi_mpi_rdma(const tsh_world *world) {
    return tshi_mpi_of(world)->rdma;
}

/* --- leaving ------------------------------------------------------------------------------------------------------ */

void tshi_mpi_leave(tsh_world *world) {
    tshi_mpi *mpi = world->state;
    int finalized = 1;
    MPI_Finalized(&finalized);
    if (!mpi->ready || finalized) return;
    tshi_mpi_poll(world);
    tshi_mpi_tell(world, TSHI_NOTICE_LEFT, "", (tshi_tape_step){0});
    mpi->ready = false;
    /* Nobody else takes in what the others still say. */
    MPI_Status status;
    int cancelled = 1, heard = 0;
    MPI_Cancel(&mpi->inbox_request);
    MPI_Wait(&mpi->inbox_request, &status);
    MPI_Test_cancelled(&status, &cancelled);
    for (int i = 0; i < world->size; i++) heard += mpi->peer[i].left != 0;
    heard += !cancelled && mpi->inbox.kind == TSHI_NOTICE_LEFT;
    tshi_mpi_ops_free(mpi);
    if (mpi->broken != TSH_OK) {
        MPI_Comm none = MPI_COMM_NULL;
        tshi_mpi_part(&none, 0, &mpi->outbox, world->size);
        return;
    }
    tshi_mpi_part(&mpi->notices, world->size - 1 - heard, &mpi->outbox, world->size);
    MPI_Comm_free(&mpi->recovery);
}

void tshi_mpi_close(tsh_world *world) {
    tshi_mpi *mpi = world->state;
    const tsh_allocator *allocator = &world->allocator;
    if (!mpi) return;
    tshi_watch_close(world);
    if (mpi->heap) munmap(mpi->heap, mpi->heap_bytes);
    for (int i = 0; mpi->peer && i < world->size; i++) tshi_free(allocator, mpi->peer[i].words);
    free(mpi->outbox);
    tshi_pool_clear(&mpi->messages, allocator);
    tshi_waits_close(world, &mpi->waits);
    tshi_free(allocator, mpi->peer);
    tshi_free(allocator, mpi->node);
    tshi_free(allocator, mpi);
    world->state = NULL;
}
