/* A step that fails on one rank: tsh_tape_reset is all that a loop needs, on every rank, whenever the failure came. */
#include "support/steps.h"
#include "tshard/tshard.h"

#include <criterion/criterion.h>
#include <string.h>

enum { MOST_RANKS = 4 };

static void loop(tshi_rank *r, void *arg) {
    tshi_run_steps(r, arg, r->result);
}

static void tell(tshi_moment when, int ranks, bool threads) {
    tshi_course all[MOST_RANKS];
    for (int victim = 0; victim < ranks; victim += ranks - 1) {
        tshi_story s = {when, victim};
        tshi_test_options options = {.ranks = ranks, .threads = threads, .result_bytes = sizeof *all};
        memset(all, 0, sizeof all);
        const char *words = tshi_test_run_with(&options, loop, &s, NULL, all);
        if (!words[0]) words = tshi_check_courses(all, ranks, &s);
        cr_assert_str_empty(words, "rank %d of %d fails %s: %s", victim, ranks, tshi_moment_name(when), words);
    }
}

Test(recovery, one_call_does_on_every_rank, .timeout = 60) {
    for (int when = 0; when < TSHI_MOMENTS; when++) {
        for (int ranks = 2; ranks <= MOST_RANKS; ranks++) tell((tshi_moment)when, ranks, false);
    }
}

Test(recovery, of_threads, .timeout = 60) {
    for (int when = 0; when < TSHI_MOMENTS; when++) tell((tshi_moment)when, 3, true);
}

Test(recovery, of_one_rank, .timeout = 20) {
    tshi_course course;
    tshi_story s = {TSHI_AT_END, 0};
    tshi_test_options options = {.ranks = 1, .result_bytes = sizeof course};
    cr_assert_str_empty(tshi_test_run_with(&options, loop, &s, NULL, &course));
    for (int i = 0; i < TSHI_LOOP_STEPS; i++) cr_assert_eq(course.ok[i], i != TSHI_LOST_STEP, "step %d", i);
}

/* --- many tapes --------------------------------------------------------------------------------------------------- */

typedef struct tapes_story {
    int kept, passing; /* tapes made after the one with the steps: that live on; one after another, in each step */
    bool by_hand;      /* the failure is of no step: the rank that is behind recovers a step early */
    atomic_int *failed;
} tapes_story;

/* Rank 1 fails in step 2 while rank 0 is in step 1, whose collective is done. Both go on with the same step, in which
 * the sum over the ranks is one of that step's terms. */
static void many_tapes(tshi_rank *r, void *arg) {
    const tapes_story *s = arg;
    enum { FAILS = 2, STEPS = 5, KEPT = 12 };
    tsh_tape *tape = NULL, *others[KEPT] = {NULL};
    tsh_tensor *term = NULL;
    tsh_tensor_config config = {.dtype = TSH_FLOAT64, .ndim = 1, .shape = {1}, .layout = {TSH_LOCAL}};
    tshi_check_ok(r, tsh_tape_create(r->world, &tape));
    for (int i = 0; i < s->kept; i++) tshi_check_ok(r, tsh_tape_create(r->world, &others[i]));
    tshi_check_ok(r, tsh_tensor_create(tsh_world_mesh(r->world), &config, &term));
    for (int step = 0; step < STEPS && !r->failed; step++) {
        for (int i = 0; i < s->passing; i++) {
            tsh_tape *passing = NULL;
            tshi_check_ok(r, tsh_tape_create(r->world, &passing));
            tsh_tape_destroy(passing);
        }
        if (step == FAILS && r->rank == 1) {
            if (s->by_hand)
                tsh_world_fail(r->world, "no more");
            else
                tsh_reshape(tape, term, 1, (int64_t[]){3});
            atomic_fetch_add(s->failed, 1);
        }
        tshi_check_ok(r, tsh_tensor_write(term, &(double){step}, 1));
        tsh_tensor *sum = tsh_reduce(tape, term, tsh_world_group(r->world));
        double value = sum ? tsh_tensor_item(sum) : -1;
        tshi_check(r, value == 2 * step || (value == -1 && step == FAILS), "step %d: the sum is %g", step, value);
        if (step == FAILS - 1 && r->rank == 0) tshi_test_await(r, s->failed, 1);
        tshi_check_ok(r, tsh_tape_reset(tape));
    }
    tsh_tensor_release(term);
    tsh_tape_destroy(tape);
    for (int i = 0; i < s->kept; i++) tsh_tape_destroy(others[i]);
}

Test(recovery, aligns_the_steps_of_many_tapes, .timeout = 60) {
    for (int i = 0; i < 6; i++) {
        tapes_story s = {.kept = i / 2 == 1 ? 11 : 0, .passing = i / 2 == 2 ? 5 : 0, .by_hand = i % 2};
        s.failed = tshi_test_shared(sizeof *s.failed);
        tshi_test_options options = {.ranks = 2, .timeout = 20, .world_timeout = "10"};
        const char *words = tshi_test_run_with(&options, many_tapes, &s, NULL, NULL);
        cr_assert_str_empty(words, "%d tapes more, %d a step%s: %s", s.kept, s.passing, s.by_hand ? ", by hand" : "",
                            words);
    }
}
