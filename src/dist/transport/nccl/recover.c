/* Recovery: the groups of a world whose communication has ended get new communicators when they are next used. */
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
    for (const tshi_nccl_link *link = nccl->links; link && error == cudaSuccess; link = link->next) {
        if (link->stream) error = cudaStreamSynchronize(link->stream);
    }
    if (error != cudaSuccess) return tshi_cuda_fail(error, "world_recover: cudaStreamSynchronize");
    if (device->failed != TSH_OK && !strcmp(device->message, nccl->message)) device->failed = TSH_OK;
    tsh_status status = world->control->recover(world);
    if (status != TSH_OK) return status;
    tshi_nccl_links_close(world, NULL);
    tshi_nccl_shared_close(world);
    nccl->failed = TSH_OK;
    if (nccl->shared.group) status = tshi_nccl_comm_create(nccl->shared.group, TSH_OK);
    return status == TSH_OK ? TSH_OK : tshi_nccl_stop(world, status, true);
}
