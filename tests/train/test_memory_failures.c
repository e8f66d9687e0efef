/* A training step whose k-th request for memory fails, for every k until the step succeeds: it returns an error,
 * nothing leaks, and the next step has the usual result. */
#include "support/language.h"
#include "support/ranks.h"

#include <criterion/criterion.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_RANKS = 2, MOST_REQUESTS = 2000 };

/* A world's memory: counts what is out, and fails the request that is due. */
typedef struct memory {
    int64_t due; /* requests until the one that fails; 0: none will */
    int64_t out;
    bool failed;
} memory;

static bool grants(memory *m) {
    if (m->due == 0 || --m->due > 0) return true;
    m->failed = true;
    return false;
}

static void *hook_alloc(void *user, size_t size) {
    memory *m = user;
    if (!grants(m)) return NULL;
    m->out++;
    return malloc(size);
}

static void hook_release(void *user, void *pointer) {
    ((memory *)user)->out--;
    free(pointer);
}

static bool hook_reserve(void *user, size_t size) {
    (void)size;
    return grants(user);
}

/* What a rank saw. */
typedef struct account {
    memory memory;
    char trouble[TSHI_TEST_WORDS]; /* a call that must not fail did */
    tsh_status status;             /* of the step with the failure */
    char words[TSHI_TEST_WORDS];
    double loss[2], norm[2]; /* of the next, and of the one after an update */
    size_t bytes_in_use;
} account;

typedef struct job {
    tsh_thread_rendezvous *threads;
    int ranks, victim;
    const char *axis; /* of the ranks; the other has one */
    tsh_zero_level level;
    bool creates; /* the request that fails is one of tsh_data_parallel_create, not of a step */
    bool clips;   /* it is one of the clipping of a deterministic world, which makes gradients whole */
    int64_t due;
    account *accounts;
    int rank;
} job;

static bool works(account *a, tsh_status status, const char *what) {
    if (status != TSH_OK && !a->trouble[0])
        snprintf(a->trouble, sizeof a->trouble, "%s: %.900s", what, tsh_error_message());
    return status == TSH_OK;
}

/* A schedule that cannot be created leaves everything as it was. */
static bool create_schedule(const job *j, account *a, tshi_language *l) {
    if (j->creates && j->rank == j->victim) a->memory.due = j->due;
    a->status = tshi_language_share(l);
    a->memory.due = 0;
    if (j->creates && a->status != TSH_OK) {
        snprintf(a->words, sizeof a->words, "rank %d: %.900s", j->rank, tsh_error_message());
        if (l->copies && !a->trouble[0]) snprintf(a->trouble, sizeof a->trouble, "a failed call leaves a schedule");
        if (!works(a, tshi_language_share(l), "the next schedule")) return false;
    } else if (!works(a, a->status, "the schedule")) {
        return false;
    }
    return works(a, tshi_language_optimize(l), "the optimizer");
}

static void two_steps(account *a, tshi_language *l) {
    for (int i = 0; i < 2; i++) {
        if (!works(a, tshi_language_gradients(l, &a->loss[i], &a->norm[i], NULL), "the next step")) return;
        if (i == 0) works(a, tshi_language_update(l), "update");
    }
    a->bytes_in_use = tsh_device_stats(tsh_world_device(l->world)).bytes_in_use;
}

static void fail_a_step(const job *j, account *a, tshi_language *l) {
    if (j->rank == j->victim) a->memory.due = j->due;
    a->status = tshi_language_gradients(l, &a->loss[0], &a->norm[0], a->words);
    /* A sharded update communicates, too; one that fails changes nothing. */
    if (j->due && j->level && a->status == TSH_OK) {
        a->status = tshi_language_update(l);
        const char *words = a->status == TSH_OK ? "" : tsh_error_message();
        snprintf(a->words, sizeof a->words, "rank %d: %.900s", j->rank, words);
    }
    a->memory.due = 0;
}

