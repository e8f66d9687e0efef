/* Ranks that receive nothing return early from a call: nothing is overwritten before it is read, and a mismatch is
 * reported by a later call. */
#include "dist/transport/shm/shm.h"
#include "support/clock.h"
#include "support/collectives.h"
#include "support/lines.h"

#include <criterion/criterion.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define CALLS 100

static float *data_of(tsh_tensor *x) {
    return tsh_tensor_data(x);
}

/* --- ahead -------------------------------------------------------------------------------------------------------- */

typedef struct rows {
    int64_t n;
    atomic_int ahead; /* ranks that have made some calls before the root's first one */
} rows;

/* Rank 0 receives a row of each peer, CALLS times, and makes its first call when all peers have made some: contributing
 * ranks are ahead of it, by no more than the ring of slots allows. */
static void ahead(tshi_rank *r, void *arg) {
    rows *w = arg;
    const int64_t n = w->n;
    tsh_group *group = tsh_world_group(r->world);
    tsh_tensor *row = tshi_test_vector(r, TSH_FLOAT32, n);
    tsh_tensor *all = r->rank == 0 ? tshi_test_vector(r, TSH_FLOAT32, n * r->size) : NULL;
    tshi_check_ok(r, tsh_barrier(group));
    for (int call = 0; call < CALLS && !r->failed; call++) {
        if (r->rank == 0 && call % 40 == 0 && call) tshi_nap(0.1);
        if (r->rank == 0 && !tshi_test_await(r, &w->ahead, r->size - 1)) break;
        if (r->rank != 0 && call == 3) atomic_fetch_add(&w->ahead, 1);
        for (int64_t i = 0; i < n; i++) data_of(row)[i] = (float)(1000 * r->rank + call);
        tshi_check_ok(r, tsh_gather_to_root(group, row, all, NULL, 0));
        for (int64_t i = 0; r->rank == 0 && i < n * r->size; i++) {
            float wanted = (float)(1000 * (i / n) + call);
            if (!tshi_check(r, data_of(all)[i] == wanted, "call %d: [%d] is %g", call, (int)i, data_of(all)[i])) break;
        }
    }
    tshi_check_ok(r, tsh_barrier(group));
    tsh_tensor_release(row);
    tsh_tensor_release(all);
}

Test(early_return, contributing_ranks_are_ahead, .timeout = 120) {
    for (int i = 0; i < 6; i++) {
        rows *w = tshi_test_shared(sizeof *w);
        w->n = i % 2 ? 300 : 1;
        if (i < 4)
            cr_assert_str_empty(tshi_test_run(2 + i / 2, ahead, w));
        else
            cr_assert_str_empty(tshi_test_run_threads(3, ahead, w));
    }
}

/* Roots change, and blocking and started calls come between: every value arrives. */
static void mixed(tshi_rank *r, void *arg) {
    (void)arg;
    tsh_group *group = tsh_world_group(r->world);
    tsh_tensor *x = tshi_test_vector(r, TSH_FLOAT32, 40), *y = tshi_test_vector(r, TSH_FLOAT32, 40);
    for (int call = 0; call < 300 && !r->failed; call++) {
        int root = call / 3 % r->size;
        if ((call + r->rank) % 37 == 0) tshi_nap(0.002);
        data_of(x)[39] = (float)(r->rank == root ? call : -1);
        tshi_check_ok(r, tsh_broadcast(group, x, root));
        tshi_check(r, data_of(x)[39] == (float)call, "broadcast %d returned %g", call, data_of(x)[39]);
        data_of(x)[39] = (float)(call + r->rank);
        tshi_check_ok(r, tsh_reduce_to_root(group, x, TSH_REDUCE_MAX, root));
        float wanted = (float)(call + (r->rank == root ? r->size - 1 : r->rank));
        tshi_check(r, data_of(x)[39] == wanted, "reduce %d returned %g", call, data_of(x)[39]);
        if (call % 5 == 0) {
            tsh_work *work = NULL;
            data_of(y)[0] = 1;
            tshi_check_ok(r, tsh_all_reduce_async(group, y, TSH_REDUCE_SUM, &work));
            tshi_check_ok(r, tsh_work_wait(work));
            tshi_check(r, data_of(y)[0] == (float)r->size, "all_reduce %d returned %g", call, data_of(y)[0]);
            tsh_work_release(work);
        }
    }
    tsh_tensor_release(x);
    tsh_tensor_release(y);
}

Test(early_return, between_other_calls, .timeout = 120) {
    cr_assert_str_empty(tshi_test_run_each(2, 4, mixed, NULL));
    cr_assert_str_empty(tshi_test_run_threads(3, mixed, NULL));
}

/* --- what did not match ------------------------------------------------------------------------------------------- */

typedef enum next { BARRIER, GIVES_AGAIN, STARTED } next;

