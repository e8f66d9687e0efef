/* Asynchronous calls: several under way, on several groups, waited for in any order, and their failures. */
#include "dist/world.h"
#include "support/collectives.h"
#include "tensor/tensor.h"

#include <criterion/criterion.h>
#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

TestSuite(async, .timeout = 120);

#define FLIGHT 12

static void fill(tsh_tensor *x, double value) {
    tsh_tensor_fill(x, value);
}

static bool all_are(tshi_rank *r, const tsh_tensor *x, float wanted) {
    const float *data = tshi_data(x);
    for (int64_t i = 0; i < x->numel; i++) {
        if (!tshi_check(r, data[i] == wanted, "element %lld is %g, not %g", (long long)i, (double)data[i],
                        (double)wanted)) {
            return false;
        }
    }
    return true;
}

/* Sums of near and far sizes on groups of two meshes; each rank waits for them in an order of its own. */
static void in_flight(tshi_rank *r, void *arg) {
    unsigned seed = *(unsigned *)arg * 7 + (unsigned)r->rank;
    tsh_mesh *mesh = NULL;
    if (!tshi_check_ok(r, tsh_mesh_create(r->world, "data=2,model=-1", &mesh))) return;
    tsh_group *groups[] = {tsh_world_group(r->world), tsh_mesh_group(mesh, "data"), tsh_mesh_group(mesh, "model")};
    const int64_t sizes[] = {5, 100000, 0, 700};
    for (int round = 0; round < 5 && !r->failed; round++) {
        tsh_work *works[FLIGHT];
        tsh_tensor *tensors[FLIGHT];
        float wanted[FLIGHT];
        for (int i = 0; i < FLIGHT; i++) {
            tsh_group *group = groups[i % 3];
            tensors[i] = tshi_test_vector(r, TSH_FLOAT32, sizes[i % 4]);
            fill(tensors[i], r->rank + i);
            wanted[i] = 0;
            for (int k = 0; k < tsh_group_size(group); k++) wanted[i] += (float)(tsh_group_world_rank(group, k) + i);
            tshi_check_ok(r, tsh_all_reduce_async(group, tensors[i], TSH_REDUCE_SUM, &works[i]));
        }
        /* A blocking call runs after the started calls of its group, and calls of other groups progress meanwhile. */
        tshi_try_all_reduce(r, groups[round % 3], TSH_INT64, TSH_REDUCE_SUM, 3000);
        for (int left = FLIGHT; left > 0; left--) {
            int k = rand_r(&seed) % left;
            bool good = tshi_check_ok(r, tsh_work_wait(works[k])) && all_are(r, tensors[k], wanted[k]);
            tsh_work_release(works[k]);
            tsh_tensor_release(tensors[k]);
            works[k] = works[left - 1];
            tensors[k] = tensors[left - 1];
            wanted[k] = wanted[left - 1];
            if (!good) break;
        }
    }
    tsh_mesh_destroy(mesh);
}

Test(async, several_in_flight) {
    for (unsigned seed = 1; seed <= 5; seed++) {
        cr_assert_str_empty(tshi_test_run(2, in_flight, &seed));
        cr_assert_str_empty(tshi_test_run(4, in_flight, &seed));
    }
    for (unsigned seed = 1; seed <= 5; seed++) cr_assert_str_empty(tshi_test_run_threads(4, in_flight, &seed));
}

/* One rank starts the collective, the other makes the blocking call: they match. */
static void mixed(tshi_rank *r, void *arg) {
    (void)arg;
    for (int i = 0; i < 40; i++) {
        tshi_try_started((i + r->rank) % 2);
        if (!tshi_try_all(r, tsh_world_group(r->world), TSH_FLOAT32, i < 20 ? 100 : 5000)) return;
    }
}

Test(async, mixed_with_blocking_ones) {
    cr_assert_str_empty(tshi_test_run(2, mixed, NULL));
    cr_assert_str_empty(tshi_test_run(3, mixed, NULL));
}

/* A work that is never tested progresses in the next call that waits; its release waits. */
static void left_alone(tshi_rank *r, void *arg) {
    (void)arg;
    tsh_group *group = tsh_world_group(r->world);
    tsh_tensor *x = tshi_test_vector(r, TSH_FLOAT32, 50000);
    tsh_work *work;
    bool done = false;
    fill(x, 1);
    tshi_check_ok(r, tsh_all_reduce_async(group, x, TSH_REDUCE_SUM, &work));
    tshi_check_ok(r, tsh_barrier(group));
    tshi_check_ok(r, tsh_work_test(work, &done));
    tshi_check(r, done, "a barrier later it is not done");
    tshi_check_ok(r, tsh_work_wait(work));
    tshi_check_ok(r, tsh_work_wait(work));
    all_are(r, x, (float)r->size);
    tsh_work_release(work);
    tshi_check_ok(r, tsh_all_reduce_async(group, x, TSH_REDUCE_SUM, &work));
    tsh_work_release(work);
    all_are(r, x, (float)(r->size * r->size));
    /* The work holds a reference to the tensor. */
    tshi_check_ok(r, tsh_all_reduce_async(group, x, TSH_REDUCE_SUM, &work));
    tsh_tensor_release(x);
    tshi_check_ok(r, tsh_work_wait(work));
    tsh_work_release(work);
    tsh_communication_stats stats = tsh_group_stats(group);
    tshi_check(r, stats.calls[TSH_COLLECTIVE_ALL_REDUCE] == 3, "%llu calls", (unsigned long long)stats.calls[0]);
}

