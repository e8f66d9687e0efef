/* A CUDA device on the stand-ins, for the suites of its host code. */
#ifndef TSHARD_STANDIN_DEVICE_H
#define TSHARD_STANDIN_DEVICE_H

#include "device/cuda/cuda.h"
#include "standin/standin.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* A device; what is queued runs late, and its memory is closed to the host. */
static inline tsh_device *open_device(void) {
    tsh_device *device = NULL;
    standin_reset();
    standin_lazy(true);
    standin_protect(true);
    cr_assert_eq(tshi_device_create_cuda(NULL, 0, &device), TSH_OK, "%s", tsh_error_message());
    return device;
}

static inline void expect_nothing_left(const char *where) {
    char text[256];
    cr_assert_eq(standin_live(text, sizeof text), 0, "%s leaves %s", where, text);
}

static inline void close_device(tsh_device *device) {
    cr_expect_eq(device->ops->check(device), TSH_OK, "%s", tsh_error_message());
    cr_expect_eq(device->stats.bytes_in_use, 0);
    tshi_device_destroy(device);
    expect_nothing_left("the device");
}

static inline void *get(tsh_device *device, size_t bytes) {
    void *pointer = device->ops->memory.alloc(device, bytes);
    cr_assert_not_null(pointer, "%s", tsh_error_message());
    return pointer;
}

/* Device memory with these numbers, rounded to dtype; and back. */
static inline void *put_numbers(tsh_device *device, tsh_dtype dtype, int64_t n, const double *numbers, size_t skew) {
    size_t bytes = (size_t)n * tsh_dtype_size(dtype);
    char *rounded = malloc(bytes + 1), *pointer = get(device, bytes + skew);
    extern void tshi_cpu_convert_base(tsh_device *, int64_t, tsh_dtype, const void *, tsh_dtype, void *);
    tshi_cpu_convert_base(NULL, n, TSH_FLOAT64, numbers, dtype, rounded);
    device->ops->copy.from_host(device, bytes, rounded, pointer + skew);
    free(rounded);
    return pointer + skew;
}

static inline void get_numbers(tsh_device *device, tsh_dtype dtype, int64_t n, const void *from, double *numbers) {
    size_t bytes = (size_t)n * tsh_dtype_size(dtype);
    char *rounded = malloc(bytes + 1);
    extern void tshi_cpu_convert_base(tsh_device *, int64_t, tsh_dtype, const void *, tsh_dtype, void *);
    device->ops->copy.to_host(device, bytes, from, rounded);
    tshi_cpu_convert_base(NULL, n, dtype, rounded, TSH_FLOAT64, numbers);
    free(rounded);
}

/* Failures that need not be reported: of calls that release something, where CUDA reports earlier failures, and of a
 * request for memory, after which a smaller one may succeed, and of a library that another folder may have. */
static inline bool is_quiet(const char *name) {
    static const char *const names[] = {"cudaMemGetInfo",   "cudaMalloc",           "cudaFree",
                                        "cudaFreeHost",     "cudaStreamDestroy",    "cudaEventDestroy",
                                        "cudaGraphDestroy", "cudaGraphExecDestroy", "dlopen"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (strcmp(name, names[i]) == 0) return true;
    return false;
}

/* The call that had failed when the work began to clean up; a later failure has no caller that could get it. */
static const char *failed_in_time;

static inline void begin_to_clean_up(void) {
    failed_in_time = standin_failed();
}

/* Runs work again and again, each time with the next of its calls made to fail, until none fails. work returns whether
 * it got a failure before it began to clean up. */
static inline int fail_each_call(const char *what, bool (*work)(void)) {
    for (int n = 1;; n++) {
        standin_reset();
        standin_lazy(n % 2 == 0);
        standin_fail(NULL, (uint64_t)n, 0);
        failed_in_time = NULL;
        bool reported = work();
        const char *failed = standin_failed();
        standin_lazy(false);
        expect_nothing_left(failed ? failed : what);
        if (!failed) {
            cr_assert_not(reported, "%s reports a failure where there is none: %s", what, tsh_error_message());
            return n - 1;
        }
        bool silent = !failed_in_time || is_quiet(failed);
        cr_assert(reported || silent, "%s: call %d, %s, fails without an error", what, n, failed);
        if (reported) cr_assert_gt(strlen(tsh_error_message()), 10, "%s fails without words", failed);
    }
}

#endif
