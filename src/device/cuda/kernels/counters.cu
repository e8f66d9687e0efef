// Counters that need a kernel: launches of a captured graph, and the clock of the multiprocessors, which gives the peak
// rate of their tensor cores.
#include "device/cuda/kernels/common.cuh"

namespace tshi {

constexpr uint64_t NANOSECONDS = 200000; // long against the timer's resolution, which is a microsecond on some GPUs

// out: the cycles and the nanoseconds of one interval.
__global__ void count_cycles(uint64_t *out) {
    uint64_t start = nanoseconds(), first = cycles(), now = start;
    while (now - start < NANOSECONDS) now = nanoseconds();
    out[0] = cycles() - first;
    out[1] = now - start;
}

__global__ void count_launch(int64_t *n) {
    if (threadIdx.x == 0) *n += 1;
}

// Dense FLOP a cycle of a multiprocessor's tensor cores, from NVIDIA's white papers of the A100 (8.0), H100 (9.0) and
// B200 (10.0); 0 for other architectures, and for dtypes that these have no tensor cores for.
static double flop_a_cycle(int major, tsh_dtype dtype, bool tf32) {
    int row = major == 8 ? 0 : major == 9 ? 1 : major == 10 ? 2 : -1;
    static const double half[] = {2048, 4096, 8192}, tensor_float[] = {1024, 2048, 4096}, single[] = {128, 256, 256},
                        full[] = {128, 256, 128};
    if (row < 0) return 0;
    switch (dtype) {
    case TSH_BFLOAT16:
    case TSH_FLOAT16: return half[row];
    case TSH_FLOAT32: return tf32 ? tensor_float[row] : single[row];
    case TSH_FLOAT64: return full[row];
    default: return 0;
    }
}

} // namespace tshi

void tshi_cuda_count(tsh_device *device, int64_t *n) {
    tshi::launch(device, "graph", tshi::count_launch, 1, tshi::WARP, n);
}

double tshi_cuda_matrix_rate(tsh_device *device, tsh_dtype dtype, double *clock) {
    tshi_cuda_device *cuda = tshi_cuda(device);
    uint64_t counted[2] = {0, 0};
    int major = 0;
    *clock = 0;
    uint64_t *there = (uint64_t *)tshi_cuda_alloc(device, sizeof counted);
    if (!there) return 0;
    tshi::launch(device, "count_cycles", tshi::count_cycles, 1u, 32u, there);
    tshi_cuda_copy_to_host(device, sizeof counted, there, counted);
    tshi_cuda_release(device, there);
    tshi_cuda_record_error(device, cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, cuda->ordinal),
                           "cudaDeviceGetAttribute");
    if (counted[1] > 0) *clock = 1e9 * (double)counted[0] / (double)counted[1];
    return *clock * cuda->processors * tshi::flop_a_cycle(major, dtype, cuda->tf32);
}