/* What rank 1 calls after it has returned early from its gather. */
static tsh_status next_call(tshi_rank *r, next what, tsh_tensor *x, int *more) {
    tsh_group *group = tsh_world_group(r->world);
    tsh_work *work = NULL;
    tsh_status status = TSH_OK;
    *more = 0;
    switch (what) {
    case GIVES_AGAIN:
        while (status == TSH_OK && ++*more < 2 * TSHI_SLOTS) status = tsh_broadcast(group, x, 1);
        return status;
    case STARTED:
        status = tsh_all_reduce_async(group, x, TSH_REDUCE_SUM, &work);
        if (status == TSH_OK) status = tsh_work_wait(work);
        tsh_work_release(work);
        return status;
    default: return tsh_barrier(group);
    }
}

/* Rank 1 contributes 6 elements where its peers expect 5: their call fails at once, and rank 1's next one. */
static void told(tshi_rank *r, void *arg) {
    const next what = *(const next *)arg;
    tsh_group *group = tsh_world_group(r->world);
    tsh_tensor *x = tshi_test_vector(r, TSH_FLOAT32, 6), *y = tshi_test_vector(r, TSH_FLOAT32, 5);
    int more;
    if (r->rank == 1) {
        tshi_check_ok(r, tsh_reduce_to_root(group, x, TSH_REDUCE_SUM, 0));
        tsh_status status = next_call(r, what, x, &more);
        tshi_check_status(r, status, TSH_ERR_MISMATCH, "rank 0: reduce float32 [5] sum root 0 #");
        tshi_check_status(r, status, TSH_ERR_MISMATCH, "rank 1: reduce float32 [6] sum root 0 #");
        tshi_check_status(r, status, TSH_ERR_MISMATCH, "(an earlier call)");
        tshi_check(r, more < TSHI_SLOTS, "the error came after %d calls", more);
    } else {
        tsh_status status = tsh_reduce_to_root(group, y, TSH_REDUCE_SUM, 0);
        tshi_check_status(r, status, TSH_ERR_MISMATCH, "rank 1: reduce float32 [6] sum root 0 #");
        tsh_tensor *z = what == GIVES_AGAIN || what == STARTED ? x : y;
        do status = next_call(r, what == GIVES_AGAIN ? BARRIER : what, z, &more), z = x;
        while (what == GIVES_AGAIN && status == TSH_ERR_MISMATCH);
        tshi_check_status(r, status, TSH_ERR_PEER, "rank 1: rank 0: reduce float32 [5] sum root 0 #");
    }
    tshi_check_ok(r, tsh_barrier(group));
    tshi_try_all(r, group, TSH_FLOAT32, 100);
    tsh_tensor_release(x);
    tsh_tensor_release(y);
}

Test(early_return, mismatch_is_reported, .timeout = 120) {
    for (next what = BARRIER; what <= STARTED; what++) {
        cr_assert_str_empty(tshi_test_run(2, told, &what), "%d", (int)what);
        cr_assert_str_empty(tshi_test_run_threads(2, told, &what), "%d", (int)what);
    }
}

/* Each of two ranks takes the other for the root, and both return early: the next call of each fails. */
static void both_leave(tshi_rank *r, void *arg) {
    (void)arg;
    tsh_group *group = tsh_world_group(r->world);
    tsh_tensor *x = tshi_test_vector(r, TSH_FLOAT32, 8);
    tshi_check_ok(r, tsh_broadcast(group, x, r->rank));
    tsh_status status = tsh_all_reduce(group, x, TSH_REDUCE_SUM);
    tshi_check_status(r, status, TSH_ERR_MISMATCH, "rank 0: broadcast float32 [8] root 0 #");
    tshi_check_status(r, status, TSH_ERR_MISMATCH, "rank 1: broadcast float32 [8] root 1 #");
    tshi_try_all(r, group, TSH_FLOAT32, 100);
    tsh_tensor_release(x);
}

Test(early_return, both_ranks_return_early, .timeout = 120) {
    cr_assert_str_empty(tshi_test_run(2, both_leave, NULL));
    cr_assert_str_empty(tshi_test_run_threads(2, both_leave, NULL));
}

