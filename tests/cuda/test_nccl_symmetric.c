/* Symmetric memory over NCCL's stand-in: an arena of every rank's, a window on it in every communicator, and in it the
 * sums of data parallelism. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "cuda/nccl_ranks.h"
#include "cuda/nccl_steps.h"
#include "train/bucket.h"

TestSuite(symmetric, .timeout = 120);

enum { STEPS = 3 };

/* --- variables that differ ---------------------------------------------------------------------------------------- */

/* Replaces the library's function in this program: the second thread to ask for this variable gets another value. */
static const char *differs, *other_value;
static _Atomic int asked;

char *getenv(const char *name) {
    char *value = secure_getenv(name);
    if (!differs || strcmp(name, differs) != 0) return value;
    /* Each rank may ask twice. */
    static _Thread_local int mine = -1;
    if (mine < 0) mine = asked++;
    return mine == 1 ? (char *)(uintptr_t)other_value : value;
}

/* --- where buckets lie -------------------------------------------------------------------------------------------- */

typedef struct plan {
    bool window, buckets; /* every communicator has one; every bucket lies there */
    _Atomic uintptr_t offsets[4][8];
} plan;

static bool has_window(const tsh_group *group) {
    return group->state && tshi_nccl_symmetric(group);
}

static void look_at_buckets(tshi_rank *r, const steps *s, plan *p) {
    const tshi_nccl *nccl = tshi_nccl_of(r->world);
    for (int b = 0; b < s->dp->bucket_count; b++) {
        uintptr_t offset = (uintptr_t)tshi_data(s->dp->buckets[b].memory) - (uintptr_t)nccl->arena;
        bool inside = nccl->arena && offset < nccl->arena_bytes;
        tshi_check(r, inside == p->buckets, "bucket %d is%s in the arena", b, inside ? "" : " not");
        p->offsets[r->rank][b] = inside ? offset : 0;
    }
    tshi_check_ok(r, tshi_group_agree(tsh_world_group(r->world), "offsets", TSH_OK));
    for (int b = 0; b < s->dp->bucket_count; b++) {
        tshi_check(r, p->offsets[r->rank][b] == p->offsets[0][b], "bucket %d is at another place on rank 0", b);
    }
}

static void train(tshi_rank *r, void *arg) {
    plan *p = arg;
    steps s = {NULL};
    tsh_group *group = tsh_world_group(r->world);
    tshi_check(r, has_window(group) == p->window, "the world has %s window", p->window ? "no" : "a");
    if (open_steps(r, &s)) {
        tshi_check(r, tsh_data_parallel_buckets(s.dp) > 1, "one bucket");
        tshi_check(r, has_window(s.dp->group) == p->window, "the sums' group has %s window", p->window ? "no" : "a");
        look_at_buckets(r, &s, p);
        for (int i = 0; i < STEPS && step(r, &s); i++) continue;
        expect_weight(r, &s, STEPS);
    }
    close_steps(&s);
}

/* They train well, and as `p` says. */
static void trains(int ranks, plan p) {
    uint64_t before = standin_nccl_in_windows();
    run_ranks(ranks, false, train, &p);
    uint64_t sums_there = standin_nccl_in_windows() - before;
    cr_assert(p.buckets ? sums_there >= 2 * STEPS : sums_there == 0, "%d sums in windows", (int)sums_there);
}

Test(symmetric, buckets_have_the_same_offset_in_the_window_on_all_ranks) {
    for (int ranks = 2; ranks <= 4; ranks++) trains(ranks, (plan){.window = true, .buckets = true});
    cr_assert_geq(standin_calls("ncclCommWindowDeregister"), 8);
    cr_assert_eq(standin_calls("ncclMemAlloc"), 4);
    cr_assert_eq(standin_calls("ncclMemFree"), 4);
}

Test(symmetric, none_is_asked_for) {
    setenv("TSHARD_NCCL_SYMMETRIC", "0", 1);
    trains(2, (plan){.window = false});
    cr_assert_eq(standin_calls("ncclMemAlloc"), 0);
}

Test(symmetric, a_malformed_size_is_an_error) {
    begin(2, false);
    setenv("TSHARD_NCCL_SYMMETRIC", "much", 1);
    const char *words = tshi_test_run_threads(2, no_world, NULL);
    cr_assert_not_null(strstr(words, "TSHARD_NCCL_SYMMETRIC is \"much\""), "%s", words);
    expect_nothing_left("worlds");
}

