/* Attention's kernels on CPUs without vectors of more than 256 bits. */
#pragma GCC diagnostic ignored "-Wunused-parameter" /* kernels need not look at the device */
#define WIDEST_VECTORS     32
#define tshi_cpu_attention narrow_attention
#include "device/cpu/kernels/attention.c"
#undef tshi_cpu_attention

#include "attention_cases.h"

Test(attention_kernels_256, agree_with_plain_loops, .timeout = 120) {
#if defined(__x86_64__) && defined(__GNUC__)
    if (!TSHI_HAS_256) cr_skip_test("this CPU has no AVX2");
#else
    cr_skip_test("these vectors are those of x86-64");
#endif
    check_all_cases(NULL, narrow_attention, INT64_MAX);
}
