/* Messages between GPUs over NCCL's stand-in: what test_messages.c asks of the host's, and that the data stays on the
 * GPUs while no host waits for them. */
#include "cuda/nccl_ranks.h"
#include "support/lines.h"
#include "support/pipeline.h"
#include "support/values.h"
#include "tshard/graph.h"

TestSuite(nccl_messages, .timeout = 120);

#define MOST 4000

static void put(tsh_tensor *x, int64_t salt) {
    char data[MOST * 16];
    for (int64_t i = 0; i < x->numel; i++) {
        tshi_put(x->dtype, data, i, tshi_value(x->dtype, TSH_REDUCE_SUM, (int)(salt % 60), i + salt));
    }
    tsh_tensor_write(x, data, x->numel);
}

static bool holds(tshi_rank *r, const tsh_tensor *x, int64_t salt) {
    char data[MOST * 16];
    if (!tshi_check_ok(r, tsh_tensor_read(x, data, x->numel))) return false;
    for (int64_t i = 0; i < x->numel; i++) {
        if (tshi_is(x->dtype, data, i, tshi_value(x->dtype, TSH_REDUCE_SUM, (int)(salt % 60), i + salt))) continue;
        return tshi_check(r, false, "%s [%lld]: element %lld is wrong", tsh_dtype_name(x->dtype), (long long)x->numel,
                          (long long)i);
    }
    return true;
}

/* --- data --------------------------------------------------------------------------------------------------------- */

static void round_trips(tshi_rank *r, void *arg) {
    (void)arg;
    tsh_group *group = tsh_world_group(r->world);
    int next = (r->rank + 1) % r->size, before = (r->rank + r->size - 1) % r->size, sender = -7;
    for (int dtype = 0; dtype < TSH_DTYPE_COUNT; dtype++) {
        for (int64_t n = 0; n <= MOST; n = 9 * n + 5) {
            tsh_tensor *out = tshi_test_vector(r, (tsh_dtype)dtype, n), *in = tshi_test_vector(r, (tsh_dtype)dtype, n);
            put(out, r->rank);
            tsh_work *work;
            tshi_check_ok(r, tsh_send_async(group, out, next, &work));
            bool good = tshi_check_ok(r, tsh_recv(group, in, n % 2 ? before : TSH_ANY_RANK, &sender)) &&
                        tshi_check_ok(r, tsh_work_wait(work)) && holds(r, in, before) &&
                        tshi_check(r, sender == before, "the sender is %d, not %d", sender, before);
            tsh_work_release(work);
            tsh_tensor_release(out);
            tsh_tensor_release(in);
            if (!good) return;
        }
    }
    tsh_communication_stats stats = tsh_group_stats(group);
    tshi_check(r,
               stats.calls[TSH_COLLECTIVE_SEND] == stats.calls[TSH_COLLECTIVE_RECV] &&
                   stats.calls[TSH_COLLECTIVE_SEND] >= 36,
               "counts");
    tshi_check(r, stats.bytes[TSH_COLLECTIVE_SEND] == 510 * 53 && stats.bytes[TSH_COLLECTIVE_RECV] == 0, "bytes");
}

Test(nccl_messages, around_a_ring) {
    for (int ranks = 2; ranks <= 4; ranks++) {
        run_ranks(ranks, false, round_trips, NULL);
        cr_assert_geq(standin_calls("ncclSend"), 36);
        run_ranks(ranks, true, round_trips, NULL);
    }
}

