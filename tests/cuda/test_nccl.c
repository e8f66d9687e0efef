/* Worlds of ranks on GPUs, over what stands in for CUDA and NCCL: ranks are threads, each with a GPU of its own, whose
 * queues run as late as they may. */
#include "dist/nccl.h"
#include "standin/nccl.h"
#include "standin/standin.h"
#include "support/collectives.h"
#include "tshard/functional.h"

#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static void begin(int gpus) {
    setenv("TSHARD_TEST_DEVICE", "cuda", 1);
    setenv("TSHARD_CUDA_MANAGED", "0", 1);
    standin_reset();
    standin_lazy(true);
    standin_gpus(gpus);
}

static void expect_nothing_left(const char *where) {
    char text[256];
    standin_live(text, sizeof text);
    /* NCCL itself stays open, once it has been. */
    cr_assert(!text[0] || !strcmp(text, "1 library"), "%s leaves %s", where, text);
}

TestSuite(nccl, .timeout = 120);

static bool sums(tshi_rank *r, tsh_group *group) {
    float got[3] = {0};
    tsh_tensor *x = tshi_test_vector(r, TSH_FLOAT32, 3);
    float wanted = (float)tsh_group_size(group);
    tsh_tensor_fill(x, 1);
    bool good = tshi_check_ok(r, tsh_all_reduce(group, x, TSH_SUM)) && tshi_check_ok(r, tsh_tensor_read(x, got, 3)) &&
                tshi_check(r, got[2] == wanted, "%g, not %g", (double)got[2], (double)wanted);
    tsh_tensor_release(x);
    return good;
}

/* --- collectives -------------------------------------------------------------------------------------------------- */

static void is_nccl(tshi_rank *r) {
    tshi_check(r, !strcmp(tsh_group_backend(tsh_world_group(r->world)), "nccl"), "the backend is %s",
               tsh_group_backend(tsh_world_group(r->world)));
}

static void everything(tshi_rank *r, void *arg) {
    (void)arg;
    is_nccl(r);
    for (int d = 0; d < TSH_DTYPE_COUNT; d++) {
        for (int64_t n = 0; n <= 37; n = 3 * n + 1) {
            if (!tshi_try_all(r, tsh_world_group(r->world), (tsh_dtype)d, n)) return;
        }
    }
}

Test(nccl, every_collective_is_what_plain_loops_say) {
    for (int ranks = 2; ranks <= 4; ranks++) {
        begin(4);
        setenv("TSHARD_CUDA_MANAGED", "1", 1);
        cr_assert_str_empty(tshi_test_run_threads(ranks, everything, NULL), "%d ranks", ranks);
        expect_nothing_left("a world");
    }
}

static void started(tshi_rank *r, void *arg) {
    (void)arg;
    tshi_try_started(true);
    tshi_try_all(r, tsh_world_group(r->world), TSH_FLOAT32, 50);
    tshi_try_all(r, tsh_world_group(r->world), TSH_COMPLEX64, 9);
}

Test(nccl, calls_that_do_not_wait) {
    begin(3);
    setenv("TSHARD_CUDA_MANAGED", "1", 1);
    cr_assert_str_empty(tshi_test_run_threads(3, started, NULL));
    expect_nothing_left("a world");
}

/* Queued and not waited for: the results are there for what is queued behind them. */
static void queued(tshi_rank *r, void *arg) {
    enum { N = 1000 };
    (void)arg;
    tsh_group *group = tsh_world_group(r->world);
    tsh_tensor *x = tshi_test_vector(r, TSH_FLOAT32, N), *y = tshi_test_vector(r, TSH_FLOAT32, N);
    const tshi_cuda_device *device = tshi_cuda(tsh_world_device(r->world));
    float got[N];
    tsh_tensor_fill(x, r->rank + 1);
    uint64_t waits = device->waits;
    double sum = r->size * (r->size + 1) / 2, wanted = sum;
    for (int i = 0; i < 3; i++) {
        tshi_check_ok(r, tsh_all_reduce(group, x, TSH_SUM));
        device->base.ops->copy(tsh_world_device(r->world), N * sizeof(float), tshi_data(x), tshi_data(y));
        if (i > 0) wanted *= r->size;
    }
    tshi_check(r, device->waits == waits, "the host has waited");
    tshi_check_ok(r, tsh_tensor_read(y, got, N));
    for (int i = 0; i < N; i++) {
        if (!tshi_check(r, got[i] == (float)wanted, "[%d] is %g, not %g", i, (double)got[i], wanted)) break;
    }
    tsh_tensor_release(x);
    tsh_tensor_release(y);
}

