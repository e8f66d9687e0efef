/* A step that fails on one rank: tsh_tape_reset is all that a loop needs, on every rank, whenever the failure came. */
#include "support/steps.h"

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
