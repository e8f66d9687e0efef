/* Worlds of ranks on GPUs, over the stand-ins for CUDA and NCCL: ranks are threads, each with a GPU of its own, whose
 * queues run as late as CUDA allows. */
#include "cuda/nccl_ranks.h"
#include "cuda/nccl_steps.h"
#include "support/exchanges.h"
#include "support/steps.h"

TestSuite(nccl, .timeout = 120);

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
    for (int ranks = 2; ranks <= 4; ranks++) run_ranks(ranks, true, everything, NULL);
}

static void exchanges(tshi_rank *r, void *arg) {
    (void)arg;
    for (uint32_t seed = 0; seed < 200 && tshi_try_exchange(r, seed, seed % 3 == 0); seed++) continue;
    tshi_check_ok(r, tshi_exchange_flush(r->world));
}

Test(nccl, exchanges_of_boxes) {
    for (int ranks = 2; ranks <= 4; ranks++) run_ranks(ranks, true, exchanges, NULL);
}

static void started(tshi_rank *r, void *arg) {
    (void)arg;
    tshi_try_started(true);
    tshi_try_all(r, tsh_world_group(r->world), TSH_FLOAT32, 50);
    tshi_try_all(r, tsh_world_group(r->world), TSH_COMPLEX64, 9);
}

Test(nccl, calls_that_do_not_wait) {
    run_ranks(3, true, started, NULL);
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
        tshi_check_ok(r, tsh_all_reduce(group, x, TSH_REDUCE_SUM));
        device->base.ops->copy.within(tsh_world_device(r->world), N * sizeof(float), tshi_data(x), tshi_data(y));
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
        begin(4, false);
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
    run_ranks(4, true, groups, NULL);
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
        tshi_check_ok(r, tsh_all_reduce_async(group, x[i], TSH_REDUCE_SUM, &work[i]));
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
    tshi_check(r, tsh_group_stats(group).calls[TSH_COLLECTIVE_ALL_REDUCE] == CALLS, "calls are counted");
}

Test(nccl, started_calls_are_all_queued_at_once) {
    run_ranks(4, false, many, NULL);
}

static void refused(tshi_rank *r, void *arg) {
    (void)arg;
    tsh_group *group = tsh_world_group(r->world);
    tsh_tensor *x = tshi_test_vector(r, TSH_INT32, 4);
    tshi_check(r, !tsh_group_supports(group, TSH_COLLECTIVE_ALL_REDUCE, TSH_INT32, TSH_REDUCE_BAND), "band");
    tshi_check(r, !tsh_group_supports(group, TSH_COLLECTIVE_ALL_REDUCE, TSH_COMPLEX64, TSH_REDUCE_PROD), "prod");
    tshi_check(r, tsh_group_supports(group, TSH_COLLECTIVE_SEND, TSH_COMPLEX64, TSH_REDUCE_SUM), "send");
    tshi_check_status(r, tsh_all_reduce(group, x, TSH_REDUCE_BXOR), TSH_ERR_UNSUPPORTED, "nccl has no bxor of int32");
    sums(r, group);
    tsh_tensor_release(x);
}

Test(nccl, missing_operations_are_refused_with_a_message) {
    begin(2, false);
    cr_assert_str_empty(tshi_test_run_threads(2, refused, NULL));
    cr_assert(tsh_backend_supports("nccl", TSH_CUDA, TSH_COLLECTIVE_ALL_REDUCE, TSH_BFLOAT16, TSH_REDUCE_AVG));
    cr_assert_not(tsh_backend_supports("nccl", TSH_CPU, TSH_COLLECTIVE_ALL_REDUCE, TSH_BFLOAT16, TSH_REDUCE_AVG));
    cr_assert_not(tsh_backend_supports("nccl", TSH_CUDA, TSH_COLLECTIVE_REDUCE, TSH_INT64, TSH_REDUCE_BOR));
    expect_nothing_left("a world");
}

/* --- which backend ------------------------------------------------------------------------------------------------ */

