/* Training that goes on after deaths has the losses of the run without them. */
#include "support/losses.h"
#include "support/shell.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* LATEST: microseconds after a step has begun until a rank dies at the latest; even steps of 1 ms leave room for two
 * deaths before the last step. */
enum { STEPS = 30, RANKS = 4, LATEST = 8000 };

/* What was printed; its losses. */
static const char *run(double losses[STEPS], const char *launcher, const char *arguments) {
    int code;
    const char *text =
        tshi_test_shell(&code, "TSHARD_BLAS_THREADS=1 %s " TSHARD_BIN_DIR "/any_machines --dtype float64 --steps %d %s",
                        launcher, STEPS, arguments);
    cr_assert_eq(code, 0, "%s: %s", arguments, text);
    tshi_test_read_losses(text, STEPS, losses);
    return text;
}

static void compare(const double one[STEPS], const double losses[STEPS], const char *arguments) {
    int i = tshi_test_other_loss(STEPS, one, losses);
    cr_assert_lt(i, 0, "%s: step %d: %.9g, one rank %.9g", arguments, i, losses[i < 0 ? 0 : i], one[i < 0 ? 0 : i]);
}

static void check(const double one[STEPS], const char *arguments, int left) {
    double losses[STEPS];
    char words[64];
    const char *text = run(losses, TSHARD_BIN_DIR "/tshard-run --no-prefix --min-ranks 1 -n 4", arguments);
    snprintf(words, sizeof words, "%d ranks go on after step", left);
    cr_assert(strstr(text, words), "%s: %s", arguments, text);
    compare(one, losses, arguments);
}

/* A rank dies in some step, at some moment of it; models are replicated, split in two, or in four. */
Test(any_machines, one_rank_dies, .timeout = 600) {
    double one[STEPS];
    run(one, "", "");
    unsigned seed = 1;
    for (int i = 0; i < 12; i++) {
        char arguments[128];
        snprintf(arguments, sizeof arguments, "--survive --model %d --every %d --kill %d:%d:%d", 1 << i % 3, 1 + i % 7,
                 rand_r(&seed) % RANKS, rand_r(&seed) % 12, rand_r(&seed) % LATEST);
        check(one, arguments, RANKS - 1);
    }
}

/* Then another one, that may be its neighbour, when the others have gone on without the first; or both at once, where
 * their copies are not with each other. */
Test(any_machines, two_ranks_die, .timeout = 600) {
    double one[STEPS];
    run(one, "", "");
    unsigned seed = 2;
    for (int i = 0; i < 12; i++) {
        char arguments[128];
        int first = rand_r(&seed) % RANKS, step = 5 + rand_r(&seed) % 6;
        bool together = i % 3 == 0;
        int second = together ? (first + 2) % RANKS : (first + 1 + rand_r(&seed) % 3) % RANKS;
        snprintf(arguments, sizeof arguments, "--survive --model %d --every 3 --kill %d:%d:%d,%d:%d:%d:%d", 1 << i % 3,
                 first, step, together ? 0 : rand_r(&seed) % LATEST, second,
                 together ? step : rand_r(&seed) % (step + 4), together ? 0 : rand_r(&seed) % LATEST,
                 together ? 0 : RANKS - 1);
        check(one, arguments, RANKS - 2);
    }
}

/* Ranks of different weights keep them. */
Test(any_machines, weights_stay_with_the_ranks, .timeout = 300) {
    double one[STEPS], losses[STEPS];
    unsigned seed = 3;
    run(one, "", "");
    for (int i = 0; i < 6; i++) {
        char arguments[128], launcher[128];
        int ranks = i % 2 ? 3 : 2;
        snprintf(launcher, sizeof launcher, TSHARD_BIN_DIR "/tshard-run --no-prefix --min-ranks 1 -n %d", ranks);
        snprintf(arguments, sizeof arguments, "--survive --every 2 --model %s --kill %d:%d:%d", i % 2 ? "2:1:1" : "3:1",
                 rand_r(&seed) % ranks, rand_r(&seed) % 12, rand_r(&seed) % LATEST);
        run(losses, launcher, arguments);
        compare(one, losses, arguments);
    }
}

/* Without copies, the values of a rank without a replica are lost, and the message says which. */
Test(any_machines, says_what_is_lost, .timeout = 120) {
    int code;
    const char *text = tshi_test_shell(&code, TSHARD_BIN_DIR "/tshard-run --min-ranks 1 -n 3 " TSHARD_BIN_DIR
                                                             "/any_machines --survive --model 3 --every 0 --kill 1:4");
    cr_assert(code != 0 && strstr(text, "after step 4 no rank has the part of 'tokens.weight' that rank 1 had"), "%s",
              text);
}