/* Calls that wait for their peer, in turn, with kernels between them: what arrives is sent on, and no host waits. */
static void relay(tshi_rank *r, void *arg) {
    (void)arg;
    tsh_group *group = tsh_world_group(r->world);
    tsh_tensor *x = tshi_test_vector(r, TSH_INT64, 100);
    const tshi_cuda_device *device = tshi_cuda(tsh_world_device(r->world));
    put(x, r->rank);
    for (int i = 0; i < 3; i++) {
        uint64_t waits = device->waits, allocations = device->base.stats.allocations;
        if (r->rank > 0) tshi_check_ok(r, tsh_recv(group, x, r->rank - 1, NULL));
        tshi_check_ok(r, tsh_send(group, x, (r->rank + 1) % r->size));
        if (r->rank == 0) tshi_check_ok(r, tsh_recv(group, x, r->size - 1, NULL));
        /* The first makes the ways. */
        tshi_check(r, i == 0 || device->waits == waits, "the host has waited");
        tshi_check(r, device->base.stats.allocations == allocations, "memory has been taken");
    }
    holds(r, x, 0);
    tsh_tensor_release(x);
}

Test(nccl_messages, are_relayed_and_no_host_waits) {
    begin(3, false);
    standin_protect(true);
    cr_assert_str_empty(tshi_test_run_threads(3, relay, NULL));
    expect_nothing_left("a world");
    cr_assert_eq(standin_calls("ncclSend"), 9);
    cr_assert_eq(standin_calls("ncclRecv"), 9);
    /* The world's, and one for each of the three ways, on both ends. */
    cr_assert_eq(standin_calls("ncclCommInitRankConfig"), 3 + 2 * 3);
}

/* --- orders ------------------------------------------------------------------------------------------------------- */

#define MANY 25

static void many(tshi_rank *r, void *arg) {
    enum { WORKS = 2 * MANY * 3 };
    tsh_group *group = tsh_world_group(r->world);
    tsh_work *works[WORKS];
    tsh_tensor *tensors[WORKS];
    int64_t salts[WORKS];
    const int64_t sizes[] = {1, 300, 7, 2000, 0};
    int n = 0;
    unsigned seed = *(unsigned *)arg + (unsigned)r->rank;
    for (int i = 0; i < MANY; i++) {
        for (int peer = 0; peer < r->size; peer++) {
            for (int side = 0; peer != r->rank && side < 2; side++, n++) {
                tensors[n] = tshi_test_vector(r, TSH_INT64, sizes[i % 5]);
                bool send = side == (int)(seed % 2);
                salts[n] = send ? -1 : 10 * i + peer;
                if (send) put(tensors[n], 10 * i + r->rank);
                tsh_status status = send ? tsh_send_async(group, tensors[n], peer, &works[n])
                                         : tsh_recv_async(group, tensors[n], peer, &works[n]);
                if (!tshi_check_ok(r, status)) return;
            }
        }
    }
    for (int left = n; left > 0; left--) {
        int k = rand_r(&seed) % left;
        bool good = tshi_check_ok(r, tsh_work_wait(works[k])) && (salts[k] < 0 || holds(r, tensors[k], salts[k]));
        tsh_work_release(works[k]);
        tsh_tensor_release(tensors[k]);
        works[k] = works[left - 1];
        tensors[k] = tensors[left - 1];
        salts[k] = salts[left - 1];
        if (!good) return;
    }
}

Test(nccl_messages, any_order_of_waits) {
    for (unsigned seed = 1; seed <= 4; seed++) {
        run_ranks(2, false, many, &seed);
        run_ranks(4, false, many, &seed);
    }
}

/* Rank 0 receives from any rank; the messages of each sender arrive in order. */
static void from_anybody(tshi_rank *r, void *arg) {
    enum { CALLS = 60 };
    (void)arg;
    tsh_group *group = tsh_world_group(r->world);
    int64_t next[4] = {0}, data[2];
    tsh_tensor *x = tshi_test_vector(r, TSH_INT64, 2);
    for (int i = 0; r->rank && i < CALLS; i++) {
        tsh_tensor_write(x, (int64_t[]){r->rank, i}, 2);
        if (!tshi_check_ok(r, tsh_send(group, x, 0))) break;
    }
    for (int i = 0; !r->rank && i < CALLS * (r->size - 1); i++) {
        int sender = -1;
        if (!tshi_check_ok(r, tsh_recv(group, x, TSH_ANY_RANK, &sender))) break;
        if (!tshi_check_ok(r, tsh_tensor_read(x, data, 2))) break;
        if (!tshi_check(r, sender == data[0] && data[1] == next[sender], "%lld of rank %d came as %lld",
                        (long long)data[1], sender, (long long)next[sender])) {
            break;
        }
        next[sender]++;
    }
    tshi_check_ok(r, tsh_barrier(group));
    tsh_tensor_release(x);
}

