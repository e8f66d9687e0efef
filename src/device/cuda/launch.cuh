// How kernels are started and how threads of a block talk on a GPU.
#pragma once

namespace tshi {

template <typename T> __device__ inline T shuffle_xor(T value, int mask) {
    return __shfl_xor_sync(0xffffffffu, value, mask);
}

__device__ inline void barrier() { __syncthreads(); }

// Blocks of a multiple of 32 threads. No launch for an empty grid.
template <typename... P, typename... A>
inline void launch(tsh_device *device, const char *what, void (*kernel)(P...), unsigned blocks, unsigned threads, A... a) {
    if (blocks == 0) return;
    kernel<<<blocks, threads, 0, tshi_cuda_stream(device)>>>(a...);
    tshi_cuda_launched(device, what);
}

} // namespace tshi
