/* Many failures: the kind, the group, the rank and the call follow from a seed that all ranks know. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "dist/tagged/ranks.h"
#include "support/collectives.h"
#include "tshard/tshard.h"

#include "dist/world.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { SEEDS = 5 };

static int draw(uint64_t *state, int n) {
    *state += UINT64_C(0x9e3779b97f4a7c15);
    uint64_t z = (*state ^ *state >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ z >> 27) * UINT64_C(0x94d049bb133111eb);
    return (int)((z ^ z >> 31) % (uint64_t)n);
}

/* --- a call ------------------------------------------------------------------------------------------------------- */

typedef struct plan {
    tsh_collective op; /* all_reduce, broadcast, reduce or barrier */
    tsh_dtype dtype;
    tsh_reduce_op reduce;
    int root;
    int64_t n;
    bool started;
} plan;

static plan draw_plan(uint64_t *state, int ranks) {
    static const tsh_collective ops[] = {TSH_COLLECTIVE_ALL_REDUCE, TSH_COLLECTIVE_BROADCAST, TSH_COLLECTIVE_REDUCE};
    static const int64_t counts[] = {1, 50, 3000, 70000};
    return (plan){ops[draw(state, 3)],
                  TSH_FLOAT32,
                  draw(state, 2) ? TSH_REDUCE_SUM : TSH_REDUCE_MAX,
                  draw(state, ranks),
                  counts[draw(state, 4)],
                  draw(state, 2) != 0};
}

static tsh_status make(tshi_rank *r, const plan *p) {
    tsh_group *group = tsh_world_group(r->world);
    tsh_tensor *x = tshi_test_vector(r, p->dtype, p->n);
    tsh_work *work = NULL;
    tsh_status status;
    if (p->op == TSH_COLLECTIVE_ALL_REDUCE && p->started)
        status = tsh_all_reduce_async(group, x, p->reduce, &work);
    else if (p->op == TSH_COLLECTIVE_ALL_REDUCE)
        status = tsh_all_reduce(group, x, p->reduce);
    else if (p->op == TSH_COLLECTIVE_BROADCAST && p->started)
        status = tsh_broadcast_async(group, x, p->root, &work);
    else if (p->op == TSH_COLLECTIVE_BROADCAST)
        status = tsh_broadcast(group, x, p->root);
    else if (p->op == TSH_COLLECTIVE_REDUCE)
        status = tsh_reduce_to_root(group, x, p->reduce, p->root);
    else
        status = tsh_barrier(group);
    if (work) status = tsh_work_wait(work);
    tsh_work_release(work);
    tsh_tensor_release(x);
    return status;
}

/* --- calls that differ -------------------------------------------------------------------------------------------- */

typedef enum difference { OP, DTYPE, COUNT, REDUCTION, ROOT, ORDER, DIFFERENCES } difference;

/* The call that the odd rank makes instead. */
static plan other(const plan *p, difference what, int ranks) {
    plan q = *p;
    if (what == OP || what == ORDER) q.op = TSH_COLLECTIVE_BARRIER;
    if (what == DTYPE) q.dtype = TSH_INT32;
    if (what == COUNT) q.n++;
    if (what == REDUCTION) q.reduce = TSH_REDUCE_PROD;
    if (what == ROOT) q.root = (q.root + 1) % ranks;
    return q;
}

static void expect_mismatch(tshi_rank *r, const plan *p, int odd, int seed, difference what) {
    char mine[16], odd_one[16];
    int first = odd == 0 ? 1 : 0; /* the message compares with rank 0 */
    snprintf(mine, sizeof mine, "rank %d: ", first);
    snprintf(odd_one, sizeof odd_one, "rank %d: ", odd);
    tsh_status status = make(r, p);
    const char *words = tsh_error_message();
    tshi_check(r, status == TSH_ERR_MISMATCH && strstr(words, mine) && strstr(words, odd_one),
               "seed %d, difference %d on rank %d: %d: %s", seed, (int)what, odd, (int)status, words);
}

static void differ(tshi_rank *r, int seed, difference what) {
    uint64_t state = (uint64_t)(seed * 100 + (int)what);
    int odd = draw(&state, r->size);
    plan p = draw_plan(&state, r->size);
    if (what == REDUCTION) p.op = TSH_COLLECTIVE_ALL_REDUCE;
    if (what == ROOT) p.op = TSH_COLLECTIVE_BROADCAST;
    plan q = other(&p, what, r->size);
    if (draw(&state, 3) == 0 && r->rank == odd) pause_for(0.005);
    expect_mismatch(r, r->rank == odd ? &q : &p, odd, seed, what);
    if (what == ORDER) expect_mismatch(r, r->rank == odd ? &p : &q, odd, seed, what);
    tshi_try_all_reduce(r, tsh_world_group(r->world), TSH_FLOAT32, TSH_REDUCE_SUM, 100);
}

