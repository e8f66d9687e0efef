/* Random fills and dropout: keyed by global element, exactly, whatever the slice. */
#include "kernel_test.h"
#include "support/philox.h"

TestSuite(random, .timeout = 600);

/* The word of a global element, straight from the generator. */
static uint32_t word_of(uint64_t seed, uint64_t stream, uint64_t element) {
    uint32_t out[4];
    tshi_philox_block(seed, stream, element / 4, out);
    return out[element % 4];
}

static tshi_block whole_block(int64_t outer, int64_t n, int64_t inner) {
    return (tshi_block){.outer = outer, .n = n, .inner = inner, .global_n = n};
}

static int64_t elements(const tshi_block *b) {
    return b->outer * b->n * b->inner;
}

/* The global number of a block's element i. */
static uint64_t number_of(const tshi_block *b, int64_t i) {
    int64_t o = i / (b->n * b->inner), rest = i % (b->n * b->inner);
    return (uint64_t)(((o + b->outer_start) * b->global_n + b->start) * b->inner + rest);
}

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

/* Numbers of a range of a power of two are exact but for their last rounding. */
static void check_uniform(tsh_dtype dtype, const tshi_block *b, double low, double high, bool exact) {
    const uint64_t seed = 0x123456789ABCDEF0u, stream = (uint64_t)7 << 40;
    buffer to = buffer_nans(dtype, elements(b));
    kernels()->random[dtype].uniform(kernel_device(), b, seed, stream, low, high, to.data);
    for (int64_t i = 0; i < to.n; i++) {
        double wanted = low + (high - low) * tshi_uniform(word_of(seed, stream, number_of(b, i)));
        if (exact)
            expect_equal(&to, i, rounded(tshi_dtype_sum(dtype), wanted));
        else
            expect_close(&to, i, wanted, 1, 1);
    }
    free_buffers();
}

static void check_normal(tsh_dtype dtype, const tshi_block *b) {
    buffer to = buffer_nans(dtype, elements(b));
    kernels()->random[dtype].normal(kernel_device(), b, 77, 88, 1.0, 0.5, to.data);
    for (int64_t i = 0; i < to.n; i++) {
        uint64_t at = 2 * number_of(b, i);
        double z = tshi_normal(word_of(77, 88, at), word_of(77, 88, at + 1));
        expect_close(&to, i, 1.0 + 0.5 * z, 8, 8);
    }
    free_buffers();
}

Test(random, fills_are_the_generators) {
    for (int bits = 0; bits < FLOAT_DTYPES * SHAPES * LAYOUTS; bits++) {
        tsh_dtype dtype = float_dtypes[bits % FLOAT_DTYPES];
        const tshi_block *b = &shapes[bits / FLOAT_DTYPES % SHAPES];
        lay_buffers(bits / FLOAT_DTYPES / SHAPES);
        check_uniform(dtype, b, -2.0, 6.0, true);
        check_uniform(dtype, b, -0.3, 0.1, false);
        check_normal(dtype, b);
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
            buffer part = buffer_make(dtype, elements(&b));
            fill(kernel_device(), &b, 5, 6, -1.0, 2.0, part.data);
            for (int64_t i = 0; i < part.n; i++)
                cr_assert_eq(get(&part, i), get(&whole, (int64_t)number_of(&b, i)), "element %d", (int)i);
        }
    }
    free_buffers();
}

Test(random, a_slice_has_the_bits_of_the_whole_tensor) {
    for (int t = 0; t < FLOAT_DTYPES; t++) {
        const tshi_random_ops *ops = &kernels()->random[float_dtypes[t]];
        for (int s = 0; s < ODD_SIZES; s++) {
            lay_buffers((s + t) % LAYOUTS);
            check_slices(ops->uniform, float_dtypes[t], 5, odd_sizes[s], 1);
            check_slices(ops->normal, float_dtypes[t], 5, odd_sizes[s], 1);
            check_slices(ops->uniform, float_dtypes[t], 2, odd_sizes[s], 3);
            check_slices(ops->normal, float_dtypes[t], 2, odd_sizes[s], 3);
        }
    }
}

