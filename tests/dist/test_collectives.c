/* Every collective, dtype and reduction at several numbers of ranks, sizes and spreads, bit for bit against loops. */
#include "dist/local.h"
#include "support/collectives.h"

#include <criterion/criterion.h>

/* Both sides of where data stops travelling in the slot (alone, and with counts before it), and around a cache line. */
static const int64_t byte_sizes[] = {0, 16, 48, 64, 80, 1008, 1024, 1040, 3920, 4032, 4048, 4064, 4096, 20016};

static void every_dtype(tshi_rank *r, void *arg) {
    tshi_try_started(arg != NULL);
    for (int dtype = 0; dtype < TSH_DTYPE_COUNT; dtype++) {
        int64_t size = (int64_t)tsh_dtype_size((tsh_dtype)dtype);
        for (size_t i = 0; i < sizeof byte_sizes / sizeof *byte_sizes; i++) {
            if (!tshi_try_all(r, tsh_world_group(r->world), (tsh_dtype)dtype, byte_sizes[i] / size)) return;
        }
        /* Sizes that nothing divides. */
        if (!tshi_try_all(r, tsh_world_group(r->world), (tsh_dtype)dtype, 1)) return;
        if (!tshi_try_all(r, tsh_world_group(r->world), (tsh_dtype)dtype, 13)) return;
        if (!tshi_try_all(r, tsh_world_group(r->world), (tsh_dtype)dtype, 1009)) return;
    }
}

static void try_every_dtype(int ranks, bool started) {
    tshi_test_options options = {.ranks = ranks, .timeout = 80};
    cr_assert_str_empty(tshi_test_run_with(&options, every_dtype, started ? &options : NULL, NULL, NULL));
}

Test(collectives, one_rank, .timeout = 90) {
    try_every_dtype(1, false);
}
Test(collectives, two_ranks, .timeout = 90) {
    try_every_dtype(2, false);
}
Test(collectives, three_ranks, .timeout = 90) {
    try_every_dtype(3, false);
}
Test(collectives, four_ranks, .timeout = 90) {
    try_every_dtype(4, false);
}
Test(collectives, one_rank_started, .timeout = 90) {
    try_every_dtype(1, true);
}
Test(collectives, two_ranks_started, .timeout = 90) {
    try_every_dtype(2, true);
}
Test(collectives, three_ranks_started, .timeout = 90) {
    try_every_dtype(3, true);
}
Test(collectives, four_ranks_started, .timeout = 90) {
    try_every_dtype(4, true);
}

/* More ranks than a small machine has cores. */
static void float_and_int(tshi_rank *r, void *arg) {
    tshi_try_started(arg != NULL);
    const int64_t sizes[] = {0, 1, 6, 100, 1012, 1013, 30000};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        if (!tshi_try_all(r, tsh_world_group(r->world), TSH_FLOAT32, sizes[i])) return;
        if (!tshi_try_all(r, tsh_world_group(r->world), TSH_INT64, sizes[i])) return;
    }
}

Test(collectives, seven_ranks, .timeout = 90) {
    tshi_test_options options = {.ranks = 7, .timeout = 80};
    cr_assert_str_empty(tshi_test_run_with(&options, float_and_int, NULL, NULL, NULL));
    cr_assert_str_empty(tshi_test_run_with(&options, float_and_int, &options, NULL, NULL));
}

/* Ranks that run ahead of each other by a call. */
static void many_calls(tshi_rank *r, void *arg) {
    (void)arg;
    tsh_group *group = tsh_world_group(r->world);
    tsh_tensor *x = tshi_test_vector(r, TSH_INT64, 3);
    if (!x) return;
    int64_t *data = tsh_tensor_data(x);
    for (int64_t i = 0; i < 3000; i++) {
        for (int k = 0; k < 3; k++) data[k] = i + k + r->rank;
        if (!tshi_check_ok(r, tsh_all_reduce(group, x, TSH_SUM))) break;
        int64_t wanted = r->size * (i + 2) + r->size * (r->size - 1) / 2;
        if (!tshi_check(r, data[2] == wanted, "call %lld gave %lld", (long long)i, (long long)data[2])) break;
    }
    tsh_tensor_release(x);
}

/* Several huge pages of them. */
static void large(tshi_rank *r, void *arg) {
    (void)arg;
    tsh_group *group = tsh_world_group(r->world);
    const int64_t n = 1500007;
    tshi_try_all_reduce(r, group, TSH_FLOAT32, TSH_SUM, n);
    tshi_try_reduce_scatter(r, group, TSH_FLOAT32, TSH_SUM, n, TSHI_UNEVEN, false);
    tshi_try_all_gather(r, group, TSH_FLOAT32, n, TSHI_UNEVEN, true);
    tshi_try_broadcast(r, group, TSH_FLOAT32, n, r->size - 1);
    tshi_try_all_to_all(r, group, TSH_FLOAT32, n, true);
}

Test(collectives, large, .timeout = 30) {
    cr_assert_str_empty(tshi_test_run(2, large, NULL));
    cr_assert_str_empty(tshi_test_run(3, large, NULL));
}

/* Bring the counter of syncs close to where it wraps: recovering agrees on the furthest that any rank has. */
static void wraps(tshi_rank *r, void *arg) {
    (void)arg;
    tshi_local_group *lg = tsh_world_group(r->world)->state;
    lg->sync = UINT32_C(0x7ffffff0);
    if (!tshi_check_ok(r, tsh_world_recover(r->world))) return;
    lg->sync = UINT32_C(0xfffffff0);
    if (!tshi_check_ok(r, tsh_world_recover(r->world))) return;
    many_calls(r, NULL);
    tshi_check(r, lg->sync < 10000, "the counter is at %u", lg->sync);
}

Test(collectives, the_counter_of_syncs_wraps, .timeout = 30) {
    cr_assert_str_empty(tshi_test_run(2, wraps, NULL));
    cr_assert_str_empty(tshi_test_run(3, wraps, NULL));
}

Test(collectives, many_calls, .timeout = 30) {
    cr_assert_str_empty(tshi_test_run(2, many_calls, NULL));
    cr_assert_str_empty(tshi_test_run(3, many_calls, NULL));
}

Test(collectives, eight_ranks_do_not_crawl, .timeout = 30) {
    tshi_test_options options = {.ranks = 8, .timeout = 20};
    cr_assert_str_empty(tshi_test_run_with(&options, many_calls, NULL, NULL, NULL));
}

Test(collectives, threads, .timeout = 90) {
    cr_assert_str_empty(tshi_test_run_threads(1, float_and_int, NULL));
    cr_assert_str_empty(tshi_test_run_threads(2, every_dtype, NULL));
    cr_assert_str_empty(tshi_test_run_threads(3, float_and_int, NULL));
}
