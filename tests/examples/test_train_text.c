/* train_text as its users run it. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "support/shell.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define PROGRAM TSHARD_BIN_DIR "/train_text"
#define SMALL   " --batch 30 --context 6 --embed 9 --hidden 50"

enum { STEPS = 200 };

/* The losses of a run on so many ranks, of which `model` share a copy of the model. */
static void losses(int ranks, int model, double *out) {
    int code, length = 0;
    const char *text = tshi_test_shell(&code,
                                       TSHARD_BIN_DIR "/tshard-run -n %d --no-prefix " PROGRAM
                                                      " --json --seed 3 --lr 0.01 --steps %d --model-parallel %d" SMALL,
                                       ranks, STEPS, model);
    cr_assert_eq(code, 0, "%s", text);
    for (int i = 0; i < STEPS; i++, text += length) {
        int step = 0, told = 0;
        double speed = 0;
        int found = sscanf(text, "{\"step\": %d, \"loss\": %lf, \"tokens_per_s\": %lf, \"ranks\": %d}\n%n", &step,
                           &out[i], &speed, &told, &length);
        cr_assert(found == 4 && step == i + 1 && speed > 0 && told == ranks, "line %d is %.80s", i + 1, text);
    }
    cr_assert_str_empty(text);
}

static void same_losses(int ranks, int model) {
    double one[STEPS], many[STEPS];
    losses(1, 1, one);
    losses(ranks, model, many);
    for (int i = 0; i < STEPS; i++) {
        cr_assert_leq(fabs(many[i] - one[i]), 1e-4 * one[i], "step %d: %.9g on %d ranks, %.9g on one", i + 1, many[i],
                      ranks, one[i]);
    }
    cr_assert_lt(one[STEPS - 1], 0.85 * one[0], "nothing was learnt: %g became %g", one[0], one[STEPS - 1]);
}

Test(train_text, two_ranks_agree_with_one, .timeout = 120) {
    same_losses(2, 2);
}

Test(train_text, three_ranks_agree_with_one, .timeout = 120) {
    same_losses(3, 3);
}

Test(train_text, four_ranks_agree_with_one, .timeout = 120) {
    same_losses(4, 4);
}

Test(train_text, a_split_batch_agrees_with_one_rank, .timeout = 120) {
    same_losses(4, 2);
}

Test(train_text, writes_what_the_seed_says_at_any_number_of_ranks, .timeout = 120) {
    char one[4096];
    int code;
    const char *command = PROGRAM " --steps 20 --sample 80" SMALL;
    const char *text = tshi_test_shell(&code, "%s", command);
    cr_assert_eq(code, 0, "%s", text);
    const char *start = strstr(text, "It goes on");
    cr_assert(start && strlen(start) < sizeof one, "%s", text);
    cr_assert_gt(strlen(start), 80);
    strcpy(one, start);
    text = tshi_test_shell(&code, TSHARD_BIN_DIR "/tshard-run -n 3 --no-prefix %s", command);
    cr_assert_eq(code, 0, "%s", text);
    start = strstr(text, "It goes on");
    cr_assert_not_null(start);
    cr_assert_str_eq(start, one);
}

/* --- checkpoints -------------------------------------------------------------------------------------------------- */

enum { SAVED = 30, LAST = 70 };

/* The text of each step's loss from the next one on, as it is printed. */
static void loss_words(const char *text, int first, char words[LAST + 1][32]) {
    for (int step = first, length = 0; step <= LAST; step++, text += length) {
        int told = 0;
        int found = sscanf(text, "{\"step\": %d, \"loss\": %31[^,], %*[^}]}\n%n", &told, words[step], &length);
        cr_assert(found == 2 && told == step && length > 0, "line of step %d is %.80s", step, text);
    }
    cr_assert_str_empty(text);
}

static void train(int ranks, int model, const char *more, int first, char words[LAST + 1][32]) {
    int code;
    const char *text = tshi_test_shell(&code,
                                       TSHARD_BIN_DIR "/tshard-run -n %d --no-prefix " PROGRAM
                                                      " --json --seed 3 --steps %d --model-parallel %d" SMALL " %s",
                                       ranks, LAST, model, more);
    cr_assert_eq(code, 0, "%s", text);
    loss_words(text, first, words);
}