Test(async, left_alone) {
    cr_assert_str_empty(tshi_test_run(1, left_alone, NULL));
    cr_assert_str_empty(tshi_test_run(2, left_alone, NULL));
    cr_assert_str_empty(tshi_test_run(3, left_alone, NULL));
}

/* --- what goes wrong ---------------------------------------------------------------------------------------------- */

/* The second of three calls does not match, or cannot be made on one rank; the first and third succeed. */
static void one_of_three(tshi_rank *r, void *arg) {
    (void)arg;
    tsh_group *group = tsh_world_group(r->world);
    tsh_tensor *x[3];
    tsh_work *works[3];
    for (int bad = 0; bad < 2; bad++) {
        for (int i = 0; i < 3; i++) {
            x[i] = tshi_test_vector(r, TSH_FLOAT32, 2000);
            fill(x[i], i + 1);
        }
        bool other = r->rank == 1;
        tshi_check_ok(r, tsh_all_reduce_async(group, x[0], TSH_REDUCE_SUM, &works[0]));
        if (bad && other) {
            tshi_check_status(r, tsh_all_reduce_async(group, NULL, TSH_REDUCE_SUM, &works[1]), TSH_ERR_ARGUMENT,
                              "NULL");
            tshi_check(r, !works[1], "work is not NULL after an error");
        } else {
            tshi_check_ok(r, tsh_all_reduce_async(group, x[1], other ? TSH_REDUCE_MAX : TSH_REDUCE_SUM, &works[1]));
        }
        tshi_check_ok(r, tsh_all_reduce_async(group, x[2], TSH_REDUCE_SUM, &works[2]));
        tshi_check_ok(r, tsh_work_wait(works[2]));
        if (works[1] && bad) tshi_check_status(r, tsh_work_wait(works[1]), TSH_ERR_PEER, "rank 1: all_reduce: tensor");
        if (works[1] && !bad) tshi_check_status(r, tsh_work_wait(works[1]), TSH_ERR_MISMATCH, "max");
        tshi_check_ok(r, tsh_work_wait(works[0]));
        all_are(r, x[0], (float)r->size);
        all_are(r, x[1], 2);
        all_are(r, x[2], (float)(3 * r->size));
        for (int i = 0; i < 3; i++) {
            tsh_work_release(works[i]);
            tsh_tensor_release(x[i]);
        }
    }
}

Test(async, one_of_three_is_bad) {
    cr_assert_str_empty(tshi_test_run(2, one_of_three, NULL));
    cr_assert_str_empty(tshi_test_run(3, one_of_three, NULL));
}

typedef struct end {
    int how;             /* 0: killed, 1: fails, 2: leaves, 3: stopped */
    int when;            /* 0: before its call, 1: after it has started it */
    atomic_int *waiting; /* its peers */
} end;

static void ends(tshi_rank *r, void *arg) {
    const end *e = arg;
    tsh_group *group = tsh_world_group(r->world);
    tsh_tensor *x = tshi_test_vector(r, TSH_FLOAT32, 100000), *y = tshi_test_vector(r, TSH_FLOAT32, 10);
    tsh_work *a = NULL, *b = NULL;
    tshi_check_ok(r, tsh_barrier(group));
    if (e->how == 3) r->world->timeout = 0.3;
    if (r->rank != 1 || e->when == 1) tshi_check_ok(r, tsh_all_reduce_async(group, x, TSH_REDUCE_SUM, &a));
    if (r->rank == 1) {
        tshi_test_await(r, e->waiting, r->size - 1);
        if (e->how == 0) raise(SIGKILL);
        if (e->how == 1) tsh_world_fail(r->world, "no more");
        if (e->how == 3) raise(SIGSTOP);
        if (e->how == 2) _exit(0);
        tshi_check_status(r, tsh_barrier(group), TSH_ERR_STATE, "recover is due");
    } else {
        tsh_status wanted = e->how == 3 ? TSH_ERR_TIMEOUT : TSH_ERR_PEER;
        tshi_check_ok(r, tsh_all_reduce_async(group, y, TSH_REDUCE_SUM, &b));
        atomic_fetch_add(e->waiting, 1);
        tsh_status status = tsh_work_wait(b);
        /* With three ranks one of the two that wait may get the error through the other. */
        bool good = status == wanted || (e->how == 3 && r->size == 3 && status == TSH_ERR_PEER);
        tshi_check(r, good, "%s: %s", tsh_status_name(status), tsh_error_message());
        /* A rank that has posted and moved its part may leave without harm. */
        if (e->when == 0) tshi_check(r, tsh_work_wait(a) == status, "the first call is well");
        if (e->how == 0 || e->how == 2) tshi_check_status(r, tsh_work_wait(b), TSH_ERR_PEER, "rank 1 died");
    }
    tsh_work_release(b);
    if (e->how == 1) {
        /* The recovery ends the calls in flight, and none of their data arrives later. */
        tsh_work *forgotten = NULL;
        if (r->rank == 0) tsh_all_reduce_async(group, y, TSH_REDUCE_SUM, &forgotten);
        tshi_check_ok(r, tsh_world_recover(r->world));
        if (forgotten) tshi_check(r, tsh_work_wait(forgotten) != TSH_OK, "a call outlived the recovery");
        tsh_work_release(forgotten);
        for (int i = 0; i < 3; i++) tshi_try_all_reduce(r, group, TSH_FLOAT32, TSH_REDUCE_SUM, i * 2000);
    }
    tsh_work_release(a);
    tsh_tensor_release(x);
    tsh_tensor_release(y);
}

