/* What a world needs of MPI, with or without it in the build: mpi_world.c, or no_mpi.c. */
#ifndef TSHI_MPI_WORLD_H
#define TSHI_MPI_WORLD_H

#include "dist/bootstrap/rendezvous.h"

/* Whether MPI is to be used: asked for, or ranks on several machines under a launcher of MPI. Then rank and size are
 * those of MPI_COMM_WORLD, which is started unless somebody has. */
tsh_status tshi_mpi_settings(const tsh_world_config *config, tshi_settings *settings, bool *use);
/* The same for ranks that have met, where no launcher of MPI has started them. */
tsh_status tshi_mpi_connect(const tsh_world_config *config, const tshi_roster *roster, const tsh_allocator *allocator,
                            double deadline, tshi_settings *settings);
/* Makes world->ops and world->state with its heap, for a world of two ranks or more. */
tsh_status tshi_mpi_open(tsh_world *world, const tshi_settings *settings);
/* The communicators, once world->group is there. Every rank comes, `mine` says how it has fared so far. */
tsh_status tshi_mpi_join(tsh_world *world, tsh_status mine);
/* It was made by tshi_mpi_open. */
bool tshi_mpi_owns(const tsh_world *world);
void *tshi_mpi_heap(const tsh_world *world);
/* After the device is gone. */
void tshi_mpi_close(tsh_world *world);
int tshi_mpi_nodes(const tsh_world *world);
bool tshi_mpi_rdma(const tsh_world *world);

/* --- choice.c ----------------------------------------------------------------------------------------------------- */

/* Whether TSHARD_INIT, TSHARD_BACKEND or the launcher's variables ask for MPI, and a launcher of MPI has started the
 * ranks: else they meet first. */
tsh_status tshi_mpi_wanted(const tshi_settings *settings, bool *out);
/* TSHARD_BACKEND is this. */
bool tshi_backend_is(const char *name);

#endif
