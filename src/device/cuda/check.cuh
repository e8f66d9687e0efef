// Indices that no table has: classes out of range, ids out of range.
#pragma once

#include "device/cuda/common.cuh"

namespace tshi {

// One block, so that the first wrong index is the one that is told.
static __global__ void check_indices_kernel(bool is_target, int64_t n, const int64_t *index, int64_t limit,
                                            int64_t ignore_index, tshi_cuda_report *report) {
    __shared__ int64_t shared[WARP];
    int64_t first = INT64_MAX;
    for (int64_t i = threadIdx.x; i < n && first == INT64_MAX; i += blockDim.x) {
        bool ignored = is_target && index[i] == ignore_index;
        if (!ignored && (index[i] < 0 || index[i] >= limit)) first = i;
    }
    first = block_reduce(
        first, shared, [](int64_t a, int64_t b) { return a < b ? a : b; }, (int64_t)INT64_MAX);
    if (threadIdx.x != 0 || first == INT64_MAX || report->found != 0) return;
    report->is_target = is_target;
    report->value = index[first];
    report->place = first;
    report->limit = limit;
    report->ignore_index = ignore_index;
    fence_system();
    *(volatile int32_t *)&report->found = 1;
}

// The device's report names the first index outside [0, limit); targets may be ignore_index. -1, for this does not wait;
// where every launch is waited for, the index, which is told now.
inline int64_t check_indices(tsh_device *device, bool is_target, int64_t n, const int64_t *index, int64_t limit,
                             int64_t ignore_index) {
    if (n <= 0) return -1;
    launch(device, is_target ? "targets_check" : "ids_check", check_indices_kernel, 1, 512, is_target, n, index, limit,
           ignore_index, tshi_cuda(device)->report);
    tshi_cuda_report *report = tshi_cuda(device)->report;
    if (!tshi_cuda(device)->managed || !report->found) return -1;
    report->found = 0;
    return report->place;
}

} // namespace tshi
