/* The GPU's softmax and log-softmax against the CPU's. */
#include "kernel_pair.h"

TestSuite(cuda_softmax, .timeout = 600);

typedef struct dims {
    tsh_dtype dtype;
    int64_t outer, n, inner;
    int skew;
} dims;

static void check_forward(dims d, bool log_form) {
    pair x = pair_random(d.dtype, d.outer * d.n * d.inner, d.skew, -9, 9), y = pair_make(d.dtype, x.n, d.skew);
    tsh_dtype sums = x.cpu.dtype;
    pair max = pair_make(sums, d.outer * d.inner, 0), sum = pair_make(sums, d.outer * d.inner, 0);
    tshi_cuda_softmax[d.dtype].max(gpu(), d.outer, d.n, d.inner, x.gpu, max.gpu);
    kernels()->softmax[sums].max(kernel_device(), d.outer, d.n, d.inner, x.cpu.data, max.cpu.data);
    expect_same(&max, "softmax_max");
    tshi_cuda_softmax[d.dtype].sum(gpu(), d.outer, d.n, d.inner, x.gpu, max.gpu, sum.gpu);
    kernels()->softmax[sums].sum(kernel_device(), d.outer, d.n, d.inner, x.cpu.data, max.cpu.data, sum.cpu.data);
    expect_pair(&sum, "softmax_sum", 1 + (double)d.n / 18, 4 * sqrt((double)d.n + 64)); /* the CPU adds one by one */
    tshi_cuda_softmax[d.dtype].forward(gpu(), log_form, d.outer, d.n, d.inner, x.gpu, max.gpu, sum.gpu, y.gpu);
    kernels()->softmax[sums].forward(kernel_device(), log_form, d.outer, d.n, d.inner, x.cpu.data, max.cpu.data,
                                     sum.cpu.data, y.cpu.data);
    expect_pair(&y, "softmax", log_form ? 20 : 1, 32);
    pair_free(&x);
    pair_free(&y);
    pair_free(&max);
    pair_free(&sum);
}

static void check_backward(dims d, bool log_form) {
    pair y = pair_random(d.dtype, d.outer * d.n * d.inner, d.skew, log_form ? -5 : 0, log_form ? 0 : 1);
    pair dy = pair_random(d.dtype, y.n, d.skew, -1, 1), dx = pair_random(d.dtype, y.n, d.skew, -1, 1);
    tsh_dtype sums = y.cpu.dtype;
    pair dot = pair_make(sums, d.outer * d.inner, 0);
    tshi_cuda_softmax[d.dtype].dot(gpu(), log_form, d.outer, d.n, d.inner, y.gpu, dy.gpu, dot.gpu);
    kernels()->softmax[sums].dot(kernel_device(), log_form, d.outer, d.n, d.inner, y.cpu.data, dy.cpu.data,
                                 dot.cpu.data);
    expect_pair(&dot, "softmax_dot", 1 + (double)d.n / 4, 16);
    pair_round(&dot);
    tshi_cuda_softmax[d.dtype].backward(gpu(), log_form, d.outer, d.n, d.inner, y.gpu, dy.gpu, dot.gpu, dx.gpu);
    kernels()->softmax[sums].backward(kernel_device(), log_form, d.outer, d.n, d.inner, y.cpu.data, dy.cpu.data,
                                      dot.cpu.data, dx.cpu.data);
    expect_pair(&dx, "softmax_backward", 4 + (double)d.n / 8, 16);
    pair_free(&y);
    pair_free(&dy);
    pair_free(&dx);
    pair_free(&dot);
}

static void check(dims d) {
    for (int log_form = 0; log_form < 2; log_form++) {
        check_forward(d, log_form);
        check_backward(d, log_form);
    }
}

Test(cuda_softmax, along_any_dim) {
    const int64_t some[] = {0, 1, 3, 24, 67};
    for (int t = 0; t < 4; t++)
        for (int o = 0; o < 4; o++)
            for (int n = 0; n < 5; n++)
                for (int k = 0; k < 5; k++) check((dims){gpu_dtypes[t], some[o], some[n], some[k], (o + n + k) % 2});
}

