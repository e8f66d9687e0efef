// Launches, barriers and shuffles on a GPU.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

namespace tshi {

// A barrier of all threads of a block.
__device__ inline void barrier() {
    __syncthreads();
}

// The value of another lane. All threads of a warp take part.
template <typename T> __device__ inline T shuffle(T value, int lane) {
    return __shfl_sync(0xffffffffu, value, lane);
}

template <typename T> __device__ inline T shuffle_xor(T value, int mask) {
    return __shfl_xor_sync(0xffffffffu, value, mask);
}

// The value of the lane `lanes` below; the first `lanes` get their own.
template <typename T> __device__ inline T shuffle_up(T value, int lanes) {
    return __shfl_up_sync(0xffffffffu, value, lanes);
}

// Bit i: `yes` of lane i.
__device__ inline unsigned ballot(bool yes) {
    return __ballot_sync(0xffffffffu, yes);
}

// Orders this thread's earlier writes before its later ones, for the GPU; below, for the host too.
__device__ inline void fence() {
    __threadfence();
}

__device__ inline void fence_system() {
    __threadfence_system();
}

// One 16-byte store; `to` is 16-byte aligned.
__device__ inline void put_16(void *to, uint4 bits) {
    asm volatile("st.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(__cvta_generic_to_global(to)), "r"(bits.x),
                 "r"(bits.y), "r"(bits.z), "r"(bits.w)
                 : "memory");
}

// Exact to a few ulps of float: enough for the 16-bit types.
__device__ inline float exp_fast(float x) {
    return __expf(x);
}

// 1 / x for x >= 1, without a division's slow path, whose call would spill registers.
__device__ inline float reciprocal(float x) {
    return __fdividef(1.0f, x);
}

__device__ inline double reciprocal(double x) {
    return __drcp_rn(x);
}

__device__ inline uint64_t cycles() {
    return (uint64_t)clock64();
}

__device__ inline uint64_t nanoseconds() {
    uint64_t time;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(time));
    return time;
}

// Returns the old value. For integers only: sums of floats have a fixed order here.
template <typename T> __device__ inline T atomic_add(T *to, T value) {
    return atomicAdd(to, value);
}

// threads: a multiple of 32. An empty grid is not launched.
template <typename... P, typename... A>
inline void launch(tsh_device *device, const char *what, void (*kernel)(P...), unsigned blocks, unsigned threads,
                   A... a) {
    if (blocks == 0) return;
    tshi_cuda_load(device, reinterpret_cast<const void *>(kernel));
    kernel<<<blocks, threads, 0, tshi_cuda_stream(device)>>>(a...);
    tshi_cuda_launched(device, what);
}

} // namespace tshi
