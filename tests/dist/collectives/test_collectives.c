/* Every collective, dtype and reduction at several numbers of ranks, sizes and counts, bit for bit against plain
 * loops. */
#include "dist/transport/shm/shm.h"
#include "support/collectives.h"

#include <criterion/criterion.h>
#include <string.h>

/* --- the table: dtype x reduction x ranks x processes or threads x blocking or started ---------------------------- */

/* Bytes around the largest data that fits into a slot (alone, and with counts before it), and around a cache line. */
static const int64_t byte_sizes[] = {0, 16, 48, 64, 80, 1008, 1024, 1040, 3920, 4032, 4048, 4064, 4096, 20016};
/* Numbers of elements that no number of ranks divides, near and far. */
static const int64_t odd_sizes[] = {0, 1, 13, 1009};

typedef struct row {
    int ranks;
    bool threads, started;
    bool borders; /* all the sizes, else the odd ones */
} row;

/* 5 for each of 4 float types, 7 for each of 3 integer types, 3 for each of 2 complex types. */
#define REDUCTIONS 47

/* How often each call was made, so that nothing is left out. */
static void count_calls(tshi_rank *r, uint64_t sizes) {
    tsh_communication_stats stats = tsh_group_stats(tsh_world_group(r->world));
    const uint64_t p = (uint64_t)r->size, pairs = p > 1 ? TSH_DTYPE_COUNT * sizes : 0;
    /* Counts in place and out of place, then lists. */
    const uint64_t spreads = 2 * TSHI_SPREAD_COUNT, lists = TSHI_SPREAD_COUNT;
    const uint64_t wanted[TSH_COLLECTIVE_COUNT] = {
        [TSH_COLLECTIVE_ALL_REDUCE] = REDUCTIONS * sizes,
        [TSH_COLLECTIVE_ALL_GATHER] = (spreads + lists) * TSH_DTYPE_COUNT * sizes,
        [TSH_COLLECTIVE_REDUCE_SCATTER] = spreads * REDUCTIONS * sizes + lists * TSH_DTYPE_COUNT * sizes,
        [TSH_COLLECTIVE_BROADCAST] = p * TSH_DTYPE_COUNT * sizes,
        [TSH_COLLECTIVE_ALL_TO_ALL] = (2 + lists) * TSH_DTYPE_COUNT * sizes,
        [TSH_COLLECTIVE_BARRIER] = TSH_DTYPE_COUNT * sizes,
        [TSH_COLLECTIVE_REDUCE] = p * REDUCTIONS * sizes,
        [TSH_COLLECTIVE_GATHER] = p * spreads * TSH_DTYPE_COUNT * sizes,
        [TSH_COLLECTIVE_SCATTER] = p * spreads * TSH_DTYPE_COUNT * sizes,
        [TSH_COLLECTIVE_SEND] = pairs,
        [TSH_COLLECTIVE_RECV] = pairs,
    };
    for (int op = 0; op < TSH_COLLECTIVE_COUNT; op++) {
        tshi_check(r, stats.calls[op] == wanted[op], "%llu calls of %s, not %llu", (unsigned long long)stats.calls[op],
                   tsh_collective_name((tsh_collective)op), (unsigned long long)wanted[op]);
    }
}

static void every_dtype(tshi_rank *r, void *arg) {
    const row *w = arg;
    tsh_group *group = tsh_world_group(r->world);
    const char *backend = w->ranks == 1 ? "self" : "local";
    if (!tshi_check(r, !strcmp(tsh_group_backend(group), backend), "this is %s", tsh_group_backend(group))) return;
    const size_t odd = sizeof odd_sizes / sizeof *odd_sizes;
    const size_t borders = w->borders ? sizeof byte_sizes / sizeof *byte_sizes : 0;
    tshi_try_started(w->started);
    for (int dtype = 0; dtype < TSH_DTYPE_COUNT; dtype++) {
        int64_t size = (int64_t)tsh_dtype_size((tsh_dtype)dtype);
        for (size_t i = 0; i < odd + borders; i++) {
            int64_t n = i < odd ? odd_sizes[i] : byte_sizes[i - odd] / size;
            if (!tshi_try_all(r, group, (tsh_dtype)dtype, n)) return;
        }
    }
    tshi_try_started(false);
    count_calls(r, odd + borders);
}

static void try_row(row w) {
    tshi_test_options options = {.ranks = w.ranks, .threads = w.threads, .timeout = 80, .world_timeout = "60"};
    cr_assert_str_empty(tshi_test_run_with(&options, every_dtype, &w, NULL, NULL));
}

/* More ranks than a small machine has cores make the same calls on fewer sizes. Threads come last: a process that has
 * used CUDA forks no ranks. */
