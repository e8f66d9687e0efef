/* Worlds of ranks that share GPUs, over the stand-in for CUDA: collectives work on each other's memory in place. Ranks
 * are processes, which map it by CUDA IPC, or threads. */
#include "device/cuda/cuda.h"
#include "dist/transport/shm/shm.h"
#include "standin/standin.h"
#include "support/clock.h"
#include "support/collectives.h"
#include "tshard/graph.h"

#include <criterion/criterion.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

TestSuite(cuda_local, .timeout = 120);

static void begin(int gpus) {
    setenv("TSHARD_TEST_DEVICE", "cuda", 1);
    setenv("TSHARD_CUDA_MANAGED", "0", 1);
    setenv("TSHARD_BACKEND", "local", 1);
    standin_reset();
    standin_gpus(gpus);
}

static void nothing_left(tshi_rank *r) {
    char text[256];
    standin_live(text, sizeof text);
    tshi_check(r, !text[0] || !strcmp(text, "1 library"), "%s is left", text);
}

/* The work of a rank in a world that it creates; afterwards nothing may be left. */
typedef struct visit {
    tshi_rank_fn *fn;
    tshi_rank_fn *before; /* the world is made, or NULL */
} visit;

static void visit_world(tshi_rank *r, void *arg) {
    const visit *v = arg;
    tsh_world_config config = {.device = TSH_CUDA, .blas_threads = 1, .heap_bytes = (size_t)64 << 20};
    if (v->before) v->before(r, NULL);
    if (!tshi_check_ok(r, tsh_world_init(&config, &r->world))) return;
    v->fn(r, NULL);
    tsh_world_destroy(r->world);
    nothing_left(r);
}

static void run(int ranks, tshi_rank_fn *before, tshi_rank_fn *fn) {
    visit v = {fn, before};
    tshi_test_options options = {.ranks = ranks, .bare = true, .timeout = 60, .own_memory = true};
    cr_assert_str_empty(tshi_test_run_with(&options, visit_world, &v, NULL, NULL), "%d ranks", ranks);
}

static bool is_direct(tshi_rank *r) {
    return tshi_check(r, r->size == 1 || tshi_shm_of(r->world)->direct, "collectives go through the host's memory");
}

static void is_staged(tshi_rank *r, void *arg) {
    (void)arg;
    tshi_check(r, !tshi_shm_of(r->world)->direct, "collectives do not go through the host's memory");
    tshi_try_all(r, tsh_world_group(r->world), TSH_FLOAT32, 13);
}

/* --- the table ---------------------------------------------------------------------------------------------------- */

/* Past where parts are pushed rather than pulled, and no multiple of anything. */
#define MANY 140003

static void everything(tshi_rank *r, void *arg) {
    tsh_group *group = tsh_world_group(r->world);
    (void)arg;
    if (!is_direct(r)) return;
    for (int started = 0; started < 2; started++) {
        tshi_try_started(started);
        for (int d = 0; d < TSH_DTYPE_COUNT; d++) {
            for (int64_t n = 0; n <= 37; n = 3 * n + 1) {
                if (!tshi_try_all(r, group, (tsh_dtype)d, n)) return;
            }
        }
    }
    tshi_try_started(false);
    tshi_try_all_reduce(r, group, TSH_BFLOAT16, TSH_REDUCE_SUM, MANY);
    for (int spread = 0; spread < TSHI_SPREAD_COUNT; spread++) {
        tshi_try_all_gather(r, group, TSH_FLOAT32, MANY, (tshi_spread)spread, spread % 2);
        tshi_try_reduce_scatter(r, group, TSH_FLOAT64, TSH_REDUCE_AVG, MANY, (tshi_spread)spread, spread % 2);
    }
    tshi_try_all_to_all(r, group, TSH_INT32, MANY, true);
}

Test(cuda_local, every_collective_of_processes_on_one_gpu) {
    begin(1);
    for (int ranks = 1; ranks <= 4; ranks++) run(ranks, NULL, everything);
}

Test(cuda_local, every_collective_of_processes_on_two_gpus) {
    begin(2);
    run(3, NULL, everything);
}

static void on_threads(int ranks, int gpus, tshi_rank_fn *fn) {
    char text[256];
    begin(gpus);
    cr_assert_str_empty(tshi_test_run_threads(ranks, fn, NULL), "%d threads, %d GPUs", ranks, gpus);
    standin_live(text, sizeof text);
    cr_assert(!text[0] || !strcmp(text, "1 library"), "%s is left", text);
    cr_assert_eq(standin_calls("cudaIpcOpenMemHandle"), 0, "a process opens its own memory");
}

