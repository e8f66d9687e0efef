/* A GPU for the suites of its kernels, which pass it pointers into their stack, data and heap (kernel_memory.c has its
 * heap in its data). Where the GPU does not read the host's memory by itself, that of the process is registered, which
 * makes its pointers the GPU's. */
#ifndef TSHARD_KERNEL_GPU_H
#define TSHARD_KERNEL_GPU_H

#include "device/cuda/cuda.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define GPU_STACK ((size_t)1 << 20)

/* Before any test: the stack is as large as it will become. */
__attribute__((constructor)) static void gpu_grow_stack(void) {
    volatile char stack[GPU_STACK];
    for (size_t i = 0; i < sizeof stack; i += 4096) stack[i] = 0;
}

/* Data and stack, as /proc/self/maps has them. Data without a file are behind the program's. */
static inline void gpu_register(void) {
    char line[512], program[400] = "";
    unsigned long begin, end, data_end = 0;
    FILE *maps = fopen("/proc/self/maps", "r");
    cr_assert_not_null(maps);
    cr_assert_gt(readlink("/proc/self/exe", program, sizeof program - 1), 0);
    while (fgets(line, sizeof line, maps)) {
        char mode[8], name[400] = "";
        if (sscanf(line, "%lx-%lx %7s %*s %*s %*s %399s", &begin, &end, mode, name) < 3) continue;
        bool data = !strcmp(name, program) || (!name[0] && begin == data_end);
        if (data) data_end = end;
        if ((!data && strcmp(name, "[stack]")) || strncmp(mode, "rw", 2)) continue;
        cudaError_t error = cudaHostRegister((void *)begin, end - begin, cudaHostRegisterDefault);
        cr_assert_eq(error, cudaSuccess, "cudaHostRegister: %s: %s", cudaGetErrorString(error), line);
    }
    fclose(maps);
}

static inline tsh_device *gpu_open(void) {
    tsh_device *device = NULL;
    int reads = 0;
    setenv("TSHARD_CUDA_MANAGED", "1", 1); /* every launch is waited for */
    setenv("TSHARD_CUDNN", "0", 1);        /* the kernels are the library's own */
    if (tshi_device_create_cuda(NULL, 0, &device) != TSH_OK) cr_skip_test("%s", tsh_error_message());
    tshi_cuda(device)->processors = 3; /* grids are smaller than the work */
    cudaDeviceGetAttribute(&reads, cudaDevAttrPageableMemoryAccess, tshi_cuda(device)->ordinal);
    if (!reads) gpu_register();
    return device;
}

static inline tsh_device *gpu(void) {
    static tsh_device *device;
    if (!device) device = gpu_open();
    cr_assert_eq(tshi_cuda(device)->failed, TSH_OK, "%s", tshi_cuda(device)->message);
    return device;
}

/* false: a check leaves what it finds in the report, as it does where the host does not wait for each kernel. */
static inline void gpu_waits(bool waits) {
    cr_assert_eq(cudaDeviceSynchronize(), cudaSuccess);
    tshi_cuda(gpu())->managed = waits;
}

#endif
