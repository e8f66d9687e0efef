/* NVTX ranges, which Nsight Systems shows above the kernels. Without a profiler they do nothing. */
#include "device/cuda/cuda.h"

#if defined(__has_include) && !defined(TSHARD_CUDA_STANDIN)
#if __has_include(<nvtx3/nvToolsExt.h>)
#include <nvtx3/nvToolsExt.h>
#define HAVE_NVTX
#endif
#endif

static void push(const char *name) {
#ifdef HAVE_NVTX
    nvtxRangePushA(name);
#else
    (void)name;
#endif
}

static void pop(void) {
#ifdef HAVE_NVTX
    nvtxRangePop();
#endif
}

const tshi_range_ops tshi_cuda_range_ops = {.push = push, .pop = pop};
