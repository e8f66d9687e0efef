/* Builds without CUDA. */
#include "device/device.h"

const tshi_device_ops *tshi_cuda_table(void) {
    tshi_fail(TSH_ERR_UNSUPPORTED, "this build of tshard has no CUDA (configure it with -DTSHARD_CUDA=ON)");
    return NULL;
}

tsh_status tshi_device_create_cuda(const tsh_allocator *allocator, int local_rank, tsh_device **out) {
    (void)allocator;
    (void)local_rank;
    (void)tshi_cuda_table();
    *out = NULL;
    return TSH_ERR_UNSUPPORTED;
}
