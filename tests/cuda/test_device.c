/* The CUDA device: creation, description, failures of CUDA's calls, and the release of everything. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "cuda/standin_device.h"
#include "device/plan/plan.h"
#include "support/slots.h"

#include <sys/resource.h>

TestSuite(cuda_device, .timeout = 120);

Test(cuda_device, says_what_it_is) {
    char text[200];
    tsh_device *device = open_device();
    tsh_device_describe(device, text, sizeof text);
    cr_assert_not_null(strstr(text, "GPU stand-in 0, 4 multiprocessors, 4 GiB, CUDA "), "%s", text);
    cr_assert_not_null(strstr(text, ", cuBLASLt 1"), "%s", text);
    cr_assert_eq(tsh_device_kind_of(device), TSH_CUDA);
    for (int d = 0; d < TSH_DTYPE_COUNT; d++) {
        cr_expect_eq(tshi_device_computes(device, (tsh_dtype)d), d <= TSH_FLOAT16, "%s", tsh_dtype_name((tsh_dtype)d));
    }
    close_device(device);
}

Test(cuda_device, has_every_kernel_and_so_has_its_trace) {
    static tshi_planned timed;
    tsh_device *device = open_device();
    expect_filled_slots(device->ops);
    tshi_timed_kernels(&timed, device->ops);
    expect_replaced_slots(device->ops, &timed.ops, true);
    close_device(device);
}

Test(cuda_device, ranks_share_the_gpus_there_are) {
    for (int rank = 0; rank < 5; rank++) {
        tsh_device *device = NULL;
        standin_reset();
        standin_gpus(2);
        cr_assert_eq(tshi_device_create_cuda(NULL, rank, &device), TSH_OK, "%s", tsh_error_message());
        cr_assert_eq(tshi_cuda(device)->ordinal, rank % 2);
        tshi_device_destroy(device);
    }
}

static void expect_refusal(tsh_status status, const char *words) {
    tsh_device *device = (tsh_device *)&device;
    cr_assert_eq(tshi_device_create_cuda(NULL, 0, &device), status, "%s", tsh_error_message());
    cr_assert_null(device);
    cr_assert_not_null(strstr(tsh_error_message(), words), "'%s' is not in '%s'", words, tsh_error_message());
    expect_nothing_left("a device that was refused");
}

Test(cuda_device, nothing_to_run_on_is_unsupported) {
    standin_gpus(-1);
    expect_refusal(TSH_ERR_UNSUPPORTED, "no NVIDIA driver, or one too old");
    standin_gpus(0);
    expect_refusal(TSH_ERR_UNSUPPORTED, "no GPU");
    standin_gpus(1);
    standin_fail("dlopen", 1, 0);
    /* The second path of the library is tried too, unless this build has none. */
    tsh_device *device = NULL;
    if (tshi_device_create_cuda(NULL, 0, &device) == TSH_OK) tshi_device_destroy(device);
    standin_fail("dlsym", 3, 0);
    expect_refusal(TSH_ERR_UNSUPPORTED, "has no cublasLtGetVersion");
}

Test(cuda_device, switches_are_0_or_1) {
    tsh_device *device = NULL;
    setenv("TSHARD_TF32", "maybe", 1);
    expect_refusal(TSH_ERR_ARGUMENT, "TSHARD_TF32 is \"maybe\"; it must be 0 or 1");
    setenv("TSHARD_TF32", "1", 1);
    setenv("TSHARD_CUDA_MANAGED", "2", 1);
    expect_refusal(TSH_ERR_ARGUMENT, "TSHARD_CUDA_MANAGED is \"2\"");
    setenv("TSHARD_CUDA_MANAGED", "", 1);
    cr_assert_eq(tshi_device_create_cuda(NULL, 0, &device), TSH_OK);
    cr_assert(tshi_cuda(device)->tf32);
    cr_assert_not(tshi_cuda(device)->managed);
    tshi_device_destroy(device);
}

/* --- failures ----------------------------------------------------------------------------------------------------- */

static bool create_and_destroy(void) {
    tsh_device *device = NULL;
    bool failed = tshi_device_create_cuda(NULL, 0, &device) != TSH_OK;
    if (failed) cr_assert_not_null(standin_failed());
    cr_assert_eq(failed, device == NULL);
    begin_to_clean_up();
    tshi_device_destroy(device);
    return failed;
}

Test(cuda_device, each_call_of_making_one_may_fail) {
    cr_assert_gt(fail_each_call("create", create_and_destroy), 40);
}