Test(nccl, the_host_does_not_wait) {
    for (int ranks = 2; ranks <= 4; ranks++) {
        begin(4);
        setenv("TSHARD_CUDA_MANAGED", "0", 1);
        standin_protect(true);
        cr_assert_str_empty(tshi_test_run_threads(ranks, queued, NULL));
        expect_nothing_left("a world");
    }
}

static void meshes(tshi_rank *r, tsh_mesh *mesh, void *arg) {
    (void)arg;
    tshi_try_all(r, tsh_mesh_group(mesh, "data"), TSH_FLOAT64, 13);
    tshi_try_all(r, tsh_mesh_group(mesh, "model"), TSH_FLOAT32, 13);
}

static void groups(tshi_rank *r, void *arg) {
    (void)arg;
    tsh_group *some = NULL, *halves = NULL, *inner = NULL;
    tshi_test_each_mesh(r, meshes, NULL);
    tshi_check_ok(r, tsh_group_create(r->world, (const int[]){2, 0, 3}, 3, &some));
    tshi_check_ok(r, tsh_group_split(tsh_world_group(r->world), r->rank % 2, -r->rank, &halves));
    if (some) {
        tshi_try_all(r, some, TSH_INT32, 10);
        tshi_check_ok(r, tsh_group_create_in(some, (const int[]){1, 0}, 2, &inner));
    }
    if (inner) tshi_try_all(r, inner, TSH_BFLOAT16, 10);
    tshi_check(r, halves && tsh_group_size(halves) == 2 && tsh_group_rank(halves) == (r->rank < 2), "halves");
    tshi_try_all(r, halves, TSH_FLOAT32, 10);
    tsh_group_destroy(inner);
    tsh_group_destroy(some);
    tsh_group_destroy(halves);
}

Test(nccl, groups_and_meshes) {
    begin(4);
    setenv("TSHARD_CUDA_MANAGED", "1", 1);
    cr_assert_str_empty(tshi_test_run_threads(4, groups, NULL));
    expect_nothing_left("groups");
}

static void many(tshi_rank *r, void *arg) {
    enum { CALLS = 20 };
    (void)arg;
    tsh_tensor *x[CALLS] = {NULL};
    tsh_work *work[CALLS] = {NULL};
    tsh_group *group = tsh_world_group(r->world);
    tsh_group_reset_stats(group);
    for (int i = 0; i < CALLS; i++) {
        x[i] = tshi_test_vector(r, TSH_FLOAT32, 10 + i);
        tsh_tensor_fill(x[i], i + r->rank);
        tshi_check_ok(r, tsh_all_reduce_async(group, x[i], TSH_SUM, &work[i]));
    }
    for (int i = CALLS - 1; i >= 0; i--) {
        float got = 0, wanted = (float)(i * r->size + r->size * (r->size - 1) / 2);
        tshi_check_ok(r, tsh_work_wait(work[i]));
        tsh_tensor *one = x[i];
        float all[10 + CALLS];
        tshi_check_ok(r, tsh_tensor_read(one, all, 10 + i));
        got = all[9];
        tshi_check(r, got == wanted, "call %d: %g, not %g", i, (double)got, (double)wanted);
        tsh_work_release(work[i]);
        tsh_tensor_release(one);
    }
    tshi_check(r, tsh_group_get_stats(group).calls[TSH_OP_ALL_REDUCE] == CALLS, "calls are counted");
}