Test(cuda_local, every_collective_of_threads) {
    on_threads(3, 1, everything);
    cr_assert_eq(standin_calls("cudaDeviceEnablePeerAccess"), 0);
    on_threads(2, 2, everything);
    cr_assert_geq(standin_calls("cudaDeviceEnablePeerAccess"), 2);
}

/* --- another GPU is current --------------------------------------------------------------------------------------- */

static void turn_away(const tshi_rank *r) {
    cudaSetDevice(1 - tshi_cuda(tsh_world_device(r->world))->ordinal);
}

static void expect_all(tshi_rank *r, const tsh_tensor *x, float wanted) {
    float got[3] = {0};
    turn_away(r);
    tshi_check_ok(r, tsh_tensor_read(x, got, 3));
    tshi_check(r, got[0] == wanted && got[2] == wanted, "%g, not %g", (double)got[0], (double)wanted);
}

/* Each call, the first of which share their memory, begins on the wrong GPU. */
static void elsewhere(tshi_rank *r, void *arg) {
    (void)arg;
    tsh_group *group = tsh_world_group(r->world);
    tsh_work *work = NULL;
    if (!is_direct(r)) return;
    tsh_tensor *x = tshi_test_vector(r, TSH_FLOAT32, 3), *y = tshi_test_vector(r, TSH_FLOAT32, 3);
    /* In memory of its own, which nobody has mapped yet. */
    tsh_tensor *large = tshi_test_vector(r, TSH_FLOAT32, (int64_t)8 << 20);
    turn_away(r);
    tshi_check_ok(r, tsh_all_reduce(group, large, TSH_REDUCE_SUM));
    turn_away(r);
    tshi_check_ok(r, tsh_tensor_fill(x, r->rank + 1));
    turn_away(r);
    tshi_check_ok(r, tsh_all_reduce(group, x, TSH_REDUCE_SUM));
    expect_all(r, x, 3);
    turn_away(r);
    tshi_check_ok(r, tsh_all_reduce_async(group, x, TSH_REDUCE_SUM, &work));
    turn_away(r);
    tshi_check_ok(r, tsh_work_wait(work));
    tsh_work_release(work);
    expect_all(r, x, 6);
    turn_away(r);
    tshi_check_ok(r, tsh_send_async(group, x, 1 - r->rank, &work));
    turn_away(r);
    tshi_check_ok(r, tsh_recv(group, y, 1 - r->rank, NULL));
    turn_away(r);
    tshi_check_ok(r, tsh_work_wait(work));
    tsh_work_release(work);
    expect_all(r, y, 6);
    turn_away(r);
    tshi_check_ok(r, tsh_barrier(group));
    turn_away(r);
    if (r->rank == 0) tsh_world_fail(r->world, "enough of it");
    tshi_check_ok(r, tsh_world_recover(r->world));
    turn_away(r);
    tshi_check_ok(r, tsh_broadcast(group, y, 1));
    expect_all(r, y, 6);
    tsh_tensor_release(x);
    tsh_tensor_release(y);
    tsh_tensor_release(large);
    turn_away(r);
}

Test(cuda_local, another_gpu_is_current_between_calls) {
    begin(2);
    run(2, NULL, elsewhere);
    on_threads(2, 2, elsewhere);
}

/* --- order -------------------------------------------------------------------------------------------------------- */

#define N 1000

static bool all_are(tshi_rank *r, const tsh_tensor *x, double wanted) {
    float got[N];
    bool good = tshi_check_ok(r, tsh_tensor_read(x, got, N));
    for (int i = 0; good && i < N; i++) {
        good = tshi_check(r, (double)got[i] == wanted, "[%d] is %g, not %g", i, (double)got[i], wanted);
    }
    return good;
}

/* Queues run as late as they may: what a collective reads has to be waited for, and what it has written too. */
static void late(tshi_rank *r, void *arg) {
    tsh_group *group = tsh_world_group(r->world);
    tsh_device *device = tsh_world_device(r->world);
    (void)arg;
    if (!is_direct(r)) return;
    tsh_tensor *x = tshi_test_vector(r, TSH_FLOAT32, N), *y = tshi_test_vector(r, TSH_FLOAT32, N);
    double wanted = r->size * (r->size + 1) / 2;
    tsh_tensor_fill(x, r->rank + 1);
    for (int i = 0; i < 3; i++) {
        tsh_work *work = NULL;
        if (i == 1)
            tshi_check_ok(r, tsh_all_reduce(group, x, TSH_REDUCE_SUM));
        else if (tshi_check_ok(r, tsh_all_reduce_async(group, x, TSH_REDUCE_SUM, &work)))
            tshi_check_ok(r, tsh_work_wait(work));
        tsh_work_release(work);
        device->ops->copy.within(device, N * sizeof(float), tshi_data(x), tshi_data(y));
        tsh_tensor_fill(x, i + r->rank); /* the peers have copied their parts */
        if (!all_are(r, y, wanted)) break;
        wanted = i * r->size + r->size * (r->size - 1) / 2;
    }
    tsh_tensor_fill(x, r->rank);
    tshi_check_ok(r, tsh_broadcast(group, x, r->size - 1));
    all_are(r, x, r->size - 1);
    tsh_tensor_release(x);
    tsh_tensor_release(y);
}