Test(nccl_messages, from_anybody) {
    run_ranks(2, false, from_anybody, NULL);
    run_ranks(4, false, from_anybody, NULL);
}

/* What was called for first is waited for last: both queues hold kernels behind the later message by then. */
static void crossed(tshi_rank *r, void *arg) {
    enum { N = 50 };
    (void)arg;
    tsh_group *group = tsh_world_group(r->world);
    tsh_tensor *out = tshi_test_vector(r, TSH_INT64, N), *in = tshi_test_vector(r, TSH_INT64, N);
    int peer = 1 - r->rank;
    for (int i = 0; i < 5 && !r->failed; i++) {
        tsh_work *works[2] = {NULL, NULL};
        int64_t got[N];
        put(out, r->rank + i);
        tshi_check_ok(r, tsh_send_async(group, out, peer, &works[0]));
        tshi_check_ok(r, tsh_recv(group, in, peer, NULL));
        tsh_tensor_fill(in, i + r->rank);
        tshi_check_ok(r, tsh_send_async(group, in, peer, &works[1]));
        tshi_check_ok(r, tsh_work_wait(works[r->rank]));
        tshi_check_ok(r, tsh_recv(group, out, peer, NULL));
        tshi_check_ok(r, tsh_work_wait(works[peer]));
        tshi_check_ok(r, tsh_tensor_read(out, got, N));
        tshi_check(r, got[N - 1] == i + peer, "%lld", (long long)got[N - 1]);
        tsh_work_release(works[0]);
        tsh_work_release(works[1]);
    }
    tsh_tensor_release(out);
    tsh_tensor_release(in);
}

Test(nccl_messages, that_cross) {
    run_ranks(2, false, crossed, NULL);
}

/* The GPU that the host waits for waits for a message that this host has started, and that has to progress
 * meanwhile. */
static void heard_of_while_waiting(tshi_rank *r, void *arg) {
    (void)arg;
    tsh_group *group = tsh_world_group(r->world);
    tsh_tensor *x = tshi_test_vector(r, TSH_INT64, 50), *y = tshi_test_vector(r, TSH_INT64, 3);
    tsh_work *work = NULL;
    int64_t got[3];
    tsh_tensor_fill(y, r->rank + 1);
    put(x, 7 * r->rank);
    if (r->rank == 0) tshi_check_ok(r, tsh_send_async(group, x, 1, &work));
    if (r->rank == 1) {
        nap(20000);
        tshi_check_ok(r, tsh_recv(group, x, 0, NULL));
    }
    tshi_check_ok(r, tsh_all_reduce(group, y, TSH_REDUCE_SUM));
    tshi_check_ok(r, tsh_tensor_read(y, got, 3));
    tshi_check(r, got[0] == 3 && got[2] == 3, "%lld", (long long)got[0]);
    if (work) tshi_check_ok(r, tsh_work_wait(work));
    holds(r, x, 0);
    tsh_work_release(work);
    tsh_tensor_release(x);
    tsh_tensor_release(y);
}

Test(nccl_messages, progress_while_the_host_waits_for_the_gpu) {
    run_ranks(2, false, heard_of_while_waiting, NULL);
}