Test(nccl, started_calls_are_all_queued_at_once) {
    begin(4);
    cr_assert_str_empty(tshi_test_run_threads(4, many, NULL));
    expect_nothing_left("calls");
}

static void refused(tshi_rank *r, void *arg) {
    (void)arg;
    tsh_group *group = tsh_world_group(r->world);
    tsh_tensor *x = tshi_test_vector(r, TSH_INT32, 4);
    tshi_check(r, !tsh_group_supports(group, TSH_OP_ALL_REDUCE, TSH_INT32, TSH_BAND), "band");
    tshi_check(r, !tsh_group_supports(group, TSH_OP_ALL_REDUCE, TSH_COMPLEX64, TSH_PROD), "prod");
    tshi_check(r, tsh_group_supports(group, TSH_OP_SEND, TSH_COMPLEX64, TSH_SUM), "send");
    tshi_check_status(r, tsh_all_reduce(group, x, TSH_BXOR), TSH_ERR_UNSUPPORTED, "nccl has no bxor of int32");
    sums(r, group);
    tsh_tensor_release(x);
}

Test(nccl, what_it_has_not_is_refused_in_words) {
    begin(2);
    cr_assert_str_empty(tshi_test_run_threads(2, refused, NULL));
    cr_assert(tsh_backend_supports("nccl", TSH_CUDA, TSH_OP_ALL_REDUCE, TSH_BFLOAT16, TSH_AVG));
    cr_assert_not(tsh_backend_supports("nccl", TSH_CPU, TSH_OP_ALL_REDUCE, TSH_BFLOAT16, TSH_AVG));
    cr_assert_not(tsh_backend_supports("nccl", TSH_CUDA, TSH_OP_REDUCE, TSH_INT64, TSH_BOR));
    expect_nothing_left("a world");
}

/* --- which backend ------------------------------------------------------------------------------------------------ */

static void backend_is(tshi_rank *r, void *arg) {
    const char *backend = tsh_group_backend(tsh_world_group(r->world));
    tshi_check(r, !strcmp(backend, arg), "the backend is %s", backend);
    tshi_try_all_reduce(r, tsh_world_group(r->world), TSH_FLOAT32, TSH_SUM, 100);
}

static void no_world(tshi_rank *r, void *arg) {
    (void)r;
    (void)arg;
}

Test(nccl, ranks_that_share_a_gpu_do_without) {
    begin(1);
    setenv("TSHARD_CUDA_MANAGED", "1", 1);
    cr_assert_str_empty(tshi_test_run_threads(3, backend_is, "local"));
    begin(2);
    setenv("TSHARD_CUDA_MANAGED", "1", 1);
    cr_assert_str_empty(tshi_test_run_threads(3, backend_is, "local"));
    setenv("TSHARD_BACKEND", "nccl", 1);
    const char *words = tshi_test_run_threads(3, no_world, NULL);
    cr_assert_not_null(strstr(words, "NCCL is wanted, but ranks 0 and 2 share the GPU 0000:01:00.0"), "%s", words);
    expect_nothing_left("worlds");
}

Test(nccl, it_can_be_ruled_out) {
    begin(2);
    setenv("TSHARD_CUDA_MANAGED", "1", 1);
    setenv("TSHARD_BACKEND", "local", 1);
    cr_assert_str_empty(tshi_test_run_threads(2, backend_is, "local"));
    setenv("TSHARD_BACKEND", "nccl", 1);
    cr_assert_str_empty(tshi_test_run_threads(2, backend_is, "nccl"));
    setenv("TSHARD_TEST_DEVICE", "cpu", 1);
    const char *words = tshi_test_run_threads(2, no_world, NULL);
    cr_assert_not_null(strstr(words, "TSHARD_BACKEND is nccl, which is for GPUs"), "%s", words);
    expect_nothing_left("worlds");
}

