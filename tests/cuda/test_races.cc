/* Kernels with races, which the stand-in for a GPU has to see, beside kernels without any. */
#include "cuda/dies.h"
#include "device/cuda/kernels/common.cuh"

using namespace tshi;

namespace {

constexpr int THREADS = 128;
constexpr unsigned BLOCKS = 5;

__global__ void rotate(bool waits, const float *x, float *y) {
    __shared__ float shared[THREADS];
    shared[threadIdx.x] = x[threadIdx.x];
    if (waits) barrier();
    y[threadIdx.x] = shared[(threadIdx.x + 1) % THREADS];
}

// The second use of the memory has to wait for the reads of the first.
__global__ void twice(bool waits, const float *x, float *y) {
    __shared__ float shared[THREADS];
    for (int turn = 0; turn < 2; turn++) {
        if (waits && turn > 0) barrier();
        shared[threadIdx.x] = x[threadIdx.x] + (float)turn;
        barrier();
        y[threadIdx.x] += shared[(threadIdx.x + 1) % THREADS];
    }
}

// A shuffle makes lanes wait for each other, and orders no accesses to memory.
__global__ void through_memory_of_a_warp(bool waits, const float *x, float *y) {
    __shared__ float shared[THREADS];
    shared[threadIdx.x] = x[threadIdx.x];
    shuffle(0, 0);
    if (waits) barrier();
    y[threadIdx.x] = shared[threadIdx.x ^ 1];
}

__global__ void sum(bool waits, const float *x, float *y) {
    for (unsigned turn = 0; turn < THREADS; turn++) {
        if (turn == threadIdx.x) *y += x[turn];
        if (waits) barrier();
    }
}

__global__ void from_the_block_before(bool, const float *x, float *y) {
    float before = blockIdx.x > 0 ? y[(blockIdx.x - 1) * THREADS + threadIdx.x] : 0;
    y[blockIdx.x * THREADS + threadIdx.x] = x[threadIdx.x] + before;
}

__global__ void all_blocks_write(bool same, const float *x, float *y) {
    y[threadIdx.x] = x[threadIdx.x] + (same ? 0.0f : (float)blockIdx.x);
}

// Neighbours in one word are apart.
__global__ void bytes(bool, const float *x, float *y) {
    ((unsigned char *)y)[blockIdx.x * THREADS + threadIdx.x] = ((const unsigned char *)x)[threadIdx.x];
}

__global__ void tickets(int *next, int *order) {
    int n = atomic_add(next, 1);
    order[n] = (int)(blockIdx.x * THREADS + threadIdx.x);
}

tsh_device *gpu() {
    static tshi_cuda_device device;
    return &device.base;
}

template <void (*KERNEL)(bool, const float *, float *), bool CORRECT> void run() {
    static float x[THREADS], y[BLOCKS * THREADS];
    setenv("TSHARD_TEST_SEED", "1", 1);
    launch(gpu(), "a kernel", KERNEL, BLOCKS, THREADS, CORRECT, (const float *)x, y);
}

// Of one block: its output is not shared.
template <void (*KERNEL)(bool, const float *, float *), bool CORRECT> void run_one() {
    static float x[THREADS], y[THREADS];
    setenv("TSHARD_TEST_SEED", "1", 1);
    launch(gpu(), "a kernel", KERNEL, 1u, THREADS, CORRECT, (const float *)x, y);
}

void count_orders() {
    enum { ALL = BLOCKS * THREADS };
    static int next, order[ALL], last[ALL];
    int rises = 0, as_last = 0;
    setenv("TSHARD_TEST_SEED", "7", 1);
    for (int launches = 0; launches < 2; launches++) {
        memcpy(last, order, sizeof order);
        next = 0;
        launch(gpu(), "tickets", tickets, BLOCKS, THREADS, &next, order);
    }
    for (int i = 1; i < ALL; i++) rises += order[i] == order[i - 1] + 1;
    for (int i = 0; i < ALL; i++) as_last += order[i] == last[i];
    if (next != ALL || rises > ALL / 2 || as_last > ALL / 2) abort();
}

} // namespace

TestSuite(cuda_races, .timeout = 120);

Test(cuda_races, a_missing_barrier_is_seen) {
    const char *words = "with no barrier between";
    expect_end("rotate", run_one<rotate, false>, words);
    expect_end("twice", run_one<twice, false>, words);
    expect_end("through_memory_of_a_warp", run_one<through_memory_of_a_warp, false>, words);
    expect_end("sum", run_one<sum, false>, words);
}

Test(cuda_races, a_barrier_orders_accesses) {
    expect_end("rotate", run_one<rotate, true>, NULL);
    expect_end("twice", run_one<twice, true>, NULL);
    expect_end("through_memory_of_a_warp", run_one<through_memory_of_a_warp, true>, NULL);
    expect_end("sum", run_one<sum, true>, NULL);
}

Test(cuda_races, blocks_do_not_hand_over) {
    expect_end("from_the_block_before", run<from_the_block_before, true>, "another block of the launch uses");
    expect_end("all_blocks_write", run<all_blocks_write, false>, "another value");
    expect_end("all_blocks_write", run<all_blocks_write, true>, NULL);
    expect_end("bytes", run<bytes, true>, NULL);
}

Test(cuda_races, threads_switch_at_accesses) {
    expect_end("tickets", count_orders, NULL);
}
