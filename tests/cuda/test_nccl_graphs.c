/* Captured graphs that hold collectives, over NCCL's stand-in: what launches move, and their end when a peer fails. */
#include "cuda/nccl_ranks.h"
#include "tshard/graph.h"

TestSuite(nccl_graphs, .timeout = 60);

/* x = 2 * (the sum of x over the ranks), as a graph. */
typedef struct doubling {
    tsh_tensor *x;
    tsh_graph *graph;
} doubling;

static void double_sum(tshi_rank *r, tsh_group *group, tsh_tensor *x) {
    tsh_device *device = tsh_world_device(r->world);
    tshi_check_ok(r, tsh_all_reduce(group, x, TSH_REDUCE_SUM));
    device->ops->elementwise[TSH_FLOAT32].axpby(device, 3, 1, tshi_data(x), 1, tshi_data(x), tshi_data(x));
}

static bool open_doubling(tshi_rank *r, tsh_group *group, doubling *d) {
    tsh_device *device = tsh_world_device(r->world);
    *d = (doubling){.x = tshi_test_vector(r, TSH_FLOAT32, 3)};
    tsh_tensor_fill(d->x, 1);
    if (!sums(r, group)) return false;
    if (!tshi_check_ok(r, tsh_graph_capture_begin(device))) return false;
    double_sum(r, group, d->x);
    return tshi_check_ok(r, tsh_graph_capture_end(device, &d->graph));
}

static void close_doubling(doubling *d) {
    tsh_graph_destroy(d->graph);
    tsh_tensor_release(d->x);
}

static tsh_status read_one(const tsh_tensor *x, float *first) {
    float got[3] = {0};
    tsh_status status = tsh_tensor_read(x, got, 3);
    *first = got[0];
    return status;
}

static void launches(tshi_rank *r, void *arg) {
    (void)arg;
    doubling d;
    float got = 0, wanted = 1;
    if (open_doubling(r, tsh_world_group(r->world), &d)) {
        for (int i = 0; i < 3; i++) {
            tshi_check_ok(r, tsh_graph_launch(d.graph));
            wanted *= (float)(2 * r->size);
            double_sum(r, tsh_world_group(r->world), d.x);
            wanted *= (float)(2 * r->size);
        }
        tshi_check_ok(r, read_one(d.x, &got));
        tshi_check(r, got == wanted, "%g, not %g", (double)got, (double)wanted);
    }
    close_doubling(&d);
}

Test(nccl_graphs, each_launch_moves_the_data_of_that_launch) {
    for (int ranks = 2; ranks <= 3; ranks++) run_ranks(ranks, false, launches, NULL);
}

static void launch_often(tshi_rank *r, void *arg) {
    (void)arg;
    doubling d;
    float got = 0;
    if (open_doubling(r, tsh_world_group(r->world), &d)) {
        for (int i = 0; i < 2 * TSHI_NCCL_AHEAD + 3; i++) tshi_check_ok(r, tsh_graph_launch(d.graph));
        tshi_check_ok(r, read_one(d.x, &got));
    }
    close_doubling(&d);
}

Test(nccl_graphs, a_host_may_be_so_many_launches_ahead) {
    run_ranks(2, false, launch_often, NULL);
}

/* --- calls that were started before ------------------------------------------------------------------------------- */

static void expect_one(tshi_rank *r, const doubling *d, int wanted) {
    float got = 0;
    tshi_check_ok(r, read_one(d->x, &got));
    tshi_check(r, got == (float)wanted, "%g, not %d", (double)got, wanted);
}

/* The graph has no collectives. The host waits for the call behind the launch. */
static void launches_behind_a_call(tshi_rank *r, void *arg) {
    (void)arg;
    tsh_device *device = tsh_world_device(r->world);
    doubling d = {.x = tshi_test_vector(r, TSH_FLOAT32, 3)};
    tsh_work *work = NULL;
    if (tshi_check_ok(r, tsh_graph_capture_begin(device))) {
        device->ops->elementwise[TSH_FLOAT32].axpby(device, 3, 1, tshi_data(d.x), 1, tshi_data(d.x), tshi_data(d.x));
        tshi_check_ok(r, tsh_graph_capture_end(device, &d.graph));
    }
    tsh_tensor_fill(d.x, 1);
    if (!r->failed && tshi_check_ok(r, tsh_all_reduce_async(tsh_world_group(r->world), d.x, TSH_REDUCE_SUM, &work))) {
        tshi_check_ok(r, tsh_graph_launch(d.graph));
        expect_one(r, &d, 2 * r->size);
        tshi_check_ok(r, tsh_work_wait(work));
    }
    tsh_work_release(work);
    close_doubling(&d);
}