Test(random, the_numbers_look_random) {
    const int n = tested.is_slow ? 20000 : 200000;
    buffer u = buffer_make(TSH_FLOAT32, n), z = buffer_make(TSH_FLOAT32, n), other = buffer_make(TSH_FLOAT32, n);
    tshi_block block = whole_block(1, n, 1);
    kernels()->random[TSH_FLOAT32].uniform(kernel_device(), &block, 1, 0, 0, 1, u.data);
    kernels()->random[TSH_FLOAT32].uniform(kernel_device(), &block, 1, 1, 0, 1, other.data);
    kernels()->random[TSH_FLOAT32].normal(kernel_device(), &block, 1, 2, 0, 1, z.data);
    double mean = 0, squares = 0, neighbours = 0, streams = 0, normal_mean = 0, normal_squares = 0;
    int bins[16] = {0};
    for (int i = 0; i < n; i++) {
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
    double chi = 0, root = sqrt(n);
    for (int i = 0; i < 16; i++) chi += pow(bins[i] - n / 16.0, 2) / (n / 16.0);
    cr_assert_lt(chi, 45.0, "15 degrees of freedom: %g", chi);
    cr_assert_lt(fabs(mean), 5 * root * sqrt(1.0 / 12));
    cr_assert_float_eq(squares / n, 1.0 / 12, 5 * sqrt(1.0 / 180) / root);
    cr_assert_lt(fabs(neighbours), 5 * root / 12);
    cr_assert_lt(fabs(streams), 5 * root / 12, "streams are independent");
    cr_assert_lt(fabs(normal_mean), 5 * root);
    cr_assert_float_eq(normal_squares / n, 1.0, 5 * sqrt(2.0) / root);
    free_buffers();
}

static void check_dropout(tsh_dtype dtype, const tshi_block *block, double p) {
    const tshi_random_ops *ops = &kernels()->random[dtype];
    buffer x = buffer_random(dtype, elements(block), 1, 2), y = buffer_nans(dtype, x.n);
    buffer sum = buffer_random(dtype, x.n, 1, 2), before = buffer_copy(&sum);
    ops->dropout(kernel_device(), block, 9, 8, p, x.data, 0.0, y.data);
    ops->dropout(kernel_device(), block, 9, 8, p, x.data, 1.0, sum.data);
    for (int64_t i = 0; i < y.n; i++) {
        bool keep = tshi_uniform(word_of(9, 8, number_of(block, i))) >= p;
        double wanted = keep ? get(&x, i) / (1 - p) : 0.0;
        expect_close(&y, i, wanted, 4 / (1.0001 - p), 2);
        cr_assert_eq(get(&y, i) != 0.0, keep);
        expect_close(&sum, i, get(&before, i) + wanted, 8 / (1.0001 - p), 4);
    }
    buffer in_place = buffer_copy(&x);
    ops->dropout(kernel_device(), block, 9, 8, p, in_place.data, 0.0, in_place.data);
    expect_same_bits(&in_place, &y, "in place");
    free_buffers();
}

static const double chances[] = {0.0, 0.1, 0.5, 0.9};

Test(random, dropout_keeps_what_the_generator_says) {
    for (int bits = 0; bits < 4 * FLOAT_DTYPES * LAYOUTS; bits++) {
        tsh_dtype dtype = float_dtypes[bits >> 2 & 3];
        lay_buffers(bits >> 4);
        for (int s = 0; s < SHAPES; s++) check_dropout(dtype, &shapes[s], chances[bits & 3]);
        for (int s = 0; s < ODD_SIZES && (bits >> 4) == (bits & 3) % LAYOUTS; s++) {
            int64_t n = odd_sizes[s];
            tshi_block b = {.outer = 3, .n = n, .inner = 1, .outer_start = 1, .start = 2, .global_n = n + 5};
            check_dropout(dtype, &b, chances[bits & 3]);
        }
    }
}

/* Many more units than the threads of a GPU's grid. */
Test(random, dropout_of_a_large_tensor) {
    const tshi_block whole = {.outer = 300, .n = 513, .inner = 8, .global_n = 513};
    const tshi_block slice = {.outer = 200, .n = 513, .inner = 3, .start = 4, .global_n = 1001};
    lay_buffers(ALIGNED);
    for (int t = 0; t < FLOAT_DTYPES; t++) {
        check_dropout(float_dtypes[t], &whole, 0.5);
        check_dropout(float_dtypes[t], &slice, 0.5);
    }
}

/* An element whose number is p itself is kept. */
Test(random, dropout_at_the_threshold) {
    enum { N = 64 };
    const tshi_block block = whole_block(1, N, 1);
    buffer x = buffer_make(TSH_FLOAT32, N), y = buffer_make(TSH_FLOAT32, N);
    for (int i = 0; i < N; i++) set(&x, i, 1);
    for (int i = 0; i < N; i++) {
        double p = tshi_uniform(word_of(3, 4, (uint64_t)i));
        kernels()->random[TSH_FLOAT32].dropout(kernel_device(), &block, 3, 4, p, x.data, 0.0, y.data);
        cr_assert(get(&y, i) != 0);
        kernels()->random[TSH_FLOAT32].dropout(kernel_device(), &block, 3, 4, p + 0x1p-25, x.data, 0.0, y.data);
        cr_assert(get(&y, i) == 0);
    }
    free_buffers();
}

Test(random, dropout_of_everything_is_zero) {
    buffer x = buffer_of(TSH_FLOAT32, 3, (double[]){1, (double)INFINITY, -2}), y = buffer_nans(TSH_FLOAT32, 3);
    tshi_block block = whole_block(1, 3, 1);
    kernels()->random[TSH_FLOAT32].dropout(kernel_device(), &block, 1, 1, 1.0, x.data, 0.0, y.data);
    for (int i = 0; i < 3; i++) cr_assert_eq(get(&y, i), 0);
    free_buffers();
}
