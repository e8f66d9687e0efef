/* Messages between GPUs over NCCL's stand-in: that they are queued in batches, in the order of the calls, and that no
 * host waits for them. */
#include "cuda/nccl_values.h"
#include "support/pipeline.h"
#include "tshard/graph.h"

TestSuite(nccl_messages, .timeout = 120);

/* --- data --------------------------------------------------------------------------------------------------------- */

static void round_trips(tshi_rank *r, void *arg) {
    (void)arg;
    tsh_group *group = tsh_world_group(r->world);
    int next = (r->rank + 1) % r->size, before = (r->rank + r->size - 1) % r->size, sender = -7;
    for (int dtype = 0; dtype < TSH_DTYPE_COUNT; dtype++) {
        for (int64_t n = 0; n <= MOST; n = 9 * n + 5) {
            tsh_tensor *out = tshi_test_vector(r, (tsh_dtype)dtype, n), *in = tshi_test_vector(r, (tsh_dtype)dtype, n);
            put(out, r->rank);
            tsh_work *work;
            tshi_check_ok(r, tsh_send_async(group, out, next, &work));
            bool good = tshi_check_ok(r, tsh_recv(group, in, before, &sender)) &&
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
                   stats.calls[TSH_COLLECTIVE_SEND] >= 36,
               "counts");
    tshi_check(r, stats.bytes[TSH_COLLECTIVE_SEND] == 510 * 53 && stats.bytes[TSH_COLLECTIVE_RECV] == 0, "bytes");
}

Test(nccl_messages, around_a_ring) {
    for (int ranks = 2; ranks <= 4; ranks++) {
        run_ranks(ranks, false, round_trips, NULL);
        cr_assert_geq(standin_calls("ncclSend"), 36);
        run_ranks(ranks, true, round_trips, NULL);
    }
}

/* Calls that wait for their peer, in turn, with kernels between them: what arrives is sent on, and no host waits. */
static void relay(tshi_rank *r, void *arg) {
    (void)arg;
    tsh_group *group = tsh_world_group(r->world);
    tsh_tensor *x = tshi_test_vector(r, TSH_INT64, 100);
    const tshi_cuda_device *device = tshi_cuda(tsh_world_device(r->world));
    put(x, r->rank);
    for (int i = 0; i < 3; i++) {
        uint64_t waits = device->waits, allocations = device->base.stats.allocations;
        if (r->rank > 0) tshi_check_ok(r, tsh_recv(group, x, r->rank - 1, NULL));
        tshi_check_ok(r, tsh_send(group, x, (r->rank + 1) % r->size));
        if (r->rank == 0) tshi_check_ok(r, tsh_recv(group, x, r->size - 1, NULL));
        tshi_check(r, device->waits == waits, "the host has waited");
        tshi_check(r, device->base.stats.allocations == allocations, "memory has been taken");
    }
    holds(r, x, 0);
    tsh_tensor_release(x);
}

Test(nccl_messages, are_relayed_and_no_host_waits) {
    begin(3, false);
    standin_protect(true);
    cr_assert_str_empty(tshi_test_run_threads(3, relay, NULL));
    expect_nothing_left("a world");
    cr_assert_eq(standin_calls("ncclSend"), 9);
    cr_assert_eq(standin_calls("ncclRecv"), 9);
    cr_assert_eq(standin_calls("ncclCommInitRankConfig"), 3, "messages have communicators of their own");
}

/* --- orders ------------------------------------------------------------------------------------------------------- */

#define MANY 25

static void many(tshi_rank *r, void *arg) {
    enum { WORKS = 2 * MANY * 3 };
    tsh_group *group = tsh_world_group(r->world);
    tsh_work *works[WORKS];
    tsh_tensor *tensors[WORKS];
    int64_t salts[WORKS];
    const int64_t sizes[] = {1, 300, 7, 2000, 0};
    int n = 0;
    unsigned seed = *(unsigned *)arg + (unsigned)r->rank;
    for (int i = 0; i < MANY; i++) {
        for (int peer = 0; peer < r->size; peer++) {
            for (int side = 0; peer != r->rank && side < 2; side++, n++) {
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

Test(nccl_messages, any_order_of_waits) {
    for (unsigned seed = 1; seed <= 4; seed++) {
        run_ranks(2, false, many, &seed);
        run_ranks(4, false, many, &seed);
    }
}

/* Each rank in turn receives from all others at once, and names them. */
static void from_each(tshi_rank *r, void *arg) {
    enum { CALLS = 20 };
    (void)arg;
    tsh_group *group = tsh_world_group(r->world);
    tsh_tensor *x = tshi_test_vector(r, TSH_INT64, 2);
    int64_t data[2];
    for (int i = 0; i < CALLS * (r->size - 1) && !r->failed; i++) {
        int from = 1 + i % (r->size - 1), sender = -1;
        if (r->rank == from) {
            tsh_tensor_write(x, (int64_t[]){r->rank, i}, 2);
            tshi_check_ok(r, tsh_send(group, x, 0));
        } else if (r->rank == 0) {
            tshi_check_ok(r, tsh_recv(group, x, from, &sender));
            tshi_check_ok(r, tsh_tensor_read(x, data, 2));
            tshi_check(r, sender == from && data[0] == from && data[1] == i, "%lld of rank %lld came from %d as %d",
                       (long long)data[1], (long long)data[0], sender, i);
        }
    }
    tshi_check_ok(r, tsh_barrier(group));
    tsh_tensor_release(x);
}

Test(nccl_messages, from_a_named_rank) {
    run_ranks(2, false, from_each, NULL);
    run_ranks(4, false, from_each, NULL);
}

static void from_any(tshi_rank *r, void *arg) {
    (void)arg;
    tsh_group *group = tsh_world_group(r->world);
    tsh_tensor *x = tshi_test_vector(r, TSH_INT64, 2);
    tsh_work *work = NULL;
    tshi_check_status(r, tsh_recv(group, x, TSH_ANY_RANK, NULL), TSH_ERR_UNSUPPORTED, "from has to name the sender");
    tshi_check_ok(r, tsh_recv_async(group, x, TSH_ANY_RANK, &work));
    tshi_check_status(r, tsh_work_wait(work), TSH_ERR_UNSUPPORTED, "from has to name the sender");
    tsh_work_release(work);
    sums(r, group);
    tsh_tensor_release(x);
}

Test(nccl_messages, from_any_rank_are_refused) {
    run_ranks(2, false, from_any, NULL);
}

/* --- any legal pattern -------------------------------------------------------------------------------------------- */

enum { MESSAGES = 60, GROUPS = 2, LONGEST = 40 };

typedef struct planned {
    int group, from, to; /* ranks of the world */
    int64_t count, value;
} planned;

typedef struct pattern {
    unsigned seed;
    int rounds;
    int fails; /* the round in which a rank fails the world; -1: none */
} pattern;

/* Groups: all, and those of even and of odd ranks. */
static void draw(unsigned *seed, int size, bool one_group, planned *all) {
    int group = rand_r(seed) % GROUPS;
    for (int i = 0; i < MESSAGES; i++) {
        planned *p = &all[i];
        do {
            if (!one_group) group = rand_r(seed) % GROUPS;
            *p = (planned){.group = group, .from = rand_r(seed) % size, .to = rand_r(seed) % size};
        } while (p->from == p->to || (p->group == 1 && (p->from - p->to) % 2));
        p->count = rand_r(seed) % 8 ? 1 + rand_r(seed) % LONGEST : 0;
        p->value = rand_r(seed) % 1000;
    }
}

/* An order of the messages that keeps that of each pair. */
static void shuffle(unsigned *seed, const planned *all, int *order) {
    for (int i = 0; i < MESSAGES; i++) order[i] = i;
    for (int swaps = 0; swaps < 8 * MESSAGES; swaps++) {
        int k = rand_r(seed) % (MESSAGES - 1);
        const planned *a = &all[order[k]], *b = &all[order[k + 1]];
        if (a->from == b->from && a->to == b->to) continue;
        int other = order[k];
        order[k] = order[k + 1];
        order[k + 1] = other;
    }
}

typedef struct under_way {
    tsh_work *work;
    tsh_tensor *tensor;
    int64_t wanted; /* -1: it was sent */
} under_way;

static tsh_status begin_message(tshi_rank *r, tsh_group *const *groups, const planned *p, bool waits, under_way *u) {
    tsh_group *group = groups[p->group];
    bool sends = p->from == r->rank;
    int peer = tsh_group_rank_of(group, sends ? p->to : p->from);
    u->tensor = tshi_test_vector(r, TSH_INT64, p->count);
    u->wanted = sends || p->count == 0 ? -1 : p->value;
    if (sends) tsh_tensor_fill(u->tensor, (double)p->value);
    if (waits) return sends ? tsh_send(group, u->tensor, peer) : tsh_recv(group, u->tensor, peer, NULL);
    return sends ? tsh_send_async(group, u->tensor, peer, &u->work) : tsh_recv_async(group, u->tensor, peer, &u->work);
}

/* Waits in any order. */
static tsh_status end_all(tshi_rank *r, unsigned *seed, under_way *all, int n) {
    tsh_status status = TSH_OK;
    for (; n > 0; n--) {
        int k = rand_r(seed) % n;
        if (status == TSH_OK && all[k].work) status = tsh_work_wait(all[k].work);
        if (status == TSH_OK && all[k].wanted >= 0) {
            int64_t got[LONGEST];
            status = tsh_tensor_read(all[k].tensor, got, all[k].tensor->numel);
            if (status == TSH_OK)
                tshi_check(r, got[0] == all[k].wanted, "%lld, not %lld", (long long)got[0], (long long)all[k].wanted);
        }
        tsh_work_release(all[k].work);
        tsh_tensor_release(all[k].tensor);
        all[k] = all[n - 1];
    }
    return status;
}

/* Even rounds are one batch on every rank, each in an order of its own. Odd rounds are in the order that all ranks
 * know, over both groups and with a sum among them: each rank blocks where it likes. */
static tsh_status play(tshi_rank *r, tsh_group *const *groups, const pattern *p, int number) {
    planned all[MESSAGES];
    under_way works[MESSAGES] = {{NULL, NULL, 0}};
    int order[MESSAGES], n = 0;
    unsigned common = p->seed * 100 + (unsigned)number, own = common * 16 + (unsigned)r->rank;
    bool ordered = number % 2;
    tsh_tensor *sum = tshi_test_vector(r, TSH_INT64, LONGEST);
    tsh_work *summed = NULL;
    int64_t got[LONGEST];
    tsh_tensor_fill(sum, 1);
    draw(&common, r->size, !ordered, all);
    shuffle(&own, all, order);
    tsh_status status = TSH_OK;
    for (int i = 0; i <= MESSAGES && status == TSH_OK; i++) {
        if (i == (ordered ? MESSAGES / 2 : MESSAGES)) {
            status = tsh_all_reduce_async(groups[0], sum, TSH_REDUCE_SUM, &summed);
        }
        if (number == p->fails && i == MESSAGES - 9 && r->rank == r->size / 2) tsh_world_fail(r->world, "enough of it");
        const planned *m = i < MESSAGES ? &all[ordered ? i : order[i]] : NULL;
        if (status != TSH_OK || !m || (m->from != r->rank && m->to != r->rank)) continue;
        status = begin_message(r, groups, m, ordered && rand_r(&own) % 2, &works[n]);
        /* A call that failed has received nothing. */
        if (status != TSH_OK) works[n].wanted = -1;
        n++;
    }
    tsh_status ended = end_all(r, &own, works, n);
    if (status == TSH_OK) status = ended;
    if (status == TSH_OK && summed) status = tsh_work_wait(summed);
    if (status == TSH_OK) status = tsh_tensor_read(sum, got, LONGEST);
    if (status == TSH_OK) tshi_check(r, got[LONGEST - 1] == r->size, "a sum is %lld", (long long)got[LONGEST - 1]);
    tsh_work_release(summed);
    tsh_tensor_release(sum);
    return status;
}

static void patterns(tshi_rank *r, void *arg) {
    const pattern *p = arg;
    tsh_group *groups[GROUPS] = {tsh_world_group(r->world), NULL};
    r->world->timeout = 60;
    tshi_check_ok(r, tsh_group_split(groups[0], r->rank % 2, r->rank, &groups[1]));
    for (int i = 0; i < p->rounds && !r->failed; i++) {
        tsh_status status = play(r, groups, p, i);
        if (i > p->fails || (i < p->fails && status == TSH_OK)) {
            tshi_check_ok(r, status);
            continue;
        }
        /* The rank that fails may be a round ahead of this one, and this one may be through without it. */
        bool told = r->rank == r->size / 2 ? status == TSH_ERR_STATE : status == TSH_ERR_PEER || status == TSH_OK;
        tshi_check(r, told, "%s: %s", tsh_status_name(status), tsh_error_message());
        tshi_check_ok(r, tsh_world_recover(r->world));
        tshi_check_ok(r, tsh_barrier(groups[1]));
        i = p->fails;
    }
    tsh_group_destroy(groups[1]);
}

static unsigned seed_of(unsigned usual) {
    const char *set = getenv("TSHARD_TEST_SEED");
    return set ? (unsigned)atoi(set) : usual;
}

Test(nccl_messages, of_any_pattern) {
    for (int ranks = 3; ranks <= 8; ranks++) {
        run_ranks(ranks, ranks == 6, patterns, &(pattern){.seed = seed_of((unsigned)ranks), .rounds = 6, .fails = -1});
    }
}

/* The first round, which ends on no rank before all have made their groups, goes well. */
Test(nccl_messages, of_any_pattern_that_a_failure_ends) {
    for (unsigned seed = 1; seed <= 4; seed++) {
        run_ranks(5, false, patterns, &(pattern){.seed = seed_of(seed), .rounds = 4, .fails = 1 + (int)seed % 3});
    }
}

/* What a host waits for between two messages of a batch does not divide it: the GPU, memory, an earlier work. */
static void undivided(tshi_rank *r, void *arg) {
    (void)arg;
    tsh_group *group = tsh_world_group(r->world);
    int next = (r->rank + 1) % r->size, before = (r->rank + r->size - 1) % r->size;
    tsh_tensor *x = tshi_test_vector(r, TSH_INT64, 100), *sum = tshi_test_vector(r, TSH_INT64, 3);
    tsh_work *works[3];
    int64_t got[3];
    put(x, r->rank);
    tshi_check_ok(r, tsh_all_reduce_async(group, sum, TSH_REDUCE_SUM, &works[0]));
    tshi_check_ok(r, tsh_send_async(group, x, next, &works[1]));
    tshi_check_ok(r, tsh_work_wait(works[0]));
    tshi_check_ok(r, tsh_tensor_read(sum, got, 3));
    tsh_tensor *y = tshi_test_vector(r, TSH_INT64, 100);
    tshi_check_ok(r, tsh_recv_async(group, y, before, &works[2]));
    for (int i = 2; i >= 0; i--) {
        tshi_check_ok(r, tsh_work_wait(works[i]));
        tsh_work_release(works[i]);
    }
    holds(r, y, before);
    tsh_tensor_release(x);
    tsh_tensor_release(y);
    tsh_tensor_release(sum);
}

Test(nccl_messages, a_batch_is_what_the_calls_say) {
    for (int ranks = 2; ranks <= 4; ranks++) {
        run_ranks(ranks, false, undivided, NULL);
        cr_assert_eq(standin_calls("ncclGroupStart"), (uint64_t)ranks, "messages in several batches");
    }
}

/* The peer waits for a message before it makes the call in which ranks agree. */
static void before_an_agreement(tshi_rank *r, void *arg) {
    (void)arg;
    tsh_group *group = tsh_world_group(r->world), *pair = NULL;
    tsh_tensor *x = tshi_test_vector(r, TSH_INT64, 100);
    tsh_work *work = NULL;
    r->world->timeout = 20;
    put(x, r->rank);
    if (r->rank == 0) tshi_check_ok(r, tsh_send_async(group, x, 1, &work));
    if (r->rank == 1) tshi_check_ok(r, tsh_recv(group, x, 0, NULL));
    if (r->rank == 1) holds(r, x, 0);
    tshi_check_ok(r, tsh_group_split(group, 0, r->rank, &pair));
    if (work) tshi_check_ok(r, tsh_work_wait(work));
    tsh_work_release(work);
    tsh_tensor_release(x);
    tsh_group_destroy(pair);
}

Test(nccl_messages, come_before_an_agreement) {
    run_ranks(2, false, before_an_agreement, NULL);
}

/* --- orders ------------------------------------------------------------------------------------------------------- */

/* What was called for first is waited for last: both queues hold kernels behind the later message by then. */
static void crossed(tshi_rank *r, void *arg) {
    enum { N = 50 };
    (void)arg;
    tsh_group *group = tsh_world_group(r->world);
    tsh_tensor *out = tshi_test_vector(r, TSH_INT64, N), *in = tshi_test_vector(r, TSH_INT64, N);
    int peer = 1 - r->rank;
    for (int i = 0; i < 5 && !r->failed; i++) {
        tsh_work *works[2] = {NULL, NULL};
        int64_t got[N];
        put(out, r->rank + i);
        tshi_check_ok(r, tsh_send_async(group, out, peer, &works[0]));
        tshi_check_ok(r, tsh_recv(group, in, peer, NULL));
        tsh_tensor_fill(in, i + r->rank);
        tshi_check_ok(r, tsh_send_async(group, in, peer, &works[1]));
        tshi_check_ok(r, tsh_work_wait(works[r->rank]));
        tshi_check_ok(r, tsh_recv(group, out, peer, NULL));
        tshi_check_ok(r, tsh_work_wait(works[peer]));
        tshi_check_ok(r, tsh_tensor_read(out, got, N));
        tshi_check(r, got[N - 1] == i + peer, "%lld", (long long)got[N - 1]);
        tsh_work_release(works[0]);
        tsh_work_release(works[1]);
    }
    tsh_tensor_release(out);
    tsh_tensor_release(in);
}

Test(nccl_messages, that_cross) {
    run_ranks(2, false, crossed, NULL);
}

/* The GPU that the host waits for waits for a message that this host has started, and that has to progress
 * meanwhile. */
static void heard_of_while_waiting(tshi_rank *r, void *arg) {
    (void)arg;
    tsh_group *group = tsh_world_group(r->world);
    tsh_tensor *x = tshi_test_vector(r, TSH_INT64, 50), *y = tshi_test_vector(r, TSH_INT64, 3);
    tsh_work *work = NULL;
    int64_t got[3];
    tsh_tensor_fill(y, r->rank + 1);
    put(x, 7 * r->rank);
    if (r->rank == 0) tshi_check_ok(r, tsh_send_async(group, x, 1, &work));
    if (r->rank == 1) {
        nap(20000);
        tshi_check_ok(r, tsh_recv(group, x, 0, NULL));
    }
    tshi_check_ok(r, tsh_all_reduce(group, y, TSH_REDUCE_SUM));
    tshi_check_ok(r, tsh_tensor_read(y, got, 3));
    tshi_check(r, got[0] == 3 && got[2] == 3, "%lld", (long long)got[0]);
    if (work) tshi_check_ok(r, tsh_work_wait(work));
    holds(r, x, 0);
    tsh_work_release(work);
    tsh_tensor_release(x);
    tsh_tensor_release(y);
}

Test(nccl_messages, progress_while_the_host_waits_for_the_gpu) {
    run_ranks(2, false, heard_of_while_waiting, NULL);
}

static void tested(tshi_rank *r, void *arg) {
    (void)arg;
    tsh_group *group = tsh_world_group(r->world), *halves = NULL;
    tsh_tensor *x = tshi_test_vector(r, TSH_FLOAT32, 30);
    tsh_work *work = NULL;
    bool done = false;
    tshi_check_ok(r, tsh_group_split(group, r->rank / 2, -r->rank, &halves));
    put(x, r->rank);
    int peer = 1 - tsh_group_rank(halves);
    if (r->rank % 2) tshi_check_ok(r, tsh_send_async(halves, x, peer, &work));
    if (!(r->rank % 2)) tshi_check_ok(r, tsh_recv_async(halves, x, peer, &work));
    for (int i = 0; !done && i < 100000; i++) {
        if (!tshi_check_ok(r, tsh_work_test(work, &done))) break;
        nap(10);
    }
    tshi_check(r, done, "it does not come to an end");
    tshi_check(r, tsh_work_sender(work) == (r->rank % 2 ? TSH_ANY_RANK : peer), "the sender is %d",
               tsh_work_sender(work));
    holds(r, x, r->rank | 1);
    tsh_work_release(work);
    tsh_tensor_release(x);
    tsh_group_destroy(halves);
    sums(r, group);
}

Test(nccl_messages, that_are_tested_in_smaller_groups) {
    run_ranks(4, false, tested, NULL);
}

static void described(tshi_rank *r, void *arg) {
    (void)arg;
    tsh_group *group = tsh_world_group(r->world);
    const tsh_mesh *mesh = tsh_world_mesh(r->world);
    const tsh_tensor_config configs[] = {{.dtype = TSH_BFLOAT16, .ndim = 3, .shape = {2, 3, 5}},
                                         {.dtype = TSH_COMPLEX128, .ndim = 0},
                                         {.dtype = TSH_FLOAT32, .ndim = 2, .shape = {0, 7}},
                                         {.dtype = TSH_FLOAT64, .ndim = 2, .shape = {30, 100}}};
    for (int i = 0; i < 4; i++) {
        tsh_tensor *x = NULL;
        int sender = -1;
        if (r->rank == 1) {
            tshi_check_ok(r, tsh_tensor_create(mesh, &configs[i], &x));
            put(x, i);
            tshi_check_ok(r, tsh_send_new(group, x, 0));
        } else if (r->rank == 0 && tshi_check_ok(r, tsh_recv_new(group, mesh, 1, &sender, &x))) {
            tshi_check(r, sender == 1 && tsh_tensor_dtype(x) == configs[i].dtype, "sender or dtype");
            tshi_check(r, tsh_tensor_ndim(x) == configs[i].ndim, "dims");
            for (int d = 0; d < configs[i].ndim; d++) {
                tshi_check(r, tsh_tensor_local_shape(x)[d] == configs[i].shape[d], "dim %d", d);
            }
            holds(r, x, i);
        }
        tsh_tensor_release(x);
    }
}

Test(nccl_messages, with_their_description) {
    run_ranks(3, false, described, NULL);
}

/* --- pipelines ---------------------------------------------------------------------------------------------------- */

static void pipelines(tshi_rank *r, void *arg) {
    (void)arg;
    for (int n = 1; n <= 5 && !r->failed; n++) {
        int stages = r->size == 3 ? 3 : 2;
        tshi_pipeline_config config = {.stages = stages,
                                       .data = 1,
                                       .model = r->size / stages,
                                       .micro_batches = n,
                                       .rows = 7,
                                       .features = 4,
                                       .hidden = 5,
                                       .forwards_first = n == 3,
                                       .sums = n % 2};
        tshi_pipeline_check_step(r, &config);
    }
}

Test(nccl_messages, between_the_stages_of_a_pipeline) {
    for (int ranks = 2; ranks <= 4; ranks++) run_ranks(ranks, true, pipelines, NULL);
}
