/* The GPU's random fills and dropout against the CPU's: equal numbers for equal elements. */
#include "kernel_pair.h"
#include "support/philox.h"

TestSuite(cuda_random, .timeout = 600);

#define SHAPES 10

/* Rows that begin at any element, whole tensors, and element numbers past 32 bits. */
static const tshi_block shapes[SHAPES] = {
    {.outer = 1, .n = 1025, .inner = 1, .global_n = 1025},
    {.outer = 4, .n = 64, .inner = 8, .global_n = 64},
    {.outer = 5, .n = 40, .inner = 8, .outer_start = 2, .start = 8, .global_n = 64},
    {.outer = 4, .n = 16, .inner = 1, .start = 3, .global_n = 64},
    {.outer = 6, .n = 7, .inner = 3, .outer_start = 1, .start = 2, .global_n = 11},
    {.outer = 3, .n = 1, .inner = 1, .start = 5, .global_n = 7},
    {.outer = 0, .n = 4, .inner = 4, .global_n = 4},
    {.outer = 3, .n = 0, .inner = 4, .global_n = 4},
    {.outer = 2, .n = 33, .inner = 5, .outer_start = 3, .start = 7, .global_n = (int64_t)1 << 33},
    {.outer = 3, .n = 16, .inner = 1, .outer_start = 1, .start = 16, .global_n = (int64_t)1 << 40},
};

static int64_t elements(const tshi_block *b) {
    return b->outer * b->n * b->inner;
}

/* A range of a power of two, so that low + range u is exact but for its last rounding. */
Test(cuda_random, uniforms_are_the_same_bits) {
    for (int t = 0; t < 4; t++)
        for (int s = 0; s < SHAPES; s++)
            for (int skew = 0; skew < 2; skew++) {
                pair p = pair_make(gpu_dtypes[t], elements(&shapes[s]), skew);
                tshi_cuda_random[p.dtype].uniform(gpu(), &shapes[s], 0x123456789ABCDEF0u, (uint64_t)7 << 40, -2.0, 6.0,
                                                  p.gpu);
                kernels()->random[p.cpu.dtype].uniform(kernel_device(), &shapes[s], 0x123456789ABCDEF0u,
                                                       (uint64_t)7 << 40, -2.0, 6.0, p.cpu.data);
                buffer got = pair_values(&p);
                pair_round(&p);
                for (int64_t i = 0; i < p.n; i++)
                    cr_assert_eq(get(&got, i), get(&p.cpu, i), "%s shape %d element %lld", tsh_dtype_name(p.dtype), s,
                                 (long long)i);
                buffer_free(&got);
                pair_free(&p);
            }
}

Test(cuda_random, uniforms_of_an_odd_range) {
    for (int t = 0; t < 4; t++)
        for (int s = 0; s < SHAPES; s++) {
            pair p = pair_make(gpu_dtypes[t], elements(&shapes[s]), 0);
            tshi_cuda_random[p.dtype].uniform(gpu(), &shapes[s], 5, 6, -0.3, 0.1, p.gpu);
            kernels()->random[p.cpu.dtype].uniform(kernel_device(), &shapes[s], 5, 6, -0.3, 0.1, p.cpu.data);
            expect_pair(&p, "uniform", 0.4, p.dtype == TSH_FLOAT64 ? 1 : 0);
            pair_free(&p);
        }
}

Test(cuda_random, normals_are_equal_to_rounding) {
    for (int t = 0; t < 4; t++)
        for (int s = 0; s < SHAPES; s++)
            for (int skew = 0; skew < 2; skew++) {
                pair p = pair_make(gpu_dtypes[t], elements(&shapes[s]), skew);
                tshi_cuda_random[p.dtype].normal(gpu(), &shapes[s], 99, 98, 1.0, 0.5, p.gpu);
                kernels()->random[p.cpu.dtype].normal(kernel_device(), &shapes[s], 99, 98, 1.0, 0.5, p.cpu.data);
                expect_pair(&p, "normal", 8, 4);
                pair_free(&p);
            }
}

static void check_dropout(tsh_dtype dtype, const tshi_block *block, int skew, double p) {
    pair x = pair_random(dtype, elements(block), skew, 1, 2), y = pair_random(dtype, x.n, skew, 1, 2);
    for (int add = 0; add < 2; add++) {
        tshi_cuda_random[dtype].dropout(gpu(), block, 9, 8, p, x.gpu, add, y.gpu);
        kernels()->random[x.cpu.dtype].dropout(kernel_device(), block, 9, 8, p, x.cpu.data, add, y.cpu.data);
        expect_pair(&y, add ? "added" : "dropped", 2 / (1.0001 - p), 2);
        pair_round(&y);
    }
    tshi_cuda_random[dtype].dropout(gpu(), block, 9, 8, p, x.gpu, 0.0, x.gpu);
    kernels()->random[x.cpu.dtype].dropout(kernel_device(), block, 9, 8, p, x.cpu.data, 0.0, x.cpu.data);
    expect_pair(&x, "in place", 2 / (1.0001 - p), 2);
    buffer got = pair_values(&x);
    for (int64_t i = 0; i < x.n; i++) cr_assert_eq(get(&got, i) == 0.0, get(&x.cpu, i) == 0.0, "the same are dropped");
    buffer_free(&got);
    pair_free(&x);
    pair_free(&y);
}

Test(cuda_random, dropout) {
    const double chances[] = {0.0, 0.1, 0.5, 0.9};
    for (int t = 0; t < 4; t++)
        for (int s = 0; s < SHAPES; s++)
            for (int skew = 0; skew < 2; skew++)
                for (int p = 0; p < 4; p++) check_dropout(gpu_dtypes[t], &shapes[s], skew, chances[p]);
}

/* Many more units than the threads of the grid. */
Test(cuda_random, dropout_of_a_large_tensor) {
    const tshi_block whole = {.outer = 300, .n = 513, .inner = 8, .global_n = 513};
    const tshi_block slice = {.outer = 200, .n = 513, .inner = 3, .start = 4, .global_n = 1001};
    for (int t = 0; t < 4; t++) {
        check_dropout(gpu_dtypes[t], &whole, 0, 0.5);
        check_dropout(gpu_dtypes[t], &slice, 0, 0.5);
    }
}

/* An element whose number is p itself is kept. */
Test(cuda_random, dropout_at_the_threshold) {
    enum { N = 64 };
    const tshi_block block = {.outer = 1, .n = N, .inner = 1, .global_n = N};
    float x[N], y[N];
    for (int i = 0; i < N; i++) x[i] = 1;
    for (int i = 0; i < N; i++) {
        uint32_t word[4];
        tshi_philox_block(3, 4, (uint64_t)i / 4, word);
        double p = tshi_uniform(word[i % 4]);
        tshi_cuda_random[TSH_FLOAT32].dropout(gpu(), &block, 3, 4, p, x, 0.0, y);
        cr_assert(y[i] != 0.0f);
        tshi_cuda_random[TSH_FLOAT32].dropout(gpu(), &block, 3, 4, p + 0x1p-25, x, 0.0, y);
        cr_assert(y[i] == 0.0f);
    }
}

Test(cuda_random, dropout_of_everything_is_zero) {
    float x[3] = {1, INFINITY, -2}, y[3] = {7, 7, 7};
    const tshi_block block = {.outer = 1, .n = 3, .inner = 1, .global_n = 3};
    tshi_cuda_random[TSH_FLOAT32].dropout(gpu(), &block, 1, 1, 1.0, x, 0.0, y);
    for (int i = 0; i < 3; i++) cr_assert_eq(y[i], 0.0f);
}
