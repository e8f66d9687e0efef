/* The GPU's activations and element-wise arithmetic against the CPU's. */
#include "kernel_pair.h"

TestSuite(cuda_elementwise, .timeout = 600);

/* Where x, y and z begin behind a 16-byte boundary: together, together but not on it, each elsewhere. */
static const int skews[3][3] = {{0, 0, 0}, {1, 1, 1}, {0, 1, 3}};

/* An exponent; bounds. */
static const double parameters[2] = {-1.25, 2.5};

static bool is_positive(tshi_unary f) {
    return f == TSHI_LOG || f == TSHI_SQRT || f == TSHI_POW;
}

static pair arguments(tshi_unary f, tsh_dtype dtype, int64_t n, int skew) {
    return pair_random(dtype, n, skew, is_positive(f) ? 0.25 : -6, 6);
}

static void check_unary(tshi_unary f, tsh_dtype dtype, int64_t n, const int skew[3]) {
    pair x = arguments(f, dtype, n, skew[0]), y = pair_make(dtype, n, skew[2]);
    double scale = f == TSHI_EXP ? 400 : 6;
    tshi_cuda_elementwise[dtype].unary(gpu(), f, parameters, n, x.gpu, y.gpu);
    kernels()->elementwise[x.cpu.dtype].unary(kernel_device(), f, parameters, n, x.cpu.data, y.cpu.data);
    expect_pair(&y, "unary", scale, 8);
    tshi_cuda_elementwise[dtype].unary(gpu(), f, parameters, n, x.gpu, x.gpu);
    kernels()->elementwise[x.cpu.dtype].unary(kernel_device(), f, parameters, n, x.cpu.data, x.cpu.data);
    expect_pair(&x, "unary in place", scale, 8);
    pair_free(&x);
    pair_free(&y);
}

static void check_unary_backward(tshi_unary f, tsh_dtype dtype, int64_t n, double beta, const int skew[3]) {
    pair x = arguments(f, dtype, n, skew[0]), dy = pair_random(dtype, n, skew[1], -2, 2);
    pair dx = pair_random(dtype, n, skew[2], -2, 2);
    if (beta == 0) memset(dx.gpu, 0xFF, pair_bytes(&dx)); /* not read */
    tshi_cuda_elementwise[dtype].unary_backward(gpu(), f, parameters, n, x.gpu, dy.gpu, beta, dx.gpu);
    kernels()->elementwise[x.cpu.dtype].unary_backward(kernel_device(), f, parameters, n, x.cpu.data, dy.cpu.data, beta,
                                                       dx.cpu.data);
    expect_pair(&dx, "unary_backward", f == TSHI_EXP || f == TSHI_POW ? 800 : 4, 64);
    pair_free(&x);
    pair_free(&dy);
    pair_free(&dx);
}

Test(cuda_elementwise, functions) {
    for (int f = 0; f < TSHI_UNARY_COUNT; f++)
        for (int t = 0; t < 4; t++)
            for (int s = 0; f != TSHI_IDENTITY && s < ODD_SIZES; s++)
                for (int k = 0; k < 3; k++) {
                    check_unary((tshi_unary)f, gpu_dtypes[t], odd_sizes[s], skews[k]);
                    check_unary_backward((tshi_unary)f, gpu_dtypes[t], odd_sizes[s], s % 2, skews[k]);
                }
}

/* A grid goes round more than once. */
Test(cuda_elementwise, many_elements) {
    for (int t = 0; t < 4; t++) {
        check_unary(TSHI_RELU, gpu_dtypes[t], 3 * 2048 * 8 * 2 + 5, skews[0]);
        check_unary_backward(TSHI_SILU, gpu_dtypes[t], 3 * 2048 * 8 + 5, 1, skews[1]);
    }
}

Test(cuda_elementwise, what_is_not_finite) {
    float x[8] = {NAN, INFINITY, -INFINITY, -0.0f, 1e30f, -1e30f, 100, -100}, y[8];
    for (int f = 0; f < TSHI_IDENTITY; f++) {
        tshi_cuda_elementwise[TSH_FLOAT32].unary(gpu(), (tshi_unary)f, NULL, 8, x, y);
        cr_assert(isnan(y[0]) && y[1] == INFINITY && y[4] == 1e30f && y[6] == 100, "unary %d", f);
        cr_assert(fabsf(y[7]) < 1e-30f, "unary %d", f);
    }
}

