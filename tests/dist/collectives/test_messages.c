/* Point to point: every way that a message can travel, orders, any sender, and messages that do not fit. */
#include "dist/world.h"
#include "support/ranks.h"
#include "support/values.h"
#include "tensor/tensor.h"

#include <criterion/criterion.h>
#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

TestSuite(messages, .timeout = 120);

static void put(tsh_tensor *x, int64_t salt) {
    for (int64_t i = 0; i < x->numel; i++) {
        tshi_put(x->dtype, tshi_data(x), i, tshi_value(x->dtype, TSH_REDUCE_SUM, (int)(salt % 60), i + salt));
    }
}

static bool holds(tshi_rank *r, const tsh_tensor *x, int64_t salt) {
    for (int64_t i = 0; i < x->numel; i++) {
        if (tshi_is(x->dtype, tshi_data(x), i, tshi_value(x->dtype, TSH_REDUCE_SUM, (int)(salt % 60), i + salt)))
            continue;
        return tshi_check(r, false, "%s [%lld]: element %lld is wrong", tsh_dtype_name(x->dtype), (long long)x->numel,
                          (long long)i);
    }
    return true;
}

/* Sizes that travel in a letter, in a cell and through the heap, and those at the limits between them. */
static const int64_t byte_sizes[] = {0, 16, 96, 112, 2048, 4016, 4032, 4048, 100000, 3000000};

static void round_trips(tshi_rank *r, void *arg) {
    (void)arg;
    tsh_group *group = tsh_world_group(r->world);
    int next = (r->rank + 1) % r->size, before = (r->rank + r->size - 1) % r->size, sender = -7;
    for (int dtype = 0; dtype < TSH_DTYPE_COUNT; dtype++) {
        for (size_t s = 0; s < sizeof byte_sizes / sizeof *byte_sizes; s++) {
            int64_t n = byte_sizes[s] / (int64_t)tsh_dtype_size((tsh_dtype)dtype);
            if (n > 10000 && dtype != TSH_FLOAT32) continue;
            tsh_tensor *out = tshi_test_vector(r, (tsh_dtype)dtype, n), *in = tshi_test_vector(r, (tsh_dtype)dtype, n);
            put(out, r->rank);
            tsh_work *work;
            tshi_check_ok(r, tsh_send_async(group, out, next, &work));
            bool good = tshi_check_ok(r, tsh_recv(group, in, s % 2 ? before : TSH_ANY_RANK, &sender)) &&
                        tshi_check_ok(r, tsh_work_wait(work)) && holds(r, in, before) &&
                        tshi_check(r, sender == before, "the sender is %d, not %d", sender, before);
            tsh_work_release(work);
            tsh_tensor_release(out);
            tsh_tensor_release(in);
            if (!good) return;
        }
    }
    tsh_communication_stats stats = tsh_group_stats(group);
    tshi_check(r,
               stats.calls[TSH_COLLECTIVE_SEND] == stats.calls[TSH_COLLECTIVE_RECV] &&
                   stats.calls[TSH_COLLECTIVE_SEND] > 50,
               "counts");
    tshi_check(r, stats.bytes[TSH_COLLECTIVE_SEND] > 3000000 && stats.bytes[TSH_COLLECTIVE_RECV] == 0, "bytes");
}

Test(messages, of_every_size_around_a_ring) {
    cr_assert_str_empty(tshi_test_run_each(2, 4, round_trips, NULL));
    cr_assert_str_empty(tshi_test_run(7, round_trips, NULL));
    cr_assert_str_empty(tshi_test_run_threads(3, round_trips, NULL));
}

/* Blocking sends and receives by turns. */
static void ping_pong(tshi_rank *r, void *arg) {
    (void)arg;
    tsh_group *group = tsh_world_group(r->world);
    for (size_t s = 0; s < sizeof byte_sizes / sizeof *byte_sizes; s++) {
        tsh_tensor *x = tshi_test_vector(r, TSH_INT64, byte_sizes[s] / 8);
        for (int i = 0; i < 100; i++) {
            if (r->rank == 0) {
                put(x, i);
                tshi_check_ok(r, tsh_send(group, x, 1));
                put(x, i + 9);
            }
            tshi_check_ok(r, tsh_recv(group, x, 1 - r->rank, NULL));
            if (!holds(r, x, i)) break;
            if (r->rank == 1) tshi_check_ok(r, tsh_send(group, x, 0));
            if (r->failed || byte_sizes[s] > 100000) break;
        }
        tsh_tensor_release(x);
    }
}