/* --- failures ----------------------------------------------------------------------------------------------------- */

/* One rank does not come; the others have queued their part and wait for its result. */
static void told(tshi_rank *r, void *arg) {
    (void)arg;
    tsh_group *group = tsh_world_group(r->world);
    tsh_group *pair = NULL;
    float got[3];
    tshi_check_ok(r, tsh_group_split(group, 0, r->rank, &pair));
    for (int round = 0; round < 3; round++) {
        tsh_tensor *x = tshi_test_vector(r, TSH_FLOAT32, 3);
        tsh_work *work = NULL;
        if (r->rank == round % r->size) {
            tsh_world_fail(r->world, "enough of it");
            tshi_check_status(r, tsh_all_reduce(group, x, TSH_SUM), TSH_ERR_STATE, "enough of it");
        } else {
            tsh_status status = tsh_all_reduce(group, x, TSH_SUM);
            if (status == TSH_OK) status = tsh_tensor_read(x, got, 3);
            tshi_check_status(r, status, TSH_ERR_PEER, "enough of it");
            tshi_check_status(r, tsh_all_reduce_async(group, x, TSH_SUM, &work), TSH_OK, "");
            tshi_check_status(r, tsh_work_wait(work), TSH_ERR_PEER, "enough of it");
            tsh_work_release(work);
        }
        tsh_tensor_release(x);
        if (!tshi_check_ok(r, tsh_world_recover(r->world)) || !sums(r, group) || !sums(r, pair)) break;
    }
    tsh_group_destroy(pair);
}

Test(nccl, a_rank_that_fails_tells_the_others) {
    for (int ranks = 2; ranks <= 3; ranks++) {
        begin(3);
        cr_assert_str_empty(tshi_test_run_threads(ranks, told, NULL));
        expect_nothing_left("a world");
    }
}

static void wrong(tshi_rank *r, void *arg) {
    bool checked = arg != NULL;
    tsh_group *group = tsh_world_group(r->world);
    tsh_tensor *x = tshi_test_vector(r, TSH_FLOAT32, 3);
    float got[3];
    tsh_status status = tsh_broadcast(group, x, r->rank == 1 ? 7 : 0);
    if (r->rank != 1 && status == TSH_OK) status = tsh_tensor_read(x, got, 3);
    tshi_check_status(r, status, r->rank == 1 ? TSH_ERR_RANGE : TSH_ERR_PEER, "root 7 in a group of");
    if (!checked) tshi_check_ok(r, tsh_world_recover(r->world));
    sums(r, group);
    if (checked) {
        status = r->rank == 0 ? tsh_all_reduce(group, x, TSH_MAX) : tsh_all_reduce(group, x, TSH_SUM);
        tshi_check_status(r, status, TSH_ERR_MISMATCH, "all_reduce float32 [3] max");
        sums(r, group);
        tsh_tensor *a = tshi_test_vector(r, TSH_FLOAT32, 2 * r->size), *b = tshi_test_vector(r, TSH_FLOAT32, r->size);
        status = r->rank == 0 ? tsh_all_to_all(group, b, NULL, a, NULL) : tsh_all_to_all(group, a, NULL, a, NULL);
        tshi_check(r, status != TSH_OK, "all_to_all");
        tshi_try_all_to_all(r, group, TSH_FLOAT32, 12, true);
        tsh_tensor_release(a);
        tsh_tensor_release(b);
    }
    tsh_tensor_release(x);
}

Test(nccl, bad_arguments_are_told) {
    begin(3);
    cr_assert_str_empty(tshi_test_run_threads(3, wrong, NULL));
    expect_nothing_left("a world");
    setenv("TSHARD_CHECK", "1", 1);
    setenv("TSHARD_CUDA_MANAGED", "1", 1);
    cr_assert_str_empty(tshi_test_run_threads(3, wrong, "checked"));
    expect_nothing_left("a world");
}

