#include "few_rows_cases.h"

TestSuite(few_rows, .timeout = 120);

static const tshi_isa *kernel_isa(void) {
    return ((const tshi_cpu_device *)kernel_device())->isa;
}

Test(few_rows, all_dtypes_sizes_and_leading_dims) {
    check_few_rows_all(kernel_isa()->few_rows);
}

Test(few_rows, native_products_of_bfloat16) {
    if (!kernel_isa()->multiplies_bfloat16) cr_skip("this instruction set multiplies no bfloat16");
    check_few_rows_sizes((few_rows_case){kernel_isa()->few_rows, TSH_BFLOAT16, true});
    check_few_rows_alone((few_rows_case){kernel_isa()->few_rows, TSH_BFLOAT16, true});
}
