/* Messages among so many ranks that the GPU has no queue for each of their streams: what is legal ends, as it does
 * among few. NCCL and CUDA are stand-ins, whose streams share queues. */
#include "cuda/nccl_ranks.h"
#include "support/lines.h"
#include "tshard/graph.h"

#include <stdatomic.h>

TestSuite(nccl_links, .timeout = 240);

#define N 40

/* What CUDA finds when it begins; a process keeps it. */
static void queues(int count) {
    char text[8];
    snprintf(text, sizeof text, "%d", count);
    setenv("CUDA_DEVICE_MAX_CONNECTIONS", text, 1);
}

static bool holds(tshi_rank *r, const tsh_tensor *x, int64_t wanted) {
    int64_t got[N] = {0};
    return tshi_check_ok(r, tsh_tensor_read(x, got, x->numel)) &&
           tshi_check(r, got[0] == wanted && got[x->numel - 1] == wanted, "%lld, not %lld", (long long)got[0],
                      (long long)wanted);
}

/* --- what hangs where streams share queues ------------------------------------------------------------------------ */

/* Each peer sends behind a sum; rank 0 has received, in vain so far, when it comes to the kernels before its part of
 * the sum. */
static void behind_a_sum(tshi_rank *r, void *arg) {
    (void)arg;
    tsh_group *group = tsh_world_group(r->world);
    r->world->timeout = 20;
    for (int peer = 1; peer < r->size && !r->failed; peer++) {
        tsh_tensor *x = tshi_test_vector(r, TSH_INT64, N), *y = tshi_test_vector(r, TSH_INT64, N);
        tsh_work *works[2] = {NULL, NULL};
        bool done;
        tsh_tensor_fill(y, 1);
        if (r->rank == 0) {
            tshi_check_ok(r, tsh_recv_async(group, x, peer, &works[0]));
            for (int i = 0; i < 50; i++) {
                tshi_check_ok(r, tsh_work_test(works[0], &done));
                nap(200);
            }
            tsh_tensor_fill(y, 2);
        }
        tshi_check_ok(r, tsh_all_reduce(group, y, TSH_REDUCE_SUM));
        if (r->rank == peer) {
            tshi_check_ok(r, tsh_send_async(group, y, 0, &works[0]));
            tshi_check_ok(r, tsh_recv_async(group, x, 0, &works[1]));
        }
        if (r->rank == 0) tshi_check_ok(r, tsh_send_async(group, y, peer, &works[1]));
        for (int i = 1; i >= 0; i--) {
            if (works[i]) tshi_check_ok(r, tsh_work_wait(works[i]));
            tsh_work_release(works[i]);
        }
        if (r->rank == 0 || r->rank == peer) holds(r, x, r->size + 1);
        tsh_tensor_release(x);
        tsh_tensor_release(y);
    }
}

Test(nccl_links, a_message_that_cannot_begin_holds_up_nothing) {
    queues(8);
    for (int ranks = 6; ranks <= 8; ranks++) run_ranks(ranks, false, behind_a_sum, NULL);
}

Test(nccl_links, some_have_streams_of_their_own) {
    queues(16);
    run_ranks(8, false, behind_a_sum, NULL);
}

/* Rank 2 sends behind a sum, of which rank 0 does its part when it has read what rank 1 sends to it. The message of
 * rank 2 comes first, and must not take rank 0's link before the GPU of rank 2 has come to it. */