Test(nccl_graphs, a_launch_comes_behind_calls_that_were_started) {
    for (int ranks = 2; ranks <= 3; ranks++) run_ranks(ranks, false, launches_behind_a_call, NULL);
}

/* before: the call is started before the capture, by the other rank so late that this one waits; else in another
 * capture. */
static void waits_in_a_capture(tshi_rank *r, void *arg) {
    const bool *before = arg;
    tsh_device *device = tsh_world_device(r->world);
    doubling d = {.x = tshi_test_vector(r, TSH_FLOAT32, 3)}, other = d;
    tsh_work *work = NULL;
    bool good = sums(r, tsh_world_group(r->world));
    tsh_tensor_fill(d.x, 1);
    if (!*before) good = good && tshi_check_ok(r, tsh_graph_capture_begin(device));
    if (*before && r->rank == 1) nap(50000);
    good = good && tshi_check_ok(r, tsh_all_reduce_async(tsh_world_group(r->world), d.x, TSH_REDUCE_SUM, &work));
    if (!*before) good = good && tshi_check_ok(r, tsh_graph_capture_end(device, &other.graph));
    if (good && tshi_check_ok(r, tsh_graph_capture_begin(device))) {
        tshi_check_ok(r, tsh_work_wait(work));
        double_sum(r, tsh_world_group(r->world), d.x);
        tshi_check_ok(r, tsh_graph_capture_end(device, &d.graph));
        if (!*before) tshi_check_ok(r, tsh_graph_launch(other.graph));
        tshi_check_ok(r, tsh_graph_launch(d.graph));
        expect_one(r, &d, 2 * r->size * r->size);
    }
    tsh_work_release(work);
    tsh_graph_destroy(other.graph);
    close_doubling(&d);
}

Test(nccl_graphs, calls_of_before_are_waited_for_in_a_capture) {
    bool before = true, in_another = false;
    run_ranks(2, false, waits_in_a_capture, &before);
    run_ranks(2, false, waits_in_a_capture, &in_another);
}

/* --- failures ----------------------------------------------------------------------------------------------------- */

/* Rank 1 fails while rank 0 waits in a launch: its communicators are aborted although the graph lives. */
static void fails(tshi_rank *r, void *arg) {
    (void)arg;
    tsh_group *group = tsh_world_group(r->world);
    doubling d;
    float got = 0;
    if (open_doubling(r, group, &d) && tshi_check_ok(r, tshi_group_agree(group, "captured", TSH_OK))) {
        if (r->rank == 1) {
            tsh_world_fail(r->world, "enough of it");
            tshi_check_status(r, tsh_graph_launch(d.graph), TSH_ERR_STATE, "enough of it");
        } else {
            tsh_status status = tsh_graph_launch(d.graph);
            if (status == TSH_OK) status = read_one(d.x, &got);
            tshi_check_status(r, status, TSH_ERR_PEER, "enough of it");
            tshi_check_status(r, tsh_graph_launch(d.graph), TSH_ERR_PEER, "enough of it");
        }
        tshi_check_ok(r, tsh_world_recover(r->world));
        /* Its communicators are gone for good. */
        tshi_check(r, tsh_graph_launch(d.graph) != TSH_OK, "the graph is launched");
        sums(r, group);
        doubling again;
        if (open_doubling(r, group, &again)) {
            tshi_check_ok(r, tsh_graph_launch(again.graph));
            tshi_check_ok(r, read_one(again.x, &got));
            tshi_check(r, got == (float)(2 * r->size), "%g", (double)got);
        }
        close_doubling(&again);
    }
    close_doubling(&d);
}

Test(nccl_graphs, a_failure_ends_the_graphs) {
    for (int ranks = 2; ranks <= 3; ranks++) run_ranks(ranks, false, fails, NULL);
}

static void never_launched(tshi_rank *r, void *arg) {
    _Atomic bool *over = arg;
    doubling d;
    float got = 0;
    bool good = open_doubling(r, tsh_world_group(r->world), &d);
    r->world->timeout = 0.5;
    if (good && r->rank == 0) {
        tshi_check_ok(r, tsh_graph_launch(d.graph));
        tshi_check_status(r, read_one(d.x, &got), TSH_ERR_TIMEOUT, "graph_launch: not done within 0.5 s");
        *over = true;
    }
    while (r->rank == 1 && !*over) nap(1000);
    close_doubling(&d);
}

Test(nccl_graphs, a_launch_has_a_deadline) {
    _Atomic bool over = false;
    run_ranks(2, false, never_launched, &over);
}

