/* Environment variables of CUDA and NCCL, set before CUDA initializes. */
#include "device/device.h"

#include <cuda.h>
#include <dlfcn.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

/* A GPU has a primary context: the program has initialized CUDA, and the context keeps its number of queues. The driver
 * is loaded then, so RTLD_NOLOAD finds it. */
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

/* By default streams share 8 hardware queues, and a waiting stream blocks the streams on its queue: hence 32. Lazy
 * loading (CUDA's default from 12.2 on) saves seconds and GPU memory, as cuBLASLt and cuDNN have many kernels. Several
 * threads launch NCCL operations in any order, which NCCL would report as a race. CUDA's variables are left alone once
 * CUDA has read them, so the environment shows the values in use. */
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