static void too_late(tshi_rank *r, void *arg) {
    (void)arg;
    tsh_group *group = tsh_world_group(r->world);
    tsh_tensor *x = tshi_test_vector(r, TSH_FLOAT32, 3);
    float got[3];
    tsh_tensor_fill(x, 1);
    sums(r, group);
    if (r->rank == 0) {
        tshi_check_ok(r, tsh_all_reduce(group, x, TSH_SUM));
        tshi_check_status(r, tsh_tensor_read(x, got, 3), TSH_ERR_TIMEOUT, "all_reduce #2: not done within 0.5 s");
        tshi_check(r, tsh_all_reduce(group, x, TSH_SUM) != TSH_OK, "a call after that");
    } else {
        /* It hears of it wherever it asks next. */
        tsh_status status = TSH_OK;
        for (int i = 0; status == TSH_OK && i < 2000; i++) {
            const struct timespec nap = {.tv_nsec = 1000000};
            nanosleep(&nap, NULL);
            tsh_mesh *mesh = NULL;
            if (i > 1000) status = tsh_mesh_create(r->world, "all=-1", &mesh);
            tsh_mesh_destroy(mesh);
        }
        tshi_check(r, status == TSH_ERR_PEER, "%s: %s", tsh_status_name(status), tsh_error_message());
        tshi_check(r, strstr(tsh_error_message(), "rank 0: all_reduce #2: not done within") != NULL, "%s",
                   tsh_error_message());
    }
    tsh_tensor_release(x);
}

Test(nccl, the_deadline_aborts) {
    begin(2);
    const tshi_test_options options = {.ranks = 2, .threads = true, .world_timeout = "0.5"};
    tshi_outcome outcomes[2];
    const char *words = tshi_test_run_with(&options, too_late, NULL, outcomes, NULL);
    cr_assert_str_empty(words);
    cr_assert_geq(standin_calls("ncclCommAbort"), 1);
    expect_nothing_left("a world");
}

static void broken(tshi_rank *r, void *arg) {
    (void)arg;
    tsh_group *group = tsh_world_group(r->world);
    tsh_tensor *x = tshi_test_vector(r, TSH_FLOAT32, 3);
    float got[3];
    tsh_tensor_fill(x, 1);
    sums(r, group);
    tshi_check_ok(r, tsh_barrier(group));
    if (r->rank == 0) {
        tshi_check_ok(r, tsh_all_reduce(group, x, TSH_SUM));
        standin_nccl_error(0, ncclRemoteError);
        tshi_check_status(r, tsh_tensor_read(x, got, 3), TSH_ERR_PEER, "remote process exited");
        tshi_check_status(r, tsh_all_reduce(group, x, TSH_SUM), TSH_ERR_PEER, "the stand-in's last words");
    }
    tsh_status status = tsh_world_recover(r->world);
    tshi_check_ok(r, status);
    sums(r, group);
    tsh_tensor_release(x);
}

Test(nccl, asynchronous_errors_are_told_in_ncclls_words) {
    begin(2);
    cr_assert_str_empty(tshi_test_run_threads(2, broken, NULL));
    expect_nothing_left("a world");
}

/* A rank that leaves while others wait for it. */
static void leaves(tshi_rank *r, void *arg) {
    (void)arg;
    tsh_group *group = tsh_world_group(r->world);
    sums(r, group);
    if (r->rank == 1) return;
    tsh_tensor *x = tshi_test_vector(r, TSH_FLOAT32, 3);
    float got[3];
    tsh_tensor_fill(x, 1);
    tsh_status status = tsh_all_reduce(group, x, TSH_SUM);
    if (status == TSH_OK) status = tsh_tensor_read(x, got, 3);
    tshi_check_status(r, status, TSH_ERR_PEER, "rank 1 has left the world");
    tsh_tensor_release(x);
}

Test(nccl, a_rank_that_has_left_is_not_waited_for) {
    begin(2);
    cr_assert_str_empty(tshi_test_run_threads(2, leaves, NULL));
    expect_nothing_left("a world");
}