/* The failure is seen in the middle of a capture: its calls are over before the communicators are. */
static void fails_in_capture(tshi_rank *r, void *arg) {
    (void)arg;
    tsh_group *group = tsh_world_group(r->world);
    tsh_device *device = tsh_world_device(r->world);
    doubling d = {.x = tshi_test_vector(r, TSH_FLOAT32, 3)};
    float got = 0;
    tsh_tensor_fill(d.x, 1);
    if (sums(r, group) && tshi_check_ok(r, tsh_graph_capture_begin(device))) {
        double_sum(r, group, d.x);
        tshi_check_ok(r, tshi_group_agree(group, "captured", TSH_OK));
        if (r->rank == 0) tsh_world_fail(r->world, "enough of it");
        tsh_status status = TSH_OK;
        for (int i = 0; i < 10000 && status == TSH_OK; i++) {
            nap(100);
            status = tsh_all_reduce(group, d.x, TSH_REDUCE_SUM);
        }
        tshi_check_status(r, status, r->rank == 0 ? TSH_ERR_STATE : TSH_ERR_PEER, "enough of it");
        tshi_check_status(r, tsh_graph_capture_end(device, &d.graph), status, "enough of it");
        tshi_check_ok(r, tsh_world_recover(r->world));
        tshi_check_ok(r, read_one(d.x, &got));
        tshi_check(r, got == 1, "what was captured has run: %g", (double)got);
        sums(r, group);
    }
    close_doubling(&d);
}

Test(nccl_graphs, a_failure_in_a_capture) {
    run_ranks(2, false, fails_in_capture, NULL);
}

/* --- graphs that outlive their group ------------------------------------------------------------------------------ */

static void outlives(tshi_rank *r, void *arg) {
    (void)arg;
    tsh_group *pair = NULL;
    doubling inner, outer;
    float got = 0;
    tshi_check_ok(r, tsh_group_split(tsh_world_group(r->world), 0, r->rank, &pair));
    bool good = open_doubling(r, pair, &inner);
    good = open_doubling(r, tsh_world_group(r->world), &outer) && good;
    tsh_group_destroy(pair);
    if (good) {
        tshi_check_status(r, tsh_graph_launch(inner.graph), TSH_ERR_STATE, "group");
        tshi_check_ok(r, tsh_graph_launch(outer.graph));
        tshi_check_ok(r, read_one(outer.x, &got));
        tshi_check(r, got == (float)(2 * r->size), "%g", (double)got);
    }
    close_doubling(&inner);
    close_doubling(&outer);
}

Test(nccl_graphs, a_destroyed_group_ends_its_graphs_alone) {
    run_ranks(2, false, outlives, NULL);
}

/* --- groups that go during a capture ------------------------------------------------------------------------------ */

/* The capture holds calls of the group: its communicator goes when the capture is over. */
static void goes_in_capture(tshi_rank *r, void *arg) {
    (void)arg;
    tsh_group *pair = NULL;
    tsh_device *device = tsh_world_device(r->world);
    tsh_graph *graph = NULL;
    tsh_tensor *x = tshi_test_vector(r, TSH_FLOAT32, 3);
    float got = 0;
    tsh_tensor_fill(x, 1);
    tshi_check_ok(r, tsh_group_split(tsh_world_group(r->world), 0, r->rank, &pair));
    if (sums(r, pair) && tshi_check_ok(r, tsh_graph_capture_begin(device))) {
        double_sum(r, pair, x);
        tsh_group_destroy(pair);
        tshi_check_status(r, tsh_graph_capture_end(device, &graph), TSH_ERR_STATE, "a group that has been destroyed");
        tshi_check_ok(r, read_one(x, &got));
        tshi_check(r, got == 1, "what was captured has run: %g", (double)got);
        sums(r, tsh_world_group(r->world));
    }
    tsh_graph_destroy(graph);
    tsh_tensor_release(x);
}

/* A group of which the capture holds nothing goes at once, and the graph can be launched. */
static void another_goes_in_capture(tshi_rank *r, void *arg) {
    (void)arg;
    tsh_group *pair = NULL;
    doubling d = {.x = tshi_test_vector(r, TSH_FLOAT32, 3)};
    tsh_device *device = tsh_world_device(r->world);
    float got = 0;
    tsh_tensor_fill(d.x, 1);
    tshi_check_ok(r, tsh_group_split(tsh_world_group(r->world), 0, r->rank, &pair));
    if (sums(r, pair) && tshi_check_ok(r, tsh_graph_capture_begin(device))) {
        double_sum(r, tsh_world_group(r->world), d.x);
        tsh_group_destroy(pair);
        tshi_check_ok(r, tsh_graph_capture_end(device, &d.graph));
        tshi_check_ok(r, tsh_graph_launch(d.graph));
        tshi_check_ok(r, read_one(d.x, &got));
        tshi_check(r, got == (float)(2 * r->size), "%g", (double)got);
    }
    close_doubling(&d);
}