static void tested(tshi_rank *r, void *arg) {
    (void)arg;
    tsh_group *group = tsh_world_group(r->world), *halves = NULL;
    tsh_tensor *x = tshi_test_vector(r, TSH_FLOAT32, 30);
    tsh_work *work = NULL;
    bool done = false;
    tshi_check_ok(r, tsh_group_split(group, r->rank / 2, -r->rank, &halves));
    put(x, r->rank);
    int peer = 1 - tsh_group_rank(halves);
    if (r->rank % 2) tshi_check_ok(r, tsh_send_async(halves, x, peer, &work));
    if (!(r->rank % 2)) tshi_check_ok(r, tsh_recv_async(halves, x, TSH_ANY_RANK, &work));
    for (int i = 0; !done && i < 100000; i++) {
        if (!tshi_check_ok(r, tsh_work_test(work, &done))) break;
        nap(10);
    }
    tshi_check(r, done, "it does not come to an end");
    tshi_check(r, tsh_work_sender(work) == (r->rank % 2 ? TSH_ANY_RANK : peer), "the sender is %d",
               tsh_work_sender(work));
    holds(r, x, r->rank | 1);
    tsh_work_release(work);
    tsh_tensor_release(x);
    tsh_group_destroy(halves);
    sums(r, group);
}

Test(nccl_messages, that_are_tested_in_smaller_groups) {
    run_ranks(4, false, tested, NULL);
}

static void described(tshi_rank *r, void *arg) {
    (void)arg;
    tsh_group *group = tsh_world_group(r->world);
    const tsh_mesh *mesh = tsh_world_mesh(r->world);
    const tsh_tensor_config configs[] = {{.dtype = TSH_BFLOAT16, .ndim = 3, .shape = {2, 3, 5}},
                                         {.dtype = TSH_COMPLEX128, .ndim = 0},
                                         {.dtype = TSH_FLOAT32, .ndim = 2, .shape = {0, 7}},
                                         {.dtype = TSH_FLOAT64, .ndim = 2, .shape = {30, 100}}};
    for (int i = 0; i < 4; i++) {
        tsh_tensor *x = NULL;
        int sender = -1;
        if (r->rank == 1) {
            tshi_check_ok(r, tsh_tensor_create(mesh, &configs[i], &x));
            put(x, i);
            tshi_check_ok(r, tsh_send_new(group, x, 0));
        } else if (r->rank == 0 && tshi_check_ok(r, tsh_recv_new(group, mesh, i % 2 ? 1 : TSH_ANY_RANK, &sender, &x))) {
            tshi_check(r, sender == 1 && tsh_tensor_dtype(x) == configs[i].dtype, "sender or dtype");
            tshi_check(r, tsh_tensor_ndim(x) == configs[i].ndim, "dims");
            for (int d = 0; d < configs[i].ndim; d++) {
                tshi_check(r, tsh_tensor_local_shape(x)[d] == configs[i].shape[d], "dim %d", d);
            }
            holds(r, x, i);
        }
        tsh_tensor_release(x);
    }
}

Test(nccl_messages, with_their_description) {
    run_ranks(3, false, described, NULL);
}

/* --- failures ----------------------------------------------------------------------------------------------------- */

/* Both sides get an error for a message of the wrong size, the group stays usable, and the messages around it
 * arrive. */
static void misfits(tshi_rank *r, void *arg) {
    (void)arg;
    tsh_group *group = tsh_world_group(r->world);
    const int64_t counts[] = {4, 500, 3000};
    for (int i = 0; i < 6; i++) {
        int64_t n = counts[i / 2];
        tsh_tensor *x = tshi_test_vector(r, TSH_FLOAT64, n), *other;
        tsh_work *work = NULL;
        other = i % 2 ? tshi_test_vector(r, TSH_INT64, n) : tshi_test_vector(r, TSH_FLOAT64, n + 1);
        put(x, i);
        if (r->rank == 0) tshi_check_ok(r, tsh_send_async(group, x, 1, &work));
        if (r->rank == 1) tshi_check_ok(r, tsh_recv_async(group, x, 0, &work));
        tsh_status status = r->rank ? tsh_recv(group, other, 0, NULL) : tsh_send(group, x, 1);
        tshi_check_status(r, status, TSH_ERR_MISMATCH, "float64");
        tshi_check_ok(r, tsh_work_wait(work));
        tsh_work_release(work);
        holds(r, x, i);
        put(x, 3 * i);
        tshi_check_ok(r, r->rank ? tsh_recv(group, x, 0, NULL) : tsh_send(group, x, 1));
        holds(r, x, 3 * i);
        tsh_tensor_release(x);
        tsh_tensor_release(other);
    }
}

