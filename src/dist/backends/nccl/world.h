/* What a world needs of NCCL, with or without it in the build: nccl_world.c, or no_nccl.c. */
#ifndef TSHI_NCCL_WORLD_H
#define TSHI_NCCL_WORLD_H

#include "dist/world.h"

/* After the ranks have met in world->ops. Where their tensors live on GPUs, one to a rank, and NCCL is there for all,
 * its collectives go to NCCL: world->upper, and a new world->group above the one there was. TSHARD_BACKEND forces it
 * (nccl) or rules it out (local, mpi). Every rank comes to the same verdict, which the log gets. Collective over the
 * world. */
tsh_status tshi_nccl_join(tsh_world *world);

#endif
