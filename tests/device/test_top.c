/* The CPU's largest elements, against sorting. */
#include "top_cases.h"

Test(top, as_by_sorting, .timeout = 60) {
    for (int dtype = TSH_FLOAT32; dtype <= TSH_FLOAT16; dtype++) {
        check_top(&kernels()->top, kernel_device(), (tsh_dtype)dtype);
        check_top_backward(&kernels()->top, kernel_device(), (tsh_dtype)dtype);
    }
}