static void try_rows(int ranks) {
    for (int started = 0; started < 2; started++)
        try_row((row){.ranks = ranks, .started = started, .borders = ranks < 4});
    for (int started = 0; started < 2; started++) try_row((row){.ranks = ranks, .started = started, .threads = true});
}

TestSuite(collectives, .timeout = 120);

Test(collectives, one_rank) {
    try_rows(1);
}
Test(collectives, two_ranks) {
    try_rows(2);
}
Test(collectives, three_ranks) {
    try_rows(3);
}
Test(collectives, four_ranks) {
    try_rows(4);
}
Test(collectives, seven_ranks) {
    try_rows(7);
}

/* --- more of them ------------------------------------------------------------------------------------------------- */

/* Ranks are ahead of each other by one call. */
static void many_calls(tshi_rank *r, void *arg) {
    (void)arg;
    tsh_group *group = tsh_world_group(r->world);
    tsh_tensor *x = tshi_test_vector(r, TSH_INT64, 3);
    if (!x) return;
    int64_t *data = tsh_tensor_data(x);
    for (int64_t i = 0; i < 3000; i++) {
        for (int k = 0; k < 3; k++) data[k] = i + k + r->rank;
        if (!tshi_check_ok(r, tsh_all_reduce(group, x, TSH_REDUCE_SUM))) break;
        int64_t wanted = r->size * (i + 2) + r->size * (r->size - 1) / 2;
        if (!tshi_check(r, data[2] == wanted, "call %lld returned %lld", (long long)i, (long long)data[2])) break;
    }
    tsh_tensor_release(x);
}

/* Sizes of several huge pages. */
static void large(tshi_rank *r, void *arg) {
    (void)arg;
    tsh_group *group = tsh_world_group(r->world);
    const int64_t n = 1500007;
    tshi_try_all_reduce(r, group, TSH_FLOAT32, TSH_REDUCE_SUM, n);
    tshi_try_reduce_scatter(r, group, TSH_FLOAT32, TSH_REDUCE_SUM, n, TSHI_UNEVEN, false);
    tshi_try_all_gather(r, group, TSH_FLOAT32, n, TSHI_UNEVEN, true);
    tshi_try_broadcast(r, group, TSH_FLOAT32, n, r->size - 1);
    tshi_try_all_to_all(r, group, TSH_FLOAT32, n, true);
    tshi_try_gather(r, group, TSH_FLOAT32, n, TSHI_UNEVEN, false, r->size - 1);
    tshi_try_scatter(r, group, TSH_FLOAT32, n, TSHI_UNEVEN, false, r->size - 1);
    /* Sizes around the one from which parts are pushed rather than pulled, and parts of many tiles and of none. */
    for (int spread = 0; spread < TSHI_SPREAD_COUNT; spread++) {
        for (int64_t bytes = 524287; bytes <= 524289; bytes++) {
            tshi_try_all_gather(r, group, TSH_UINT8, bytes, (tshi_spread)spread, bytes % 2);
        }
        tshi_try_all_gather(r, group, TSH_FLOAT32, n, (tshi_spread)spread, false);
    }
}

Test(collectives, large, .timeout = 120) {
    cr_assert_str_empty(tshi_test_run(2, large, NULL));
    cr_assert_str_empty(tshi_test_run(3, large, NULL));
}

/* Bring the counter of syncs close to its largest value: recovering takes the largest of all ranks. */
static void wraps(tshi_rank *r, void *arg) {
    (void)arg;
    tshi_shm_group *lg = tsh_world_group(r->world)->state;
    lg->sync = UINT32_C(0x7ffffff0);
    if (!tshi_check_ok(r, tsh_world_recover(r->world))) return;
    lg->sync = UINT32_C(0xfffffff0);
    if (!tshi_check_ok(r, tsh_world_recover(r->world))) return;
    many_calls(r, NULL);
    tshi_check(r, lg->sync < 10000, "the counter is at %u", lg->sync);
}

Test(collectives, the_counter_of_syncs_wraps, .timeout = 120) {
    cr_assert_str_empty(tshi_test_run(2, wraps, NULL));
    cr_assert_str_empty(tshi_test_run(3, wraps, NULL));
}

Test(collectives, many_calls, .timeout = 120) {
    cr_assert_str_empty(tshi_test_run(2, many_calls, NULL));
    cr_assert_str_empty(tshi_test_run(3, many_calls, NULL));
}

Test(collectives, eight_ranks_do_not_crawl, .timeout = 120) {
    tshi_test_options options = {.ranks = 8, .timeout = 20};
    cr_assert_str_empty(tshi_test_run_with(&options, many_calls, NULL, NULL, NULL));
}