Test(messages, ping_pong) {
    cr_assert_str_empty(tshi_test_run(2, ping_pong, NULL));
    cr_assert_str_empty(tshi_test_run_threads(2, ping_pong, NULL));
}

/* Rank 0 receives from the last rank first, although other ranks have sent before; their messages arrive afterwards. */
static void from_the_one_that_is_wanted(tshi_rank *r, void *arg) {
    (void)arg;
    tsh_group *group = tsh_world_group(r->world);
    tsh_tensor *x = tshi_test_vector(r, TSH_FLOAT64, 3);
    for (int i = 0; i < 100 && !r->failed; i++) {
        if (r->rank) {
            if (r->rank == r->size - 1 && i % 10 == 0) usleep(2000);
            put(x, r->rank + i);
            tshi_check_ok(r, tsh_send(group, x, 0));
            continue;
        }
        for (int from = r->size - 1; from > 0; from--) {
            int sender = -1;
            if (!tshi_check_ok(r, tsh_recv(group, x, from, &sender)) || !holds(r, x, from + i)) break;
            tshi_check(r, sender == from, "the sender is %d, not %d", sender, from);
        }
    }
    tsh_communication_stats stats = tsh_group_stats(group);
    const uint64_t calls[2] = {r->rank ? 100 : 0, r->rank ? 0 : 100 * (uint64_t)(r->size - 1)};
    tshi_check(r, stats.calls[TSH_COLLECTIVE_SEND] == calls[0] && stats.calls[TSH_COLLECTIVE_RECV] == calls[1],
               "counts");
    tshi_check(r, stats.bytes[TSH_COLLECTIVE_SEND] == 24 * calls[0], "bytes");
    tsh_tensor_release(x);
}

Test(messages, from_a_named_rank) {
    cr_assert_str_empty(tshi_test_run(3, from_the_one_that_is_wanted, NULL));
    cr_assert_str_empty(tshi_test_run_threads(3, from_the_one_that_is_wanted, NULL));
}

/* Every rank starts many more messages to every rank than a ring holds, of sizes that travel in different ways, and
 * waits for them in a random order: messages of a pair stay in order. */
#define MANY 150

static void many(tshi_rank *r, void *arg) {
    tsh_group *group = tsh_world_group(r->world);
    static _Thread_local tsh_work *works[2 * MANY * 4];
    static _Thread_local tsh_tensor *tensors[2 * MANY * 4];
    static _Thread_local int64_t salts[2 * MANY * 4];
    const int64_t sizes[] = {1, 300, 7, 2000, 0};
    int n = 0;
    unsigned seed = *(unsigned *)arg + (unsigned)r->rank;
    for (int i = 0; i < MANY; i++) {
        for (int peer = 0; peer < r->size; peer++) {
            if (peer == r->rank) continue;
            for (int side = 0; side < 2; side++, n++) {
                tensors[n] = tshi_test_vector(r, TSH_INT64, sizes[i % 5]);
                bool send = side == (int)(seed % 2);
                salts[n] = send ? -1 : 10 * i + peer;
                if (send) put(tensors[n], 10 * i + r->rank);
                tsh_status status = send ? tsh_send_async(group, tensors[n], peer, &works[n])
                                         : tsh_recv_async(group, tensors[n], peer, &works[n]);
                if (!tshi_check_ok(r, status)) return;
            }
        }
    }
    for (int left = n; left > 0; left--) {
        int k = rand_r(&seed) % left;
        bool good = tshi_check_ok(r, tsh_work_wait(works[k])) && (salts[k] < 0 || holds(r, tensors[k], salts[k]));
        tsh_work_release(works[k]);
        tsh_tensor_release(tensors[k]);
        works[k] = works[left - 1];
        tensors[k] = tensors[left - 1];
        salts[k] = salts[left - 1];
        if (!good) return;
    }
}

