/* Programs that have started MPI themselves. */
#include "dist/tagged/ranks.h"

#ifdef TSHARD_HAVE_MPI
#include <mpi.h>

void guest_begin(int argc, char **argv, int *rank, int *size) {
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, rank);
    MPI_Comm_size(MPI_COMM_WORLD, size);
}

void guest_end(void) {
    MPI_Finalize();
}

/* tshard neither starts nor ends MPI, and leaves its communicators alone. */
void scenario_guest(tshi_rank *r) {
    int finalized = 1, sum = 0, one = 1;
    scenario_groups(r);
    tsh_world_destroy(r->world);
    r->world = NULL;
    MPI_Finalized(&finalized);
    tshi_check(r, !finalized, "MPI has been finalised");
    MPI_Allreduce(&one, &sum, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
    tshi_check(r, sum == r->size, "the program's own all_reduce returned %d", sum);
}
#else
void guest_begin(int argc, char **argv, int *rank, int *size) {
    (void)argc;
    (void)argv;
    *rank = *size = 0;
}

void guest_end(void) {}

void scenario_guest(tshi_rank *r) {
    tshi_check(r, false, "this build has no MPI");
}
#endif