static void be_late(tshi_rank *r, void *arg) {
    (void)r;
    (void)arg;
    standin_lazy(true);
    standin_protect(true);
}

Test(cuda_local, what_is_queued_comes_first) {
    begin(1);
    for (int ranks = 2; ranks <= 4; ranks++) run(ranks, be_late, late);
    begin(1);
    standin_lazy(true);
    cr_assert_str_empty(tshi_test_run_threads(3, late, NULL));
}

/* --- what a step costs -------------------------------------------------------------------------------------------- */

static void steps(tshi_rank *r, void *arg) {
    static const char *const rare[] = {"cudaIpcOpenMemHandle", "cudaIpcGetMemHandle", "cudaIpcCloseMemHandle",
                                       "cudaDeviceCanAccessPeer", "cudaMalloc"};
    enum { RARE = sizeof rare / sizeof *rare };
    tsh_group *group = tsh_world_group(r->world);
    const tshi_cuda_device *device = tshi_cuda(tsh_world_device(r->world));
    uint64_t before[RARE] = {0}, waits = 0, copies = 0;
    (void)arg;
    for (int i = 0; i < 6; i++) {
        if (i == 2) { /* warm: from here on nothing is new */
            for (int k = 0; k < RARE; k++) before[k] = standin_calls(rare[k]);
            waits = device->waits;
            copies = standin_calls("cudaMemcpyAsync");
        }
        tsh_tensor *small = tshi_test_vector(r, TSH_FLOAT32, N), *large = tshi_test_vector(r, TSH_FLOAT32, 400 * N);
        tshi_check_ok(r, tsh_all_reduce(group, small, TSH_REDUCE_SUM));
        tshi_check_ok(r, tsh_all_reduce(group, large, TSH_REDUCE_SUM));
        tsh_tensor_release(small);
        tsh_tensor_release(large);
    }
    for (int k = 0; k < RARE; k++) {
        uint64_t more = standin_calls(rare[k]) - before[k];
        tshi_check(r, more == 0, "%llu calls of %s in steps that have been made before", (unsigned long long)more,
                   rare[k]);
    }
    tshi_check(r, before[0] > 0, "nothing was mapped");
    tshi_check(r, device->waits - waits == 16, "%llu waits in 8 calls", (unsigned long long)(device->waits - waits));
    tshi_check(r, standin_calls("cudaMemcpyAsync") == copies, "data is copied to be reduced");
}

Test(cuda_local, what_is_mapped_stays_mapped) {
    begin(1);
    run(3, NULL, steps);
}

/* --- where it cannot be had --------------------------------------------------------------------------------------- */

static void refuse_mapping(tshi_rank *r, void *arg) {
    (void)arg;
    if (r->rank == 1) standin_fail("cudaIpcOpenMemHandle", 1, 0);
}

static void refuse_naming(tshi_rank *r, void *arg) {
    (void)arg;
    if (r->rank == 2) standin_fail("cudaIpcGetMemHandle", 1, 0);
}

static void switch_off(tshi_rank *r, void *arg) {
    (void)arg;
    if (r->rank == 1) setenv("TSHARD_CUDA_IPC", "0", 1);
}

static void be_managed(tshi_rank *r, void *arg) {
    (void)r;
    (void)arg;
    setenv("TSHARD_CUDA_MANAGED", "1", 1);
}

/* One rank that cannot is enough for all to go through the host. */
Test(cuda_local, what_one_rank_cannot_reach) {
    begin(1);
    run(3, refuse_mapping, is_staged);
    run(3, refuse_naming, is_staged);
    run(2, switch_off, is_staged);
    run(2, be_managed, is_staged);
    begin(2);
    standin_peers(false);
    run(2, NULL, is_staged);
}

static void says_two(tshi_rank *r, void *arg) {
    (void)arg;
    setenv("TSHARD_CUDA_IPC", "2", 1);
    tshi_check_status(r, tsh_world_init(&(tsh_world_config){.device = TSH_CUDA}, &r->world), TSH_ERR_ARGUMENT,
                      "TSHARD_CUDA_IPC is \"2\"");
    nothing_left(r);
}

