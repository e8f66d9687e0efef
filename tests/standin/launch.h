// A GPU's launches on the CPU: what common.cuh takes from launch.cuh, for kernels that a C++ compiler has compiled.
//
// launch() returns when the kernel is done. Blocks run one after another. A block's threads are fibers of the calling
// thread: each runs until a barrier or a shuffle, in ascending and in descending order by turns, so that a missing
// barrier shows. With TSHARD_TEST_SEED they also switch at accesses to memory, in an order of that seed, and a race of
// two threads ends the program (accesses.cc). A barrier that some threads of a block never reach, or a shuffle that
// some of a warp do not, ends the program with the kernel's name.
//
// Shared memory is a static array, and keeps what the last block left. Write alignas before __shared__.
#pragma once

#include "device/cuda/cuda.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <functional>
#include <math.h>
#include <stdint.h>
#include <string.h>
#include <time.h>

#undef __shared__
#define __shared__ static thread_local
#undef __launch_bounds__
#define __launch_bounds__(...)

// Where the running thread is.
inline thread_local uint3 threadIdx, blockIdx, blockDim, gridDim;

namespace tshi {

void standin_launch(cudaStream_t stream, const char *what, unsigned blocks, unsigned threads,
                    const std::function<void()> &thread);
void standin_barrier();
// The value that `lane` of this warp passes in this call.
void standin_exchange(const void *value, size_t size, int lane, void *out);

inline void barrier() {
    standin_barrier();
}

template <typename T> inline T shuffle(T value, int lane) {
    T out;
    standin_exchange(&value, sizeof value, lane, &out);
    return out;
}

template <typename T> inline T shuffle_xor(T value, int mask) {
    return shuffle(value, (int)(threadIdx.x % 32) ^ mask);
}

template <typename T> inline T shuffle_up(T value, int lanes) {
    int lane = (int)(threadIdx.x % 32);
    return shuffle(value, lane < lanes ? lane : lane - lanes);
}

inline unsigned ballot(bool yes) {
    unsigned word = yes ? 1u << threadIdx.x % 32 : 0u;
    for (int mask = 16; mask > 0; mask /= 2) word |= shuffle_xor(word, mask);
    return word;
}

// A clock of 1 GHz.
inline uint64_t nanoseconds() {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

inline uint64_t cycles() {
    return nanoseconds();
}

inline void fence() {}

inline void fence_system() {}

inline void put_16(void *to, uint4 bits) {
    memcpy(__builtin_assume_aligned(to, 16), &bits, sizeof bits);
}

inline float exp_fast(float x) {
    return expf(x);
}

template <typename S> inline S reciprocal(S x) {
    return S(1) / x;
}

// No other thread runs in between.
template <typename T> __attribute__((noinline, no_sanitize("thread"))) T atomic_add(T *to, T value) {
    T old = *to;
    *to = old + value;
    return old;
}

template <typename... P, typename... A>
inline void launch(tsh_device *device, const char *what, void (*kernel)(P...), unsigned blocks, unsigned threads,
                   A... a) {
    if (blocks == 0) return;
    tshi_cuda_load(device, reinterpret_cast<const void *>(kernel));
    standin_launch(tshi_cuda_stream(device), what, blocks, threads, [=] { kernel(a...); });
    tshi_cuda_launched(device, what);
}

} // namespace tshi
