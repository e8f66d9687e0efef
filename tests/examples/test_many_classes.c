/* many_classes as its users run it. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "support/files.h"
#include "support/shell.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PROGRAM TSHARD_BIN_DIR "/many_classes"
#define SMALL                                                                                                          \
    " --classes 53 --noise 1.2 --inputs 48 --features 40 --hidden 64 --batch 45 --steps 400 --dtype float64 --json"

enum { STEPS = 400 };

typedef struct result {
    double loss[STEPS], accuracy, best;
    long long peak, model;
} result;

/* The losses of all steps, and what the last line says. */
static void train(int ranks, const char *options, result *out) {
    int code, length = 0;
    const char *text =
        tshi_test_shell(&code, TSHARD_BIN_DIR "/tshard-run -n %d --no-prefix " PROGRAM SMALL " %s", ranks, options);
    cr_assert_eq(code, 0, "%s", text);
    for (int i = 0; i < STEPS; i++, text += length) {
        int step = 0, found = sscanf(text, "{\"step\": %d, \"loss\": %lf, %*[^}]}\n%n", &step, &out->loss[i], &length);
        cr_assert(found == 2 && step == i + 1, "line %d is %.80s", i + 1, text);
    }
    double step_ms = 0;
    int found = sscanf(text,
                       "{\"accuracy\": %lf, \"best\": %lf, \"step_ms\": %lf, \"peak_bytes\": %lld, "
                       "\"model_bytes\": %lld",
                       &out->accuracy, &out->best, &step_ms, &out->peak, &out->model);
    cr_assert(found == 5 && step_ms > 0, "%.200s", text);
}

/* Ranks change nothing but the order of additions, and the accuracy is near the best that is possible. */
static void learns_alike(const char *options) {
    static result one, many;
    train(1, options, &one);
    cr_assert(one.best > 0.99 && one.accuracy > one.best - 0.03 && one.accuracy <= 1, "%g of %g", one.accuracy,
              one.best);
    cr_assert_lt(one.loss[STEPS - 1], 0.1 * one.loss[0]);
    for (int ranks = 2; ranks <= 4; ranks++) {
        train(ranks, options, &many);
        for (int i = 0; i < STEPS; i++) {
            cr_assert_leq(fabs(many.loss[i] - one.loss[i]), 1e-7 * one.loss[0],
                          "loss %d: %.12g on %d ranks, %.12g on one", i, many.loss[i], ranks, one.loss[i]);
        }
        cr_assert_float_eq(many.accuracy, one.accuracy, 1e-9);
        cr_assert_float_eq(many.best, one.best, 1e-9);
        cr_assert_lt(many.model, one.model, "the classifier is not split");
    }
}

Test(many_classes, ranks_that_hold_no_class_change_nothing, .timeout = 300) {
    learns_alike("--classes 2");
}

Test(many_classes, adamw_learns_alike_on_all_numbers_of_ranks, .timeout = 200) {
    learns_alike("");
}

Test(many_classes, sgd_learns_alike_on_all_numbers_of_ranks, .timeout = 200) {
    learns_alike("--optimizer sgd --lr 0.5");
}

/* A sample of all classes is the dense step, and so is one within backward; one of a part of them learns as well in a
 * few more steps. */
Test(many_classes, samples_classes, .timeout = 200) {
    static result dense, all, some;
    train(3, "--weight-decay 0.01", &dense);
    train(3, "--weight-decay 0.01 --sample 1", &all);
    for (int i = 0; i < STEPS; i++) {
        cr_assert_leq(fabs(all.loss[i] - dense.loss[i]), 1e-7 * dense.loss[0],
                      "loss %d: %.12g of a sample of all, %.12g", i, all.loss[i], dense.loss[i]);
    }
    train(2, "--weight-decay 0.01 --in-backward", &all);
    for (int i = 0; i < STEPS; i++) {
        cr_assert_leq(fabs(all.loss[i] - dense.loss[i]), 1e-7 * dense.loss[0], "loss %d: %.12g in backward, %.12g", i,
                      all.loss[i], dense.loss[i]);
    }
    train(4, "--sample 0.6", &some);
    cr_assert(some.accuracy > some.best - 0.05, "%g of %g", some.accuracy, some.best);
}

