/* Groups over MPI: their numbers. */
#include "dist/transport/mpi/mpi.h"

tsh_status tshi_mpi_group_prepare(tsh_group *group, uint64_t *address) {
    const tsh_world *world = group->world;
    (void)address;
    tsh_status status = tshi_tagged_group_prepare(group, sizeof(tshi_mpi_group));
    if (status != TSH_OK || group == world->group) return status;
    tshi_mpi_group *mg = group->state;
    mg->claim = tshi_calloc(&world->allocator, 1, tshi_mpi_claim_bytes(tshi_mpi_of(world)));
    return mg->claim ? TSH_OK : TSH_ERR_MEMORY;
}

tsh_status tshi_mpi_group_open(tsh_group *group, uint64_t address) {
    tshi_mpi_group *mg = group->state;
    (void)address;
    tsh_status status = tshi_mpi_number_take(group);
    tshi_free(&group->world->allocator, mg->claim);
    mg->claim = NULL;
    return status;
}

void tshi_mpi_group_close(tsh_group *group) {
    tshi_mpi_group *mg = group->state;
    int finalized = 1;
    if (!mg) return;
    if (mg->number) tshi_mpi_number_give(tshi_mpi_of(group->world), mg->number);
    tshi_free(&group->world->allocator, mg->claim);
    MPI_Finalized(&finalized);
    tshi_tagged_group_close(group, !finalized);
}
