/* Reductions across buffers, bit for bit against a plain loop: every dtype, operation and count, aligned or not, in
 * place and out of place. */
#include "kernel_test.h"

#include <complex.h>

TestSuite(reduce, .timeout = 600);

#define MOST 5

/* --- elements ----------------------------------------------------------------------------------------------------- */

static bool is_integer(tsh_dtype dtype) {
    return dtype == TSH_INT32 || dtype == TSH_INT64 || dtype == TSH_UINT8;
}

static bool takes(tsh_dtype dtype, tshi_reduction op) {
    if (op == TSHI_MIN || op == TSHI_MAX) return !tshi_dtype_is_complex(dtype);
    if (op == TSHI_AVG) return !is_integer(dtype);
    return op == TSHI_SUM || op == TSHI_PROD || is_integer(dtype);
}

static tsh_dtype part_of(tsh_dtype dtype) {
    return dtype == TSH_COMPLEX64 ? TSH_FLOAT32 : dtype == TSH_COMPLEX128 ? TSH_FLOAT64 : dtype;
}

static double complex load(const buffer *b, int64_t i) {
    if (!tshi_dtype_is_complex(b->dtype)) return get(b, i);
    tsh_dtype part = part_of(b->dtype);
    return (double)load_element(part, b->data, 2 * i) + I * (double)load_element(part, b->data, 2 * i + 1);
}

/* Any bits of integers; fractions that sums have to round, and now and then a NaN. Complex products may be fused or
 * not, so that their parts are small integers. */
static void fill(buffer *b) {
    bool in_parts = tshi_dtype_is_complex(b->dtype);
    tsh_dtype part = part_of(b->dtype);
    for (int64_t i = 0; i < b->n * (in_parts ? 2 : 1); i++) {
        uint64_t word = (uint64_t)random_word() << 32 | random_word();
        double number = word % 53 == 0 ? (double)NAN : ((double)(word % 4001) - 2000) / 128;
        if (in_parts) number = (double)(word % 7) - 3;
        if (is_integer(part))
            memcpy((char *)b->data + (size_t)i * tsh_dtype_size(part), &word, tsh_dtype_size(part));
        else
            store_element(part, b->data, i, number);
    }
}

/* Of integers, that wrap. */
static int64_t combine_integers(tshi_reduction op, int64_t a, int64_t b) {
    switch (op) {
    case TSHI_SUM: return (int64_t)((uint64_t)a + (uint64_t)b);
    case TSHI_PROD: return (int64_t)((uint64_t)a * (uint64_t)b);
    case TSHI_MIN: return a < b ? a : b;
    case TSHI_MAX: return a > b ? a : b;
    case TSHI_BAND: return a & b;
    case TSHI_BOR: return a | b;
    default: return a ^ b;
    }
}

static double complex combine(tshi_reduction op, double complex a, double complex b) {
    if (op == TSHI_PROD) return cimag(a) == 0 && cimag(b) == 0 ? creal(a) * creal(b) : a * b;
    if (op == TSHI_SUM || op == TSHI_AVG) return a + b;
    if (isnan(creal(a)) || isnan(creal(b))) return (double)NAN;
    return (creal(a) < creal(b)) == (op == TSHI_MIN) ? a : b;
}

/* As an element of the dtype in which the sums of `dtype` are. */
static double complex round_sum(tsh_dtype dtype, double complex value) {
    if (tshi_dtype_is_complex(dtype)) return value;
    return rounded(tshi_dtype_sum(dtype), creal(value));
}

/* Element i, reduced in order, is `got`. */
static bool is_reduced(tshi_reduction op, int count, const buffer *in, int64_t i, const buffer *got) {
    tsh_dtype dtype = in[0].dtype;
    if (is_integer(dtype)) {
        int64_t wanted = (int64_t)load_element(dtype, in[0].data, i);
        for (int k = 1; k < count; k++)
            wanted = combine_integers(op, wanted, (int64_t)load_element(dtype, in[k].data, i));
        return memcmp(&wanted, (char *)got->data + (size_t)i * tsh_dtype_size(dtype), tsh_dtype_size(dtype)) == 0;
    }
    double complex wanted = load(&in[0], i), there = load(got, i);
    for (int k = 1; k < count; k++) wanted = round_sum(dtype, combine(op, wanted, load(&in[k], i)));
    if (op == TSHI_AVG) wanted = round_sum(dtype, wanted / count);
    if (tshi_dtype_is_complex(dtype)) /* a quotient may be a product with the reciprocal */
        return cabs(there - wanted) <= (op == TSHI_AVG ? cabs(wanted) * rounding_errors(part_of(dtype), 2) : 0);
    return creal(there) == rounded(dtype, creal(wanted)) || (isnan(creal(there)) && isnan(creal(wanted)));
}

/* --- calls -------------------------------------------------------------------------------------------------------- */

/* The first `shared` outputs are inputs. */
static void check(tsh_dtype dtype, tshi_reduction op, int64_t n, int count, int outs, int shared) {
    buffer in[MOST], before[MOST], out[MOST];
    const void *inputs[MOST];
    void *outputs[MOST];
    for (int k = 0; k < count; k++) {
        in[k] = buffer_make(dtype, n);
        fill(&in[k]);
        before[k] = buffer_copy(&in[k]);
        inputs[k] = in[k].data;
    }
    for (int k = 0; k < outs; k++) {
        out[k] = k < shared ? in[count - 1 - k] : buffer_make(dtype, n);
        outputs[k] = out[k].data;
    }
    kernels()->reduce(kernel_device(), dtype, op, n, count, inputs, outs, outputs);
    for (int64_t i = 0; i < n; i++)
        cr_assert(is_reduced(op, count, before, i, &out[0]), "%s op %d, %d to %d (%d shared): element %lld of %lld",
                  tsh_dtype_name(dtype), op, count, outs, shared, (long long)i, (long long)n);
    for (int k = 1; k < outs; k++) expect_same_bits(&out[k], &out[0], "another output");
    for (int k = 0; k < count - shared; k++) expect_same_bits(&in[k], &before[k], "an input");
    free_buffers();
}

