/* Training that ranks join has the losses of the run of one rank. */
#include "support/losses.h"
#include "support/shell.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { STEPS = 30 };

#define ENVIRONMENT "TSHARD_BLAS_THREADS=1 TSHARD_TOKEN=a-secret-of-this-test-alone "
#define PROGRAM     TSHARD_BIN_DIR "/any_machines --dtype float64 --steps 30 --survive --every 3 "
#define LAUNCH      ENVIRONMENT TSHARD_BIN_DIR "/tshard-run --no-prefix "

static int next_port(void) {
    static int count;
    return 20000 + (getpid() * 13 + count++) % 10000;
}

/* A job of so many ranks at $port, and a command line that starts those that join. The job has printed `wanted`. */
static void check(const double one[STEPS], int ranks, const char *arguments, const char *others, const char *wanted) {
    double losses[STEPS];
    int code;
    const char *text = tshi_test_shell(
        &code, "port=%d; (%s) & " LAUNCH "--min-ranks 1 -n %d --port $port " PROGRAM "%s; code=$?; wait; exit $code",
        next_port(), others, ranks, arguments);
    cr_assert_eq(code, 0, "%s", text);
    cr_assert(strstr(text, wanted), "no '%s': %s", wanted, text);
    tshi_test_read_losses(text, STEPS, losses);
    int i = tshi_test_other_loss(STEPS, one, losses);
    cr_assert_lt(i, 0, "%s: step %d is not as on one rank: %s", arguments, i, text);
}

static void run_one(double losses[STEPS]) {
    int code;
    const char *text = tshi_test_shell(&code, ENVIRONMENT PROGRAM);
    cr_assert_eq(code, 0, "%s", text);
    tshi_test_read_losses(text, STEPS, losses);
}

#define JOIN LAUNCH "--join 127.0.0.1:$port "

/* Models are replicated, split over all ranks, or over some; one rank becomes three, and two become five. */
Test(joins, one_after_another, .timeout = 300) {
    double one[STEPS];
    run_one(one);
    for (int model = 1; model <= 4; model *= 2) {
        char arguments[64], others[1024];
        snprintf(arguments, sizeof arguments, "--model %d --wait 4:2,9:3", model);
        snprintf(others, sizeof others,
                 JOIN "-n 1 " PROGRAM "--model %d --wait 4:2,9:3 & " JOIN "-n 1 " PROGRAM
                      "--model %d --wait 4:2,9:3 & wait",
                 model, model);
        check(one, 1, arguments, others, "3 ranks go on after step");
    }
}

Test(joins, three_at_once, .timeout = 300) {
    double one[STEPS];
    run_one(one);
    check(one, 2, "--model 4 --wait 7:5", JOIN "-n 3 " PROGRAM "--model 4 --wait 7:5", "5 ranks go on after step");
}

/* Weights: those that join have weight 1. */
Test(joins, weights, .timeout = 300) {
    double one[STEPS];
    run_one(one);
    check(one, 2, "--model 3:1 --wait 5:3", JOIN "-n 1 " PROGRAM "--model 3:1 --wait 5:3", "3 ranks go on after step");
}

/* Members and joined ranks die afterwards, rank 0 among them. */
Test(joins, and_deaths, .timeout = 300) {
    double one[STEPS];
    run_one(one);
    check(one, 3, "--model 4 --wait 6:5 --kill 0:14:3000,1:18", JOIN "-n 2 " PROGRAM "--model 4 --wait 6:5",
          "3 ranks go on after step");
    check(one, 2, "--model 2 --wait 6:4", JOIN "-n 2 " PROGRAM "--model 2 --wait 6:4 --kill 2:11:500",
          "3 ranks go on after step");
}

/* A rank that is killed while it joins, at some moment; others take its place. */
Test(joins, one_dies_on_the_way, .timeout = 300) {
    double one[STEPS];
    unsigned seed = 5;
    run_one(one);
    for (int i = 0; i < 6; i++) {
        char others[1024];
        snprintf(others, sizeof others,
                 ENVIRONMENT "TSHARD_JOIN=127.0.0.1:$port timeout -s KILL 0.%03d " PROGRAM
                             "--model 4 --wait 3:4 & " JOIN "-n 2 " PROGRAM "--model 4 --wait 3:4; wait",
                 20 + rand_r(&seed) % 100);
        check(one, 2, "--model 4 --wait 3:4", others, "4 ranks go on after step");
    }
}