/* Uses every part of a device; returns false at the first failure that is reported. */
static bool some_work(tsh_device *device) {
    enum { M = 3, N = 8, K = 5 };
    const tshi_device_ops *ops = device->ops;
    float x[M * K], back[M * N], sum;
    for (int i = 0; i < M * K; i++) x[i] = (float)(i % 7 - 3);
    float *dx = ops->memory.alloc(device, sizeof x), *w = ops->memory.alloc(device, sizeof(float) * N * K);
    float *y = ops->memory.alloc(device, sizeof back), *b = ops->memory.alloc(device, sizeof(float) * N);
    char *large = ops->memory.alloc(device, 3 << 20);
    bool good = dx && w && y && b && large;
    if (good) {
        ops->copy.from_host(device, sizeof x, x, dx);
        ops->copy.fill(device, TSH_FLOAT32, N * K, 2, w);
        ops->copy.zero(device, sizeof(float) * N, b);
        good = ops->product.affine(device, TSH_FLOAT32, M, N, K, dx, w, b, TSHI_IDENTITY, NULL, y) == TSH_OK;
        good = good &&
               ops->product.affine_backward(device, TSH_FLOAT32, M, N, K, dx, y, TSH_FLOAT32, 0, w, 1, b) == TSH_OK;
        ops->elementwise[TSH_FLOAT32].unary(device, TSHI_RELU, NULL, M * N, y, y);
        ops->copy.within(device, sizeof back / 2, y, large);
        ops->copy.strided(device, 2, 8, y, 16, large + 4096, 32);
        ops->copy.to_host(device, sizeof back, y, back);
        ops->copy.to_host(device, sizeof sum, b, &sum);
    }
    good = good && ops->check(device) == TSH_OK;
    ops->memory.release(device, dx);
    ops->memory.release(device, w);
    ops->memory.release(device, y);
    ops->memory.release(device, b);
    ops->memory.release(device, large);
    cr_assert_eq(device->stats.bytes_in_use, 0);
    return good;
}

static uint64_t made; /* calls before the work */

static bool work_on_a_device(void) {
    tsh_device *device = NULL;
    if (tshi_device_create_cuda(NULL, 0, &device) != TSH_OK) return true;
    made = standin_calls(NULL);
    bool failed = !some_work(device);
    begin_to_clean_up();
    tshi_device_destroy(device);
    return failed;
}

Test(cuda_device, each_call_of_some_work_may_fail) {
    int calls = fail_each_call("work", work_on_a_device);
    cr_assert_gt((uint64_t)calls, made + 30);
}

Test(cuda_device, the_first_failure_is_reported_once) {
    float x = 1;
    tsh_device *device = open_device();
    float *there = get(device, sizeof x);
    standin_fail("cudaMemsetAsync", 1, cudaErrorIllegalAddress);
    device->ops->copy.zero(device, sizeof x, there);
    standin_fail("cudaMemcpyAsync", 1, 0);
    device->ops->copy.from_host(device, sizeof x, &x, there);
    cr_assert_eq(device->ops->check(device), TSH_ERR_SYSTEM);
    cr_assert_not_null(strstr(tsh_error_message(), "zero: "), "%s", tsh_error_message());
    cr_assert_not_null(strstr(tsh_error_message(), "(700)"), "%s", tsh_error_message());
    cr_assert_eq(device->ops->check(device), TSH_OK);
    device->ops->memory.release(device, there);
    close_device(device);
}

/* After a failure a read returns zeros, not the previous contents of the host's memory. */
Test(cuda_device, a_read_that_fails_returns_zeros) {
    float x = 3;
    tsh_device *device = open_device();
    float *there = get(device, sizeof x);
    standin_fail("cudaMemcpyAsync", 1, 0);
    device->ops->copy.to_host(device, sizeof x, there, &x);
    cr_assert_eq(x, 0);
    cr_assert_eq(device->ops->check(device), TSH_ERR_SYSTEM);
    device->ops->memory.release(device, there);
    close_device(device);
}

Test(cuda_device, check_reports_wrong_ids) {
    int64_t ids[4] = {0, 4, 5, -1};
    tsh_device *device = open_device();
    int64_t *there = get(device, sizeof ids);
    device->ops->copy.from_host(device, sizeof ids, ids, there);
    cr_assert_eq(device->ops->ids_check(device, 4, there, 5), -1, "it does not wait");
    /* With a seed the kernel runs any time before the wait. */
    tsh_status early = device->ops->check(device);
    if (!getenv("TSHARD_TEST_SEED")) cr_assert_eq(early, TSH_OK, "the kernel has not run yet");
    device->ops->copy.to_host(device, sizeof ids, there, ids);
    cr_assert_eq(early == TSH_OK ? device->ops->check(device) : early, TSH_ERR_RANGE);
    cr_assert_str_eq(tsh_error_message(), "id 5 at index 2, the vocabulary is [0, 5)");
    cr_assert_eq(device->ops->check(device), TSH_OK);
    device->ops->memory.release(device, there);
    close_device(device);
}

