/* What the suites of kernels share. Their cases are written once, over device/kernels.h, and run on each table that a
 * program is linked for (`tested`): the CPU's at every instruction set, the GPU's on the stand-in and on a GPU. What is
 * wanted is computed here, in double. */
#ifndef TSHARD_KERNEL_TEST_H
#define TSHARD_KERNEL_TEST_H

#include "device/device.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* A device whose table is tested: target_cpu.c, cuda/target_cuda.c. */
typedef struct kernel_target {
    double units;     /* tolerances are so many times as wide */
    double half;      /* and again so many times for elements of 16 bits, where exponentials may be fast ones */
    double attention; /* further error of attention in 16 bits */
    bool is_slow;     /* cases of many elements take minutes and are left out */
    bool whole_rows;  /* softmax takes whole rows that are aligned or long */
    size_t guard;     /* bytes behind a buffer that stay as they are; 0 where the memory itself sees accesses there */
    /* TSH_ERR_UNSUPPORTED skips the test with the message. */
    tsh_status (*open)(tsh_device **out);
    /* Memory that the host and the kernels reach, at a multiple of 64 bytes. */
    void *(*alloc)(size_t size);
    void (*release)(void *memory);
} kernel_target;
extern const kernel_target tested;

/* The device. Its scratch memory holds NaNs at first. Each call looks for failures of the kernels before it. */
tsh_device *kernel_device(void);
const tshi_device_ops *kernels(void);
/* Waits for products and copies, for which a GPU's host does not wait. */
void settle(void);

/* --- buffers ------------------------------------------------------------------------------------------------------ */

/* Elements in memory that the kernels reach, between guards. */
typedef struct buffer {
    tsh_dtype dtype;
    int64_t n;
    void *data;
} buffer;

/* Where the next buffers begin: at a multiple of 64 bytes, each one element behind one, each elsewhere. */
enum { ALIGNED, SHIFTED, SCATTERED, LAYOUTS };
void lay_buffers(int layout);

buffer buffer_make(tsh_dtype dtype, int64_t n); /* zeros */
buffer buffer_nans(tsh_dtype dtype, int64_t n); /* which a kernel must not read */
buffer buffer_random(tsh_dtype dtype, int64_t n, double low, double high);
buffer buffer_integers(tsh_dtype dtype, int64_t n); /* in [-8, 8]: their sums are exact in any order */
buffer buffer_of(tsh_dtype dtype, int64_t n, const double *values);
buffer buffer_of_ids(int64_t n, const int64_t *ids); /* NULL: zeros */
buffer buffer_copy(const buffer *from);
/* Aligned in every layout, as statistics are that the library allocates; of the dtype that sums of `dtype` have. */
buffer statistics_make(tsh_dtype dtype, int64_t n);
buffer statistics_random(tsh_dtype dtype, int64_t n, double low, double high);
void buffer_fill_random(buffer *b, double low, double high);
/* The end of a check: no guard of a buffer was written; all buffers are freed. */
void free_buffers(void);

static inline void *data_if(const buffer *b, bool there) {
    return there ? b->data : NULL;
}

static inline size_t bytes_of(const buffer *b) {
    return (size_t)b->n * tsh_dtype_size(b->dtype);
}

/* --- numbers ------------------------------------------------------------------------------------------------------ */

uint32_t random_word(void);
double random_between(double low, double high); /* in [low, high) */

/* An element of a real dtype, exactly; and the element that a number is converted to, rounded once. */
long double load_element(tsh_dtype dtype, const void *data, int64_t i);
void store_element(tsh_dtype dtype, void *data, int64_t i, long double value);
double get(const buffer *b, int64_t i);
void set(buffer *b, int64_t i, double value);
double rounded(tsh_dtype dtype, double value);

/* Half of the last bit of an element near `value`, of 16 bits. */
double half_rounding(tsh_dtype dtype, double value);
/* `units` of the rounding error of the dtype that is computed in; of a target, as many as it is allowed. */
double rounding_errors(tsh_dtype dtype, double units);
/* Within so many, relative to `scale`, and one rounding to 16 bits. */
void expect_close(const buffer *b, int64_t i, double wanted, double scale, double units);
void expect_equal(const buffer *b, int64_t i, double wanted);
void expect_same_bits(const buffer *a, const buffer *b, const char *what);

#define FLOAT_DTYPES 4
static const tsh_dtype float_dtypes[FLOAT_DTYPES] = {TSH_FLOAT32, TSH_FLOAT64, TSH_BFLOAT16, TSH_FLOAT16};
/* Around the widths of vectors and tiles. */
static const int64_t odd_sizes[] = {0, 1, 2, 3, 7, 15, 16, 17, 31, 33, 63, 64, 65, 100, 257, 1000, 1025};
#define ODD_SIZES ((int)(sizeof odd_sizes / sizeof odd_sizes[0]))

#endif