Test(symmetric, ranks_that_want_different_sizes_do_without) {
    setenv("TSHARD_NCCL_SYMMETRIC", "1M", 1);
    differs = "TSHARD_NCCL_SYMMETRIC";
    other_value = "2M";
    trains(2, (plan){.window = false});
    cr_assert_eq(standin_calls("ncclMemAlloc"), 0);
    asked = 0;
    other_value = "0";
    trains(3, (plan){.window = false});
    cr_assert_eq(standin_calls("ncclMemAlloc"), 0);
}

static void has_streams(tshi_rank *r, void *arg) {
    const int *wanted = arg;
    tshi_check(r, tshi_nccl_of(r->world)->streams == *wanted, "%d streams", tshi_nccl_of(r->world)->streams);
}

Test(symmetric, groups_have_streams_where_every_rank_wants_them) {
    int streams = TSHI_CUDA_COMMUNICATIONS;
    setenv("NCCL_LAUNCH_ORDER_IMPLICIT", "1", 1);
    run_ranks(3, false, has_streams, &streams);
    differs = "NCCL_LAUNCH_ORDER_IMPLICIT";
    other_value = "0";
    streams = 1;
    run_ranks(3, false, has_streams, &streams);
}

/* They are the process's, found once. */
Test(symmetric, a_library_without_a_function_is_good_for_the_rest) {
    begin(2, false);
    standin_lack("ncclCommWindowRegister");
    plan p = {.window = false};
    cr_assert_str_empty(tshi_test_run_threads(2, train, &p));
    cr_assert_eq(standin_calls("ncclMemAlloc"), 0);
    expect_nothing_left("a world");
}

Test(symmetric, gpus_that_have_no_windows_do_without) {
    standin_nccl_windows(false);
    trains(3, (plan){.window = false});
    cr_assert_eq(standin_calls("ncclCommAbort"), 0);
}

/* --- buckets that do not fit, or fit on some ranks only ----------------------------------------------------------- */

typedef struct taken {
    bool one_rank; /* has taken a part of the arena */
    size_t bytes;
} taken;

static void train_beside(tshi_rank *r, void *arg) {
    const taken *t = arg;
    tsh_device *device = tsh_world_device(r->world);
    size_t offset = 0;
    bool takes = !t->one_rank || r->rank == 1;
    void *block = takes ? device->ops->memory.alloc_symmetric(device, t->bytes, &offset) : NULL;
    tshi_check(r, !takes || block, "no block");
    plan p = {.window = true};
    train(r, &p);
    device->ops->memory.release(device, block);
}

Test(symmetric, a_full_arena_or_different_offsets_make_plain_memory) {
    setenv("TSHARD_NCCL_SYMMETRIC", "64K", 1);
    static const taken all[] = {{false, 65536}, {true, 65536}, {true, 256}};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        uint64_t before = standin_nccl_in_windows();
        run_ranks(3, false, train_beside, (void *)(uintptr_t)&all[i]);
        cr_assert_eq(standin_nccl_in_windows(), before);
    }
}

static void blocks(tshi_rank *r, void *arg) {
    (void)arg;
    tsh_device *device = tsh_world_device(r->world);
    size_t a = 1, b = 1, c = 1, in_use = device->stats.bytes_in_use;
    void *first = device->ops->memory.alloc_symmetric(device, 1000, &a);
    void *second = device->ops->memory.alloc_symmetric(device, 3072, &b);
    tshi_check(r, first && second && a == 0 && b == 1024, "at %zu and %zu", a, b);
    tshi_check(r, device->stats.bytes_in_use == in_use + 1024 + 3072, "%zu bytes", device->stats.bytes_in_use - in_use);
    tshi_check(r, !device->ops->memory.alloc_symmetric(device, 1, &c), "more than there is");
    tshi_check(r, !device->ops->memory.alloc_symmetric(device, SIZE_MAX, &c), "more than there is");
    device->ops->memory.release(device, first);
    first = device->ops->memory.alloc_symmetric(device, 0, &a);
    tshi_check(r, first && a == 0, "at %zu", a);
    device->ops->memory.release(device, second);
    device->ops->memory.release(device, first);
    tshi_check(r, device->stats.bytes_in_use == in_use, "%zu bytes stay", device->stats.bytes_in_use - in_use);
}