/* --- a rank that fails -------------------------------------------------------------------------------------------- */

typedef enum moment { BEFORE, INSIDE, AFTER, MOMENTS } moment;

/* Inside: its call is under way, and peers may not have made theirs yet. */
static void fail_at(tshi_rank *r, const plan *p, moment when) {
    tsh_work *work = NULL;
    tsh_tensor *x = tshi_test_vector(r, p->dtype, p->n);
    if (when == INSIDE) tshi_check_ok(r, tsh_all_reduce_async(tsh_world_group(r->world), x, p->reduce, &work));
    if (when == AFTER) tshi_check_ok(r, tsh_all_reduce(tsh_world_group(r->world), x, p->reduce));
    tsh_world_fail(r->world, "out of luck");
    tshi_check_status(r, tsh_barrier(tsh_world_group(r->world)), TSH_ERR_STATE, "tsh_world_recover");
    tsh_tensor_release(x);
    tshi_check_ok(r, tsh_world_recover(r->world));
    tsh_work_release(work);
}

static void err(tshi_rank *r, int seed, moment when) {
    uint64_t state = (uint64_t)(seed * 100 + 50 + (int)when);
    int bad = draw(&state, r->size), delay = draw(&state, 3);
    plan p = draw_plan(&state, r->size);
    p.op = TSH_COLLECTIVE_ALL_REDUCE;
    char words[64];
    snprintf(words, sizeof words, "rank %d: out of luck", bad);
    if (r->rank == bad) {
        if (delay == 1) pause_for(0.01);
        fail_at(r, &p, when);
    } else {
        if (delay == 2) pause_for(0.01);
        double since = tshi_clock();
        tsh_status status = TSH_OK;
        for (int i = 0; i < 3 && status == TSH_OK; i++) status = make(r, &p);
        tshi_check(r, status == TSH_ERR_PEER && strstr(tsh_error_message(), words), "seed %d, moment %d: %d: %s", seed,
                   (int)when, (int)status, tsh_error_message());
        tshi_check(r, tshi_clock() - since < TSHI_SOON, "seed %d: an error after %.1f s", seed, tshi_clock() - since);
        tshi_check_ok(r, tsh_world_recover(r->world));
    }
    tshi_try_all_reduce(r, tsh_world_group(r->world), TSH_FLOAT32, TSH_REDUCE_SUM, 100);
}

void scenario_troubles(tshi_rank *r) {
    for (int seed = 0; seed < SEEDS && !r->failed; seed++) {
        for (int what = 0; what < DIFFERENCES && !r->failed; what++) differ(r, seed, (difference)what);
        for (int when = 0; when < MOMENTS && !r->failed; when++) err(r, seed, (moment)when);
    }
}

/* --- a rank that is lost ------------------------------------------------------------------------------------------ */

static bool is(const char *variable, const char *value) {
    const char *text = getenv(variable);
    return text && !strcmp(text, value);
}

/* The launcher ends all ranks when one exits without MPI_Finalize. */
static void leave_with_others(const tshi_rank *r, int lost) {
    rank_arrives(r->rank);
    for (int i = 0; i < r->size; i++) {
        if (i != lost) await_rank(i);
    }
}

/* WHEN (before, inside, after), SEED and SIGNAL (KILL, STOP) say where and how one of the ranks ends. The launcher must
 * not end the other ranks. */
void scenario_lost(tshi_rank *r) {
    tsh_group *group = tsh_world_group(r->world);
    const char *text = getenv("SEED");
    uint64_t state = text ? strtoull(text, NULL, 10) : 0;
    int lost = draw(&state, r->size), number = is("SIGNAL", "KILL") ? SIGKILL : SIGSTOP;
    int n = 1 + draw(&state, 200000);
    tsh_tensor *x = tshi_test_vector(r, TSH_FLOAT32, n);
    tsh_status status = TSH_OK;
    char rank[16];
    snprintf(rank, sizeof rank, "rank %d", lost);
    /* The last message of a rank that is killed may be lost with it. */
    for (int i = draw(&state, 5); i > 0 && !is("WHEN", "before") && status == TSH_OK; i--)
        status = tsh_all_reduce(group, x, TSH_REDUCE_SUM);
    double pause = 0.001 * draw(&state, 40);
    if (r->rank == lost && is("WHEN", "inside")) signal_later(number, pause);
    if (r->rank == lost && !is("WHEN", "inside")) raise(number);
    double since = tshi_clock();
    while (status == TSH_OK) status = tsh_all_reduce(group, x, TSH_REDUCE_SUM);
    if (r->rank == lost) _exit(0); /* stopped until the launcher ended it, long after its peers had left */
    const char *words = tsh_error_message();
    tshi_check(r, strstr(words, rank) && strstr(words, number == SIGKILL ? "died" : "within"), "%s", words);
    tshi_check(r, tshi_clock() - since < r->world->timeout + TSHI_SOON, "an error after %.1f s", tshi_clock() - since);
    printf("told: %s\n", words);
    fflush(stdout);
    tsh_tensor_release(x);
    leave_with_others(r, lost);
}

