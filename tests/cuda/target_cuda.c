/* The GPU's table for the suites of kernels: on the stand-in, where NaNs lie behind a buffer and a write there ends
 * the program, or, in the program gpu_kernels, on a GPU. */
#include "device/cuda/cuda.h"
#include "device/kernel_test.h"

static tsh_status open_gpu(tsh_device **out) {
    setenv("TSHARD_CUDA_MANAGED", "1", 1); /* every launch is waited for */
    setenv("TSHARD_CUDNN", "0", 1);        /* the kernels are the library's own */
    tsh_status status = tshi_device_create_cuda(NULL, 0, out);
    if (status == TSH_OK) tshi_cuda(*out)->processors = 3; /* grids are smaller than the work */
    return status;
}

#ifdef TSHARD_CUDA_STANDIN
#define IS_SLOW true
#define GUARD   0

static void *alloc_pinned(size_t size) {
    void *memory = NULL;
    return cudaHostAlloc(&memory, size, cudaHostAllocDefault) == cudaSuccess ? memory : NULL;
}

static void release_pinned(void *memory) {
    cudaFreeHost(memory);
}
#else
#define IS_SLOW false
#define GUARD   64
#define ARENA   ((size_t)64 << 20)

static size_t used;
static int live;

/* Parts of one allocation, one after the other, until all are released: CUDA's calls take long. */
static void *alloc_pinned(size_t size) {
    static char *arena;
    void *memory = NULL;
    if (!arena && cudaHostAlloc(&memory, ARENA, cudaHostAllocDefault) != cudaSuccess) return NULL;
    if (!arena) arena = memory;
    size = (size + 63) / 64 * 64;
    if (size > ARENA - used) return NULL;
    used += size;
    live++;
    return arena + used - size;
}

static void release_pinned(void *memory) {
    (void)memory;
    if (--live == 0) used = 0;
}
#endif

const kernel_target tested = {.units = 4,
                              .half = 8,
                              .attention = 1e-3,
                              .is_slow = IS_SLOW,
                              .whole_rows = true,
                              .guard = GUARD,
                              .open = open_gpu,
                              .alloc = alloc_pinned,
                              .release = release_pinned};
