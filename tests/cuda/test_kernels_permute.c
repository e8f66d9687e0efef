/* The GPU's permutation of dims against one element by element. */
#include "device/permutations.h"
#include "kernel_pair.h"

Test(cuda_permute, as_element_by_element, .timeout = 600) {
    check_permutations(tshi_cuda_permute, gpu(), 0);
    check_permutations(tshi_cuda_permute, gpu(), 4);
    check_permutations(tshi_cuda_permute, gpu(), 1);
}