/* Saved while it trains, a run of so many ranks goes on from a step in the middle: on as many bit for bit. */
static void resumes(int ranks, int model) {
    static char all[LAST + 1][32], saving[LAST + 1][32], resumed[LAST + 1][32];
    char folder[] = "/tmp/tshard-resume-XXXXXX", more[128], removal[64];
    cr_assert(mkdtemp(folder));
    train(ranks, model, "", 1, all);
    snprintf(more, sizeof more, "--save %s --every %d", folder, SAVED);
    train(ranks, model, more, 1, saving);
    snprintf(more, sizeof more, "--resume %s/step-%08d", folder, SAVED);
    train(ranks, model, more, SAVED + 1, resumed);
    for (int i = SAVED + 1; i <= LAST; i++) {
        cr_assert_str_eq(saving[i], all[i], "step %d: %s with saves, %s without", i, saving[i], all[i]);
        cr_assert_str_eq(resumed[i], all[i], "step %d: %s resumed, %s in one go", i, resumed[i], all[i]);
    }
    for (int other = 1; other <= 4; other++) {
        train(other, other == 4 ? 2 : other, more, SAVED + 1, resumed);
        for (int i = SAVED + 1; i <= LAST; i++) {
            double a = strtod(resumed[i], NULL), b = strtod(all[i], NULL);
            cr_assert_leq(fabs(a - b), 1e-4 * b, "step %d: %.9g on %d ranks, %.9g on %d", i, a, other, b, ranks);
        }
    }
    snprintf(removal, sizeof removal, "rm -r %s", folder);
    cr_assert_eq(system(removal), 0);
}

Test(train_text, resumes_bit_for_bit_on_as_many_ranks_and_to_rounding_on_others, .timeout = 300) {
    resumes(2, 2);
    resumes(4, 2);
}

/* --- mistakes ----------------------------------------------------------------------------------------------------- */

static void refuses(int wanted_code, const char *words, const char *arguments) {
    int code;
    const char *text = tshi_test_shell(&code, PROGRAM " %s", arguments);
    cr_assert_eq(code, wanted_code, "%s: exit code %d, %s", arguments, code, text);
    cr_assert(strstr(text, words), "%s: '%s' is not in: %s", arguments, words, text);
    cr_assert_null(strchr(text, '\n')[1] ? text : NULL, "%s: one line was expected: %s", arguments, text);
}

Test(train_text, says_what_is_wrong_with_a_number, .timeout = 120) {
    refuses(2, "--steps wants a whole number, 1 to 1000000000, not '0'", "--steps 0");
    refuses(2, "--batch wants a whole number", "--batch -3");
    refuses(2, "not '12x'", "--context 12x");
    refuses(2, "not ''", "--hidden ''");
    refuses(2, "not '99999999999999999999'", "--embed 99999999999999999999");
    refuses(2, "--lr wants a number above 0, not 'nan'", "--lr nan");
    refuses(2, "--lr wants a number above 0, not 'inf'", "--lr inf");
    refuses(2, "--seed wants a whole number", "--seed -1");
    refuses(2, "--every wants a whole number", "--every 0");
    refuses(2, "'a.txt' is no option", "a.txt");
    refuses(2, "--depth", "--depth 3");
    refuses(2, "--text wants a value", "--text");
}

Test(train_text, says_what_is_wrong_with_a_text, .timeout = 120) {
    char path[] = "/tmp/tshard-text-XXXXXX", arguments[128];
    int file = mkstemp(path);
    cr_assert_geq(file, 0);
    snprintf(arguments, sizeof arguments, "--text %s", path);
    refuses(1, "is empty", arguments);
    cr_assert_eq(write(file, "abcdefgh", 8), 8);
    snprintf(arguments, sizeof arguments, "--text %s --context 8", path);
    refuses(1, "is 8 bytes long, and a context of 8 wants at least 9", arguments);
    close(file);
    unlink(path);
    refuses(1, "cannot be read: No such file or directory", "--text /nonexistent/text");
    refuses(1, "cannot be read: Is a directory", "--text /tmp");
}

Test(train_text, says_what_is_wrong_with_a_checkpoint, .timeout = 120) {
    refuses(1, "/nonexistent: no complete checkpoint found", "--steps 2 --json --resume /nonexistent" SMALL);
    int code;
    const char *text = tshi_test_shell(&code, PROGRAM " --steps 2 --save /nonexistent/run" SMALL);
    cr_assert(code == 1 && strstr(text, "in /nonexistent/run: No such file or directory"), "%d: %s", code, text);
}

Test(train_text, says_that_ranks_do_not_divide, .timeout = 120) {
    int code;
    const char *text = tshi_test_shell(&code, TSHARD_BIN_DIR "/tshard-run -n 3 " PROGRAM " --model-parallel 2" SMALL);
    cr_assert_eq(code, 1, "%s", text);
    cr_assert(strstr(text, "model=2") && strstr(text, "3"), "%s", text);
}

Test(train_text, a_text_of_one_letter_is_no_trouble, .timeout = 120) {
    char path[] = "/tmp/tshard-text-XXXXXX";
    int code, file = mkstemp(path);
    cr_assert_geq(file, 0);
    cr_assert_eq(write(file, "aaaaaaaa", 8), 8);
    const char *text =
        tshi_test_shell(&code,
                        TSHARD_BIN_DIR "/tshard-run -n 2 --no-prefix " PROGRAM
                                       " --text %s --context 7 --steps 2 --sample 3 --batch 2 --embed 2 --hidden 3",
                        path);
    close(file);
    unlink(path);
    cr_assert_eq(code, 0, "%s", text);
    cr_assert(strstr(text, "aaaaaaaaaa\n"), "%s", text);
}