Test(cuda_softmax, rows) {
    for (int t = 0; t < 4; t++)
        for (int s = 0; s < ODD_SIZES; s++) check((dims){gpu_dtypes[t], 5, odd_sizes[s], 1, s % 2});
}

/* In parts. */
Test(cuda_softmax, few_long_rows) {
    const int64_t shapes[][3] = {{1, 30001, 1}, {2, 16384, 1}, {1, 2000, 8}, {1, 1001, 3}, {2, 700, 40}};
    for (int t = 0; t < 4; t++)
        for (int s = 0; s < 5; s++) check((dims){gpu_dtypes[t], shapes[s][0], shapes[s][1], shapes[s][2], s % 2});
}

/* Whole rows at once, with the CPU's passes as the truth: a warp's, several warps' and the longest that a block holds;
 * longer ones where there are many; few of these, and short ones that do not begin at a pack, are refused and left
 * alone. */
static void check_whole(tsh_dtype dtype, bool log_form, int64_t rows, int64_t n, int skew, bool takes) {
    tsh_device *cpu = kernel_device();
    pair x = pair_random(dtype, rows * n, skew, -9, 9), y = pair_make(dtype, rows * n, skew);
    tsh_dtype sums = x.cpu.dtype;
    buffer max = buffer_make(sums, rows), sum = buffer_make(sums, rows);
    const tshi_softmax_ops *passes = &kernels()->softmax[sums];
    bool took = tshi_cuda_softmax[dtype].whole(gpu(), log_form, rows, n, x.gpu, y.gpu);
    cr_assert_eq(took, takes, "%s rows of %lld", tsh_dtype_name(dtype), (long long)n);
    if (took) {
        passes->max(cpu, rows, n, 1, x.cpu.data, max.data);
        passes->sum(cpu, rows, n, 1, x.cpu.data, max.data, sum.data);
        passes->forward(cpu, log_form, rows, n, 1, x.cpu.data, max.data, sum.data, y.cpu.data);
    }
    expect_pair(&y, "softmax of whole rows", log_form ? 20 : 1, 4 * sqrt((double)n + 64));
    pair dy = pair_random(dtype, rows * n, skew, -1, 1), dx = pair_random(dtype, rows * n, skew, -1, 1);
    pair_round(&y);
    took = tshi_cuda_softmax[dtype].whole_backward(gpu(), log_form, rows, n, y.gpu, dy.gpu, dx.gpu);
    cr_assert_eq(took, takes);
    if (took) {
        passes->dot(cpu, log_form, rows, n, 1, y.cpu.data, dy.cpu.data, sum.data);
        passes->backward(cpu, log_form, rows, n, 1, y.cpu.data, dy.cpu.data, sum.data, dx.cpu.data);
    }
    expect_pair(&dx, "softmax_backward of whole rows", 4 + (double)n / 8, 16);
    buffer_free(&max);
    buffer_free(&sum);
    pair_free(&x);
    pair_free(&y);
    pair_free(&dy);
    pair_free(&dx);
}

Test(cuda_softmax, whole_rows_are_read_once) {
    for (int t = 0; t < 4; t++) {
        int64_t width = 16 / (int64_t)tsh_dtype_size(gpu_dtypes[t]), most = 4 * 512 * width;
        for (int log_form = 0; log_form < 2; log_form++) {
            check_whole(gpu_dtypes[t], log_form, 11, width, 0, true);
            check_whole(gpu_dtypes[t], log_form, 9, 33 * width, 0, true);
            check_whole(gpu_dtypes[t], log_form, 7, 129 * width, 0, true);
            check_whole(gpu_dtypes[t], log_form, 5, 700 * width, 0, true);
            check_whole(gpu_dtypes[t], log_form, 2, most, 0, true);
            check_whole(gpu_dtypes[t], log_form, 2, most + width, 0, false);
            check_whole(gpu_dtypes[t], log_form, 2, 8 * width, 1, false);
            check_whole(gpu_dtypes[t], log_form, 2, 8 * width + 1, 0, false);
            check_whole(gpu_dtypes[t], log_form, 0, 8 * width, 0, true);
        }
    }
}