static void past_one_behind_a_sum(tshi_rank *r, void *arg) {
    (void)arg;
    tsh_group *group = tsh_world_group(r->world);
    tsh_tensor *x = tshi_test_vector(r, TSH_INT64, N), *y = tshi_test_vector(r, TSH_INT64, N);
    tsh_work *work = NULL;
    bool done;
    r->world->timeout = 20;
    tsh_tensor_fill(y, 1);
    if (r->rank == 0) {
        tshi_check_ok(r, tsh_recv_async(group, x, 2, &work));
        for (int i = 0; i < 100; i++) {
            tshi_check_ok(r, tsh_work_test(work, &done));
            nap(1000);
        }
        tshi_check_ok(r, tsh_recv(group, y, 1, NULL));
        holds(r, y, 5);
        tsh_tensor_fill(y, 1);
    } else if (r->rank == 1) {
        nap(100000);
        tsh_tensor_fill(x, 5);
        tshi_check_ok(r, tsh_send(group, x, 0));
    }
    tshi_check_ok(r, tsh_all_reduce(group, y, TSH_REDUCE_SUM));
    if (r->rank == 2) tshi_check_ok(r, tsh_send_async(group, y, 0, &work));
    if (work) tshi_check_ok(r, tsh_work_wait(work));
    if (r->rank == 0) holds(r, x, r->size);
    tsh_work_release(work);
    tsh_tensor_release(x);
    tsh_tensor_release(y);
}

Test(nccl_links, a_message_takes_its_turn_when_both_gpus_have_come_to_it) {
    queues(8);
    run_ranks(4, false, past_one_behind_a_sum, NULL);
}

/* --- any legal pattern -------------------------------------------------------------------------------------------- */

enum { MESSAGES = 60, GROUPS = 2 };

typedef struct letter {
    int group, from, to; /* ranks of the world */
    int64_t count, value;
} letter;

typedef struct pattern {
    unsigned seed;
    int rounds;
    int fails; /* the round in which a rank fails the world; -1: none */
} pattern;

/* Groups: all, and those of even and of odd ranks. */
static void draw(unsigned *seed, int size, letter *all) {
    for (int i = 0; i < MESSAGES; i++) {
        letter *l = &all[i];
        do {
            *l = (letter){.group = rand_r(seed) % GROUPS, .from = rand_r(seed) % size, .to = rand_r(seed) % size};
        } while (l->from == l->to || (l->group == 1 && (l->from - l->to) % 2));
        l->count = rand_r(seed) % 8 ? 1 + rand_r(seed) % N : 0;
        l->value = rand_r(seed) % 1000;
    }
}

static bool same_way(const letter *a, const letter *b) {
    return a->group == b->group && a->from == b->from && a->to == b->to;
}

