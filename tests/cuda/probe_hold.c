/* The probes' kernels on the stand-in: a stream stands until the flag is set. */
#include "gpu/hold.h"
#include "standin/standin.h"

static bool released(void *flag) {
    return *(volatile int *)flag != 0;
}

static void nothing(void *data) {
    (void)data;
}

static void add_one(void *word) {
    ++*(int *)word;
}

cudaError_t gpu_hold(cudaStream_t stream, volatile int *flag) {
    return standin_queue(stream, released, nothing, (void *)flag, NULL) ? cudaSuccess : cudaErrorInvalidValue;
}

cudaError_t gpu_touch(cudaStream_t stream, int *word) {
    return standin_queue(stream, NULL, add_one, word, NULL) ? cudaSuccess : cudaErrorInvalidValue;
}
