/* Reductions across buffers: every dtype, operation and count against a plain loop, in place and out of place. */
#include "kernel_test.h"

#include <complex.h>

TestSuite(reduce, .timeout = 120);

#define MAX_BUFFERS 4

static double complex load(tsh_dtype dtype, const void *data, int64_t i) {
    float wide = 0;
    switch (dtype) {
    case TSH_FLOAT32: return (double)((const float *)data)[i];
    case TSH_FLOAT64: return ((const double *)data)[i];
    case TSH_INT32: return ((const int32_t *)data)[i];
    case TSH_INT64: return (double)((const int64_t *)data)[i];
    case TSH_UINT8: return ((const uint8_t *)data)[i];
    case TSH_COMPLEX64: return (double complex)((const float complex *)data)[i];
    case TSH_COMPLEX128: return ((const double complex *)data)[i];
    default:
        kernels()->copy.convert(kernel_device(), 1, dtype, (const uint16_t *)data + i, TSH_FLOAT32, &wide);
        return (double)wide;
    }
}

/* Small integers: every result here is exact in every type. */
static void store(tsh_dtype dtype, void *data, int64_t i, double complex value) {
    double real = creal(value);
    switch (dtype) {
    case TSH_COMPLEX64: ((float complex *)data)[i] = (float complex)value; break;
    case TSH_COMPLEX128: ((double complex *)data)[i] = value; break;
    default:
        kernels()->copy.convert(kernel_device(), 1, TSH_FLOAT64, &real, dtype,
                                (char *)data + (size_t)i * tsh_dtype_size(dtype));
        break;
    }
}

static double complex combine(tshi_reduction op, double complex a, double complex b) {
    switch (op) {
    case TSHI_SUM: return a + b;
    case TSHI_PROD: return a * b;
    case TSHI_MIN: return creal(a) < creal(b) ? a : b;
    case TSHI_MAX: return creal(a) > creal(b) ? a : b;
    case TSHI_BAND: return (double)((int64_t)creal(a) & (int64_t)creal(b));
    case TSHI_BOR: return (double)((int64_t)creal(a) | (int64_t)creal(b));
    case TSHI_BXOR: return (double)((int64_t)creal(a) ^ (int64_t)creal(b));
    default: return a + b;
    }
}

static double complex random_value(tsh_dtype dtype) {
    if (dtype == TSH_UINT8) return (double)(random_word() % 4);
    double real = (double)(random_word() % 7) - 3;
    return tshi_dtype_is_complex(dtype) ? real + I * ((double)(random_word() % 7) - 3) : real;
}

/* The first `shared` outputs are inputs. */
static void check(tsh_dtype dtype, tshi_reduction op, int64_t n, int count, int outs, int shared) {
    buffer in[MAX_BUFFERS], fresh[MAX_BUFFERS];
    const void *inputs[MAX_BUFFERS];
    void *outputs[MAX_BUFFERS];
    double complex *wanted = calloc((size_t)n + 1, sizeof *wanted);
    for (int k = 0; k < count; k++) {
        in[k] = buffer_make(dtype, n);
        inputs[k] = in[k].data;
        for (int64_t i = 0; i < n; i++) {
            store(dtype, in[k].data, i, random_value(dtype));
            double complex v = load(dtype, in[k].data, i);
            wanted[i] = k == 0 ? v : combine(op, wanted[i], v);
        }
    }
    for (int k = 0; k < outs; k++) {
        fresh[k] = buffer_make(dtype, n);
        outputs[k] = k < shared ? in[count - 1 - k].data : fresh[k].data;
    }
    /* What the type makes of the quotient: rounded once. */
    for (int64_t i = 0; i < n && op == TSHI_AVG; i++) {
        char rounded[16];
        store(dtype, rounded, 0, wanted[i] / count);
        wanted[i] = load(dtype, rounded, 0);
    }
    kernels()->reduce(kernel_device(), dtype, op, n, count, inputs, outs, outputs);
    for (int k = 0; k < outs; k++) {
        for (int64_t i = 0; i < n; i++) {
            double complex got = load(dtype, outputs[k], i);
            cr_assert(got == wanted[i], "%s op %d count %d out %d of %d (%d shared), element %lld of %lld: %g, not %g",
                      tsh_dtype_name(dtype), op, count, k, outs, shared, (long long)i, (long long)n, creal(got),
                      creal(wanted[i]));
        }
        buffer_free(&fresh[k]);
    }
    for (int k = 0; k < count; k++) buffer_free(&in[k]);
    free(wanted);
}

static bool takes(tsh_dtype dtype, tshi_reduction op) {
    bool integer = dtype == TSH_INT32 || dtype == TSH_INT64 || dtype == TSH_UINT8;
    if (op == TSHI_MIN || op == TSHI_MAX) return !tshi_dtype_is_complex(dtype);
    if (op == TSHI_AVG) return !integer;
    return op == TSHI_SUM || op == TSHI_PROD || integer;
}

