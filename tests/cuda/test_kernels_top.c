/* The GPU's largest elements, against sorting. */
#include "device/top_cases.h"
#include "kernel_pair.h"

Test(cuda_top, as_by_sorting, .timeout = 600) {
    static const tshi_top_ops ops = {tshi_cuda_top, tshi_cuda_top_merge, tshi_cuda_top_backward};
    for (int i = 0; i < 4; i++) {
        check_top(&ops, gpu(), gpu_dtypes[i]);
        check_top_backward(&ops, gpu(), gpu_dtypes[i]);
    }
}
