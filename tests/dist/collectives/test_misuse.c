/* Calls that do not match, and arguments that are wrong on one rank: every rank gets the reason, and the group stays
 * usable. */
#include "support/collectives.h"
#include "tensor/tensor.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

/* True when collectives of the group work after a failure. */
static bool still_works(tshi_rank *r) {
    return tshi_try_all(r, tsh_world_group(r->world), TSH_FLOAT32, 1000) &&
           tshi_try_all_reduce(r, tsh_world_group(r->world), TSH_FLOAT64, TSH_REDUCE_SUM, 5000);
}

static void ops_differ(tshi_rank *r, void *arg) {
    (void)arg;
    tsh_group *group = tsh_world_group(r->world);
    tsh_tensor *x = tshi_test_vector(r, TSH_FLOAT32, 1024);
    tshi_check_ok(r, tsh_tensor_fill(x, r->rank + 1));
    int last = r->size - 1;
    tsh_status status = r->rank == last ? tsh_broadcast(group, x, 0) : tsh_all_reduce(group, x, TSH_REDUCE_SUM);
    char words[128];
    tshi_check_status(r, status, TSH_ERR_MISMATCH, "rank 0: all_reduce float32 [1024] sum #");
    snprintf(words, sizeof words, "rank %d: broadcast float32 [1024] root 0 #", last);
    tshi_check_status(r, status, TSH_ERR_MISMATCH, words);
    tshi_check(r, ((float *)tsh_tensor_data(x))[7] == (float)(r->rank + 1), "a call that did not match wrote");
    tsh_tensor_release(x);
    still_works(r);
}

Test(misuse, ops_differ, .timeout = 120) {
    cr_assert_str_empty(tshi_test_run(2, ops_differ, NULL));
    cr_assert_str_empty(tshi_test_run(3, ops_differ, NULL));
    cr_assert_str_empty(tshi_test_run_threads(3, ops_differ, NULL));
}

static void arguments_differ(tshi_rank *r, void *arg) {
    (void)arg;
    tsh_group *group = tsh_world_group(r->world);
    bool odd = r->rank == 1;
    tsh_tensor *x = tshi_test_vector(r, TSH_FLOAT32, 5000), *y = tshi_test_vector(r, TSH_INT32, 5000);
    tsh_tensor *z = tshi_test_vector(r, TSH_FLOAT32, 8);
    tsh_status status = tsh_all_reduce(group, odd ? y : x, TSH_REDUCE_SUM);
    tshi_check_status(r, status, TSH_ERR_MISMATCH, "rank 0: all_reduce float32 [5000] sum #");
    tshi_check_status(r, status, TSH_ERR_MISMATCH, "rank 1: all_reduce int32 [5000] sum #");
    /* The data of one side is near, that of the other far. */
    status = tsh_all_reduce(group, odd ? z : x, TSH_REDUCE_SUM);
    tshi_check_status(r, status, TSH_ERR_MISMATCH, "rank 0: all_reduce float32 [5000] sum #");
    tshi_check_status(r, status, TSH_ERR_MISMATCH, "rank 1: all_reduce float32 [8] sum #");
    status = tsh_all_reduce(group, x, odd ? TSH_REDUCE_MAX : TSH_REDUCE_MIN);
    tshi_check_status(r, status, TSH_ERR_MISMATCH, "rank 0: all_reduce float32 [5000] min #");
    tshi_check_status(r, status, TSH_ERR_MISMATCH, "rank 1: all_reduce float32 [5000] max #");
    status = tsh_broadcast(group, x, odd ? 1 : 0);
    tshi_check_status(r, status, TSH_ERR_MISMATCH, "rank 0: broadcast float32 [5000] root 0 #");
    tshi_check_status(r, status, TSH_ERR_MISMATCH, "rank 1: broadcast float32 [5000] root 1 #");
    status = odd ? tsh_barrier(group) : tsh_all_reduce(group, x, TSH_REDUCE_SUM);
    tshi_check_status(r, status, TSH_ERR_MISMATCH, "rank 1: barrier #");
    tsh_tensor_release(x);
    tsh_tensor_release(y);
    tsh_tensor_release(z);
    still_works(r);
}