/* Each call in its turn fails once: some rank says so, in words, and all come to an end and leave nothing. */
static void life(tshi_rank *r, void *arg) {
    (void)arg;
    tsh_group *group = tsh_world_group(r->world), *pair = NULL;
    tsh_status status = tsh_group_split(group, 0, r->rank, &pair);
    tsh_tensor *x = NULL, *y = NULL;
    tsh_work *work = NULL;
    tsh_tensor_config config = {.dtype = TSH_FLOAT32, .ndim = 1, .shape = {5}};
    if (status == TSH_OK) status = tsh_tensor_create(tsh_world_mesh(r->world), &config, &x);
    if (status == TSH_OK) status = tsh_tensor_create(tsh_world_mesh(r->world), &config, &y);
    if (status == TSH_OK) status = tsh_tensor_fill(x, 1);
    if (status == TSH_OK) status = tsh_all_reduce(pair, x, TSH_SUM);
    if (status == TSH_OK) status = tsh_all_reduce_async(group, y, TSH_SUM, &work);
    if (status == TSH_OK) status = tsh_work_wait(work);
    float got[5];
    if (status == TSH_OK) status = tsh_tensor_read(x, got, 5);
    if (status == TSH_OK) tshi_check(r, got[4] == 2, "%g", (double)got[4]);
    if (status != TSH_OK) tsh_world_fail(r->world, tsh_error_message());
    tshi_check_ok(r, status);
    tsh_work_release(work);
    tsh_tensor_release(x);
    tsh_tensor_release(y);
    tsh_group_destroy(pair);
}

static uint64_t fail_each(const char *name, int most) {
    uint64_t n = 1;
    const tshi_test_options options = {.ranks = 2, .threads = true, .world_timeout = "10"};
    for (; n <= (uint64_t)most; n++) {
        begin(2);
        standin_fail(name, n, 0);
        const char *words = tshi_test_run_with(&options, life, NULL, NULL, NULL);
        cr_expect(!strstr(words, "not done within"), "%s, call %d: %s", name, (int)n, words);
        expect_nothing_left(name);
        if (!standin_failed()) break;
    }
    return n;
}

Test(nccl, every_call_of_nccl_may_fail, .timeout = 240) {
    static const char *const names[] = {"ncclGetUniqueId",       "ncclCommInitRankConfig", "ncclCommSplit",
                                        "ncclCommGetAsyncError", "ncclAllReduce",          "cudaEventCreate",
                                        "cudaEventRecord",       "cudaStreamWaitEvent",    "ncclCommFinalize",
                                        "ncclCommDestroy",       "cudaDeviceGetPCIBusId"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        uint64_t n = fail_each(names[i], 5);
        cr_expect_gt(n, 1, "%s is never called", names[i]);
    }
}

Test(nccl, a_library_that_is_none_is_done_without) {
    begin(2);
    setenv("TSHARD_CUDA_MANAGED", "1", 1);
    standin_fail("ncclGetVersion", 1, 0);
    cr_assert_str_empty(tshi_test_run_threads(2, backend_is, "local"));
    setenv("TSHARD_BACKEND", "nccl", 1);
    const char *words = tshi_test_run_threads(2, no_world, NULL);
    cr_assert_not_null(strstr(words, "NCCL is wanted, but rank 0: ncclGetVersion failed"), "%s", words);
    expect_nothing_left("worlds");
}

/* --- beside the weight gradient ----------------------------------------------------------------------------------- */

