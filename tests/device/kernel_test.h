/* What the kernel suites share: a device, typed buffers with a guard behind them, numbers, comparisons. */
#ifndef TSHARD_KERNEL_TEST_H
#define TSHARD_KERNEL_TEST_H

#include "device/device.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define GUARD 64

typedef struct buffer {
    tsh_dtype dtype;
    int64_t n;
    void *data;
} buffer;

static _Alignas(4096) char kernel_heap[1 << 16];
static uint64_t kernel_random = 12345;

static inline tsh_device *kernel_device(void) {
    static tsh_device *device;
    if (device) return device;
    tsh_status status = tshi_device_create_cpu(NULL, kernel_heap, sizeof kernel_heap, 1, &device);
    if (status == TSH_ERR_UNSUPPORTED) cr_skip_test("%s", tsh_error_message()); /* an instruction set */
    cr_assert_eq(status, TSH_OK);
    return device;
}

static inline const tshi_device_ops *kernels(void) {
    return kernel_device()->ops;
}

static inline uint32_t random_word(void) {
    kernel_random = kernel_random * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(kernel_random >> 32);
}

/* In [low, high). */
static inline double random_between(double low, double high) {
    return low + (high - low) * (random_word() * 0x1p-32);
}

static inline buffer buffer_make(tsh_dtype dtype, int64_t n) {
    buffer b = {dtype, n, NULL};
    size_t bytes = (size_t)n * tsh_dtype_size(dtype);
    b.data = malloc(bytes + GUARD);
    cr_assert_not_null(b.data);
    memset(b.data, 0, bytes);
    memset((char *)b.data + bytes, 0xA5, GUARD);
    return b;
}

/* The guard behind the buffer has to be as it was. */
static inline void buffer_free(buffer *b) {
    const unsigned char *guard = (const unsigned char *)b->data + (size_t)b->n * tsh_dtype_size(b->dtype);
    for (int i = 0; i < GUARD; i++) cr_assert_eq(guard[i], 0xA5, "written past the end");
    free(b->data);
    b->data = NULL;
}

static inline void *element_of(const buffer *b, int64_t i) {
    return (char *)b->data + (size_t)i * tsh_dtype_size(b->dtype);
}

static inline double get(const buffer *b, int64_t i) {
    double value;
    if (b->dtype == TSH_FLOAT32) return (double)((const float *)b->data)[i];
    kernels()->copy.convert(kernel_device(), 1, b->dtype, element_of(b, i), TSH_FLOAT64, &value);
    return value;
}

static inline void set(buffer *b, int64_t i, double value) {
    if (b->dtype == TSH_FLOAT32)
        ((float *)b->data)[i] = (float)value;
    else
        kernels()->copy.convert(kernel_device(), 1, TSH_FLOAT64, &value, b->dtype, element_of(b, i));
}

/* The value as an element of dtype. */
static inline double rounded(tsh_dtype dtype, double value) {
    double element;
    buffer one = {dtype, 1, &element};
    set(&one, 0, value);
    return get(&one, 0);
}

static inline void buffer_fill_random(buffer *b, double low, double high) {
    for (int64_t i = 0; i < b->n; i++) set(b, i, random_between(low, high));
}

/* Integers in [-8, 8]: their sums are exact in any order. */
static inline void buffer_fill_integers(buffer *b) {
    for (int64_t i = 0; i < b->n; i++) set(b, i, (double)(random_word() % 17) - 8.0);
}

static inline buffer buffer_random(tsh_dtype dtype, int64_t n, double low, double high) {
    buffer b = buffer_make(dtype, n);
    buffer_fill_random(&b, low, high);
    return b;
}

static inline buffer buffer_copy(const buffer *from) {
    buffer b = buffer_make(from->dtype, from->n);
    memcpy(b.data, from->data, (size_t)b.n * tsh_dtype_size(b.dtype));
    return b;
}

/* Half of the last bit of an element near `value`, of 16 bits. */
static inline double half_rounding(tsh_dtype dtype, double value) {
    return dtype == TSH_BFLOAT16 ? 0x1p-8 * fabs(value) : dtype == TSH_FLOAT16 ? 0x1p-11 * fabs(value) + 0x1p-25 : 0;
}

/* `units` of the rounding error of the dtype that is computed in, relative to `scale`, and one rounding to 16 bits. */
static inline void expect_close(const buffer *b, int64_t i, double wanted, double scale, double units) {
    double tolerance = units * scale * (b->dtype == TSH_FLOAT64 ? 0x1p-53 : 0x1p-24);
    tolerance += half_rounding(b->dtype, fabs(wanted) + tolerance);
    double got = get(b, i);
    cr_assert(fabs(got - wanted) <= tolerance || got == rounded(b->dtype, wanted) || (isnan(got) && isnan(wanted)),
              "%s element %lld of %lld: %.17g, not %.17g", tsh_dtype_name(b->dtype), (long long)i, (long long)b->n, got,
              wanted);
}

#define FLOAT_DTYPES 4
static const tsh_dtype float_dtypes[FLOAT_DTYPES] = {TSH_FLOAT32, TSH_FLOAT64, TSH_BFLOAT16, TSH_FLOAT16};
/* Around the widths of vectors and tiles. */
static const int64_t odd_sizes[] = {0, 1, 2, 3, 7, 15, 16, 17, 31, 33, 63, 64, 65, 100, 257, 1000, 1025};
#define ODD_SIZES ((int)(sizeof odd_sizes / sizeof odd_sizes[0]))

#endif
