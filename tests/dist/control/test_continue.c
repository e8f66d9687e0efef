/* Ranks of one machine go on after deaths, with a world of those that live. */
#include "support/ranks.h"

#include <criterion/criterion.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>
#include <unistd.h>

/* What one run does. */
typedef struct plan {
    int victims, victim[3]; /* killed before the call, in that order */
    int left;               /* ranks that go on */
} plan;

static bool is_victim(const plan *p, int rank) {
    for (int i = 0; i < p->victims; i++) {
        if (p->victim[i] == rank) return true;
    }
    return false;
}

/* The sum over the ranks of the numbers that they are given is right. */
static void check_sum(tshi_rank *r, tsh_world *world, double mine, double sum) {
    tsh_tensor_config config = {.dtype = TSH_FLOAT64, .ndim = 1, .shape = {100}};
    tsh_tensor *t = NULL;
    if (!tshi_check_ok(r, tsh_tensor_create(tsh_world_mesh(world), &config, &t))) return;
    tsh_tensor_fill(t, mine);
    tshi_check_ok(r, tsh_all_reduce(tsh_world_group(world), t, TSH_REDUCE_SUM));
    double first = ((const double *)tsh_tensor_data(t))[99];
    tshi_check(r, first == sum, "the sum is %g, not %g", first, sum);
    tsh_tensor_release(t);
}

/* Calls until one fails, because a rank has died. */
static void run_until_death(tshi_rank *r) {
    tsh_status status = TSH_OK;
    while (status == TSH_OK) status = tsh_barrier(tsh_world_group(r->world));
    tshi_check(r, status == TSH_ERR_PEER, "%s: %s", tsh_status_name(status), tsh_error_message());
}

static void goes_on(tshi_rank *r, void *arg) {
    const plan *p = arg;
    tsh_world *next = NULL;
    tsh_continued what;
    tsh_continue_config config = {.step = 10 + r->rank % 2};
    tshi_check_ok(r, tsh_barrier(tsh_world_group(r->world)));
    if (is_victim(p, r->rank)) kill(getpid(), SIGKILL);
    run_until_death(r);
    if (!tshi_check_ok(r, tsh_world_continue(r->world, &config, &next, &what))) return;
    int before = 0;
    double sum = 0;
    for (int i = 0; i < r->size; i++) {
        before += i < r->rank && !is_victim(p, i);
        sum += is_victim(p, i) ? 0 : i + 1;
    }
    tshi_check(r, tsh_world_size(next) == p->left && tsh_world_rank(next) == before, "rank %d of %d",
               tsh_world_rank(next), tsh_world_size(next));
    tshi_check(r, what.former_rank == r->rank && what.former_size == r->size && what.first_step >= 10, "former rank");
    check_sum(r, next, r->rank + 1, sum);
    tsh_world *third = NULL;
    tshi_check(r, tsh_world_continue(r->world, NULL, &third, NULL) == TSH_ERR_STATE && !third, "continued twice");
    tsh_world_destroy(next);
}

/* The first failure of a rank that was not to die; "" without one. */
static const char *run(int ranks, const plan *p, tshi_rank_fn *fn) {
    static tshi_outcome outcomes[16];
    const tshi_test_options options = {.ranks = ranks, .timeout = 100};
    tshi_test_run_with(&options, fn, (void *)(uintptr_t)p, outcomes, NULL);
    for (int i = 0; i < ranks; i++) {
        if (is_victim(p, i) ? outcomes[i].signal != SIGKILL : outcomes[i].words[0] != '\0') return outcomes[i].words;
    }
    return "";
}

Test(continue, one_rank_dies, .timeout = 120) {
    for (int victim = 0; victim < 4; victim++) {
        cr_assert_str_empty(run(4, &(plan){1, {victim}, 3}, goes_on));
    }
}

Test(continue, one_is_left, .timeout = 120) {
    cr_assert_str_empty(run(2, &(plan){1, {0}, 1}, goes_on));
    cr_assert_str_empty(run(2, &(plan){1, {1}, 1}, goes_on));
    cr_assert_str_empty(run(4, &(plan){3, {0, 1, 3}, 1}, goes_on));
}

/* --- deaths during the call --------------------------------------------------------------------------------------- */

/* Victims after the first one are killed by a timer, during the call or soon after it. */
static void die_soon(long microseconds) {
    const struct itimerval when = {.it_value = {.tv_usec = microseconds + 1}};
    signal(SIGALRM, SIG_DFL);
    setitimer(ITIMER_REAL, &when, NULL);
}

typedef struct storm {
    plan plan;
    unsigned seed;
} storm;