Test(cuda_local, a_switch_that_is_none) {
    begin(1);
    cr_assert_str_empty(tshi_test_run_with(&(tshi_test_options){.ranks = 1, .bare = true}, says_two, NULL, NULL, NULL));
}

/* A later failure, at the first memory of a new slab: all ranks get it in that call, and the next call succeeds. */
static void refused_later(tshi_rank *r, const char *call, bool started) {
    tsh_group *group = tsh_world_group(r->world);
    tsh_work *work = NULL;
    tsh_tensor *x = tshi_test_vector(r, TSH_FLOAT32, (started ? 40 : 20) << 20);
    if (!is_direct(r) || !x) return;
    if (r->rank == 1) standin_fail(call, 1, 0);
    tsh_status status =
        started ? tsh_all_reduce_async(group, x, TSH_REDUCE_SUM, &work) : tsh_all_reduce(group, x, TSH_REDUCE_SUM);
    if (work) status = tsh_work_wait(work);
    if (r->rank == 1)
        tshi_check_status(r, status, TSH_ERR_UNSUPPORTED, call);
    else
        tshi_check_status(r, status, TSH_ERR_PEER, "rank 1: cudaIpc");
    tsh_work_release(work);
    tsh_tensor_fill(x, 1);
    tshi_check_ok(r, tsh_all_reduce(group, x, TSH_REDUCE_SUM));
    float got[1];
    tsh_device *device = tsh_world_device(r->world);
    device->ops->copy.to_host(device, sizeof got, tshi_data(x), got);
    tshi_check(r, got[0] == (float)r->size, "%g", (double)got[0]);
    tsh_tensor_release(x);
}

static void refused_mapping_later(tshi_rank *r, void *arg) {
    (void)arg;
    refused_later(r, "cudaIpcOpenMemHandle", false);
    refused_later(r, "cudaIpcOpenMemHandle", true);
}

static void refused_naming_later(tshi_rank *r, void *arg) {
    (void)arg;
    refused_later(r, "cudaIpcGetMemHandle", false);
    refused_later(r, "cudaIpcGetMemHandle", true);
}

Test(cuda_local, a_refusal_in_a_call) {
    begin(1);
    run(3, NULL, refused_mapping_later);
    run(2, NULL, refused_naming_later);
}

/* Wrong calls return the errors that they return for host memory, and change nothing. */
static void mismatches(tshi_rank *r, void *arg) {
    tsh_group *group = tsh_world_group(r->world);
    tsh_tensor *x = tshi_test_vector(r, TSH_FLOAT32, N), *y = tshi_test_vector(r, TSH_FLOAT32, N);
    const int64_t in[2] = {N - 3, 3}, out[2] = {N - 3 - r->rank, 3 + r->rank};
    (void)arg;
    tsh_tensor_fill(x, 1);
    tsh_status status = r->rank ? tsh_all_reduce(group, x, TSH_REDUCE_SUM) : tsh_all_reduce(group, x, TSH_REDUCE_MAX);
    tshi_check_status(r, status, TSH_ERR_MISMATCH, "rank 0: all_reduce float32 [1000] max");
    tshi_check_status(r, tsh_all_to_all(group, x, in, y, out), TSH_ERR_MISMATCH, "all_to_all: rank");
    all_are(r, x, 1);
    tsh_tensor_release(x);
    tsh_tensor_release(y);
}

Test(cuda_local, calls_that_do_not_match) {
    begin(1);
    run(2, NULL, mismatches);
}

static void captured(tshi_rank *r, void *arg) {
    tsh_group *group = tsh_world_group(r->world);
    tsh_device *device = tsh_world_device(r->world);
    tsh_tensor *x = tshi_test_vector(r, TSH_FLOAT32, N);
    tsh_graph *graph = NULL;
    (void)arg;
    tsh_tensor_fill(x, 1);
    tshi_check_ok(r, tsh_graph_capture_begin(device));
    tsh_status status = tsh_all_reduce(group, x, TSH_REDUCE_SUM);
    tshi_check(r, status == TSH_ERR_STATE, "in a capture: %s", tsh_status_name(status));
    tshi_check_status(r, tsh_graph_capture_end(device, &graph), TSH_ERR_STATE, "not while a graph is captured");
    device->ops->check(device);
    tshi_check_ok(r, tsh_all_reduce(group, x, TSH_REDUCE_SUM));
    all_are(r, x, r->size);
    tsh_tensor_release(x);
}