static void check_all(tsh_dtype dtype, int64_t n) {
    for (int op = 0; op < TSHI_REDUCTION_COUNT; op++) {
        for (int count = 1; takes(dtype, (tshi_reduction)op) && count <= MOST; count++) {
            for (int outs = 1; outs <= MOST; outs++) {
                for (int shared = 0; shared <= (outs < count ? outs : count); shared++) {
                    lay_buffers((count + outs + shared) % LAYOUTS);
                    check(dtype, (tshi_reduction)op, n, count, outs, shared);
                }
            }
        }
    }
}

Test(reduce, every_dtype_operation_count_and_sharing) {
    const int64_t sizes[] = {0, 1, 3, 16, 37};
    for (int dtype = 0; dtype < TSH_DTYPE_COUNT; dtype++)
        for (int s = 0; s < 5; s++) check_all((tsh_dtype)dtype, sizes[s]);
}

/* Longer than a tile. */
Test(reduce, many_elements) {
    for (int dtype = 0; dtype < TSH_DTYPE_COUNT; dtype++) {
        for (int op = 0; op < TSHI_REDUCTION_COUNT; op++) {
            for (int count = 1; takes((tsh_dtype)dtype, (tshi_reduction)op) && count <= MOST; count += 2) {
                for (int layout = 0; layout < LAYOUTS; layout++) {
                    lay_buffers(layout);
                    check((tsh_dtype)dtype, (tshi_reduction)op, 3001, count, count, count);
                    check((tsh_dtype)dtype, (tshi_reduction)op, 3001, count, 1, 0);
                    check((tsh_dtype)dtype, (tshi_reduction)op, 3001, count, 2, 1);
                }
            }
        }
        for (int outs = 1; outs < MOST; outs++) check((tsh_dtype)dtype, TSHI_SUM, 9001, 4, outs, outs % 2 * outs);
    }
}

/* The largest number of buffers, each once. */
Test(reduce, many_buffers) {
    const void *in[TSHI_REDUCE_MAX];
    void *out[TSHI_REDUCE_MAX];
    buffer numbers = buffer_make(TSH_FLOAT32, TSHI_REDUCE_MAX), results = buffer_make(TSH_FLOAT32, TSHI_REDUCE_MAX);
    for (int k = 0; k < TSHI_REDUCE_MAX; k++) {
        set(&numbers, k, k + 1);
        in[k] = (float *)numbers.data + k;
        out[k] = (float *)results.data + k;
    }
    kernels()->reduce(kernel_device(), TSH_FLOAT32, TSHI_SUM, 1, TSHI_REDUCE_MAX, in, TSHI_REDUCE_MAX, out);
    for (int k = 0; k < TSHI_REDUCE_MAX; k++)
        cr_assert_eq(get(&results, k), TSHI_REDUCE_MAX * (TSHI_REDUCE_MAX + 1) / 2);
    free_buffers();
}

/* Three of one element each, which `n` elements have. */
static double reduce_three(tsh_dtype dtype, tshi_reduction op, int n, const double *values) {
    buffer b[4];
    for (int k = 0; k < 4; k++) b[k] = buffer_make(dtype, n);
    for (int k = 0; k < 3; k++)
        for (int i = 0; i < n; i++) set(&b[k], i, values[k]);
    kernels()->reduce(kernel_device(), dtype, op, n, 3, (const void *[]){b[0].data, b[1].data, b[2].data}, 1,
                      (void *[]){b[3].data});
    double first = get(&b[3], 0);
    for (int i = 1; i < n; i++) cr_assert(get(&b[3], i) == first || isnan(first), "element %d", i);
    free_buffers();
    return first;
}

Test(reduce, adds_in_the_order_of_the_ranks) {
    cr_assert_eq(reduce_three(TSH_FLOAT32, TSHI_SUM, 3000, (double[]){0x1p30, 1, -0x1p30}), 0, "(big + 1) - big");
    cr_assert_eq(reduce_three(TSH_FLOAT32, TSHI_SUM, 3000, (double[]){0x1p30, -0x1p30, 1}), 1, "(big - big) + 1");
    cr_assert_eq(reduce_three(TSH_BFLOAT16, TSHI_SUM, 5, (double[]){256, 1, 1}), 258,
                 "256 + 1 alone would round to 256");
}

Test(reduce, integers_wrap) {
    cr_assert_eq(reduce_three(TSH_INT32, TSHI_SUM, 2, (double[]){INT32_MAX, 1, 0}), INT32_MIN);
    cr_assert_eq(reduce_three(TSH_INT32, TSHI_SUM, 2, (double[]){INT32_MIN, -1, 0}), INT32_MAX);
    cr_assert_eq(reduce_three(TSH_INT64, TSHI_PROD, 1, (double[]){0x1p62, 2, 1}), -0x1p63);
    cr_assert_eq(reduce_three(TSH_UINT8, TSHI_SUM, 1, (double[]){200, 100, 0}), 44);
}

Test(reduce, nan_stays_in_minimum_and_maximum) {
    const double values[5] = {1, (double)NAN, -1, 1, (double)NAN};
    for (int op = TSHI_MIN; op <= TSHI_MAX; op++)
        for (int order = 0; order < 3; order++)
            cr_assert(isnan(reduce_three(TSH_FLOAT32, (tshi_reduction)op, 20, values + order)), "order %d", order);
}
