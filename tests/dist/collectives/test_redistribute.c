/* Exchanges of boxes: random ones against the plain definition, calls and bytes, failures, plans. */
#include "support/exchanges.h"

#include <criterion/criterion.h>
#include <signal.h>

TestSuite(redistribute, .timeout = 120);

typedef enum path { IN_PLACE, PACKED, MESSAGES } path;

typedef struct series {
    uint32_t first, count;
    path path;
} series;

/* The group's backend without exchanges in place, as other backends are. */
static void pack_all(tsh_group *group, tshi_group_ops *ops) {
    *ops = *group->ops;
    ops->exchange = NULL;
    group->ops = ops;
}

static void random_exchanges(tshi_rank *r, void *arg) {
    const series *s = arg;
    tsh_group *group = tsh_world_group(r->world);
    const tshi_group_ops *own = group->ops;
    tshi_group_ops packed;
    if (s->path == PACKED) pack_all(group, &packed);
    for (uint32_t i = 0; i < s->count && tshi_try_exchange(r, s->first + i, s->path == MESSAGES); i++) continue;
    group->ops = own;
    tshi_check_ok(r, tshi_exchange_flush(r->world));
}

Test(redistribute, random_exchanges_in_a_group) {
    cr_assert_str_empty(tshi_test_run_each(1, 4, random_exchanges, &(series){0, 1500, IN_PLACE}));
    cr_assert_str_empty(tshi_test_run(8, random_exchanges, &(series){5000, 600, IN_PLACE}));
    cr_assert_str_empty(tshi_test_run_threads(5, random_exchanges, &(series){9000, 300, IN_PLACE}));
}

Test(redistribute, random_exchanges_that_are_packed) {
    cr_assert_str_empty(tshi_test_run_each(1, 4, random_exchanges, &(series){0, 1500, PACKED}));
    cr_assert_str_empty(tshi_test_run(8, random_exchanges, &(series){5000, 600, PACKED}));
}

Test(redistribute, random_exchanges_as_messages) {
    cr_assert_str_empty(tshi_test_run_each(1, 4, random_exchanges, &(series){20000, 800, MESSAGES}));
    cr_assert_str_empty(tshi_test_run(8, random_exchanges, &(series){25000, 400, MESSAGES}));
    cr_assert_str_empty(tshi_test_run_threads(3, random_exchanges, &(series){29000, 300, MESSAGES}));
}

/* --- known exchanges ---------------------------------------------------------------------------------------------- */

static const int two[2] = {0, 1}, first[1] = {0}, second[1] = {1};

static tshi_placement along(const int *ranks, int n, tsh_layout layout) {
    return (tshi_placement){.axes = 1, .size = {n}, .ranks = ranks, .layout = {layout}};
}

static tshi_exchange matrix(int64_t rows, int64_t cols, tshi_placement from, tshi_placement to) {
    return (tshi_exchange){.ndim = 2, .shape = {rows, cols}, .from = from, .to = to};
}

/* What comes back when this rank has n elements of `in` and m of `out`. */
static tsh_status run(tshi_rank *r, bool messages, tshi_exchange e, int64_t n, int64_t m) {
    tsh_tensor *in = tshi_test_vector(r, TSH_FLOAT32, n), *out = tshi_test_vector(r, TSH_FLOAT32, m);
    tsh_status status = tshi_exchange_run(messages ? NULL : tsh_world_group(r->world), &e, in, out);
    tsh_tensor_release(in);
    tsh_tensor_release(out);
    return status;
}

/* One rank's placements, then its tensor, are others than its peer's. */
static void disagree(tshi_rank *r, void *arg) {
    (void)arg;
    tshi_exchange e = matrix(4, 4, along(two, 2, TSH_SHARD(0)), along(two, 2, TSH_SHARD(1)));
    if (r->rank) e.to.layout[0] = TSH_REPLICATED;
    const char *words = tshi_test_device() == TSH_CPU ? "redistribute float32 of 16 elements" : "sends 4 elements";
    tshi_check_status(r, run(r, false, e, 8, r->rank ? 16 : 8), TSH_ERR_MISMATCH, words);
    e.to.layout[0] = TSH_SHARD(1);
    words = "in has 7 elements, the rank's box has 8";
    tshi_check_status(r, run(r, false, e, r->rank ? 7 : 8, 8), r->rank ? TSH_ERR_SHAPE : TSH_ERR_PEER, words);
    tshi_check_ok(r, run(r, false, e, 8, 8));
}

Test(redistribute, ranks_that_disagree) {
    cr_assert_str_empty(tshi_test_run(2, disagree, NULL));
    cr_assert_str_empty(tshi_test_run_threads(2, disagree, NULL));
}