/* Goes on until so many ranks are left as live in the end. */
static void weathers(tshi_rank *r, void *arg) {
    const storm *s = arg;
    tsh_world *world = r->world, *next;
    unsigned seed = s->seed * 16 + (unsigned)r->rank;
    tshi_check_ok(r, tsh_barrier(tsh_world_group(world)));
    if (s->plan.victim[0] == r->rank) kill(getpid(), SIGKILL);
    while (!r->failed && tsh_world_size(world) > s->plan.left) {
        tsh_status status = TSH_OK;
        while (status == TSH_OK) status = tsh_barrier(tsh_world_group(world));
        tshi_check(r, status == TSH_ERR_PEER, "%s: %s", tsh_status_name(status), tsh_error_message());
        if (world == r->world && is_victim(&s->plan, r->rank)) die_soon(rand_r(&seed) % 6000);
        tshi_check_ok(r, tsh_world_continue(world, NULL, &next, NULL));
        if (world != r->world) tsh_world_destroy(world);
        world = next;
    }
    double sum = 0;
    for (int i = 0; i < r->size; i++) sum += is_victim(&s->plan, i) ? 0 : i + 1;
    if (!r->failed) check_sum(r, world, r->rank + 1, sum);
    if (world != r->world) tsh_world_destroy(world);
}

Test(continue, more_die_during_the_call, .timeout = 300) {
    for (unsigned seed = 0; seed < 16; seed++) {
        storm s = {.plan = {2, {(int)(seed % 5), (int)((seed + 1 + seed / 5 % 4) % 5)}, 3}, .seed = seed};
        tshi_outcome outcomes[5];
        const tshi_test_options options = {.ranks = 5, .timeout = 100};
        tshi_test_run_with(&options, weathers, &s, outcomes, NULL);
        for (int i = 0; i < 5; i++) {
            if (!is_victim(&s.plan, i))
                cr_assert(outcomes[i].code == 0, "seed %u: rank %d: %s", seed, i, outcomes[i].words);
        }
    }
}

/* --- a rank that was stopped -------------------------------------------------------------------------------------- */

typedef struct stopping {
    atomic_int stopped, gone_on; /* the process number of the rank; ranks that have gone on */
} stopping;

/* Rank 1 stops. The others lose it, and wake it up when they have gone on. */
static void leaves_a_stopped_rank(tshi_rank *r, void *arg) {
    stopping *s = arg;
    tsh_world *next = NULL;
    tshi_check_ok(r, tsh_barrier(tsh_world_group(r->world)));
    if (r->rank == 1) {
        atomic_store(&s->stopped, getpid());
        raise(SIGSTOP);
        tsh_status status = tsh_barrier(tsh_world_group(r->world));
        tshi_check(r, status != TSH_OK, "the rank that was lost has taken part");
        tshi_check_status(r, tsh_world_continue(r->world, NULL, &next, NULL), TSH_ERR_STATE, "declared rank 1 lost");
        return;
    }
    tsh_status status = tsh_barrier(tsh_world_group(r->world));
    tshi_check(r, status == TSH_ERR_TIMEOUT || status == TSH_ERR_PEER, "%s", tsh_error_message());
    if (tshi_check_ok(r, tsh_world_continue(r->world, &(tsh_continue_config){.wait = 2}, &next, NULL)))
        check_sum(r, next, 1, 2);
    atomic_fetch_add(&s->gone_on, 1);
    if (r->rank == 0) {
        tshi_test_await(r, &s->gone_on, 2);
        kill(atomic_load(&s->stopped), SIGCONT);
    }
    check_sum(r, next, 2, 4);
    tsh_world_destroy(next);
}

Test(continue, a_stopped_rank_is_left_behind, .timeout = 120) {
    stopping *s = tshi_test_shared(sizeof *s);
    const tshi_test_options options = {.ranks = 3, .timeout = 100, .world_timeout = "2"};
    cr_assert_str_empty(tshi_test_run_with(&options, leaves_a_stopped_rank, s, NULL, NULL));
}

/* --- refusals ----------------------------------------------------------------------------------------------------- */

static void refuses(tshi_rank *r, void *arg) {
    tsh_world *next;
    (void)arg;
    tshi_check_status(r, tsh_world_continue(NULL, NULL, &next, NULL), TSH_ERR_ARGUMENT, "world");
    tshi_check_status(r, tsh_world_continue(r->world, NULL, NULL, NULL), TSH_ERR_ARGUMENT, "out");
    tshi_check_status(r, tsh_world_continue(r->world, &(tsh_continue_config){.wait = -1}, &next, NULL),
                      TSH_ERR_ARGUMENT, "wait");
    tshi_check_status(r, tsh_world_continue(r->world, NULL, &next, NULL), TSH_ERR_STATE, "no rank has died");
    tshi_check_ok(r, tsh_barrier(tsh_world_group(r->world)));
    if (r->rank == 2) kill(getpid(), SIGKILL);
    run_until_death(r);
    tshi_check_status(r, tsh_world_continue(r->world, &(tsh_continue_config){.min_ranks = 3}, &next, NULL),
                      TSH_ERR_PEER, "rank 2 of 3 is lost, and the job needs at least 3 ranks");
}

Test(continue, refuses_and_says_why, .timeout = 120) {
    cr_assert_str_empty(run(3, &(plan){1, {2}, 2}, refuses));
}
