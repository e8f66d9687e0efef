// Checks indices into tables: classes and ids out of range.
#include "device/cuda/kernels/common.cuh"

using namespace tshi;

namespace {

struct index_rule {
    bool is_target; // ignore_index is valid
    int64_t limit, ignore_index;
    __device__ bool breaks(int64_t index) const {
        return (index < 0 || index >= limit) && !(is_target && index == ignore_index);
    }
};

// The position of the first wrong index in [begin, end), or `end`; the whole block takes part.
__device__ inline int64_t find_wrong(const index_rule &rule, int64_t begin, int64_t end, const int64_t *index,
                                     int64_t *shared) {
    int64_t first = end;
#pragma unroll 4
    for (int64_t i = begin + threadIdx.x; i < end; i += blockDim.x)
        if (rule.breaks(index[i]) && i < first) first = i;
    return block_reduce(
        first, shared, [](int64_t a, int64_t b) { return a < b ? a : b; }, end);
}

// A block checks `chunk` indices. If it finds a wrong one, it also searches all earlier chunks, so that the first one
// is reported.
__global__ void __launch_bounds__(256)
    check_indices_kernel(index_rule rule, int64_t n, int64_t chunk, const int64_t *index, tshi_cuda_report *report) {
    __shared__ int64_t shared[WARP];
    const int64_t begin = blockIdx.x * chunk, end = begin + chunk < n ? begin + chunk : n;
    const int64_t first = find_wrong(rule, begin, end, index, shared);
    if (first == end || find_wrong(rule, 0, begin, index, shared) != begin) return;
    if (threadIdx.x != 0 || report->found != 0) return;
    report->is_target = rule.is_target;
    report->value = index[first];
    report->index = first;
    report->limit = rule.limit;
    report->ignore_index = rule.ignore_index;
    fence_system();
    *(volatile int32_t *)&report->found = 1;
}

// Reports the first index outside [0, limit) that is not a target's ignore_index in the device's report. Returns -1, as
// it does not wait; with managed memory, where the host waits after every launch, the position.
int64_t check_indices(tsh_device *device, bool is_target, int64_t n, const int64_t *index, int64_t limit,
                      int64_t ignore_index) {
    if (n <= 0) return -1;
    const index_rule rule = {is_target, limit, ignore_index};
    const int64_t chunk = up(n, blocks_for(device, up(n, 8), 256));
    launch(device, is_target ? "targets_check" : "ids_check", check_indices_kernel, (unsigned)up(n, chunk), 256, rule,
           n, chunk, index, tshi_cuda(device)->report);
    tshi_cuda_report *report = tshi_cuda(device)->report;
    if (!tshi_cuda(device)->managed || !report->found) return -1;
    report->found = 0;
    return report->index;
}

__global__ void __launch_bounds__(256) number_rows(int64_t total, bool each, int64_t kept, int64_t inner, int64_t n,
                                                   int64_t start, const int64_t *ids, int64_t *rows) {
    const int64_t step = (int64_t)gridDim.x * blockDim.x;
    for (int64_t at = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; at < total; at += step) {
        const int64_t line = quotient(at, inner), o = quotient(line, kept);
        const int64_t i = ids[each ? at : line - o * kept] - start;
        rows[at] = i >= 0 && i < n ? (o * n + i) * inner + at - line * inner : -1;
    }
}

} // namespace

int64_t tshi_cuda_targets_check(tsh_device *device, const tshi_classes *c, const int64_t *target) {
    return check_indices(device, true, c->rows, target, c->classes, c->ignore_index);
}

int64_t tshi_cuda_ids_check(tsh_device *device, int64_t n, const int64_t *ids, int64_t vocabulary) {
    return check_indices(device, false, n, ids, vocabulary, 0);
}

void tshi_cuda_row_numbers(tsh_device *device, bool each, int64_t outer, int64_t kept, int64_t inner, int64_t n,
                           int64_t start, const int64_t *ids, int64_t *rows) {
    const int64_t total = outer * kept * inner;
    if (total > 0)
        launch(device, "row_numbers", number_rows, blocks_for(device, total, 256), 256, total, each, kept, inner, n,
               start, ids, rows);
}