static void fail_a_clip(const job *j, account *a, tshi_language *l) {
    works(a, tsh_backward(l->tape, tshi_language_loss(l)), "the backward");
    if (j->rank == j->victim) a->memory.due = j->due;
    a->status = tsh_clip_grad_norm(l->parameters, 0.5, NULL);
    a->memory.due = 0;
    if (a->status != TSH_OK) snprintf(a->words, sizeof a->words, "rank %d: %.900s", j->rank, tsh_error_message());
    works(a, tsh_tape_reset(l->tape), "the reset");
}

/* A world, its model, the steps, and the end of all of it. */
static void *rank_main(void *argument) {
    const job *j = argument;
    account *a = &j->accounts[j->rank];
    char axes[32];
    tshi_language l;
    tsh_world *world;
    tsh_world_config config = {.rank = j->rank,
                               .world_size = j->ranks,
                               .threads = j->threads,
                               .timeout = 10,
                               .heap_bytes = (size_t)8 << 20,
                               .blas_threads = 1,
                               .deterministic = j->clips,
                               .allocator = {hook_alloc, hook_release, hook_reserve, &a->memory}};
    snprintf(axes, sizeof axes, "%s=1,%s=%d", strcmp(j->axis, "model") == 0 ? "data" : "model", j->axis, j->ranks);
    if (!works(a, tsh_world_init(&config, &world), "world_init")) return NULL;
    if (works(a, tshi_language_create_bare(world, axes, j->level, &l), "the model")) {
        l.recompute = j->level >= TSH_ZERO_GRADIENTS;
        if (create_schedule(j, a, &l)) {
            if (j->clips)
                fail_a_clip(j, a, &l);
            else if (!j->creates)
                fail_a_step(j, a, &l);
            two_steps(a, &l);
        }
        tshi_language_destroy(&l);
    }
    tsh_world_destroy(world);
    return NULL;
}

static void run(const job *all, int64_t due, account *accounts) {
    int ranks = all->ranks;
    pthread_t threads[MOST_RANKS];
    job jobs[MOST_RANKS];
    tsh_thread_rendezvous *shared = NULL;
    memset(accounts, 0, sizeof *accounts * (size_t)ranks);
    if (ranks > 1) cr_assert_eq(tsh_thread_rendezvous_create(ranks, &shared), TSH_OK);
    for (int i = 0; i < ranks; i++) {
        jobs[i] = *all;
        jobs[i].threads = shared;
        jobs[i].due = due;
        jobs[i].accounts = accounts;
        jobs[i].rank = i;
        cr_assert_eq(pthread_create(&threads[i], NULL, rank_main, &jobs[i]), 0);
    }
    for (int i = 0; i < ranks; i++) pthread_join(threads[i], NULL);
    tsh_thread_rendezvous_destroy(shared);
    for (int i = 0; i < ranks; i++) {
        cr_assert_str_empty(accounts[i].trouble, "request %lld: rank %d: %s", (long long)due, i, accounts[i].trouble);
        cr_assert_eq(accounts[i].memory.out, 0, "request %lld: rank %d leaks %lld", (long long)due, i,
                     (long long)accounts[i].memory.out);
    }
}

static void check_words(const account *a, int64_t due, bool victim) {
    tsh_status wanted = victim ? TSH_ERR_MEMORY : TSH_ERR_PEER;
    cr_assert_eq(a->status, wanted, "request %lld: %s %s", (long long)due, tsh_status_name(a->status), a->words);
    cr_assert(strstr(a->words, "no memory for") || strstr(a->words, "reserve refused"), "request %lld: %s",
              (long long)due, a->words);
}

/* The results have the bits of a run without failures. */
static void check_values(const account *a, const account *good, int64_t due) {
    cr_assert_eq(memcmp(a->loss, good->loss, sizeof a->loss), 0, "request %lld: losses %.17g, %.17g", (long long)due,
                 a->loss[0], a->loss[1]);
    cr_assert_eq(memcmp(a->norm, good->norm, sizeof a->norm), 0, "request %lld: norms %.17g, %.17g", (long long)due,
                 a->norm[0], a->norm[1]);
    cr_assert_eq(a->bytes_in_use, good->bytes_in_use, "request %lld: %zu bytes in use", (long long)due,
                 a->bytes_in_use);
}