static void check_arithmetic(tsh_dtype dtype, int64_t n, const int skew[3]) {
    pair x = pair_integers(dtype, n, skew[0]), y = pair_integers(dtype, n, skew[1]),
         z = pair_integers(dtype, n, skew[2]);
    tsh_dtype sums = x.cpu.dtype;
    tshi_cuda_elementwise[dtype].axpby(gpu(), n, 2, x.gpu, -3, y.gpu, z.gpu);
    kernels()->elementwise[sums].axpby(kernel_device(), n, 2, x.cpu.data, -3, y.cpu.data, z.cpu.data);
    expect_same(&z, "axpby");
    tshi_cuda_elementwise[dtype].axpby(gpu(), n, 0.5, z.gpu, 0, NULL, z.gpu);
    kernels()->elementwise[sums].axpby(kernel_device(), n, 0.5, z.cpu.data, 0, NULL, z.cpu.data);
    expect_same(&z, "axpby of one term in place");
    tshi_cuda_elementwise[dtype].mul(gpu(), n, x.gpu, y.gpu, 1, z.gpu);
    kernels()->elementwise[sums].mul(kernel_device(), n, x.cpu.data, y.cpu.data, 1, z.cpu.data);
    expect_same(&z, "mul, added");
    memset(z.gpu, 0xFF, pair_bytes(&z));
    tshi_cuda_elementwise[dtype].mul(gpu(), n, x.gpu, y.gpu, 0, z.gpu);
    kernels()->elementwise[sums].mul(kernel_device(), n, x.cpu.data, y.cpu.data, 0, z.cpu.data);
    expect_same(&z, "mul");
    const tshi_overlay o = {1, {n}, {1}, {1}};
    for (int f = 0; f < TSHI_BINARY_COUNT; f++) {
        tshi_cuda_elementwise[dtype].binary(gpu(), (tshi_binary)f, &o, x.gpu, y.gpu, z.gpu);
        kernels()->elementwise[sums].binary(kernel_device(), (tshi_binary)f, &o, x.cpu.data, y.cpu.data, z.cpu.data);
        expect_same(&z, "binary");
    }
    tshi_cuda_elementwise[dtype].mul(gpu(), n, x.gpu, y.gpu, 0, y.gpu);
    kernels()->elementwise[sums].mul(kernel_device(), n, x.cpu.data, y.cpu.data, 0, y.cpu.data);
    expect_same(&y, "mul in place");
    pair_free(&x);
    pair_free(&y);
    pair_free(&z);
}

Test(cuda_elementwise, arithmetic) {
    for (int t = 0; t < 4; t++)
        for (int s = 0; s < ODD_SIZES; s++)
            for (int k = 0; k < 3; k++) check_arithmetic(gpu_dtypes[t], odd_sizes[s], skews[k]);
}

/* Of 3 runs, along which x and y are repeated by turns; `skew`: y's first element is so many behind a multiple of 16
 * bytes. */
static void check_repeated(tshi_binary f, tsh_dtype dtype, const int64_t n[3], int skew) {
    const tshi_overlay overlays[] = {{3, {n[0], n[1], n[2]}, {1, 0, n[0]}, {0, 1, 0}},
                                     {3, {n[0], n[1], n[2]}, {0, 1, 0}, {1, 0, n[0]}},
                                     {2, {n[0], n[1] * n[2]}, {1, n[0]}, {1, 0}}};
    for (int i = 0; i < 3; i++) {
        int64_t numel = n[0] * n[1] * n[2];
        pair x = pair_integers(dtype, numel, 0), y = pair_random(dtype, numel, skew, 1, 2);
        pair z = pair_make(dtype, numel, 0);
        tshi_cuda_elementwise[dtype].binary(gpu(), f, &overlays[i], x.gpu, y.gpu, z.gpu);
        kernels()->elementwise[x.cpu.dtype].binary(kernel_device(), f, &overlays[i], x.cpu.data, y.cpu.data,
                                                   z.cpu.data);
        expect_pair(&z, "binary of what is repeated", 8, 1);
        pair_free(&x);
        pair_free(&y);
        pair_free(&z);
    }
}

Test(cuda_elementwise, arithmetic_of_what_is_repeated) {
    static const int64_t sizes[][3] = {{7, 5, 3}, {1, 2, 3},  {33, 1, 2},   {0, 3, 2},
                                       {3, 0, 2}, {16, 3, 5}, {100, 50, 3}, {264, 20, 3}};
    for (int f = 0; f < TSHI_BINARY_COUNT; f++)
        for (int t = 0; t < 4; t++)
            for (int s = 0; s < 8; s++)
                for (int skew = 0; skew < 2; skew++) check_repeated((tshi_binary)f, gpu_dtypes[t], sizes[s], skew);
}