/* Where no later call reports the mismatch (the next one fails by itself, or there is none), the log does. */
static void logged(tshi_rank *r, void *arg) {
    const bool closes = *(const bool *)arg;
    tshi_lines log = {""};
    tsh_world_config config = {.heap_bytes = (size_t)64 << 20, .log = {tshi_keep_line, &log}};
    if (!tshi_check_ok(r, tsh_world_init(&config, &r->world))) return;
    tsh_group *group = tsh_world_group(r->world), *pair = NULL;
    tshi_check_ok(r, tsh_group_create(r->world, (int[]){0, 1}, 2, &pair));
    tsh_tensor *x = tshi_test_vector(r, TSH_FLOAT32, 6), *y = tshi_test_vector(r, TSH_FLOAT32, 5);
    tsh_status status = tsh_reduce_to_root(pair, r->rank ? x : y, TSH_REDUCE_SUM, 0);
    tshi_check_status(r, status, r->rank ? TSH_OK : TSH_ERR_MISMATCH, "");
    if (!closes && r->rank == 1) tshi_check_status(r, tsh_broadcast(pair, x, 5), TSH_ERR_RANGE, "root 5");
    if (!closes && r->rank == 0) tshi_check_status(r, tsh_barrier(pair), TSH_ERR_PEER, "rank 1: broadcast: root 5");
    tshi_check_ok(r, tsh_barrier(group));
    tsh_group_destroy(pair);
    bool there = strstr(log.text, "rank 1: reduce float32 [6] sum root 0 #") && strstr(log.text, "(an earlier call)");
    tshi_check(r, there == (r->rank == 1), "the log says \"%s\"", log.text);
    tsh_tensor_release(x);
    tsh_tensor_release(y);
    tsh_world_destroy(r->world);
    r->world = NULL;
}

Test(early_return, mismatch_is_logged, .timeout = 120) {
    tshi_test_options options = {.ranks = 2, .bare = true};
    for (int closes = 0; closes < 2; closes++) {
        bool arg = closes;
        cr_assert_str_empty(tshi_test_run_with(&options, logged, &arg, NULL, NULL));
    }
}

/* --- deaths ------------------------------------------------------------------------------------------------------- */

/* The contributions of a rank that died later arrive. */
static void dies_after_giving(tshi_rank *r, void *arg) {
    (void)arg;
    tsh_group *group = tsh_world_group(r->world);
    tsh_tensor *x = tshi_test_vector(r, TSH_FLOAT32, 30);
    for (int i = 0; i < 30; i++) data_of(x)[i] = (float)(r->rank + 1);
    tshi_check_ok(r, tsh_barrier(group));
    if (r->rank == 1) {
        for (int i = 0; i < 3; i++) tsh_reduce_to_root(group, x, TSH_REDUCE_SUM, 0);
        kill(getpid(), SIGKILL);
    }
    tshi_nap(0.3);
    for (int i = 0; i < 3; i++) {
        data_of(x)[29] = 1;
        tshi_check_ok(r, tsh_reduce_to_root(group, x, TSH_REDUCE_SUM, 0));
        tshi_check(r, data_of(x)[29] == 3, "the sum is %g", data_of(x)[29]);
    }
    tshi_check_status(r, tsh_reduce_to_root(group, x, TSH_REDUCE_SUM, 0), TSH_ERR_PEER, "rank 1 died");
    tsh_tensor_release(x);
}

Test(early_return, rank_dies_afterwards, .timeout = 120) {
    tshi_outcome outcomes[2];
    tshi_test_options options = {.ranks = 2};
    tshi_test_run_with(&options, dies_after_giving, NULL, outcomes, NULL);
    cr_assert_str_empty(outcomes[0].words);
    cr_assert_eq(outcomes[0].code, 0);
    cr_assert_eq(outcomes[1].signal, SIGKILL);
}

/* A root stops, or fails: a contributing rank gets an error although it never waits for the root. */
static void root_is_gone(tshi_rank *r, void *arg) {
    const bool fails = *(const bool *)arg;
    tsh_group *group = tsh_world_group(r->world);
    tsh_tensor *x = tshi_test_vector(r, TSH_FLOAT32, 30);
    tshi_check_ok(r, tsh_barrier(group));
    if (!fails) r->world->timeout = 0.3;
    if (r->rank == 0 && fails) {
        tshi_nap(0.2);
        tsh_world_fail(r->world, "no more");
    } else if (r->rank == 0) {
        raise(SIGSTOP);
    } else {
        double start = tshi_now();
        tsh_status status = TSH_OK;
        while (status == TSH_OK && tshi_now() - start < TSHI_SOON)
            status = tsh_reduce_to_root(group, x, TSH_REDUCE_SUM, 0);
        if (fails)
            tshi_check_status(r, status, TSH_ERR_PEER, "rank 0: no more");
        else
            tshi_check_status(r, status, TSH_ERR_TIMEOUT, "rank 0 did not come within 0.3 s");
    }
    if (fails) {
        tshi_check_ok(r, tsh_world_recover(r->world));
        tshi_try_all(r, group, TSH_FLOAT32, 100);
    }
    tsh_tensor_release(x);
}

Test(early_return, root_has_left, .timeout = 120) {
    tshi_outcome outcomes[2];
    tshi_test_options options = {.ranks = 2};
    bool fails = false;
    tshi_test_run_with(&options, root_is_gone, &fails, outcomes, NULL);
    cr_assert_str_empty(outcomes[1].words);
    cr_assert_eq(outcomes[0].signal, SIGKILL, "a stopped rank is killed when no other is left");
    fails = true;
    cr_assert_str_empty(tshi_test_run(2, root_is_gone, &fails));
    cr_assert_str_empty(tshi_test_run_threads(2, root_is_gone, &fails));
}