static void backend_is(tshi_rank *r, void *arg) {
    const char *backend = tsh_group_backend(tsh_world_group(r->world));
    tshi_check(r, !strcmp(backend, arg), "the backend is %s", backend);
    tshi_try_all_reduce(r, tsh_world_group(r->world), TSH_FLOAT32, TSH_REDUCE_SUM, 100);
}

Test(nccl, ranks_that_share_a_gpu_do_without) {
    begin(1, true);
    cr_assert_str_empty(tshi_test_run_threads(3, backend_is, "local"));
    begin(2, true);
    cr_assert_str_empty(tshi_test_run_threads(3, backend_is, "local"));
    setenv("TSHARD_BACKEND", "nccl", 1);
    const char *words = tshi_test_run_threads(3, no_world, NULL);
    cr_assert_not_null(strstr(words, "NCCL is required, but ranks 0 and 2 share the GPU 0000:01:00.0"), "%s", words);
    expect_nothing_left("worlds");
}

/* The worlds of one process share its environment: it is the version that forbids it. */
Test(nccl, ranks_that_share_a_gpu_where_nccl_is_told_to_take_them) {
    setenv("NCCL_MULTI_RANK_GPU_ENABLE", "1", 1);
    standin_nccl_version(23004);
    begin(1, true);
    cr_assert_str_empty(tshi_test_run_threads(3, backend_is, "nccl"));
    begin(2, true);
    cr_assert_str_empty(tshi_test_run_threads(3, backend_is, "nccl"));
    setenv("NCCL_MULTI_RANK_GPU_ENABLE", "0", 1);
    cr_assert_str_empty(tshi_test_run_threads(3, backend_is, "local"));
    expect_nothing_left("worlds");
}

Test(nccl, ranks_that_share_a_gpu_need_a_newer_nccl) {
    setenv("NCCL_MULTI_RANK_GPU_ENABLE", "1", 1);
    standin_nccl_version(22907);
    begin(1, true);
    cr_assert_str_empty(tshi_test_run_threads(2, backend_is, "local"));
    setenv("TSHARD_BACKEND", "nccl", 1);
    const char *words = tshi_test_run_threads(2, no_world, NULL);
    cr_assert_not_null(strstr(words, "NCCL takes this from 2.30 on, where NCCL_MULTI_RANK_GPU_ENABLE=1"), "%s", words);
    expect_nothing_left("worlds");
}

Test(nccl, it_can_be_ruled_out) {
    begin(2, true);
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

/* One rank makes no call; its peers have queued theirs and wait for the result. */
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
            tshi_check_status(r, tsh_all_reduce(group, x, TSH_REDUCE_SUM), TSH_ERR_STATE, "enough of it");
        } else {
            tsh_status status = tsh_all_reduce(group, x, TSH_REDUCE_SUM);
            if (status == TSH_OK) status = tsh_tensor_read(x, got, 3);
            tshi_check_status(r, status, TSH_ERR_PEER, "enough of it");
            tshi_check_status(r, tsh_all_reduce_async(group, x, TSH_REDUCE_SUM, &work), TSH_OK, "");
            tshi_check_status(r, tsh_work_wait(work), TSH_ERR_PEER, "enough of it");
            tsh_work_release(work);
        }
        tsh_tensor_release(x);
        if (!tshi_check_ok(r, tsh_world_recover(r->world)) || !sums(r, group) || !sums(r, pair)) break;
    }
    tsh_group_destroy(pair);
}

Test(nccl, a_failure_reaches_the_peers) {
    for (int ranks = 2; ranks <= 3; ranks++) run_ranks(ranks, false, told, NULL);
}

/* A loop of steps, of which one fails on one rank, in each of the ways that the host notices at once. */
static void loops(tshi_rank *r, void *arg) {
    tshi_course *all = arg;
    for (int when = 0; when < TSHI_MOMENTS && !r->failed; when++) {
        tshi_story s = {(tshi_moment)when, when % r->size};
        if (when == TSHI_MISMATCH) continue;
        tshi_run_steps(r, &s, &all[r->rank]);
        if (!tshi_check_ok(r, tsh_barrier(tsh_world_group(r->world)))) return;
        const char *words = r->rank == 0 ? tshi_check_courses(all, r->size, &s) : "";
        tshi_check(r, !words[0], "rank %d fails %s: %s", s.victim, tshi_moment_name(s.when), words);
        tshi_check_ok(r, tsh_barrier(tsh_world_group(r->world)));
    }
}

