/* What the CPU's products have of their own. Products of few rows: integers make them exact, and each row of x gets
 * what it gets alone, bit for bit. Which library multiplies what. */
#include "device/cpu/cpu.h"
#include "kernel_test.h"

TestSuite(few_rows, .timeout = 120);

/* Weights of a dtype; `narrow`: those of x as well. */
typedef struct few_rows_case {
    tsh_dtype dtype;
    bool narrow;
} few_rows_case;

static const tshi_isa *kernel_isa(void) {
    return ((const tshi_cpu_device *)kernel_device())->isa;
}

static tsh_dtype dtype_of_x(few_rows_case c) {
    return c.narrow ? c.dtype : TSH_FLOAT32;
}

static void check_few_rows(few_rows_case c, int64_t m, int64_t n, int64_t k, int64_t pad, float alpha, float beta) {
    buffer x = buffer_integers(dtype_of_x(c), m * (k + pad)), w = buffer_integers(c.dtype, n * (k + pad));
    buffer y = buffer_integers(TSH_FLOAT32, m * (n + pad)), before = buffer_copy(&y);
    for (int64_t i = 0; i < m * n && beta == 0; i++) set(&y, i / n * (n + pad) + i % n, (double)NAN);
    kernel_isa()->few_rows(
        c.dtype, &(tshi_few_rows){m, n, k, alpha, x.data, k + pad, w.data, k + pad, beta, y.data, n + pad, c.narrow});
    for (int64_t i = 0; i < m * (n + pad); i++) {
        int64_t row = i / (n + pad), col = i % (n + pad);
        double wanted = get(&before, i), sum = 0;
        for (int64_t l = 0; l < k && col < n; l++) sum += get(&x, row * (k + pad) + l) * get(&w, col * (k + pad) + l);
        if (col < n) wanted = (double)alpha * sum + (beta != 0 ? (double)beta * wanted : 0);
        expect_equal(&y, i, wanted);
    }
    free_buffers();
}

static void check_alone(few_rows_case c) {
    enum { N = 7, K = 203 };
    buffer x = buffer_random(dtype_of_x(c), TSHI_FEW_ROWS * K, -1, 1), w = buffer_random(c.dtype, N * K, -1, 1);
    buffer together = buffer_make(TSH_FLOAT32, TSHI_FEW_ROWS * N), alone = buffer_make(TSH_FLOAT32, TSHI_FEW_ROWS * N);
    tshi_few_rows p = {TSHI_FEW_ROWS, N, K, 1, x.data, K, w.data, K, 0, together.data, N, c.narrow};
    kernel_isa()->few_rows(c.dtype, &p);
    for (int i = 0; i < TSHI_FEW_ROWS * N; i++) {
        p.m = p.n = p.ldy = 1;
        p.x = (char *)x.data + (size_t)(i / N * K) * tsh_dtype_size(x.dtype);
        p.w = (char *)w.data + (size_t)(i % N * K) * tsh_dtype_size(w.dtype);
        p.y = (float *)alone.data + i;
        kernel_isa()->few_rows(c.dtype, &p);
    }
    expect_same_bits(&alone, &together, "products");
    free_buffers();
}

static void check(few_rows_case c) {
    static const int64_t lengths[] = {1, 15, 31, 32, 33, 63, 64, 97, 256};
    for (int64_t m = 1; m <= TSHI_FEW_ROWS + 1; m++) {
        for (int l = 0; l < 9; l++) {
            check_few_rows(c, m, 9, lengths[l], 0, 1, 0);
            check_few_rows(c, m, 3, lengths[l], 3, -0.5f, 2);
        }
    }
    check_alone(c);
}

Test(few_rows, all_dtypes_sizes_and_leading_dims) {
    static const tsh_dtype dtypes[] = {TSH_FLOAT32, TSH_BFLOAT16, TSH_FLOAT16};
    for (int d = 0; d < 3; d++) check((few_rows_case){dtypes[d], false});
}

Test(few_rows, native_products_of_bfloat16) {
    if (!kernel_isa()->multiplies_bfloat16) cr_skip("this instruction set multiplies no bfloat16");
    check((few_rows_case){TSH_BFLOAT16, true});
}

static _Alignas(4096) char heaps[2][1 << 20];

/* Bytes of scratch memory that a bfloat16 product of one row takes: the row and a piece of sums, or tiles of a
 * library's product. */
static size_t scratch_of_one_row(tsh_device *device) {
    enum { N = 300, K = 64 };
    uint16_t x[K] = {0}, w[N * K] = {0}, y[N];
    size_t before = device->stats.bytes_peak;
    cr_assert_eq(device->ops->product.gemm(device, TSH_BFLOAT16, false, true, 1, N, K, 1, x, K, w, K, 0, y, N), TSH_OK);
    cr_assert_eq(device->stats.bytes_in_use, 0);
    return device->stats.bytes_peak - before;
}

/* Whatever library multiplies, and whichever device was made last. */
Test(few_rows, one_thread_reads_their_weights_itself) {
    tsh_device *device[2];
    kernel_device(); /* skips an instruction set that the CPU lacks */
    for (int i = 0; i < 2; i++)
        cr_assert_eq(tshi_device_create_cpu(NULL, heaps[i], sizeof heaps[i], i + 1, &device[i]), TSH_OK);
    size_t alone = scratch_of_one_row(device[0]), library = scratch_of_one_row(device[1]);
    cr_assert(alone > 0 && alone < 4096 && library > 65536, "%zu and %zu bytes", alone, library);
    for (int i = 0; i < 2; i++) tshi_device_destroy(device[i]);
}

/* 16 rows or fewer are never theirs. */
Test(few_rows, larger_products_go_to_primitives) {
    buffer x = buffer_integers(TSH_FLOAT32, 17 * 80), w = buffer_integers(TSH_FLOAT32, 100 * 80);
    buffer y = buffer_make(TSH_FLOAT32, 17 * 100);
    cr_assert_eq(kernels()->product.affine(kernel_device(), TSH_FLOAT32, 17, 100, 80, x.data, w.data, NULL,
                                           TSHI_IDENTITY, NULL, y.data),
                 TSH_OK);
#ifdef TSHARD_HAVE_ONEDNN
    cr_assert_not_null(((tshi_cpu_device *)kernel_device())->primitives);
#endif
    free_buffers();
}
