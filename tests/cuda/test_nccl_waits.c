/* What a stuck call on a GPU must not hold up, over NCCL's stand-in: the end of other calls, memory, kernels; and whose
 * GPU it is. */
#include "cuda/nccl_ranks.h"
#include "cuda/nccl_steps.h"

TestSuite(nccl_waits, .timeout = 60);

/* Calls of several communicators that a peer does not make: none of them ends before all are told to. */
static void told_in_groups(tshi_rank *r, void *arg) {
    enum { GROUPS = 3 };
    (void)arg;
    tsh_group *groups[GROUPS] = {tsh_world_group(r->world)};
    tsh_tensor *x = tshi_test_vector(r, TSH_FLOAT32, 3);
    float got[3];
    for (int i = 1; i < GROUPS; i++) tshi_check_ok(r, tsh_group_split(groups[0], 0, r->rank, &groups[i]));
    if (r->rank == 0) {
        tsh_world_fail(r->world, "enough of it");
    } else {
        tsh_status status = TSH_OK;
        for (int i = 0; i < 2 * GROUPS && status == TSH_OK; i++)
            status = tsh_all_reduce(groups[i % GROUPS], x, TSH_REDUCE_SUM);
        if (status == TSH_OK) status = tsh_tensor_read(x, got, 3);
        tshi_check_status(r, status, TSH_ERR_PEER, "enough of it");
    }
    tshi_check_ok(r, tsh_world_recover(r->world));
    for (int i = 0; i < GROUPS; i++) sums(r, groups[i]);
    for (int i = 1; i < GROUPS; i++) tsh_group_destroy(groups[i]);
    tsh_tensor_release(x);
}

Test(nccl_waits, a_failure_ends_the_calls_of_all_communicators) {
    for (int ranks = 2; ranks <= 3; ranks++) run_ranks(ranks, false, told_in_groups, NULL);
}

/* A group ends while a call of it, which a peer does not make, keeps the GPU: the end waits for it until the peer
 * fails. */
static void ends_with_a_stuck_call(tshi_rank *r, void *arg) {
    (void)arg;
    tsh_group *group = NULL;
    tsh_tensor *x = tshi_test_vector(r, TSH_FLOAT32, 3);
    sums(r, tsh_world_group(r->world));
    tshi_check_ok(r, tsh_group_split(tsh_world_group(r->world), 0, r->rank, &group));
    if (r->rank) {
        tshi_check_ok(r, tsh_all_reduce(group, x, TSH_REDUCE_SUM));
    } else {
        nap(100000);
        tsh_world_fail(r->world, "enough of it");
    }
    tsh_group_destroy(group);
    tshi_check_ok(r, tsh_world_recover(r->world));
    sums(r, tsh_world_group(r->world));
    tsh_tensor_release(x);
}

Test(nccl_waits, a_failure_ends_the_calls_of_a_group_that_ends) {
    for (int ranks = 2; ranks <= 3; ranks++) run_ranks(ranks, false, ends_with_a_stuck_call, NULL);
}

/* The cache frees memory while a call beside the compute stream is stuck: the wait before that is watched. */
static void trims(tshi_rank *r, void *arg) {
    enum { MIB = 1 << 20 };
    _Atomic bool *over = arg;
    tsh_group *group = tsh_world_group(r->world);
    tsh_device *device = tsh_world_device(r->world);
    tsh_tensor *x = tshi_test_vector(r, TSH_FLOAT32, 3);
    tsh_work *work = NULL;
    sums(r, group);
    if (r->rank == 0) {
        device->ops->memory.release(device, device->ops->memory.alloc(device, 120 * MIB));
        tshi_check_ok(r, tsh_all_reduce_async(group, x, TSH_REDUCE_SUM, &work));
        r->world->timeout = 0.5;
        void *large = device->ops->memory.alloc(device, 150 * MIB);
        tshi_check(r, large != NULL, "%s", tsh_error_message());
        device->ops->memory.release(device, large);
        tshi_check_status(r, tsh_work_wait(work), TSH_ERR_TIMEOUT, "all_reduce #4: not done within 0.5 s");
        tsh_work_release(work);
        *over = true;
    }
    while (!*over) nap(1000);
    tsh_tensor_release(x);
}