Test(nccl, one_call_ends_a_step_on_every_rank) {
    tshi_course all[4];
    for (int ranks = 2; ranks <= 4; ranks++) run_ranks(ranks, false, loops, all);
}

/* A communicator that finds too little memory on its GPU. */
static void no_room(tshi_rank *r, void *arg) {
    tsh_group *world = tsh_world_group(r->world), *group = NULL;
    size_t there = 0, total = 0;
    (void)arg;
    tshi_check_ok(r, tsh_barrier(world));
    if (r->rank == 0 && cudaMemGetInfo(&there, &total) == cudaSuccess) standin_memory(total - there + 4096);
    tshi_check_ok(r, tsh_barrier(world));
    tsh_status status = tsh_group_create(r->world, (const int[]){1, 0}, 2, &group);
    tshi_check(r, status != TSH_OK && !group, "a group without memory: status %d", (int)status);
    tshi_check(r, strstr(tsh_error_message(), "NCCL") != NULL, "%s", tsh_error_message());
    standin_memory((size_t)4 << 30);
    tshi_check_ok(r, tsh_world_recover(r->world));
    if (tshi_check_ok(r, tsh_group_create(r->world, (const int[]){1, 0}, 2, &group))) sums(r, group);
    tsh_group_destroy(group);
}

Test(nccl, a_group_that_finds_no_memory) {
    run_ranks(2, false, no_room, NULL);
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
        status = r->rank == 0 ? tsh_all_reduce(group, x, TSH_REDUCE_MAX) : tsh_all_reduce(group, x, TSH_REDUCE_SUM);
        tshi_check_status(r, status, TSH_ERR_MISMATCH, "all_reduce float32 [3] max");
        sums(r, group);
        tsh_tensor *a = tshi_test_vector(r, TSH_FLOAT32, 2 * r->size), *b = tshi_test_vector(r, TSH_FLOAT32, r->size);
        status = r->rank == 0 ? tsh_all_to_all(group, a, NULL, b, NULL) : tsh_all_to_all(group, a, NULL, a, NULL);
        tshi_check(r, status != TSH_OK, "all_to_all");
        tshi_try_all_to_all(r, group, TSH_FLOAT32, 12, true);
        tsh_tensor_release(a);
        tsh_tensor_release(b);
    }
    tsh_tensor_release(x);
}

Test(nccl, bad_arguments_are_reported) {
    run_ranks(3, false, wrong, NULL);
    setenv("TSHARD_CHECK", "1", 1);
    run_ranks(3, true, wrong, "checked");
}

static void too_late(tshi_rank *r, void *arg) {
    (void)arg;
    tsh_group *group = tsh_world_group(r->world);
    tsh_tensor *x = tshi_test_vector(r, TSH_FLOAT32, 3);
    float got[3];
    tsh_tensor_fill(x, 1);
    sums(r, group);
    r->world->timeout = 0.5;
    if (r->rank == 0) {
        tshi_check_ok(r, tsh_all_reduce(group, x, TSH_REDUCE_SUM));
        tshi_check_status(r, tsh_tensor_read(x, got, 3), TSH_ERR_TIMEOUT, "all_reduce #4: not done within 0.5 s");
        tshi_check(r, tsh_all_reduce(group, x, TSH_REDUCE_SUM) != TSH_OK, "a call after that");
    } else {
        /* Every next query returns the failure. */
        tsh_status status = TSH_OK;
        for (int i = 0; status == TSH_OK && i < 2000; i++) {
            nap(1000);
            tsh_mesh *mesh = NULL;
            if (i > 1000) status = tsh_mesh_create(r->world, "all=-1", &mesh);
            tsh_mesh_destroy(mesh);
        }
        tshi_check(r, status == TSH_ERR_PEER, "%s: %s", tsh_status_name(status), tsh_error_message());
        tshi_check(r, strstr(tsh_error_message(), "rank 0: all_reduce #4: not done within") != NULL, "%s",
                   tsh_error_message());
    }
    tsh_tensor_release(x);
}