/* A column layer's input gradient: its sum over the ranks is done while the product behind it has not begun. */
static void overlap(tshi_rank *r, void *arg) {
    enum { N = 2, IN = 6, OUT = 8 };
    bool scattered = arg != NULL;
    tsh_group *group = tsh_world_group(r->world);
    const tsh_mesh *mesh = tsh_world_mesh(r->world);
    tshi_cuda_device *device = tshi_cuda(tsh_world_device(r->world));
    tsh_tape *tape = NULL;
    tsh_tensor *x = NULL, *w = NULL, *seed = NULL;
    tsh_layout rows = scattered ? TSH_SHARD(0) : TSH_REPLICATED;
    tsh_tensor_config input = {.dtype = TSH_FLOAT32, .ndim = 2, .shape = {N, IN}, .layout = {rows}};
    tsh_tensor_config weight = {.dtype = TSH_FLOAT32, .ndim = 2, .shape = {OUT, IN}, .layout = {TSH_SHARD(0)}};
    tsh_tensor_config output = {.dtype = TSH_FLOAT32, .ndim = 2, .shape = {N, OUT}, .layout = {TSH_SHARD(1)}};
    tshi_check_ok(r, tsh_tape_create(r->world, &tape));
    tshi_check_ok(r, tsh_tensor_create(mesh, &input, &x));
    tshi_check_ok(r, tsh_tensor_create(mesh, &weight, &w));
    tshi_check_ok(r, tsh_tensor_create(mesh, &output, &seed));
    tsh_tensor_require_grad(x);
    tsh_tensor_require_grad(w);
    tsh_tensor_fill(x, 1);
    tsh_tensor_fill(w, r->rank + 1);
    tsh_tensor_fill(seed, 2);
    /* Not a leaf: the gradient of what an op has made. */
    tsh_tensor *h = tsh_scale(tape, x, 1), *y = tsh_affine(tape, h, w, NULL);
    tshi_check(r, y != NULL, "%s", tsh_tape_message(tape));
    if (y) {
        tshi_check_ok(r, tsh_device_synchronize(tsh_world_device(r->world)));
        tshi_check_ok(r, tsh_backward_with(tape, y, &(tsh_backward_config){.gradient = seed}));
        const tshi_nccl *nccl = tshi_nccl_of(r->world);
        cudaError_t done = cudaErrorNotReady;
        for (int i = 0; i < 20000 && done != cudaSuccess; i++) {
            const struct timespec nap = {.tv_nsec = 100000};
            done = cudaEventQuery(nccl->last_after);
            if (done != cudaSuccess) nanosleep(&nap, NULL);
        }
        tshi_check(r, done == cudaSuccess, "the sum does not come to an end");
        tshi_check(r, cudaStreamQuery(device->compute) == cudaErrorNotReady, "the product ran before");
        /* All poll before anybody lets the queues run. */
        tsh_group *control = group->control;
        tshi_check_ok(r, r->world->ops->agree(control, "polled", TSH_OK));
        float dx[N * IN], dw[OUT * IN];
        int64_t mine = scattered ? N / r->size * IN : N * IN;
        double sum = 0;
        for (int i = 0; i < r->size; i++) sum += 2.0 * (i + 1) * OUT / r->size;
        tshi_check_ok(r, tsh_tensor_read(tsh_tensor_grad(x), dx, mine));
        tshi_check_ok(r, tsh_tensor_read(tsh_tensor_grad(w), dw, OUT / r->size * IN));
        tshi_check(r, dx[0] == (float)sum && dx[mine - 1] == (float)sum, "dx is %g, not %g", (double)dx[0], sum);
        tshi_check(r, dw[0] == 2 * N, "dw is %g", (double)dw[0]);
    }
    tsh_tape_destroy(tape);
    tsh_tensor_release(x);
    tsh_tensor_release(w);
    tsh_tensor_release(seed);
}

Test(nccl, the_input_gradient_is_summed_beside_the_weight_gradient) {
    begin(2);
    cr_assert_str_empty(tshi_test_run_threads(2, overlap, NULL));
    expect_nothing_left("a step");
}

Test(nccl, the_input_gradient_is_scattered_beside_the_weight_gradient) {
    begin(2);
    cr_assert_str_empty(tshi_test_run_threads(2, overlap, "scattered"));
    expect_nothing_left("a step");
}