/* Of a classifier that is large beside its batch, a rank has little more than parameters, gradients and states. */
Test(many_classes, has_little_beside_parameters_gradients_and_states, .timeout = 200) {
    int code;
    const char *text =
        tshi_test_shell(&code, TSHARD_BIN_DIR "/tshard-run -n 2 --no-prefix " PROGRAM
                                              " --classes 20001 --features 256 --batch 32 --steps 4 --evaluate 1 --json"
                                              " | grep accuracy | sed 's/.*\"peak_bytes\"/\"peak_bytes\"/'");
    long long peak = 0, model = 0;
    cr_assert_eq(sscanf(text, "\"peak_bytes\": %lld, \"model_bytes\": %lld", &peak, &model), 2, "%s", text);
    cr_assert(model > 4 * 10001 * 256 * 4 && peak > model && (double)peak < 1.15 * (double)model, "%lld of %lld", peak,
              model);
}

Test(many_classes, times_the_products_alone_and_trains_in_16_bits, .timeout = 120) {
    int code;
    const char *text = tshi_test_shell(&code, TSHARD_BIN_DIR "/tshard-run -n 2 " PROGRAM
                                                             " --classes 100 --steps 9 --products --dtype bfloat16");
    cr_assert(code == 0 && strstr(text, "for the matrix products") && strstr(text, "is possible"), "%d: %s", code,
              text);
}

static void refuses(const char *words, const char *arguments) {
    int code;
    const char *text = tshi_test_shell(&code, PROGRAM " %s", arguments);
    cr_assert_eq(code, 2, "%s: exit code %d, %s", arguments, code, text);
    cr_assert(strstr(text, words), "%s: '%s' is not in: %s", arguments, words, text);
}

Test(many_classes, says_what_is_wrong_with_an_option, .timeout = 60) {
    refuses("--classes wants a whole number, 2 to", "--classes 1");
    refuses("--drawn is more than --classes", "--classes 10 --drawn 11");
    refuses("--optimizer wants adamw or sgd", "--optimizer adam");
    refuses("--noise wants a number, 0 or more", "--noise nan");
    refuses("--sample wants a number, 0 to 1, not '2'", "--sample 2");
    refuses("--momentum wants a number, 0 to 0.999", "--momentum 1");
    refuses("--dtype wants float32, float64, bfloat16 or float16", "--dtype int64");
    refuses("'classes'", "classes");
}

/* The second rank is killed when the first has shown a loss: all ends at once, and the first says why. */
Test(many_classes, ends_in_words_when_a_rank_is_killed, .timeout = 120, .init = tshi_test_enter,
     .fini = tshi_test_leave) {
    int code;
    char command[1024], losses[65536];
    const char *file = tshi_test_path("losses");
    snprintf(command, sizeof command,
             "timeout 60 " TSHARD_BIN_DIR
             "/tshard-run -n 2 --grace 5 sh -c '[ $RANK = 0 ] && exec > %s; [ $RANK = 0 ] || { "
             "until grep -q loss %s; do sleep 0.02; done 2> /dev/null; kill -9 $$; } & exec " PROGRAM
             " --json --steps 1000000'",
             file, file);
    const char *text = tshi_test_shell(&code, "{ %s; }", command);
    cr_assert(strstr(text, "rank 1 died"), "%d: %s", code, text);
    FILE *printed = fopen(file, "r");
    cr_assert(printed);
    losses[fread(losses, 1, sizeof losses - 1, printed)] = '\0';
    fclose(printed);
    cr_assert(strstr(losses, "loss") && !strstr(losses, "accuracy"), "%s", losses);
}
