/* Products of few rows on CPUs without vectors of more than 256 bits. */
#define WIDEST_VECTORS               32
#define tshi_cpu_few_rows            narrow_few_rows
#define tshi_cpu_multiplies_bfloat16 narrow_multiplies_bfloat16
#include "device/cpu/kernels/few_rows.c"
#undef tshi_cpu_few_rows
#undef tshi_cpu_multiplies_bfloat16

#include "few_rows_cases.h"

TestSuite(few_rows_256, .timeout = 120);

Test(few_rows_256, all_dtypes_sizes_and_leading_dims) {
#if defined(__x86_64__) && defined(__GNUC__)
    if (!TSHI_HAS_256) cr_skip_test("this CPU has no AVX2");
#else
    cr_skip_test("these vectors are those of x86-64");
#endif
    cr_assert_not(narrow_multiplies_bfloat16());
    check_few_rows_all(narrow_few_rows);
}
