/* The GPU's bias, sums and norms against the CPU's. */
#include "kernel_pair.h"

TestSuite(cuda_sum, .timeout = 600);

static void check_bias(tsh_dtype dtype, int64_t rows, int64_t cols, int skew) {
    pair x = pair_integers(dtype, rows * cols, skew), b = pair_integers(dtype, cols, 0);
    pair y = pair_make(dtype, rows * cols, skew), db = pair_integers(dtype, cols, skew);
    tsh_dtype sums = x.cpu.dtype;
    tshi_cuda_elementwise[dtype].bias(gpu(), rows, cols, x.gpu, b.gpu, y.gpu);
    kernels()->elementwise[sums].bias(kernel_device(), rows, cols, x.cpu.data, b.cpu.data, y.cpu.data);
    expect_same(&y, "bias");
    tshi_cuda_elementwise[dtype].bias(gpu(), rows, cols, NULL, b.gpu, y.gpu);
    kernels()->elementwise[sums].bias(kernel_device(), rows, cols, NULL, b.cpu.data, y.cpu.data);
    expect_same(&y, "bias alone");
    tshi_cuda_sum[dtype].bias_backward(gpu(), rows, cols, x.gpu, db.gpu);
    kernels()->sum[sums].bias_backward(kernel_device(), rows, cols, x.cpu.data, db.cpu.data);
    expect_same(&db, "bias_backward");
    pair_free(&x);
    pair_free(&b);
    pair_free(&y);
    pair_free(&db);
}

Test(cuda_sum, bias) {
    const int64_t rows[] = {0, 1, 3, 70};
    for (int t = 0; t < 4; t++)
        for (int s = 0; s < ODD_SIZES; s++)
            for (int r = 0; r < 4; r++) check_bias(gpu_dtypes[t], rows[r], odd_sizes[s], s % 2);
}

static void check_sum(tsh_dtype dtype, int64_t outer, int64_t n, int64_t inner, int skew) {
    pair x = pair_integers(dtype, outer * n * inner, skew), y = pair_make(dtype, outer * inner, skew);
    tsh_dtype sums = x.cpu.dtype;
    tshi_cuda_sum[dtype].over_dim(gpu(), outer, n, inner, 0.25, x.gpu, y.gpu);
    kernels()->sum[sums].over_dim(kernel_device(), outer, n, inner, 0.25, x.cpu.data, y.cpu.data);
    expect_same(&y, "sum");
    pair_round(&y);
    tshi_cuda_sum[dtype].over_dim_backward(gpu(), outer, n, inner, 0.5, y.gpu, x.gpu);
    kernels()->sum[sums].over_dim_backward(kernel_device(), outer, n, inner, 0.5, y.cpu.data, x.cpu.data);
    expect_same(&x, "sum_backward");
    pair_free(&x);
    pair_free(&y);
}

Test(cuda_sum, along_any_dim) {
    const int64_t dims[] = {0, 1, 3, 17, 72};
    for (int t = 0; t < 4; t++)
        for (int o = 0; o < 4; o++)
            for (int n = 0; n < 5; n++)
                for (int k = 0; k < 5; k++) check_sum(gpu_dtypes[t], dims[o], dims[n], dims[k], (o + n + k) % 2);
}

/* Few results of many elements: in parts, along rows and down columns, packed and not. */
Test(cuda_sum, in_parts) {
    const int64_t shapes[][3] = {{1, 70001, 1}, {2, 12288, 1}, {5, 9000, 1},  {1, 3000, 8},  {1, 1111, 16},
                                 {2, 2000, 3},  {1, 5000, 2},  {1, 130, 264}, {30, 5000, 1}, {1, 1025, 300}};
    for (int t = 0; t < 4; t++)
        for (int s = 0; s < 10; s++)
            for (int skew = 0; skew < 2; skew++)
                check_sum(gpu_dtypes[t], shapes[s][0], shapes[s][1], shapes[s][2], skew);
}

/* Sums of numbers that round: far closer than one after the other would come. */
Test(cuda_sum, rounding) {
    for (int t = 0; t < 4; t++) {
        pair x = pair_random(gpu_dtypes[t], 90000, 0, 0, 1), y = pair_make(x.cpu.dtype, 1, 0);
        tsh_dtype sums = x.cpu.dtype;
        pair wide = pair_make(sums, x.n, 0);
        kernels()->copy.convert(kernel_device(), x.n, x.dtype, x.gpu, sums, wide.gpu);
        tshi_cuda_sum[sums].over_dim(gpu(), 1, x.n, 1, 1, wide.gpu, y.gpu);
        kernels()->sum[sums].over_dim(kernel_device(), 1, x.n, 1, 1, x.cpu.data, y.cpu.data);
        expect_pair(&y, "sum", 45000, 4);
        pair_free(&x);
        pair_free(&y);
        pair_free(&wide);
    }
}

static void check_clip(tsh_dtype dtype, int64_t n, double scale, double max_norm, int skew) {
    pair x = pair_random(dtype, n, skew, -3, 3);
    double squares[2] = {1.5, 1.5};
    tshi_cuda_sum[dtype].squares(gpu(), n, x.gpu, &squares[0]);
    kernels()->sum[x.cpu.dtype].squares(kernel_device(), n, x.cpu.data, &squares[1]);
    cr_assert_float_eq(squares[0], squares[1], 1e-12 * squares[1], "%.17g, not %.17g", squares[0], squares[1]);
    tshi_cuda_optimizer[dtype].clip(gpu(), n, &squares[1], scale, max_norm, x.gpu);
    kernels()->optimizer[x.cpu.dtype].clip(kernel_device(), n, &squares[1], scale, max_norm, x.cpu.data);
    expect_pair(&x, "clip", 3, 2);
    pair_free(&x);
}

Test(cuda_sum, norms) {
    for (int t = 0; t < 4; t++) {
        for (int s = 0; s < ODD_SIZES; s++)
            check_clip(gpu_dtypes[t], odd_sizes[s], s % 4 ? 1 : 0.125, s % 2 ? 1.25 : 1e6, s % 3);
        check_clip(gpu_dtypes[t], 99999, 1, 2, 1);
        check_clip(gpu_dtypes[t], 99, 0.5, INFINITY, 1);
    }
}

Test(cuda_sum, norms_that_are_not_finite) {
    float x[3] = {1e30f, -2, 3};
    double squares = NAN;
    tshi_cuda_optimizer[TSH_FLOAT32].clip(gpu(), 3, &squares, 1, 1, x);
    squares = INFINITY;
    tshi_cuda_optimizer[TSH_FLOAT32].clip(gpu(), 3, &squares, 1, 1, x);
    cr_assert(x[0] == 1e30f && x[1] == -2 && x[2] == 3);
    squares = 0;
    tshi_cuda_sum[TSH_FLOAT32].squares(gpu(), 3, x, &squares);
    cr_assert_float_eq(squares, 1e60, 1e53, "squares past float32's range: %g", squares);
}