static void check_all(tsh_dtype dtype, int64_t n) {
    for (int op = 0; op < TSHI_REDUCTION_COUNT; op++) {
        if (!takes(dtype, (tshi_reduction)op)) continue;
        for (int count = 1; count <= MAX_BUFFERS; count++) {
            for (int outs = 1; outs <= MAX_BUFFERS; outs++) {
                int most = outs < count ? outs : count;
                for (int shared = 0; shared <= most; shared++) {
                    check(dtype, (tshi_reduction)op, n, count, outs, shared);
                }
            }
        }
    }
}

Test(reduce, every_dtype_operation_count_and_sharing) {
    const int64_t sizes[] = {0, 1, 3, 33};
    for (int dtype = 0; dtype < TSH_DTYPE_COUNT; dtype++) {
        for (int s = 0; s < 4; s++) check_all((tsh_dtype)dtype, sizes[s]);
    }
}

Test(reduce, sizes_beyond_a_tile) {
    for (int dtype = 0; dtype < TSH_DTYPE_COUNT; dtype++) {
        for (int count = 1; count <= MAX_BUFFERS; count++) {
            for (int outs = 1; outs <= MAX_BUFFERS; outs++) {
                int most = outs < count ? outs : count;
                check((tsh_dtype)dtype, TSHI_SUM, 9001, count, outs, 0);
                check((tsh_dtype)dtype, TSHI_SUM, 9001, count, outs, most);
            }
        }
    }
}

Test(reduce, adds_in_the_order_of_the_ranks) {
    float big[3000], one[3000], minus[3000], out[3000];
    for (int i = 0; i < 3000; i++) {
        big[i] = 0x1p30f;
        one[i] = 1.0f;
        minus[i] = -0x1p30f;
    }
    kernels()->reduce(kernel_device(), TSH_FLOAT32, TSHI_SUM, 3000, 3, (const void *[]){big, one, minus}, 1,
                      (void *[]){out});
    for (int i = 0; i < 3000; i++) cr_assert_eq(out[i], 0.0f, "(big + 1) - big");
    kernels()->reduce(kernel_device(), TSH_FLOAT32, TSHI_SUM, 3000, 3, (const void *[]){big, minus, one}, 1,
                      (void *[]){out});
    for (int i = 0; i < 3000; i++) cr_assert_eq(out[i], 1.0f, "(big - big) + 1");
}

Test(reduce, half_types_accumulate_in_float32) {
    uint16_t in[4][5], out[5];
    const double values[4] = {256, 1, 1, 1};
    for (int k = 0; k < 4; k++) {
        for (int i = 0; i < 5; i++)
            kernels()->copy.convert(kernel_device(), 1, TSH_FLOAT64, &values[k], TSH_BFLOAT16, &in[k][i]);
    }
    kernels()->reduce(kernel_device(), TSH_BFLOAT16, TSHI_SUM, 5, 4, (const void *[]){in[0], in[1], in[2], in[3]}, 1,
                      (void *[]){out});
    for (int i = 0; i < 5; i++) {
        double got = 0;
        kernels()->copy.convert(kernel_device(), 1, TSH_BFLOAT16, &out[i], TSH_FLOAT64, &got);
        cr_assert_eq(got, 260.0, "%g: 256 + 1 alone would round back to 256 three times", got);
    }
}

Test(reduce, integers_wrap) {
    int32_t a[2] = {INT32_MAX, INT32_MIN}, b[2] = {1, -1}, c[2];
    kernels()->reduce(kernel_device(), TSH_INT32, TSHI_SUM, 2, 2, (const void *[]){a, b}, 1, (void *[]){c});
    cr_assert_eq(c[0], INT32_MIN);
    cr_assert_eq(c[1], INT32_MAX);
    int64_t d[1] = {INT64_MAX}, e[1] = {2}, f[1];
    kernels()->reduce(kernel_device(), TSH_INT64, TSHI_PROD, 1, 2, (const void *[]){d, e}, 1, (void *[]){f});
    cr_assert_eq(f[0], -2);
    uint8_t g[1] = {200}, h[1] = {100}, i[1];
    kernels()->reduce(kernel_device(), TSH_UINT8, TSHI_SUM, 1, 2, (const void *[]){g, h}, 1, (void *[]){i});
    cr_assert_eq(i[0], 44);
}

Test(reduce, nan_stays_in_minimum_and_maximum) {
    const float values[3] = {1.0f, NAN, -1.0f};
    for (int op = TSHI_MIN; op <= TSHI_MAX; op++) {
        for (int order = 0; order < 3; order++) {
            float in[3][20], out[20];
            for (int k = 0; k < 3; k++) {
                for (int i = 0; i < 20; i++) in[k][i] = values[(k + order) % 3];
            }
            kernels()->reduce(kernel_device(), TSH_FLOAT32, (tshi_reduction)op, 20, 3,
                              (const void *[]){in[0], in[1], in[2]}, 1, (void *[]){out});
            for (int i = 0; i < 20; i++) cr_assert(isnan(out[i]), "order %d", order);
        }
    }
}
