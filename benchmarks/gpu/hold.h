/* Kernels of the probes. Where the stand-ins run the probes, the tests have a file of their own for these two. */
#ifndef GPU_HOLD_H
#define GPU_HOLD_H

#include <cuda_runtime_api.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Keep a stream busy until *flag, pinned memory, is not 0; ten seconds at most. */
cudaError_t gpu_hold(cudaStream_t stream, volatile int *flag);
/* Add 1 to *word: the smallest kernel. */
cudaError_t gpu_touch(cudaStream_t stream, int *word);

#ifdef __cplusplus
}
#endif

#endif