Test(symmetric, blocks_of_the_arena_are_allocated_in_order) {
    setenv("TSHARD_NCCL_SYMMETRIC", "4096", 1);
    run_ranks(2, false, blocks, NULL);
}

/* --- failures ----------------------------------------------------------------------------------------------------- */

/* What fails here never fails a world: it goes without, or is over anyway. */
static void trains_somehow(tshi_rank *r, void *arg) {
    (void)arg;
    steps s = {NULL};
    sums(r, tsh_world_group(r->world));
    if (open_steps(r, &s)) {
        for (int i = 0; i < STEPS && step(r, &s); i++) continue;
        if (r->failed) tsh_world_fail(r->world, "enough of it");
        expect_weight(r, &s, STEPS);
    }
    close_steps(&s);
}

Test(symmetric, every_call_may_fail, .timeout = 240) {
    static const char *const names[] = {"ncclMemAlloc", "ncclCommWindowRegister", "ncclCommWindowRegister's end",
                                        "ncclCommWindowDeregister", "ncclMemFree"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        int n = 1;
        for (bool failed = true; failed && n < 30; n++) {
            begin(2, false);
            standin_fail(names[i], (uint64_t)n, 0);
            const tshi_test_options options = {.ranks = 2, .threads = true, .world_timeout = "5"};
            const char *words = tshi_test_run_with(&options, trains_somehow, NULL, NULL, NULL);
            cr_expect_str_empty(words, "%s, call %d: %s", names[i], n, words);
            expect_nothing_left(names[i]);
            failed = standin_failed() != NULL;
        }
        cr_expect(n > 3 && n < 30, "%s is called %d times", names[i], n - 2);
    }
}

static void recovers(tshi_rank *r, void *arg) {
    plan *p = arg;
    tsh_group *group = tsh_world_group(r->world);
    for (int round = 0; round < 2; round++) {
        steps s = {NULL};
        if (r->rank == round) tsh_world_fail(r->world, "enough of it");
        tsh_tensor *x = tshi_test_vector(r, TSH_FLOAT32, 3);
        float got[3];
        tsh_status status = tsh_all_reduce(group, x, TSH_REDUCE_SUM);
        if (status == TSH_OK) status = tsh_tensor_read(x, got, 3);
        tshi_check(r, status != TSH_OK, "no failure");
        tsh_tensor_release(x);
        tshi_check_ok(r, tsh_world_recover(r->world));
        if (round == 0) sums(r, group);
        /* The second time the buckets come before the window. */
        if (open_steps(r, &s)) {
            look_at_buckets(r, &s, p);
            for (int i = 0; i < STEPS && step(r, &s); i++) continue;
            expect_weight(r, &s, STEPS);
            tshi_check(r, has_window(s.dp->group), "no window after a recovery");
        }
        /* The next failure, which the other rank may have heard of by then, comes after all this. */
        tshi_group_agree(group, "looked", TSH_OK);
        close_steps(&s);
    }
}

Test(symmetric, a_recovered_world_has_its_windows_again) {
    plan p = {.window = true, .buckets = true};
    uint64_t before = standin_nccl_in_windows();
    run_ranks(2, false, recovers, &p);
    cr_assert_geq(standin_nccl_in_windows() - before, 4 * STEPS);
}

static void fails_in_a_step(tshi_rank *r, void *arg) {
    _Atomic bool *ended = arg;
    steps s = {NULL};
    if (open_steps(r, &s)) {
        if (r->rank == 1) {
            while (!*ended) nap(100);
            tsh_world_fail(r->world, "enough of it");
        } else {
            step(r, &s);
            *ended = true;
            tshi_check_status(r, tsh_device_synchronize(tsh_world_device(r->world)), TSH_ERR_PEER, "enough of it");
        }
    }
    close_steps(&s);
}

Test(symmetric, a_world_that_ends_after_an_abort_leaves_nothing) {
    setenv("CUDA_MODULE_LOADING", "EAGER", 1); /* the peer comes after the step, which is the first */
    _Atomic bool ended = false;
    run_ranks(2, false, fails_in_a_step, &ended);
    cr_assert_geq(standin_calls("ncclCommAbort"), 1);
    cr_assert_eq(standin_calls("ncclMemFree"), 2);
}
