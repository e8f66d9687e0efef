/* Random fills and dropout: keyed by global element, exactly, whatever the slice. */
#include "kernel_test.h"
#include "support/philox.h"

TestSuite(random, .timeout = 120);

/* The word of a global element, straight from the generator. */
static uint32_t word_of(uint64_t seed, uint64_t stream, uint64_t element) {
    uint32_t out[4];
    tshi_philox_block(seed, stream, element / 4, out);
    return out[element % 4];
}

static tshi_block whole_block(int64_t outer, int64_t n, int64_t inner) {
    return (tshi_block){.outer = outer, .n = n, .inner = inner, .global_n = n};
}

Test(random, uniforms_are_the_generators) {
    const int64_t n = 1025;
    for (int t = 0; t < FLOAT_DTYPES; t++) {
        buffer b = buffer_make(float_dtypes[t], n);
        tshi_block block = whole_block(1, n, 1);
        kernels()->random[b.dtype].uniform(kernel_device(), &block, 77, 88, -2.0, 6.0, b.data);
        for (int64_t i = 0; i < n; i++) {
            double u = tshi_uniform(word_of(77, 88, (uint64_t)i));
            expect_close(&b, i, -2.0 + 8.0 * u, 8, 1);
        }
        buffer_free(&b);
    }
}

Test(random, normals_take_two_words_each) {
    const int64_t n = 1025;
    for (int t = 0; t < FLOAT_DTYPES; t++) {
        buffer b = buffer_make(float_dtypes[t], n);
        tshi_block block = whole_block(1, n, 1);
        kernels()->random[b.dtype].normal(kernel_device(), &block, 77, 88, 1.0, 0.5, b.data);
        for (int64_t i = 0; i < n; i++) {
            double z = tshi_normal(word_of(77, 88, 2 * (uint64_t)i), word_of(77, 88, 2 * (uint64_t)i + 1));
            expect_close(&b, i, 1.0 + 0.5 * z, 8, 8);
        }
        buffer_free(&b);
    }
}

typedef void fill_fn(tsh_device *device, const tshi_block *block, uint64_t seed, uint64_t stream, double a, double b,
                     void *to);

/* Cut [outer, n, inner] into pieces along both dims; each piece has to hold exactly its part of the whole. */
static void check_slices(fill_fn *fill, tsh_dtype dtype, int64_t outer, int64_t n, int64_t inner) {
    buffer whole = buffer_make(dtype, outer * n * inner);
    tshi_block all = whole_block(outer, n, inner);
    fill(kernel_device(), &all, 5, 6, -1.0, 2.0, whole.data);
    const int64_t rows[] = {0, 1, outer / 2, outer}, cuts[] = {0, n / 3, n / 3, n - n / 2, n};
    for (int r = 0; r < 3; r++) {
        for (int c = 0; c < 4; c++) {
            if (rows[r + 1] < rows[r] || cuts[c + 1] < cuts[c]) continue;
            tshi_block b = {.outer = rows[r + 1] - rows[r],
                            .n = cuts[c + 1] - cuts[c],
                            .inner = inner,
                            .outer_start = rows[r],
                            .start = cuts[c],
                            .global_n = n};
            buffer part = buffer_make(dtype, b.outer * b.n * b.inner);
            fill(kernel_device(), &b, 5, 6, -1.0, 2.0, part.data);
            for (int64_t i = 0; i < part.n; i++) {
                int64_t o = i / (b.n * b.inner), at = i % (b.n * b.inner);
                int64_t global = ((o + b.outer_start) * n + b.start) * inner + at;
                cr_assert_eq(get(&part, i), get(&whole, global), "element %lld", (long long)global);
            }
            buffer_free(&part);
        }
    }
    buffer_free(&whole);
}

Test(random, a_slice_has_the_bits_of_the_whole_tensor) {
    for (int t = 0; t < FLOAT_DTYPES; t++) {
        for (int s = 0; s < ODD_SIZES; s++) {
            check_slices(kernels()->random[float_dtypes[t]].uniform, float_dtypes[t], 5, odd_sizes[s], 1);
            check_slices(kernels()->random[float_dtypes[t]].normal, float_dtypes[t], 5, odd_sizes[s], 1);
            check_slices(kernels()->random[float_dtypes[t]].uniform, float_dtypes[t], 2, odd_sizes[s], 3);
            check_slices(kernels()->random[float_dtypes[t]].normal, float_dtypes[t], 2, odd_sizes[s], 3);
        }
    }
}

Test(random, element_numbers_pass_32_bits) {
    tshi_block block = {.outer = 1, .n = 10, .inner = 1, .outer_start = 3, .start = 7, .global_n = (int64_t)1 << 33};
    double values[10];
    kernels()->random[TSH_FLOAT64].uniform(kernel_device(), &block, 1, 2, 0, 1, values);
    for (uint64_t i = 0; i < 10; i++) {
        cr_assert_eq(values[i], tshi_uniform(word_of(1, 2, ((uint64_t)3 << 33) + 7 + i)));
    }
}