Test(messages, any_order_of_waits) {
    for (unsigned seed = 1; seed <= 6; seed++) {
        cr_assert_str_empty(tshi_test_run(2, many, &seed));
        cr_assert_str_empty(tshi_test_run(3, many, &seed));
    }
    for (unsigned seed = 1; seed <= 6; seed++) cr_assert_str_empty(tshi_test_run_threads(4, many, &seed));
}

/* Rank 0 receives from any rank; the messages of each sender arrive in order. */
static void from_anybody(tshi_rank *r, void *arg) {
    (void)arg;
    tsh_group *group = tsh_world_group(r->world);
    int64_t next[8] = {0};
    tsh_tensor *x = tshi_test_vector(r, TSH_INT64, 2);
    int64_t *data = tsh_tensor_data(x);
    for (int i = 0; r->rank && i < 400; i++) {
        data[0] = r->rank;
        data[1] = i;
        if (!tshi_check_ok(r, tsh_send(group, x, 0))) break;
    }
    for (int i = 0; !r->rank && i < 400 * (r->size - 1); i++) {
        int sender = -1;
        if (!tshi_check_ok(r, tsh_recv(group, x, TSH_ANY_RANK, &sender))) break;
        if (!tshi_check(r, sender == data[0] && data[1] == next[sender], "%lld of rank %d came as %lld",
                        (long long)data[1], sender, (long long)next[sender])) {
            break;
        }
        next[sender]++;
    }
    tshi_check_ok(r, tsh_barrier(group));
    tsh_tensor_release(x);
}

Test(messages, from_any_rank) {
    cr_assert_str_empty(tshi_test_run(2, from_anybody, NULL));
    cr_assert_str_empty(tshi_test_run(4, from_anybody, NULL));
    cr_assert_str_empty(tshi_test_run_threads(4, from_anybody, NULL));
}

/* The receiver is in a collective that waits for the sender, while a large message waits for the receiver. */
static void beside_collectives(tshi_rank *r, void *arg) {
    (void)arg;
    tsh_group *group = tsh_world_group(r->world);
    tsh_tensor *x = tshi_test_vector(r, TSH_FLOAT32, 200000), *y = tshi_test_vector(r, TSH_FLOAT32, 50000);
    tsh_work *work = NULL;
    for (int i = 0; i < 20 && !r->failed; i++) {
        put(x, r->rank + i);
        if (r->rank == 1) tshi_check_ok(r, tsh_recv_async(group, x, 0, &work));
        if (r->rank == 0) tshi_check_ok(r, tsh_send(group, x, 1));
        tshi_check_ok(r, tsh_all_reduce(group, y, TSH_REDUCE_SUM));
        if (r->rank == 1) tshi_check_ok(r, tsh_work_wait(work));
        if (r->rank == 1) tshi_check(r, tsh_work_sender(work) == 0, "the sender is %d", tsh_work_sender(work));
        if (r->rank == 1) holds(r, x, i);
        tsh_work_release(work);
        work = NULL;
    }
    tsh_tensor_release(x);
    tsh_tensor_release(y);
}

Test(messages, beside_collectives) {
    cr_assert_str_empty(tshi_test_run(2, beside_collectives, NULL));
    cr_assert_str_empty(tshi_test_run(3, beside_collectives, NULL));
}

static void described(tshi_rank *r, void *arg) {
    (void)arg;
    tsh_group *group = tsh_world_group(r->world);
    const tsh_mesh *mesh = tsh_world_mesh(r->world);
    const tsh_tensor_config configs[] = {{.dtype = TSH_BFLOAT16, .ndim = 3, .shape = {2, 3, 5}},
                                         {.dtype = TSH_COMPLEX128, .ndim = 0},
                                         {.dtype = TSH_FLOAT32, .ndim = 2, .shape = {0, 7}},
                                         {.dtype = TSH_FLOAT64, .ndim = 2, .shape = {300, 100}},
                                         {.dtype = TSH_UINT8, .ndim = 8, .shape = {1, 2, 1, 2, 1, 2, 1, 2}}};
    for (int i = 0; i < 5; i++) {
        tsh_tensor *x = NULL;
        int sender = -1;
        if (r->rank == 1) {
            tshi_check_ok(r, tsh_tensor_create(mesh, &configs[i], &x));
            put(x, i);
            tshi_check_ok(r, tsh_send_new(group, x, 0));
        } else if (r->rank == 0 && tshi_check_ok(r, tsh_recv_new(group, mesh, i % 2 ? 1 : TSH_ANY_RANK, &sender, &x))) {
            tshi_check(r, sender == 1 && tsh_tensor_dtype(x) == configs[i].dtype, "sender or dtype");
            tshi_check(r, tsh_tensor_ndim(x) == configs[i].ndim, "dims");
            for (int d = 0; d < configs[i].ndim; d++) {
                tshi_check(r, tsh_tensor_local_shape(x)[d] == configs[i].shape[d], "dim %d", d);
            }
            tshi_check(r, tsh_tensor_layout(x, group).kind == TSH_KIND_LOCAL, "layout");
            holds(r, x, i);
        }
        tsh_tensor_release(x);
    }
}

