/* Builds without CUDA. */
#include "device/device.h"
#include "tshard/graph.h"

static tsh_status missing(void) {
    return tshi_fail(TSH_ERR_UNSUPPORTED, "this build of tshard has no CUDA (configure it with -DTSHARD_CUDA=ON)");
}

tsh_status tshi_device_create_cuda(const tsh_allocator *allocator, int local_rank, tsh_device **out) {
    (void)allocator;
    (void)local_rank;
    *out = NULL;
    return missing();
}

tsh_status tsh_graph_capture_begin(tsh_device *device) {
    (void)device;
    return missing();
}

tsh_status tsh_graph_capture_end(tsh_device *device, tsh_graph **out) {
    (void)device;
    if (out) *out = NULL;
    return missing();
}

tsh_status tsh_graph_launch(tsh_graph *graph) {
    (void)graph;
    return missing();
}

void tsh_graph_destroy(tsh_graph *graph) {
    (void)graph;
}
