#include "kernel_test.h"

#include <limits.h>

#define FRONT 64
#define MOST  2048
#define MARK  0xA5

/* --- the device --------------------------------------------------------------------------------------------------- */

static const tshi_device_ops *plain;
static tshi_device_ops poisoning;

static void *alloc_nans(tsh_device *device, size_t size) {
    void *memory = plain->memory.alloc(device, size);
    if (memory) memset(memory, 0xFF, size);
    return memory;
}

static tsh_device *open_device(void) {
    tsh_device *device = NULL;
    tsh_status status = tested.open(&device);
    if (status == TSH_ERR_UNSUPPORTED) cr_skip_test("%s", tsh_error_message());
    cr_assert_eq(status, TSH_OK, "%s", tsh_error_message());
    plain = device->ops;
    poisoning = *plain;
    poisoning.memory.alloc = alloc_nans;
    device->ops = &poisoning;
    return device;
}

tsh_device *kernel_device(void) {
    static tsh_device *device;
    if (!device) device = open_device();
    cr_assert_eq(device->ops->check(device), TSH_OK, "%s", tsh_error_message());
    cr_assert_eq(device->stats.bytes_in_use, 0, "scratch memory is not given back");
    return device;
}

const tshi_device_ops *kernels(void) {
    return kernel_device()->ops;
}

void settle(void) {
    tsh_device *device = kernel_device();
    cr_assert_eq(device->ops->synchronize(device), TSH_OK, "%s", tsh_error_message());
}

/* --- buffers ------------------------------------------------------------------------------------------------------ */

static struct {
    unsigned char *memory;
    buffer b;
} buffers[MOST];
static int count, lay;

void lay_buffers(int layout) {
    lay = layout;
}

static buffer make_at(tsh_dtype dtype, int64_t n, size_t skew) {
    buffer b = {dtype, n, NULL};
    size_t offset = FRONT + skew * tsh_dtype_size(dtype);
    kernel_device(); /* skips what cannot be tested */
    cr_assert_lt(count, MOST);
    unsigned char *memory = tested.alloc(offset + bytes_of(&b) + tested.guard);
    cr_assert_not_null(memory);
    b.data = memory + offset;
    memset(memory, MARK, offset);
    memset(b.data, 0, bytes_of(&b));
    memset((char *)b.data + bytes_of(&b), MARK, tested.guard);
    buffers[count].memory = memory;
    buffers[count++].b = b;
    return b;
}

buffer buffer_make(tsh_dtype dtype, int64_t n) {
    static const size_t places[] = {0, 1, 3};
    return make_at(dtype, n, lay == SCATTERED ? places[count % 3] : (size_t)lay);
}

buffer buffer_nans(tsh_dtype dtype, int64_t n) {
    buffer b = buffer_make(dtype, n);
    memset(b.data, 0xFF, bytes_of(&b));
    return b;
}

void buffer_fill_random(buffer *b, double low, double high) {
    for (int64_t i = 0; i < b->n; i++) set(b, i, random_between(low, high));
}

buffer buffer_random(tsh_dtype dtype, int64_t n, double low, double high) {
    buffer b = buffer_make(dtype, n);
    buffer_fill_random(&b, low, high);
    return b;
}

buffer buffer_integers(tsh_dtype dtype, int64_t n) {
    buffer b = buffer_make(dtype, n);
    for (int64_t i = 0; i < n; i++) set(&b, i, (double)(random_word() % 17) - 8.0);
    return b;
}

buffer buffer_of(tsh_dtype dtype, int64_t n, const double *values) {
    buffer b = buffer_make(dtype, n);
    for (int64_t i = 0; i < n; i++) set(&b, i, values[i]);
    return b;
}

buffer buffer_of_ids(int64_t n, const int64_t *ids) {
    buffer b = make_at(TSH_INT64, n, 0);
    if (ids && n > 0) memcpy(b.data, ids, bytes_of(&b));
    return b;
}

buffer buffer_copy(const buffer *from) {
    buffer b = buffer_make(from->dtype, from->n);
    memcpy(b.data, from->data, bytes_of(&b));
    return b;
}

buffer statistics_make(tsh_dtype dtype, int64_t n) {
    return make_at(tshi_dtype_sum(dtype), n, 0);
}

buffer statistics_random(tsh_dtype dtype, int64_t n, double low, double high) {
    buffer b = statistics_make(dtype, n);
    buffer_fill_random(&b, low, high);
    return b;
}

void free_buffers(void) {
    while (count > 0) {
        const buffer *b = &buffers[--count].b;
        for (unsigned char *at = buffers[count].memory; at < (unsigned char *)b->data; at++)
            cr_assert_eq(*at, MARK, "written before the start");
        for (size_t i = 0; i < tested.guard; i++)
            cr_assert_eq(((unsigned char *)b->data + bytes_of(b))[i], MARK, "written past the end");
        tested.release(buffers[count].memory);
    }
    kernel_device();
}

/* --- numbers ------------------------------------------------------------------------------------------------------ */

uint32_t random_word(void) {
    static uint64_t state = 12345;
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(state >> 32);
}

double random_between(double low, double high) {
    return low + (high - low) * (random_word() * 0x1p-32);
}