Test(cuda_local, not_in_a_graph) {
    begin(1);
    run(2, NULL, captured);
}

/* --- ends --------------------------------------------------------------------------------------------------------- */

static void one_dies(tshi_rank *r, void *arg) {
    tsh_group *group = tsh_world_group(r->world);
    tsh_tensor *x = tshi_test_vector(r, TSH_FLOAT32, N);
    (void)arg;
    tshi_check_ok(r, tsh_all_reduce(group, x, TSH_REDUCE_SUM));
    if (r->rank == 1) {
        tshi_nap(0.1);
        raise(SIGKILL);
    }
    double start = tshi_now();
    tshi_check_status(r, tsh_all_reduce(group, x, TSH_REDUCE_SUM), TSH_ERR_PEER, "rank 1 died");
    tshi_check(r, tshi_now() - start < TSHI_SOON, "an error after %g s", tshi_now() - start);
    tsh_tensor_release(x);
}

/* The remaining ranks unmap each other's memory and the dead rank's, and do not wait for it. */
Test(cuda_local, a_rank_dies) {
    visit v = {one_dies, NULL};
    tshi_test_options options = {.ranks = 3, .bare = true, .own_memory = true};
    tshi_outcome outcomes[3];
    begin(1);
    tshi_test_run_with(&options, visit_world, &v, outcomes, NULL);
    for (int i = 0; i < 3; i++) {
        cr_assert_eq(outcomes[i].signal, i == 1 ? SIGKILL : 0, "%s", outcomes[i].words);
        if (i != 1) cr_assert_str_empty(outcomes[i].words);
    }
}

/* The stand-in ends a process that frees memory while another process has it mapped. */
static void one_stays(tshi_rank *r, void *arg) {
    tsh_tensor *x = tshi_test_vector(r, TSH_FLOAT32, N);
    (void)arg;
    tshi_check_ok(r, tsh_all_reduce(tsh_world_group(r->world), x, TSH_REDUCE_SUM));
    tsh_tensor_release(x);
    if (r->rank == r->size - 1) tshi_nap(0.1);
}

Test(cuda_local, memory_goes_when_all_have_let_go) {
    begin(1);
    run(2, NULL, one_stays);
    run(3, NULL, one_stays);
}

/* Ranks wait only briefly for a rank that stays much longer, and leave the memory that it has mapped. */
static void one_stays_long(tshi_rank *r, void *arg) {
    atomic_int *gone = arg;
    tsh_world_config config = {.device = TSH_CUDA, .blas_threads = 1, .heap_bytes = (size_t)64 << 20};
    if (!tshi_check_ok(r, tsh_world_init(&config, &r->world)) || !is_direct(r)) return;
    if (r->rank == 1) tshi_test_await(r, gone, 1);
    tsh_world_destroy(r->world);
    if (r->rank == 0) atomic_fetch_add(gone, 1);
    char text[256];
    standin_live(text, sizeof text);
    tshi_check(r, strstr(text, "allocation") ? r->rank == 0 : r->rank == 1, "%s is left", text);
}

Test(cuda_local, memory_of_one_that_stays_is_left) {
    tshi_test_options options = {.ranks = 2, .bare = true, .own_memory = true};
    begin(1);
    atomic_int *gone = tshi_test_shared(sizeof *gone);
    cr_assert_str_empty(tshi_test_run_with(&options, one_stays_long, gone, NULL, NULL));
}

/* Memory that is released goes back to the GPU for something larger; what has been shared does not. */
Test(cuda_local, what_is_shared_stays) {
    for (int shared = 0; shared < 2; shared++) {
        tsh_device *device = NULL;
        tshi_share share;
        begin(1);
        standin_memory((size_t)400 << 20);
        cr_assert_eq(tshi_device_create_cuda(NULL, 0, &device), TSH_OK, "%s", tsh_error_message());
        void *x = device->ops->memory.alloc(device, (size_t)240 << 20);
        if (shared) cr_assert_eq(device->ops->sharing->share(device, x, &share), TSH_OK, "%s", tsh_error_message());
        device->ops->memory.release(device, x);
        void *y = device->ops->memory.alloc(device, (size_t)280 << 20);
        cr_expect_eq(y == NULL, shared, "280 MiB of 400, 240 of them idle");
        cr_expect_eq(standin_calls("cudaFree"), shared ? 0 : 1);
        device->ops->memory.release(device, y);
        cr_expect_neq(device->ops->sharing->share(device, &share, &share), TSH_OK, "the host's memory is shared");
        tshi_device_destroy(device);
        char text[256];
        cr_assert_eq(standin_live(text, sizeof text), 0, "%s is left", text);
    }
}
