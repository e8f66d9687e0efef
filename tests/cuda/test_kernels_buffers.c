/* The GPU's reductions across buffers against the CPU's, bit for bit: every dtype and operation, packed and not, in
 * place and out of place. */
#include "kernel_pair.h"

TestSuite(cuda_buffers, .timeout = 600);

#define MOST 5

static bool takes(tsh_dtype dtype, tshi_reduction op) {
    bool integer = dtype == TSH_INT32 || dtype == TSH_INT64 || dtype == TSH_UINT8;
    if (op == TSHI_MIN || op == TSHI_MAX) return !tshi_dtype_is_complex(dtype);
    if (op == TSHI_AVG) return !integer;
    return op == TSHI_SUM || op == TSHI_PROD || integer;
}

/* Any bits of integers; fractions that sums have to round, and now and then a NaN. Complex products may be fused or
 * not, so that their parts are small integers. */
static void fill(tsh_dtype dtype, int64_t n, void *to) {
    tsh_dtype real = dtype == TSH_COMPLEX64 ? TSH_FLOAT32 : dtype == TSH_COMPLEX128 ? TSH_FLOAT64 : dtype;
    size_t size = tsh_dtype_size(real);
    bool integer = real == TSH_INT32 || real == TSH_INT64 || real == TSH_UINT8;
    for (int64_t i = 0; i < n * (real == dtype ? 1 : 2); i++) {
        uint64_t word = (uint64_t)random_word() << 32 | random_word();
        double number = ((double)(word % 4001) - 2000) / 128;
        if (word % 53 == 0) number = NAN;
        if (real != dtype) number = (double)(word % 9) - 4;
        if (integer)
            memcpy((char *)to + (size_t)i * size, &word, size);
        else
            kernels()->copy.convert(kernel_device(), 1, TSH_FLOAT64, &number, real, (char *)to + (size_t)i * size);
    }
}

/* Two signs of NaN are one. */
static bool same(tsh_dtype dtype, const void *a, const void *b) {
    double x = 0, y = 0;
    if (memcmp(a, b, tsh_dtype_size(dtype)) == 0) return true;
    if (tshi_dtype_is_complex(dtype)) return false;
    kernels()->copy.convert(kernel_device(), 1, dtype, a, TSH_FLOAT64, &x);
    kernels()->copy.convert(kernel_device(), 1, dtype, b, TSH_FLOAT64, &y);
    return isnan(x) && isnan(y);
}

/* `skews`: bit k is set when buffer k does not lie at a multiple of 16 bytes. The first `shared` outs are ins. */
static void check(tsh_dtype dtype, tshi_reduction op, int64_t n, int count, int outs, int shared, unsigned skews) {
    size_t size = tsh_dtype_size(dtype), bytes = (size_t)n * size, room = bytes + 64;
    char *memory[2][2 * MOST];
    const void *in[2][MOST];
    void *out[2][MOST];
    for (int k = 0; k < count + outs; k++) {
        for (int side = 0; side < 2; side++) {
            cr_assert_eq(posix_memalign((void **)&memory[side][k], 64, room), 0);
            memset(memory[side][k], 0xA5, room);
        }
        size_t skew = skews >> k & 1 ? size : 0;
        if (k < count) fill(dtype, n, memory[0][k] + skew);
        memcpy(memory[1][k], memory[0][k], room);
        for (int side = 0; side < 2; side++) {
            if (k < count)
                in[side][k] = memory[side][k] + skew;
            else
                out[side][k - count] = memory[side][k] + skew;
        }
    }
    for (int k = 0; k < shared; k++) {
        for (int side = 0; side < 2; side++) out[side][k] = (char *)(uintptr_t)in[side][count - 1 - k];
    }
    kernels()->reduce(kernel_device(), dtype, op, n, count, in[0], outs, out[0]);
    tshi_cuda_reduce(gpu(), dtype, op, n, count, in[1], outs, out[1]);
    for (int k = 0; k < outs; k++) {
        for (int64_t i = 0; i < n; i++) {
            size_t at = (size_t)i * size;
            cr_assert(same(dtype, (char *)out[0][k] + at, (char *)out[1][k] + at),
                      "%s op %d, %d to %d (%d shared), skews %u: out %d, element %lld of %lld", tsh_dtype_name(dtype),
                      op, count, outs, shared, skews, k, (long long)i, (long long)n);
        }
    }
    for (int k = 0; k < count + outs; k++) {
        for (size_t at = 0; at < room; at++) {
            bool data = at - (skews >> k & 1 ? size : 0) < bytes;
            cr_assert(data || memory[1][k][at] == (char)0xA5, "written outside");
        }
        free(memory[0][k]);
        free(memory[1][k]);
    }
}

static void check_dtype(tsh_dtype dtype) {
    const int64_t sizes[] = {0, 1, 15, 16, 37, 3001};
    for (int op = 0; op < TSHI_REDUCTION_COUNT; op++) {
        if (!takes(dtype, (tshi_reduction)op)) continue;
        for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++) {
            for (int count = 1; count <= MOST; count += 2) {
                check(dtype, (tshi_reduction)op, sizes[s], count, count, count, 0);
                check(dtype, (tshi_reduction)op, sizes[s], count, count, count, ~0u);
                check(dtype, (tshi_reduction)op, sizes[s], count, 1, 0, 0);
                check(dtype, (tshi_reduction)op, sizes[s], count, 2, 1, 5);
            }
        }
    }
}

Test(cuda_buffers, every_dtype_and_operation) {
    for (int dtype = 0; dtype < TSH_DTYPE_COUNT; dtype++) check_dtype((tsh_dtype)dtype);
}

/* The largest number of buffers, each once. */
Test(cuda_buffers, many) {
    float numbers[TSHI_REDUCE_MOST], results[TSHI_REDUCE_MOST];
    const void *in[TSHI_REDUCE_MOST];
    void *out[TSHI_REDUCE_MOST];
    for (int k = 0; k < TSHI_REDUCE_MOST; k++) {
        numbers[k] = (float)(k + 1);
        in[k] = &numbers[k];
        out[k] = &results[k];
    }
    tshi_cuda_reduce(gpu(), TSH_FLOAT32, TSHI_SUM, 1, TSHI_REDUCE_MOST, in, TSHI_REDUCE_MOST, out);
    for (int k = 0; k < TSHI_REDUCE_MOST; k++) cr_assert_eq(results[k], TSHI_REDUCE_MOST * (TSHI_REDUCE_MOST + 1) / 2);
}
