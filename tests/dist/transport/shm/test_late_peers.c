/* A call that fails while a peer still moves its data: it returns when the peer is done, or when the peer, which may be
 * stopped for ever, can no longer reach the memory; and no rank takes what has changed meanwhile for a result. */
#include "dist/collectives/redistribute.h"
#include "dist/world.h"
#include "support/clock.h"
#include "support/collectives.h"

#include <criterion/criterion.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#define PART     1024      /* elements, too many for a slot */
#define COUNT    (1 << 17) /* from so many on all_gather writes into its peers' memory */

#define EXCHANGE TSH_COLLECTIVE_COUNT /* of boxes, in place */

/* Rank 1's copies and reductions wait in here. */
typedef struct stage {
    tsh_collective op;
    bool started;              /* as a started call */
    bool times_out;            /* the call fails since its deadline passes; otherwise since rank 2 fails */
    atomic_int moving;         /* rank 1 is about to move data */
    atomic_int unmapped_peers; /* it may go on */
    atomic_int moved;          /* it has */
    atomic_int failed;         /* rank 0's call has returned an error */
    atomic_int ended;          /* rank 1's call has returned */
} stage;

/* Of the rank: each is a process. */
static stage *held;
static tsh_world *world;
static tshi_device_ops late;
static const tshi_device_ops *own;

static void await(const atomic_int *event) {
    double guard = tshi_now() + 60;
    while (!atomic_load(event) && tshi_now() < guard) tshi_nap(0.001);
}

/* Rank 1 moves its data late; rank 0, which has moved its own, then waits for a moment only. */
static void hold(void) {
    if (world->rank == 1 && atomic_fetch_add(&held->moving, 1) == 0) await(&held->unmapped_peers);
    if (world->rank == 1 || !held->times_out) return;
    await(&held->moving);
    world->timeout = 0.1;
}

static void late_copy(tsh_device *device, size_t bytes, const void *from, void *to) {
    bool small = bytes < PART * sizeof(float);
    if (!small) hold();
    own->copy.within(device, bytes, from, to);
    if (!small && world->rank == 1) atomic_store(&held->moved, 1);
}

static void late_reduce(tsh_device *device, tsh_dtype dtype, tshi_reduction op, int64_t n, int count,
                        const void *const *in, int outs, void *const *out) {
    hold();
    own->reduce(device, dtype, op, n, count, in, outs, out);
    if (world->rank == 1) atomic_store(&held->moved, 1);
}

/* A send has nothing to move itself. */
static void *lose_patience(void *arg) {
    (void)arg;
    await(&held->moving);
    world->timeout = 0.1;
    return NULL;
}

static void become_late(tshi_rank *r) {
    world = r->world;
    own = world->host->ops;
    late = *own;
    late.reduce = late_reduce;
    late.copy.within = late_copy;
    world->host->ops = &late;
}

static void fill(tsh_tensor *x, float value) {
    float *data = tsh_tensor_data(x);
    for (int64_t i = 0; i < x->numel; i++) data[i] = value;
}

/* The elements that are not `value`. */
static int64_t others(const tsh_tensor *x, float value) {
    const float *data = tshi_data(x);
    int64_t n = 0;
    for (int64_t i = 0; i < x->numel; i++) n += data[i] != value;
    return n;
}

static tsh_status begin(tsh_group *g, const stage *s, tsh_tensor *in, tsh_tensor *out, tsh_work **work) {
    static const int64_t uneven[] = {PART, 2 * COUNT - PART};
    switch (s->op) {
    case TSH_COLLECTIVE_ALL_REDUCE: return tsh_all_reduce_async(g, in, TSH_REDUCE_SUM, work);
    case TSH_COLLECTIVE_ALL_GATHER: return tsh_all_gather_into_tensor_async(g, in, out, uneven, work);
    case TSH_COLLECTIVE_REDUCE_SCATTER: return tsh_reduce_scatter_tensor_async(g, in, out, NULL, TSH_REDUCE_SUM, work);
    case TSH_COLLECTIVE_BROADCAST: return tsh_broadcast_async(g, in, 0, work);
    case TSH_COLLECTIVE_ALL_TO_ALL: return tsh_all_to_all_async(g, in, NULL, out, NULL, work);
    case TSH_COLLECTIVE_GATHER: return tsh_gather_to_root_async(g, in, out, NULL, 0, work);
    case TSH_COLLECTIVE_SCATTER: return tsh_scatter_from_root_async(g, in, out, NULL, 0, work);
    case TSH_COLLECTIVE_SEND:
        return tsh_group_rank(g) == 0 ? tsh_send_async(g, in, 1, work) : tsh_recv_async(g, out, 0, work);
    default: return TSH_ERR_UNSUPPORTED;
    }
}