Test(nccl, the_deadline_aborts) {
    begin(2, false);
    const tshi_test_options options = {.ranks = 2, .threads = true};
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
        tshi_check_ok(r, tsh_all_reduce(group, x, TSH_REDUCE_SUM));
        standin_nccl_error(0, ncclRemoteError);
        tshi_check_status(r, tsh_tensor_read(x, got, 3), TSH_ERR_PEER, "remote process exited");
        tshi_check_status(r, tsh_all_reduce(group, x, TSH_REDUCE_SUM), TSH_ERR_PEER, "the stand-in's last words");
    }
    tsh_status status = tsh_world_recover(r->world);
    tshi_check_ok(r, status);
    sums(r, group);
    tsh_tensor_release(x);
}

Test(nccl, asynchronous_errors_have_the_message_of_nccl) {
    run_ranks(2, false, broken, NULL);
}

/* A rank that leaves while others wait for it, with so many calls queued of which it will make none. */
static void leaves(tshi_rank *r, void *arg) {
    const int *calls = arg;
    tsh_group *group = tsh_world_group(r->world);
    sums(r, group);
    if (r->rank == 1) return;
    tsh_tensor *x = tshi_test_vector(r, TSH_FLOAT32, 3);
    float got[3];
    tsh_tensor_fill(x, 1);
    tsh_status status = TSH_OK;
    for (int i = 0; i < *calls && status == TSH_OK; i++) status = tsh_all_reduce(group, x, TSH_REDUCE_SUM);
    if (status == TSH_OK) status = tsh_tensor_read(x, got, 3);
    tshi_check_status(r, status, TSH_ERR_PEER, "rank 1 has left the world");
    tsh_tensor_release(x);
}

Test(nccl, a_rank_that_has_left_is_not_waited_for) {
    int calls[] = {1, 7, 2 * TSHI_NCCL_AHEAD};
    for (size_t i = 0; i < sizeof calls / sizeof *calls; i++) run_ranks(2, false, leaves, &calls[i]);
}

/* More calls than there are places for: the host waits for the oldest. */
static void runs_ahead(tshi_rank *r, void *arg) {
    (void)arg;
    tsh_group *group = tsh_world_group(r->world);
    tsh_tensor *x = tshi_test_vector(r, TSH_INT64, 1);
    int64_t got = 0;
    tsh_tensor_fill(x, 1);
    for (int i = 0; i < 2 * TSHI_NCCL_AHEAD + 1; i++)
        tshi_check_ok(r, tsh_all_reduce(group, x, i % 2 ? TSH_REDUCE_MAX : TSH_REDUCE_MIN));
    tshi_check_ok(r, tsh_all_reduce(group, x, TSH_REDUCE_SUM));
    tshi_check_ok(r, tsh_tensor_read(x, &got, 1));
    tshi_check(r, got == r->size, "the sum is %lld", (long long)got);
    tsh_tensor_release(x);
}

Test(nccl, a_host_may_be_so_many_calls_ahead) {
    run_ranks(3, false, runs_ahead, NULL);
}

/* Each call in turn fails once: at least one rank reports it with a message, and all ranks end and leave nothing. */
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
    if (status == TSH_OK) status = tsh_all_reduce(pair, x, TSH_REDUCE_SUM);
    if (status == TSH_OK) status = tsh_all_reduce_async(group, y, TSH_REDUCE_SUM, &work);
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

Test(nccl, every_call_of_nccl_may_fail, .timeout = 240) {
    static const char *const names[] = {"ncclGetUniqueId",       "ncclCommInitRankConfig", "ncclCommSplit",
                                        "ncclCommGetAsyncError", "ncclAllReduce",          "cudaEventCreate",
                                        "cudaEventRecord",       "cudaStreamWaitEvent",    "ncclCommFinalize",
                                        "ncclCommDestroy",       "cudaDeviceGetPCIBusId"};
    every_call_may_fail(names, sizeof names / sizeof *names, 5, life);
}