/* Rank 0 has no memory left to pack what it sends. */
static void no_memory(tshi_rank *r, void *arg) {
    enum { N = 1 << 18, MOST = 64 };
    (void)arg;
    tsh_group *group = tsh_world_group(r->world);
    const tshi_group_ops *own = group->ops;
    tshi_group_ops packed;
    tsh_tensor *filler[MOST] = {NULL};
    int64_t n = N;
    const tshi_exchange e = matrix(N / 512, 1024, along(two, 2, TSH_SHARD(0)), along(two, 2, TSH_SHARD(1)));
    tsh_tensor *in = tshi_test_vector(r, TSH_FLOAT32, N), *out = tshi_test_vector(r, TSH_FLOAT32, N);
    pack_all(group, &packed);
    for (int i = 0; r->rank == 0 && i < MOST; i++) {
        if (tshi_tensor_scratch(in->mesh, TSH_FLOAT32, n, &filler[i]) != TSH_OK) n /= 2;
        if (n < N / 64) break;
    }
    tsh_status status = tshi_exchange_run(group, &e, in, out);
    tshi_check_status(r, status, r->rank ? TSH_ERR_PEER : TSH_ERR_MEMORY, "no room for a tensor of");
    for (int i = 0; i < MOST; i++) tshi_tensor_release(filler[i]);
    tshi_check_ok(r, tshi_exchange_run(group, &e, in, out));
    tsh_tensor_release(in);
    tsh_tensor_release(out);
    group->ops = own;
}

Test(redistribute, without_memory_on_one_rank) {
    if (tshi_test_device() != TSH_CPU) return; /* whose heap is as small as is wanted */
    const tshi_test_options options = {.ranks = 2, .heap_bytes = 16 << 20};
    cr_assert_str_empty(tshi_test_run_with(&options, no_memory, NULL, NULL, NULL));
}

static void other_size(tshi_rank *r, void *arg) {
    (void)arg;
    const tshi_exchange e =
        matrix(400, r->rank ? 600 : 400, along(first, 1, TSH_SHARD(0)), along(second, 1, TSH_SHARD(0)));
    tsh_status status = run(r, true, e, r->rank ? 0 : 160000, r->rank ? 240000 : 0);
    tshi_check_status(r, status, r->rank ? TSH_ERR_MISMATCH : TSH_OK, r->rank ? "send float32 [160000]" : "");
    if (r->rank == 0) tshi_check_status(r, tshi_exchange_flush(r->world), TSH_ERR_MISMATCH, "recv float32 [240000]");
}

Test(redistribute, messages_of_another_size) {
    cr_assert_str_empty(tshi_test_run(2, other_size, NULL));
}

/* Rank 0 gives all values before rank 1 takes the first. */
static void ahead(tshi_rank *r, void *arg) {
    enum { STEPS = 40, ROWS = 300 };
    const tshi_exchange e = matrix(ROWS, 5, along(first, 1, TSH_REPLICATED), along(second, 1, TSH_SHARD(1)));
    tsh_tensor *in = tshi_test_vector(r, TSH_FLOAT32, r->rank ? 0 : ROWS * 5);
    tsh_tensor *out = tshi_test_vector(r, TSH_FLOAT32, r->rank ? ROWS * 5 : 0);
    float *given = tsh_tensor_data(in), *taken = tsh_tensor_data(out);
    if (r->rank && !tshi_test_await(r, arg, 1)) return;
    for (int step = 0; step < STEPS; step++) {
        for (int64_t i = 0; i < tsh_tensor_local_numel(in); i++) given[i] = (float)(step + i);
        if (!tshi_check_ok(r, tshi_exchange_run(NULL, &e, in, out))) break;
        for (int64_t i = 0; i < tsh_tensor_local_numel(out) && !r->failed; i++) {
            tshi_check(r, taken[i] == (float)(step + i), "step %d: element %lld is %g", step, (long long)i, taken[i]);
        }
    }
    if (r->rank == 0) atomic_fetch_add((atomic_int *)arg, 1);
    tshi_check_ok(r, tshi_exchange_flush(r->world));
    tsh_tensor_release(in);
    tsh_tensor_release(out);
}

Test(redistribute, a_sender_goes_on_before_its_receiver_comes) {
    cr_assert_str_empty(tshi_test_run(2, ahead, tshi_test_shared(sizeof(atomic_int))));
}

/* Rank 1 dies; rank 0 waits for it in a group, for its message, and for it to take one. */
static void dies(tshi_rank *r, void *arg) {
    int way = *(int *)arg;
    tshi_placement here = along(first, 1, TSH_SHARD(0)), there = along(second, 1, TSH_SHARD(0));
    if (r->rank) raise(SIGKILL);
    if (way == 0) {
        const tshi_exchange e = matrix(4, 4, along(two, 2, TSH_SHARD(0)), along(two, 2, TSH_SHARD(1)));
        tshi_check_status(r, run(r, false, e, 8, 8), TSH_ERR_PEER, "rank 1");
    } else if (way == 1) {
        tshi_check_status(r, run(r, true, matrix(4, 4, there, here), 0, 16), TSH_ERR_PEER, "rank 1");
    } else {
        tsh_status status = run(r, true, matrix(400, 400, here, there), 160000, 0);
        if (status == TSH_OK) status = tshi_exchange_flush(r->world);
        tshi_check_status(r, status, TSH_ERR_PEER, "rank 1");
    }
}