static void every_request(const job all) {
    int ranks = all.ranks, victim = all.victim;
    account good[MOST_RANKS], accounts[MOST_RANKS];
    char cause[16];
    run(&all, 0, good);
    cr_assert_eq(good[0].status, TSH_OK, "%s", good[0].words);
    snprintf(cause, sizeof cause, "rank %d", victim);
    for (int64_t due = 1;; due++) {
        run(&all, due, accounts);
        if (!accounts[victim].memory.failed) {
            cr_assert_gt(due, all.clips ? 10 : 30, "only %lld requests are made", (long long)due);
            cr_assert_eq(accounts[victim].status, TSH_OK);
            return;
        }
        cr_assert_lt(due, MOST_REQUESTS);
        for (int i = 0; i < ranks; i++) {
            check_words(&accounts[i], due, i == victim);
            cr_assert(strstr(accounts[i].words, cause), "request %lld: %s", (long long)due, accounts[i].words);
            check_values(&accounts[i], &good[i], due);
        }
    }
}

Test(memory_failures, every_request_of_a_step_alone, .timeout = 120) {
    every_request((job){.ranks = 1, .axis = "model"});
}

Test(memory_failures, every_request_of_a_step_of_two_ranks, .timeout = 120) {
    every_request((job){.ranks = 2, .axis = "model", .victim = 0});
    every_request((job){.ranks = 2, .axis = "model", .victim = 1});
}

Test(memory_failures, every_request_of_a_deterministic_clip, .timeout = 120) {
    every_request((job){.ranks = 2, .axis = "model", .victim = 1, .clips = true});
}

/* With sums of gradients under way. */
Test(memory_failures, every_request_of_a_step_of_two_copies, .timeout = 120) {
    every_request((job){.ranks = 2, .axis = "data", .victim = 0});
    every_request((job){.ranks = 2, .axis = "data", .victim = 1});
}

/* With slices, and with the all-gathers of an update; from slices of gradients on the step has segments that run
 * again. */
Test(memory_failures, every_request_of_a_sharded_step, .timeout = 240) {
    for (int level = TSH_ZERO_OPTIMIZER; level <= TSH_ZERO_PARAMETERS; level++) {
        every_request((job){.ranks = 2, .axis = "data", .level = (tsh_zero_level)level, .victim = level % 2});
    }
}

Test(memory_failures, every_request_of_a_schedule_that_is_created, .timeout = 240) {
    for (int level = TSH_ZERO_NOTHING; level <= TSH_ZERO_PARAMETERS; level++) {
        every_request(
            (job){.ranks = 2, .axis = "data", .level = (tsh_zero_level)level, .victim = level % 2, .creates = true});
    }
}

/* --- from the first call of a program to the last ----------------------------------------------------------------- */

static void whole_program(memory *m, tsh_status *status) {
    double loss, norm;
    tshi_language l;
    tsh_world *world;
    tsh_world_config config = {.rank = 0,
                               .world_size = 1,
                               .heap_bytes = (size_t)8 << 20,
                               .blas_threads = 1,
                               .allocator = {hook_alloc, hook_release, hook_reserve, m}};
    *status = tsh_world_init(&config, &world);
    if (*status != TSH_OK) return;
    *status = tshi_language_create(world, "data=1,model=1", &l);
    if (*status == TSH_OK) {
        *status = tshi_language_gradients(&l, &loss, &norm, NULL);
        if (*status == TSH_OK) *status = tshi_language_update(&l);
        tshi_language_destroy(&l);
    }
    tsh_world_destroy(world);
}

Test(memory_failures, every_request_of_a_program, .timeout = 120) {
    for (int64_t due = 1;; due++) {
        memory m = {.due = due};
        tsh_status status;
        whole_program(&m, &status);
        cr_assert_eq(m.out, 0, "request %lld leaks %lld", (long long)due, (long long)m.out);
        if (!m.failed) {
            cr_assert_eq(status, TSH_OK, "%s", tsh_error_message());
            cr_assert_gt(due, 60);
            return;
        }
        cr_assert_eq(status, TSH_ERR_MEMORY, "request %lld: %s %s", (long long)due, tsh_status_name(status),
                     tsh_error_message());
        cr_assert_lt(due, MOST_REQUESTS);
    }
}