Test(messages, with_their_description) {
    cr_assert_str_empty(tshi_test_run(2, described, NULL));
    cr_assert_str_empty(tshi_test_run(3, described, NULL));
}

/* --- wrong use ---------------------------------------------------------------------------------------------------- */

static void wrong(tshi_rank *r, void *arg) {
    (void)arg;
    tsh_group *group = tsh_world_group(r->world);
    tsh_tensor *x = tshi_test_vector(r, TSH_FLOAT32, 3);
    tsh_work *work = (tsh_work *)x;
    tshi_check_status(r, tsh_send(group, x, r->rank), TSH_ERR_ARGUMENT, "are the same");
    tshi_check_status(r, tsh_recv(group, x, r->rank, NULL), TSH_ERR_ARGUMENT, "are the same");
    tshi_check_status(r, tsh_send(group, x, r->size), TSH_ERR_RANGE, "in a group of");
    tshi_check_status(r, tsh_send(group, x, TSH_ANY_RANK), TSH_ERR_RANGE, "rank -1");
    tshi_check_status(r, tsh_recv(group, x, -2, NULL), TSH_ERR_RANGE, "rank -2");
    tshi_check_status(r, tsh_send(NULL, x, 0), TSH_ERR_ARGUMENT, "group is NULL");
    tshi_check_status(r, tsh_send(group, NULL, (r->rank + 1) % r->size), TSH_ERR_ARGUMENT, "tensor is NULL");
    tshi_check_status(r, tsh_send_async(group, x, r->rank, &work), TSH_ERR_ARGUMENT, "are the same");
    tshi_check(r, !work, "work is not NULL after an error");
    tshi_check_status(r, tsh_recv_async(group, x, 0, NULL), TSH_ERR_ARGUMENT, "");
    tshi_check_status(r, tsh_work_wait(NULL), TSH_ERR_ARGUMENT, "work is NULL");
    tsh_work_release(NULL);
    tsh_tensor_release(x);
}

static void alone(tshi_rank *r, void *arg) {
    tsh_tensor *x = tshi_test_vector(r, TSH_FLOAT32, 3);
    tshi_check_status(r, tsh_recv(tsh_world_group(r->world), x, TSH_ANY_RANK, NULL), TSH_ERR_ARGUMENT,
                      "a group of one rank");
    tsh_tensor_release(x);
    (void)arg;
}

Test(messages, wrong_use) {
    cr_assert_str_empty(tshi_test_run(2, wrong, NULL));
    cr_assert_str_empty(tshi_test_run(1, alone, NULL));
}