/* What a 16-bit float with `fraction` fraction bits stands for, from its definition. */
static double half_value(uint16_t h, int fraction) {
    int exponent_bits = 15 - fraction, bias = (1 << (exponent_bits - 1)) - 1;
    int exponent = h >> fraction & ((1 << exponent_bits) - 1), mantissa = h & ((1 << fraction) - 1);
    double sign = h & 0x8000 ? -1.0 : 1.0;
    if (exponent == (1 << exponent_bits) - 1) return mantissa ? (double)NAN : sign * (double)INFINITY;
    if (exponent == 0) return sign * ldexp(mantissa, 1 - bias - fraction);
    return sign * ldexp(mantissa + (1 << fraction), exponent - bias - fraction);
}

/* The nearest one, ties to even. */
static uint16_t half_of(long double value, int fraction) {
    int bias = (1 << (14 - fraction)) - 1, exponent = 0;
    uint32_t infinity = 0x8000u - (1u << fraction), sign = signbit(value) ? 0x8000u : 0;
    long double size = fabsl(value);
    if (isnan(value)) return (uint16_t)(sign | (infinity + 1));
    if (size >= ldexpl(1, bias + 1)) return (uint16_t)(sign | infinity);
    frexpl(size, &exponent);
    if (--exponent < 1 - bias || size == 0) exponent = 1 - bias; /* a subnormal number */
    uint32_t units = (uint32_t)rintl(ldexpl(size, fraction - exponent));
    uint32_t bits = ((uint32_t)(exponent + bias - 1) << fraction) + units;
    return (uint16_t)(sign | (bits < infinity ? bits : infinity));
}

/* Truncated, within [low, high]. */
static int64_t integer_of(long double value, int64_t low, int64_t high) {
    if (isnan(value)) return 0;
    return value <= (long double)low ? low : value >= (long double)high ? high : (int64_t)value;
}

long double load_element(tsh_dtype dtype, const void *data, int64_t i) {
    switch (dtype) {
    case TSH_FLOAT32: return ((const float *)data)[i];
    case TSH_FLOAT64: return ((const double *)data)[i];
    case TSH_BFLOAT16: return half_value(((const uint16_t *)data)[i], 7);
    case TSH_FLOAT16: return half_value(((const uint16_t *)data)[i], 10);
    case TSH_INT32: return ((const int32_t *)data)[i];
    case TSH_INT64: return ((const int64_t *)data)[i];
    default: return ((const uint8_t *)data)[i];
    }
}

void store_element(tsh_dtype dtype, void *data, int64_t i, long double value) {
    switch (dtype) {
    case TSH_FLOAT32: ((float *)data)[i] = (float)value; break;
    case TSH_FLOAT64: ((double *)data)[i] = (double)value; break;
    case TSH_BFLOAT16: ((uint16_t *)data)[i] = half_of(value, 7); break;
    case TSH_FLOAT16: ((uint16_t *)data)[i] = half_of(value, 10); break;
    case TSH_INT32: ((int32_t *)data)[i] = (int32_t)integer_of(value, INT32_MIN, INT32_MAX); break;
    case TSH_INT64: ((int64_t *)data)[i] = integer_of(value, INT64_MIN, INT64_MAX); break;
    default: ((uint8_t *)data)[i] = (uint8_t)integer_of(value, 0, UINT8_MAX); break;
    }
}

/* Numbers of long double are slow on some CPUs: the most frequent go without. */
double get(const buffer *b, int64_t i) {
    if (b->dtype == TSH_FLOAT32) return (double)((const float *)b->data)[i];
    if (b->dtype == TSH_FLOAT64) return ((const double *)b->data)[i];
    return (double)load_element(b->dtype, b->data, i);
}

void set(buffer *b, int64_t i, double value) {
    if (b->dtype == TSH_FLOAT32)
        ((float *)b->data)[i] = (float)value;
    else
        store_element(b->dtype, b->data, i, value);
}

double rounded(tsh_dtype dtype, double value) {
    double element;
    store_element(dtype, &element, 0, value);
    return (double)load_element(dtype, &element, 0);
}

double half_rounding(tsh_dtype dtype, double value) {
    return dtype == TSH_BFLOAT16 ? 0x1p-8 * fabs(value) : dtype == TSH_FLOAT16 ? 0x1p-11 * fabs(value) + 0x1p-25 : 0;
}

double rounding_errors(tsh_dtype dtype, double units) {
    double error = dtype == TSH_FLOAT64 ? 0x1p-53 : tshi_dtype_sum(dtype) == dtype ? 0x1p-24 : 0x1p-24 * tested.half;
    return tested.units * units * error;
}

void expect_close(const buffer *b, int64_t i, double wanted, double scale, double units) {
    double tolerance = scale * rounding_errors(b->dtype, units);
    tolerance += half_rounding(b->dtype, fabs(wanted) + tolerance);
    double got = get(b, i);
    cr_assert(fabs(got - wanted) <= tolerance || got == rounded(b->dtype, wanted) || (isnan(got) && isnan(wanted)),
              "%s element %lld of %lld: %.17g, not %.17g", tsh_dtype_name(b->dtype), (long long)i, (long long)b->n, got,
              wanted);
}

void expect_equal(const buffer *b, int64_t i, double wanted) {
    double got = get(b, i);
    wanted = rounded(b->dtype, wanted);
    cr_assert(got == wanted || (isnan(got) && isnan(wanted)), "%s element %lld of %lld: %.17g, not %.17g",
              tsh_dtype_name(b->dtype), (long long)i, (long long)b->n, got, wanted);
}

void expect_same_bits(const buffer *a, const buffer *b, const char *what) {
    cr_assert(a->n == b->n && memcmp(a->data, b->data, bytes_of(a)) == 0, "%s of %lld %s", what, (long long)a->n,
              tsh_dtype_name(a->dtype));
}
