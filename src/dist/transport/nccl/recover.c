/* Recovery: the world's group gets a new communicator at once. Other groups get theirs with their first collective,
 * which all members make, because a rank may have destroyed a group that its peers still have. */
#include "dist/transport/nccl/nccl.h"

#include <string.h>

/* Each wait that the GPU has queued has ended, with its event or in an error, so the GPU comes to the end of its
 * queues. */
tsh_status tshi_nccl_recover(tsh_world *world) {
    tshi_nccl *nccl = tshi_nccl_of(world);
    tshi_cuda_device *device = tshi_nccl_device(world);
    if (device->capturing) return tshi_fail(TSH_ERR_STATE, "world_recover: not while a graph is captured");
    tshi_nccl_abort_all(world);
    cudaError_t error = tshi_cuda_communication_wait(device);
    if (error != cudaSuccess) return tshi_cuda_fail(error, "world_recover: cudaStreamSynchronize");
    if (device->failed != TSH_OK && !strcmp(device->message, nccl->message)) device->failed = TSH_OK;
    tsh_status status = tshi_recover_control(world);
    if (status != TSH_OK) return status;
    for (tsh_group *g = world->groups; g; g = g->next) {
        if (g->ops == world->data) tshi_group_forget(g, "the world recovered meanwhile");
    }
    nccl->batch = NULL;
    nccl->failed = TSH_OK;
    status = tshi_nccl_comm_create(world->group, TSH_OK);
    return status == TSH_OK ? TSH_OK : tshi_nccl_stop(world, status, true);
}
