/* Messages between GPUs over NCCL's stand-in when something fails: deadlines, failing ranks, recoveries. */
#include "cuda/nccl_values.h"

TestSuite(nccl_message_failures, .timeout = 120);

static void late(tshi_rank *r, void *arg) {
    _Atomic bool *over = arg;
    tsh_group *group = tsh_world_group(r->world);
    tsh_tensor *x = tshi_test_vector(r, TSH_FLOAT32, 3);
    float got[3];
    r->world->timeout = 0.5;
    if (r->rank == 0) {
        tshi_check_ok(r, tsh_recv(group, x, 1, NULL));
        tshi_check_status(r, tsh_tensor_read(x, got, 3), TSH_ERR_TIMEOUT, "recv #1: not done within 0.5 s");
        tshi_check(r, tsh_recv(group, x, 1, NULL) != TSH_OK, "a call after that");
        *over = true;
    } else {
        while (!*over) nap(1000);
        tshi_check_status(r, tsh_send(group, x, 0), TSH_ERR_PEER, "rank 0");
    }
    tsh_tensor_release(x);
}

/* Both hosts have queued it, but one's GPU never comes to it: it waits for a collective that is not complete. */
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

Test(nccl_message_failures, the_deadline) {
    tshi_rank_fn *const cases[] = {late, stuck};
    for (int i = 0; i < 2; i++) {
        const tshi_test_options options = {.ranks = 2, .threads = true};
        _Atomic bool over = false;
        begin(2, false);
        cr_assert_str_empty(tshi_test_run_with(&options, cases[i], &over, NULL, NULL));
        expect_nothing_left("a world");
    }
}

/* Rank 1 sends before its part of what rank 0 has started. */
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

Test(nccl_message_failures, progress_while_a_started_call_makes_its_communicator) {
    run_ranks(2, false, beside_a_new_communicator, NULL);
}

static void beside_a_full_queue(tshi_rank *r, void *arg) {
    (void)arg;
    r->world->timeout = 20;
    send_before_sums(r, TSHI_NCCL_AHEAD + 3);
}

Test(nccl_message_failures, progress_while_a_started_call_waits_for_room) {
    run_ranks(2, false, beside_a_full_queue, NULL);
}

