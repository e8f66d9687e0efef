/* Worlds over communicators of the program (tshard/mpi.h). The communicator takes the place of the rendezvous: its
 * ranks are those of the world, and the roster is gathered over it. What comes after is as in any world: ranks of one
 * machine share memory, others use MPI. */
#include "dist/transport/mpi/mpi.h"
#include "tshard/mpi.h"

#include <stdio.h>
#include <string.h>

#define PATIENCE   120.0
#define WARN_EVERY 5.0

/* MPI can be called. A program of another MPI than the library's has not called this one's MPI_Init. */
static tsh_status check_mpi(void) {
    char version[MPI_MAX_LIBRARY_VERSION_STRING] = "";
    int initialized = 0, finalized = 0, length;
    MPI_Initialized(&initialized);
    MPI_Finalized(&finalized);
    if (finalized) return tshi_fail(TSH_ERR_STATE, "world_init_mpi: MPI has been finalised");
    if (initialized) return tshi_mpi_check_thread();
    MPI_Get_library_version(version, &length);
    return tshi_fail(TSH_ERR_STATE, "world_init_mpi: MPI_Init has not been called (tshard was built with %.40s)",
                     version);
}

/* comm is a communicator of one group. */
static tsh_status check_communicator(MPI_Comm comm) {
    int inter = 0;
    if (comm == MPI_COMM_NULL) {
        return tshi_fail(TSH_ERR_ARGUMENT, "world_init_mpi: comm is MPI_COMM_NULL: ranks outside do not call");
    }
    MPI_Comm_test_inter(comm, &inter);
    return inter ? tshi_fail(TSH_ERR_ARGUMENT, "world_init_mpi: comm is an intercommunicator") : TSH_OK;
}

static tsh_status check_config(const tsh_world_config *config, const tshi_settings *s) {
    if (config->threads || (config->init_method && config->init_method[0])) {
        return tshi_fail(TSH_ERR_ARGUMENT, "world_init_mpi: the communicator says which the ranks are: threads and "
                                           "init_method stay unset");
    }
    if (!config->world_size || (config->world_size == s->size && config->rank == s->rank)) return TSH_OK;
    return tshi_fail(TSH_ERR_ARGUMENT,
                     "world_init_mpi: the configuration says rank %d of %d, the communicator rank %d of %d",
                     config->rank, config->world_size, s->rank, s->size);
}

static tsh_status mpi_fail(const char *call, int error) {
    char text[MPI_MAX_ERROR_STRING] = "";
    int length;
    MPI_Error_string(error, text, &length);
    return tshi_fail(TSH_ERR_SYSTEM, "world_init_mpi: %s: MPI error %d: %.300s", call, error, text);
}

/* Every rank learns whether one has failed, and why. */
static tsh_status share_failure(MPI_Comm comm, const tshi_settings *s, tsh_status mine) {
    char own[TSHI_MESSAGE_SIZE] = "", words[TSHI_MESSAGE_SIZE] = "";
    int failed = mine == TSH_OK ? s->size : s->rank, first = s->size;
    if (mine != TSH_OK) snprintf(own, sizeof own, "%s", tsh_error_message());
    int error = MPI_Allreduce(&failed, &first, 1, MPI_INT, MPI_MIN, comm);
    if (error == MPI_SUCCESS && first == s->size) return TSH_OK;
    memcpy(words, own, sizeof words);
    if (error == MPI_SUCCESS) error = MPI_Bcast(words, sizeof words, MPI_CHAR, first, comm);
    if (mine != TSH_OK) return tshi_fail(mine, "%s", own);
    if (error != MPI_SUCCESS) return mpi_fail("MPI_Allreduce", error);
    return tshi_fail(TSH_ERR_PEER, "rank %d: %s", first, words);
}

