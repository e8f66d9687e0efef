/* In place of the NCCL backend, where the build has none. */
#include "dist/backends/mpi/world.h"
#include "dist/backends/nccl/world.h"

tsh_status tshi_nccl_join(tsh_world *world) {
    if (world->size == 1 || !tshi_backend_is("nccl")) return TSH_OK;
    return tshi_fail(TSH_ERR_UNSUPPORTED,
                     "world_init: TSHARD_BACKEND is nccl, but this build has no NCCL (TSHARD_NCCL)");
}
