/* MPI_Init of the other ranks needs what the missing one would have published. */
#include "stand_in.h"

#include <mpi.h>
#include <unistd.h>

int helper_stand_in(void) {
    int level;
    if (MPI_Init_thread(NULL, NULL, MPI_THREAD_SINGLE, &level) != MPI_SUCCESS) return 1;
    for (;;) pause();
}