Test(nccl_messages, of_the_wrong_size) {
    run_ranks(2, false, misfits, NULL);
}

static void late(tshi_rank *r, void *arg) {
    _Atomic bool *over = arg;
    tsh_group *group = tsh_world_group(r->world);
    tsh_tensor *x = tshi_test_vector(r, TSH_FLOAT32, 3);
    r->world->timeout = 0.5;
    if (r->rank == 0) {
        tshi_check_status(r, tsh_recv(group, x, 1, NULL), TSH_ERR_TIMEOUT, "recv");
        tshi_check(r, tsh_recv(group, x, 1, NULL) != TSH_OK, "a call after that");
        *over = true;
    } else {
        while (!*over) nap(1000);
        tshi_check_status(r, tsh_send(group, x, 0), TSH_ERR_PEER, "rank 0");
    }
    tsh_tensor_release(x);
}

/* Both have committed themselves, but one's GPU never comes to it: it waits for a collective that is not complete. */
static void stuck(tshi_rank *r, void *arg) {
    (void)arg;
    tsh_group *group = tsh_world_group(r->world);
    tsh_tensor *x = tshi_test_vector(r, TSH_FLOAT32, 3), *y = tshi_test_vector(r, TSH_FLOAT32, 3);
    float got[3];
    sums(r, group);
    r->world->timeout = 0.5;
    if (r->rank == 1) tshi_check_ok(r, tsh_all_reduce(group, y, TSH_REDUCE_SUM));
    tsh_status status = r->rank ? tsh_send(group, x, 0) : tsh_recv(group, x, 1, NULL);
    if (status == TSH_OK) status = tsh_tensor_read(x, got, 3); /* a slow rank finds the deadline passed before */
    tshi_check(r, status == TSH_ERR_TIMEOUT || status == TSH_ERR_PEER, "%s: %s", tsh_status_name(status),
               tsh_error_message());
    tshi_check(r, strstr(tsh_error_message(), "not done within 0.5 s") != NULL, "%s", tsh_error_message());
    tsh_tensor_release(x);
    tsh_tensor_release(y);
}

Test(nccl_messages, the_deadline) {
    tshi_rank_fn *const cases[] = {late, stuck};
    for (int i = 0; i < 2; i++) {
        const tshi_test_options options = {.ranks = 2, .threads = true};
        _Atomic bool over = false;
        begin(2, false);
        cr_assert_str_empty(tshi_test_run_with(&options, cases[i], &over, NULL, NULL));
        expect_nothing_left("a world");
    }
}

/* Rank 1 waits for its message to be matched, before its part of what rank 0 has started. */
static void send_before_sums(tshi_rank *r, int sums) {
    tsh_group *group = tsh_world_group(r->world);
    tsh_tensor *x = tshi_test_vector(r, TSH_FLOAT32, 3), *y = tshi_test_vector(r, TSH_FLOAT32, 3);
    tsh_work *message = NULL, **works = calloc((size_t)sums, sizeof(tsh_work *));
    float got[3] = {0};
    tsh_tensor_fill(x, r->rank);
    if (r->rank == 0) tshi_check_ok(r, tsh_recv_async(group, x, 1, &message));
    if (r->rank == 1) {
        nap(50000);
        tshi_check_ok(r, tsh_send(group, x, 0));
    }
    for (int i = 0; i < sums; i++) tshi_check_ok(r, tsh_all_reduce_async(group, y, TSH_REDUCE_SUM, &works[i]));
    if (message) tshi_check_ok(r, tsh_work_wait(message));
    for (int i = 0; i < sums; i++) {
        if (works[i]) tshi_check_ok(r, tsh_work_wait(works[i]));
        tsh_work_release(works[i]);
    }
    tshi_check_ok(r, tsh_tensor_read(x, got, 3));
    tshi_check(r, got[2] == 1, "%g, not 1", (double)got[2]);
    tsh_work_release(message);
    tsh_tensor_release(x);
    tsh_tensor_release(y);
    free(works);
}