/* A check of class targets, and one of ids behind it: the first failure is kept until it has been reported. */
Test(cuda_device, the_first_wrong_index_is_kept) {
    const int64_t indices[4] = {-7, 3, 40, 41}, id[1] = {77};
    tsh_device *device = open_device();
    int64_t *there = get(device, sizeof indices), *other = get(device, sizeof id);
    const tshi_classes c = {.rows = 4, .n = 10, .classes = 40, .ignore_index = -7};
    device->ops->copy.from_host(device, sizeof indices, indices, there);
    device->ops->copy.from_host(device, sizeof id, id, other);
    cr_assert_eq(device->ops->targets_check(device, &c, there), -1, "it does not wait");
    cr_assert_eq(device->ops->ids_check(device, 1, other, 50), -1);
    cr_assert_eq(device->ops->synchronize(device), TSH_ERR_RANGE);
    cr_assert_not_null(strstr(tsh_error_message(), "40 at index 2"), "%s", tsh_error_message());
    cr_assert_eq(device->ops->check(device), TSH_OK);
    device->ops->memory.release(device, there);
    device->ops->memory.release(device, other);
    close_device(device);
}

/* --- a steady state ----------------------------------------------------------------------------------------------- */

/* Nothing that waits, and no memory, after the first times. */
static void steady_step(tsh_device *device, const float *x, int64_t n, float *kept) {
    const tshi_device_ops *ops = device->ops;
    size_t bytes = (size_t)n * sizeof(float);
    float *a = get(device, bytes), *b = get(device, bytes * 5), *c = get(device, 100);
    ops->copy.from_host(device, bytes, x, a);
    cr_assert_eq(ops->product.gemm(device, TSH_FLOAT32, false, true, n, 5, 1, 1, a, 1, kept, 1, 0, b, 5), TSH_OK);
    ops->memory.release(device, a);
    float *d = get(device, bytes);
    ops->sum[TSH_FLOAT32].over_dim(device, 1, n, 5, 1, b, c);
    ops->elementwise[TSH_FLOAT32].axpby(device, 5, 1, c, 1, kept, kept);
    ops->memory.release(device, b);
    ops->memory.release(device, c);
    ops->memory.release(device, d);
    cr_assert_eq(ops->check(device), TSH_OK);
}

Test(cuda_device, a_steady_step_takes_no_memory_and_never_waits) {
    enum { N = 1 << 15 };
    float *x = malloc(N * sizeof *x), kept[5] = {1, 2, 3, 4, 5};
    for (int i = 0; i < N; i++) x[i] = i == 1;
    tsh_device *device = open_device();
    float *there = get(device, sizeof kept);
    device->ops->copy.from_host(device, sizeof kept, kept, there);
    for (int i = 0; i < 2; i++) steady_step(device, x, N, there);
    uint64_t mallocs = standin_calls("cudaMalloc"), waits = tshi_cuda(device)->waits;
    uint64_t allocations = device->stats.allocations, asked = standin_calls("cublasLtMatmulAlgoGetHeuristic");
    for (int i = 0; i < 3; i++) steady_step(device, x, N, there);
    cr_assert_eq(standin_calls("cudaMalloc"), mallocs);
    cr_assert_eq(tshi_cuda(device)->waits, waits);
    cr_assert_eq(standin_calls("cudaStreamSynchronize"), 0);
    cr_assert_eq(standin_calls("cudaEventSynchronize"), 0);
    cr_assert_eq(device->stats.allocations, allocations);
    cr_assert_eq(standin_calls("cublasLtMatmulAlgoGetHeuristic"), asked, "the choice of an algorithm is kept");
    device->ops->copy.to_host(device, sizeof kept, there, kept);
    for (int i = 0; i < 5; i++) cr_assert_eq(kept[i], (float)((i + 1) * 32), "%d: %g", i, kept[i]);
    device->ops->memory.release(device, there);
    close_device(device);
    free(x);
}

Test(cuda_device, managed_memory_is_the_hosts_too) {
    setenv("TSHARD_CUDA_MANAGED", "1", 1);
    tsh_device *device = open_device();
    float *x = get(device, 4 * sizeof *x), from[4] = {1, -2, 3, -4};
    device->ops->copy.from_host(device, sizeof from, from, x);
    cr_assert_eq(x[3], -4, "a copy is waited for");
    device->ops->elementwise[TSH_FLOAT32].unary(device, TSHI_RELU, NULL, 4, x, x);
    cr_assert_eq(x[1], 0, "a kernel is waited for");
    cr_assert_eq(device->ops->product.gemm(device, TSH_FLOAT32, false, false, 1, 1, 1, 2, x + 2, 1, x + 2, 1, 0, x, 1),
                 TSH_OK);
    cr_assert_eq(x[0], 18, "a product is waited for");
    cr_assert_eq(standin_calls("cudaMallocManaged"), 1);
    device->ops->memory.release(device, x);
    close_device(device);
}

/* How often this thread has slept so far. */
static long sleeps(void) {
    struct rusage use;
    getrusage(RUSAGE_THREAD, &use);
    return use.ru_nvcsw;
}

Test(cuda_device, a_wait_yields_before_it_sleeps) {
    long before = sleeps();
    for (int looks = 0; looks < TSHI_CUDA_SPINS; looks++) tshi_cuda_nap(looks);
    cr_assert_eq(sleeps(), before);
    for (int looks = 0; looks < 3; looks++) tshi_cuda_nap(TSHI_CUDA_SPINS);
    cr_assert_geq(sleeps(), before + 3);
}