Test(nccl_waits, memory_is_freed_after_a_watched_wait) {
    _Atomic bool over = false;
    begin(2, false);
    standin_memory((size_t)260 << 20);
    const tshi_test_options options = {.ranks = 2, .threads = true};
    cr_assert_str_empty(tshi_test_run_with(&options, trims, &over, NULL, NULL));
    expect_nothing_left("a world");
}

/* A kernel that has not run before is launched behind a call whose peer comes after it: where all kernels are loaded
 * when CUDA starts the launch does not wait. */
static void new_kernel(tshi_rank *r, void *arg) {
    _Atomic bool *launched = arg;
    tsh_device *device = tsh_world_device(r->world);
    tsh_tensor *x = tshi_test_vector(r, TSH_FLOAT32, 3), *y = tshi_test_vector(r, TSH_FLOAT32, 3);
    float got[3] = {0};
    tsh_tensor_fill(x, 1);
    while (r->rank == 1 && !*launched) nap(1000);
    tshi_check_ok(r, tsh_all_reduce(tsh_world_group(r->world), x, TSH_REDUCE_SUM));
    device->ops->elementwise[TSH_FLOAT32].axpby(device, 3, 1, tshi_data(x), 1, tshi_data(x), tshi_data(y));
    *launched = true;
    tshi_check_ok(r, tsh_tensor_read(y, got, 3));
    tshi_check(r, got[0] == (float)(2 * r->size), "%g", (double)got[0]);
    tsh_tensor_release(x);
    tsh_tensor_release(y);
}

Test(nccl_waits, a_new_kernel_does_not_wait_for_a_call) {
    _Atomic bool launched = false;
    setenv("CUDA_MODULE_LOADING", "EAGER", 1);
    run_ranks(2, false, new_kernel, &launched);
}

/* Rank 1 never makes the call that keeps rank 0's GPU, and fails when rank 0 is about to load a kernel. */
static void loads(tshi_rank *r, void (*use)(tsh_device *device, tsh_tensor *x), _Atomic bool *called) {
    tsh_tensor *x = tshi_test_vector(r, TSH_FLOAT32, 3);
    if (r->rank == 1) {
        while (!*called) nap(1000);
        nap(20000);
        tsh_world_fail(r->world, "enough of it");
    } else {
        tshi_check_ok(r, tsh_all_reduce(tsh_world_group(r->world), x, TSH_REDUCE_SUM));
        *called = true;
        use(tsh_world_device(r->world), x);
        tshi_check_status(r, tsh_device_synchronize(tsh_world_device(r->world)), TSH_ERR_PEER, "enough of it");
    }
    tsh_tensor_release(x);
}

static void add(tsh_device *device, tsh_tensor *x) {
    device->ops->elementwise[TSH_FLOAT32].axpby(device, 3, 1, tshi_data(x), 1, tshi_data(x), tshi_data(x));
}

static void multiply(tsh_device *device, tsh_tensor *x) {
    device->ops->product.gemm(device, TSH_FLOAT32, false, false, 1, 1, 1, 1, tshi_data(x), 1, tshi_data(x), 1, 0,
                              tshi_data(x), 1);
}

static void loads_kernel(tshi_rank *r, void *arg) {
    loads(r, add, arg);
}

static void loads_product(tshi_rank *r, void *arg) {
    loads(r, multiply, arg);
}

Test(nccl_waits, kernels_are_loaded_when_the_gpu_is_at_rest) {
    _Atomic bool called[2] = {false, false};
    run_ranks(2, false, loads_kernel, &called[0]);
    run_ranks(2, false, loads_product, &called[1]);
}

/* What has run before does not wait again. */
static void known_kernel(tshi_rank *r, void *arg) {
    tsh_tensor *x = tshi_test_vector(r, TSH_FLOAT32, 3);
    add(tsh_world_device(r->world), x);
    multiply(tsh_world_device(r->world), x);
    uint64_t waits = tshi_cuda(tsh_world_device(r->world))->waits;
    add(tsh_world_device(r->world), x);
    multiply(tsh_world_device(r->world), x);
    tshi_check(r, tshi_cuda(tsh_world_device(r->world))->waits == waits, "a second launch has waited");
    tsh_tensor_release(x);
    (void)arg;
}