Test(misuse, arguments_differ, .timeout = 120) {
    cr_assert_str_empty(tshi_test_run(2, arguments_differ, NULL));
    cr_assert_str_empty(tshi_test_run(3, arguments_differ, NULL));
}

static void counts_differ(tshi_rank *r, void *arg) {
    (void)arg;
    tsh_group *group = tsh_world_group(r->world);
    const int64_t mine[3] = {4, 6, 2}, theirs[3] = {6, 4, 2};
    const int64_t *counts = r->rank == 1 ? theirs : mine;
    tsh_tensor *whole = tshi_test_vector(r, TSH_FLOAT32, 12);
    tsh_tensor *part = tshi_test_vector(r, TSH_FLOAT32, counts[r->rank]);
    tsh_status status = tsh_all_gather_into_tensor(group, part, whole, counts);
    tshi_check_status(r, status, TSH_ERR_MISMATCH, "rank 0: all_gather float32 [12], 4 of them its own, #");
    tshi_check_status(r, status, TSH_ERR_MISMATCH, "rank 1: all_gather float32 [12], 4 of them its own, #");
    tshi_check_status(r, status, TSH_ERR_MISMATCH, "their counts differ");
    status = tsh_reduce_scatter_tensor(group, whole, part, counts, TSH_REDUCE_SUM);
    tshi_check_status(r, status, TSH_ERR_MISMATCH, "their counts differ");
    const int64_t equal[3] = {4, 4, 4}, more[3] = {5, 4, 3};
    tsh_tensor *out = tshi_test_vector(r, TSH_FLOAT32, 12);
    status = tsh_all_to_all(group, whole, r->rank == 2 ? more : equal, out, equal);
    tshi_check_status(r, status, TSH_ERR_MISMATCH, "rank 2 sends 5 elements to rank 0, which expects 4");
    tsh_tensor_release(whole);
    tsh_tensor_release(part);
    tsh_tensor_release(out);
    still_works(r);
}

Test(misuse, counts_differ, .timeout = 120) {
    cr_assert_str_empty(tshi_test_run(3, counts_differ, NULL));
}

/* --- wrong on one rank -------------------------------------------------------------------------------------------- */

typedef struct tensors {
    tsh_tensor *x, *ints, *z, *whole, *part, *freed;
} tensors;

/* Makes the n-th wrong call, on rank 1 alone; returns the expected part of its message. */
static tsh_status wrong_call(const tensors *t, tsh_group *group, int n, const char **words) {
    static const int64_t negative[3] = {-1, 8, 5}, sums[3] = {4, 4, 5}, huge[3] = {INT64_MAX, INT64_MAX, 1};
    switch (n) {
    case 0: *words = "all_reduce: tensor is NULL"; return tsh_all_reduce(group, NULL, TSH_REDUCE_SUM);
    case 1: *words = "8 is not a reduction"; return tsh_all_reduce(group, t->x, TSH_REDUCE_OP_COUNT);
    case 2: *words = "complex64 has no order"; return tsh_all_reduce(group, t->z, TSH_REDUCE_MAX);
    case 3: *words = "root 3 in a group of 3"; return tsh_broadcast(group, t->x, 3);
    case 4: *words = "root -1"; return tsh_broadcast(group, t->x, -1);
    case 5: *words = "memory of tensor was freed"; return tsh_broadcast(group, t->freed, 0);
    case 6: *words = "out is NULL"; return tsh_all_gather_into_tensor(group, t->part, NULL, NULL);
    case 7: *words = "in is NULL"; return tsh_all_gather_into_tensor(group, NULL, t->whole, NULL);
    case 8: *words = "out is float32, in is int32"; return tsh_all_gather_into_tensor(group, t->ints, t->whole, NULL);
    case 9:
        *words = "rank 1's part is 4 elements, its tensor has 12";
        return tsh_all_gather_into_tensor(group, t->x, t->whole, NULL);
    case 10: *words = "count of rank 0 is -1"; return tsh_all_gather_into_tensor(group, t->part, t->whole, negative);
    case 11: *words = "add up to 13"; return tsh_reduce_scatter_tensor(group, t->whole, t->part, sums, TSH_REDUCE_SUM);
    case 12: *words = "overflow"; return tsh_reduce_scatter_tensor(group, t->whole, t->part, huge, TSH_REDUCE_SUM);
    case 13: *words = "in and out overlap"; return tsh_all_to_all(group, t->x, NULL, t->x, NULL);
    case 14:
        *words = "4 elements, which is not a multiple of 3 ranks";
        return tsh_all_to_all(group, t->part, NULL, t->x, NULL);
    default: return TSH_OK;
    }
}