static void beside_a_new_communicator(tshi_rank *r, void *arg) {
    (void)arg;
    r->world->timeout = 20;
    tsh_world_fail(r->world, "again");
    tshi_check_ok(r, tsh_world_recover(r->world));
    send_before_sums(r, 1);
}

Test(nccl_messages, progress_while_a_started_call_makes_its_communicator) {
    run_ranks(2, false, beside_a_new_communicator, NULL);
}

static void beside_a_full_queue(tshi_rank *r, void *arg) {
    (void)arg;
    r->world->timeout = 20;
    send_before_sums(r, TSHI_NCCL_AHEAD + 3);
}

Test(nccl_messages, progress_while_a_started_call_waits_for_room) {
    run_ranks(2, false, beside_a_full_queue, NULL);
}

/* One fails, with messages of both at every stage; after recovering they have a way again. */
static void told(tshi_rank *r, void *arg) {
    (void)arg;
    tsh_group *group = tsh_world_group(r->world);
    tsh_tensor *x = tshi_test_vector(r, TSH_FLOAT32, 30), *y = tshi_test_vector(r, TSH_FLOAT32, 30);
    for (int round = 0; round < 3 && !r->failed; round++) {
        tsh_work *works[2] = {NULL, NULL};
        put(x, r->rank + round);
        tshi_check_ok(r, tsh_send_async(group, x, 1 - r->rank, &works[0]));
        tsh_status first = tsh_recv(group, y, 1 - r->rank, NULL);
        /* Rank 1 has the message of rank 0, and may fail before rank 0 has seen the end of its own. */
        bool knows = r->rank == 0 && first == TSH_ERR_PEER;
        tshi_check_status(r, first, knows ? TSH_ERR_PEER : TSH_OK, knows ? "enough of it" : "");
        if (r->rank == 1) {
            tshi_check_ok(r, tsh_recv_async(group, y, 0, &works[1]));
            tsh_world_fail(r->world, "enough of it");
        } else if (!knows) {
            tshi_check_status(r, tsh_recv(group, y, 1, NULL), TSH_ERR_PEER, "enough of it");
        }
        tsh_work_release(works[0]);
        tsh_work_release(works[1]);
        tshi_check_ok(r, tsh_world_recover(r->world));
        put(x, 5 * r->rank);
        tshi_check_ok(r, r->rank ? tsh_send(group, x, 0) : tsh_recv(group, x, 1, NULL));
        holds(r, x, 5);
    }
    tsh_tensor_release(x);
    tsh_tensor_release(y);
}

Test(nccl_messages, a_failure_reaches_the_peers) {
    run_ranks(2, false, told, NULL);
}

static void leaves(tshi_rank *r, void *arg) {
    tsh_group *group = tsh_world_group(r->world);
    tsh_tensor *x = tshi_test_vector(r, TSH_FLOAT32, 3);
    if (r->rank == 1) tshi_check_ok(r, tsh_send(group, x, 0));
    if (r->rank == 0) tshi_check_ok(r, tsh_recv(group, x, 1, NULL));
    if (r->rank == 0) {
        tsh_status status = tsh_recv(group, x, arg ? TSH_ANY_RANK : 1, NULL);
        tshi_check_status(r, status, TSH_ERR_PEER, "left the world");
    }
    tsh_tensor_release(x);
}

Test(nccl_messages, a_rank_that_has_left_is_not_waited_for) {
    run_ranks(2, false, leaves, NULL);
    run_ranks(2, false, leaves, "any");
}

