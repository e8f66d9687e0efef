/* Worlds over MPI: taking them, their communicators, and leaving. */
#include "base/cpu.h"
#include "dist/registry.h"
#include "dist/transport/mpi/mpi.h"

#include <string.h>

#define PATIENCE 120.0
/* The most bytes in one call of MPI. */
#define CHUNK ((int64_t)1 << 30)

/* --- opening ------------------------------------------------------------------------------------------------------ */

static bool under_mpi(void) {
    static const char *const names[] = {"OMPI_COMM_WORLD_SIZE", "MV2_COMM_WORLD_SIZE", "PMI_SIZE", "PMIX_RANK"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        if (tshi_variable(names[i])) return true;
    }
    return false;
}

static bool is_init_method(const tshi_settings *s) {
    return s->method == TSHI_INIT_TRANSPORT && !strcmp(s->transport, "mpi");
}

/* MPI connects the ranks of a communicator on several machines, and any ranks if the user asks for it. Before the
 * rendezvous it takes worlds whose ranks an MPI launcher has started, and finds them itself. */
static bool is_wanted(const tshi_start *start) {
    const tshi_settings *s = start->settings;
    bool mpi = tshi_backend_is("mpi"), local = tshi_backend_is("local");
    bool other = tshi_setting_value(TSHI_SETTING_BACKEND) && !mpi && !tshi_backend_is("nccl");
    if (start->roster) return mpi || (start->communicator && start->roster->nodes > 1 && !local);
    if (start->communicator) return false;                     /* a communicator of one rank */
    bool numbered = start->config->world_size && !s->launched; /* by the program, maybe not as MPI numbers them */
    if (numbered && !is_init_method(s)) return false;
    bool machines = s->method == TSHI_INIT_ENV && s->local_known && s->local_size != s->size;
    return is_init_method(s) || (mpi && s->size == 1) || (under_mpi() && (mpi || (machines && !other)));
}

static tsh_status probe(const tshi_start *start, bool *takes) {
    if (start->config->threads) return TSH_OK;
    if (is_init_method(start->settings) && tshi_backend_is("local")) {
        return tshi_fail(TSH_ERR_ARGUMENT, "world_init: init_method is mpi://, but TSHARD_BACKEND is local");
    }
    if (!is_wanted(start)) return TSH_OK;
    if (start->communicator) {
        *takes = true;
        return TSH_OK;
    }
    if (start->roster) {
        return tshi_fail(TSH_ERR_UNSUPPORTED,
                         "world_init: TSHARD_BACKEND is mpi, but no launcher of MPI has started the ranks: start them "
                         "with mpirun or srun");
    }
    tsh_status status = tshi_mpi_enter(start);
    *takes = start->settings->size > 1;
    return status;
}

static tsh_status world_open(tsh_world *world, const tshi_start *start, void **heap) {
    tshi_mpi *mpi = tshi_calloc(&world->allocator, 1, sizeof *mpi);
    (void)heap;
    if (!mpi) return TSH_ERR_MEMORY;
    world->state[TSHI_MPI_PLACE] = mpi;
    mpi->base = start->communicator ? *(const MPI_Comm *)start->communicator : MPI_COMM_WORLD;
    mpi->comm = MPI_COMM_NULL;
    mpi->discarding = MPI_REQUEST_NULL;
    return tshi_tagged_open(world, &mpi->tagged, &tshi_mpi_messages, CHUNK);
}

/* --- joining ------------------------------------------------------------------------------------------------------ */

/* An MPI setting names a component that drives RDMA adapters. */
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

/* This machine has an RDMA adapter, and MPI is built with, or set to use, a component that drives it. */
static bool find_rdma(void) {
    char version[MPI_MAX_LIBRARY_VERSION_STRING] = "";
    int length = 0, level;
    if (!tshi_has_adapter()) return false;
    MPI_Get_library_version(version, &length);
    if (names_rdma(version)) return true;
    if (MPI_T_init_thread(MPI_THREAD_SINGLE, &level) != MPI_SUCCESS) return false;
    bool found = variable_names_rdma("pml") || variable_names_rdma("btl") || variable_names_rdma("mtl");
    MPI_T_finalize();
    return found;
}

static tsh_status world_join(tsh_world *world, tsh_status mine) {
    tshi_mpi *mpi = tshi_mpi_of(world);
    if (!mpi) return mine;
    uint64_t unused;
    if (mine == TSH_OK) mine = tshi_mpi_count_tags(world);
    if (mine == TSH_OK) mine = tshi_mpi_group_prepare(world->group, &unused);
    int failed = mine != TSH_OK, any = 0;
    tshi_failure own;
    tshi_failure_keep(&own, mine);
    tsh_status come = tshi_mpi_gather(mpi->base, world->timeout < PATIENCE ? world->timeout : PATIENCE,
                                      world->warn_every, &world->log, &mpi->comm);
    if (come != TSH_OK) return come;
    int error = MPI_Allreduce(&failed, &any, 1, MPI_INT, MPI_MAX, mpi->comm);
    if (error != MPI_SUCCESS) return tshi_mpi_error(world, "world_init", error);
    if (failed) return tshi_failure_report(&own);
    if (any) return tshi_fail(TSH_ERR_PEER, "world_init: another rank could not join");
    mpi->ready = true;
    tshi_mpi_list(world);
    tshi_tagged_joined(world);
    mpi->rdma = world->machine.nodes > 1 && find_rdma();
    return TSH_OK;
}

static bool rdma(const tsh_world *world) {
    return tshi_mpi_of(world)->rdma;
}

/* --- leaving ------------------------------------------------------------------------------------------------------ */

void tshi_mpi_leave(tsh_world *world) {
    tshi_mpi *mpi = tshi_mpi_of(world);
    int finalized = 1;
    MPI_Finalized(&finalized);
    if (finalized) {
        tshi_log(&world->log, TSH_LOG_ERROR, "world_destroy: MPI was finalised before the world was destroyed");
    }
    if (!mpi->ready || finalized) return;
    tshi_control_leave(world);
    mpi->ready = false;
    tshi_mpi_unlist(world);
    if (!tshi_tagged_messages_ended(world)) tshi_mpi_skip_finalize();
    if (world->machine.broken == TSH_OK) MPI_Comm_free(&mpi->comm);
}

static void world_close(tsh_world *world) {
    tshi_mpi *mpi = tshi_mpi_of(world);
    const tsh_allocator *allocator = &world->allocator;
    tshi_tagged_close(world, &mpi->tagged);
    tshi_free(allocator, mpi->taken);
    tshi_free(allocator, mpi);
    world->state[TSHI_MPI_PLACE] = NULL;
}

const tshi_group_ops tshi_mpi_ops = {
    .name = "mpi",
    .place = TSHI_MPI_PLACE,
    .overlaps = tshi_tagged_overlaps,
    .stages = tshi_tagged_stages,
    .probe = probe,
    .world_open = world_open,
    .world_join = world_join,
    .rdma = rdma,
    .recover = tshi_tagged_recover,
    .leave = tshi_mpi_leave,
    .world_close = world_close,
    .prepare = tshi_mpi_group_prepare,
    .open = tshi_mpi_group_open,
    .close = tshi_mpi_group_close,
    .check_peers = tshi_tagged_check_peers,
    .restart = tshi_tagged_restart,
    .fails_later = tshi_control_fails_later,
    .run = tshi_tagged_run,
    .start = tshi_tagged_start,
    .progress = tshi_tagged_progress,
    .drop = tshi_tagged_message_drop,
    .nap = tshi_tagged_nap,
    .awake = tshi_tagged_awake,
};