static void wrong_on_one(tshi_rank *r, void *arg) {
    (void)arg;
    tsh_group *group = tsh_world_group(r->world);
    tensors t = {tshi_test_vector(r, TSH_FLOAT32, 12),   tshi_test_vector(r, TSH_INT32, 4),
                 tshi_test_vector(r, TSH_COMPLEX64, 12), tshi_test_vector(r, TSH_FLOAT32, 12),
                 tshi_test_vector(r, TSH_FLOAT32, 4),    tshi_test_vector(r, TSH_FLOAT32, 12)};
    tshi_tensor_drop_storage(t.freed);
    for (int n = 0; n < 15 && !r->failed; n++) {
        const char *words = "";
        if (r->rank == 1) {
            tsh_status status = wrong_call(&t, group, n, &words);
            tshi_check(r, status != TSH_OK && strstr(tsh_error_message(), words), "call %d: %s \"%s\"", n,
                       tsh_status_name(status), tsh_error_message());
        } else {
            tshi_check_status(r, tsh_all_reduce(group, t.x, TSH_REDUCE_SUM), TSH_ERR_PEER, "rank 1: ");
        }
        tshi_check(r, tsh_group_stats(group).calls[TSH_COLLECTIVE_ALL_REDUCE] == (uint64_t)n, "calls after %d", n);
        tshi_check_ok(r, tsh_all_reduce(group, t.x, TSH_REDUCE_SUM));
    }
    tsh_tensor *all[] = {t.x, t.ints, t.z, t.whole, t.part, t.freed};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) tsh_tensor_release(all[i]);
    still_works(r);
}

Test(misuse, wrong_on_one_rank, .timeout = 120) {
    cr_assert_str_empty(tshi_test_run(3, wrong_on_one, NULL));
}

static void words_travel(tshi_rank *r, void *arg) {
    (void)arg;
    tsh_group *group = tsh_world_group(r->world);
    tsh_tensor *x = tshi_test_vector(r, TSH_FLOAT32, 12);
    if (r->rank == 1) {
        tshi_check_status(r, tsh_broadcast(group, x, 7), TSH_ERR_RANGE, "broadcast: root 7 in a group of 2");
    } else {
        tshi_check_status(r, tsh_barrier(group), TSH_ERR_PEER, "rank 1: broadcast: root 7 in a group of 2");
    }
    tsh_tensor_release(x);
}

Test(misuse, peers_get_the_message, .timeout = 120) {
    cr_assert_str_empty(tshi_test_run(2, words_travel, NULL));
    cr_assert_str_empty(tshi_test_run_threads(2, words_travel, NULL));
}

