/* mpi: worlds over the communicators of a program that uses MPI itself.
 *
 * Not part of tshard.h, because it includes <mpi.h>; installed only with a library that was built with MPI. The program
 * uses the same MPI. See docs/mpi-programs.md.
 *
 * Thread safety: a world belongs to the thread that created it, which must be allowed to call MPI. */
#ifndef TSHARD_MPI_H
#define TSHARD_MPI_H

#include "tshard/dist.h"

#include <mpi.h>

#ifdef __cplusplus
extern "C" {
#endif

/* A world of the ranks of `comm`, in their order: MPI_COMM_WORLD, a part of it, or any other intracommunicator.
 * Launchers' variables and TSHARD_INIT are ignored. Ranks of one machine use the backend "local"; ranks on several
 * machines, or with TSHARD_BACKEND=mpi, the backend "mpi".
 *   The communicator is duplicated: messages of the program and of the world never mix, the program may free `comm`
 * once the call has returned, and the error handler of `comm` does not change. A process may have several worlds at a
 * time, over disjoint or overlapping communicators; a communicator may have several worlds.
 *   The program calls MPI_Init or MPI_Init_thread before, with any thread level, and MPI_Finalize after the worlds are
 * destroyed: a world with the backend "mpi" ends with MPI. The world calls MPI only from the thread that uses it. Below
 * MPI_THREAD_SERIALIZED that must be the thread that started MPI; at MPI_THREAD_SERIALIZED no other thread may be
 * inside MPI at the same time.
 *   config may be NULL; its init_method and threads must be unset, and rank and world_size unset or those of comm.
 * Collective over comm, waits at most 120 s for its ranks. Errors are those of tsh_world_init; peers of a rank that
 * fails get TSH_ERR_PEER with its message. TSH_ERR_STATE before MPI_Init, after MPI_Finalize and in the wrong thread,
 * TSH_ERR_ARGUMENT for MPI_COMM_NULL and for an intercommunicator. */
TSH_API tsh_status tsh_world_init_mpi(MPI_Comm comm, const tsh_world_config *config, tsh_world **out);

/* As tsh_world_init_mpi, for the handle of a Fortran program: INTEGER comm (mpif.h, use mpi) or comm%MPI_VAL. */
TSH_API tsh_status tsh_world_init_mpi_f(MPI_Fint comm, const tsh_world_config *config, tsh_world **out);

#ifdef __cplusplus
}
#endif

#endif