Test(nccl_waits, a_known_kernel_does_not_wait) {
    run_ranks(2, false, known_kernel, NULL);
}

/* cuDNN loads kernels when it is opened and for each plan, whatever CUDA's setting, and has no end to that while a call
 * keeps the GPU. An evaluation's shape has a plan when it comes for the second time. */
typedef struct loading {
    bool opened;
    _Atomic bool called;
} loading;

static void attend(tshi_rank *r) {
    const tsh_tensor_config config = {.dtype = TSH_BFLOAT16, .ndim = 4, .shape = {1, 4, 2, 8}};
    tsh_tensor *x = NULL;
    tsh_tape *tape = NULL;
    tsh_status status = tsh_tensor_create(tsh_world_mesh(r->world), &config, &x);
    if (status == TSH_OK) status = tsh_tensor_fill(x, 1);
    if (status == TSH_OK) status = tsh_tape_create(r->world, &tape);
    if (status == TSH_OK) tsh_attention(tape, x, x, x, NULL);
    tshi_check_ok(r, status);
    tsh_tape_destroy(tape);
    tsh_tensor_release(x);
}

static void loads_attention(tshi_rank *r, void *arg) {
    loading *l = arg;
    tsh_tensor *sum = tshi_test_vector(r, TSH_FLOAT32, 3);
    if (r->rank == 1) {
        while (!l->called) nap(1000);
        nap(20000);
        tsh_world_fail(r->world, "enough of it");
    } else {
        if (l->opened) attend(r);
        tshi_check_ok(r, tsh_all_reduce(tsh_world_group(r->world), sum, TSH_REDUCE_SUM));
        l->called = true;
        attend(r);
        tshi_check_status(r, tsh_device_synchronize(tsh_world_device(r->world)), TSH_ERR_PEER, "enough of it");
    }
    tsh_tensor_release(sum);
}

Test(nccl_waits, cudnn_is_loaded_when_the_gpu_is_at_rest) {
    loading l = {.opened = false};
    run_ranks(2, false, loads_attention, &l);
    cr_assert_gt(standin_calls("cudnnCreate"), 0);
}

Test(nccl_waits, a_plan_of_cudnn_is_made_when_the_gpu_is_at_rest) {
    loading l = {.opened = true};
    run_ranks(2, false, loads_attention, &l);
    cr_assert_gt(standin_calls("cudnnBackendFinalize"), 0);
}

/* NCCL may hang where a communicator is split while it has calls under way. */
static void behind_a_call(tshi_rank *r, void *arg) {
    (void)arg;
    tsh_group *group = tsh_world_group(r->world), *pair = NULL;
    tsh_tensor *x = tshi_test_vector(r, TSH_FLOAT32, 3);
    tsh_tensor_fill(x, 1);
    tshi_check_ok(r, tsh_all_reduce(group, x, TSH_REDUCE_SUM));
    tshi_check_ok(r, tsh_group_split(group, 0, r->rank, &pair));
    sums(r, pair);
    tsh_tensor_release(x);
    tsh_group_destroy(pair);
}

Test(nccl_waits, a_group_is_made_behind_the_calls_of_its_parent) {
    run_ranks(3, false, behind_a_call, NULL);
}

/* A kernel has broken the GPU: no event is ever over, and nothing may wait for one. */
static void broken(tshi_rank *r, void *arg) {
    (void)arg;
    float got[3] = {0};
    tsh_group *group = tsh_world_group(r->world), *pair = NULL;
    tsh_tensor *x = tshi_test_vector(r, TSH_FLOAT32, 3);
    tsh_tensor_fill(x, 1);
    tshi_check_ok(r, tsh_group_split(group, 0, r->rank, &pair));
    sums(r, pair);
    tshi_check_ok(r, tsh_all_reduce(pair, x, TSH_REDUCE_SUM));
    tshi_check_ok(r, tshi_group_agree(group, "queued", TSH_OK));
    standin_break(cudaErrorIllegalAddress);
    tsh_group_destroy(pair);
    tshi_check(r, tsh_tensor_read(x, got, 3) != TSH_OK, "a tensor is read from a broken GPU");
    tsh_tensor_release(x);
}

