/* The CPU's permutation of dims against one element by element. */
#include "permutations.h"

Test(permute, as_element_by_element, .timeout = 60) {
    check_permutations(kernels()->copy.permute, kernel_device(), 0);
    check_permutations(kernels()->copy.permute, kernel_device(), 1);
}