Test(redistribute, a_rank_that_dies) {
    for (int way = 0; way < 3; way++) {
        tshi_outcome outcome[2];
        tshi_test_run_with(&(tshi_test_options){.ranks = 2}, dies, &way, outcome, NULL);
        cr_assert_str_empty(outcome[0].words);
        cr_assert_eq(outcome[0].code, 0);
        cr_assert_eq(outcome[1].signal, SIGKILL);
    }
}

/* --- plans -------------------------------------------------------------------------------------------------------- */

static void plans(tshi_rank *r, void *arg) {
    (void)arg;
    const int same[2] = {0, 1}, swapped[2] = {1, 0};
    tshi_exchange e = matrix(8, 8, along(two, 2, TSH_SHARD(0)), along(two, 2, TSH_SHARD(1)));
    const tshi_exchange_plan *plan = tshi_exchange_plan_find(r->world, &e);
    e.to.ranks = same;
    tshi_check(r, tshi_exchange_plan_find(r->world, &e) == plan, "an equal list of ranks is another plan");
    e.to.ranks = swapped;
    tshi_check(r, tshi_exchange_plan_find(r->world, &e) != plan, "another list of ranks is the same plan");
    e.to = along(two, 2, TSH_SHARD_ORDER(1, 1));
    tshi_check(r, tshi_exchange_plan_find(r->world, &e) != plan, "another split order is the same plan");
    for (int64_t i = 1; i < 500; i++) {
        e.shape[0] = 8 + i;
        plan = tshi_exchange_plan_find(r->world, &e);
        tshi_check(r, plan && plan->numel == (8 + i) * 8, "the plan of another shape");
    }
    tshi_check(r, tshi_exchange_plan_find(r->world, &e) == plan, "the last plan has gone");
}

Test(redistribute, plans_are_found_by_their_arguments) {
    cr_assert_str_empty(tshi_test_run(2, plans, NULL));
}

/* More terms than a device adds at once; nothing moves, for all of them lie in one tensor. */
static void many_terms(tshi_rank *r, void *arg) {
    enum { TERMS = 200, ROWS = 3, COLS = 4, N = ROWS * COLS };
    (void)arg;
    int ranks[TERMS];
    for (int i = 0; i < TERMS; i++) ranks[i] = i;
    tshi_exchange e = matrix(ROWS, COLS, along(ranks, TERMS, TSH_PARTIAL), along(ranks, 1, TSH_REPLICATED));
    const tshi_exchange_plan *plan = tshi_exchange_plan_find(r->world, &e);
    if (!tshi_check(r, plan && plan->receives == TERMS, "not a transfer for each term")) return;
    tsh_tensor *terms = tshi_test_vector(r, TSH_FLOAT32, TERMS * N), *out = tshi_test_vector(r, TSH_FLOAT32, N);
    float *data = tsh_tensor_data(terms), *sum = tsh_tensor_data(out);
    for (int k = 0; k < TERMS; k++) {
        for (int i = 0; i < N; i++) data[k * N + i] = (float)(k % 5 + i);
        plan->piece[k] = (tshi_piece){data + (size_t)k * N, &plan->receive[k].box};
    }
    tshi_exchange_fill(plan, tsh_world_device(r->world), TSH_FLOAT32, sum);
    for (int i = 0; i < N; i++) tshi_check(r, sum[i] == (float)(TERMS * (2 + i)), "element %d is %g", i, sum[i]);
    tsh_tensor_release(terms);
    tsh_tensor_release(out);
}

Test(redistribute, more_terms_than_a_device_adds_at_once) {
    cr_assert_str_empty(tshi_test_run(1, many_terms, NULL));
}

/* The root of a broadcast returns early: its peers may still be behind when it comes to the exchange. */
static void after_early_returns(tshi_rank *r, void *arg) {
    (void)arg;
    tsh_group *group = tsh_world_group(r->world);
    tsh_tensor *x = tshi_test_vector(r, TSH_FLOAT32, 20);
    for (uint32_t seed = 40000; seed < 40100 && !r->failed; seed++) {
        int root = (int)seed % r->size;
        for (uint32_t i = 0; i < seed % 9; i++) tshi_check_ok(r, tsh_broadcast(group, x, root));
        tshi_try_exchange(r, seed, false);
    }
    tsh_tensor_release(x);
}

Test(redistribute, after_calls_that_return_early) {
    cr_assert_str_empty(tshi_test_run_each(2, 4, after_early_returns, NULL));
}
