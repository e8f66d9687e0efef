/* The GPU's fills and conversions against the CPU's, bit for bit. */
#include "kernel_pair.h"

TestSuite(cuda_memory, .timeout = 600);

#define MOST 1100

/* NaNs may differ in their bits. */
static bool same(tsh_dtype dtype, const void *a, const void *b, int64_t i) {
    size_t size = tsh_dtype_size(dtype);
    if (memcmp((const char *)a + (size_t)i * size, (const char *)b + (size_t)i * size, size) == 0) return true;
    double x = 0, y = 0;
    kernels()->copy.convert(kernel_device(), 1, dtype, (const char *)a + (size_t)i * size, TSH_FLOAT64, &x);
    kernels()->copy.convert(kernel_device(), 1, dtype, (const char *)b + (size_t)i * size, TSH_FLOAT64, &y);
    return isnan(x) && isnan(y);
}

static void check_convert(tsh_dtype from_dtype, const void *from, tsh_dtype to_dtype, int64_t n, int skew) {
    static _Alignas(64) char memory[3][(MOST + 8) * 8];
    size_t from_skew = (size_t)skew * tsh_dtype_size(from_dtype), to_skew = (size_t)skew * tsh_dtype_size(to_dtype);
    size_t bytes = (size_t)n * tsh_dtype_size(to_dtype);
    memset(memory, 0xA5, sizeof memory);
    memcpy(memory[0] + from_skew, from, (size_t)n * tsh_dtype_size(from_dtype));
    tshi_cuda_convert(gpu(), n, from_dtype, memory[0] + from_skew, to_dtype, memory[1] + to_skew);
    kernels()->copy.convert(kernel_device(), n, from_dtype, from, to_dtype, memory[2] + to_skew);
    for (int64_t i = 0; i < n; i++)
        cr_assert(same(to_dtype, memory[1] + to_skew, memory[2] + to_skew, i), "%s to %s, element %lld of %lld",
                  tsh_dtype_name(from_dtype), tsh_dtype_name(to_dtype), (long long)i, (long long)n);
    cr_assert_arr_eq(memory[1], memory[2], to_skew);
    cr_assert_arr_eq(memory[1] + to_skew + bytes, memory[2] + to_skew + bytes, 16, "written past the end");
}

/* Bits of any kind, and what lies around the edges of the types. */
static void values(tsh_dtype dtype, void *to) {
    static const double edges[] = {0,
                                   -0.0,
                                   0.5,
                                   -0.5,
                                   1.5,
                                   -1.5,
                                   255,
                                   255.5,
                                   256,
                                   -1,
                                   65504,
                                   65519,
                                   65520,
                                   1e5,
                                   -1e5,
                                   2147483647,
                                   2147483648.0,
                                   -2147483648.0,
                                   -2147483649.0,
                                   16777217,
                                   257,
                                   258,
                                   259,
                                   0x1p63,
                                   -0x1p63,
                                   0x1p62,
                                   1e300,
                                   -1e300,
                                   0x1p-24,
                                   0x1p-25,
                                   0x1.000002p-25,
                                   0x1p-14,
                                   0x1.ffcp-15,
                                   0x1.01p0,
                                   0x1.03p0,
                                   0x1.0080000001p0,
                                   0x1.00800001p0,
                                   3.4e38,
                                   3.5e38};
    unsigned char *bytes = to;
    for (size_t i = 0; i < MOST * tsh_dtype_size(dtype); i++) bytes[i] = (unsigned char)random_word();
    int64_t known = (int64_t)(sizeof edges / sizeof edges[0]);
    kernels()->copy.convert(kernel_device(), known, TSH_FLOAT64, edges, dtype, to);
    if (dtype != TSH_INT64) return;
    int64_t *integers = (int64_t *)to + known;
    for (int i = 0; i < 200; i++) /* between two bfloat16, two float16 or two float32, and next to that */
        integers[i] = ((int64_t)1 << (i % 60)) + ((int64_t)1 << (i % 60) >> (8 + i % 3 * 16 % 25)) + i % 5 - 2;
}

Test(cuda_memory, conversions) {
    static _Alignas(64) char from[MOST * 8];
    const tsh_dtype real[] = {TSH_FLOAT32, TSH_FLOAT64, TSH_BFLOAT16, TSH_FLOAT16, TSH_INT32, TSH_INT64, TSH_UINT8};
    for (int a = 0; a < 7; a++) {
        values(real[a], from);
        for (int b = 0; b < 7; b++) {
            for (int s = 0; s < ODD_SIZES && a != b; s++) {
                check_convert(real[a], from, real[b], odd_sizes[s], 0);
                check_convert(real[a], from, real[b], odd_sizes[s], 1 + s % 3);
            }
        }
    }
}

static void check_fill(tsh_dtype dtype, int64_t n, double value, size_t skew) {
    static _Alignas(64) char memory[2][(MOST + 8) * 16];
    skew *= tsh_dtype_size(dtype);
    memset(memory, 0xA5, sizeof memory);
    tshi_cuda_fill(gpu(), dtype, n, value, memory[0] + skew);
    kernels()->copy.fill(kernel_device(), dtype, n, value, memory[1] + skew);
    cr_assert_arr_eq(memory[0], memory[1], sizeof memory[0], "%lld of %s", (long long)n, tsh_dtype_name(dtype));
}

Test(cuda_memory, fills) {
    const double some[] = {0, 1, -2.75, 300, 1e300, 0x1.01p0, 1e-7};
    for (int t = 0; t < TSH_DTYPE_COUNT; t++)
        for (int s = 0; s < ODD_SIZES; s++)
            for (int v = 0; v < 7; v++) check_fill((tsh_dtype)t, odd_sizes[s], some[v], (size_t)(v + s) % 4);
}