Test(nccl_waits, a_broken_gpu_ends_every_wait) {
    begin(2, false);
    const char *words = tshi_test_run_threads(2, broken, NULL);
    cr_assert_str_empty(words, "%s", words);
}

/* The program makes another GPU current between its calls. */
static void turn_away(const tshi_rank *r) {
    cudaSetDevice((r->rank + 1) % r->size);
}

static void elsewhere(tshi_rank *r, void *arg) {
    (void)arg;
    tsh_group *group = tsh_world_group(r->world), *pair = NULL;
    turn_away(r);
    tshi_check_ok(r, tsh_group_split(group, 0, r->rank, &pair));
    turn_away(r);
    tsh_tensor *x = tshi_test_vector(r, TSH_FLOAT32, 3), *y = tshi_test_vector(r, TSH_FLOAT32, 3);
    tsh_work *work = NULL;
    for (int i = 0; i < 2; i++) {
        turn_away(r);
        tshi_check_ok(r, tsh_all_reduce_async(pair, x, TSH_REDUCE_SUM, &work));
        turn_away(r);
        tshi_check_ok(r, tsh_work_wait(work));
        tsh_work_release(work);
        turn_away(r);
        tshi_check_ok(r, tsh_send_async(pair, x, (r->rank + 1) % r->size, &work));
        tshi_check_ok(r, tsh_recv(pair, y, (r->rank + r->size - 1) % r->size, NULL));
        tshi_check_ok(r, tsh_work_wait(work));
        tsh_work_release(work);
        turn_away(r);
        sums(r, group);
    }
    tsh_tensor_release(x);
    tsh_tensor_release(y);
    turn_away(r);
    tsh_group_destroy(pair);
}

/* Each call of a data-parallel step, and a recovery. */
static void steps_elsewhere(tshi_rank *r, void *arg) {
    (void)arg;
    steps s = {0};
    turn_away(r);
    for (int i = 0; open_steps(r, &s) && i < 2; i++) {
        turn_away(r);
        tsh_optimizer_zero_grad(s.optimizer);
        turn_away(r);
        tsh_tensor *y = tsh_linear_forward(s.tape, s.layer, s.x);
        turn_away(r);
        tsh_tensor *loss = tsh_sum(s.tape, y, TSH_ALL_DIMS);
        turn_away(r);
        tshi_check_ok(r, tsh_backward(s.tape, loss));
        turn_away(r);
        tshi_check_ok(r, tsh_optimizer_step(s.optimizer));
        turn_away(r);
        tshi_check_ok(r, tsh_tape_reset(s.tape));
        turn_away(r);
        expect_weight(r, &s, 1);
        turn_away(r);
        close_steps(&s);
        s = (steps){0};
        /* The other rank, which may hear of the failure in this call, has done all this by then. */
        tshi_group_agree(tsh_world_group(r->world), "done", TSH_OK);
        if (r->rank == i) tsh_world_fail(r->world, "enough of it");
        turn_away(r);
        tshi_check_ok(r, tsh_world_recover(r->world));
        turn_away(r);
    }
    close_steps(&s);
}

Test(nccl_waits, another_gpu_is_current_between_calls) {
    run_ranks(2, false, elsewhere, NULL);
    run_ranks(2, false, steps_elsewhere, NULL);
}

/* --- streams of groups -------------------------------------------------------------------------------------------- */

/* A call of rank 0's pair with rank 1 waits for rank 1, which comes when the call of the pair with rank 2 is over. */
static void two_pairs(tshi_rank *r, void *arg) {
    _Atomic bool *over = arg;
    tsh_group *world = tsh_world_group(r->world), *near = NULL, *far = NULL;
    tsh_tensor *x = tshi_test_vector(r, TSH_FLOAT32, 3);
    tsh_work *work = NULL;
    float got[3] = {0};
    tsh_tensor_fill(x, 1);
    tshi_check_ok(r, tsh_group_split(world, r->rank < 2 ? 0 : -1, r->rank, &near));
    tshi_check_ok(r, tsh_group_split(world, r->rank != 1 ? 0 : -1, r->rank, &far));
    while (r->rank == 1 && !*over) nap(1000);
    if (near) tshi_check_ok(r, tsh_all_reduce_async(near, x, TSH_REDUCE_SUM, &work));
    if (far) sums(r, far);
    if (r->rank == 0) *over = true;
    if (near) tshi_check_ok(r, tsh_work_wait(work));
    tshi_check_ok(r, tsh_tensor_read(x, got, 3));
    tshi_check(r, got[0] == (near ? 2.0f : 1.0f), "%g", (double)got[0]);
    if (near) sums(r, near);
    sums(r, world);
    tsh_work_release(work);
    tsh_tensor_release(x);
    tsh_group_destroy(near);
    tsh_group_destroy(far);
}

