/* Worlds over communicators of the program (tshard/mpi.h). The communicator replaces the rendezvous: its ranks are the
 * world's, and the roster is gathered over it. After that the world is like any other: ranks of one machine share
 * memory, others use MPI. */
#include "dist/transport/mpi/mpi.h"
#include "tshard/mpi.h"

#define PATIENCE   120.0
#define WARN_EVERY 5.0

/* MPI is initialized, and may be called from this thread. In a program linked with another MPI than the library's, this
 * MPI is not initialized, so the message names it. */
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

static tsh_status check_communicator(MPI_Comm comm) {
    int inter = 0;
    if (comm == MPI_COMM_NULL) {
        return tshi_fail(TSH_ERR_ARGUMENT,
                         "world_init_mpi: comm is MPI_COMM_NULL: only ranks of the communicator call this");
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

/* comm: the library's own duplicate. mine: this rank's status so far. */
static tsh_status world_over(MPI_Comm comm, const tsh_world_config *config, tshi_settings *s, tsh_status mine,
                             tsh_world **out) {
    tsh_allocator allocator = tshi_allocator_resolve(&config->allocator);
    tshi_roster roster = {0};
    tsh_status status = tshi_mpi_roster(comm, s, &allocator, mine, &roster);
    if (status == TSH_OK) {
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
    tshi_failure read_failure;
    tshi_failure_keep(&read_failure, status);
    tsh_status come = tshi_mpi_gather(comm, read ? tshi_rendezvous_patience(&settings) : PATIENCE,
                                      read ? settings.warn_every : WARN_EVERY, &config->log, &own);
    if (come != TSH_OK) return come;
    tshi_failure_report(&read_failure);
    status = world_over(own, config, &settings, status, out);
    MPI_Comm_free(&own);
    return status;
}

tsh_status tsh_world_init_mpi_f(MPI_Fint comm, const tsh_world_config *config, tsh_world **out) {
    if (out) *out = NULL;
    tsh_status status = check_mpi(); /* MPI_Comm_f2c needs an initialized MPI */
    return status == TSH_OK ? tsh_world_init_mpi(MPI_Comm_f2c(comm), config, out) : status;
}
