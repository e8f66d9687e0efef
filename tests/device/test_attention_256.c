/* Attention's kernels on CPUs without vectors of more than 256 bits. */
#pragma GCC diagnostic ignored "-Wunused-parameter" /* kernels need not look at the device */
#define WIDEST_VECTORS     32
#define tshi_cpu_attention narrow_attention
#include "device/cpu/kernels/attention.c"
#undef tshi_cpu_attention

#include "attention_cases.h"

Test(attention_kernels_256, agree_with_plain_loops, .timeout = 120) {
    check_all_cases(NULL, narrow_attention, INT64_MAX);
}
