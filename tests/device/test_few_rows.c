#include "few_rows_cases.h"

TestSuite(few_rows, .timeout = 120);

Test(few_rows, all_dtypes_sizes_and_leading_dims) {
    check_few_rows_all(tshi_cpu_few_rows);
}

Test(few_rows, native_products_of_bfloat16) {
    if (!tshi_cpu_multiplies_bfloat16()) cr_skip("this CPU multiplies no bfloat16");
    check_few_rows_sizes((few_rows_case){tshi_cpu_few_rows, TSH_BFLOAT16, true});
    check_few_rows_alone((few_rows_case){tshi_cpu_few_rows, TSH_BFLOAT16, true});
}