Test(nccl, a_library_that_is_none_is_done_without) {
    begin(2, true);
    standin_fail("ncclGetVersion", 1, 0);
    cr_assert_str_empty(tshi_test_run_threads(2, backend_is, "local"));
    setenv("TSHARD_BACKEND", "nccl", 1);
    const char *words = tshi_test_run_threads(2, no_world, NULL);
    cr_assert_not_null(strstr(words, "NCCL is required, but rank 0: ncclGetVersion failed"), "%s", words);
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
    tsh_tensor_require_grad(x, true);
    tsh_tensor_require_grad(w, true);
    tsh_tensor_fill(x, 1);
    tsh_tensor_fill(w, r->rank + 1);
    tsh_tensor_fill(seed, 2);
    /* Not a leaf: the gradient of what an op has made. */
    tsh_tensor *h = tsh_scale(tape, x, 1), *y = tsh_affine(tape, h, w, NULL);
    tshi_check(r, y != NULL, "%s", tsh_tape_message(tape));
    if (y) {
        tshi_check_ok(r, tsh_device_synchronize(tsh_world_device(r->world)));
        tshi_check_ok(r, tsh_backward_with(tape, y, &(tsh_backward_config){.gradient = seed}));
        bool done = false;
        for (int i = 0; i < 20000 && !done; i++) {
            done = !tshi_nccl_oldest(tshi_nccl_of(r->world));
            if (!done) nap(100);
        }
        tshi_check(r, done, "the sum does not come to an end");
        if (!getenv("TSHARD_TEST_SEED")) /* which lets work run any time before a wait */
            tshi_check(r, cudaStreamQuery(device->compute) == cudaErrorNotReady, "the product ran before");
        /* All ranks poll before any rank lets the queues run. */
        tshi_check_ok(r, tshi_group_agree(group, "polled", TSH_OK));
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
    run_ranks(2, false, overlap, NULL);
}

Test(nccl, the_input_gradient_is_scattered_beside_the_weight_gradient) {
    run_ranks(2, false, overlap, "scattered");
}

/* --- data parallelism --------------------------------------------------------------------------------------------- */

/* The gradients are summed while the host runs the optimizer and the next step. The first step loads the kernels. */
static void data_parallel(tshi_rank *r, void *arg) {
    enum { STEPS = 4 };
    (void)arg;
    steps s = {0};
    if (open_steps(r, &s)) {
        tshi_cuda_device *device = tshi_cuda(tsh_world_device(r->world));
        tshi_check(r, tsh_data_parallel_buckets(s.dp) > 1, "one bucket");
        for (int i = 0; i < STEPS && !r->failed; i++) {
            tshi_check_ok(r, tsh_device_synchronize(tsh_world_device(r->world)));
            uint64_t waits = device->waits;
            if (!step(r, &s)) break;
            tshi_check(r, i == 0 || device->waits == waits, "the host has waited %d times",
                       (int)(device->waits - waits));
        }
        expect_weight(r, &s, STEPS);
    }
    close_steps(&s);
}

Test(nccl, a_data_parallel_step_never_waits) {
    for (int ranks = 2; ranks <= 4; ranks++) run_ranks(ranks, false, data_parallel, NULL);
}

/* One rank does not make the step: its peer ends its own, and gets the error where it waits. */
static void data_parallel_fails(tshi_rank *r, void *arg) {
    _Atomic bool *ended = arg;
    steps s = {0};
    if (open_steps(r, &s)) {
        if (r->rank == 1) {
            while (!*ended) nap(100);
            tsh_world_fail(r->world, "enough of it");
        } else {
            step(r, &s);
            *ended = true;
            tsh_status status = tsh_device_synchronize(tsh_world_device(r->world));
            tshi_check_status(r, status, TSH_ERR_PEER, "enough of it");
        }
        tshi_check_ok(r, tsh_world_recover(r->world));
        sums(r, tsh_world_group(r->world));
    }
    close_steps(&s);
}

Test(nccl, the_next_synchronisation_reports_a_failed_data_parallel_step) {
    setenv("CUDA_MODULE_LOADING", "EAGER", 1); /* the peer comes after the step, which is the first */
    _Atomic bool ended = false;
    run_ranks(2, false, data_parallel_fails, &ended);
}