Test(nccl_waits, groups_have_streams_where_nccl_orders_their_launches) {
    _Atomic bool over = false;
    const tshi_test_options options = {.ranks = 3, .threads = true, .world_timeout = "5"};
    setenv("NCCL_LAUNCH_ORDER_IMPLICIT", "1", 1);
    begin(3, false);
    cr_assert_str_empty(tshi_test_run_with(&options, two_pairs, &over, NULL, NULL));
    expect_nothing_left("a world");
}

static void one_stream(tshi_rank *r, void *arg) {
    (void)arg;
    tsh_group *pair = NULL;
    tshi_check_ok(r, tsh_group_split(tsh_world_group(r->world), 0, r->rank, &pair));
    tshi_check(r, !tshi_cuda(tsh_world_device(r->world))->communication[1], "there is a second stream");
    sums(r, pair);
    tsh_group_destroy(pair);
}

Test(nccl_waits, groups_share_a_stream_otherwise) {
    run_ranks(2, false, one_stream, NULL);
}

Test(nccl_waits, groups_share_a_stream_where_nccl_is_too_old_for_that_order) {
    setenv("NCCL_LAUNCH_ORDER_IMPLICIT", "1", 1);
    standin_nccl_version(22507);
    run_ranks(2, false, one_stream, NULL);
}

/* --- groups that go while the GPU has calls ----------------------------------------------------------------------- */

typedef struct going {
    bool fails, message;
    _Atomic bool gone; /* rank 0 has destroyed the group */
} going;

/* Rank 0's call of the world's group waits on the GPU for rank 1, which makes it when rank 0 has destroyed another
 * group, or rank 0 fails then. */
static void goes_beside_a_call(tshi_rank *r, void *arg) {
    going *g = arg;
    tsh_group *all = tsh_world_group(r->world), *goes = NULL;
    tsh_tensor *x = tshi_test_vector(r, TSH_FLOAT32, 3);
    float got[3] = {0};
    r->world->timeout = 30;
    tsh_tensor_fill(x, r->rank + 1);
    tshi_check_ok(r, tsh_group_split(all, 0, r->rank, &goes));
    sums(r, goes);
    while (r->rank == 1 && !g->gone) nap(1000);
    tsh_status status = TSH_OK;
    if (!g->message) status = tsh_all_reduce(all, x, TSH_REDUCE_SUM);
    if (g->message) status = r->rank ? tsh_recv(all, x, 0, NULL) : tsh_send(all, x, 1);
    if (r->rank == 0) {
        tshi_check_ok(r, status);
        tsh_group_destroy(goes);
        goes = NULL;
        if (g->fails) tsh_world_fail(r->world, "enough of it");
        g->gone = true;
    }
    if (status == TSH_OK) status = tsh_tensor_read(x, got, 3);
    tsh_status wanted = !g->fails ? TSH_OK : r->rank ? TSH_ERR_PEER : TSH_ERR_STATE;
    tshi_check_status(r, status, wanted, g->fails ? "enough of it" : "");
    tshi_check(r, g->fails || got[2] == (g->message ? 1 : 3), "%g", (double)got[2]);
    if (g->fails) tshi_check_ok(r, tsh_world_recover(r->world));
    sums(r, all);
    tsh_tensor_release(x);
    tsh_group_destroy(goes);
}

Test(nccl_waits, a_group_may_go_while_a_call_of_another_waits_for_later_calls) {
    for (int k = 0; k < 4; k++) run_ranks(2, false, goes_beside_a_call, &(going){.fails = k % 2, .message = k / 2});
}