static void overlaps(tshi_rank *r, void *arg) {
    (void)arg;
    tsh_group *group = tsh_world_group(r->world);
    tsh_tensor *whole = tshi_test_vector(r, TSH_FLOAT32, 8), *part = NULL;
    tsh_shape shape = {.ndim = 1, .local = {4}, .global = {4}};
    /* Both ranks pass the second half, which for rank 0 is the peer's part. */
    tshi_check_ok(r, tshi_tensor_view(whole, &shape, whole->layout, 16, &part));
    tsh_status wanted = r->rank == 0 ? TSH_ERR_ARGUMENT : TSH_ERR_PEER;
    tshi_check_status(r, tsh_all_gather_into_tensor(group, part, whole, NULL), wanted, "overlap outside");
    tshi_check_status(r, tsh_reduce_scatter_tensor(group, whole, part, NULL, TSH_REDUCE_SUM), wanted,
                      "overlap outside");
    tshi_tensor_release(part);
    tsh_tensor_release(whole);
    still_works(r);
}

Test(misuse, overlaps, .timeout = 120) {
    cr_assert_str_empty(tshi_test_run(2, overlaps, NULL));
}

static void scalars(tshi_rank *r, void *arg) {
    (void)arg;
    tsh_group *group = tsh_world_group(r->world);
    tsh_tensor_config config = {.dtype = TSH_FLOAT32};
    tsh_tensor *a = NULL, *b = NULL;
    tshi_check_ok(r, tsh_tensor_create(tsh_world_mesh(r->world), &config, &a));
    tshi_check_ok(r, tsh_tensor_create(tsh_world_mesh(r->world), &config, &b));
    tshi_check_status(r, tsh_all_gather_into_tensor(group, b, a, NULL), TSH_ERR_SHAPE, "no dim 0");
    tshi_check_ok(r, tsh_all_reduce(group, a, TSH_REDUCE_SUM));
    tsh_tensor_release(a);
    tsh_tensor_release(b);
}

Test(misuse, a_scalar_has_no_parts, .timeout = 120) {
    cr_assert_str_empty(tshi_test_run(1, scalars, NULL));
    cr_assert_str_empty(tshi_test_run(2, scalars, NULL));
}

Test(misuse, no_group, .timeout = 120) {
    cr_assert_eq(tsh_all_reduce(NULL, NULL, TSH_REDUCE_SUM), TSH_ERR_ARGUMENT);
    cr_assert_eq(tsh_all_gather_into_tensor(NULL, NULL, NULL, NULL), TSH_ERR_ARGUMENT);
    cr_assert_eq(tsh_reduce_scatter_tensor(NULL, NULL, NULL, NULL, TSH_REDUCE_SUM), TSH_ERR_ARGUMENT);
    cr_assert_eq(tsh_broadcast(NULL, NULL, 0), TSH_ERR_ARGUMENT);
    cr_assert_eq(tsh_all_to_all(NULL, NULL, NULL, NULL, NULL), TSH_ERR_ARGUMENT);
    cr_assert_eq(tsh_barrier(NULL), TSH_ERR_ARGUMENT);
    cr_assert_str_eq(tsh_error_message(), "barrier: group is NULL");
}

static void two_worlds(tshi_rank *r, void *arg) {
    (void)arg;
    tsh_world_config config = {.heap_bytes = (size_t)64 << 20};
    tsh_world *other = NULL;
    if (!tshi_check_ok(r, tsh_world_init(&config, &other))) return;
    tsh_tensor *x = tshi_test_vector(r, TSH_FLOAT32, 4);
    tshi_check_status(r, tsh_all_reduce(tsh_world_group(other), x, TSH_REDUCE_SUM), TSH_ERR_ARGUMENT, "another world");
    tshi_check_ok(r, tsh_all_reduce(tsh_world_group(r->world), x, TSH_REDUCE_SUM));
    tsh_tensor_release(x);
    tsh_world_destroy(other);
    still_works(r);
}

Test(misuse, two_worlds_in_one_process, .timeout = 120) {
    cr_assert_str_empty(tshi_test_run(2, two_worlds, NULL));
}