/* At least as many as the GPU has processors, aligned and not. */
Test(cuda_softmax, long_rows_are_read_twice) {
    for (int t = 0; t < 4; t++) {
        int64_t width = 16 / (int64_t)tsh_dtype_size(gpu_dtypes[t]), most = 4 * 512 * width;
        for (int log_form = 0; log_form < 2; log_form++) {
            check_whole(gpu_dtypes[t], log_form, 5, most + width, 0, true);
            check_whole(gpu_dtypes[t], log_form, 4, 2049, 1, true);
            check_whole(gpu_dtypes[t], log_form, 6, 5027, 0, true);
            check_whole(gpu_dtypes[t], log_form, 2, 5027, 0, false);
        }
    }
}

/* Masked elements come first, and all of a thread's may be masked. */
Test(cuda_softmax, long_rows_with_masked_and_huge_logits) {
    enum { ROWS = 4, N = 2051 };
    static float x[ROWS * N], y[ROWS * N];
    for (int i = 0; i < ROWS * N; i++)
        x[i] = i % N < 2000 ? -INFINITY : i % N == 2001 || i % N == 2050 ? 1e30f : -1e30f;
    x[2 * N + 7] = NAN;
    for (int i = 0; i < N; i++) x[3 * N + i] = i % 2 ? -2.0f : (float)i;
    cr_assert(tshi_cuda_softmax[TSH_FLOAT32].whole(gpu(), false, ROWS, N, x, y));
    for (int i = 0; i < 2 * N; i++)
        cr_assert_eq(y[i], i % N == 2001 || i % N == 2050 ? 0.5f : 0.0f, "%d: %g", i, (double)y[i]);
    cr_assert(isnan(y[2 * N]) && isnan(y[2 * N + 2001]), "a NaN is not lost");
    cr_assert_float_eq(y[3 * N + 2050], 1 / (1 + expf(-2) + expf(-4) + expf(-6) + expf(-8)), 1e-3);
}

Test(cuda_softmax, whole_rows_with_masked_and_huge_logits) {
    _Alignas(16) float x[4] = {1e30f, -INFINITY, 1e30f, -1e30f}, y[4];
    cr_assert(tshi_cuda_softmax[TSH_FLOAT32].whole(gpu(), false, 1, 4, x, y));
    cr_assert(y[0] == 0.5f && y[1] == 0.0f && y[2] == 0.5f && y[3] == 0.0f);
    x[1] = NAN;
    cr_assert(tshi_cuda_softmax[TSH_FLOAT32].whole(gpu(), false, 1, 4, x, y));
    cr_assert(isnan(y[0]) && isnan(y[3]), "a NaN is not lost");
}

Test(cuda_softmax, masked_and_huge_logits) {
    float x[4] = {1e30f, -INFINITY, 1e30f, -1e30f}, y[4], max[1], sum[1];
    tshi_cuda_softmax[TSH_FLOAT32].max(gpu(), 1, 4, 1, x, max);
    tshi_cuda_softmax[TSH_FLOAT32].sum(gpu(), 1, 4, 1, x, max, sum);
    tshi_cuda_softmax[TSH_FLOAT32].forward(gpu(), false, 1, 4, 1, x, max, sum, y);
    cr_assert(y[0] == 0.5f && y[1] == 0.0f && y[2] == 0.5f && y[3] == 0.0f);
    x[1] = NAN;
    tshi_cuda_softmax[TSH_FLOAT32].max(gpu(), 1, 4, 1, x, max);
    tshi_cuda_softmax[TSH_FLOAT32].sum(gpu(), 1, 4, 1, x, max, sum);
    cr_assert(isnan(sum[0]), "a NaN is not lost");
    tshi_cuda_softmax[TSH_FLOAT32].max(gpu(), 1, 0, 1, x, max);
    tshi_cuda_softmax[TSH_FLOAT32].sum(gpu(), 1, 0, 1, x, max, sum);
    cr_assert(max[0] == -INFINITY && sum[0] == 0, "an empty slice is neutral");
}