/* Each rank holds half of the rows and wants half of the columns: rank 1 reads rank 0's memory. */
static tsh_status exchange(tsh_group *g, tsh_tensor *in, tsh_tensor *out) {
    static const int both[2] = {0, 1};
    const tshi_placement rows = {.axes = 1, .size = {2}, .ranks = both, .layout = {TSH_SHARD(0)}};
    const tshi_placement columns = {.axes = 1, .size = {2}, .ranks = both, .layout = {TSH_SHARD(1)}};
    const tshi_exchange e = {.ndim = 2, .shape = {2, 2 * COUNT}, .from = rows, .to = columns};
    return tshi_exchange_run(g, &e, in, out);
}

static tsh_status run(tsh_group *g, const stage *s, tsh_tensor *in, tsh_tensor *out) {
    static const int64_t uneven[] = {PART, 2 * COUNT - PART};
    switch (s->op) {
    case TSH_COLLECTIVE_ALL_REDUCE: return tsh_all_reduce(g, in, TSH_REDUCE_SUM);
    case TSH_COLLECTIVE_ALL_GATHER: return tsh_all_gather_into_tensor(g, in, out, uneven);
    case TSH_COLLECTIVE_REDUCE_SCATTER: return tsh_reduce_scatter_tensor(g, in, out, NULL, TSH_REDUCE_SUM);
    case TSH_COLLECTIVE_BROADCAST: return tsh_broadcast(g, in, 0);
    case TSH_COLLECTIVE_ALL_TO_ALL: return tsh_all_to_all(g, in, NULL, out, NULL);
    case TSH_COLLECTIVE_GATHER: return tsh_gather_to_root(g, in, out, NULL, 0);
    case TSH_COLLECTIVE_SCATTER: return tsh_scatter_from_root(g, in, out, NULL, 0);
    case TSH_COLLECTIVE_SEND: return tsh_group_rank(g) == 0 ? tsh_send(g, in, 1) : tsh_recv(g, out, 0, NULL);
    case EXCHANGE: return exchange(g, in, out);
    default: return TSH_ERR_UNSUPPORTED;
    }
}

static tsh_status make(tsh_group *g, const stage *s, tsh_tensor *in, tsh_tensor *out) {
    tsh_work *work = NULL;
    if (!s->started) return run(g, s, in, out);
    tsh_status status = begin(g, s, in, out, &work);
    if (status == TSH_OK) status = tsh_work_wait(work);
    tsh_work_release(work);
    return status;
}

static bool in_place(tsh_collective op) {
    return op == TSH_COLLECTIVE_ALL_REDUCE || op == TSH_COLLECTIVE_BROADCAST;
}

/* What each element that rank 1 receives must be; 0: it differs. */
static float result(tsh_collective op) {
    switch (op) {
    case TSH_COLLECTIVE_ALL_REDUCE:
    case TSH_COLLECTIVE_REDUCE_SCATTER: return 3;
    case TSH_COLLECTIVE_BROADCAST:
    case TSH_COLLECTIVE_SCATTER:
    case TSH_COLLECTIVE_SEND: return 1;
    default: return 0;
    }
}

