/* The GPU's attention and rotary positions against plain loops and the CPU's. */
#include "device/attention_cases.h"
#include "kernel_pair.h"

TestSuite(cuda_attention, .timeout = 600);

#define MOST_SCORES 25000 /* more take long on a stand-in */

Test(cuda_attention, agrees_with_plain_loops) {
    check_all_cases(gpu(), tshi_cuda_attention, MOST_SCORES);
}

Test(cuda_attention, rounds_once_to_16_bits) {
    for (int i = 0; i < ATTENTION_CASES; i++) {
        if (attention_cases[i].queries * attention_cases[i].keys > MOST_SCORES) continue;
        check_half(gpu(), tshi_cuda_attention, TSH_BFLOAT16, 1e-3, &attention_cases[i]);
        check_half(gpu(), tshi_cuda_attention, TSH_FLOAT16, 1e-3, &attention_cases[i]);
    }
}

static void check_rotary(tsh_dtype dtype, bool pairs, bool batched, bool back, double beta) {
    const int64_t far[6] = {0, 1, 1000, 7, 131071, -3}, near[6] = {0, 1, 40, 7, 90, -3};
    bool scaled = pairs && batched;
    const tshi_rotary r = {.batch = 2,
                           .tokens = 3,
                           .heads = 3,
                           .dim = 11,
                           .dims = 8,
                           .pairs = pairs,
                           .batched = batched,
                           .theta = 10000,
                           .factor = scaled ? 8 : 1,
                           .low = 1,
                           .high = 4,
                           .original = scaled ? 64 : 0,
                           .positions = scaled ? near : far};
    pair x = pair_random(dtype, 2 * 3 * 3 * 11, 0, -2, 2), y = pair_random(dtype, x.n, 0, -2, 2);
    tshi_cuda_attention[dtype].rotary(gpu(), &r, back, x.gpu, beta, y.gpu);
    kernels()->attention[x.cpu.dtype].rotary(kernel_device(), &r, back, x.cpu.data, beta, y.cpu.data);
    expect_pair(&y, "rotary", 4, scaled ? 400 : 4); /* the rounding of an angle counts as often as it turns */
    pair_free(&x);
    pair_free(&y);
}

Test(cuda_attention, turns_as_the_cpu_does) {
    for (int t = 0; t < 4; t++)
        for (int bits = 0; bits < 16; bits++)
            check_rotary(gpu_dtypes[t], bits & 1, bits & 2, bits & 4, bits & 8 ? 1 : 0);
}
