/* In place of the MPI backend, where the build has none. */
#include "dist/backends/mpi/world.h"

tsh_status tshi_mpi_settings(const tsh_world_config *config, tshi_settings *settings, bool *use) {
    (void)config;
    tsh_status status = tshi_mpi_wanted(settings, use);
    if (status != TSH_OK || !*use) return status;
    *use = false;
    return tshi_fail(TSH_ERR_UNSUPPORTED, "world_init: MPI is wanted, but this build has none (TSHARD_MPI)");
}

tsh_status tshi_mpi_connect(const tsh_world_config *config, const tshi_roster *roster, const tsh_allocator *allocator,
                            double deadline, tshi_settings *settings) {
    char hosts[TSHI_LINE];
    (void)config;
    (void)allocator;
    (void)deadline;
    (void)settings;
    if (roster->nodes == 1) {
        return tshi_fail(TSH_ERR_UNSUPPORTED, "world_init: MPI is wanted, but this build has none (TSHARD_MPI)");
    }
    return tshi_fail(TSH_ERR_UNSUPPORTED,
                     "world_init: the ranks are on %d machines (%s); ranks on several need an MPI build (TSHARD_MPI)",
                     roster->nodes, tshi_roster_hosts(roster, hosts, sizeof hosts));
}

tsh_status tshi_mpi_open(tsh_world *world, const tshi_settings *settings) {
    (void)world;
    (void)settings;
    return tshi_fail(TSH_ERR_UNSUPPORTED, "world_init: this build has no MPI");
}

tsh_status tshi_mpi_join(tsh_world *world, tsh_status mine) {
    (void)world;
    return mine;
}

bool tshi_mpi_owns(const tsh_world *world) {
    (void)world;
    return false;
}

void *tshi_mpi_heap(const tsh_world *world) {
    (void)world;
    return NULL;
}

void tshi_mpi_close(tsh_world *world) {
    (void)world;
}

int tshi_mpi_nodes(const tsh_world *world) {
    (void)world;
    return 1;
}

bool tshi_mpi_rdma(const tsh_world *world) {
    (void)world;
    return false;
}
