/* In place of the NCCL backend, where the build has none. */
#include "dist/environment.h"
#include "dist/nccl_world.h"

#include <string.h>

tsh_status tshi_nccl_join(tsh_world *world) {
    const char *backend = tshi_variable("TSHARD_BACKEND");
    if (world->size == 1 || !backend || strcmp(backend, "nccl") != 0) return TSH_OK;
    return tshi_fail(TSH_ERR_UNSUPPORTED,
                     "world_init: TSHARD_BACKEND is nccl, but this build has no NCCL (TSHARD_NCCL)");
}