static void captured(tshi_rank *r, void *arg) {
    (void)arg;
    tsh_device *device = tsh_world_device(r->world);
    tsh_tensor *x = tshi_test_vector(r, TSH_FLOAT32, 3);
    tsh_graph *graph = NULL;
    tshi_check_ok(r, tsh_graph_capture_begin(device));
    tshi_check_status(r, tsh_send(tsh_world_group(r->world), x, 1 - r->rank), TSH_ERR_STATE, "captured");
    tshi_check_status(r, tsh_graph_capture_end(device, &graph), TSH_ERR_STATE, "send");
    tsh_graph_destroy(graph);
    tsh_tensor_release(x);
}

Test(nccl_messages, cannot_be_captured) {
    run_ranks(2, false, captured, NULL);
}

Test(nccl_messages, every_call_may_fail, .timeout = 240) {
    static const char *const names[] = {"ncclGetUniqueId",
                                        "ncclCommInitRankConfig",
                                        "ncclCommGetAsyncError",
                                        "ncclSend",
                                        "ncclRecv",
                                        "cudaStreamCreate",
                                        "cudaEventCreate",
                                        "cudaEventRecord",
                                        "cudaEventQuery",
                                        "cudaStreamWaitEvent",
                                        "ncclCommFinalize",
                                        "ncclCommDestroy",
                                        "cudaEventDestroy",
                                        "cudaDeviceGetStreamPriorityRange",
                                        "cudaStreamDestroy"};
    every_call_may_fail(names, sizeof names / sizeof *names, 25, both_ways);
}

/* --- pipelines ---------------------------------------------------------------------------------------------------- */

static void pipelines(tshi_rank *r, void *arg) {
    (void)arg;
    for (int n = 1; n <= 4 && !r->failed; n++) {
        tshi_pipeline_config config = {.stages = 2,
                                       .data = 1,
                                       .model = r->size / 2,
                                       .micro_batches = n,
                                       .rows = 7,
                                       .features = 4,
                                       .hidden = 5,
                                       .forwards_first = n == 3,
                                       .sums = n % 2};
        tshi_pipeline_check_step(r, &config);
    }
}

/* The stages of a pipeline wait for what they receive alone: the messages of each direction have a queue of their
 * own. */
Test(nccl_messages, between_the_stages_of_a_pipeline) {
    run_ranks(2, true, pipelines, NULL);
    run_ranks(4, true, pipelines, NULL);
}

/* --- queues of the GPU -------------------------------------------------------------------------------------------- */

/* The lines that the log gets when each rank sends to every other rank, twice. */
static void to_all(tshi_rank *r, void *arg) {
    const char *const wanted = arg;
    tsh_group *group = tsh_world_group(r->world);
    tsh_tensor *x = tshi_test_vector(r, TSH_INT64, 50), *y = tshi_test_vector(r, TSH_INT64, 50);
    tshi_lines lines = {""};
    r->world->log = (tsh_log_sink){tshi_keep_line, &lines};
    put(x, r->rank);
    for (int i = 0; i < 2 * (r->size - 1); i++) {
        int step = i % (r->size - 1) + 1;
        tsh_work *work = NULL;
        tshi_check_ok(r, tsh_send_async(group, x, (r->rank + step) % r->size, &work));
        tshi_check_ok(r, tsh_recv(group, y, (r->rank + r->size - step) % r->size, NULL));
        holds(r, y, (r->rank + r->size - step) % r->size);
        tshi_check_ok(r, tsh_work_wait(work));
        tsh_work_release(work);
    }
    const char *line = strstr(lines.text, " queues ");
    tshi_check(r, wanted ? line && strstr(lines.text, wanted) && !strstr(line + 1, " queues ") : !line, "%s",
               lines.text);
    r->world->log = (tsh_log_sink){NULL, NULL};
    tsh_tensor_release(x);
    tsh_tensor_release(y);
}

/* By default there are 32 queues. */
Test(nccl_messages, of_few_ranks_fit_the_queues) {
    run_ranks(4, false, to_all, NULL);
}
