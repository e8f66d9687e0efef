// What the kernels share: element types, 16-byte packs, sums over a block, launches.
//
// A kernel here is a plain loop over what its block or thread owns. It uses shuffles and barriers only through the
// functions below, which the tests' stand-in for a GPU also offers.
#pragma once

#include "device/cuda/cuda.h"
#include "device/cuda/kernels.h"

#ifdef TSHARD_CUDA_STANDIN
#include "standin/launch.h" // the same names, blocks run on the CPU
#else
#include "device/cuda/launch.cuh"
#endif

#include <cuda_bf16.h>
#include <cuda_fp16.h>

namespace tshi {

constexpr int WARP = 32;

// What a type is computed in.
template <typename T> struct sum_of { using type = float; };
template <> struct sum_of<double> { using type = double; };
template <typename T> using sum_t = typename sum_of<T>::type;

template <typename T> __device__ inline sum_t<T> load(T x) { return x; }
template <> __device__ inline float load(__nv_bfloat16 x) { return __bfloat162float(x); }
template <> __device__ inline float load(__half x) { return __half2float(x); }

// Rounds once, to nearest even.
template <typename T> __device__ inline T store(sum_t<T> x) { return x; }
template <> __device__ inline __nv_bfloat16 store<__nv_bfloat16>(float x) { return __float2bfloat16_rn(x); }
template <> __device__ inline __half store<__half>(float x) { return __float2half_rn(x); }

// As many elements as one load moves.
template <typename T> struct alignas(16) pack {
    static constexpr int size = 16 / sizeof(T);
    T item[size];
};

template <typename T> inline bool packs(int64_t n, const void *a, const void *b = nullptr, const void *c = nullptr) {
    return n % pack<T>::size == 0 && ((uintptr_t)a | (uintptr_t)b | (uintptr_t)c) % 16 == 0;
}

// f(T()) with T the element type of a float dtype.
template <typename F> inline void with_float(tsh_dtype dtype, F f) {
    switch (dtype) {
    case TSH_FLOAT32: f(float()); break;
    case TSH_FLOAT64: f(double()); break;
    case TSH_BFLOAT16: f(__nv_bfloat16()); break;
    case TSH_FLOAT16: f(__half()); break;
    default: break;
    }
}

// Over all threads of a block, in a fixed order; every thread gets it. shared: one element a warp.
template <typename S, typename Op> __device__ inline S block_reduce(S value, S *shared, Op op, S none) {
    for (int step = WARP / 2; step > 0; step /= 2) value = op(value, shuffle_xor(value, step));
    int warp = threadIdx.x / WARP, warps = (blockDim.x + WARP - 1) / WARP;
    if (threadIdx.x % WARP == 0) shared[warp] = value;
    barrier();
    S total = none;
    for (int i = 0; i < warps; i++) total = op(total, shared[i]);
    barrier();
    return total;
}

// Blocks for a loop over n items with a grid stride: enough to fill the GPU, not more.
inline unsigned blocks_for(tsh_device *device, int64_t items, int threads) {
    int64_t most = (int64_t)tshi_cuda(device)->processors * (2048 / threads);
    int64_t wanted = (items + threads - 1) / threads;
    return (unsigned)(wanted < most ? (wanted > 0 ? wanted : 1) : most);
}

} // namespace tshi
