/* The GPU's losses of elements and masked fills against the CPU's. */
#include "kernel_pair.h"

TestSuite(cuda_loss, .timeout = 600);

/* shift: of the targets, by which they are not aligned as the rest is. */
static void check_loss(tshi_loss f, tsh_dtype dtype, int64_t n, int shift, int64_t weights, bool none, double beta) {
    tsh_dtype sums = tshi_dtype_sum(dtype);
    pair x = pair_random(dtype, n, 0, -6, 6), t = pair_random(dtype, n, shift, 0, 1),
         w = pair_random(dtype, weights, 0, 1, 3);
    pair loss = pair_make(sums, n, 0), dloss = pair_random(sums, none ? n : 1, 0, -1, 1);
    tshi_loss_inputs gpu_in = {f, n, weights ? weights : 1, x.gpu, t.gpu, gpu_or_null(&w, weights)};
    tshi_loss_inputs cpu_in = {f, n, weights ? weights : 1, x.cpu.data, t.cpu.data, cpu_or_null(&w, weights)};
    tshi_cuda_loss[dtype].forward(gpu(), &gpu_in, loss.gpu);
    kernels()->loss[sums].forward(kernel_device(), &cpu_in, loss.cpu.data);
    expect_pair(&loss, "loss", 40, 8);
    for (int of_target = 0; of_target < 2; of_target++) {
        pair to = pair_random(dtype, n, 0, -1, 1);
        tshi_cuda_loss[dtype].backward(gpu(), &gpu_in, of_target, dloss.gpu, none, 0.5, beta, to.gpu);
        kernels()->loss[sums].backward(kernel_device(), &cpu_in, of_target, dloss.cpu.data, none, 0.5, beta,
                                       to.cpu.data);
        expect_pair(&to, "loss_backward", 16, 8);
        pair_free(&to);
    }
    pair *all[] = {&x, &t, &w, &loss, &dloss};
    for (int i = 0; i < 5; i++) pair_free(all[i]);
}

Test(cuda_loss, values_and_gradients) {
    for (int f = 0; f < 2; f++)
        for (int d = 0; d < 4; d++)
            for (int s = 0; s < ODD_SIZES; s++) {
                check_loss((tshi_loss)f, gpu_dtypes[d], odd_sizes[s], 1, 0, s % 2, s % 3 == 0);
                check_loss((tshi_loss)f, gpu_dtypes[d], odd_sizes[s], 0, 5, s % 2, s % 3 == 0);
                check_loss((tshi_loss)f, gpu_dtypes[d], odd_sizes[s], 0, 0, s % 3 == 0, s % 2);
            }
}

static void check_mask(tsh_dtype dtype, const tshi_overlay *o, double beta) {
    int64_t n = 1;
    uint8_t mask[64];
    for (int k = 0; k < o->runs; k++) n *= o->n[k];
    for (int i = 0; i < 64; i++) mask[i] = (uint8_t)(i * 7 % 3);
    pair x = pair_integers(dtype, n, 0), z = pair_integers(dtype, n, 1);
    tshi_cuda_elementwise[dtype].mask(gpu(), o, x.gpu, mask, -2, beta, z.gpu);
    kernels()->elementwise[x.cpu.dtype].mask(kernel_device(), o, x.cpu.data, mask, -2, beta, z.cpu.data);
    expect_same(&z, "mask");
    for (int64_t i = 0; i < n && o->runs == 1 && beta == 0; i++)
        cr_assert_eq(get(&z.cpu, i), mask[i] ? -2 : get(&x.cpu, i), "element %d", (int)i);
    pair_free(&x);
    pair_free(&z);
}

Test(cuda_loss, masks) {
    const tshi_overlay overlays[] = {
        {1, {33}, {1}, {1}}, {2, {5, 7}, {1, 5}, {0, 1}}, {2, {7, 5}, {1, 7}, {1, 0}}, {2, {0, 5}, {1, 0}, {1, 0}}};
    for (int d = 0; d < 4; d++)
        for (int i = 0; i < 4; i++)
            for (int beta = 0; beta < 2; beta++) check_mask(gpu_dtypes[d], &overlays[i], beta);
}