Test(async, ranks_that_end) {
    for (int k = 0; k < 16; k++) {
        end e = {k / 4, k % 2, tshi_test_shared(sizeof(atomic_int))};
        int ranks = 2 + k / 2 % 2;
        tshi_outcome outcomes[3];
        tshi_test_options options = {.ranks = ranks};
        const char *words = tshi_test_run_with(&options, ends, &e, outcomes, NULL);
        cr_assert_str_empty(outcomes[0].words, "%d: %s", k, outcomes[0].words);
        if (e.how == 1) cr_assert_str_empty(words, "%d: %s", k, words);
    }
}

/* --- memory ------------------------------------------------------------------------------------------------------- */

static void *count_alloc(void *user, size_t size) {
    ++*(int *)user;
    return malloc(size);
}

static void count_release(void *user, void *pointer) {
    (void)user;
    free(pointer);
}

/* Messages that arrive before their receives, more at a time than in the steady state: the first receive stores all
 * messages before its own. */
static void keep_some(tshi_rank *r, tsh_tensor *x) {
    tsh_group *group = tsh_world_group(r->world);
    for (int i = 0; r->rank && i < 6; i++) tshi_check_ok(r, tsh_send(group, x, 0));
    tshi_check_ok(r, tsh_barrier(group));
    for (int i = 0; !r->rank && i < 6; i++) tshi_check_ok(r, tsh_recv(group, x, 1, NULL));
}

static void steady(tshi_rank *r, void *arg) {
    (void)arg;
    int allocations = 0, before = 0;
    const tsh_world_config config = {.allocator = {count_alloc, count_release, NULL, &allocations}};
    if (!tshi_check_ok(r, tsh_world_init(&config, &r->world))) return;
    tsh_group *group = tsh_world_group(r->world);
    tsh_tensor *x = tshi_test_vector(r, TSH_FLOAT32, 20000), *y = tshi_test_vector(r, TSH_FLOAT32, 10);
    keep_some(r, y);
    for (int i = 0; i < 50; i++) {
        if (i == 10) before = allocations;
        tsh_work *works[4];
        int peer = 1 - r->rank;
        tshi_check_ok(r, tsh_all_reduce_async(group, x, TSH_REDUCE_SUM, &works[0]));
        tshi_check_ok(r, tsh_all_reduce_async(group, y, TSH_REDUCE_SUM, &works[1]));
        tshi_check_ok(r,
                      r->rank ? tsh_send_async(group, x, peer, &works[2]) : tsh_recv_async(group, x, peer, &works[2]));
        tshi_check_ok(r,
                      r->rank ? tsh_send_async(group, y, peer, &works[3]) : tsh_recv_async(group, y, peer, &works[3]));
        for (int k = 3; k >= 0; k--) {
            tshi_check_ok(r, tsh_work_wait(works[k]));
            tsh_work_release(works[k]);
        }
        tshi_check_ok(r, r->rank ? tsh_send(group, y, peer) : tsh_recv(group, y, peer, NULL));
        tshi_check_ok(r, tsh_barrier(group));
    }
    tshi_check(r, allocations == before, "%d allocations in a steady state", allocations - before);
    tsh_tensor_release(x);
    tsh_tensor_release(y);
    tsh_world_destroy(r->world);
    r->world = NULL;
}

Test(async, no_allocation_in_a_steady_state) {
    tshi_test_options options = {.ranks = 2, .bare = true};
    cr_assert_str_empty(tshi_test_run_with(&options, steady, NULL, NULL, NULL));
}