/* --- a stopped rank that peers wait for --------------------------------------------------------------------------- */

/* True when the message names that rank alone. */
static bool blames(const char *words, int rank) {
    char came[64], stopped[64];
    const char *end = strstr(words, " did not come within");
    snprintf(came, sizeof came, ": rank %d did not come within", rank);
    snprintf(stopped, sizeof stopped, " s; rank %d is stopped", rank);
    return strstr(words, stopped) && (!end || strstr(words, came)) && strstr(words, " within ");
}

static tsh_status call_axis(tsh_group *group, tsh_tensor *x, tsh_tensor *both, bool started) {
    tsh_work *work = NULL;
    if (!started) return tsh_all_gather_into_tensor(group, x, both, NULL);
    tsh_status status = tsh_all_reduce_async(group, x, TSH_REDUCE_SUM, &work);
    if (status == TSH_OK) status = tsh_work_wait(work);
    tsh_work_release(work);
    return status;
}

/* SEED: which of four ranks on two axes stops, and where. A rank may wait for one that waits for the stopped rank. */
void scenario_blame(tshi_rank *r) {
    const char *text = getenv("SEED");
    uint64_t state = text ? strtoull(text, NULL, 10) : 0;
    int lost = (int)state % r->size, calls = draw(&state, 6);
    bool inside = draw(&state, 2), started = draw(&state, 2);
    tsh_mesh *mesh = NULL;
    if (!tshi_check_ok(r, tsh_mesh_create(r->world, "a=2,b=2", &mesh))) return;
    tsh_tensor *x = tshi_test_vector(r, TSH_FLOAT32, 3000), *both = tshi_test_vector(r, TSH_FLOAT32, 6000);
    tsh_status status = TSH_OK;
    for (int i = 0; status == TSH_OK; i++) {
        if (r->rank == lost && i == calls && inside) signal_later(SIGSTOP, 0.003);
        if (r->rank == lost && i == calls && !inside) raise(SIGSTOP);
        status = call_axis(tsh_mesh_axis_group(mesh, i % 2), x, both, started);
    }
    if (r->rank == lost) _exit(0);
    tshi_check(r, blames(tsh_error_message(), lost), "rank %d: %s", lost, tsh_error_message());
    printf("told: %s\n", tsh_error_message());
    fflush(stdout);
    tsh_tensor_release(both);
    tsh_tensor_release(x);
    tsh_mesh_destroy(mesh);
    leave_with_others(r, lost);
}

/* SIGUSR1 while this rank waits for the last one (TSHARD_SIGUSR1=1): the log has the calls made so far. */
void scenario_ring(tshi_rank *r) {
    tsh_group *group = tsh_world_group(r->world);
    tshi_try_all_reduce(r, group, TSH_FLOAT64, TSH_REDUCE_SUM, 77);
    if (r->rank == r->size - 1)
        pause_for(1);
    else
        signal_later(SIGUSR1, 0.1);
    tshi_check_ok(r, tsh_barrier(group));
}

/* The last rank never comes to tsh_world_init, although it is there for MPI or its launcher. */
void scenario_absent(int rank, int size) {
    tsh_world *world = NULL;
    char words[32];
    snprintf(words, sizeof words, "missing rank %d", size - 1);
    if (rank == size - 1) {
        for (int i = 0; i < size - 1; i++) await_rank(i);
        return;
    }
    tsh_status status = tsh_world_init(NULL, &world);
    bool good = status == TSH_ERR_TIMEOUT && (!getenv("PMIX_NAMESPACE") || strstr(tsh_error_message(), words));
    printf("%s: %s\n", good ? "told" : "WRONG", tsh_error_message());
    fflush(stdout);
    tsh_world_destroy(world);
    rank_arrives(rank);
    for (int i = 0; i < size - 1; i++) await_rank(i);
}