Test(random, the_numbers_look_random) {
    enum { N = 200000 };
    buffer u = buffer_make(TSH_FLOAT32, N), z = buffer_make(TSH_FLOAT32, N), other = buffer_make(TSH_FLOAT32, N);
    tshi_block block = whole_block(1, N, 1);
    kernels()->random[TSH_FLOAT32].uniform(kernel_device(), &block, 1, 0, 0, 1, u.data);
    kernels()->random[TSH_FLOAT32].uniform(kernel_device(), &block, 1, 1, 0, 1, other.data);
    kernels()->random[TSH_FLOAT32].normal(kernel_device(), &block, 1, 2, 0, 1, z.data);
    double mean = 0, squares = 0, neighbours = 0, streams = 0, normal_mean = 0, normal_squares = 0;
    int bins[16] = {0};
    for (int i = 0; i < N; i++) {
        double v = get(&u, i) - 0.5;
        cr_assert(v >= -0.5 && v < 0.5);
        bins[(int)(16 * get(&u, i))]++;
        mean += v;
        squares += v * v;
        if (i > 0) neighbours += v * (get(&u, i - 1) - 0.5);
        streams += v * (get(&other, i) - 0.5);
        normal_mean += get(&z, i);
        normal_squares += get(&z, i) * get(&z, i);
    }
    double chi = 0, root = sqrt(N);
    for (int i = 0; i < 16; i++) chi += pow(bins[i] - N / 16.0, 2) / (N / 16.0);
    cr_assert_lt(chi, 45.0, "15 degrees of freedom: %g", chi);
    cr_assert_lt(fabs(mean), 5 * root * sqrt(1.0 / 12));
    cr_assert_float_eq(squares / N, 1.0 / 12, 5 * sqrt(1.0 / 180) / root);
    cr_assert_lt(fabs(neighbours), 5 * root / 12);
    cr_assert_lt(fabs(streams), 5 * root / 12, "streams are independent");
    cr_assert_lt(fabs(normal_mean), 5 * root);
    cr_assert_float_eq(normal_squares / N, 1.0, 5 * sqrt(2.0) / root);
    buffer_free(&u);
    buffer_free(&z);
    buffer_free(&other);
}

static void check_dropout(tsh_dtype dtype, int64_t n, double p) {
    tshi_block block = {.outer = 3, .n = n, .inner = 1, .outer_start = 1, .start = 2, .global_n = n + 5};
    buffer x = buffer_random(dtype, 3 * n, 1, 2), y = buffer_make(dtype, 3 * n),
           sum = buffer_random(dtype, 3 * n, 1, 2);
    buffer before = buffer_copy(&sum);
    for (int64_t i = 0; i < y.n; i++) set(&y, i, NAN);
    kernels()->random[dtype].dropout(kernel_device(), &block, 9, 8, p, x.data, 0.0, y.data);
    kernels()->random[dtype].dropout(kernel_device(), &block, 9, 8, p, x.data, 1.0, sum.data);
    for (int64_t i = 0; i < y.n; i++) {
        uint64_t element = (uint64_t)((i / n + 1) * (n + 5) + i % n + 2);
        bool keep = tshi_uniform(word_of(9, 8, element)) >= p;
        double wanted = keep ? get(&x, i) / (1 - p) : 0.0;
        expect_close(&y, i, wanted, 4 / (1.0001 - p), 2);
        cr_assert_eq(get(&y, i) != 0.0, keep);
        expect_close(&sum, i, get(&before, i) + wanted, 8 / (1.0001 - p), 4);
    }
    kernels()->random[dtype].dropout(kernel_device(), &block, 9, 8, p, x.data, 0.0, x.data);
    cr_assert_arr_eq(x.data, y.data, (size_t)x.n * tsh_dtype_size(dtype), "in place the result is the same");
    buffer_free(&x);
    buffer_free(&y);
    buffer_free(&sum);
    buffer_free(&before);
}

Test(random, dropout_keeps_what_the_generator_says) {
    const double chances[] = {0.0, 0.1, 0.5, 0.9};
    for (int t = 0; t < FLOAT_DTYPES; t++) {
        for (int s = 0; s < ODD_SIZES; s++) {
            for (int p = 0; p < 4; p++) check_dropout(float_dtypes[t], odd_sizes[s], chances[p]);
        }
    }
}

Test(random, dropout_of_everything_is_zero) {
    float x[3] = {1, INFINITY, -2}, y[3] = {7, 7, 7};
    tshi_block block = whole_block(1, 3, 1);
    kernels()->random[TSH_FLOAT32].dropout(kernel_device(), &block, 1, 1, 1.0, x, 0.0, y);
    for (int i = 0; i < 3; i++) cr_assert_eq(y[i], 0.0f);
}