/* The call of ranks 0 and 1, which rank 1 is late in. */
static void call_late(tshi_rank *r, stage *s, tsh_group *pair) {
    bool gathers = s->op == TSH_COLLECTIVE_ALL_GATHER;
    bool parts = s->op == TSH_COLLECTIVE_REDUCE_SCATTER || s->op == TSH_COLLECTIVE_SCATTER;
    int64_t mine = r->rank ? 2 * COUNT - PART : PART;
    tsh_tensor *in = tshi_test_vector(r, TSH_FLOAT32,
                                      gathers                          ? mine
                                      : s->op == TSH_COLLECTIVE_GATHER ? COUNT
                                                                       : 2 * COUNT);
    tsh_tensor *out = tshi_test_vector(r, TSH_FLOAT32, parts ? COUNT : 2 * COUNT);
    pthread_t thread;
    bool sends = s->times_out && r->rank == 0 && s->op == TSH_COLLECTIVE_SEND;
    fill(in, (float)(1 + r->rank));
    fill(out, 0);
    become_late(r);
    if (sends) pthread_create(&thread, NULL, lose_patience, NULL);
    tsh_status status = make(pair, s, in, out);
    world->host->ops = own;
    if (sends) pthread_join(thread, NULL);
    if (r->rank == 1) {
        int64_t wrong = others(in_place(s->op) ? in : out, result(s->op));
        tshi_check(r, status != TSH_OK || result(s->op) == 0 || wrong == 0, "%lld wrong elements", (long long)wrong);
        atomic_store(&s->ended, 1);
    } else {
        tshi_check(r, status == (s->times_out ? TSH_ERR_TIMEOUT : TSH_ERR_PEER), "%s", tsh_status_name(status));
        tshi_check(r, s->times_out || atomic_load(&s->moved), "the call returned while its peer moved data");
        fill(in, 7);
        fill(out, 7);
        atomic_store(&s->failed, 1);
        tshi_test_await(r, &s->ended, 1);
        int64_t wrong = others(in, 7) + others(out, 7);
        tshi_check(r, wrong == 0, "%lld elements changed after the call had returned", (long long)wrong);
    }
    tsh_tensor_release(in);
    tsh_tensor_release(out);
}

/* Lets rank 1 go when rank 0's call has returned; in the call that may not return before that, after a while. */
static void let_go_late(tshi_rank *r, stage *s) {
    tshi_test_await(r, &s->moving, 1);
    if (!s->times_out) tsh_world_fail(r->world, "enough");
    double patience = tshi_now() + (s->times_out ? 60 : 0.1);
    while (!atomic_load(&s->failed) && tshi_now() < patience) tshi_nap(0.001);
    atomic_store(&s->unmapped_peers, 1);
    tshi_test_await(r, &s->ended, 1);
}

typedef struct stages {
    int n;
    stage stage[16];
} stages;

static void is_late(tshi_rank *r, void *arg) {
    stages *all = arg;
    tsh_group *pair = NULL;
    if (!tshi_check_ok(r, tsh_group_create(r->world, (int[]){0, 1}, 2, &pair))) return;
    for (int i = 0; i < all->n && !r->failed; i++) {
        held = &all->stage[i];
        if (pair)
            call_late(r, held, pair);
        else
            let_go_late(r, held);
        if (held->times_out) break;
        tshi_check_ok(r, tsh_world_recover(r->world));
        tshi_try_all(r, tsh_world_group(r->world), TSH_FLOAT32, 3000);
    }
    tsh_group_destroy(pair);
}

static void expect_fails(bool started, const tsh_collective *op, int n) {
    stages *all = tshi_test_shared(sizeof *all);
    all->n = n;
    for (int i = 0; i < n; i++) all->stage[i] = (stage){.op = op[i], .started = started};
    cr_assert_str_empty(tshi_test_run(3, is_late, all));
}

/* A world whose deadline has passed makes no more calls. */
static void expect_time_outs(bool started, const tsh_collective *op, int n) {
    for (int i = 0; i < n; i++) {
        stages *all = tshi_test_shared(sizeof *all);
        *all = (stages){1, {{.op = op[i], .started = started, .times_out = true}}};
        const char *words = tshi_test_run(3, is_late, all);
        cr_expect(words[0] == '\0', "%s: %s", tsh_collective_name(op[i]), words);
    }
}

/* Rank 1 reads rank 0's memory in all of them but gather, and writes to it in the first two and in gather. */
static const tsh_collective all_calls[] = {
    TSH_COLLECTIVE_ALL_REDUCE,     TSH_COLLECTIVE_ALL_GATHER, TSH_COLLECTIVE_SEND,
    TSH_COLLECTIVE_REDUCE_SCATTER, TSH_COLLECTIVE_BROADCAST,  TSH_COLLECTIVE_ALL_TO_ALL,
    TSH_COLLECTIVE_GATHER,         TSH_COLLECTIVE_SCATTER,    EXCHANGE};
#define ALL 9
#define FEW 3

Test(late_peers, fail_in_a_call, .timeout = 120) {
    expect_fails(false, all_calls, ALL);
}

Test(late_peers, fail_in_a_started_call, .timeout = 120) {
    expect_fails(true, all_calls, ALL - 1); /* exchanges are not started */
}

Test(late_peers, time_out_in_a_call, .timeout = 120) {
    expect_time_outs(false, all_calls, ALL);
}

Test(late_peers, time_out_in_a_started_call, .timeout = 120) {
    expect_time_outs(true, all_calls, FEW);
}
