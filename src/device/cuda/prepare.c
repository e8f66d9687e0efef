/* CUDA's own settings, made before it starts. */
#include "device/device.h"

#include <cuda.h>
#include <dlfcn.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

/* A program may have made CUDA start: a GPU keeps the queues that its context began with. The driver says so, and is in
 * the process by then. */
static bool has_begun(void) {
    __typeof__(&cuDeviceGetCount) count = NULL;
    __typeof__(&cuDevicePrimaryCtxGetState) state = NULL;
    void *driver = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD);
    if (!driver) return false;
    void *found[] = {dlsym(driver, "cuDeviceGetCount"), dlsym(driver, "cuDevicePrimaryCtxGetState")};
    memcpy(&count, &found[0], sizeof count);
    memcpy(&state, &found[1], sizeof state);
    int gpus = 0, active = 0;
    if (!count || !state || count(&gpus) != CUDA_SUCCESS) gpus = 0;
    for (int i = 0; i < gpus && !active; i++) {
        unsigned flags;
        if (state(i, &flags, &active) != CUDA_SUCCESS) active = 0;
    }
    dlclose(driver);
    return active != 0;
}

/* By default streams share 8 queues of the GPU, and one that waits holds up those that share its queue. Kernels are
 * loaded when they are first launched, as CUDA does by itself from 12.2 on: all of cuBLASLt's and cuDNN's would take a
 * rank seconds and memory of the GPU. NCCL's threads launch messages beside each other, in any order. What comes too
 * late for CUDA is not set: the environment says what CUDA has read. */
static void prepare(void) {
    if (!has_begun()) {
        setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0);
        setenv("CUDA_MODULE_LOADING", "LAZY", 0);
    }
    setenv("NCCL_LAUNCH_RACE_FATAL", "0", 0);
}

void tshi_device_prepare_cuda(void) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, prepare);
}