/* The roster of all ranks, with the key of rank 0, or an error. */
static tsh_status gather_roster(MPI_Comm comm, const tshi_settings *s, const tsh_allocator *allocator,
                                tshi_roster *out) {
    size_t size = (size_t)s->size;
    tshi_process me, *all = tshi_calloc(allocator, size, sizeof *all);
    const tshi_process **by_rank = tshi_calloc(allocator, size, sizeof *by_rank);
    tsh_status status = all && by_rank ? tshi_process_self(&me) : TSH_ERR_MEMORY;
    int error = MPI_SUCCESS;
    status = share_failure(comm, s, status);
    if (status == TSH_OK) error = MPI_Allgather(&me, sizeof me, MPI_BYTE, all, sizeof me, MPI_BYTE, comm);
    for (size_t i = 0; status == TSH_OK && i < size; i++) by_rank[i] = &all[i];
    if (status == TSH_OK) {
        status = share_failure(comm, s, tshi_roster_of(by_rank, s->size, allocator, out));
    }
    if (status == TSH_OK) error = MPI_Bcast(out->key, sizeof out->key, MPI_BYTE, 0, comm);
    if (status == TSH_OK && error != MPI_SUCCESS) status = mpi_fail("MPI_Allgather", error);
    out->rank = s->rank;
    tshi_free(allocator, all);
    tshi_free(allocator, by_rank);
    return status;
}

/* `comm` is the library's own duplicate; `mine` is how this rank has fared so far. */
static tsh_status world_over(MPI_Comm comm, const tsh_world_config *config, tshi_settings *s, tsh_status mine,
                             tsh_world **out) {
    tsh_allocator allocator = tshi_allocator_resolve(&config->allocator);
    tshi_roster roster = {0};
    tsh_status status = share_failure(comm, s, mine);
    if (status == TSH_OK) status = gather_roster(comm, s, &allocator, &roster);
    if (status == TSH_OK) {
        tshi_roster_settings(&roster, s);
        tshi_settings_share_cores(config, s);
        tshi_start start = {
            .config = config, .settings = s, .roster = s->size > 1 ? &roster : NULL, .communicator = &comm};
        status = tshi_world_start(&start, out);
    }
    tshi_roster_free(&roster, &allocator);
    return status;
}

tsh_status tsh_world_init_mpi(MPI_Comm comm, const tsh_world_config *config, tsh_world **out) {
    static const tsh_world_config empty;
    tshi_settings settings = {0};
    MPI_Comm own = MPI_COMM_NULL;
    if (!out) return tshi_fail(TSH_ERR_ARGUMENT, "world_init_mpi: out is NULL");
    *out = NULL;
    if (!config) config = &empty;
    tsh_status status = check_mpi();
    if (status == TSH_OK) status = check_communicator(comm);
    if (status != TSH_OK) return status;
    MPI_Comm_rank(comm, &settings.rank);
    MPI_Comm_size(comm, &settings.size);
    settings.local_size = settings.size;
    status = check_config(config, &settings);
    if (status == TSH_OK) status = tshi_settings_complete(config, &settings);
    bool read = status == TSH_OK;
    char words[TSHI_MESSAGE_SIZE];
    snprintf(words, sizeof words, "%s", read ? "" : tsh_error_message());
    tsh_status come = tshi_mpi_gather(comm, read ? tshi_rendezvous_patience(&settings) : PATIENCE,
                                      read ? settings.warn_every : WARN_EVERY, &config->log, &own);
    if (come != TSH_OK) return come;
    if (!read) tshi_fail(status, "%s", words);
    status = world_over(own, config, &settings, status, out);
    MPI_Comm_free(&own);
    return status;
}

tsh_status tsh_world_init_mpi_f(MPI_Fint comm, const tsh_world_config *config, tsh_world **out) {
    if (out) *out = NULL;
    tsh_status status = check_mpi(); /* which MPI_Comm_f2c needs */
    return status == TSH_OK ? tsh_world_init_mpi(MPI_Comm_f2c(comm), config, out) : status;
}