/* An order of the letters that keeps that of each way. */
static void shuffle(unsigned *seed, const letter *all, int *order) {
    for (int i = 0; i < MESSAGES; i++) order[i] = i;
    for (int swaps = 0; swaps < 8 * MESSAGES; swaps++) {
        int k = rand_r(seed) % (MESSAGES - 1);
        if (same_way(&all[order[k]], &all[order[k + 1]])) continue;
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

static tsh_status post(tshi_rank *r, tsh_group *const *groups, const letter *l, bool waits, under_way *u) {
    tsh_group *group = groups[l->group];
    bool sends = l->from == r->rank;
    int peer = tsh_group_rank_of(group, sends ? l->to : l->from);
    u->tensor = tshi_test_vector(r, TSH_INT64, l->count);
    u->wanted = sends || l->count == 0 ? -1 : l->value;
    if (sends) tsh_tensor_fill(u->tensor, (double)l->value);
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
            int64_t got[N];
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

/* Every third round is in the order that all ranks know: calls may wait for their peers then. */
static tsh_status play(tshi_rank *r, tsh_group *const *groups, const pattern *p, int number) {
    letter all[MESSAGES];
    under_way works[MESSAGES] = {{NULL, NULL, 0}};
    int order[MESSAGES], n = 0;
    unsigned common = p->seed * 100 + (unsigned)number, own = common * 16 + (unsigned)r->rank;
    bool ordered = number % 3 == 2;
    tsh_tensor *sum = tshi_test_vector(r, TSH_INT64, N);
    tsh_work *summed = NULL;
    tsh_tensor_fill(sum, 1);
    draw(&common, r->size, all);
    shuffle(&own, all, order);
    tsh_status status = TSH_OK;
    for (int i = 0; i < MESSAGES && status == TSH_OK; i++) {
        const letter *l = &all[ordered ? i : order[i]];
        if (i == MESSAGES / 2) status = tsh_all_reduce_async(groups[0], sum, TSH_REDUCE_SUM, &summed);
        if (number == p->fails && i == MESSAGES - 9 && r->rank == r->size / 2) tsh_world_fail(r->world, "enough of it");
        if (status != TSH_OK || (l->from != r->rank && l->to != r->rank)) continue;
        status = post(r, groups, l, ordered && rand_r(&own) % 2, &works[n]);
        /* A call that failed has received nothing. */
        if (status != TSH_OK) works[n].wanted = -1;
        n++;
    }
    tsh_status ended = end_all(r, &own, works, n);
    if (status == TSH_OK) status = ended;
    if (status == TSH_OK && summed) status = tsh_work_wait(summed);
    if (status == TSH_OK) holds(r, sum, r->size);
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
        i = p->fails;
    }
    tsh_group_destroy(groups[1]);
}

static unsigned seed_of(unsigned usual) {
    const char *set = getenv("TSHARD_TEST_SEED");
    return set ? (unsigned)atoi(set) : usual;
}

Test(nccl_links, of_any_pattern_with_no_queue_to_spare) {
    queues(9);
    for (int ranks = 3; ranks <= 8; ranks++) {
        run_ranks(ranks, false, patterns, &(pattern){.seed = seed_of((unsigned)ranks), .rounds = 6, .fails = -1});
    }
}

Test(nccl_links, of_any_pattern_with_some_queues_to_spare) {
    queues(20);
    for (int ranks = 4; ranks <= 8; ranks++) {
        run_ranks(ranks, ranks == 6, patterns, &(pattern){.seed = seed_of((unsigned)ranks), .rounds = 6, .fails = -1});
    }
}

Test(nccl_links, of_any_pattern_with_all_queues) {
    for (int ranks = 6; ranks <= 8; ranks++) {
        run_ranks(ranks, false, patterns, &(pattern){.seed = seed_of((unsigned)ranks), .rounds = 6, .fails = -1});
    }
}

/* --- failures ----------------------------------------------------------------------------------------------------- */

/* The first round, which ends on no rank before all have made their groups, goes well. */
Test(nccl_links, a_failure_ends_what_is_being_agreed) {
    queues(11);
    for (unsigned seed = 1; seed <= 4; seed++) {
        run_ranks(5, false, patterns, &(pattern){.seed = seed_of(seed), .rounds = 4, .fails = 1 + (int)seed % 3});
    }
}

/* The peer has matched the message, but its GPU comes to it no more: it leaves. */
static void leaves(tshi_rank *r, void *arg) {
    (void)arg;
    tsh_group *group = tsh_world_group(r->world);
    tsh_tensor *x = tshi_test_vector(r, TSH_INT64, N), *y = tshi_test_vector(r, TSH_INT64, N);
    tsh_work *work = NULL;
    int64_t got[N];
    r->world->timeout = 20;
    if (r->rank == 1) {
        tshi_check_ok(r, tsh_send_async(group, x, 0, &work));
        tsh_world_fail(r->world, "no more");
    } else if (r->rank == 0) {
        tsh_status status = tsh_recv(group, x, 1, NULL);
        if (status == TSH_OK) status = tsh_tensor_read(x, got, N);
        tshi_check_status(r, status, TSH_ERR_PEER, "no more");
    }
    tsh_work_release(work);
    tsh_tensor_release(x);
    tsh_tensor_release(y);
}

Test(nccl_links, a_rank_that_ends_is_not_waited_for) {
    queues(8);
    run_ranks(3, false, leaves, NULL);
}

/* Makes calls until the next step of the agreement on the message is the peer's. */
static void tell(tshi_rank *r, tsh_work *work) {
    const tshi_nccl_message *m = work->state;
    bool done;
    while (m->turn != TSHI_NOTE_SENT && !r->failed) tshi_check_ok(r, tsh_work_test(work, &done));
}

/* Makes no calls until the other rank says so. */
static void rest(tshi_rank *r, const atomic_bool *over) {
    while (!atomic_load(over) && !r->failed) nap(1000);
}

/* The higher rank's GPU has come to the message and its host has said so; then the host makes no call until the lower
 * one waits for its answer. */
static void leaves_unanswered(tshi_rank *r, void *arg) {
    atomic_bool *asked = arg;
    tsh_group *group = tsh_world_group(r->world);
    tsh_tensor *x = tshi_test_vector(r, TSH_INT64, N);
    tsh_work *work = NULL;
    r->world->timeout = 20;
    if (r->rank == 1) {
        tshi_check_ok(r, tsh_send_async(group, x, 0, &work));
        tell(r, work);
        rest(r, asked);
        tsh_world_fail(r->world, "no more");
    } else if (r->rank == 0) {
        tshi_check_ok(r, tsh_recv_async(group, x, 1, &work));
        tell(r, work);
        atomic_store(asked, true);
        tshi_check_status(r, tsh_work_wait(work), TSH_ERR_PEER, "no more");
    }
    tsh_work_release(work);
    tsh_tensor_release(x);
}

Test(nccl_links, an_answer_that_never_comes_is_not_waited_for) {
    atomic_bool asked = false;
    queues(8);
    run_ranks(3, false, leaves_unanswered, &asked);
}

/* Rank 1 has queued its message and destroys the group, while rank 0, which has still to hear so, makes no calls. */
static void leaves_a_group(tshi_rank *r, void *arg) {
    atomic_bool *queued = arg;
    tsh_group *pair = NULL;
    tsh_work *work = NULL;
    tshi_check_ok(r, tsh_group_split(tsh_world_group(r->world), r->rank > 1, r->rank, &pair));
    tsh_tensor *x = tshi_test_vector(r, TSH_INT64, N);
    if (r->rank == 0) {
        tshi_check_ok(r, tsh_recv_async(pair, x, 1, &work));
        tell(r, work);
        rest(r, queued);
        nap(100000);
        tshi_check_ok(r, tsh_work_wait(work));
        tsh_work_release(work);
        tsh_group_destroy(pair);
    } else if (r->rank == 1) {
        tshi_check_ok(r, tsh_send(pair, x, 0));
        atomic_store(queued, true);
        tsh_group_destroy(pair);
        const tshi_nccl_link *link = tshi_nccl_of(r->world)->shared.link;
        tshi_check(r, link && cudaEventQuery(link->last.after) == cudaSuccess, "the message has not ended");
    } else {
        tsh_group_destroy(pair);
    }
    tsh_tensor_release(x);
}

Test(nccl_links, a_group_ends_after_its_messages) {
    atomic_bool queued = false;
    queues(8);
    run_ranks(3, false, leaves_a_group, &queued);
}

static void from_any(tshi_rank *r, void *arg) {
    (void)arg;
    tsh_group *group = tsh_world_group(r->world);
    tsh_tensor *x = tshi_test_vector(r, TSH_INT64, N);
    bool heard[8] = {false};
    int sender;
    tsh_tensor_fill(x, r->rank + 1);
    if (r->rank) tshi_check_ok(r, tsh_send(group, x, 0));
    for (int i = 1; r->rank == 0 && i < r->size && !r->failed; i++) {
        if (!tshi_check_ok(r, tsh_recv(group, x, TSH_ANY_RANK, &sender))) break;
        tshi_check(r, !heard[sender] && holds(r, x, sender + 1), "rank %d twice", sender);
        heard[sender] = true;
    }
    tshi_check(r, r->rank > 1 || tshi_nccl_of(r->world)->shared.link, "no message took the shared link");
    tsh_tensor_release(x);
}

Test(nccl_links, of_any_sender) {
    queues(8);
    run_ranks(8, false, from_any, NULL);
}

Test(nccl_links, every_call_may_fail) {
    static const char *const names[] = {"ncclCommSplit",    "ncclCommGetAsyncError", "ncclSend",
                                        "ncclRecv",         "cudaStreamCreate",      "cudaEventCreate",
                                        "cudaEventRecord",  "cudaEventQuery",        "cudaStreamWaitEvent",
                                        "cudaEventDestroy", "cudaStreamDestroy"};
    queues(8);
    every_call_may_fail(names, sizeof names / sizeof *names, 25, both_ways);
}

/* Rank 0 has no communicator for the shared link when the world recovers: the next recovery makes it. */
static void recovers_twice(tshi_rank *r, void *arg) {
    atomic_bool *ready = arg;
    tsh_world_fail(r->world, "enough of it");
    if (r->rank == 0) {
        standin_fail("ncclGetUniqueId", 1, 0);
        atomic_store(ready, true);
    }
    rest(r, ready);
    tsh_status status = tsh_world_recover(r->world);
    tshi_check_status(r, status, r->rank ? TSH_ERR_PEER : TSH_ERR_SYSTEM, "ncclGetUniqueId");
    tsh_tensor *x = tshi_test_vector(r, TSH_INT64, N);
    status = tsh_send(tsh_world_group(r->world), x, (r->rank + 1) % r->size);
    tshi_check(r, status != TSH_OK, "a message without a communicator");
    tsh_tensor_release(x);
    tshi_check_ok(r, tsh_world_recover(r->world));
    from_any(r, NULL);
}

Test(nccl_links, a_recovery_without_a_communicator_is_none) {
    atomic_bool ready = false;
    queues(8);
    run_ranks(3, false, recovers_twice, &ready);
}

/* --- costs -------------------------------------------------------------------------------------------------------- */

/* With a queue to spare the links are the two ranks' own, and the group of all is made but for large worlds. */
static void to_next(tshi_rank *r, void *arg) {
    (void)arg;
    tsh_group *group = tsh_world_group(r->world);
    tsh_tensor *x = tshi_test_vector(r, TSH_INT64, N);
    tsh_work *work = NULL;
    for (int i = 0; i < 3; i++) {
        tsh_tensor_fill(x, r->rank);
        tshi_check_ok(r, tsh_send_async(group, x, (r->rank + 1) % r->size, &work));
        tsh_tensor *y = tshi_test_vector(r, TSH_INT64, N);
        tshi_check_ok(r, tsh_recv(group, y, (r->rank + r->size - 1) % r->size, NULL));
        tshi_check_ok(r, tsh_work_wait(work));
        holds(r, y, (r->rank + r->size - 1) % r->size);
        tsh_work_release(work);
        tsh_tensor_release(y);
    }
    const tshi_nccl *nccl = tshi_nccl_of(r->world);
    tshi_check(r, (nccl->shared.group != NULL) == (r->size > 4), "a group for messages");
    tshi_check(r, !nccl->shared.link, "a message has taken the shared link");
    tsh_tensor_release(x);
}

Test(nccl_links, few_peers_have_links_of_their_own) {
    queues(32);
    run_ranks(4, false, to_next, NULL);
    run_ranks(8, false, to_next, NULL);
}

/* Groups have streams of their own, whatever their messages take. */
static void many_groups(tshi_rank *r, void *arg) {
    const char *const wanted = arg;
    tsh_group *pair = NULL;
    tshi_lines lines = {""};
    r->world->log = (tsh_log_sink){tshi_keep_line, &lines};
    tshi_check_ok(r, tsh_group_split(tsh_world_group(r->world), 0, r->rank, &pair));
    tsh_tensor *x = tshi_test_vector(r, TSH_INT64, N);
    for (int i = 0; i < 2; i++) {
        if (r->rank == 0) tshi_check_ok(r, tsh_send(pair, x, 1));
        if (r->rank == 1) tshi_check_ok(r, tsh_recv(pair, x, 0, NULL));
    }
    const char *line = strstr(lines.text, " queues ");
    bool right = wanted ? line && strstr(lines.text, wanted) && !strstr(line + 1, " queues ") : !line;
    tshi_check(r, right, "%s", lines.text);
    r->world->log = (tsh_log_sink){NULL, NULL};
    tsh_tensor_release(x);
    tsh_group_destroy(pair);
}

/* Messages to and from all, then groups beside the world's. */
static void later_groups(tshi_rank *r, void *arg) {
    (void)arg;
    tsh_group *groups[3] = {NULL, NULL, NULL}, *all = tsh_world_group(r->world);
    tshi_lines lines = {""};
    tsh_tensor *x = tshi_test_vector(r, TSH_INT64, N), *y = tshi_test_vector(r, TSH_INT64, N);
    r->world->log = (tsh_log_sink){tshi_keep_line, &lines};
    for (int by = 1; by < r->size; by++) {
        tsh_work *work = NULL;
        tshi_check_ok(r, tsh_send_async(all, x, (r->rank + by) % r->size, &work));
        tshi_check_ok(r, tsh_recv(all, y, (r->rank + r->size - by) % r->size, NULL));
        tshi_check_ok(r, tsh_work_wait(work));
        tsh_work_release(work);
    }
    for (int g = 0; g < 3; g++) {
        tshi_check_ok(r, tsh_group_split(all, 0, r->rank, &groups[g]));
        tshi_check_ok(r, tsh_all_reduce(groups[g], x, TSH_REDUCE_SUM));
    }
    tshi_check(r, !strstr(lines.text, " queues "), "%s", lines.text);
    r->world->log = (tsh_log_sink){NULL, NULL};
    for (int g = 0; g < 3; g++) tsh_group_destroy(groups[g]);
    tsh_tensor_release(x);
    tsh_tensor_release(y);
}

Test(nccl_links, leave_queues_to_three_groups_more) {
    queues(32);
    for (int ranks = 4; ranks <= 6; ranks++) run_ranks(ranks, false, later_groups, NULL);
}

Test(nccl_links, the_log_says_that_streams_share_queues) {
    queues(8);
    run_ranks(3, false, many_groups, "its GPU has 9 streams, but 8 queues");
}

Test(nccl_links, the_log_says_nothing_where_they_do_not) {
    queues(9);
    run_ranks(3, false, many_groups, NULL);
}

/* --- programs that have used CUDA before ------------------------------------------------------------------------- */

static void listen(void *said, tsh_log_level level, const char *line) {
    if (level == TSH_LOG_WARNING && strstr(line, "CUDA had started before tsh_world_init"))
        atomic_store((atomic_bool *)said, true);
}

static bool warns_of_start(tshi_rank_fn *life) {
    atomic_bool said = false;
    const tshi_test_options options = {.ranks = 3, .threads = true, .log = {listen, &said}};
    const char *words = tshi_test_run_with(&options, life, NULL, NULL, NULL);
    cr_assert_str_empty(words, "%s", words);
    expect_nothing_left("a world");
    return said;
}

static void with_few_queues(tshi_rank *r, void *arg) {
    const tshi_nccl *nccl = tshi_nccl_of(r->world);
    tshi_check(r, nccl->queues == 8, "%d queues", nccl->queues);
    from_any(r, arg);
}

Test(nccl_links, of_programs_that_have_started_cuda) {
    int gpus;
    begin(3, false);
    cudaGetDeviceCount(&gpus);
    cr_expect(warns_of_start(with_few_queues));
}

Test(nccl_links, the_log_says_nothing_where_cuda_starts_with_the_world) {
    begin(3, false);
    cr_expect(!warns_of_start(to_next));
}
