/* Attention's kernels on CPUs without vectors of more than 128 bits. */
#pragma GCC diagnostic ignored "-Wunused-parameter" /* kernels need not look at the device */
#define WIDEST_VECTORS 16
#include "device/cpu/kernels/clones.h"

/* clang makes the resolvers of static clones global: the library has some of the same names. */
#undef TSHI_CLONES
#define TSHI_CLONES

#define tshi_cpu_attention narrow_attention
#include "device/cpu/kernels/attention.c"
#undef tshi_cpu_attention

#include "attention_cases.h"

Test(attention_kernels_128, agree_with_plain_loops, .timeout = 120) {
    check_all_cases(narrow_attention);
}