/* Both sides get an error for a message that does not fit, whichever way it travels, and the group stays usable. */
static void messages_that_do_not_fit(tshi_rank *r, void *arg) {
    (void)arg;
    tsh_group *group = tsh_world_group(r->world);
    const int64_t counts[] = {4, 500, 5000};
    for (int i = 0; i < 6; i++) {
        int64_t n = counts[i / 2];
        tsh_tensor *x = tshi_test_vector(r, TSH_FLOAT64, n), *other;
        other = i % 2 ? tshi_test_vector(r, TSH_INT64, n) : tshi_test_vector(r, TSH_FLOAT64, n + 1);
        tsh_status status = r->rank ? tsh_recv(group, other, 0, NULL) : tsh_send(group, x, 1);
        if (r->rank || n > 1000) {
            tshi_check_status(r, status, TSH_ERR_MISMATCH, "float64");
        } else {
            tshi_check_ok(r, status);
        }
        tshi_check_ok(r, tsh_barrier(group));
        if (!r->rank && n <= 1000) {
            tshi_check_status(r, tsh_send(group, x, 1), TSH_ERR_MISMATCH, "an earlier call");
        }
        put(x, i);
        status = r->rank ? tsh_recv(group, x, 0, NULL) : tsh_send(group, x, 1);
        tshi_check_ok(r, status);
        holds(r, x, i);
        tsh_tensor_release(x);
        tsh_tensor_release(other);
    }
    tsh_tensor *x = tshi_test_vector(r, TSH_INT64, 10), *y = NULL;
    if (r->rank == 0) tshi_check_ok(r, tsh_send_new(group, x, 1));
    if (r->rank == 1) {
        tshi_check_status(r, tsh_recv(group, x, 0, NULL), TSH_ERR_MISMATCH, "a description");
        tshi_check_ok(r, tsh_recv(group, x, 0, NULL));
    }
    tsh_tensor_release(x);
    tsh_tensor_release(y);
}

Test(messages, that_do_not_fit) {
    cr_assert_str_empty(tshi_test_run(2, messages_that_do_not_fit, NULL));
}

/* --- failures ----------------------------------------------------------------------------------------------------- */

typedef struct end {
    int how; /* 0: killed, 1: fails, 2: leaves, 3: stopped */
    bool any, large;
    atomic_int *told;    /* ranks that know of it */
    atomic_int *waiting; /* rank 0 */
} end;

static void ends(tshi_rank *r, void *arg) {
    const end *e = arg;
    tsh_group *group = tsh_world_group(r->world);
    tsh_tensor *x = tshi_test_vector(r, TSH_FLOAT32, e->large ? 100000 : 10);
    tsh_work *works[2] = {NULL, NULL};
    tshi_check_ok(r, tsh_barrier(group));
    if (e->how == 3) r->world->timeout = 0.3;
    if (r->rank == 1) {
        tshi_test_await(r, e->waiting, 1);
        if (e->how == 0) raise(SIGKILL);
        if (e->how == 1) tsh_world_fail(r->world, "no more");
        if (e->how == 3) raise(SIGSTOP);
        if (e->how == 2) {
            tsh_tensor_release(x);
            tsh_world_destroy(r->world);
            r->world = NULL;
            tshi_test_await(r, e->told, 1); /* it leaves its world, and lives */
            return;
        }
    } else {
        tsh_status wanted = e->how == 3 ? TSH_ERR_TIMEOUT : TSH_ERR_PEER;
        if (e->large) tshi_check_ok(r, tsh_send_async(group, x, 1, &works[0]));
        tshi_check_ok(r, tsh_recv_async(group, x, e->any ? TSH_ANY_RANK : 1, &works[1]));
        atomic_fetch_add(e->waiting, 1);
        tshi_check_status(r, tsh_work_wait(works[1]), wanted, "rank 1");
        if (e->large) tshi_check_status(r, tsh_work_wait(works[0]), wanted, "rank 1");
        tsh_work_release(works[0]);
        tsh_work_release(works[1]);
        if (e->how != 1) tshi_check_status(r, tsh_send(group, x, 1), wanted, "");
        atomic_fetch_add(e->told, 1);
    }
    if (e->how == 1) {
        tshi_check_ok(r, tsh_world_recover(r->world));
        put(x, 5 * r->rank);
        tshi_check_ok(r, r->rank ? tsh_send(group, x, 0) : tsh_recv(group, x, 1, NULL));
        holds(r, x, 5);
    }
    tsh_tensor_release(x);
}

Test(messages, of_ranks_that_end) {
    for (int k = 0; k < 14; k++) {
        atomic_int *events = tshi_test_shared(2 * sizeof *events);
        end e = {k / 4, k % 2, k / 2 % 2, events, events + 1};
        tshi_outcome outcomes[2];
        tshi_test_options options = {.ranks = 2};
        const char *words = tshi_test_run_with(&options, ends, &e, outcomes, NULL);
        cr_assert_str_empty(outcomes[0].words, "%d: %s", k, outcomes[0].words);
        if (e.how == 1 || e.how == 2) cr_assert_str_empty(words, "%d: %s", k, words);
    }
}