static void world_goes_in_capture(tshi_rank *r, void *arg) {
    (void)arg;
    tsh_tensor *x = tshi_test_vector(r, TSH_FLOAT32, 3);
    tsh_tensor_fill(x, 1);
    if (sums(r, tsh_world_group(r->world)) && tshi_check_ok(r, tsh_graph_capture_begin(tsh_world_device(r->world))))
        double_sum(r, tsh_world_group(r->world), x);
    tsh_tensor_release(x);
}

/* The communicator of a group that was destroyed in the capture is aborted with the others. */
static void goes_and_fails_in_capture(tshi_rank *r, void *arg) {
    (void)arg;
    tsh_group *pair = NULL;
    tsh_device *device = tsh_world_device(r->world);
    tsh_graph *graph = NULL;
    tsh_tensor *x = tshi_test_vector(r, TSH_FLOAT32, 3);
    tshi_check_ok(r, tsh_group_split(tsh_world_group(r->world), 0, r->rank, &pair));
    if (sums(r, pair) && tshi_check_ok(r, tsh_graph_capture_begin(device))) {
        double_sum(r, pair, x);
        tsh_group_destroy(pair);
        tshi_check_ok(r, tshi_group_agree(tsh_world_group(r->world), "destroyed", TSH_OK));
        tsh_world_fail(r->world, "enough of it");
        tshi_check(r, tsh_all_reduce(tsh_world_group(r->world), x, TSH_REDUCE_SUM) != TSH_OK, "a call after a failure");
        tshi_check(r, tsh_graph_capture_end(device, &graph) != TSH_OK, "the capture ends well");
        tshi_check_ok(r, tsh_world_recover(r->world));
        sums(r, tsh_world_group(r->world));
    }
    tsh_graph_destroy(graph);
    tsh_tensor_release(x);
}

Test(nccl_graphs, groups_that_are_destroyed_during_a_capture) {
    run_ranks(2, false, goes_in_capture, NULL);
    run_ranks(2, false, another_goes_in_capture, NULL);
    run_ranks(2, false, goes_and_fails_in_capture, NULL);
}

Test(nccl_graphs, a_world_that_is_destroyed_during_a_capture) {
    run_ranks(2, false, world_goes_in_capture, NULL);
}

/* --- streams of groups -------------------------------------------------------------------------------------------- */

/* The graph holds calls of two groups, the last of which no kernel of the graph waits for. */
static void on_two_streams(tshi_rank *r, void *arg) {
    (void)arg;
    tsh_group *pair = NULL;
    tsh_device *device = tsh_world_device(r->world);
    doubling d = {.x = tshi_test_vector(r, TSH_FLOAT32, 3)};
    tsh_tensor *y = tshi_test_vector(r, TSH_FLOAT32, 3);
    tsh_work *works[2] = {NULL, NULL};
    float got = 0;
    tsh_tensor_fill(d.x, 1);
    tsh_tensor_fill(y, 3);
    tshi_check_ok(r, tsh_group_split(tsh_world_group(r->world), 0, r->rank, &pair));
    if (sums(r, pair) && tshi_check_ok(r, tsh_graph_capture_begin(device))) {
        tshi_check_ok(r, tsh_all_reduce_async(tsh_world_group(r->world), d.x, TSH_REDUCE_SUM, &works[0]));
        tshi_check_ok(r, tsh_all_reduce_async(pair, y, TSH_REDUCE_SUM, &works[1]));
        if (tshi_check_ok(r, tsh_graph_capture_end(device, &d.graph))) tshi_check_ok(r, tsh_graph_launch(d.graph));
        for (int i = 0; i < 2; i++) tsh_work_release(works[i]);
        tshi_check_ok(r, read_one(d.x, &got));
        tshi_check(r, got == (float)r->size, "%g", (double)got);
        tshi_check_ok(r, read_one(y, &got));
        tshi_check(r, got == (float)(3 * r->size), "%g", (double)got);
    }
    close_doubling(&d);
    tsh_tensor_release(y);
    tsh_group_destroy(pair);
}

Test(nccl_graphs, calls_of_groups_with_streams_of_their_own) {
    setenv("NCCL_LAUNCH_ORDER_IMPLICIT", "1", 1);
    run_ranks(2, false, on_two_streams, NULL);
}
