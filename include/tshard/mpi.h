/* mpi: worlds over communicators of a program that uses MPI itself.
 *
 * Not part of tshard.h, because it includes <mpi.h>, and installed only with a library that was built with MPI: the
 * program uses the same MPI. docs/mpi-programs.md says what the program has to keep to.
 *
 * Thread safety: a world belongs to the thread that made it, which is one that may call MPI. */
#ifndef TSHARD_MPI_H
#define TSHARD_MPI_H

#include "tshard/dist.h"

#include <mpi.h>

#ifdef __cplusplus
extern "C" {
#endif

/* A world of the ranks of `comm`, in their order: MPI_COMM_WORLD, a part of it, or any other intracommunicator.
 * Variables of launchers and TSHARD_INIT are not looked at. Ranks that share a machine use the backend "local";
 * TSHARD_BACKEND=mpi, or ranks on several machines, MPI.
 *   The communicator is duplicated: messages of the program and of the world never mix, the program may free `comm`
 * once the call has returned, and its error handler stays as it is. A process may have several worlds at a time, over
 * disjoint or overlapping communicators; a communicator may have several worlds.
 *   The program has called MPI_Init or MPI_Init_thread, with any thread level, and calls MPI_Finalize: after the worlds
 * are destroyed, for a world over the backend "mpi" ends with MPI. The world calls MPI from the thread that uses the
 * world alone. Below MPI_THREAD_SERIALIZED that is the thread that started MPI; at MPI_THREAD_SERIALIZED no other
 * thread is inside MPI meanwhile.
 *   config may be NULL; init_method and threads stay unset, rank and world_size too or those of comm. Collective over
 * comm, waits at most 120 s for its ranks. Errors as tsh_world_init has them, and on every rank where one rank has one:
 * TSH_ERR_PEER with the words of that rank. TSH_ERR_STATE before MPI_Init, after MPI_Finalize and in the wrong thread,
 * TSH_ERR_ARGUMENT for MPI_COMM_NULL and for an intercommunicator. */
TSH_API tsh_status tsh_world_init_mpi(MPI_Comm comm, const tsh_world_config *config, tsh_world **out);

/* As tsh_world_init_mpi, for the handle of a Fortran program: INTEGER comm (mpif.h, use mpi) or comm%MPI_VAL. */
TSH_API tsh_status tsh_world_init_mpi_f(MPI_Fint comm, const tsh_world_config *config, tsh_world **out);

#ifdef __cplusplus
}
#endif

#endif