/* One fails while messages are on the GPUs and held back; after a recovery messages arrive again. */
static void told(tshi_rank *r, void *arg) {
    (void)arg;
    tsh_group *group = tsh_world_group(r->world);
    tsh_tensor *x = tshi_test_vector(r, TSH_FLOAT32, 30), *y = tshi_test_vector(r, TSH_FLOAT32, 30);
    float got[30];
    for (int round = 0; round < 3 && !r->failed; round++) {
        tsh_work *works[2] = {NULL, NULL};
        put(x, r->rank + round);
        tshi_check_ok(r, tsh_send_async(group, x, 1 - r->rank, &works[0]));
        tshi_check_ok(r, tsh_recv(group, y, 1 - r->rank, NULL));
        tshi_check_ok(r, tshi_group_agree(group, "sent", tsh_work_wait(works[0])));
        if (r->rank == 1) {
            tshi_check_ok(r, tsh_recv_async(group, y, 0, &works[1]));
            tsh_world_fail(r->world, "enough of it");
        } else {
            tsh_status status = tsh_recv(group, y, 1, NULL);
            if (status == TSH_OK) status = tsh_tensor_read(y, got, 30);
            tshi_check_status(r, status, TSH_ERR_PEER, "enough of it");
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

Test(nccl_message_failures, a_failure_reaches_the_peers) {
    run_ranks(2, false, told, NULL);
}

/* Works of before are released after the recovery: one on the GPU, and one that was held back. */
static void forgotten(tshi_rank *r, void *arg) {
    (void)arg;
    tsh_group *group = tsh_world_group(r->world);
    tsh_tensor *x = tshi_test_vector(r, TSH_FLOAT32, 30), *y = tshi_test_vector(r, TSH_FLOAT32, 30);
    tsh_work *works[3] = {NULL, NULL, NULL};
    bool done;
    if (r->rank == 0) {
        tshi_check_ok(r, tsh_recv_async(group, x, 1, &works[0]));
        tshi_check_ok(r, tsh_work_test(works[0], &done));
        tshi_check_ok(r, tsh_all_reduce_async(group, y, TSH_REDUCE_SUM, &works[1]));
        tshi_check_ok(r, tsh_send_async(group, y, 1, &works[2]));
        tsh_world_fail(r->world, "enough of it");
    }
    tshi_check_ok(r, tsh_world_recover(r->world));
    for (int i = 0; r->rank == 0 && i < 3; i++) {
        tshi_check_ok(r, tsh_work_test(works[i], &done) == TSH_OK ? TSH_ERR_STATE : TSH_OK);
        tshi_check(r, done, "work %d goes on", i);
    }
    sums(r, group);
    for (int i = 0; i < 3; i++) tsh_work_release(works[i]);
    tsh_tensor_release(x);
    tsh_tensor_release(y);
}

Test(nccl_message_failures, of_before_a_recovery_are_forgotten) {
    run_ranks(2, false, forgotten, NULL);
}

/* Two members cannot make the communicator of three. */
static void without_a_communicator(tshi_rank *r, void *arg) {
    (void)arg;
    tsh_group *all = tsh_world_group(r->world), *group = NULL;
    tsh_tensor *x = tshi_test_vector(r, TSH_FLOAT32, 30);
    tshi_check_ok(r, tsh_group_split(all, 0, r->rank, &group));
    tsh_world_fail(r->world, "enough of it");
    tshi_check_ok(r, tsh_world_recover(r->world));
    put(x, r->rank);
    if (r->rank == 0) tshi_check_status(r, tsh_send(group, x, 1), TSH_ERR_STATE, "tsh_barrier is one");
    tshi_check_ok(r, tsh_barrier(group));
    if (r->rank < 2) tshi_check_ok(r, r->rank ? tsh_recv(group, x, 0, NULL) : tsh_send(group, x, 1));
    if (r->rank < 2) holds(r, x, 0);
    tsh_tensor_release(x);
    tsh_group_destroy(group);
}

Test(nccl_message_failures, after_a_recovery_need_a_collective_in_smaller_groups) {
    run_ranks(3, false, without_a_communicator, NULL);
}

static void leaves(tshi_rank *r, void *arg) {
    (void)arg;
    tsh_group *group = tsh_world_group(r->world);
    tsh_tensor *x = tshi_test_vector(r, TSH_FLOAT32, 3);
    float got[3];
    if (r->rank == 1) tshi_check_ok(r, tsh_send(group, x, 0));
    if (r->rank == 0) tshi_check_ok(r, tsh_recv(group, x, 1, NULL));
    if (r->rank == 0) {
        tsh_status status = tsh_recv(group, x, 1, NULL);
        if (status == TSH_OK) status = tsh_tensor_read(x, got, 3);
        tshi_check_status(r, status, TSH_ERR_PEER, "left the world");
    }
    tsh_tensor_release(x);
}

Test(nccl_message_failures, a_rank_that_has_left_is_not_waited_for) {
    run_ranks(2, false, leaves, NULL);
}

/* A graph holds the messages that were started in its capture, those in flight at its end too; one that was started
 * before is sent once. */
static void captured(tshi_rank *r, void *arg) {
    (void)arg;
    tsh_device *device = tsh_world_device(r->world);
    tsh_group *group = tsh_world_group(r->world);
    tsh_tensor *x = tshi_test_vector(r, TSH_INT64, 3), *y = tshi_test_vector(r, TSH_INT64, 3);
    tsh_work *works[3] = {NULL, NULL, NULL};
    tsh_graph *graph = NULL;
    int peer = 1 - r->rank;
    int64_t got[3];
    tsh_tensor_fill(x, 7);
    if (r->rank == 0) tshi_check_ok(r, tsh_send_async(group, x, 1, &works[0]));
    if (r->rank == 1) tshi_check_ok(r, tsh_recv_async(group, y, 0, &works[0]));
    tshi_check_ok(r, tsh_graph_capture_begin(device));
    tshi_check_ok(r, r->rank ? tsh_recv(group, x, 0, NULL) : tsh_send(group, x, 1));
    tshi_check_ok(r, tsh_send_async(group, x, peer, &works[1]));
    tshi_check_ok(r, tsh_recv_async(group, y, peer, &works[2]));
    tshi_check_ok(r, tsh_graph_capture_end(device, &graph));
    for (int i = 0; i < 3; i++) {
        tshi_check_ok(r, tsh_work_wait(works[i]));
        tsh_work_release(works[i]);
    }
    for (int i = 0; i < 3 && graph; i++) {
        tsh_tensor_fill(x, r->rank ? 0 : i);
        tshi_check_ok(r, tsh_graph_launch(graph));
        tshi_check_ok(r, tsh_tensor_read(y, got, 3));
        tshi_check(r, got[2] == i, "launch %d brings %lld", i, (long long)got[2]);
    }
    tsh_graph_destroy(graph);
    tsh_tensor_release(x);
    tsh_tensor_release(y);
}

Test(nccl_message_failures, are_captured) {
    run_ranks(2, false, captured, NULL);
}

Test(nccl_message_failures, every_call_may_fail, .timeout = 240) {
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
