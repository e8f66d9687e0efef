/* A rank is killed at a random moment of saving: whatever it was doing, the newest whole checkpoint loads. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "support/checkpoints.h"

#include <criterion/criterion.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/time.h>
#include <unistd.h>

enum { KILLS = 200, RANKS = 2, MOST_STEPS = 1000, LEAST_US = 1000, MOST_US = 4000000 };

static const char *folder;

/* One kill. Steps are numbered through all of them. */
typedef struct attempt {
    unsigned seed;
    int victim;
    long delay; /* microseconds after the world is there */
    bool background;
    int64_t first, *confirmed; /* the newest step that some rank knows to be saved */
} attempt;

static void die(int signal) {
    (void)signal;
    kill(getpid(), SIGKILL);
}

static void save_until_killed(tshi_rank *r, void *arg) {
    const attempt *a = arg;
    tshi_test_model m;
    tsh_status status = TSH_OK;
    tshi_test_model_make(r, 0, &m);
    if (r->rank == a->victim) {
        const struct itimerval timer = {.it_value = {.tv_sec = a->delay / 1000000, .tv_usec = a->delay % 1000000}};
        signal(SIGALRM, die);
        setitimer(ITIMER_REAL, &timer, NULL);
    }
    for (int64_t step = a->first; step < a->first + MOST_STEPS && status == TSH_OK; step++) {
        tshi_test_model_fill(r, &m, (uint64_t)step);
        tsh_checkpoint c = {.parameters = m.list, .step = step, .keep = 2, .background = a->background};
        status = tsh_checkpoint_save(folder, &c);
        int64_t saved = step - a->background; /* in the background this call confirms the save before it */
        if (status == TSH_OK && saved >= a->first && saved > *a->confirmed) *a->confirmed = saved;
    }
    tshi_check(r, status == TSH_ERR_PEER, "%s: %s", tsh_status_name(status), tsh_error_message());
    tshi_test_model_free(&m);
}

static void load_newest(tshi_rank *r, void *arg) {
    int64_t step = *(const int64_t *)arg;
    tshi_test_model m;
    tshi_test_model_make(r, 1, &m);
    tsh_checkpoint c = {.parameters = m.list};
    tshi_check_ok(r, tsh_checkpoint_load(folder, &c));
    tshi_check(r, c.step == step, "step %lld", (long long)c.step);
    tshi_test_model_is(r, &m, (uint64_t)step, "the newest");
    tshi_test_model_free(&m);
}

/* The newest step, which is whole, has its values and is none older than one that was confirmed. */
static int64_t check_newest(const attempt *a) {
    int64_t step;
    cr_assert_eq(tsh_checkpoint_latest(folder, &step), TSH_OK);
    cr_assert_geq(step, *a->confirmed, "seed %u: the newest is %lld, and %lld was saved", a->seed, (long long)step,
                  (long long)*a->confirmed);
    if (step >= 0) cr_assert_str_empty(tshi_test_run(1, load_newest, &step), "seed %u", a->seed);
    return step;
}

Test(kills, the_newest_whole_checkpoint_loads, .timeout = 800) {
    tshi_outcome outcomes[RANKS];
    int64_t *confirmed = tshi_test_shared(sizeof *confirmed), newest = 0;
    int saved = 0, lost = 0;
    long longest = 60000; /* follows the time that a save takes here: some kills come before the first, some after */
    *confirmed = -1;
    folder = tshi_test_folder(0);
    for (unsigned seed = 1; seed <= KILLS; seed++) {
        srand(seed);
        attempt a = {.seed = seed, .victim = rand() % RANKS, .delay = 1 + rand() % longest, .background = rand() % 2};
        a.first = newest + 1;
        a.confirmed = confirmed;
        tshi_test_run_with(&(tshi_test_options){.ranks = RANKS}, save_until_killed, &a, outcomes, NULL);
        cr_assert_eq(outcomes[a.victim].signal, SIGKILL, "seed %u: %s", seed, outcomes[a.victim].words);
        cr_assert_str_empty(outcomes[1 - a.victim].words, "seed %u", seed);
        int64_t step = check_newest(&a);
        saved += step > newest;
        lost += step <= newest;
        longest = step > newest ? longest - longest / 4 : longest + longest / 3;
        longest = longest < LEAST_US ? LEAST_US : longest > MOST_US ? MOST_US : longest;
        if (step > newest) newest = step;
    }
    cr_log_info("%d kills came after a save, %d before the first was whole", saved, lost);
    cr_assert(saved > KILLS / 10 && lost > KILLS / 20, "%d and %d", saved, lost);
    tshi_test_remove(folder);
}
